//! `scores[i] = Σ_t partials[t, i]`, in the order of the query tiles `t`.
//!
//! One thread per entry; reads are coalesced, and the order makes scores repeatable.

use crate::params::SumPartialsParams;
use crate::ptx::memory::{load_f32, load_u32, store_u32};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::variants::SUM_PARTIALS_THREADS;

/// Adds the partial sums of this thread's entry.
///
/// # Safety
/// `params` must describe the partial sums of an earlier kernel of the same stream.
#[inline(always)]
pub unsafe fn sum_partials(params: &SumPartialsParams) {
    let i = block_idx_x() * SUM_PARTIALS_THREADS as u32 + thread_idx_x();
    if i >= params.n_entries {
        return;
    }
    // SAFETY: the host sized partials, scores and the entry list for all entries.
    unsafe {
        let mut sum = 0.0;
        let mut tile = 0;
        while tile < params.n_tiles {
            let index = u64::from(tile) * params.stride + u64::from(i);
            sum += load_f32(params.partials + index * 4);
            tile += 1;
        }
        let entry = params.entry_base + i;
        let score = match params.entry_score {
            0 => entry,
            scores => load_u32(scores + u64::from(entry) * 4),
        };
        store_u32(params.scores + u64::from(score) * 4, sum.to_bits());
    }
}
