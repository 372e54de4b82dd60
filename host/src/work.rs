//! Problems made ready for a device, and room for their results there.

use std::sync::Arc;

#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::cuda::{CudaOutputs, CudaWork};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::{Format, TokenFormat};
use crate::handle::DeviceTokens;
use crate::lock::Replaced;
use crate::pairing::Pairing;
use crate::plan::Plan;
#[cfg(all(feature = "cuda", target_os = "linux"))]
use crate::plan::{Access, Chosen};
use crate::problem::{Problem, ScoreShape, TokenOffsets};
use crate::scored::{LastScored, Scored};
use crate::scores::{ScoreOptions, Scores};
use crate::tokens::TokenLayout;

/// A checked and planned problem, with its work lists on the device.
///
/// Made by [`Device::prepare`] and used with any handles that have the same layouts. It does
/// not keep the handles: their contents may change between calls.
#[derive(Debug)]
pub struct Work {
    pub(crate) device: Device,
    /// Of the queries, of the documents.
    pub(crate) formats: [TokenFormat; 2],
    pub(crate) queries: Arc<TokenLayout>,
    pub(crate) documents: Arc<TokenLayout>,
    pub(crate) pairing: Arc<Pairing>,
    pub(crate) options: ScoreOptions,
    /// How queries and documents are read.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) access: [Access; 2],
    pub(crate) plan: Plan,
    pub(crate) outputs: Arc<OutputShape>,
    pub(crate) inner: WorkInner,
}

#[derive(Debug)]
pub(crate) enum WorkInner {
    Cpu,
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(Arc<CudaWork>),
}

impl Work {
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

    /// What its calls' winners are of; nothing where they find none.
    pub(crate) fn scored(&self) -> Option<Scored> {
        self.outputs.winners.then(|| Scored {
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

#[cfg(all(feature = "cuda", target_os = "linux"))]
impl Work {
    /// What scores the same problem as `options` say.
    pub(crate) fn choose(&self, problem: &Problem<'_>, options: &ScoreOptions) -> Result<Chosen> {
        let plan = self.device.plan_formats(problem, self.formats, self.access, options)?;
        plan.chosen().ok_or_else(|| Error::Unsupported {
            what: format!("winners on {} by {}", self.device, plan.name()),
            why: "the work runs on a CUDA device".into(),
        })
    }
}

/// Which outputs there are, and of what size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutputShape {
    pub shape: ScoreShape,
    /// Where winners or token scores are asked for.
    pub token_offsets: Option<TokenOffsets>,
    pub winners: bool,
    pub token_scores: bool,
    /// Bytes of a winner on a CUDA device.
    pub winner_bytes: usize,
    /// Scores are those of winners that INT8 screening has found: winners are on the device,
    /// asked for or not.
    pub screened: bool,
}

impl OutputShape {
    pub(crate) fn new(problem: &Problem<'_>, options: &ScoreOptions) -> OutputShape {
        OutputShape {
            shape: problem.shape(),
            token_offsets: (options.winners || options.token_scores)
                .then(|| problem.token_offsets()),
            winners: options.winners,
            token_scores: options.token_scores,
            // All-ones means none, so the last index must stay below it.
            winner_bytes: if problem.documents().max_len() < 65535 { 2 } else { 4 },
            screened: false,
        }
    }

    /// Those of a coarse-to-fine call.
    pub(crate) fn of_screened(problem: &Problem<'_>, options: &ScoreOptions) -> OutputShape {
        let token_offsets = Some(problem.token_offsets());
        OutputShape { token_offsets, screened: true, ..OutputShape::new(problem, options) }
    }

    /// What kernels leave of each piece of cut documents, for a problem whose documents are
    /// those pieces.
    pub(crate) fn of_pieces(problem: &Problem<'_>, winners: bool) -> OutputShape {
        OutputShape {
            shape: problem.shape(),
            token_offsets: Some(problem.token_offsets()),
            winners,
            token_scores: true,
            winner_bytes: 4,
            screened: false,
        }
    }

    /// Bytes of scores, winners and token scores on a CUDA device.
    pub(crate) fn lens_bytes(&self) -> [u64; 3] {
        let n_tokens = self.token_offsets.as_ref().map_or(0, TokenOffsets::total);
        [
            self.shape.n_scores() as u64 * 4,
            if self.winners || self.screened { n_tokens * self.winner_bytes as u64 } else { 0 },
            if self.token_scores { n_tokens * 4 } else { 0 },
        ]
    }

    /// Room on the host: scores 0, winners -1, token scores 0.
    pub(crate) fn host_scores(&self) -> Result<Scores> {
        let tokens = self.winners || self.token_scores;
        let token_offsets = if tokens { self.token_offsets.clone() } else { None };
        let scores = Scores::with_room(self.shape, token_offsets, self.winners, self.token_scores)?;
        Ok(Scores { screened: self.screened, ..scores })
    }
}

/// Results on a device: written by [`Stream::score_into`](crate::Stream::score_into), read when needed.
///
/// Calls on different streams that write the same results run one after the other. What a
/// [`Graph`](crate::Graph) writes stays until the graph is dropped too.
#[derive(Debug)]
pub struct DeviceScores {
    pub(crate) device: Device,
    pub(crate) shape: Arc<OutputShape>,
    pub(crate) scored: LastScored,
    pub(crate) inner: ScoresInner,
}

#[derive(Debug)]
pub(crate) enum ScoresInner {
    Cpu(Arc<Replaced<Scores>>),
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    Cuda(Arc<CudaOutputs>),
}

impl DeviceScores {
    /// Room for the results of a work: scores 0, winners -1, token scores 0.
    ///
    /// # Errors
    /// [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn new(work: &Work) -> Result<DeviceScores> {
        DeviceScores::with_room(&work.device, &work.outputs)
    }

    pub(crate) fn with_room(device: &Device, shape: &Arc<OutputShape>) -> Result<DeviceScores> {
        let inner = match device.ordinal() {
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            Some(_) => {
                let cuda = device.cuda_device("work for a CUDA device")?;
                ScoresInner::Cuda(Arc::new(CudaOutputs::new(cuda, shape)?))
            }
            _ => ScoresInner::Cpu(Arc::new(Replaced::new(shape.host_scores()?))),
        };
        let (device, shape, scored) = (device.clone(), shape.clone(), LastScored::default());
        Ok(DeviceScores { device, shape, scored, inner })
    }

    /// What is wrong with results of another kind of device than the work's.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
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
            ScoresInner::Cpu(scores) => Ok(Arc::unwrap_or_clone(scores.get())),
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => outputs.read(&self.shape),
        }
    }

    /// Device address of the f32 scores; `None` on the CPU. Order work that reads them behind
    /// the stream that writes them.
    pub fn address(&self) -> Option<u64> {
        match &self.inner {
            ScoresInner::Cpu(_) => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => Some(outputs.addresses().scores),
        }
    }

    /// Device address of the winners, pair-major, each [`DeviceScores::winner_bytes`] long;
    /// `None` on the CPU or when they were not asked for.
    pub fn winners_address(&self) -> Option<u64> {
        match &self.inner {
            ScoresInner::Cpu(_) => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => self.shape.winners.then_some(outputs.addresses().winners),
        }
    }

    /// Device address of the f32 token scores, pair-major; `None` on the CPU or when they
    /// were not asked for.
    pub fn token_scores_address(&self) -> Option<u64> {
        match &self.inner {
            ScoresInner::Cpu(_) => None,
            #[cfg(all(feature = "cuda", target_os = "linux"))]
            ScoresInner::Cuda(outputs) => {
                self.shape.token_scores.then_some(outputs.addresses().token_scores)
            }
        }
    }

    /// Bytes of a winner in device memory: 2 (u16, all-ones = none) while every document is
    /// shorter than 65 535 tokens, else 4 (i32, -1 = none).
    pub fn winner_bytes(&self) -> usize {
        self.shape.winner_bytes
    }
}
