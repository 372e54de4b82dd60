//! Main loop of kernels with a dynamic scheduler: it prefetches the next unit's first chunks, which
//! costs registers that kernels for 2-byte elements do not have.

use crate::abi::layout::contiguous::*;
use crate::abi::params::RunParams;
use crate::primitives::row_scales::Norms;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{
    barrier_arrive_if, barrier_expect, barrier_fence, barrier_init, barrier_wait,
};
use crate::ptx::copy::copy_run;
use crate::ptx::shared::{store_shared_f32, store_shared_u32_if};
use crate::ptx::thread::*;
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::element::Element;
use crate::sm90::contiguous::epilogue::store;
use crate::sm90::contiguous::int8::{ScaleRows, Scales};
use crate::sm90::contiguous::mma_loop::{Best, COLUMNS, Queries, Rows};
use crate::sm90::contiguous::prefetch::Ahead;
use crate::sm90::contiguous::tile_scheduler::draw;
use crate::sm90::contiguous::units::{Ends, Run, tile_of};
use crate::sm90::contiguous::{END, Kernel, Shared, draws};
use crate::sm90::smem::Ring;

/// What a warp does in such a row.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward`].
#[inline(always)]
pub(super) unsafe fn forward_drawn<K: Kernel>(
    params: &RunParams,
    shared: Shared<K>,
    norms: Norms,
    lane: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if shared.warp == K::WARPS as u32 + 1 {
            draw(params, shared, lane);
        } else if shared.warp == K::WARPS as u32 {
            store(params, shared, norms, lane);
        } else {
            multiply(params, shared, norms, lane);
        }
    }
}

/// A warp that multiplies.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward`].
#[inline(always)]
unsafe fn multiply<K: Kernel>(all: &RunParams, shared: Shared<K>, norms: Norms, lane: u32) {
    // Rows from one chunk of the warp's to the next one.
    let stride = K::ROWS * K::WARPS as u32;
    let documents = Rows { address: all.documents, scales: ScaleRows::new(norms) };
    // SAFETY: a stage is overwritten when all lanes have multiplied what it holds; each wait is for
    // a copy that has been started, or for arrivals that the storing warp owes.
    unsafe {
        let mut unit = block_idx_x();
        if shared.warp == 0 && all.query_len != 0 {
            // Before anything else: behind the documents of all blocks it would come late, and
            // nothing is multiplied until it is there.
            let n_bytes = all.query_len * K::BYTES;
            let address = all.queries + u64::from(tile_of(all, unit)) * u64::from(n_bytes);
            if lane == 0 {
                barrier_init(shared.query_full(), 1);
                barrier_fence();
                barrier_expect(shared.query_full(), n_bytes);
                copy_run(shared.queries(), address, n_bytes, shared.query_full());
            }
        }
        if lane == 0 {
            unroll!(I in 0..16 => {
                if I < K::STAGES {
                    barrier_init(shared.full(I as u32), 1);
                }
            });
            barrier_fence();
        }
        sync_warp();
        let (mut ring, mut slots) = (Ring::START, Ring::START);
        let mut parity = 0;
        // There are no more blocks than units.
        loop {
            let mut run = Run::new(all, unit);
            let mut ends = Ends::new(all, run, lane);
            let mut row = run.start + shared.warp * K::ROWS;
            let mut ahead = row;
            let mut slot = ring.slot;
            let mut n_free = K::STAGES as u32;
            while n_free > 0 && ahead < run.end {
                documents.copy_chunk(&shared, slot, ahead, run.end, lane);
                ahead += stride;
                slot = Ring { slot, parity: 0 }.next(K::STAGES as u32).slot;
                n_free -= 1;
            }
            if unit == block_idx_x() {
                // The other warps have set up the other barriers.
                wait_threads(K::THREADS);
            }
            let queries = Queries::load(&shared, parity, all.zero, lane);
            parity ^= 1;
            let mut ahead = Ahead::new(all, shared, (run, ends), ahead, [slot, n_free]);
            ahead.ask(&documents, lane);
            let mut chunk_end = (row + K::ROWS).min(run.end);
            let mut is_there = false;
            let mut entry = run.entry;
            while entry < run.entry_end {
                let document_end = ends.of(entry);
                let mut best = Best::NONE;
                while row < document_end {
                    let stop = document_end.min(chunk_end).min(row + COLUMNS);
                    if !is_there {
                        barrier_wait(shared.full(ring.slot), ring.parity);
                        is_there = true;
                    }
                    let first = (row - run.start) % K::ROWS;
                    let mut scales = Scales::NONE;
                    if K::Element::HAS_SCALES {
                        let room = shared.scales(ring.slot);
                        scales = documents.scales.load(room, row - first, first, lane);
                    }
                    let rows = shared.stage(ring.slot) + first * K::BYTES;
                    let c = queries.multiply::<K>(rows, lane);
                    best.take(K::Element::similarities(c, &scales), stop - row, lane);
                    row = stop;
                    if row == chunk_end {
                        sync_warp();
                        ahead.free();
                        ahead.ask(&documents, lane);
                        ring = ring.next(K::STAGES as u32);
                        is_there = false;
                        // Behind a short chunk, the run's last one, there is none.
                        row = if chunk_end == run.end { run.end } else { row + stride - K::ROWS };
                        chunk_end = (row + K::ROWS).min(run.end);
                    }
                }
                let most = best.exchange(lane);
                barrier_wait(shared.maxima_empty(slots.slot), slots.parity ^ 1);
                store_shared_f32(shared.maxima(slots.slot, shared.warp) + lane * 4, most);
                let is_first = (shared.warp == 0 && lane == 0) as u32;
                store_shared_u32_if(shared.entry(slots.slot), entry, is_first);
                sync_warp();
                barrier_arrive_if(shared.maxima_full(slots.slot), (lane == 0) as u32);
                slots = slots.next(SLOTS as u32);
                entry += 1;
                if entry == run.entry_end && ahead.has_next() {
                    // The query stays, and so do the copies in flight.
                    (run, ends) = ahead.next();
                    (row, entry) = (run.start, run.entry);
                    chunk_end = (row + K::ROWS).min(run.end);
                    ahead.ask(&documents, lane);
                }
            }
            if draws::<K>(all) {
                // Publishes the slot to the storing warp.
                barrier_wait(shared.maxima_empty(slots.slot), slots.parity ^ 1);
                store_shared_u32_if(shared.entry(slots.slot), END, (lane == 0) as u32);
                barrier_arrive_if(shared.maxima_full(slots.slot), (lane == 0) as u32);
                return;
            }
            unit += grid_dim_x();
            if unit >= all.n_units {
                return;
            }
        }
    }
}
