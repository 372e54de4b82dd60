//! Projects the gradients of normalised rows to those of the rows as they are given.

use cust::sys::CUstream;
use maxsim_kernels::abi::params::backward;
use maxsim_kernels::abi::params::backward::ProjectParams;

use super::{CudaBackward, Sums};
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::Entered;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;
use crate::problem::outputs::GradientMatrix;

/// Gradients of rows before they are normalised.
pub(super) struct Projected<'a> {
    pub tokens: [&'a CudaTokens; 2],
    /// Addresses of what the rows are normalised by.
    pub norms: [u64; 2],
    pub sides: [GradientMatrix; 2],
    pub adds: bool,
}

impl CudaBackward {
    /// Enqueues the projection of gradients of normalised rows to gradients of rows.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], behind the sums.
    pub(super) unsafe fn run_project(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        sums: &Sums<'_>,
        projected: &Projected<'_>,
        project: Kernel<ProjectParams>,
    ) -> Result<()> {
        let &Projected { tokens, norms, sides, adds } = projected;
        for (side, tokens) in tokens.into_iter().enumerate() {
            let out = sides[side];
            let params = ProjectParams {
                rows: tokens.rows(),
                out: out.output(adds),
                sums: sums.sides[side].address,
                norms: norms[side],
                n_rows: out.rows as u32,
                reserved: 0,
            };
            let n_blocks = params.n_rows.div_ceil(backward::WARPS);
            if n_blocks > 0 {
                // SAFETY: sums and gradient have the tokens' rows; the caller's promise.
                unsafe { start(entered, stream, &project, n_blocks, 0, &params)? };
            }
        }
        Ok(())
    }
}
