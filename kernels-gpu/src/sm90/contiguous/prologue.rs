//! Prologue of warps: barriers, the query tile, and a warp's first chunk of a launch by copies of
//! its lanes.
//!
//! The copy engine announces at a barrier that it is done, and that has to be set up before its
//! copy is requested. The lanes' own copies need none: requested so, the first chunks are in flight
//! at 0.3 µs of a CTA's time instead of 0.7.

use crate::abi::params::ContiguousParams;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_expect, barrier_fence, barrier_init};
use crate::ptx::copy::{copy_16_at, copy_commit, copy_run, copy_wait, fence_async};
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::chunks::Rows;
use crate::sm90::contiguous::{Kernel, Shared};

/// Requests the query tile, in the first warp, where queries have one length.
///
/// # Safety
/// One whole warp, before threads meet.
#[inline(always)]
pub(super) unsafe fn request_query<K: Kernel>(
    all: &ContiguousParams,
    shared: &Shared<K>,
    tile: impl FnOnce() -> u32,
    lane: u32,
) {
    if shared.warp == 0 && all.query_len != 0 {
        // Before anything else: behind the documents of all blocks it would come late, and nothing
        // is multiplied until it is there.
        let n_bytes = all.query_len * K::BYTES;
        // SAFETY: the caller's promise; the unit is of this launch.
        unsafe {
            let address = all.queries + u64::from(tile()) * u64::from(n_bytes);
            if lane == 0 {
                barrier_init(shared.query_full(), 1);
                barrier_fence();
                barrier_expect(shared.query_full(), n_bytes);
                copy_run(shared.queries(), address, n_bytes, shared.query_full());
            }
        }
    }
}

/// Sets up the barriers of the warp's stages.
///
/// # Safety
/// One whole warp, before any use of the barriers.
#[inline(always)]
pub(super) unsafe fn init_stages<K: Kernel>(shared: &Shared<K>, lane: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        if lane == 0 {
            unroll!(I in 0..16 => {
                if I < K::STAGES {
                    barrier_init(shared.full(I as u32), 1);
                }
            });
            barrier_fence();
        }
        sync_warp();
    }
}

/// Sets up the barriers that the storing warp waits for first, or arrives at.
///
/// # Safety
/// One whole warp, before threads meet.
#[inline(always)]
pub(super) unsafe fn init_storing<K: Kernel>(
    all: &ContiguousParams,
    shared: &Shared<K>,
    lane: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if lane == 0 {
            if all.query_len == 0 {
                barrier_init(shared.query_full(), 1);
            }
            barrier_init(shared.query_empty(), K::WARPS as u32);
            unroll!(I in 0..4 => {
                barrier_init(shared.maxima_full(I as u32), K::WARPS as u32);
                barrier_init(shared.maxima_empty(I as u32), 1);
            });
            barrier_fence();
        }
        sync_warp();
    }
}

/// Bytes that a warp copies at a time.
const AT_ONCE: usize = 32 * 16;

/// Whether the lanes copy the warp's first chunk, to its ring's first stage.
#[derive(Clone, Copy)]
pub(super) struct FirstChunk(bool);

impl FirstChunk {
    /// Copies the chunk that begins with `row`, `n_left` rows before its run's end, by the lanes.
    /// Runs that all fit into the warps' rings are copied by the copy engine: the query comes as
    /// late, so that they gain nothing.
    ///
    /// # Safety
    /// One whole warp; the documents must have the rows, and the stage must be free.
    #[inline(always)]
    pub(super) unsafe fn request<K: Kernel>(
        documents: &Rows,
        shared: &Shared<K>,
        row: u32,
        n_left: u32,
        lane: u32,
    ) -> FirstChunk {
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
        FirstChunk(is_long)
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
