//! The operations of a queue: enqueued on a stream, or captured into a graph.

use super::backward::command::Call;
use super::backward::outputs::{DeviceGradScores, DeviceGradients};
use super::backward::prepared::PreparedBackward;
use super::backward::with_grad::WithGrad;
use super::chamfer::prepared::{DeviceChamfer, PreparedChamfer};
use super::loss::prepared::{DeviceLoss, PreparedLoss};
use super::rescore::{CoarseCodes, PreparedRescore};
use super::score::any;
use super::score::prepared::{DeviceScores, PreparedScore};
use super::top_k::prepared::{DeviceTopK, PreparedTopK};
use crate::cuda::Selection;
use crate::device::any::AnyDeviceTokens;
use crate::device::command::Submit;
use crate::device::graph::Capture;
use crate::device::stream::Stream;
use crate::device::tokens::DeviceTokens;
use crate::error::Result;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, GradientSource, Residual, ScorableWith};

/// Takes stream-ordered calls: a [`Stream`] runs them in order, a [`Capture`] records them for a
/// [`Graph`](crate::stream::Graph). So a step is written once, and enqueued or captured. Sealed.
///
/// ```
/// use maxsim::stream::{DeviceScores, PreparedScore, Queue};
/// use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, Tokens};
///
/// fn step(
///     queue: &mut impl Queue,
///     tokens: &DeviceTokens<f32>,
///     work: &PreparedScore,
///     scores: &mut DeviceScores,
/// ) -> maxsim::Result<()> {
///     queue.score_into(tokens, tokens, work, scores)
/// }
///
/// let device = Device::best();
/// let tokens = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?)?;
/// let work = device.prepare(&tokens, &tokens, &Pairing::cross(), &ScoreOptions::default())?;
/// let mut scores = work.new_scores()?;
/// let mut stream = device.stream()?;
/// step(&mut stream, &tokens, &work, &mut scores)?; // enqueued
/// assert_eq!(scores.read()?.values(), [5.0]);
/// let mut graph = device.capture(|capture| step(capture, &tokens, &work, &mut scores))?;
/// graph.launch(&mut stream)?;
/// # Ok::<(), maxsim::Error>(())
/// ```
pub trait Queue: Submit {
    /// Enqueues or captures the scoring of queries against documents.
    ///
    /// Does not wait, and on a CUDA device a stream allocates nothing, on the host neither, once
    /// its workspace (at most 32 MB) has grown to what the work needs. (Where rows are normalised,
    /// the first call with an uploaded handle that the work was not prepared with waits, once.)
    /// Dropping a handle, the work or the scores does not wait either: what calls use of them stays
    /// until they are done. So a call with new handles and scores and old shapes, whose work comes
    /// from [`Device::prepare_cached`](crate::Device::prepare_cached), neither waits nor allocates.
    ///
    /// # Errors
    /// [`WrongDevice`](crate::Error::WrongDevice), or [`Shape`](crate::Error::Shape) where handles
    /// or scores are not what the work was prepared for; nothing is enqueued then.
    /// [`DeviceMemory`](crate::Error::DeviceMemory) where the workspace cannot grow.
    fn score_into<Q: ScorableWith<D>, D: Format>(
        &mut self,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        work: &PreparedScore,
        scores: &mut DeviceScores,
    ) -> Result<()> {
        let command = work.command(self.device(), queries, documents, scores)?;
        self.submit(command)
    }

    /// Enqueues or captures a call as [`Queue::score_into`], of handles whose formats are known at
    /// run time alone.
    ///
    /// # Errors
    /// [`Unsupported`](crate::Error::Unsupported) where the formats do not go together; those of
    /// [`Queue::score_into`].
    fn score_any_into(
        &mut self,
        queries: &AnyDeviceTokens,
        documents: &AnyDeviceTokens,
        work: &PreparedScore,
        scores: &mut DeviceScores,
    ) -> Result<()> {
        any::enqueue(self, queries, documents, work, scores)
    }

    /// Enqueues or captures a coarse-to-fine call; see [`CoarseCodes`]. `coarse` has handles.
    ///
    /// Does not wait, and on a CUDA device a stream allocates nothing, on the host neither, once
    /// its workspace has grown to what the work needs, as [`Queue::score_into`].
    ///
    /// # Errors
    /// The errors of [`Queue::score_into`].
    fn rescore_into<T: Element>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<T>,
        coarse: &CoarseCodes<'_>,
        work: &PreparedRescore,
        scores: &mut DeviceScores,
    ) -> Result<()> {
        let command = work.command(self.device(), [queries, documents], coarse, scores)?;
        self.submit(command)
    }

    /// Enqueues or captures the selection of the best documents of each query, which replace what
    /// `best` has. Does not wait, and on a CUDA device a stream allocates nothing, on the host
    /// neither, once its workspace has grown to what the work needs.
    ///
    /// # Errors
    /// [`WrongDevice`](crate::Error::WrongDevice), or [`Shape`](crate::Error::Shape) where scores
    /// or `best` are not what the work was prepared for; nothing is enqueued then.
    /// [`DeviceMemory`](crate::Error::DeviceMemory) where the workspace cannot grow.
    fn top_k_into(
        &mut self,
        scores: &DeviceScores,
        work: &PreparedTopK,
        best: &mut DeviceTopK,
    ) -> Result<()> {
        let call = Selection { first_id: 0, adds: false };
        let command = work.command(self.device(), scores, best, call)?;
        self.submit(command)
    }

    /// As [`Queue::top_k_into`], of further documents, whose ids begin with `first_id`: the best of
    /// those and of what `best` has. A document that is there twice is ranked twice.
    ///
    /// # Errors
    /// Those of [`Queue::top_k_into`], and [`TooLarge`](crate::Error::TooLarge) for ids of 2³² and
    /// more.
    fn top_k_more(
        &mut self,
        scores: &DeviceScores,
        work: &PreparedTopK,
        first_id: u32,
        best: &mut DeviceTopK,
    ) -> Result<()> {
        let call = Selection { first_id, adds: true };
        let command = work.command(self.device(), scores, best, call)?;
        self.submit(command)
    }

    /// Enqueues or captures the merging of what `other` has into `best`, of as many queries and the
    /// same k: what streams have found that ran beside each other. (What other devices have found
    /// is read from each, and merged by [`Ranking::merge`](crate::Ranking::merge).)
    ///
    /// ```
    /// use maxsim::stream::Queue;
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let device = Device::best();
    /// let one = device.upload(&Tokens::padded(&[1.0f32], 1, 1, 1)?)?;
    /// let documents = device.upload(&Tokens::padded(&[3.0f32, 1.0, 2.0], 3, 1, 1)?)?;
    /// let work =
    ///     device.prepare(&one, &documents, &Pairing::cross(), &ScoreOptions::default())?;
    /// let top_k = device.prepare_top_k(&work, &documents, 2)?;
    /// let mut scores = work.new_scores()?;
    /// let [mut best, mut other] = [top_k.new_best()?, top_k.new_best()?];
    /// let mut stream = device.stream()?;
    /// stream.score_into(&one, &documents, &work, &mut scores)?;
    /// stream.top_k_more(&scores, &top_k, 0, &mut best)?;
    /// stream.top_k_more(&scores, &top_k, 3, &mut other)?;
    /// stream.merge_top_k(&other, &mut best)?;
    /// let found = &best.read()?[0];
    /// assert_eq!(found.ranked.iter().map(|found| found.id).collect::<Vec<_>>(), [0, 3]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WrongDevice`](crate::Error::WrongDevice), or [`Shape`](crate::Error::Shape) where the two
    /// are not of as many queries and the same k; nothing is enqueued then.
    fn merge_top_k(&mut self, other: &DeviceTopK, best: &mut DeviceTopK) -> Result<()> {
        let command = best.merge_command(self.device(), other)?;
        self.submit(command)
    }

    /// Enqueues or captures the [Chamfer distances](crate::Device::chamfer) of clouds, in place of
    /// what `found` has. Does not wait, and on a CUDA device allocates nothing once the stream's
    /// workspace has grown to [what the work needs](PreparedChamfer::workspace_bytes). Any number
    /// of clouds are two launches; each pair of large ones takes eight more, or of many dims two
    /// for each slice of either cloud, and two for all.
    ///
    /// # Errors
    /// [`WrongDevice`](crate::Error::WrongDevice), or [`Shape`](crate::Error::Shape) where clouds
    /// or `found` are not what the work was prepared for; nothing is enqueued then.
    fn chamfer_into<T: Element>(
        &mut self,
        x: &DeviceTokens<T>,
        y: &DeviceTokens<T>,
        work: &PreparedChamfer,
        found: &mut DeviceChamfer,
    ) -> Result<()> {
        let command = work.command(self.device(), [x, y], found)?;
        self.submit(command)
    }

    /// Enqueues or captures the gradients of a loss with respect to points, from those with respect
    /// to the values of `found` ([`DeviceChamfer::with_grad`]): see
    /// [`Device::chamfer_backward`](crate::Device::chamfer_backward). Overwrites what `gradients`
    /// hold. Does not wait, and on a CUDA device allocates nothing, and is two launches.
    ///
    /// # Errors
    /// The errors of [`Queue::chamfer_into`]; [`Unsupported`](crate::Error::Unsupported) where
    /// distances are not reduced, and on a CUDA device for clouds that share rows.
    fn chamfer_backward<T: Element>(
        &mut self,
        x: &DeviceTokens<T>,
        y: &DeviceTokens<T>,
        work: &PreparedChamfer,
        found: WithGrad<'_, DeviceChamfer, DeviceGradScores>,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let command = work.backward_command(self.device(), [x, y], found, gradients)?;
        self.submit(command)
    }

    /// Enqueues or captures a loss of scores and its gradients with respect to them, which
    /// [`Queue::backward`] takes. Overwrites both. Does not wait, and on a CUDA device a stream
    /// allocates nothing.
    ///
    /// # Errors
    /// [`WrongDevice`](crate::Error::WrongDevice), or [`Shape`](crate::Error::Shape) where scores,
    /// gradients or loss are not of as many queries and documents as the work was prepared for;
    /// nothing is enqueued then.
    fn loss(
        &mut self,
        work: &PreparedLoss,
        scores: &DeviceScores,
        grad_scores: &mut DeviceGradScores,
        loss: &mut DeviceLoss,
    ) -> Result<()> {
        let command = work.command(self.device(), scores, grad_scores, loss)?;
        self.submit(command)
    }

    /// Enqueues or captures the gradients of a loss with respect to tokens, from the winners of
    /// `scores` and the loss's gradients with respect to them ([`DeviceScores::with_grad`]).
    /// Overwrites what `gradients` hold.
    ///
    /// Does not wait, and on a CUDA device a stream allocates nothing once its workspace (at most
    /// 32 MB, unless [`BackwardStrategy::Atomic`](crate::training::BackwardStrategy::Atomic) or
    /// rows that are normalised take more) has grown to what the work needs. Tokens must be those
    /// that gave the scores, or documents their codes where the work was prepared for those
    /// ([`Device::prepare_backward_from_codes`](crate::Device::prepare_backward_from_codes)); see
    /// [`Device::backward`](crate::Device::backward) for what the sums are.
    ///
    /// # Errors
    /// [`WrongDevice`](crate::Error::WrongDevice), or [`Shape`](crate::Error::Shape) where handles,
    /// scores or gradients are not what the work was prepared for; nothing is enqueued then.
    /// [`DeviceMemory`](crate::Error::DeviceMemory) where the workspace cannot grow.
    fn backward<T: Element, D: GradientSource<T>>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<D>,
        work: &PreparedBackward,
        scores: WithGrad<'_, DeviceScores, DeviceGradScores>,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let WithGrad { scores, grad_scores } = scores;
        let adds = false;
        submit(self, work, Call { queries, documents, scores, grad_scores, gradients, adds })
    }

    /// As [`Queue::backward`], but adds to what `gradients` hold.
    ///
    /// # Errors
    /// The errors of [`Queue::backward`].
    fn backward_into<T: Element, D: GradientSource<T>>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<D>,
        work: &PreparedBackward,
        scores: WithGrad<'_, DeviceScores, DeviceGradScores>,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let WithGrad { scores, grad_scores } = scores;
        let adds = true;
        submit(self, work, Call { queries, documents, scores, grad_scores, gradients, adds })
    }

    /// As [`Queue::backward`], where documents are residual-compressed: the gradient of the
    /// queries, in f32, which [`Device::backward_residual`](crate::Device::backward_residual)
    /// describes. `gradients` have no rows of documents; those of the codec's tables are not
    /// computed.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use maxsim::format::Residual;
    /// use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
    /// use maxsim::stream::Queue;
    /// use maxsim::training::{BackwardOptions, GradientType};
    /// use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, TokenLayout, Tokens};
    ///
    /// // One document of two tokens: (0.5 + 0.25, 0 - 1) and (0 - 1, 2 + 0.25).
    /// let centroids = Centroids::F32(vec![0.5, 0.0, 0.0, 2.0].into());
    /// let codec = Arc::new(ResidualCodec::new(1, 2, centroids, &[-1.0, 0.25], false)?);
    /// let layout = TokenLayout::packed(2, 2, &[0i64, 2])?;
    /// let order = BitOrder::LittleEndian;
    /// let tokens = ResidualTokens::new(codec, vec![0, 1], vec![0b01, 0b10], order, layout)?;
    /// let device = Device::cpu();
    /// let documents: DeviceTokens<Residual<f32>> = device.upload_residual(&tokens)?;
    /// let queries = device.upload(&Tokens::padded(&[1.0f32, 2.0], 1, 1, 2)?)?;
    ///
    /// let options = ScoreOptions::default().winners(true);
    /// let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
    /// let options = BackwardOptions::default();
    /// let backward = device.prepare_backward(&work, &options, GradientType::F32)?;
    /// let mut scores = work.new_scores()?;
    /// let grad_scores = backward.upload_grad_scores(&[1.0])?;
    /// let mut gradients = backward.new_gradients()?;
    /// let mut stream = device.stream()?;
    /// stream.score_into(&queries, &documents, &work, &mut scores)?;
    /// let scores = scores.with_grad(&grad_scores);
    /// stream.backward_residual(&queries, &documents, &backward, scores, &mut gradients)?;
    /// let found = gradients.read()?;
    /// assert_eq!((found.queries, found.documents), (vec![-1.0, 2.25], vec![]));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Queue::backward`].
    fn backward_residual<T: Element>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<Residual<T>>,
        work: &PreparedBackward,
        scores: WithGrad<'_, DeviceScores, DeviceGradScores>,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let WithGrad { scores, grad_scores } = scores;
        let adds = false;
        submit(self, work, Call { queries, documents, scores, grad_scores, gradients, adds })
    }
}

/// Submits the gradients of a call.
fn submit<T: Element, D: Format>(
    queue: &mut (impl Submit + ?Sized),
    work: &PreparedBackward,
    call: Call<'_, T, D>,
) -> Result<()> {
    let provenance = queue.provenance(&call.scores.provenance);
    let command = work.command(queue.device(), call, provenance)?;
    queue.submit(command)
}

impl Queue for Stream {}
impl Queue for Capture {}
