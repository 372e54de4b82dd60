//! A warp's first chunk of a launch, by copies of its lanes.
//!
//! The copy engine says at a barrier that it is done, and that has to be set up before it is asked.
//! The lanes' own copies need none: asked for so, the first chunks are under way at 0.3 µs of a
//! block's time instead of 0.7.

use crate::primitives::unroll::unroll;
use crate::ptx::barrier::barrier_arrive_if;
use crate::ptx::copy::{copy_16_at, copy_commit, copy_wait, fence_async};
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::mma_loop::Rows;
use crate::sm90::contiguous::{Kernel, Shared};

/// Bytes that a warp copies at a time.
const AT_ONCE: usize = 32 * 16;

/// Whether the lanes copy the warp's first chunk, to its ring's first stage.
#[derive(Clone, Copy)]
pub(super) struct First(bool);

impl First {
    /// Copies the chunk that begins with `row`, `n_left` rows before its run's end, by the lanes.
    /// Runs that all fit into the warps' rings are copied by the copy engine: the query comes as
    /// late, so that they gain nothing.
    ///
    /// # Safety
    /// One whole warp; the documents must have the rows, and the stage must be free.
    #[inline(always)]
    pub(super) unsafe fn ask<K: Kernel>(
        documents: &Rows,
        shared: &Shared<K>,
        row: u32,
        n_left: u32,
        lane: u32,
    ) -> First {
        const { assert!((K::CHUNK_ROWS * K::BYTES as usize).is_multiple_of(AT_ONCE)) };
        let is_long = n_left > K::ROWS * (K::WARPS * K::STAGES) as u32;
        if is_long {
            let from = documents.address + u64::from(row) * u64::from(K::BYTES);
            let (from, to) = (from + u64::from(lane * 16), shared.stage(0) + lane * 16);
            unroll!(I in 0..16 => {
                if I * AT_ONCE < K::CHUNK_ROWS * K::BYTES as usize {
                    // SAFETY: the caller's promise; rows are aligned to 16 bytes.
                    unsafe { copy_16_at::<{ (I * AT_ONCE) as u32 }>(to, from) };
                }
            });
        }
        First(is_long)
    }

    /// How many chunks of the warp's this is.
    #[inline(always)]
    pub(super) fn count(self) -> u32 {
        self.0 as u32
    }

    /// Waits for it, and completes the stage's barrier, as a copy of the engine's would have done.
    ///
    /// # Safety
    /// One whole warp, once; the barrier must be set up.
    #[inline(always)]
    pub(super) unsafe fn wait<K: Kernel>(self, shared: &Shared<K>, lane: u32) {
        if self.0 {
            copy_commit();
            copy_wait::<0>();
            // The engine will overwrite what the lanes have written.
            fence_async();
            // SAFETY: the caller's promise.
            unsafe {
                sync_warp();
                barrier_arrive_if(shared.full(0), (lane == 0) as u32);
            }
        }
    }
}
