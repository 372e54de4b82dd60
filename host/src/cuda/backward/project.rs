//! Projects the gradients of normalised rows to those of the rows as they are given, and takes the
//! weights of query tokens into account.

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

/// Gradients of rows before they are normalised, and of weights.
pub(super) struct Projected<'a> {
    pub tokens: [&'a CudaTokens; 2],
    /// Addresses of what the rows are normalised by; 0 = they are not.
    pub norms: [u64; 2],
    /// Address of the queries' weights, or 0.
    pub weights: u64,
    pub sides: [GradientMatrix; 2],
    pub of_weights: GradientMatrix,
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
        let &Projected { tokens, norms, weights, sides, of_weights, adds } = projected;
        for (side, tokens) in tokens.into_iter().enumerate() {
            if !self.projects[side] {
                continue;
            }
            let out = sides[side];
            let grad_weights = if of_weights.rows > 0 { of_weights.address } else { 0 };
            let [weights, grad_weights] = if side == 0 { [weights, grad_weights] } else { [0; 2] };
            let params = ProjectParams {
                rows: tokens.rows(),
                out: out.output(adds),
                sums: sums.sides[side].address,
                norms: norms[side],
                weights,
                grad_weights,
                n_rows: out.rows as u32,
                skips_zeros: u32::from(self.angular),
            };
            let rows_per_block = backward::WARPS * (32 >> params.rows.lanes_log2);
            let n_blocks = params.n_rows.div_ceil(rows_per_block);
            if n_blocks > 0 {
                // SAFETY: sums and gradient have the tokens' rows; the caller's promise.
                unsafe { start(entered, stream, &project, n_blocks, 0, &params)? };
            }
        }
        Ok(())
    }
}
