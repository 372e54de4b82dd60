//! Main loop of the warps that multiply: chunks, products, online max.

use crate::abi::layout::contiguous::*;
use crate::abi::params::ContiguousParams;
use crate::primitives::row_scales::RowScales;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::{store_shared_f32, store_shared_u32_if};
use crate::ptx::thread::*;
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::chunks::{Chunks, Rows, UnitChunks};
use crate::sm90::contiguous::element::ChunkElement;
use crate::sm90::contiguous::int8::{ScaleRows, Scales};
use crate::sm90::contiguous::products::{Best, COLUMNS, Queries};
use crate::sm90::contiguous::prologue::{init_stages, request_query};
use crate::sm90::contiguous::units::{Ends, Run, tile_of};
use crate::sm90::contiguous::{END, Kernel, Shared, is_dynamic};
use crate::sm90::smem::Ring;

/// A warp that multiplies.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward`].
#[inline(always)]
pub(super) unsafe fn multiply<'a, K: Kernel, C: UnitChunks<'a, K>>(
    all: &'a ContiguousParams,
    shared: Shared<K>,
    row_scales: RowScales,
    lane: u32,
) {
    let documents = Rows { address: all.documents, scales: ScaleRows::new(row_scales) };
    // SAFETY: a stage is overwritten when all lanes have multiplied what it holds; each wait is for
    // a copy that has been started, or for arrivals that the storing warp owes.
    unsafe {
        let mut unit = block_idx_x();
        request_query(all, &shared, || tile_of(all, unit), lane);
        init_stages(&shared, lane);
        let (mut ring, mut slots) = (Ring::START, Ring::START);
        let mut parity = 0;
        // There are no more CTAs than units.
        loop {
            let run = Run::new(all, unit);
            let mut ends = Ends::new(all, run, lane);
            let mut cursor = Cursor::new(shared, ring, run, run.start + shared.warp * K::ROWS);
            let mut ahead = cursor.row;
            let mut slot = ring.slot;
            let mut n_free = K::STAGES as u32;
            while n_free > 0 && ahead < run.end {
                documents.copy_chunk(&shared, slot, ahead, run.end, lane);
                ahead += K::STRIDE;
                slot = Ring { slot, parity: 0 }.next(K::STAGES as u32).slot;
                n_free -= 1;
            }
            if unit == block_idx_x() {
                // The other warps have set up the other barriers.
                wait_threads(K::THREADS);
            }
            let queries = Queries::load(&shared, parity, all.zero, lane);
            parity ^= 1;
            let mut chunks = C::behind(all, shared, (run, ends), ahead, [slot, n_free]);
            chunks.begin(&documents, lane);
            let (mut entry, mut entry_end) = (run.entry, run.entry_end);
            while entry < entry_end {
                let end = ends.of(entry);
                let most = cursor.document(&queries, &documents, &mut chunks, end, lane);
                publish_maxima(&shared, &mut slots, entry, most, lane);
                entry += 1;
                if entry == entry_end && chunks.has_next() {
                    // The query stays, and so do the copies in flight.
                    let (run, next_ends) = chunks.next();
                    cursor = Cursor::new(shared, cursor.ring, run, run.start);
                    (entry, entry_end, ends) = (run.entry, run.entry_end, next_ends);
                    chunks.begin(&documents, lane);
                }
            }
            ring = cursor.ring;
            if is_dynamic::<K>(all) {
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

/// Position of a warp in a run of rows, of which it has every so many chunks.
pub(super) struct Cursor<K> {
    shared: Shared<K>,
    /// The stage that it multiplies from.
    pub(super) ring: Ring,
    /// The run's first row, as the warp counts, and one past its last.
    start: u32,
    end: u32,
    /// The next row, and one past the last of its chunk.
    pub(super) row: u32,
    chunk_end: u32,
    /// Whether the chunk has been waited for.
    is_loaded: bool,
}

impl<K: Kernel> Cursor<K> {
    /// Before the chunk that begins with `row`.
    #[inline(always)]
    pub(super) fn new(shared: Shared<K>, ring: Ring, run: Run, row: u32) -> Self {
        let chunk_end = (row + K::ROWS).min(run.end);
        Cursor { shared, ring, start: run.start, end: run.end, row, chunk_end, is_loaded: false }
    }

    /// The maximum over the warp's rows of a document, up to row `document_end`, for the query row
    /// that the lane ends with.
    ///
    /// # Safety
    /// One whole warp; the chunks have been requested in this order.
    #[inline(always)]
    pub(super) unsafe fn document(
        &mut self,
        queries: &Queries,
        documents: &Rows,
        chunks: &mut impl Chunks<K>,
        document_end: u32,
        lane: u32,
    ) -> f32 {
        let shared = &self.shared;
        let mut best = Best::NONE;
        // SAFETY: the caller's promise.
        unsafe {
            while self.row < document_end {
                let mut stop = document_end.min(self.chunk_end);
                if K::ROWS > COLUMNS {
                    stop = stop.min(self.row + COLUMNS);
                }
                if !self.is_loaded {
                    barrier_wait(shared.full(self.ring.slot), self.ring.parity);
                    self.is_loaded = true;
                }
                let first = (self.row - self.start) % K::ROWS;
                let mut scales = Scales::NONE;
                if K::Element::HAS_SCALES {
                    let room = shared.scales(self.ring.slot);
                    scales = documents.scales.load(room, self.row - first, first, lane);
                }
                let rows = shared.stage(self.ring.slot) + first * K::BYTES;
                let (c, squares) = queries.multiply::<K>(rows, lane);
                if K::Element::NORMALIZES {
                    scales = squares.columns::<K::Element>(rows, lane);
                }
                best.update(K::Element::similarities(c, &scales), stop - self.row, lane);
                self.row = stop;
                if self.row == self.chunk_end {
                    sync_warp();
                    chunks.request(documents, self.ring.slot, lane);
                    self.ring = self.ring.next(K::STAGES as u32);
                    self.is_loaded = false;
                    // Behind a short chunk, the run's last one, there is none.
                    let is_last = self.chunk_end == self.end;
                    self.row = if is_last { self.end } else { self.row + K::STRIDE - K::ROWS };
                    self.chunk_end = (self.row + K::ROWS).min(self.end);
                }
            }
            best.exchange(lane)
        }
    }
}

/// Stores a warp's maxima of an entry in the next slot, for the storing warp.
///
/// # Safety
/// One whole warp; the warps fill the slots in the same order.
#[inline(always)]
pub(super) unsafe fn publish_maxima<K: Kernel>(
    shared: &Shared<K>,
    slots: &mut Ring,
    entry: u32,
    most: f32,
    lane: u32,
) {
    // SAFETY: the caller's promise; the storing warp empties the slots in this order.
    unsafe {
        barrier_wait(shared.maxima_empty(slots.slot), slots.parity ^ 1);
        store_shared_f32(shared.maxima(slots.slot, shared.warp) + lane * 4, most);
        if K::HAS_SCHEDULER {
            let is_first = (shared.warp == 0 && lane == 0) as u32;
            store_shared_u32_if(shared.entry(slots.slot), entry, is_first);
        }
        sync_warp();
        barrier_arrive_if(shared.maxima_full(slots.slot), (lane == 0) as u32);
    }
    *slots = slots.next(SLOTS as u32);
}
