//! Problems made ready for a device, and room for their results there.

use std::ops::Range;
use std::sync::Arc;

use crate::cuda::{CudaOutputs, ForwardPlan};
use crate::device::Device;
use crate::device::tokens::DeviceTokens;
use crate::error::{Error, Result};
use crate::ops::backward::cache::BackwardCache;
use crate::plan::choice::Chosen;
use crate::plan::choice::Plan;
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::provenance::{LastProvenance, Provenance};
use crate::problem::scores::Scores;
use crate::problem::shape::ScoreShape;
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::format::{Format, TokenFormat};
use crate::tokens::layout::TokenLayout;

/// A checked and planned problem, with its work lists on the device.
///
/// Made by [`Device::prepare`] and used with any handles that have the same layouts. It does
/// not keep the handles: their contents may change between calls.
#[derive(Debug)]
#[must_use]
pub struct PreparedScore {
    pub(crate) device: Device,
    /// Formats of the queries and of the documents.
    pub(crate) formats: [TokenFormat; 2],
    pub(crate) queries: Arc<TokenLayout>,
    pub(crate) documents: Arc<TokenLayout>,
    pub(crate) pairing: Arc<Pairing>,
    pub(crate) options: ScoreOptions,
    /// How queries and documents are read.
    pub(crate) access: [Access; 2],
    pub(crate) plan: Plan,
    pub(crate) outputs: Arc<OutputShape>,
    pub(crate) inner: On<(), Arc<ForwardPlan>>,
    /// Gradients that were prepared of it.
    pub(crate) backward: BackwardCache,
}

impl PreparedScore {
    /// The device that the work runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The kernel that the work runs, and why.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.outputs.shape
    }

    /// Bytes of workspace that a stream needs for a call; a stream that has none of the caller's
    /// ([`Stream::set_workspace`](crate::stream::Stream::set_workspace)) allocates them once.
    pub fn workspace_bytes(&self) -> u64 {
        match &self.inner {
            On::Cpu(()) => 0,
            On::Cuda(work) => work.workspace_bytes(),
        }
    }

    /// Room for the results: scores 0, winners -1, token scores 0.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new_scores(&self) -> Result<DeviceScores> {
        DeviceScores::with_room(&self.device, &self.outputs)
    }

    /// Room for the results with anything in it: to be given to a call before it is read.
    pub(crate) fn new_unfilled(&self) -> Result<DeviceScores> {
        match &self.device.0 {
            On::Cpu(()) => self.new_scores(),
            On::Cuda(cuda) => {
                let outputs = On::Cuda(Arc::new(CudaOutputs::unfilled(cuda, &self.outputs)?));
                Ok(DeviceScores::of(&self.device, &self.outputs, outputs))
            }
        }
    }

    /// Checks that a call on `device` with these handles and scores is one that the work was
    /// prepared for. Allocates nothing when it is.
    pub(crate) fn check_call<Q: Format, D: Format>(
        &self,
        device: &Device,
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        scores: &DeviceScores,
    ) -> Result<()> {
        device.check_same("work", &self.device)?;
        check_side(&self.device, "queries", queries, self.formats[0], &self.queries)?;
        check_side(&self.device, "documents", documents, self.formats[1], &self.documents)?;
        scores.check("scores", device, &self.outputs)
    }

    /// Provenance of the winners that its calls find; `None` where they find none.
    pub(crate) fn provenance(&self) -> Option<Provenance> {
        self.outputs.winners.then(|| Provenance {
            queries: self.queries.clone(),
            documents: self.documents.clone(),
            pairing: self.pairing.clone(),
        })
    }
}

/// Checks that tokens are on a device, and what one side of work was prepared for.
pub(crate) fn check_side<F: Format>(
    device: &Device,
    argument: &'static str,
    tokens: &DeviceTokens<F>,
    format: TokenFormat,
    layout: &Arc<TokenLayout>,
) -> Result<()> {
    device.check_same(argument, tokens.device())?;
    if format != F::FORMAT {
        return Err(Error::Shape {
            argument,
            expected: format!("{format} tokens, as the work was prepared for"),
            found: format!("{} tokens", F::FORMAT),
        });
    }
    if !Arc::ptr_eq(layout, &tokens.layout) && !layout.same_items(&tokens.layout) {
        return Err(Error::Shape {
            argument,
            expected: "the layout that the work was prepared for".into(),
            found: "another layout; prepare the work with these handles".into(),
        });
    }
    Ok(())
}

impl AsRef<PreparedScore> for PreparedScore {
    fn as_ref(&self) -> &PreparedScore {
        self
    }
}

impl PreparedScore {
    /// Chooses the kernel or engine that scores the same problem with other `options`.
    pub(crate) fn choose(&self, problem: &Problem<'_>, options: &ScoreOptions) -> Result<Chosen> {
        let plan = self.device.plan_formats(problem, self.formats, self.access, options)?;
        plan.chosen().ok_or_else(|| Error::Unsupported {
            what: format!("winners on {} by {}", self.device, plan.name()),
            why: "the work runs on a CUDA device".into(),
        })
    }
}

/// Results on a device: written by [`Queue::score_into`](crate::stream::Queue::score_into), read
/// when needed.
///
/// Calls on different streams that write the same results run one after the other. Results that a
/// [`Graph`](crate::stream::Graph) writes live until the graph is dropped, too.
///
/// Another library's kernel can read them where they are:
///
/// ```
/// use maxsim::stream::{DeviceScores, Queue};
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// # fn launch([_scores, _winners, _token_scores]: [u64; 3], _winner_bytes: usize) {}
/// let device = Device::best();
/// let tokens = device.upload(&Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?)?;
/// let options = ScoreOptions::default().winners(true).token_scores(true);
/// let work = device.prepare(&tokens, &tokens, &Pairing::cross(), &options)?;
/// let mut scores: DeviceScores = work.new_scores()?;
/// assert_eq!(scores.winner_bytes(), 2); // u16, for documents this short
/// assert_eq!(scores.len_bytes(), [4, 4, 8]); // one score of a query of two tokens
/// let mut stream = device.stream()?;
/// stream.score_into(&tokens, &tokens, &work, &mut scores)?;
///
/// stream.synchronize()?; // or launch on `stream.handle()`, which waits for nothing
/// let places = [scores.address(), scores.winners_address(), scores.token_scores_address()];
/// if let [Some(values), Some(winners), Some(token_scores)] = places {
///     launch([values, winners, token_scores], scores.winner_bytes()); // on a GPU
/// }
/// assert_eq!(scores.read()?.values(), [5.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct DeviceScores {
    pub(crate) device: Device,
    pub(crate) shape: Arc<OutputShape>,
    pub(crate) provenance: LastProvenance,
    pub(crate) inner: On<Arc<Swap<Scores>>, Arc<CudaOutputs>>,
}

impl DeviceScores {
    pub(crate) fn with_room(device: &Device, shape: &Arc<OutputShape>) -> Result<DeviceScores> {
        let inner = match &device.0 {
            On::Cuda(cuda) => On::Cuda(Arc::new(CudaOutputs::new(cuda, shape)?)),
            On::Cpu(()) => On::Cpu(Arc::new(Swap::new(shape.host_scores()?))),
        };
        Ok(DeviceScores::of(device, shape, inner))
    }

    fn of(
        device: &Device,
        shape: &Arc<OutputShape>,
        inner: On<Arc<Swap<Scores>>, Arc<CudaOutputs>>,
    ) -> DeviceScores {
        let (device, shape, provenance) =
            (device.clone(), shape.clone(), LastProvenance::default());
        DeviceScores { device, shape, provenance, inner }
    }

    /// Some of the scores, in the order of the pairing, once what was given this is done: with one
    /// wait for both. Of documents without tokens, those that the device has.
    pub(crate) fn read_some(&self, scores: Range<usize>) -> Result<Vec<f32>> {
        match (&self.inner, &self.device.0) {
            (On::Cuda(outputs), On::Cuda(cuda)) => {
                cuda.on_idle_stream(|stream| outputs.read_scores(stream, scores))
            }
            _ => Ok(self.read()?.values()[scores].to_vec()),
        }
    }

    /// The error for results of another kind of device than the work's.
    pub(crate) fn wrong_device(&self, expected: &Device) -> Error {
        let (expected, found) = (expected.to_string(), self.device.to_string());
        Error::WrongDevice { argument: "scores", expected, found }
    }

    /// Checks that these are results of a device, of this shape.
    pub(crate) fn check(
        &self,
        argument: &'static str,
        device: &Device,
        outputs: &Arc<OutputShape>,
    ) -> Result<()> {
        device.check_same(argument, &self.device)?;
        if Arc::ptr_eq(&self.shape, outputs) || self.shape == *outputs {
            return Ok(());
        }
        Err(Error::Shape {
            argument,
            expected: format!("room for the work's results {:?}", outputs.shape),
            found: format!("room for other results {:?}", self.shape.shape),
        })
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.shape.shape
    }

    /// Waits for the last call or launch that was given these results, and copies them to the
    /// host.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room; [`Error::DeviceLost`] after a fault.
    pub fn read(&self) -> Result<Scores> {
        match &self.inner {
            On::Cpu(scores) => Ok(Arc::unwrap_or_clone(scores.get())),
            On::Cuda(outputs) => outputs.read(&self.shape),
        }
    }

    /// Device address of the f32 scores; `None` on the CPU. Order work that reads them behind
    /// the stream that writes them.
    pub fn address(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(outputs) => Some(outputs.addresses().scores),
        }
    }

    /// Device address of the winners, pair-major, each [`DeviceScores::winner_bytes`] long;
    /// `None` on the CPU or when they were not asked for.
    pub fn winners_address(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(outputs) => self.shape.winners.then_some(outputs.addresses().winners),
        }
    }

    /// Device address of the f32 token scores, pair-major; `None` on the CPU or when they
    /// were not asked for.
    pub fn token_scores_address(&self) -> Option<u64> {
        match &self.inner {
            On::Cpu(_) => None,
            On::Cuda(outputs) => {
                self.shape.token_scores.then_some(outputs.addresses().token_scores)
            }
        }
    }

    /// Bytes of the scores, the winners and the token scores; 0 of what the work was not prepared
    /// for. So much memory of the caller must there be.
    pub fn len_bytes(&self) -> [u64; 3] {
        self.shape.lens_bytes()
    }

    /// Bytes of a winner in device memory: 2 (u16, all-ones = none) while every document is
    /// shorter than 65 535 tokens, else 4 (i32, -1 = none).
    pub fn winner_bytes(&self) -> usize {
        self.shape.winner_bytes
    }
}
