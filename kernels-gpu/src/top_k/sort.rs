//! Sorts keys in shared memory.

use super::THREADS;
use crate::abi::params::top_k::sort_pair;
use crate::ptx::shared::{load_shared_u32x2, store_shared_u32x2_if};
use crate::ptx::thread::{sync_threads, thread_idx_x};
use crate::ptx::warp::sync_warp;

/// Sorts `n` keys in shared memory, which zeros follow up to a power of two, so that they fall.
///
/// # Safety
/// All threads of the block must call it together, behind a barrier, with the address of as many.
#[inline(always)]
pub unsafe fn sort(keys: u32, n: u32) {
    let n = n.next_power_of_two();
    let mut size = 2;
    while size <= n {
        let mut stride = size / 2;
        while stride > 0 {
            // SAFETY: the caller's promise. Pairs of 32 lanes are of the same 64 keys in all steps
            // from a stride of 32 on, so that warps need not wait for each other.
            unsafe {
                step(keys, n, size, stride);
                if stride > 32 || stride == 1 && size > 32 {
                    sync_threads();
                } else {
                    sync_warp();
                }
            }
            stride /= 2;
        }
        size *= 2;
    }
    // SAFETY: the caller's promise.
    unsafe { sync_threads() };
}

/// Exchanges the pairs of a step that are not in order.
///
/// # Safety
/// As [`sort`].
#[inline(always)]
unsafe fn step(keys: u32, n: u32, size: u32, stride: u32) {
    let mut pair = thread_idx_x();
    while pair < n / 2 {
        let [a, b] = sort_pair(pair, stride).map(|place| keys + place * 8);
        // SAFETY: both keys are there, and no other thread's in this step.
        unsafe {
            let [x, y] = [load_shared_u32x2(a), load_shared_u32x2(b)];
            let [left, right] = [x, y].map(|[low, high]| u64::from(low) | u64::from(high) << 32);
            let falls = ((a - keys) / 8) & size == 0;
            let swaps = if falls { left < right } else { left > right };
            store_shared_u32x2_if(a, y, swaps as u32);
            store_shared_u32x2_if(b, x, swaps as u32);
        }
        pair += THREADS as u32;
    }
}
