//! Gradients in stream order: prepare once, enqueue many times, read when needed.

use std::sync::Arc;

use super::Backward;
use super::{BackwardOptions, Gradients};
use crate::cpu;
use crate::cpu::tokens::HostTokens;
use crate::cuda::{BackwardCall, CudaBackward, CudaCall, CudaGradScores, CudaGradients};
use crate::device::Device;
use crate::device::graph::Capture;
use crate::device::stream::Stream;
use crate::device::tokens::DeviceTokens;
use crate::error::{Error, Result};
use crate::ops::score::prepared::{DeviceScores, Work, check_side};
use crate::plan::backward::BackwardKind;
use crate::plan::backward::Gathered;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::GradientMatrix;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::provenance::Scored;
use crate::problem::scores::Scores;
use crate::runtime::alloc::{copied, filled};
use crate::runtime::on::On;
use crate::runtime::swap::Replaced;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::{Saved, TokenFormat};
use crate::tokens::layout::{TokenLayout, check_len};

/// Element type of gradients. Sums are in f32 whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientType {
    /// f32.
    #[default]
    F32,
    /// That of the tokens, to which a sum is rounded once, to nearest.
    Tokens,
}

/// Gradients of a prepared problem made ready, with their lists on the device.
///
/// Made by [`Device::prepare_backward`] and used with any handles that the scores' work takes, or
/// by [`Device::prepare_backward_from_codes`] and used with codes in place of the documents.
///
/// ```
/// use maxsim::{
///     BackwardOptions, Device, DeviceGradScores, DeviceGradients, DeviceScores, GradientType,
///     Pairing, ScoreOptions, Tokens,
/// };
///
/// let device = Device::cpu();
/// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?)?;
/// let documents = device.upload(&Tokens::padded(&[3.0f32, 4.0, -1.0, 5.0], 1, 2, 2)?)?;
/// let options = ScoreOptions { winners: true, ..ScoreOptions::default() };
/// let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
/// let mut scores = DeviceScores::new(&work)?;
///
/// let options = BackwardOptions::default();
/// let backward = device.prepare_backward(&work, &options, GradientType::F32)?;
/// let grad_scores = DeviceGradScores::new(&backward, &[0.5])?;
/// let mut gradients = DeviceGradients::new(&backward)?;
///
/// let mut stream = device.stream()?;
/// stream.score_into(&queries, &documents, &work, &mut scores)?;
/// stream.backward(&queries, &documents, &backward, &scores, &grad_scores, &mut gradients)?;
/// let gradients = gradients.read()?; // waits
/// assert_eq!(gradients.queries, [1.5, 2.0, -0.5, 2.5]);
/// assert_eq!(gradients.documents, [0.5, 0.0, 0.0, 0.5]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug)]
pub struct BackwardWork {
    pub(crate) device: Device,
    /// Those of the queries and of the documents that calls are given.
    formats: [TokenFormat; 2],
    gradient: ElementType,
    scored: Scored,
    /// Those of the scores.
    options: ScoreOptions,
    pub(crate) outputs: Arc<OutputShape>,
    inner: On<CpuBackward, Arc<CudaBackward>>,
}

/// What gradients on the CPU need to know besides the problem.
#[derive(Debug)]
struct CpuBackward {
    finds_winners_again: bool,
}

/// Gradients of a loss with respect to scores, on a device: copied there, or written by
/// [`Stream::loss`].
#[derive(Debug)]
pub struct DeviceGradScores {
    pub(crate) device: Device,
    pub(crate) n_scores: usize,
    pub(crate) inner: On<Arc<Replaced<Vec<f32>>>, Arc<CudaGradScores>>,
}

/// Gradients with respect to tokens, on a device: written by [`Stream::backward`], read when
/// needed. Each is `[rows, dim]` of its matrix, row-major without gaps.
#[derive(Debug)]
pub struct DeviceGradients {
    device: Device,
    element: ElementType,
    /// Rows of queries and documents.
    rows: [usize; 2],
    dim: usize,
    inner: On<Arc<Replaced<Gradients>>, Arc<CudaGradients>>,
}

impl Device {
    /// Makes ready the gradients of a problem whose scores `work` computes, for any number of
    /// [`Stream::backward`] calls. The work must save winners, except for
    /// [`Backward::Recompute`], which finds them itself.
    ///
    /// [`Backward::Recompute`]: crate::Backward::Recompute
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; [`Error::Shape`] where the work was not prepared with winners and
    /// the strategy reads them; [`Error::Unsupported`] for a strategy that the device does not
    /// have, and for compressed tokens; [`Error::DeviceMemory`].
    pub fn prepare_backward(
        &self,
        work: &Work,
        options: &BackwardOptions,
        gradients: GradientType,
    ) -> Result<BackwardWork> {
        self.prepare_gradients(work, options, gradients, work.formats[1])
    }

    /// As [`Device::prepare_backward`], for calls that are given [`Int8`](crate::Int8) codes of the
    /// documents that were scored, which need not live until then: see [`Saved`] for what that
    /// saves and what it costs. Those of queries are the handles that were scored, and so is the
    /// type of the gradients.
    ///
    /// ```
    /// use maxsim::{
    ///     BackwardOptions, Device, DeviceGradScores, DeviceGradients, DeviceScores, GradientType, Int8,
    ///     Pairing, ScaleType, ScoreOptions, Tokens,
    /// };
    ///
    /// let device = Device::cpu();
    /// let queries = device.upload(&Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?)?;
    /// let documents = device.upload(&Tokens::padded(&[0.6f32, 0.8, -0.6, 0.8], 1, 2, 2)?)?;
    /// let options = ScoreOptions { winners: true, ..ScoreOptions::default() };
    /// let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
    /// let mut scores = DeviceScores::new(&work)?;
    /// let options = BackwardOptions::default();
    /// let backward = device.prepare_backward_from_codes(&work, &options, GradientType::F32)?;
    ///
    /// let mut stream = device.stream()?;
    /// stream.score_into(&queries, &documents, &work, &mut scores)?;
    /// let saved = documents.quantize::<Int8>(ScaleType::F16)?;
    /// drop(documents);
    ///
    /// let grad_scores = DeviceGradScores::new(&backward, &[0.5])?;
    /// let mut gradients = DeviceGradients::new(&backward)?;
    /// stream.backward(&queries, &saved, &backward, &scores, &grad_scores, &mut gradients)?;
    /// let gradients = gradients.read()?;
    /// assert!((gradients.queries[0] - 0.3).abs() < 0.0016);
    /// assert_eq!(gradients.documents, [0.5, 0.0, 0.0, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::prepare_backward`], and [`Error::Unsupported`] for normalised scores,
    /// [`Backward::Atomic`] and [`Backward::Recompute`].
    ///
    /// [`Backward::Atomic`]: crate::Backward::Atomic
    /// [`Backward::Recompute`]: crate::Backward::Recompute
    pub fn prepare_backward_from_codes(
        &self,
        work: &Work,
        options: &BackwardOptions,
        gradients: GradientType,
    ) -> Result<BackwardWork> {
        self.prepare_gradients(work, options, gradients, TokenFormat::Int8)
    }

    /// Makes ready gradients for calls whose documents are of format `saved`.
    fn prepare_gradients(
        &self,
        work: &Work,
        options: &BackwardOptions,
        gradients: GradientType,
        saved: TokenFormat,
    ) -> Result<BackwardWork> {
        self.check_same("work", &work.device)?;
        let finds_winners_again = options.strategy.finds_winners_again(self)?;
        if !work.outputs.winners && !finds_winners_again {
            return Err(Error::Shape {
                argument: "work",
                expected: "work prepared with ScoreOptions::winners, or Backward::Recompute".into(),
                found: "work without winners".into(),
            });
        }
        let [Some(element), Some(_)] = work.formats.map(TokenFormat::element) else {
            return Err(Error::Unsupported {
                what: format!("gradients of {} and {} tokens", work.formats[0], work.formats[1]),
                why: "compressed tokens have none; train with f16, bf16 or f32".into(),
            });
        };
        options.strategy.check_saved(saved, work.options.normalize)?;
        let gradient = match gradients {
            GradientType::F32 => ElementType::F32,
            GradientType::Tokens => element,
        };
        let with_winners =
            ScoreOptions { winners: true, token_scores: false, ..work.options.clone() };
        let inner = match &work.inner {
            On::Cpu(()) => On::Cpu(CpuBackward { finds_winners_again }),
            On::Cuda(_) => {
                let problem = Problem::new(&work.queries, &work.documents, &work.pairing)?;
                let device = self.cuda_device("work for a CUDA device")?;
                let outputs = OutputShape::new(&problem, &with_winners);
                let kind = BackwardKind {
                    gradient,
                    is_atomic: options.strategy == Backward::Atomic,
                    normalizes: work.options.normalize,
                    documents: Gathered::of(saved),
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
        Ok(BackwardWork {
            device: self.clone(),
            formats: [element.into(), saved],
            gradient,
            scored: Scored {
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

impl BackwardWork {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Element type of the gradients.
    pub fn element_type(&self) -> ElementType {
        self.gradient
    }

    pub(crate) fn matrices(&self, [queries, documents]: [u64; 2]) -> [GradientMatrix; 2] {
        [(queries, &self.scored.queries), (documents, &self.scored.documents)].map(
            |(address, layout)| {
                let (rows, dim) = (layout.rows(), layout.dim());
                GradientMatrix { address, element: self.gradient, rows, dim }
            },
        )
    }

    /// Checks that a call on `device` is one that the work was prepared for.
    /// `scored` is what the scores' winners are of, where that is known.
    fn check<T: Element, D: Saved<T>>(
        &self,
        device: &Device,
        call: &Call<'_, T, D>,
        scored: Option<Scored>,
    ) -> Result<()> {
        device.check_same("work", &self.device)?;
        let [queries, documents] = self.formats;
        check_side(&self.device, "queries", call.queries, queries, &self.scored.queries)?;
        check_side(&self.device, "documents", call.documents, documents, &self.scored.documents)?;
        device.check_same("scores", &call.scores.device)?;
        if !Arc::ptr_eq(&call.scores.shape, &self.outputs) && call.scores.shape != self.outputs {
            return Err(Error::Shape {
                argument: "scores",
                expected: format!("results {:?} of the work", self.outputs.shape),
                found: format!("other results {:?}", call.scores.shape.shape),
            });
        }
        if scored.is_some_and(|scored| !scored.is_same(&self.scored)) {
            return Err(Error::Shape {
                argument: "scores",
                expected: "winners of the layouts and the pairing that the work was prepared for"
                    .into(),
                found: "those of a call with other work; score again with this work".into(),
            });
        }
        device.check_same("grad_scores", &call.grad_scores.device)?;
        let n_scores = self.outputs.shape.n_scores();
        check_len("grad_scores", n_scores, "one per score", call.grad_scores.n_scores)?;
        device.check_same("gradients", &call.gradients.device)?;
        let DeviceGradients { element, rows, dim, .. } = *call.gradients;
        let expected = [self.scored.queries.rows(), self.scored.documents.rows()];
        if (element, rows, dim) != (self.gradient, expected, self.scored.queries.dim()) {
            return Err(Error::Shape {
                argument: "gradients",
                expected: format!(
                    "{} gradients of {} and {} rows of {}",
                    self.gradient,
                    expected[0],
                    expected[1],
                    self.scored.queries.dim()
                ),
                found: format!("{element} gradients of {} and {} rows of {dim}", rows[0], rows[1]),
            });
        }
        Ok(())
    }
}

impl DeviceGradScores {
    /// A copy of one number per score.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is another number of them; [`Error::HostMemory`] or
    /// [`Error::DeviceMemory`] where there is no room.
    pub fn new(work: &BackwardWork, values: &[f32]) -> Result<DeviceGradScores> {
        let n_scores = work.outputs.shape.n_scores();
        check_len("grad_scores", n_scores, "one per score", values.len())?;
        let inner = match &work.inner {
            On::Cpu(_) => On::Cpu(Arc::new(Replaced::new(copied(values)?))),
            On::Cuda(_) => {
                let device = work.device.cuda_device("work for a CUDA device")?;
                On::Cuda(Arc::new(CudaGradScores::upload(device, values)?))
            }
        };
        Ok(DeviceGradScores { device: work.device.clone(), n_scores, inner })
    }

    /// Zeros, one per score, to be written by [`Stream::loss`].
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn zeros(work: &BackwardWork) -> Result<DeviceGradScores> {
        DeviceGradScores::new(work, &filled(work.outputs.shape.n_scores() as u64, 0.0)?)
    }

    /// Waits for the last call or launch that was given these gradients, and copies them to the
    /// host.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room; [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<Vec<f32>> {
        match &self.inner {
            On::Cpu(own) => Ok(Arc::unwrap_or_clone(own.get())),
            On::Cuda(own) => {
                let mut read = filled(self.n_scores as u64, 0.0)?;
                own.read(&mut read)?;
                Ok(read)
            }
        }
    }

    /// Replaces the numbers, once no work uses them any more: waits for the device.
    ///
    /// # Errors
    /// [`Error::Shape`] where there is another number of them.
    pub fn write(&mut self, values: &[f32]) -> Result<()> {
        check_len("grad_scores", self.n_scores, "one per score", values.len())?;
        match &self.inner {
            On::Cpu(own) => {
                own.set(copied(values)?);
                Ok(())
            }
            On::Cuda(own) => own.write(values),
        }
    }

    /// Device address of the numbers; `None` on the CPU.
    pub fn address(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(own) => Some(own.address()),
        }
    }
}

impl DeviceGradients {
    /// Zeros.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new(work: &BackwardWork) -> Result<DeviceGradients> {
        let inner = match &work.inner {
            On::Cpu(_) => {
                let zeros = Gradients::zeros(&work.scored.queries, &work.scored.documents)?;
                On::Cpu(Arc::new(Replaced::new(zeros)))
            }
            On::Cuda(_) => {
                let device = work.device.cuda_device("work for a CUDA device")?;
                let zeros = CudaGradients::zeros(device, work.matrices([0; 2]))?;
                On::Cuda(Arc::new(zeros))
            }
        };
        Ok(DeviceGradients::of(work, inner))
    }

    pub(crate) fn of(
        work: &BackwardWork,
        inner: On<Arc<Replaced<Gradients>>, Arc<CudaGradients>>,
    ) -> DeviceGradients {
        DeviceGradients {
            device: work.device.clone(),
            element: work.gradient,
            rows: [work.scored.queries.rows(), work.scored.documents.rows()],
            dim: work.scored.queries.dim(),
            inner,
        }
    }

    /// Element type of the gradients.
    pub fn element_type(&self) -> ElementType {
        self.element
    }

    /// Device addresses of the queries' and of the documents' gradient; `None` on the CPU. Order
    /// work that reads them behind the stream that writes them.
    pub fn addresses(&self) -> Option<[u64; 2]> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(gradients) => Some(gradients.sides().map(|side| side.address)),
        }
    }

    /// Waits for the last call or launch that was given these gradients, and copies them to the
    /// host, widened to f32.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room; [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<Gradients> {
        match &self.inner {
            On::Cpu(gradients) => Ok(Arc::unwrap_or_clone(gradients.get())),
            On::Cuda(gradients) => {
                let room = |rows: usize| filled((rows * self.dim) as u64, 0.0);
                let [queries, documents] = self.rows;
                let mut read = Gradients { queries: room(queries)?, documents: room(documents)? };
                gradients.read([&mut read.queries, &mut read.documents])?;
                Ok(read)
            }
        }
    }
}

/// What a call is given.
struct Call<'a, T: Element, D: Saved<T>> {
    queries: &'a DeviceTokens<T>,
    documents: &'a DeviceTokens<D>,
    scores: &'a DeviceScores,
    grad_scores: &'a DeviceGradScores,
    gradients: &'a DeviceGradients,
    adds: bool,
}

impl Stream {
    /// Enqueues the gradients of a loss with respect to tokens, from the winners of `scores` and
    /// the loss's gradients with respect to the scores. Overwrites what `gradients` hold.
    ///
    /// Does not wait, and on a CUDA device allocates nothing once the stream's workspace (at most
    /// 32 MB, unless [`Backward::Atomic`] or rows that are normalised take more) has grown to what
    /// the work needs. Tokens must be those that gave the scores, or documents their codes where
    /// the work was prepared for those ([`Device::prepare_backward_from_codes`]); see
    /// [`Device::backward`] for what the sums are.
    ///
    /// [`Backward::Atomic`]: crate::Backward::Atomic
    ///
    /// # Errors
    /// [`Error::WrongDevice`], or [`Error::Shape`] where handles, scores or gradients are not what
    /// the work was prepared for; nothing is enqueued then. [`Error::DeviceMemory`] where the
    /// workspace cannot grow.
    pub fn backward<T: Element, D: Saved<T>>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<D>,
        work: &BackwardWork,
        scores: &DeviceScores,
        grad_scores: &DeviceGradScores,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let adds = false;
        self.enqueue(work, &Call { queries, documents, scores, grad_scores, gradients, adds })
    }

    /// As [`Stream::backward`], but adds to what `gradients` hold.
    ///
    /// # Errors
    /// Those of [`Stream::backward`].
    pub fn backward_into<T: Element, D: Saved<T>>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<D>,
        work: &BackwardWork,
        scores: &DeviceScores,
        grad_scores: &DeviceGradScores,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let adds = true;
        self.enqueue(work, &Call { queries, documents, scores, grad_scores, gradients, adds })
    }

    fn enqueue<T: Element, D: Saved<T>>(
        &mut self,
        work: &BackwardWork,
        call: &Call<'_, T, D>,
    ) -> Result<()> {
        work.check(&self.device, call, call.scores.scored.get())?;
        match &mut self.inner {
            On::Cpu(()) => CpuCall::new(work, call)?.run(),
            On::Cuda(stream) => {
                let Some((cuda, scores, grad_scores, gradients)) = call.on_cuda(work) else {
                    return Err(call.wrong_device());
                };
                let call = BackwardCall {
                    queries: call.queries.cuda_tokens()?,
                    documents: call.documents.cuda_tokens()?,
                    outputs: scores,
                    grad_scores,
                    gradients,
                    adds: call.adds,
                };
                cuda.enqueue(stream, &call)
            }
        }
    }
}

impl Capture {
    /// Adds the gradients of a loss with respect to tokens, to run after the calls before it.
    /// Overwrites what `gradients` hold.
    ///
    /// # Errors
    /// Those of [`Stream::backward`].
    pub fn backward<T: Element, D: Saved<T>>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<D>,
        work: &BackwardWork,
        scores: &DeviceScores,
        grad_scores: &DeviceGradScores,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let adds = false;
        self.add(work, &Call { queries, documents, scores, grad_scores, gradients, adds })
    }

    /// As [`Capture::backward`], but adds to what `gradients` hold.
    ///
    /// # Errors
    /// Those of [`Stream::backward`].
    pub fn backward_into<T: Element, D: Saved<T>>(
        &mut self,
        queries: &DeviceTokens<T>,
        documents: &DeviceTokens<D>,
        work: &BackwardWork,
        scores: &DeviceScores,
        grad_scores: &DeviceGradScores,
        gradients: &mut DeviceGradients,
    ) -> Result<()> {
        let adds = true;
        self.add(work, &Call { queries, documents, scores, grad_scores, gradients, adds })
    }

    fn add<T: Element, D: Saved<T>>(
        &mut self,
        work: &BackwardWork,
        call: &Call<'_, T, D>,
    ) -> Result<()> {
        work.check(self.device(), call, self.scored(&call.scores.scored))?;
        match &work.inner {
            On::Cpu(_) => {
                let call = CpuCall::new(work, call)?;
                self.push_cpu(move || call.run());
            }
            On::Cuda(_) => {
                let Some((cuda, scores, grad_scores, gradients)) = call.on_cuda(work) else {
                    return Err(call.wrong_device());
                };
                self.push_cuda(CudaCall::backward(
                    cuda,
                    call.queries.cuda_tokens()?,
                    call.documents.cuda_tokens()?,
                    scores,
                    grad_scores,
                    gradients,
                    call.adds,
                )?);
            }
        }
        Ok(())
    }
}

type OnCuda<'a> = (
    &'a Arc<CudaBackward>,
    &'a Arc<crate::cuda::CudaOutputs>,
    &'a Arc<CudaGradScores>,
    &'a Arc<CudaGradients>,
);

impl<'a, T: Element, D: Saved<T>> Call<'a, T, D> {
    /// What the call uses on a CUDA device.
    fn on_cuda(&self, work: &'a BackwardWork) -> Option<OnCuda<'a>> {
        match (&work.inner, &self.scores.inner, &self.grad_scores.inner, &self.gradients.inner) {
            (On::Cuda(work), On::Cuda(scores), On::Cuda(grad_scores), On::Cuda(gradients)) => {
                Some((work, scores, grad_scores, gradients))
            }
            _ => None,
        }
    }

    fn wrong_device(&self) -> Error {
        let (expected, found) = (self.scores.device.to_string(), "another device".into());
        Error::WrongDevice { argument: "gradients", expected, found }
    }
}

/// A call of the CPU engine with everything that it uses.
struct CpuCall<T: Element, D: Saved<T>> {
    layouts: [Arc<TokenLayout>; 2],
    queries: Arc<HostTokens<T>>,
    documents: Arc<HostTokens<D>>,
    pairing: Arc<Pairing>,
    options: ScoreOptions,
    scores: Arc<Replaced<Scores>>,
    grad_scores: Arc<Replaced<Vec<f32>>>,
    gradients: Arc<Replaced<Gradients>>,
    gradient: ElementType,
    finds_winners_again: bool,
    adds: bool,
}

impl<T: Element, D: Saved<T>> CpuCall<T, D> {
    /// What the call is given must be of the work; [`BackwardWork::check`] checks it.
    fn new(work: &BackwardWork, call: &Call<'_, T, D>) -> Result<CpuCall<T, D>> {
        match (&work.inner, &call.scores.inner, &call.grad_scores.inner, &call.gradients.inner) {
            (
                On::Cpu(CpuBackward { finds_winners_again }),
                On::Cpu(scores),
                On::Cpu(grad_scores),
                On::Cpu(gradients),
            ) => Ok(CpuCall {
                layouts: [call.queries.layout.clone(), call.documents.layout.clone()],
                queries: call.queries.host_tokens()?.clone(),
                documents: call.documents.host_tokens()?.clone(),
                pairing: work.scored.pairing.clone(),
                options: work.options.clone(),
                scores: scores.clone(),
                grad_scores: grad_scores.clone(),
                gradients: gradients.clone(),
                gradient: work.gradient,
                finds_winners_again: *finds_winners_again,
                adds: call.adds,
            }),
            _ => Err(call.wrong_device()),
        }
    }

    fn run(&self) -> Result<()> {
        let [queries, documents] = &self.layouts;
        let problem = Problem::new(queries, documents, &self.pairing)?;
        let (queries, documents) = (self.queries.matrix(), self.documents.matrix());
        let again = self
            .finds_winners_again
            .then(|| cpu::score(&problem, queries, documents, &self.options))
            .transpose()?;
        let saved = self.scores.get();
        let winners = again.as_ref().unwrap_or(&saved).winners().unwrap_or_default();
        let grad_scores = self.grad_scores.get();
        loop {
            let held = self.gradients.get();
            let mut sums = match self.adds {
                true => held.copied()?,
                false => Gradients::zeros(&self.layouts[0], &self.layouts[1])?,
            };
            let sides = [&mut sums.queries[..], &mut sums.documents[..]];
            let normalize = self.options.normalize;
            cpu::add_gradients(
                &problem,
                queries,
                documents,
                winners,
                &grad_scores,
                sides,
                normalize,
            )?;
            if self.gradient != ElementType::F32 {
                let rounded = |x: &mut f32| *x = T::from_f32(*x).to_f32();
                sums.queries.iter_mut().chain(&mut sums.documents).for_each(rounded);
            }
            if !self.adds {
                self.gradients.set(sums);
                break;
            }
            // Where another call has added to them meanwhile, this one adds to what it left.
            if self.gradients.replace(&held, sums) {
                break;
            }
        }
        Ok(())
    }
}
