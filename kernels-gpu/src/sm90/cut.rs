//! Forward of units that end within a document: few tiles of queries against documents that are few for each block.
//!
//! What a whole document more takes is then much of a block's time. So blocks have equal shares of a tile's tokens,
//! one unit each, that start and end between any two tiles of documents. The pieces that a unit has of documents of
//! other units too come first. What it finds of one that goes on in the next unit it leaves in device memory, for the unit that has the
//! document's end, which takes the maxima of all: a word for each query row that says both what is found and that it
//! is. No fence is needed, which would keep a multiprocessor's copies waiting, and everything is long there when
//! it is looked for. Units that follow each other in the documents are as far apart in number as there are tiles
//! of queries.
//!
//! That unit waits for blocks with smaller numbers alone. Those begin before it, so that all come to an end also where
//! blocks do not all run at once (the look-back scans of CUB rely on it, too).
//!
//! With one fragment each, the consumers hold it in registers, and take turns at the tensor cores, each half a product
//! behind the other: in step, as documents that arrive late would bring them, both would fold at the same time. With
//! two, one is multiplied while the other is folded, as elsewhere.

use super::consumer::{Columns, Consumer, TAIL, WHOLE, tile_clocks};
use super::first::{self, QueryTile, load_rows};
use super::rows::WarpRows;
use super::{Kernel, Maps, Ring, Shared, init_loading, init_storing, n_threads};
use crate::layout::chunk_offset;
use crate::layout::sm90::*;
use crate::norms::Norms;
use crate::params::{ForwardParams, Group, N_COUNTERS, Segment, divide};
use crate::ptx::barrier::{barrier_arrive_if, barrier_expect, barrier_wait};
use crate::ptx::copy::{copy_tile, prefetch_map};
use crate::ptx::math::max_nan;
use crate::ptx::matrix::load_matrix_x4;
use crate::ptx::memory::{load_shared_f32x4, load_word, store_word};
use crate::ptx::thread::*;
use crate::ptx::warp::{broadcast, shuffle_xor_f32, sync_warp};
use crate::ptx::wgmma::{self, Accumulators, Element};
use crate::ptx::wide::shuffle;
use crate::reduce::{Best, TileGroups, unroll};
use crate::rows::sum_four;
use crate::work::{Documents, Work, count_part, unit_start};

/// The step of a product behind which the other consumer may begin: what is left keeps the tensor cores busy until
/// its first step.
const PASSED_ON: usize = 5;
/// In a word of eight bytes: the maximum is there, in the other half.
const TOLD: u64 = 1 << 32;
/// The barrier at which the first consumer waits for its turn; the other's follows.
const FIRST_TURN: u32 = 2;
/// Rows that a copy brings of a whole tile's slab.
const BOX_ROWS: u32 = CUT_BOX_ROWS as u32;

/// A block's unit.
struct Unit<'a> {
    /// Its number among those of its tile.
    index: u32,
    tile: u32,
    entry: u32,
    entry_end: u32,
    /// The rows that it has of the document that goes on in the next unit, and of the one that comes from the unit
    /// before and ends in this; none where documents are whole.
    pieces: [Segment; 2],
    whole: Documents<'a>,
}

/// What a block has of an entry's document.
struct Part {
    entry: u32,
    rows: Segment,
    kind: Kind,
}

/// Which part of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All of it.
    Whole,
    /// Some, but not the end.
    GoesOn,
    /// The end alone.
    Ends,
}

impl<'a> Unit<'a> {
    /// The unit of this block.
    ///
    /// # Safety
    /// The launch must have starts of units, one for each block of a tile and one behind them.
    #[inline(always)]
    unsafe fn new(params: &'a ForwardParams) -> Self {
        let mut pieces = [Segment { start: 0, len: 0 }; 2];
        let index = divide(block_idx_x(), params.n_tiles, params.n_tiles_inverse);
        let tile = params.tile_base + block_idx_x() - index * params.n_tiles;
        // SAFETY: the caller's promise.
        unsafe {
            let [entry, start, len, before] = unit_start(params, index);
            let [next, next_start, _, end] = unit_start(params, index + 1);
            let (mut first, mut n_before) = (Some(Segment { start, len }), 0);
            if end != 0 {
                // Neither end of the document may be in the unit.
                let begin = if next == entry { before } else { 0 };
                pieces[0] = Segment { start: next_start + begin, len: end - begin };
            }
            if before != 0 {
                (first, n_before) = (None, 1);
                if next != entry {
                    pieces[1] = Segment { start: start + before, len: len - before };
                }
            }
            let work =
                Work { unit: block_idx_x(), tile, entry: entry + n_before, entry_end: next, first };
            let whole = Documents::new(params, &work);
            Unit { index, tile, entry, entry_end: next, pieces, whole }
        }
    }

    /// The next part.
    ///
    /// # Safety
    /// As [`Unit::new`].
    #[inline(always)]
    unsafe fn next(&mut self) -> Option<Part> {
        let [goes_on, ends] = self.pieces;
        if goes_on.len > 0 {
            self.pieces[0].len = 0;
            return Some(Part { entry: self.entry_end, rows: goes_on, kind: Kind::GoesOn });
        }
        if ends.len > 0 {
            self.pieces[1].len = 0;
            return Some(Part { entry: self.entry, rows: ends, kind: Kind::Ends });
        }
        // SAFETY: the caller's promise.
        let (entry, rows) = unsafe { self.whole.next() }?;
        Some(Part { entry, rows, kind: Kind::Whole })
    }

    /// The unit, with every document that ends in it.
    #[inline(always)]
    fn work(&self) -> Work {
        let Unit { tile, entry, entry_end, .. } = *self;
        Work { unit: block_idx_x(), tile, entry, entry_end, first: None }
    }
}

/// The forward kernel of a row of the variant table, as [`super::forward`].
///
/// # Safety
/// As there; there must be starts of units, and places of pieces behind the counters.
#[inline(always)]
pub unsafe fn forward<K: Kernel, const FIRST: u32, const CONSUMER: u32>(
    params: &ForwardParams,
    maps: Maps,
) {
    const { assert!(K::CONSUMERS == 2 && K::STEPS == 2 * SLAB_STEPS) };
    const { assert!(!K::WINNERS && !K::NORMALIZES && !K::Element::SPLITS) };
    let shared = Shared::new::<K>();
    let thread = thread_idx_x();
    // SAFETY: as there.
    unsafe {
        if thread >= 128 {
            wait_threads(n_threads::<K>());
            claim_registers::<CONSUMER>();
            return consume::<K>(params, &shared, thread - 128);
        }
        let (warp, lane) = (thread / 32, thread % 32);
        let mut queries = QueryTile::NONE;
        if warp == 0 {
            if lane == 0 {
                init_loading::<K>(params, &shared, maps);
            }
            sync_warp();
            arrive_threads(n_threads::<K>());
        } else {
            if warp == 1 && lane == 0 {
                init_storing::<K>(&shared);
            }
            if warp == 3 {
                if lane == 0 {
                    prefetch_map(maps.queries);
                }
                queries = QueryTile::first::<K>(params, lane);
            }
            wait_threads(n_threads::<K>());
        }
        release_registers::<FIRST>();
        // Loading last, as there.
        if warp == 3 {
            return first::load_query::<K>(&shared, maps, queries, lane);
        }
        if warp == 1 {
            return store_sums::<K>(params, &shared, lane);
        }
        if warp == 0 {
            load::<K>(params, &shared, maps, lane);
        }
    }
}

/// Loads document slabs, as [`super::first::load`].
///
/// # Safety
/// As there; the launch must have starts of units.
#[inline(always)]
pub(super) unsafe fn load<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    lane: u32,
) {
    let mut ring = Ring::START;
    // SAFETY: as there.
    unsafe {
        let mut unit = Unit::new(params);
        while let Some(Part { rows: Segment { start, len }, .. }) = unit.next() {
            let mut row = 0;
            while row < len {
                match len - row >= DOCUMENT_TILE as u32 {
                    true => load_boxes::<K>(shared, maps, &mut ring, start + row, lane),
                    false => load_rows::<K>(shared, maps, &mut ring, start + row, len - row, lane),
                }
                row += DOCUMENT_TILE as u32;
            }
        }
    }
}

/// As [`load_rows`], of a whole tile, with fewer copies.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn load_boxes<K: Kernel>(
    shared: &Shared,
    maps: Maps,
    ring: &mut Ring,
    start: u32,
    lane: u32,
) {
    let (slab, part) = (lane % 2, lane / 2);
    // SAFETY: as there.
    unsafe {
        let mut own = 0;
        let mut i = 0;
        while i < 2 {
            barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
            if lane == 0 {
                barrier_expect(shared.full(ring.slot), DOCUMENT_SLAB_BYTES as u32);
            }
            own = if i == slab { ring.slot } else { own };
            *ring = ring.next(shared.stages);
            i += 1;
        }
        if part < DOCUMENT_TILE as u32 / BOX_ROWS {
            copy_tile(
                shared.stage(own) + part * BOX_ROWS * crate::layout::SLAB_BYTES as u32,
                maps.documents,
                slab * K::Element::SLAB_ELEMENTS,
                start + part * BOX_ROWS,
                shared.full(own),
            );
        }
    }
}

/// Works through the block's units, as [`super::consumer::consume`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn consume<K: Kernel>(params: &ForwardParams, shared: &Shared, thread: u32) {
    // SAFETY: every warp is whole here; as there.
    let warp = unsafe { broadcast(thread / 32) };
    let mut consumer = Consumer {
        params,
        shared,
        warp,
        lane: thread % 32,
        n_slabs: K::SLABS as u32,
        ring: Ring::START,
        sums: Ring::START,
        rows: WarpRows::NONE,
        norms: Norms::NONE,
        row_factors: 0,
    };
    // SAFETY: the producer loads what is waited for, in this order; there is one query tile.
    unsafe {
        let mut unit = Unit::new(params);
        consumer.load_rows::<K>(unit.tile);
        barrier_wait(shared.query_full(), 0);
        let mut held = [[0; 4]; 2 * SLAB_STEPS];
        if holds_rows::<K>() {
            // The first turn is the first warpgroup's.
            if warp >= 4 {
                pass_turn(FIRST_TURN);
            }
            held = consumer.hold_rows();
        } else if warp >= 4 {
            // As in `super::consumer::consume`.
            pause(tile_clocks::<K>());
        }
        while let Some(Part { rows, kind, .. }) = unit.next() {
            consumer.part::<K>(&held, rows.len, kind);
        }
    }
}

/// Whether consumers have their query rows in registers, and take turns.
const fn holds_rows<K: Kernel>() -> bool {
    K::FRAGMENTS == 1
}

/// A warp's query rows in registers, in steps of 32 bytes.
type Held = [[u32; 4]; 2 * SLAB_STEPS];

impl Consumer<'_> {
    /// Loads the warp's query rows.
    ///
    /// # Safety
    /// The whole warp; the query tile must be there.
    #[inline(always)]
    unsafe fn hold_rows(&self) -> Held {
        // Lane l gives a row of matrix l / 8: rows 0 to 7 and 8 to 15 of a step's first chunk, then of the other.
        let row = Group::ROWS as u32 * self.warp + self.lane % 16;
        let first = chunk_offset(row, self.lane / 16);
        let mut held = [[0; 4]; 2 * SLAB_STEPS];
        unroll!(STEP in 0..8 => {
            let slab = self.shared.query_slab((STEP / SLAB_STEPS) as u32);
            let address = slab + (first ^ (STEP_BYTES * (STEP % SLAB_STEPS)) as u32);
            // SAFETY: the caller's promise.
            held[STEP] = unsafe { load_matrix_x4(address) };
        });
        held
    }

    /// A document, or a piece of one.
    #[inline(always)]
    unsafe fn part<K: Kernel>(&mut self, held: &Held, len: u32, kind: Kind) {
        let mut best = self.rows.start();
        // The same in all lanes, as the assembler has to know.
        // SAFETY: every warp is whole here; the producer loads these tiles in this order.
        unsafe {
            let len = broadcast(len);
            let whole = len & !(DOCUMENT_TILE as u32 - 1);
            let mut row = 0;
            while row < whole {
                match holds_rows::<K>() {
                    true => self.tile_in_turn::<K, 64, WHOLE>(held, &mut best, row, 0),
                    false => _ = self.tile::<K, 64, WHOLE>(&mut best, row, 0),
                }
                row += DOCUMENT_TILE as u32;
            }
            if row < len {
                match holds_rows::<K>() {
                    true => self.tail_in_turn::<K>(held, &mut best, row, len - row),
                    false => self.tail::<K>(&mut best, row, len - row),
                }
            }
            let [first, second] = self.rows.halves::<K>(&best, self.lane);
            if kind == Kind::Whole {
                self.hand_over::<K>(if len > 0 { first + second } else { 0.0 });
            } else {
                self.hand_over::<K>(first);
                self.hand_over::<K>(second);
            }
        }
    }

    /// As `Consumer::tail`.
    #[inline(always)]
    unsafe fn tail_in_turn<K: Kernel>(
        &mut self,
        held: &Held,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) {
        macro_rules! widths {
            ($($n:literal)*) => {
                $(
                    if has_width(K::TAIL_STEP, K::WINNERS, 2 * $n) && left <= 2 * $n {
                        // SAFETY: the caller's promise.
                        unsafe { self.tile_in_turn::<K, $n, TAIL>(held, best, row, left) };
                        return;
                    }
                )*
            };
        }
        widths!(8 16 24 32 40 48 56 64);
    }

    /// One tile of up to 2 · `N` document tokens against the warpgroup's rows, when it is its turn.
    #[inline(always)]
    unsafe fn tile_in_turn<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        held: &Held,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) where
        [f32; N]: Accumulators,
    {
        let column = (row + 2 * (self.lane % 4)) as i32;
        let group = self.warp / 4;
        // SAFETY: the producer fills the ring's next stages with this tile; both warpgroups meet the same tiles, so that
        // each turn that is waited for is passed on.
        unsafe {
            let columns = Columns {
                valid: [0; 4],
                left,
                column,
                lane: self.lane,
                norms: core::mem::zeroed(),
            };
            let before = *best;
            self.wait_for_tile::<K>();
            take_turn(FIRST_TURN + group);
            let next = self.ring.next(self.shared.stages);
            let b = [self.ring, next].map(|ring| wgmma::descriptor(self.shared.stage(ring.slot)));
            wgmma::fence();
            let mut c = <[f32; N]>::start_held::<K::Element>(held[0], b[0]);
            unroll!(STEP in 0..8 => {
                if STEP != 0 {
                    let b = b[STEP / SLAB_STEPS] + (STEP % SLAB_STEPS) as u32 * wgmma::K_STEP;
                    c = c.add_held::<K::Element>(held[STEP], b);
                }
                if STEP == PASSED_ON {
                    wgmma::commit();
                }
            });
            wgmma::commit();
            let c = c.wait::<1>();
            pass_turn(FIRST_TURN + (1 - group));
            let c = c.wait::<0>();
            self.release(K::SLABS as u32);
            columns.fold::<K, N, KIND>(&mut best[0], &c);
            columns.fold_again::<K, N, KIND>(best, before, [&c; 2]);
        }
    }
}

/// Rows that a lane of the storing warp has, half of a group's: those of one of the two vectors of sums in a slot, and
/// the same eight further on.
const ROWS: usize = Group::ROWS / 2;

/// Stores scores, as [`super::first::store_sums`], and what is found of pieces. Here two lanes have a group.
///
/// # Safety
/// As there; there must be places of pieces behind the counters.
#[inline(always)]
pub(super) unsafe fn store_sums<K: Kernel>(params: &ForwardParams, shared: &Shared, lane: u32) {
    let mut ring = Ring::START;
    // SAFETY: consumers fill a slot per document, two per piece, in this order; the whole warp is here.
    unsafe {
        let mut unit = Unit::new(params);
        let queries = QueryTile::new::<K>(params, unit.tile, lane);
        let groups = TileGroups::new(queries.group, lane);
        while let Some(Part { entry, kind, .. }) = unit.next() {
            let mut sums = take_slot::<K>(shared, &mut ring, lane);
            if kind != Kind::Whole {
                let others = take_slot::<K>(shared, &mut ring, lane);
                if kind == Kind::GoesOn {
                    leave::<K>(params, unit.index, unit.tile, [sums, others], lane);
                    continue;
                }
                let maxima = collect::<K>(params, &unit, entry, [sums, others], lane);
                unroll!(I in 0..4 => {
                    sums[I] = maxima[0][I] + maxima[1][I];
                });
            }
            // As `sum_eight`; the group's lane gets it.
            let sum = sum_four(sums);
            let sum = sum + shuffle_xor_f32::<1>(sum);
            groups.store(params, entry, f32::from_bits(shuffle(sum.to_bits(), 2 * lane)));
        }
        if params.counters != 0 {
            count_part(params, &unit.work(), groups.first_query(), lane);
        }
    }
}

/// What a lane has in the next slot.
///
/// # Safety
/// As [`store_sums`].
#[inline(always)]
unsafe fn take_slot<K: Kernel>(shared: &Shared, ring: &mut Ring, lane: u32) -> [f32; 4] {
    let mut values = [0.0; 4];
    // SAFETY: the caller's promise.
    unsafe {
        barrier_wait(shared.sum_full(ring.slot), ring.parity);
        if lane < 2 * K::GROUPS {
            values = load_shared_f32x4(shared.sums(ring.slot, lane / 2) + 16 * (lane % 2));
        }
        sync_warp();
        barrier_arrive_if(shared.sum_empty(ring.slot), (lane == 0) as u32);
    }
    *ring = ring.next(sum_slots(K::QUERY_TILE) as u32);
    values
}

/// Leaves the maxima of a lane's rows for the unit that has the document's end.
///
/// # Safety
/// As [`store_sums`].
#[inline(always)]
unsafe fn leave<K: Kernel>(
    params: &ForwardParams,
    index: u32,
    tile: u32,
    maxima: [[f32; 4]; 2],
    lane: u32,
) {
    let place = place_of::<K>(params, index, tile, lane);
    if lane < 2 * K::GROUPS {
        unroll!(I in 0..8 => {
            // SAFETY: the caller's promise; a place is its lane's.
            unsafe {
                let word = TOLD | u64::from(maxima[I / 4][I % 4].to_bits());
                store_word(place + 8 * I as u64, word);
            }
        });
    }
}

/// The maxima of a lane's rows over all pieces of an entry's document, of which the unit has the end.
///
/// # Safety
/// As [`store_sums`].
#[inline(always)]
unsafe fn collect<K: Kernel>(
    params: &ForwardParams,
    unit: &Unit,
    entry: u32,
    mut maxima: [[f32; 4]; 2],
    lane: u32,
) -> [[f32; 4]; 2] {
    let mut index = unit.index;
    loop {
        index -= 1;
        let place = place_of::<K>(params, index, unit.tile, lane);
        // SAFETY: the caller's promise; the unit before has a piece, and leaves what it finds. The whole warp is here.
        unsafe {
            if lane < 2 * K::GROUPS {
                // All words at once: one after the other would take as many times as long as memory answers.
                let mut words = [0; ROWS];
                let mut are_told = 0;
                while are_told == 0 {
                    are_told = TOLD;
                    unroll!(I in 0..8 => {
                        words[I] = load_word(place + 8 * I as u64);
                    });
                    unroll!(I in 0..8 => {
                        are_told &= words[I];
                    });
                }
                unroll!(I in 0..8 => {
                    store_word(place + 8 * I as u64, 0);
                    let other = f32::from_bits(words[I] as u32);
                    maxima[I / 4][I % 4] = max_nan(maxima[I / 4][I % 4], other);
                });
            }
            sync_warp();
            let [first, _, _, before] = unit_start(params, index);
            if first != entry || before == 0 {
                return maxima;
            }
        }
    }
}

/// Where a tile's unit leaves the maxima of a lane's rows: a word of eight bytes for each.
#[inline(always)]
fn place_of<K: Kernel>(params: &ForwardParams, index: u32, tile: u32, lane: u32) -> u64 {
    let places = params.draws + u64::from(N_COUNTERS) * 4;
    let unit = index * params.n_tiles + tile - params.tile_base;
    let row = unit * K::QUERY_TILE as u32 + ROWS as u32 * lane;
    places + u64::from(row) * 8
}
