//! `scores[i] = Σ_p partials[p, i]`, in the order of the parts `p` (a query's tiles).
//!
//! One thread per result; reads are coalesced, and the order makes scores repeatable.

use crate::abi::params::{SUM_PARTIALS_THREADS, SumPartialsParams};
use crate::ptx::global::{load_f32, load_u32, store_u32};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use core::hint::assert_unchecked;

/// Adds the partial sums of this thread's result.
///
/// # Safety
/// `params` must describe the partial sums of an earlier kernel of the same stream.
#[inline(always)]
pub unsafe fn sum_partials(params: &SumPartialsParams) {
    let i = block_idx_x() * SUM_PARTIALS_THREADS as u32 + thread_idx_x();
    if i >= params.n_results {
        return;
    }
    // SAFETY: the host sized partials, scores and the list for all results, and rows are not
    // empty.
    unsafe {
        assert_unchecked(params.row_len != 0);
        let mut sum = 0.0;
        let mut part = 0;
        while part < params.n_parts {
            let index = u64::from(part) * u64::from(params.n_results) + u64::from(i);
            sum += load_f32(params.partials + index * 4);
            part += 1;
        }
        let score = match params.entry_score {
            0 => {
                let (row, column) = (i / params.row_len, i % params.row_len);
                params.score_base
                    + u64::from(row) * u64::from(params.score_stride)
                    + u64::from(column)
            }
            list => u64::from(load_u32(list + u64::from(params.entry_base + i) * 4)),
        };
        store_u32(params.scores + score * 4, sum.to_bits());
    }
}
