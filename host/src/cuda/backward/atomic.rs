//! Gradients by atomic additions: both in one kernel, over winners that are not sorted.

use cust::sys::CUstream;
use maxsim_kernels::abi::params::backward::AtomicParams;
use maxsim_kernels::table::auxiliary::{ATOMIC, SUM_CHUNKS};

use super::{CudaBackward, Kernels, Sums, WinnerKernels};
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;
use crate::problem::outputs::GradientMatrix;
use crate::tokens::element::ElementType;

impl CudaDevice {
    /// The kernels that add atomically.
    pub(in crate::cuda) fn atomic_kernels(&self, element: ElementType) -> Result<Kernels> {
        Ok(Kernels {
            sum_chunks: self.kernel(SUM_CHUNKS)?,
            winners: WinnerKernels::Atomic(self.kernel_of(&ATOMIC, element)?),
        })
    }
}

impl CudaBackward {
    /// Enqueues the launches, and what must be filled before them. Sums of documents that are
    /// not f32 are in the workspace first: memory adds f32 alone, and rounding after every
    /// addition would not be what is asked for.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], with the workspace behind the counters.
    pub(in crate::cuda) unsafe fn run_atomic(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        kernel: &Kernel<AtomicParams>,
        workspace: u64,
    ) -> Result<()> {
        let [of_queries, of_documents] = call.sides;
        let plan = &self.plan;
        // SAFETY: the lists were made for this problem, and the workspace has room for chunks and
        // for the documents' sums behind them; the caller's promise for the rest.
        unsafe {
            self.clear_queries(entered, stream, call)?;
            let Some(pairs) = plan.query_pairs.as_ref().filter(|_| plan.n_row_tasks > 0) else {
                return match call.adds[1] {
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
            if is_narrowed || !call.adds[1] {
                sums.clear(entered, stream)?;
            }
            let out = of_queries.output(call.adds[0]);
            let params = AtomicParams {
                sums: self.gather_params(call, pairs, out, workspace),
                queries: call.queries.rows(),
                documents: sums.output(true),
                query_norms: call.norms[0],
            };
            let n_blocks = self.n_gather_blocks(&params.sums);
            start(entered, stream, kernel, n_blocks, 0, &params)?;
            self.add_chunks(entered, stream, out, workspace)?;
            if !is_narrowed {
                return Ok(());
            }
            self.narrow(entered, stream, of_documents.output(call.adds[1]), &sums)
        }
    }
}
