//! Gradients of rows that are normalised: sources times what their rows are multiplied by, and the
//! way from the gradient with respect to a normalised row x̂ = r · x to that of the row,
//!
//! `∂x = r · (∂x̂ - x̂ · ⟨x̂, ∂x̂⟩)`, or `r · ∂x̂` where ‖x‖² was too small for r to depend on it:
//! a warp per row, which it reads twice.

use crate::abi::params::backward::{NO_ROW, Pairs};
use crate::ptx::global::load_u32;
#[cfg(maxsim_arch = "sm_80")]
pub use project::project;

/// The gradient of a score, times what the source row `row` is normalised by, where rows are.
///
/// # Safety
/// The matrix of the sources must have the row, unless it is [`NO_ROW`].
#[inline(always)]
pub unsafe fn scaled(pairs: &Pairs, row: u32, factor: f32) -> f32 {
    if (pairs.source_norms == 0) | (row == NO_ROW) {
        return factor;
    }
    // SAFETY: four bytes per row.
    factor * f32::from_bits(unsafe { load_u32(pairs.source_norms + u64::from(row) * 4) })
}

#[cfg(maxsim_arch = "sm_80")]
mod project {
    use crate::abi::params::SQUARE_MIN;
    use crate::abi::params::backward::{ProjectParams, WARPS};
    use crate::backward::output::store_element;
    use crate::primitives::row_vector::{VectorElement, load_element};
    use crate::ptx::global::{load_f32, load_u32};
    use crate::ptx::math::{fma, sqrt};
    use crate::ptx::thread::{block_idx_x, thread_idx_x};
    use crate::ptx::warp::ballot;
    use crate::ptx::warp::{lane_idx, shuffle_xor_by};

    /// Writes the gradient of this warp's row, or adds it to what is there.
    ///
    /// # Safety
    /// `params` must describe sums of earlier kernels of the same stream as [`ProjectParams`] says;
    /// all threads of the block.
    #[inline(always)]
    pub unsafe fn project<T: VectorElement>(params: &ProjectParams) {
        let row = block_idx_x() * WARPS + thread_idx_x() / 32;
        if row >= params.n_rows {
            return;
        }
        let dim = params.out.dim;
        let first = u64::from(row) * u64::from(dim);
        let sum = |element: u32| {
            // SAFETY: the host sized the sums for every row. Where they become the gradient, each
            // lane reads its elements before it writes them.
            unsafe { load_f32(params.sums + (first + u64::from(element)) * 4) }
        };
        // SAFETY: the matrices have the row; the whole warp takes every turn.
        unsafe {
            let norm = f32::from_bits(load_u32(params.norms + u64::from(row) * 4));
            let source = params.rows.base + u64::from(row) * params.rows.pitch_bytes;
            let unit = |element: u32| norm * load_element::<T>(source, element);
            let mut product = 0.0;
            let mut is_there = false;
            let mut element = lane_idx();
            while element < dim {
                let s = sum(element);
                product = fma(unit(element), s, product);
                is_there |= s != 0.0;
                element += 32;
            }
            // No token chose the row, or its gradients are 0: zeros, whatever it holds.
            if ballot(u32::from(is_there)) == 0 {
                element = if params.out.adds != 0 { dim } else { lane_idx() };
                while element < dim {
                    store_element(&params.out, first + u64::from(element), 0.0);
                    element += 32;
                }
                return;
            }
            let mut mask = 16;
            while mask > 0 {
                product += shuffle_xor_by(product, mask);
                mask /= 2;
            }
            let is_constant = norm == 1.0 / sqrt(SQUARE_MIN);
            element = lane_idx();
            while element < dim {
                let along = if is_constant { 0.0 } else { unit(element) * product };
                let value = norm * (sum(element) - along);
                store_element(&params.out, first + u64::from(element), value);
                element += 32;
            }
        }
    }
}
