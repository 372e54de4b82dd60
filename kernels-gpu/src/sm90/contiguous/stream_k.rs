//! Stream-K kernels of contiguous documents ([`crate::sm90::contiguous::share`]): each CTA has one
//! unit, of the launch's one query tile.

use crate::abi::params::ContiguousStreamKParams;
use crate::primitives::row_scales::RowScales;
use crate::ptx::thread::*;
use crate::sm90::contiguous::chunks::{Chunks, Rows};
use crate::sm90::contiguous::epilogue::{Results, Tile, load_maxima, meet, release_maxima};
use crate::sm90::contiguous::int8::ScaleRows;
use crate::sm90::contiguous::mma_loop::{Cursor, publish_maxima};
use crate::sm90::contiguous::products::{COLUMNS, Queries};
use crate::sm90::contiguous::prologue::{FirstChunk, init_stages, init_storing, request_query};
use crate::sm90::contiguous::share::{Partials, Share};
use crate::sm90::contiguous::{Kernel, Shared};
use crate::sm90::smem::Ring;

/// A warp that multiplies.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward_stream_k`].
#[inline(always)]
pub(super) unsafe fn multiply<K: Kernel>(
    params: &ContiguousStreamKParams,
    shared: Shared<K>,
    lane: u32,
) {
    const { assert!(K::ROWS == COLUMNS) };
    let all = &params.runs;
    let documents = Rows { address: all.documents, scales: ScaleRows::new(RowScales::NONE) };
    // SAFETY: a stage is overwritten when all lanes have multiplied what it holds; each wait is for
    // a copy that has been started, or for arrivals that the storing warp owes.
    unsafe {
        request_query(all, &shared, || all.first_tile, lane);
        let share = Share::new(params, block_idx_x());
        let run = share.run;
        let mut cursor = Cursor::new(shared, Ring::START, run, run.start + shared.warp * K::ROWS);
        let n_left = run.end.saturating_sub(cursor.row);
        let first = FirstChunk::request(&documents, &shared, share.row(cursor.row), n_left, lane);
        init_stages(&shared, lane);
        let mut slots = Ring::START;
        let mut i = first.count();
        let mut ahead = cursor.row + K::STRIDE * i;
        while i < K::STAGES as u32 && ahead < run.end {
            let from = share.row(ahead);
            documents.copy_chunk(&shared, i, from, from + (run.end - ahead), lane);
            ahead += K::STRIDE;
            i += 1;
        }
        let row = cursor.row + K::STRIDE * K::STAGES as u32;
        let mut chunks = OfShare { shared, share, row, from: share.row(row) };
        // The storing warp has set up the other barriers.
        wait_threads(K::THREADS);
        let queries = Queries::load(&shared, 0, all.zero, lane);
        first.wait(&shared, lane);
        let mut entry = run.entry;
        while entry != run.entry_end {
            let end = share.end_of(entry, all.item_len);
            let most = cursor.document(&queries, &documents, &mut chunks, end, lane);
            publish_maxima(&shared, &mut slots, entry, most, lane);
            entry = entry.wrapping_add(1);
        }
    }
}

/// The chunks of a CTA's share, whose rows wrap round.
struct OfShare<K> {
    shared: Shared<K>,
    share: Share,
    /// The next chunk's first row in the run.
    row: u32,
    /// Row of the matrix that `row` is. It is computed behind the copy before: just before its own
    /// the assembler makes a branch of it, which is slower.
    from: u32,
}

impl<K: Kernel> Chunks<K> for OfShare<K> {
    #[inline(always)]
    unsafe fn request(&mut self, documents: &Rows, slot: u32, lane: u32) {
        let run_end = self.share.run.end;
        if self.row < run_end {
            let end = self.from + (run_end - self.row);
            // SAFETY: the caller's promise.
            unsafe { documents.copy_chunk(&self.shared, slot, self.from, end, lane) };
            self.row += K::STRIDE;
            self.from = self.share.row(self.row);
        }
    }
}

/// The warp that stores scores, and publishes and receives partial maxima.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward_stream_k`].
#[inline(always)]
pub(super) unsafe fn store<K: Kernel>(
    params: &ContiguousStreamKParams,
    shared: Shared<K>,
    row_scales: RowScales,
    lane: u32,
) {
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
        meet::<K>();
        let touched = share.touch(all, unit, lane);
        let mut results = Results::new::<K>(&all.forward, &tile, row_scales, lane);
        results.find_norm(&shared, 0, lane);
        let mut slots = Ring::START;
        let mut entry = share.run.entry;
        while entry != share.run.entry_end {
            let is_end = share.is_end(entry);
            let mut partials = Partials::NONE;
            if is_end {
                partials = share.request(params, unit, lane);
            }
            let mut most = load_maxima(&shared, slots, lane);
            release_maxima(&shared, &mut slots, lane);
            if share.continues(entry) {
                share.publish(all, unit, most, touched, lane);
            } else {
                if is_end {
                    most = partials.receive(all, most, lane);
                }
                results.store::<K>(&all.forward, entry, most, lane);
            }
            entry = entry.wrapping_add(1);
        }
    }
}
