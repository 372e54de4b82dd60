//! The producer warps: one for each pair of consumers.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::layout::sm90::{PAIR_STAGE_BYTES, STREAM_K_BOX_ROWS};
use crate::abi::params::{ForwardParams, Group, Segment};
use crate::primitives::accumulator::valid_columns;
use crate::primitives::documents::Documents;
use crate::primitives::row_scales::RowScales;
use crate::ptx::barrier::{barrier_expect, barrier_wait};
use crate::ptx::copy::{copies_arrive, copy_async_4, copy_tile, copy_tile_once, expect_tile};
use crate::ptx::shared::store_shared_u32x4;
use crate::sm90::kernel::{Kernel, Maps};
use crate::sm90::scheduler::{ReceivedUnits, Units};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;
use crate::sm90::swap_ab::kernel::{
    END, FIRST_TILE, NEW_TILE, NO_LEN, ROWS, SAME_TILE, TILE_PARITY,
};
use crate::sm90::swap_ab::tile_scheduler::PairScheduler;

/// Rows that a copy brings of a whole stage, and their bytes.
const BOX_ROWS: u32 = STREAM_K_BOX_ROWS as u32;
const BOX_BYTES: u32 = BOX_ROWS * SLAB_BYTES as u32;

/// In place of a document.
const NO_DOCUMENT: Segment = Segment { start: 0, len: NO_LEN };

/// Gets the CTA's units, publishes them to the other warps, and loads the first pair's documents.
///
/// # Safety
/// One whole warp per block; shared memory and barriers as
/// [`crate::sm90::persistent::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn load<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    row_scales: RowScales,
    lane: u32,
) {
    let mut stages = Stages::new(params, shared, maps, row_scales, lane, Fixed::<0>);
    let mut scheduler = PairScheduler::new(params);
    let mut units = Units::new(params);
    let mut is_first = true;
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(work) = units.next::<K>(shared, lane) {
            stages.set_tile(work.tile);
            let mut documents = Documents::new(params, &work);
            let first = documents.first();
            // The first copies of a block go before everything else.
            let mut is_published = !is_first || first.len == 0;
            is_first = false;
            if is_published {
                units.publish(shared, &work, first, lane);
            }
            while let Some((entry, document)) = documents.next() {
                let Some(rows) = scheduler.next(&work, entry, document)[0] else { continue };
                stages.load::<K>(rows, 0);
                if !is_published {
                    is_published = true;
                    units.publish(shared, &work, first, lane);
                }
                stages.load_others::<K>(rows);
            }
            stages.flush::<K>();
        }
        stages.end::<K>();
    }
}

/// Loads the second pair's documents.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(super) unsafe fn load_second_pair<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    row_scales: RowScales,
    lane: u32,
) {
    let mut stages = Stages::new(params, shared, maps, row_scales, lane, Fixed::<1>);
    let mut scheduler = PairScheduler::new(params);
    let mut units = ReceivedUnits::START;
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            stages.set_tile(work.tile);
            let mut documents = Documents::new(params, &work);
            while let Some((entry, document)) = documents.next() {
                if let Some(rows) = scheduler.next(&work, entry, document)[1] {
                    stages.load::<K>(rows, 0);
                    stages.load_others::<K>(rows);
                }
            }
            stages.flush::<K>();
        }
        stages.end::<K>();
    }
}

/// The pair that a loading warp loads for.
pub(super) trait Pair: Copy {
    /// Number of the pair.
    fn number(self) -> u32;
}

/// One that the code knows.
#[derive(Clone, Copy)]
pub(super) struct Fixed<const PAIR: u32>;

impl<const PAIR: u32> Pair for Fixed<PAIR> {
    #[inline(always)]
    fn number(self) -> u32 {
        PAIR
    }
}

/// One of several with the same code.
impl Pair for u32 {
    #[inline(always)]
    fn number(self) -> u32 {
        self
    }
}

/// A pair's half of the ring, as it is filled.
pub(super) struct Stages<'a, T> {
    params: &'a ForwardParams,
    shared: &'a Shared,
    maps: Maps,
    row_scales: RowScales,
    lane: u32,
    ring: Ring,
    /// The query tile, and the parity of the next one's barrier.
    tile: u32,
    parity: u32,
    /// Word that the next stage publishes of the tile.
    announced: u32,
    pair: T,
}

impl<'a, T: Pair> Stages<'a, T> {
    #[inline(always)]
    pub(super) fn new(
        params: &'a ForwardParams,
        shared: &'a Shared,
        maps: Maps,
        row_scales: RowScales,
        lane: u32,
        pair: T,
    ) -> Self {
        let (ring, parity, announced) = (Ring::START, 0, SAME_TILE);
        Stages { params, shared, maps, row_scales, lane, ring, tile: END, parity, announced, pair }
    }

    /// Starts the copies of a document's rows behind those of its first stage.
    ///
    /// # Safety
    /// As [`Stages::load`].
    #[inline(always)]
    pub(super) unsafe fn load_others<K: Kernel>(&mut self, document: Segment) {
        let mut row = ROWS;
        // SAFETY: the caller's promise.
        unsafe {
            if self.params.documents.mask == 0 {
                while row + ROWS <= document.len {
                    self.load_whole::<K>(document.start + row);
                    row += ROWS;
                }
            }
            while row < document.len {
                self.load::<K>(document, row);
                row += ROWS;
            }
        }
    }

    /// Loads 64 rows from `start` on and announces nothing: these warps take time from the
    /// consumers beside them.
    ///
    /// # Safety
    /// As [`Stages::load`].
    #[inline(always)]
    unsafe fn load_whole<K: Kernel>(&mut self, start: u32) {
        let (shared, lane) = (self.shared, self.lane);
        let stage = self.pair.number() * shared.stages + self.ring.slot;
        let (rows, full) = (shared.rows(stage), shared.pair_full(stage));
        let (to, from) =
            (shared.pair_scales(stage) + 4 * lane, self.row_scales.of_documents(start + lane));
        // SAFETY: as there.
        unsafe {
            barrier_wait(shared.pair_empty(stage), self.ring.parity ^ 1);
            // Two copies, since boxes of the map for units that end within documents have 32 rows.
            let map = self.maps.documents;
            expect_tile(rows, map, 0, start, full, PAIR_STAGE_BYTES as u32);
            copy_tile_once(rows + BOX_BYTES, map, 0, start + BOX_ROWS, full);
            copy_async_4(to, from);
            copy_async_4(to + 128, from + 128);
            copies_arrive(full);
        }
        self.ring = self.ring.next(shared.stages);
    }

    /// Starts the copies of the 64 rows from row `row` of a document on, or of those that it has,
    /// and of their scales, and announces which document that is, of which query tile, and its mask
    /// is. A document without tokens has an empty stage.
    ///
    /// # Safety
    /// The pair's one whole warp; there is a scale for every row, and behind the last one for as
    /// many as a stage has.
    #[inline(always)]
    pub(super) unsafe fn load<K: Kernel>(&mut self, document: Segment, row: u32) {
        let (shared, lane) = (self.shared, self.lane);
        let (start, left) = (document.start + row, document.len - row);
        let stage = self.pair.number() * shared.stages + self.ring.slot;
        let (rows, full) = (shared.rows(stage), shared.pair_full(stage));
        let n_rows = left.min(ROWS).next_multiple_of(Group::ROWS as u32);
        let (map, box_rows) = match left >= ROWS {
            true => (self.maps.documents, BOX_ROWS),
            false => (self.maps.document_tails, Group::ROWS as u32),
        };
        // SAFETY: stages are overwritten after the consumers' arrivals; the boxes are those of the
        // document's rows, and lie in the stage.
        unsafe {
            let mut valid = [0; 2];
            if self.params.documents.mask != 0 {
                valid = valid_columns::<2>(&self.params.documents, start, left, lane);
            }
            let from = self.row_scales.of_documents(start + lane);
            barrier_wait(shared.pair_empty(stage), self.ring.parity ^ 1);
            if lane == 0 {
                let words = [document.len, self.announced, valid[0], valid[1]];
                store_shared_u32x4(shared.words(stage), words);
                barrier_expect(full, n_rows * SLAB_BYTES as u32);
            }
            if lane * box_rows < n_rows {
                let row = lane * box_rows;
                copy_tile(rows + row * SLAB_BYTES as u32, map, 0, start + row, full);
            }
            if left > 0 {
                let to = shared.pair_scales(stage) + 4 * lane;
                copy_async_4(to, from);
                copy_async_4(to + 128, from + 128);
            }
            copies_arrive(full);
        }
        self.ring = self.ring.next(shared.stages);
        self.announced = SAME_TILE;
    }

    /// Says with the next stage that what follows is for this query tile.
    #[inline(always)]
    pub(super) fn set_tile(&mut self, tile: u32) {
        if tile != self.tile {
            let first = if self.tile == END { FIRST_TILE } else { 0 };
            self.announced = NEW_TILE | first | self.parity;
            self.tile = tile;
            self.parity ^= TILE_PARITY;
        }
    }

    /// Says it with a stage of its own, where the pair has no document of the unit: the other one
    /// waits until both have let go of the last tile.
    ///
    /// # Safety
    /// As [`Stages::load`].
    #[inline(always)]
    pub(super) unsafe fn flush<K: Kernel>(&mut self) {
        if self.announced != SAME_TILE {
            // SAFETY: the caller's promise.
            unsafe { self.load::<K>(NO_DOCUMENT, NO_DOCUMENT.len) };
        }
    }

    /// Says that there are no more documents.
    ///
    /// # Safety
    /// As [`Stages::load`], behind the last one.
    #[inline(always)]
    pub(super) unsafe fn end<K: Kernel>(&mut self) {
        self.announced = END;
        // SAFETY: the caller's promise.
        unsafe { self.flush::<K>() };
    }
}
