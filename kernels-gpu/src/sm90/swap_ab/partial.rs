//! Stream-K for swap-AB, as [`crate::sm90::stream_k`] has it for the base kernel.
//!
//! Nothing is different for consumers: a partial document is a document to them. Both producer
//! warps walk the parts of the unit, and so does the storing warp, which publishes the maxima of a
//! partial that continues in the next unit, and receives others' for a document that ends.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Segment};
use crate::primitives::accumulator::TileGroups;
use crate::primitives::row_scales::RowScales;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::primitives::work_tile::Work;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::math::max_nan;
use crate::ptx::shared::load_shared_f32;
use crate::ptx::thread::{block_idx_here, lane_here};
use crate::ptx::warp::sync_warp;
use crate::sm90::kernel::{Kernel, Maps};
use crate::sm90::producers::QueryTile;
use crate::sm90::reduction::{collect, publish};
use crate::sm90::smem::Shared;
use crate::sm90::swap_ab::epilogue::{
    load_row_scales, most_of_warps, scale_rows, store_group_sums,
};
use crate::sm90::swap_ab::kernel::{HAS_TOKENS, ROWS};
use crate::sm90::swap_ab::producer::Stages;
use crate::sm90::units::{Kind, Part, Unit};

/// Both pairs have some of a partial of more products than this many for each document that ends in
/// the unit: whole documents make up for a shorter one.
const SHARED_PRODUCTS: u32 = 4;

/// Chooses the pair that has the next part: the one that has had fewer products, or both, where a
/// part is long, or the last.
struct PairScheduler {
    /// Products that the first pair has had more of.
    lead: i32,
}

impl PairScheduler {
    /// Divides the unit's next part between the pairs. Warps that go through the parts do so in the
    /// same order, and agree.
    #[inline(always)]
    fn next(&mut self, unit: &Unit, part: &Part) -> [Option<Segment>; PAIRS] {
        let Segment { start, len } = part.rows;
        let n_products = len.div_ceil(ROWS);
        let is_long = match part.kind {
            Kind::Whole => unit.is_last(part),
            _ => n_products > SHARED_PRODUCTS * unit.n_ends(),
        };
        let n_products = n_products as i32;
        if is_long && n_products > self.lead.abs() + 1 {
            let n_first = (n_products - self.lead) / 2;
            self.lead += 2 * n_first - n_products;
            let first = n_first as u32 * ROWS;
            let parts = [(start, first), (start + first, len - first)];
            return parts.map(|(start, len)| Some(Segment { start, len }));
        }
        if self.lead <= 0 {
            self.lead += n_products;
            [Some(part.rows), None]
        } else {
            self.lead -= n_products;
            [None, Some(part.rows)]
        }
    }
}

/// Loads a pair's parts.
///
/// # Safety
/// As [`crate::sm90::swap_ab::producer::load`]; there must be starts of units.
#[inline(always)]
pub(super) unsafe fn load<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    row_scales: RowScales,
    pair: u32,
    lane: u32,
) {
    let mut stages = Stages::new(params, shared, maps, row_scales, lane, pair);
    let mut scheduler = PairScheduler { lead: 0 };
    // SAFETY: the caller's promise.
    unsafe {
        let mut unit = Unit::new(params);
        stages.set_tile(unit.tile);
        while let Some(part) = unit.next() {
            let [first, second] = scheduler.next(&unit, &part);
            if let Some(rows) = if pair == 0 { first } else { second } {
                stages.load::<K>(rows, 0);
                stages.load_others::<K>(rows);
            }
        }
        stages.flush::<K>();
        stages.end::<K>();
    }
}

/// A part that some pair has, in few registers.
#[derive(Clone, Copy)]
struct InFlight {
    entry: u32,
    /// Bits of the pairs, and the kind of part; 0: there is none.
    what: u32,
}

/// The first pair, and the second.
const FIRST: u32 = 1;
const SECOND: u32 = 2;
/// The document continues in the next unit, or comes from the one before.
const CONTINUES: u32 = 4;
const ENDS: u32 = 8;

impl InFlight {
    const NONE: InFlight = InFlight { entry: 0, what: 0 };

    #[inline(always)]
    fn new(part: &Part, [first, second]: [Option<Segment>; PAIRS]) -> InFlight {
        let kind = match part.kind {
            Kind::Whole => 0,
            Kind::Continues => CONTINUES,
            Kind::Ends => ENDS,
        };
        let bits =
            if first.is_some() { FIRST } else { 0 } | if second.is_some() { SECOND } else { 0 };
        InFlight { entry: part.entry, what: bits | kind }
    }

    #[inline(always)]
    fn is(&self, what: u32) -> bool {
        self.what & what != 0
    }
}

/// The parts of the unit in the order in which pairs end them: one that another one of its pair
/// follows, and then the last ones.
struct Ended<'a> {
    unit: Unit<'a>,
    scheduler: PairScheduler,
    /// The last part of each pair.
    in_flight: [InFlight; PAIRS],
    /// The part behind those.
    next: InFlight,
}

impl Ended<'_> {
    /// The next part.
    ///
    /// # Safety
    /// As [`Unit::next`].
    #[inline(always)]
    unsafe fn next(&mut self) -> Option<InFlight> {
        loop {
            if self.next.what == 0 {
                // SAFETY: the caller's promise.
                let Some(part) = (unsafe { self.unit.next() }) else { break };
                self.next = InFlight::new(&part, self.scheduler.next(&self.unit, &part));
            }
            let [first, second] = self.in_flight;
            if self.next.is(FIRST) && first.what != 0 {
                return Some(self.end(first));
            }
            if self.next.is(SECOND) && second.what != 0 {
                return Some(self.end(second));
            }
            let [first, second] = &mut self.in_flight;
            if self.next.is(FIRST) {
                *first = self.next;
            }
            if self.next.is(SECOND) {
                *second = self.next;
            }
            self.next = InFlight::NONE;
        }
        let [first, second] = self.in_flight;
        if first.what != 0 && (second.what == 0 || self.scheduler.lead <= 0) {
            return Some(self.end(first));
        }
        if second.what != 0 {
            return Some(self.end(second));
        }
        None
    }

    /// Ends a part that is in flight, for all pairs that have it. The partial that the next unit
    /// waits for comes before anything else: else that unit would wait until this one has received
    /// its own, and so on through all units.
    #[inline(always)]
    fn end(&mut self, part: InFlight) -> InFlight {
        let [first, second] = self.in_flight;
        let part = if first.is(CONTINUES) {
            first
        } else if second.is(CONTINUES) {
            second
        } else {
            part
        };
        let [first, second] = &mut self.in_flight;
        if part.is(FIRST) {
            *first = InFlight::NONE;
        }
        if part.is(SECOND) {
            *second = InFlight::NONE;
        }
        part
    }
}

/// End of a CTA: counts its unit, and the CTA that counts the last one of a document's query tiles
/// stores the scores. `n` is 1, or 0 for another warp, which runs through it with [`one_entry`]
/// while the first products are waited for: the code would else come out of memory when all else is
/// done.
///
/// # Safety
/// As [`work_tile::count_unit`].
#[inline(always)]
pub(super) unsafe fn end<K: Kernel>(params: &ForwardParams, work: &Work, n: u32) {
    if params.counters != 0 {
        // SAFETY: the caller's promise. The query is looked up again: there is no register to keep
        // it in.
        unsafe {
            let query =
                work_tile::query(params, work_tile::tile(params, block_idx_here()), K::GROUPS);
            work_tile::count_unit(params, work, query, n, lane_here());
        }
    }
}

/// The entry that the block's unit begins with.
///
/// # Safety
/// As [`Unit::new`].
#[inline(always)]
pub(super) unsafe fn one_entry(params: &ForwardParams) -> Work {
    // SAFETY: the caller's promise.
    let entry = unsafe { Unit::first_entry(params) };
    Work { unit: block_idx_here(), tile: 0, entry, entry_end: entry + 1, first: None }
}

/// Stores scores, or partial sums, as [`crate::sm90::swap_ab::epilogue::store_maxima`], and
/// publishes and receives partial maxima; gives what the sums are of, for [`end`].
///
/// # Safety
/// As there; there must be places of partials behind the tickets.
#[inline(always)]
pub(super) unsafe fn store<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    row_scales: RowScales,
    lane: u32,
) -> Work {
    const { assert!(PAIR_SLOTS == 2) };
    // How many of each pair's parts have been stored, four bits for each pair: the lowest is the
    // slot of the next one.
    let mut n_stored: u32 = 0;
    // SAFETY: each pair fills one slot per part of its own, in this order; the whole warp is here.
    unsafe {
        let unit = Unit::new(params);
        let tile = unit.tile;
        let queries = QueryTile::new::<K>(params, tile, lane);
        let groups = TileGroups::new(queries.group, lane);
        let valid = load_row_scales::<K>(params, shared, row_scales, tile, lane);
        let (scheduler, in_flight) = (PairScheduler { lead: 0 }, [InFlight::NONE; PAIRS]);
        let mut ended = Ended { unit, scheduler, in_flight, next: InFlight::NONE };
        while let Some(part) = ended.next() {
            let entry = part.entry;
            let lane = lane_here();
            let by = [part.is(FIRST), part.is(SECOND)];
            let slots = [n_stored % 2, 2 + (n_stored >> 4) % 2];
            unroll!(PAIR in 0..2 => {
                if by[PAIR] {
                    barrier_wait(shared.maxima_full(slots[PAIR]), n_stored >> (4 * PAIR + 1) & 1);
                    n_stored += 1 << (4 * PAIR);
                }
            });
            // Bits of one pair's number would otherwise reach the other's.
            n_stored &= 0x33;
            let slot = if by[0] { slots[0] } else { slots[1] };
            let sums = shared.pair_sums(slot);
            let mut half = 0;
            while half < 2 {
                let mut most = most_of_warps(shared, slot, half, lane);
                if by[0] & by[1] {
                    let other = most_of_warps(shared, slots[1], half, lane);
                    unroll!(I in 0..4 => { most[I] = max_nan(most[I], other[I]); });
                }
                let (unit, first_row) = (&ended.unit, 128 * half);
                if part.is(CONTINUES) {
                    publish::<K, 1>(params, unit.index, unit.tile, first_row, [most], lane);
                } else {
                    if part.is(ENDS) {
                        [most] = collect::<K, 1>(params, unit, entry, first_row, [most], lane);
                    }
                    most = scale_rows(shared, valid, half, most, lane);
                    store_group_sums(sums, half, most, lane);
                }
                half += 1;
            }
            sync_warp();
            let sum = load_shared_f32(sums + 4 * (lane % K::GROUPS));
            // Partials have some, and what both pairs have.
            let has_tokens = load_shared_f32(sums + HAS_TOKENS) != 0.0;
            sync_warp();
            unroll!(PAIR in 0..2 => {
                let reads = (by[PAIR] & (lane == 0)) as u32;
                barrier_arrive_if(shared.maxima_empty(slots[PAIR]), reads);
            });
            if !part.is(CONTINUES) {
                groups.store(params, entry, if has_tokens { sum } else { 0.0 });
            }
        }
        ended.unit.work()
    }
}
