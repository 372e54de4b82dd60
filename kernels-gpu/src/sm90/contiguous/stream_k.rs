//! Stream-K kernels of contiguous documents ([`crate::sm90::contiguous::share`]): each CTA has one
//! unit, of the launch's one query tile. The warps have loops of their own: those for whole
//! documents know of several units, and stay as fast as they are.

use crate::abi::layout::contiguous::*;
use crate::abi::params::{CutRunParams, RunParams};
use crate::primitives::row_scales::Norms;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{
    barrier_arrive_if, barrier_expect, barrier_fence, barrier_init, barrier_wait,
};
use crate::ptx::copy::copy_run;
use crate::ptx::math::max_nan;
use crate::ptx::shared::{load_shared_f32, store_shared_f32};
use crate::ptx::thread::*;
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::epilogue::{Results, Tile};
use crate::sm90::contiguous::int8::ScaleRows;
use crate::sm90::contiguous::mma_loop::{Best, COLUMNS, Queries, Rows};
use crate::sm90::contiguous::prologue::First;
use crate::sm90::contiguous::share::{Pieces, Share};
use crate::sm90::contiguous::{Kernel, Shared};
use crate::sm90::smem::Ring;

/// A warp that multiplies.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward_cut`].
#[inline(always)]
pub(super) unsafe fn multiply<K: Kernel>(params: &CutRunParams, shared: Shared<K>, lane: u32) {
    const { assert!(K::ROWS == COLUMNS) };
    let all = &params.runs;
    // Rows from one chunk of the warp's to the next one.
    let stride = K::ROWS * K::WARPS as u32;
    let documents = Rows { address: all.documents, scales: ScaleRows::new(Norms::NONE) };
    // SAFETY: a stage is overwritten when all lanes have multiplied what it holds; each wait is for
    // a copy that has been started, or for arrivals that the storing warp owes.
    unsafe {
        ask_query(all, &shared, lane);
        let share = Share::new(params, block_idx_x());
        let run = share.run;
        let mut row = run.start + shared.warp * K::ROWS;
        let n_left = run.end.saturating_sub(row);
        let first = First::ask(&documents, &shared, share.row(row), n_left, lane);
        init_stages(&shared, lane);
        let (mut ring, mut slots) = (Ring::START, Ring::START);
        let mut i = first.count();
        let mut ahead = row + stride * i;
        while i < K::STAGES as u32 && ahead < run.end {
            let from = share.row(ahead);
            documents.copy_chunk(&shared, i, from, from + (run.end - ahead), lane);
            ahead += stride;
            i += 1;
        }
        ahead = row + stride * K::STAGES as u32;
        // Found behind the copy before: just before its own the assembler makes a branch of it,
        // which is slower.
        let mut from = share.row(ahead);
        // The storing warp has set up the other barriers.
        wait_threads(K::THREADS);
        let queries = Queries::load(&shared, 0, all.zero, lane);
        first.wait(&shared, lane);
        let mut chunk_end = (row + K::ROWS).min(run.end);
        let mut is_there = false;
        let mut entry = run.entry;
        while entry != run.entry_end {
            let document_end = share.end_of(entry, all.item_len);
            let mut best = Best::NONE;
            while row < document_end {
                let stop = document_end.min(chunk_end);
                if !is_there {
                    barrier_wait(shared.full(ring.slot), ring.parity);
                    is_there = true;
                }
                let first = (row - run.start) % K::ROWS;
                let c = queries.multiply::<K>(shared.stage(ring.slot) + first * K::BYTES, lane);
                best.take(c, stop - row, lane);
                row = stop;
                if row == chunk_end {
                    sync_warp();
                    if ahead < run.end {
                        let end = from + (run.end - ahead);
                        documents.copy_chunk(&shared, ring.slot, from, end, lane);
                        ahead += stride;
                        from = share.row(ahead);
                    }
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
            sync_warp();
            barrier_arrive_if(shared.maxima_full(slots.slot), (lane == 0) as u32);
            slots = slots.next(SLOTS as u32);
            entry = entry.wrapping_add(1);
        }
    }
}

/// The warp that stores scores, and what is found of pieces.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward_cut`].
#[inline(always)]
pub(super) unsafe fn store<K: Kernel>(params: &CutRunParams, shared: Shared<K>, lane: u32) {
    let all = &params.runs;
    let unit = block_idx_x();
    // SAFETY: the other warps store their maxima of each entry of the unit in this order.
    unsafe {
        init_storing(all, &shared, lane);
        let share = Share::new(params, unit);
        let tile = Tile::new(all, all.first_tile);
        if all.query_len == 0 {
            tile.load(all, &shared, lane);
        }
        arrive_threads(K::THREADS);
        let touched = share.touch(all, unit, lane);
        let results = Results::new::<K>(&all.forward, &tile, Norms::NONE, lane);
        let mut slots = Ring::START;
        let mut entry = share.run.entry;
        while entry != share.run.entry_end {
            let is_end = share.is_end(entry);
            let mut pieces = Pieces::NONE;
            if is_end {
                pieces = share.ask(params, unit, lane);
            }
            let mut most = take_maxima(&shared, &mut slots, lane);
            if share.goes_on(entry) {
                share.leave(all, unit, most, touched, lane);
            } else {
                if is_end {
                    most = pieces.take(all, most, lane);
                }
                results.store::<K>(&all.forward, entry, most, lane);
            }
            entry = entry.wrapping_add(1);
        }
    }
}

/// Asks for the query tile, in the first warp.
///
/// # Safety
/// One whole warp, before threads meet.
#[inline(always)]
unsafe fn ask_query<K: Kernel>(all: &RunParams, shared: &Shared<K>, lane: u32) {
    if shared.warp == 0 && all.query_len != 0 {
        // Before anything else: behind the documents of all blocks it would come late, and nothing
        // is multiplied until it is there.
        let n_bytes = all.query_len * K::BYTES;
        // SAFETY: the caller's promise; the unit is of this launch.
        unsafe {
            let address = all.queries + u64::from(all.first_tile) * u64::from(n_bytes);
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
unsafe fn init_stages<K: Kernel>(shared: &Shared<K>, lane: u32) {
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

/// Sets up the barriers that the storing warp waits for first, or says something with.
///
/// # Safety
/// One whole warp, before threads meet.
#[inline(always)]
unsafe fn init_storing<K: Kernel>(all: &RunParams, shared: &Shared<K>, lane: u32) {
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

/// The largest maximum that the warps have stored in the next slot for the lane's query row; gives
/// the slot back.
///
/// # Safety
/// One whole warp; the warps fill slots in this order.
#[inline(always)]
unsafe fn take_maxima<K: Kernel>(shared: &Shared<K>, slots: &mut Ring, lane: u32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        barrier_wait(shared.maxima_full(slots.slot), slots.parity);
        let mut most = load_shared_f32(shared.maxima(slots.slot, 0) + lane * 4);
        let mut warp = 1;
        while warp < K::WARPS as u32 {
            let other = load_shared_f32(shared.maxima(slots.slot, warp) + lane * 4);
            most = max_nan(most, other);
            warp += 1;
        }
        sync_warp();
        barrier_arrive_if(shared.maxima_empty(slots.slot), (lane == 0) as u32);
        *slots = slots.next(SLOTS as u32);
        most
    }
}
