//! Sorts keys in shared memory: a bitonic sort, two strides at a time.

use super::THREADS;
use crate::abi::params::top_k::sort_places;
use crate::primitives::unroll::unroll;
use crate::ptx::shared::{load_shared_u32x2, store_shared_u32x2};
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
            // The last stride of a size of two to an odd power has no other.
            let is_single = stride == 1;
            // SAFETY: the caller's promise. Fours of 32 lanes are of the same 128 keys in all steps
            // from a stride of 64 on, so that warps need not wait for each other.
            unsafe {
                step(keys, n, size, stride, is_single);
                let next = if is_single { size } else { stride / 4 };
                if stride > 64 || next > 64 || next == 0 && size > 64 {
                    sync_threads();
                } else {
                    sync_warp();
                }
            }
            stride = if is_single { 0 } else { stride / 4 };
        }
        size *= 2;
    }
    // SAFETY: the caller's promise.
    unsafe { sync_threads() };
}

/// Exchanges the keys of a stride and of half of it that are not in order, or of a stride of 1
/// alone.
///
/// # Safety
/// As [`sort`].
#[inline(always)]
unsafe fn step(keys: u32, n: u32, size: u32, stride: u32, is_single: bool) {
    // Pairs of neighbours lie two by two where there is one stride.
    let half = if is_single { 1 } else { stride / 2 };
    let mut four = thread_idx_x();
    while four * 4 < n {
        let places = sort_places(four, half).map(|place| keys + place * 8);
        let mut own = [0u64; 4];
        // SAFETY: the keys are there, and room for four where there are two, and no other thread's.
        unsafe {
            unroll!(K in 0..4 => {
                let [low, high] = load_shared_u32x2(places[K]);
                own[K] = u64::from(low) | u64::from(high) << 32;
            });
            let falls = [0, 2].map(|k: usize| ((places[k] - keys) / 8) & size == 0);
            if !is_single {
                (own[0], own[2]) = ordered(own[0], own[2], falls[0]);
                (own[1], own[3]) = ordered(own[1], own[3], falls[0]);
            }
            (own[0], own[1]) = ordered(own[0], own[1], falls[0]);
            (own[2], own[3]) = ordered(own[2], own[3], falls[1]);
            unroll!(K in 0..4 => {
                store_shared_u32x2(places[K], [own[K] as u32, (own[K] >> 32) as u32]);
            });
        }
        four += THREADS as u32;
    }
}

/// Two keys, the larger one first where they fall.
#[inline(always)]
fn ordered(a: u64, b: u64, falls: bool) -> (u64, u64) {
    if (a < b) == falls { (b, a) } else { (a, b) }
}
