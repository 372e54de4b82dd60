//! Stream-ordered operations: described once, then run or recorded.

use std::fmt;
use std::sync::Arc;

use super::Device;
use crate::cuda::{
    BackwardCall, ChamferGradCall, CudaBackward, CudaCall, CudaChamfer, CudaChamferWork,
    CudaGradScores, CudaGradients, CudaLoss, CudaLossWork, CudaOutputs, CudaRescore, CudaStream,
    CudaTokens, CudaTopK, CudaTopKWork, ForwardPlan, Selection,
};
use crate::error::Result;
use crate::problem::provenance::{LastProvenance, Provenance};
use crate::runtime::on::On;

/// A call that was checked for a queue's device: what it runs, and what it writes winners of.
#[derive(Debug)]
pub struct Command<'a> {
    pub(crate) call: On<Box<dyn CpuCall>, CudaCommand<'a>>,
    /// Winners that the call writes, and their provenance.
    pub(crate) written: Option<(&'a LastProvenance, Provenance)>,
}

/// A call of the CPU engine with everything that it uses, so that a graph can keep it.
pub(crate) trait CpuCall: Send + Sync {
    /// Makes the call.
    fn run(&self) -> Result<()>;
}

impl fmt::Debug for dyn CpuCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a call of the CPU engine")
    }
}

/// A call of the CPU engine as a command has it. Boxed, so that the commands of CUDA devices, whose
/// enqueueing is timed in nanoseconds, are small and move cheaply.
pub(crate) fn on_cpu<'a>(call: impl CpuCall + 'static) -> On<Box<dyn CpuCall>, CudaCommand<'a>> {
    On::Cpu(Box::new(call))
}

/// A call of a CUDA device, borrowed: enqueueing one allocates nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CudaCommand<'a> {
    Score {
        work: &'a Arc<ForwardPlan>,
        /// Tokens of the queries and of the documents, here and below.
        tokens: [&'a Arc<CudaTokens>; 2],
        outputs: &'a Arc<CudaOutputs>,
    },
    Rescore {
        work: &'a Arc<CudaRescore>,
        codes: [&'a Arc<CudaTokens>; 2],
        tokens: [&'a Arc<CudaTokens>; 2],
        outputs: &'a Arc<CudaOutputs>,
    },
    TopK {
        work: &'a Arc<CudaTopKWork>,
        outputs: &'a Arc<CudaOutputs>,
        best: &'a Arc<CudaTopK>,
        call: Selection,
    },
    Chamfer {
        work: &'a Arc<CudaChamferWork>,
        /// Points of both sides, here and below.
        tokens: [&'a Arc<CudaTokens>; 2],
        found: &'a Arc<CudaChamfer>,
    },
    ChamferBackward {
        work: &'a Arc<CudaChamferWork>,
        tokens: [&'a Arc<CudaTokens>; 2],
        found: &'a Arc<CudaChamfer>,
        grad: ChamferGradCall<'a>,
        gradients: &'a Arc<CudaGradients>,
    },
    MergeTopK {
        other: &'a Arc<CudaTopK>,
        best: &'a Arc<CudaTopK>,
    },
    Loss {
        work: &'a Arc<CudaLossWork>,
        outputs: &'a Arc<CudaOutputs>,
        grad_scores: &'a Arc<CudaGradScores>,
        loss: &'a Arc<CudaLoss>,
    },
    Backward {
        work: &'a Arc<CudaBackward>,
        tokens: [&'a Arc<CudaTokens>; 2],
        outputs: &'a Arc<CudaOutputs>,
        grad_scores: &'a Arc<CudaGradScores>,
        gradients: &'a Arc<CudaGradients>,
        adds: bool,
    },
}

impl CudaCommand<'_> {
    /// Enqueues the call on a stream.
    pub(crate) fn enqueue(self, stream: &mut CudaStream) -> Result<()> {
        match self {
            CudaCommand::Score { work, tokens: [queries, documents], outputs } => {
                work.enqueue(stream, queries, documents, outputs)
            }
            CudaCommand::Rescore { work, codes, tokens, outputs } => {
                work.enqueue(stream, codes, tokens, outputs)
            }
            CudaCommand::TopK { work, outputs, best, call } => {
                work.enqueue(stream, outputs, best, call)
            }
            CudaCommand::Chamfer { work, tokens, found } => work.enqueue(stream, tokens, found),
            CudaCommand::ChamferBackward { work, tokens, found, grad, gradients } => {
                work.enqueue_backward(stream, tokens, found, grad, gradients)
            }
            CudaCommand::MergeTopK { other, best } => best.enqueue_merge(stream, other),
            CudaCommand::Loss { work, outputs, grad_scores, loss } => {
                work.enqueue(stream, outputs, grad_scores, loss)
            }
            CudaCommand::Backward { work, tokens, outputs, grad_scores, gradients, adds } => {
                let [queries, documents] = tokens;
                let call =
                    BackwardCall { queries, documents, outputs, grad_scores, gradients, adds };
                work.enqueue(stream, &call)
            }
        }
    }

    /// The call with all that it uses, for a graph to keep.
    pub(crate) fn record(self) -> Result<CudaCall> {
        match self {
            CudaCommand::Score { work, tokens: [queries, documents], outputs } => {
                CudaCall::new(work, queries, documents, outputs)
            }
            CudaCommand::Rescore { work, codes, tokens, outputs } => {
                CudaCall::rescore(work, codes.map(Arc::clone), tokens.map(Arc::clone), outputs)
            }
            CudaCommand::TopK { work, outputs, best, call } => {
                Ok(CudaCall::top_k(work, outputs, best, call))
            }
            CudaCommand::Chamfer { work, tokens, found } => {
                Ok(CudaCall::chamfer(work, tokens, found, None))
            }
            CudaCommand::ChamferBackward { work, tokens, found, grad, gradients } => {
                Ok(CudaCall::chamfer(work, tokens, found, Some((grad, gradients))))
            }
            CudaCommand::MergeTopK { other, best } => CudaCall::merge_top_k(other, best),
            CudaCommand::Loss { work, outputs, grad_scores, loss } => {
                Ok(CudaCall::loss(work, outputs, grad_scores, loss))
            }
            CudaCommand::Backward { work, tokens, outputs, grad_scores, gradients, adds } => {
                CudaCall::backward(work, tokens, outputs, grad_scores, gradients, adds)
            }
        }
    }
}

impl Device {
    /// Makes a call without winners: on the CPU at once, on a GPU in the order of the stream that
    /// synchronous calls have, without a wait.
    pub(crate) fn enqueue(&self, command: Command<'_>) -> Result<()> {
        match (command.call, &self.0) {
            (On::Cpu(call), On::Cpu(())) => call.run(),
            (On::Cuda(call), On::Cuda(cuda)) => cuda.on_idle_stream(|stream| call.enqueue(stream)),
            _ => Err(self.wrong_queue()),
        }
    }
}

/// Takes commands: [`Stream`](crate::stream::Stream) runs them, [`Capture`](crate::stream::Capture)
/// records them. It seals [`Queue`](crate::stream::Queue).
pub trait Submit {
    /// The device that commands run on.
    fn device(&self) -> &Device;

    /// Provenance of the winners in `scores` when the next command reads them.
    fn provenance(&self, scores: &LastProvenance) -> Option<Provenance>;

    /// Runs or records a command.
    ///
    /// # Errors
    /// The errors of the command.
    fn submit(&mut self, command: Command<'_>) -> Result<()>;
}

/// Recorded calls of the CPU engine, of any element types.
#[derive(Default)]
pub(crate) struct CpuCalls(Vec<Box<dyn CpuCall>>);

impl CpuCalls {
    pub(crate) fn push(&mut self, call: Box<dyn CpuCall>) {
        self.0.push(call);
    }

    /// Makes all calls, in order.
    pub(crate) fn run(&self) -> Result<()> {
        self.0.iter().try_for_each(|call| call.run())
    }
}

impl fmt::Debug for CpuCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls", self.0.len())
    }
}
