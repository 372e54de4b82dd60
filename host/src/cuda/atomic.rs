//! Gradients by atomic additions: both in one kernel, over winners that are not sorted.

use cust::sys::CUstream;
use maxsim_kernels::gradient::{self, AtomicParams, RowTask, SumParams};

use super::backward::{BackwardCall, CudaBackward, Kernels};
use super::context::{CudaDevice, Entered};
use super::gradients::GradientMatrix;
use super::launch::start;
use crate::element::ElementType;
use crate::error::Result;
use crate::warm_up::gradient_row;

impl CudaDevice {
    /// The kernels that add atomically.
    pub(super) fn atomic_kernels(&self, element: ElementType) -> Result<Kernels> {
        let pairs = gradient::atomic(self.limits().capability)[gradient_row(element)];
        let (pairs, sum) = (self.gradient_kernel(pairs)?, self.gradient_kernel(gradient::SUM)?);
        Ok(Kernels { pairs, sum, sorted: None })
    }
}

impl CudaBackward {
    /// Enqueues the launches, and what must be filled before them. Sums of documents that are
    /// not f32 are in the workspace first: memory adds f32 alone, and rounding after every
    /// addition would not be what is asked for.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], with the workspace behind the counters.
    pub(super) unsafe fn run_atomic(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &BackwardCall<'_>,
        workspace: u64,
    ) -> Result<()> {
        let [of_queries, of_documents] = call.gradients.sides();
        let plan = &self.plan;
        // SAFETY: the lists were made for this problem, and the workspace has room for chunks and
        // for the documents' sums behind them; the caller's promise for the rest.
        unsafe {
            if !call.adds && !self.covers_queries {
                of_queries.clear(entered, stream)?;
            }
            let Some(pairs) = plan.query_pairs.as_ref().filter(|_| plan.n_row_tasks > 0) else {
                return match call.adds {
                    true => Ok(()),
                    false => of_documents.clear(entered, stream),
                };
            };
            let is_narrowed = !plan.narrowed.is_empty();
            let sums = match is_narrowed {
                false => of_documents,
                true => GradientMatrix {
                    address: self.sums_start(workspace),
                    element: ElementType::F32,
                    ..of_documents
                },
            };
            if is_narrowed || !call.adds {
                sums.clear(entered, stream)?;
            }
            let out = of_queries.output(call.adds);
            let params = AtomicParams {
                sums: self.gather_params(call, pairs, out, workspace),
                queries: self.source(call.queries),
                documents: sums.output(true),
            };
            let n_blocks = self.n_gather_blocks(&params.sums);
            start(entered, stream, self.kernels.pairs, n_blocks, 0, &params)?;
            self.add_chunks(entered, stream, out, workspace)?;
            if !is_narrowed {
                return Ok(());
            }
            let narrow = SumParams {
                out: of_documents.output(call.adds),
                parts: sums.address,
                tasks: self.lists.rows
                    + u64::from(plan.narrowed.start) * size_of::<RowTask>() as u64,
                n_chunks: 1,
                n_rows: of_documents.rows as u32,
            };
            start(entered, stream, self.kernels.sum, plan.narrowed.len() as u32, 0, &narrow)
        }
    }
}
