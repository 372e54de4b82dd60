//! `out[row] = Σ_c parts[c][row]`, in the order of the chunks: a block per task, a warp per row.

use crate::abi::params::backward::SumParams;
use crate::backward::gather::row_task;
use crate::backward::output::store_element;
use crate::ptx::global::load_f32;
use crate::ptx::thread::{block_idx_x, thread_idx_x};

/// Loads in flight per thread.
const UNROLL: u32 = 8;

/// Adds the parts of this warp's row.
///
/// # Safety
/// `params` must describe the sums of earlier kernels of the same stream; all threads of the block.
#[inline(always)]
pub unsafe fn sum_chunks(params: &SumParams) {
    let (warp, lane) = (thread_idx_x() / 32, thread_idx_x() % 32);
    // SAFETY: the host launches a block per task, and sized the parts for all chunks and rows.
    unsafe {
        let task = row_task(params.tasks, block_idx_x());
        if warp >= task.n_rows {
            return;
        }
        let dim = u64::from(params.out.dim);
        let stride = u64::from(params.n_rows) * dim * 4;
        let first = params.parts + u64::from(task.index + warp) * dim * 4;
        let mut element = lane;
        while element < params.out.dim {
            let part =
                |chunk: u32| load_f32(first + u64::from(element) * 4 + u64::from(chunk) * stride);
            let sum = sum_parts(params.n_chunks, part);
            let index = u64::from(task.row + warp) * dim + u64::from(element);
            store_element(&params.out, index, sum);
            element += 32;
        }
    }
}

/// The parts added in their order.
#[inline(always)]
pub fn sum_parts(n_parts: u32, part: impl Fn(u32) -> f32) -> f32 {
    let mut sum = 0.0;
    let mut done = 0;
    while done < n_parts {
        let mut values = [0.0f32; UNROLL as usize];
        let mut u = 0;
        while u < UNROLL {
            // Behind the last part it is looked at again, and not added.
            values[u as usize] = part((done + u).min(n_parts - 1));
            u += 1;
        }
        u = 0;
        while u < UNROLL {
            sum += if done + u < n_parts { values[u as usize] } else { 0.0 };
            u += 1;
        }
        done += UNROLL;
    }
    sum
}
