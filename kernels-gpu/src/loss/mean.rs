//! The mean of the rows' losses, by one block.

use crate::abi::params::loss::{MeanParams, Sum, THREADS};
use crate::loss::reduce::Sharing;
use crate::ptx::global::{load_f32, store_u32};
use crate::ptx::thread::thread_idx_x;

/// Loads in flight per thread.
const UNROLL: usize = 8;

/// Adds the losses and stores their mean.
///
/// # Safety
/// `params` must describe the losses of an earlier kernel of the same stream; all threads of one
/// block.
#[inline(always)]
pub unsafe fn mean(params: &MeanParams) {
    let thread = thread_idx_x();
    let mut sum = Sum::ZERO;
    let mut first = u64::from(thread);
    let n = u64::from(params.n_queries);
    // SAFETY: the host sized the losses; all threads add theirs together.
    unsafe {
        while first < n {
            let mut losses = [0.0f32; UNROLL];
            let mut k = 0;
            while k < UNROLL {
                // Behind the last loss it is looked at again, and not added.
                let query = (first + (k * THREADS) as u64).min(n - 1);
                losses[k] = load_f32(params.losses + query * 4);
                k += 1;
            }
            k = 0;
            while k < UNROLL {
                let is_there = first + ((k * THREADS) as u64) < n;
                // Before it is added: the sum of large losses is no number where their mean is.
                sum.add(if is_there { losses[k] * params.inverse } else { 0.0 });
                k += 1;
            }
            first += (UNROLL * THREADS) as u64;
        }
        let mean = Sharing { is_block: true }.sum(sum.value());
        if thread == 0 {
            store_u32(params.mean, mean.to_bits());
        }
    }
}
