//! Puts rows together that go over the end of a segment: a block per segment, which has work where
//! such a row starts there.
//!
//! The parts are shared out among the warps in their order, and so are the warps' sums added: a
//! row that every source chose has as many parts as there are segments.

use super::output::store_element;
use super::sum::sum_parts;
use super::{NO_ROW, OwnerParams, WARPS, chunk_start, n_joined};
use crate::ptx::memory::{
    dynamic_shared, load_f32, load_shared_f32, load_u32, load_u32x2, store_shared_f32,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};

/// Joins the row that starts in this block's segment and goes on.
///
/// # Safety
/// `params` must be those of the `owner` that ran before on the same stream; all threads of the
/// block.
#[inline(always)]
pub unsafe fn join(params: &OwnerParams) {
    let (segment, thread) = (block_idx_x(), thread_idx_x());
    let (warp, lane, shared) = (thread / 32, thread % 32, dynamic_shared());
    // SAFETY: the host launches a block per segment; all threads take the same way around the
    // barriers.
    unsafe {
        let index = load_u32(params.lasts + u64::from(segment) * 4);
        let address = params.destinations + u64::from(index) * 8;
        let [first, row] = load_u32x2(address);
        let last = match index + 1 < params.n_destinations {
            true => load_u32(address + 8),
            false => params.n_sources,
        };
        let n_joined = n_joined(segment, params.segment_len, first, last);
        if n_joined == 0 || row == NO_ROW {
            return;
        }
        let begin = chunk_start(n_joined + 1, warp, WARPS);
        let end = chunk_start(n_joined + 1, warp + 1, WARPS);
        let dim = params.out.dim;
        let mut column = 0;
        while column < dim {
            let element = column + lane;
            let part = |i: u32| {
                let i = begin + i;
                let base = if i == 0 { params.tails } else { params.heads };
                let index = u64::from(segment + i) * u64::from(dim) + u64::from(element);
                load_f32(base + index * 4)
            };
            let is_there = element < dim;
            let sum = if is_there { sum_parts(end - begin, part) } else { 0.0 };
            store_shared_f32(shared + thread * 4, sum);
            sync_threads();
            if warp == 0 && is_there {
                let mut sum = 0.0;
                let mut other = 0;
                while other < WARPS {
                    sum += load_shared_f32(shared + (other * 32 + lane) * 4);
                    other += 1;
                }
                let row = u64::from(row - params.first_row);
                store_element(&params.out, row * u64::from(dim) + u64::from(element), sum);
            }
            sync_threads();
            column += 32;
        }
    }
}
