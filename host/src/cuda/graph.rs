//! Graphs: calls captured once and launched together, any number of times.
//!
//! Users' code never runs while the driver captures: a graph is made of calls that were
//! collected before, on a stream of its own, so that other threads may do what they like.

use std::ptr;
use std::sync::Arc;

use cust::sys::{CUgraph, CUgraphExec};
use maxsim_kernels::abi::params::top_k::TopKParams;
use maxsim_kernels::table::auxiliary::TOP_K;

use super::backward::CudaBackward;
use super::calls::{BackwardCall, ChamferGradCall, Selection};
use super::chamfer::{CudaChamfer, CudaChamferWork};
use super::loss::{CudaLoss, CudaLossWork};
use super::top_k::{CudaTopK, CudaTopKWork};
use crate::cuda::buffers::gradients::{CudaGradScores, CudaGradients};
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::{Hazard, HazardGuard, end_all};
use crate::cuda::driver::memory::Buffer;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::{CudaStream, Order};
use crate::cuda::driver::symbols::raw;
use crate::cuda::forward::plan::ForwardPlan;
use crate::cuda::forward::rescore::{CudaRescore, Sides};
use crate::error::{Error, Result};
use crate::runtime::swap::lock;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: calls that allocate or wait are refused on this thread
/// alone. The library makes no such call meanwhile.
const THREAD_LOCAL: i32 = 1;

/// A call with everything that it uses.
#[derive(Debug)]
pub(crate) struct CudaCall(Call);

#[derive(Debug)]
enum Call {
    /// One of outputs, which a scoring writes, and a loss, a gradient or a selection reads.
    OfOutputs { outputs: Arc<CudaOutputs>, what: What },
    /// The merging of what selections have found.
    MergeTopK { kernel: Kernel<TopKParams>, other: Arc<CudaTopK>, best: Arc<CudaTopK> },
    /// Chamfer distances, or their gradients.
    Chamfer {
        work: Arc<CudaChamferWork>,
        tokens: Sides,
        found: Arc<CudaChamfer>,
        backward: Option<ChamferBackward>,
    },
}

/// What gradients of Chamfer distances use beside them.
#[derive(Debug)]
struct ChamferBackward {
    grad: Arc<CudaGradScores>,
    most_of_points: Option<f32>,
    gradients: Arc<CudaGradients>,
}

#[derive(Debug)]
enum What {
    Score {
        work: Arc<ForwardPlan>,
        tokens: Sides,
    },
    Rescore {
        work: Arc<CudaRescore>,
        codes: Sides,
        tokens: Sides,
    },
    TopK {
        work: Arc<CudaTopKWork>,
        best: Arc<CudaTopK>,
        call: Selection,
    },
    Loss {
        work: Arc<CudaLossWork>,
        grad_scores: Arc<CudaGradScores>,
        loss: Arc<CudaLoss>,
    },
    Backward {
        work: Arc<CudaBackward>,
        tokens: Sides,
        grad_scores: Arc<CudaGradScores>,
        gradients: Arc<CudaGradients>,
        adds: bool,
    },
}

/// Calls as the driver's graph. It shares what they use, and owns their workspace.
#[derive(Debug)]
pub(crate) struct CudaGraph {
    device: Arc<CudaDevice>,
    exec: CUgraphExec,
    /// Hazards of the memory that the calls write or share with others, each once, in the order of
    /// their addresses.
    hazards: Vec<Arc<Hazard>>,
    _calls: Vec<CudaCall>,
    _workspace: Buffer,
}

// SAFETY: the driver takes a graph from any thread, if from one at a time: all but dropping it
// needs `&mut self`.
unsafe impl Send for CudaGraph {}
// SAFETY: as above; nothing can be done with `&self`.
unsafe impl Sync for CudaGraph {}

impl CudaCall {
    /// The handles' layouts and the outputs' shape must be those of the work; `PreparedScore`
    /// checks them.
    pub(crate) fn new(
        work: &Arc<ForwardPlan>,
        queries: &Arc<CudaTokens>,
        documents: &Arc<CudaTokens>,
        outputs: &Arc<CudaOutputs>,
    ) -> Result<CudaCall> {
        // Refused now rather than when the graph is made of it.
        work.check_maps(queries, documents)?;
        work.prepare_row_scales(queries, documents, None)?;
        let tokens = [queries.clone(), documents.clone()];
        let what = What::Score { work: work.clone(), tokens };
        Ok(CudaCall(Call::OfOutputs { outputs: outputs.clone(), what }))
    }

    /// As [`CudaCall::new`], of codes and of what they were made of; `PreparedRescore` checks them.
    pub(crate) fn rescore(
        work: &Arc<CudaRescore>,
        codes: Sides,
        tokens: Sides,
        outputs: &Arc<CudaOutputs>,
    ) -> Result<CudaCall> {
        work.check(&codes)?;
        let what = What::Rescore { work: work.clone(), codes, tokens };
        Ok(CudaCall(Call::OfOutputs { outputs: outputs.clone(), what }))
    }

    /// Scores, gradients and loss must be those of the work; `PreparedLoss` checks them.
    pub(crate) fn loss(
        work: &Arc<CudaLossWork>,
        outputs: &Arc<CudaOutputs>,
        grad_scores: &Arc<CudaGradScores>,
        loss: &Arc<CudaLoss>,
    ) -> CudaCall {
        let (work, grad_scores, loss) = (work.clone(), grad_scores.clone(), loss.clone());
        let what = What::Loss { work, grad_scores, loss };
        CudaCall(Call::OfOutputs { outputs: outputs.clone(), what })
    }

    /// Scores and keys must be those of the work; `PreparedTopK` checks them.
    pub(crate) fn top_k(
        work: &Arc<CudaTopKWork>,
        outputs: &Arc<CudaOutputs>,
        best: &Arc<CudaTopK>,
        call: Selection,
    ) -> CudaCall {
        let what = What::TopK { work: work.clone(), best: best.clone(), call };
        CudaCall(Call::OfOutputs { outputs: outputs.clone(), what })
    }

    /// Everything must be of the work; `PreparedChamfer` checks it.
    pub(crate) fn chamfer(
        work: &Arc<CudaChamferWork>,
        tokens: [&Arc<CudaTokens>; 2],
        found: &Arc<CudaChamfer>,
        backward: Option<(ChamferGradCall<'_>, &Arc<CudaGradients>)>,
    ) -> CudaCall {
        let backward = backward.map(|(grad, gradients)| {
            let ChamferGradCall { gradients: grad, most_of_points } = grad;
            ChamferBackward { grad: grad.clone(), most_of_points, gradients: gradients.clone() }
        });
        let (work, found) = (work.clone(), found.clone());
        CudaCall(Call::Chamfer { work, tokens: tokens.map(Arc::clone), found, backward })
    }

    /// Both must be of as many rows and the same k; `DeviceTopK` checks them.
    pub(crate) fn merge_top_k(other: &Arc<CudaTopK>, best: &Arc<CudaTopK>) -> Result<CudaCall> {
        let kernel = best.device().kernel(TOP_K)?;
        Ok(CudaCall(Call::MergeTopK { kernel, other: other.clone(), best: best.clone() }))
    }

    /// Handles, scores and gradients must be those of the work; `PreparedBackward` checks them.
    pub(crate) fn backward(
        work: &Arc<CudaBackward>,
        tokens: [&Arc<CudaTokens>; 2],
        outputs: &Arc<CudaOutputs>,
        grad_scores: &Arc<CudaGradScores>,
        gradients: &Arc<CudaGradients>,
        adds: bool,
    ) -> Result<CudaCall> {
        let [queries, documents] = tokens;
        work.check(queries, documents)?;
        work.prepare_row_scales(queries, documents, None)?;
        let what = What::Backward {
            work: work.clone(),
            tokens: tokens.map(Arc::clone),
            grad_scores: grad_scores.clone(),
            gradients: gradients.clone(),
            adds,
        };
        Ok(CudaCall(Call::OfOutputs { outputs: outputs.clone(), what }))
    }

    fn workspace_bytes(&self) -> u64 {
        let what = match &self.0 {
            Call::OfOutputs { what, .. } => what,
            Call::Chamfer { work, backward: None, .. } => return work.workspace_bytes(),
            Call::Chamfer { .. } | Call::MergeTopK { .. } => return 0,
        };
        match what {
            What::Score { work, tokens } => {
                work.workspace_bytes_of(tokens.each_ref().map(|t| &**t))
            }
            What::Rescore { work, .. } => work.workspace_bytes(),
            What::TopK { work, .. } => work.workspace_bytes(),
            What::Loss { .. } => 0,
            What::Backward { work, tokens, adds, .. } => {
                work.workspace_bytes_of(*adds, tokens.each_ref().map(|tokens| &**tokens))
            }
        }
    }

    fn hazards(&self) -> impl Iterator<Item = Arc<Hazard>> {
        let used = match &self.0 {
            Call::MergeTopK { other, best, .. } => {
                [Some(other.hazard()), Some(best.hazard()), None, None]
            }
            Call::Chamfer { found, backward, .. } => {
                let backward = backward.as_ref();
                let grad = backward.map(|backward| backward.grad.hazard());
                let gradients = backward.map(|backward| backward.gradients.hazard());
                [Some(found.hazard()), grad, gradients, None]
            }
            Call::OfOutputs { outputs, what } => what.hazards(outputs),
        };
        used.map(Option::<&_>::cloned).into_iter().flatten()
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// `stream` must be captured into a graph that keeps the call. While the graph runs nothing
    /// else may use its workspace, and its launch must hold the guards of [`CudaCall::hazards`].
    unsafe fn capture(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        workspace: u64,
    ) -> Result<()> {
        let raw = stream.raw();
        // SAFETY: the caller of `new`, `rescore`, `loss` or another has checked what the call uses;
        // the caller's promise.
        unsafe {
            let (outputs, what) = match &self.0 {
                Call::MergeTopK { kernel, other, best } => {
                    return best.run_merge(entered, raw, kernel, other);
                }
                Call::Chamfer { work, tokens, found, backward } => {
                    let tokens = tokens.each_ref();
                    let Some(backward) = backward else {
                        return work.run(entered, raw, tokens, found, workspace);
                    };
                    let ChamferBackward { grad, most_of_points, gradients } = backward;
                    let grad = ChamferGradCall { gradients: grad, most_of_points: *most_of_points };
                    return work.run_backward(entered, raw, tokens, found, grad, gradients);
                }
                Call::OfOutputs { outputs, what } => (outputs, what),
            };
            match what {
                What::Score { work, tokens: [queries, documents] } => {
                    let maps = work.tensor_maps(entered, queries, documents)?;
                    work.run(entered, raw, maps, queries, documents, outputs, workspace)
                }
                What::Rescore { work, codes, tokens } => {
                    work.run(entered, raw, codes, tokens, outputs, workspace)
                }
                What::Loss { work, grad_scores, loss } => {
                    work.run(entered, raw, outputs, grad_scores, loss)
                }
                What::TopK { work, best, call } => {
                    work.run(entered, raw, outputs, best, *call, workspace)
                }
                What::Backward { work, tokens, grad_scores, gradients, adds } => {
                    let [queries, documents] = tokens;
                    let call = BackwardCall {
                        queries,
                        documents,
                        outputs,
                        grad_scores,
                        gradients,
                        adds: *adds,
                    };
                    work.run(entered, raw, &call, workspace)
                }
            }
        }
    }
}

impl What {
    /// Hazards of what a call of these outputs writes or shares with others.
    fn hazards<'a>(&'a self, outputs: &'a CudaOutputs) -> [Option<&'a Arc<Hazard>>; 4] {
        let scores = Some(outputs.hazard());
        match self {
            What::Score { .. } | What::Rescore { .. } => [scores, None, None, None],
            What::TopK { best, .. } => [scores, Some(best.hazard()), None, None],
            What::Loss { work, grad_scores, loss } => {
                let own = work.own_hazard(outputs);
                [scores, Some(grad_scores.hazard()), Some(loss.hazard()), own]
            }
            What::Backward { work, grad_scores, gradients, .. } => {
                [scores, Some(grad_scores.hazard()), Some(gradients.hazard()), work.own_hazard()]
            }
        }
    }
}

impl CudaGraph {
    /// Makes a graph of calls of one device, which run in this order.
    pub(crate) fn new(device: &Arc<CudaDevice>, calls: Vec<CudaCall>) -> Result<CudaGraph> {
        let len_bytes = calls.iter().map(CudaCall::workspace_bytes).max().unwrap_or(0);
        let workspace = Buffer::zeroed(device, len_bytes)?;
        let stream = CudaStream::independent(device)?;
        let mut hazards: Vec<_> = calls.iter().flat_map(CudaCall::hazards).collect();
        hazards.sort_by_key(Arc::as_ptr);
        hazards.dedup_by(|a, b| Arc::ptr_eq(a, b));

        let entered = device.enter()?;
        let captured = capture(&entered, &stream, |entered| {
            // SAFETY: the graph keeps the calls and the workspace, which is as large as the
            // largest needs and no other graph's; `launch` holds the guards.
            calls
                .iter()
                .try_for_each(|call| unsafe { call.capture(entered, &stream, workspace.address()) })
        })?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph was just captured; `exec` outlives the call.
        let instantiated = device.check("cuGraphInstantiateWithFlags", unsafe {
            raw::cuGraphInstantiateWithFlags(&mut exec, captured, 0)
        });
        // SAFETY: the graph is not used any more: what was instantiated is a copy.
        let destroyed = device.check("cuGraphDestroy", unsafe { raw::cuGraphDestroy(captured) });
        instantiated?;
        drop(entered);
        let device = device.clone();
        let graph = CudaGraph { device, exec, hazards, _calls: calls, _workspace: workspace };
        destroyed.map(|()| graph)
    }

    /// Enqueues all calls. The driver runs launches of one graph one after the other, on whatever
    /// streams.
    pub(crate) fn launch(&mut self, stream: &CudaStream) -> Result<()> {
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        if matches!(order, Order::Capture { .. }) {
            return Err(Error::Unsupported {
                what: "launching a graph on a stream that is captured".into(),
                why: "capture its calls instead".into(),
            });
        }
        // In the order of their addresses, so that no two launches wait for each other.
        let guards: Vec<HazardGuard<'_>> = self
            .hazards
            .iter()
            .map(|hazard| hazard.begin(&entered, stream, order))
            .collect::<Result<_>>()?;
        // SAFETY: the graph keeps all that it uses; the stream belongs to its context; the
        // guards order it behind other users of the same memory.
        let code = unsafe { raw::cuGraphLaunch(self.exec, stream.raw()) };
        let launched = self.device.check("cuGraphLaunch", code);
        // Even after an error, some of it may be running.
        end_all(guards, &entered, stream)?;
        launched
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: this is the only owner. A running launch completes; the memory that it uses
        // is freed after this, each part when all work is done.
        let code = unsafe { raw::cuGraphExecDestroy(self.exec) };
        let _ = self.device.check("cuGraphExecDestroy", code);
    }
}

/// Captures what `enqueue` enqueues on a stream of the library, whether it succeeds or not.
fn capture(
    entered: &Entered<'_>,
    stream: &CudaStream,
    enqueue: impl FnOnce(&Entered<'_>) -> Result<()>,
) -> Result<CUgraph> {
    let device = entered.device();
    let _quiet = lock(&device.quiet);
    // SAFETY: the stream lives, and is not captured yet: it was made for this.
    let code = unsafe { raw::cuStreamBeginCapture_v2(stream.raw(), THREAD_LOCAL) };
    device.check("cuStreamBeginCapture", code)?;
    let enqueued = enqueue(entered);
    let mut graph = ptr::null_mut();
    // SAFETY: the capture began above; `graph` outlives the call.
    let code = unsafe { raw::cuStreamEndCapture(stream.raw(), &mut graph) };
    let ended = device.check("cuStreamEndCapture", code);
    if let Err(error) = enqueued.and(ended) {
        if !graph.is_null() {
            // SAFETY: the graph was just captured, and nothing was made of it.
            let _ = device.check("cuGraphDestroy", unsafe { raw::cuGraphDestroy(graph) });
        }
        return Err(error);
    }
    Ok(graph)
}
