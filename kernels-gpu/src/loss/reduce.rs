//! Sums and maxima over the threads that share a row.

use crate::abi::params::loss::WARPS;
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::{sync_threads, thread_idx_x};
use crate::ptx::warp::shuffle_xor_f32;

/// The threads that share a row: all of a block, or a warp.
#[derive(Clone, Copy)]
pub struct Sharing {
    pub is_block: bool,
}

impl Sharing {
    /// The sum of the threads' numbers, in a fixed order.
    ///
    /// # Safety
    /// All threads of the block, or of the warp, must call it together; the block has
    /// [`crate::abi::params::loss::SHARED_BYTES`] of shared memory.
    #[inline(always)]
    pub unsafe fn sum(self, value: f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.fold(value, |a, b| a + b) }
    }

    /// The largest of the threads' numbers that are not NaN.
    ///
    /// # Safety
    /// As [`Sharing::sum`].
    #[inline(always)]
    pub unsafe fn max(self, value: f32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.fold(value, f32::max) }
    }

    /// # Safety
    /// As [`Sharing::sum`].
    #[inline(always)]
    unsafe fn fold(self, mut value: f32, join: impl Fn(f32, f32) -> f32) -> f32 {
        // SAFETY: whole warps come here; in a block all of them, each with a word of its own.
        unsafe {
            value = join(value, shuffle_xor_f32::<1>(value));
            value = join(value, shuffle_xor_f32::<2>(value));
            value = join(value, shuffle_xor_f32::<4>(value));
            value = join(value, shuffle_xor_f32::<8>(value));
            value = join(value, shuffle_xor_f32::<16>(value));
            if !self.is_block {
                return value;
            }
            let (shared, thread) = (dynamic_shared(), thread_idx_x());
            // The last fold's numbers have been read.
            sync_threads();
            if thread.is_multiple_of(32) {
                store_shared_f32(shared + thread / 32 * 4, value);
            }
            sync_threads();
            value = load_shared_f32(shared);
            let mut warp = 1;
            while warp < WARPS {
                value = join(value, load_shared_f32(shared + warp * 4));
                warp += 1;
            }
            value
        }
    }
}
