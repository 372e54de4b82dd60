//! `out[i] = Σ_p parts[p]` over the parts of a row, in their order: a warp per row.

use crate::abi::params::backward::WARPS;
use crate::abi::params::backward::residual::PartsParams;
use crate::backward::sum_chunks::sum_parts;
use crate::ptx::global::{load_f32, load_u32, store_u32};
use crate::ptx::thread::{block_idx_x, thread_idx_x};

/// Adds the parts of this warp's row; 0 where it has none.
///
/// # Safety
/// `params` must describe sums of earlier kernels of the same stream as [`PartsParams`] says; all
/// threads of the block.
#[inline(always)]
pub unsafe fn sum(params: &PartsParams) {
    let (warp, lane) = (thread_idx_x() / 32, thread_idx_x() % 32);
    let row = block_idx_x() * WARPS + warp;
    if row >= params.n_rows {
        return;
    }
    let dim = u64::from(params.dim);
    // SAFETY: the host launches a warp per row, and sized the parts for those that it lists.
    unsafe {
        let first = load_u32(params.firsts + u64::from(row) * 4);
        let end = load_u32(params.firsts + u64::from(row + 1) * 4);
        let mut element = lane;
        while element < params.dim {
            let part = |i: u32| {
                let index = u64::from(first + i) * dim + u64::from(element);
                load_f32(params.parts + index * 4)
            };
            let sum = sum_parts(end - first, part);
            let index = u64::from(row) * dim + u64::from(element);
            store_u32(params.out + index * 4, sum.to_bits());
            element += 32;
        }
    }
}
