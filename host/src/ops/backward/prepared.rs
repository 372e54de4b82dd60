//! Gradients in stream order: prepare once, enqueue many times, read when needed.

use std::sync::Arc;

use super::BackwardOptions;
use super::blocking::{matrices, rows_of};
use super::{BackwardStrategy, GradientSides, check_angular_weights};
use crate::cuda::CudaBackward;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::score::prepared::PreparedScore;
use crate::plan::backward::BackwardKind;
use crate::plan::backward::Gathered;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::GradientMatrix;
use crate::problem::outputs::OutputShape;
use crate::problem::provenance::Provenance;
use crate::runtime::on::On;
use crate::tokens::element::ElementType;
use crate::tokens::format::TokenFormat;

/// Element type of gradients. Sums are always in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum GradientType {
    /// f32.
    #[default]
    F32,
    /// The element type of the tokens, to which a sum is rounded once, to nearest.
    Tokens,
}

/// Gradients of a prepared problem made ready, with their lists on the device.
///
/// Made by [`Device::prepare_backward`] and used with any handles that the scores' work takes, or
/// by [`Device::prepare_backward_from_codes`] and used with codes in place of the documents.
///
/// ```
/// use maxsim::format::ElementType;
/// use maxsim::stream::Queue;
/// use maxsim::training::{BackwardOptions, DeviceGradScores, DeviceGradients};
/// use maxsim::training::{GradientType, PreparedBackward};
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// let device = Device::cpu();
/// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?)?;
/// let documents = device.upload(&Tokens::padded(&[3.0f32, 4.0, -1.0, 5.0], 1, 2, 2)?)?;
/// let options = ScoreOptions::default().winners(true);
/// let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
/// let mut scores = work.new_scores()?;
///
/// let options = BackwardOptions::default();
/// let backward: PreparedBackward =
///     device.prepare_backward(&work, &options, GradientType::F32)?;
/// assert_eq!(backward.element_type(), ElementType::F32); // of f16 tokens, too
/// let grad_scores: DeviceGradScores = backward.upload_grad_scores(&[0.5])?;
/// let mut gradients: DeviceGradients = backward.new_gradients()?;
///
/// let mut stream = device.stream()?;
/// stream.score_into(&queries, &documents, &work, &mut scores)?;
/// let with_grad = scores.with_grad(&grad_scores);
/// stream.backward(&queries, &documents, &backward, with_grad, &mut gradients)?;
/// let read = gradients.read()?; // waits
/// assert_eq!(read.queries, [1.5, 2.0, -0.5, 2.5]);
/// assert_eq!(read.documents, [0.5, 0.0, 0.0, 0.5]);
/// // A second part of the batch, say, adds to what is there.
/// let with_grad = scores.with_grad(&grad_scores);
/// stream.backward_into(&queries, &documents, &backward, with_grad, &mut gradients)?;
/// assert_eq!(gradients.read()?.queries, [3.0, 4.0, -1.0, 5.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct PreparedBackward {
    pub(crate) device: Device,
    /// Formats of the queries and of the documents that calls are given.
    pub(super) formats: [TokenFormat; 2],
    pub(super) gradient: ElementType,
    /// Whether queries and documents get gradients.
    pub(super) sides: [bool; 2],
    pub(super) provenance: Provenance,
    /// Options of the scores.
    pub(super) options: ScoreOptions,
    pub(crate) outputs: Arc<OutputShape>,
    pub(super) inner: On<CpuBackwardWork, Arc<CudaBackward>>,
}

/// Inputs of gradients on the CPU besides the problem.
#[derive(Debug)]
pub(super) struct CpuBackwardWork {
    pub(super) finds_winners_again: bool,
}

impl Device {
    /// Makes ready the gradients of a problem whose scores `work` computes, for any number of
    /// [`Queue::backward`](crate::stream::Queue::backward) calls. The work must save winners,
    /// except for [`BackwardStrategy::Recompute`], which finds them itself.
    ///
    /// [`BackwardStrategy::Recompute`]: crate::training::BackwardStrategy::Recompute
    ///
    /// Where documents are residual-compressed, the work is for
    /// [`Queue::backward_residual`](crate::stream::Queue::backward_residual), which gives the
    /// queries' gradient alone, in f32.
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; [`Error::Shape`] where the work was not prepared with winners and
    /// the strategy reads them; [`Error::Unsupported`] for a strategy that the device does not
    /// have, and for compressed tokens; [`Error::Shape`], too, for documents that the device alone
    /// knows ([`TokenLayout::unread`](crate::TokenLayout::unread)), unless the gradient is that of
    /// queries alone; [`Error::DeviceMemory`].
    pub fn prepare_backward(
        &self,
        work: &PreparedScore,
        options: &BackwardOptions,
        gradients: GradientType,
    ) -> Result<PreparedBackward> {
        self.prepare_gradients(work, options, gradients, work.formats[1])
    }

    /// As [`Device::prepare_backward`], for calls that are given [`Int8`](crate::format::Int8)
    /// codes of the documents that were scored, which need not live until then: see
    /// [`GradientSource`](crate::format::GradientSource) for what that saves and what it costs.
    /// Those of queries are the handles that were scored, and so is the type of the gradients.
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::stream::Queue;
    /// use maxsim::training::{BackwardOptions, GradientType};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let device = Device::cpu();
    /// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?)?;
    /// let documents = device.upload(&Tokens::padded(&[0.6f32, 0.8, -0.6, 0.8], 1, 2, 2)?)?;
    /// let options = ScoreOptions::default().winners(true);
    /// let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
    /// let mut scores = work.new_scores()?;
    /// let options = BackwardOptions::default();
    /// let backward = device.prepare_backward_from_codes(&work, &options, GradientType::F32)?;
    ///
    /// let mut stream = device.stream()?;
    /// stream.score_into(&queries, &documents, &work, &mut scores)?;
    /// let saved = documents.quantize::<Int8>(ScaleType::F16)?;
    /// drop(documents);
    ///
    /// let grad_scores = backward.upload_grad_scores(&[0.5])?;
    /// let mut gradients = backward.new_gradients()?;
    /// let with_grad = scores.with_grad(&grad_scores);
    /// stream.backward(&queries, &saved, &backward, with_grad, &mut gradients)?;
    /// let gradients = gradients.read()?;
    /// assert!((gradients.queries[0] - 0.3).abs() < 0.0016);
    /// assert_eq!(gradients.documents, [0.5, 0.0, 0.0, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::prepare_backward`], and [`Error::Unsupported`] for normalised
    /// scores, [`BackwardStrategy::Atomic`] and [`BackwardStrategy::Recompute`].
    ///
    /// [`BackwardStrategy::Atomic`]: crate::training::BackwardStrategy::Atomic
    /// [`BackwardStrategy::Recompute`]: crate::training::BackwardStrategy::Recompute
    pub fn prepare_backward_from_codes(
        &self,
        work: &PreparedScore,
        options: &BackwardOptions,
        gradients: GradientType,
    ) -> Result<PreparedBackward> {
        self.prepare_gradients(work, options, gradients, TokenFormat::Int8)
    }

    /// Makes ready gradients for calls whose documents are of format `saved`.
    pub(super) fn prepare_gradients(
        &self,
        work: &PreparedScore,
        options: &BackwardOptions,
        gradients: GradientType,
        saved: TokenFormat,
    ) -> Result<PreparedBackward> {
        self.check_same("work", &work.device)?;
        let finds_winners_again = options.strategy.finds_winners_again(self)?;
        if !work.outputs.winners && !finds_winners_again {
            return Err(Error::Shape {
                argument: "work",
                expected:
                    "work prepared with ScoreOptions::winners, or BackwardStrategy::Recompute"
                        .into(),
                found: "work without winners".into(),
            });
        }
        let element = elements_of(work.formats, saved, gradients)?;
        options.strategy.check_saved(saved, work.options.normalize)?;
        options.strategy.check_sides(options.sides)?;
        check_angular_weights(&work.options, &work.queries)?;
        let sides = sides_of(options.sides, saved)?;
        // Gradients of queries alone need to know of no document's rows, where winners are saved.
        let is_atomic = options.strategy == BackwardStrategy::Atomic;
        if sides[1] || is_atomic || finds_winners_again {
            work.documents.check_read("documents with gradients")?;
        }
        let gradient = match gradients {
            GradientType::F32 => ElementType::F32,
            GradientType::Tokens => element,
        };
        let with_winners =
            ScoreOptions { winners: true, token_scores: false, ..work.options.clone() };
        let inner = match &work.inner {
            On::Cpu(()) => On::Cpu(CpuBackwardWork { finds_winners_again }),
            On::Cuda(_) => {
                let problem = Problem::new(&work.queries, &work.documents, &work.pairing)?;
                let device = self.cuda_device("work for a CUDA device")?;
                let outputs = OutputShape::new(&problem, &with_winners);
                let kind = BackwardKind {
                    gradient,
                    is_atomic,
                    normalizes: work.options.normalize,
                    angular: work.options.angular,
                    weighted: work.queries.is_weighted(),
                    documents: Gathered::of(saved),
                    sides,
                };
                let backward = match finds_winners_again {
                    false => CudaBackward::new(device, &problem, element, kind, &outputs)?,
                    true => {
                        let chosen = work.choose(&problem, &with_winners)?;
                        let again = (chosen, options.winner_bytes_max());
                        CudaBackward::recompute(device, &problem, element, kind, &outputs, again)?
                    }
                };
                On::Cuda(Arc::new(backward))
            }
        };
        Ok(PreparedBackward {
            device: self.clone(),
            formats: [element.into(), saved],
            gradient,
            sides,
            provenance: Provenance {
                queries: work.queries.clone(),
                documents: work.documents.clone(),
                pairing: work.pairing.clone(),
            },
            options: with_winners,
            outputs: work.outputs.clone(),
            inner,
        })
    }
}

/// Whether documents of a format have no gradient, while queries have one.
fn gives_queries_alone(documents: TokenFormat) -> bool {
    matches!(documents, TokenFormat::Residual(_))
}

/// Whether queries, and whether documents of a format, get gradients.
fn sides_of(sides: GradientSides, documents: TokenFormat) -> Result<[bool; 2]> {
    match (gives_queries_alone(documents), sides.wanted()) {
        (false, wanted) => Ok(wanted),
        (true, [true, _]) => Ok([true, false]),
        (true, _) => Err(Error::Unsupported {
            what: format!("gradients of {documents} tokens"),
            why: "they have none; ask for GradientSides::Queries".into(),
        }),
    }
}

/// Element type of the queries, where there are such gradients of tokens of these formats, from
/// documents that are saved in a format.
fn elements_of(
    [queries, documents]: [TokenFormat; 2],
    saved: TokenFormat,
    gradients: GradientType,
) -> Result<ElementType> {
    let is_residual = gives_queries_alone(documents) && saved == documents;
    let element = queries.element().filter(|_| documents.element().is_some() || is_residual);
    let Some(element) = element else {
        return Err(Error::Unsupported {
            what: format!("gradients of {queries} and {documents} tokens"),
            why: "compressed tokens have none; train with f16, bf16 or f32".into(),
        });
    };
    if is_residual && gradients != GradientType::F32 && element != ElementType::F32 {
        return Err(Error::Unsupported {
            what: format!("gradients in {element} of residual documents' scores"),
            why: "they are f32; ask for GradientType::F32".into(),
        });
    }
    Ok(element)
}

impl PreparedBackward {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of workspace that a stream needs for any call; a stream that has none of the caller's
    /// ([`Stream::set_workspace`](crate::stream::Stream::set_workspace)) allocates them once.
    pub fn workspace_bytes(&self) -> u64 {
        [false, true].map(|adds| self.workspace_bytes_of(adds)).into_iter().max().unwrap_or(0)
    }

    /// Bytes of workspace that a stream needs for [`Queue::backward_into`], which `adds` to
    /// gradients, or for [`Queue::backward`], which overwrites them and may need far less.
    ///
    /// [`Queue::backward_into`]: crate::stream::Queue::backward_into
    /// [`Queue::backward`]: crate::stream::Queue::backward
    pub fn workspace_bytes_of(&self, adds: bool) -> u64 {
        match &self.inner {
            On::Cpu(_) => 0,
            On::Cuda(work) => work.workspace_bytes(adds),
        }
    }

    /// Element type of the gradients.
    pub fn element_type(&self) -> ElementType {
        self.gradient
    }

    /// Rows of the queries' and of the documents' gradient, and of that of the weights: none of a
    /// side that has none.
    pub(super) fn rows(&self) -> [usize; 3] {
        let Provenance { queries, documents, .. } = &self.provenance;
        rows_of([queries, documents], self.sides)
    }

    /// Whether calls find the gradient of the queries' weights.
    pub(crate) fn has_weights_gradient(&self) -> bool {
        self.sides[0] && self.provenance.queries.is_weighted()
    }

    /// The gradients of queries, documents and weights at these addresses; without the last, if it
    /// has none.
    pub(crate) fn matrices(&self, sides: [u64; 2], weights: Option<u64>) -> [GradientMatrix; 3] {
        let [queries, documents, n_weights] = self.rows();
        let rows = [queries, documents, if weights.is_some() { n_weights } else { 0 }];
        let addresses = [sides[0], sides[1], weights.unwrap_or(0)];
        matrices(addresses, self.gradient, rows, self.provenance.queries.dim())
    }
}
