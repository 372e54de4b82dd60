//! Stream-K for swap-AB, as [`crate::sm90::stream_k`] has it for the base kernel.
//!
//! Nothing is different for consumers: a partial document is a document to them. Both producer
//! warps walk the parts of the unit, and so does the storing warp, which publishes the maxima of a
//! partial that continues in the next unit, and receives others' for a document that ends.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Segment};
use crate::primitives::accumulator::TileGroups;
use crate::primitives::row_scales::Norms;
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
use crate::sm90::reduction::{collect, leave};
use crate::sm90::smem::Shared;
use crate::sm90::stream_k::units::{Kind, Part, Unit};
use crate::sm90::swap_ab::epilogue::{leave_sums, most_of_warps, scale_rows, take_rows};
use crate::sm90::swap_ab::kernel::{HAS_TOKENS, ROWS};
use crate::sm90::swap_ab::producer::Stages;

/// Both teams have some of a piece of more products than this many for each document that ends in
/// the unit: whole documents make up for a shorter one.
const SHARED_PRODUCTS: u32 = 4;

/// Which team has the next part: the one that has had fewer products, or both, where a part is
/// long, or the last.
struct Turns {
    /// Products that the first team has had more of.
    ahead: i32,
}

impl Turns {
    /// What each team has of the unit's next part. Warps that go through the parts do so in the
    /// same order, and agree.
    #[inline(always)]
    fn next(&mut self, unit: &Unit, part: &Part) -> [Option<Segment>; TEAMS] {
        let Segment { start, len } = part.rows;
        let n_products = len.div_ceil(ROWS);
        let is_long = match part.kind {
            Kind::Whole => unit.is_last(part),
            _ => n_products > SHARED_PRODUCTS * unit.n_ends(),
        };
        let n_products = n_products as i32;
        if is_long && n_products > self.ahead.abs() + 1 {
            let n_first = (n_products - self.ahead) / 2;
            self.ahead += 2 * n_first - n_products;
            let first = n_first as u32 * ROWS;
            let parts = [(start, first), (start + first, len - first)];
            return parts.map(|(start, len)| Some(Segment { start, len }));
        }
        if self.ahead <= 0 {
            self.ahead += n_products;
            [Some(part.rows), None]
        } else {
            self.ahead -= n_products;
            [None, Some(part.rows)]
        }
    }
}

/// Loads a team's parts.
///
/// # Safety
/// As [`crate::sm90::swap_ab::producer::load`]; there must be starts of units.
#[inline(always)]
pub(super) unsafe fn load<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    norms: Norms,
    team: u32,
    lane: u32,
) {
    let mut stages = Stages::new(params, shared, maps, norms, lane, team);
    let mut turns = Turns { ahead: 0 };
    // SAFETY: the caller's promise.
    unsafe {
        let mut unit = Unit::new(params);
        stages.take(unit.tile);
        while let Some(part) = unit.next() {
            let [first, second] = turns.next(&unit, &part);
            if let Some(rows) = if team == 0 { first } else { second } {
                stages.load::<K>(rows, 0);
                stages.load_others::<K>(rows);
            }
        }
        stages.flush::<K>();
        stages.end::<K>();
    }
}

/// A part that some team has, in few registers.
#[derive(Clone, Copy)]
struct UnderWay {
    entry: u32,
    /// Which teams, a bit for each, and what kind of part; 0: there is none.
    what: u32,
}

/// The first team, and the second.
const FIRST: u32 = 1;
const SECOND: u32 = 2;
/// The document continues in the next unit, or comes from the one before.
const GOES_ON: u32 = 4;
const ENDS: u32 = 8;

impl UnderWay {
    const NONE: UnderWay = UnderWay { entry: 0, what: 0 };

    #[inline(always)]
    fn new(part: &Part, [first, second]: [Option<Segment>; TEAMS]) -> UnderWay {
        let kind = match part.kind {
            Kind::Whole => 0,
            Kind::GoesOn => GOES_ON,
            Kind::Ends => ENDS,
        };
        let teams =
            if first.is_some() { FIRST } else { 0 } | if second.is_some() { SECOND } else { 0 };
        UnderWay { entry: part.entry, what: teams | kind }
    }

    #[inline(always)]
    fn is(&self, what: u32) -> bool {
        self.what & what != 0
    }
}

/// The parts of the unit in the order in which teams end them: one that another one of its team
/// follows, and what is left behind the last.
struct Ended<'a> {
    unit: Unit<'a>,
    turns: Turns,
    /// The last part of each team.
    under_way: [UnderWay; TEAMS],
    /// The part behind those.
    next: UnderWay,
}

impl Ended<'_> {
    /// The next part.
    ///
    /// # Safety
    /// As [`Unit::next`].
    #[inline(always)]
    unsafe fn next(&mut self) -> Option<UnderWay> {
        loop {
            if self.next.what == 0 {
                // SAFETY: the caller's promise.
                let Some(part) = (unsafe { self.unit.next() }) else { break };
                self.next = UnderWay::new(&part, self.turns.next(&self.unit, &part));
            }
            let [first, second] = self.under_way;
            if self.next.is(FIRST) && first.what != 0 {
                return Some(self.end(first));
            }
            if self.next.is(SECOND) && second.what != 0 {
                return Some(self.end(second));
            }
            let [first, second] = &mut self.under_way;
            if self.next.is(FIRST) {
                *first = self.next;
            }
            if self.next.is(SECOND) {
                *second = self.next;
            }
            self.next = UnderWay::NONE;
        }
        let [first, second] = self.under_way;
        if first.what != 0 && (second.what == 0 || self.turns.ahead <= 0) {
            return Some(self.end(first));
        }
        if second.what != 0 {
            return Some(self.end(second));
        }
        None
    }

    /// What is under way has ended, for all teams that have it. What the next unit waits for is
    /// left before anything else: else it would wait until this unit has found what it waits for
    /// itself, and so on through all units.
    #[inline(always)]
    fn end(&mut self, part: UnderWay) -> UnderWay {
        let [first, second] = self.under_way;
        let part = if first.is(GOES_ON) {
            first
        } else if second.is(GOES_ON) {
            second
        } else {
            part
        };
        let [first, second] = &mut self.under_way;
        if part.is(FIRST) {
            *first = UnderWay::NONE;
        }
        if part.is(SECOND) {
            *second = UnderWay::NONE;
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

/// Stores scores, or partial sums, as [`crate::sm90::swap_ab::epilogue::store_maxima`], and what is
/// found of pieces; gives what the sums are of, for [`end`].
///
/// # Safety
/// As there; there must be places of pieces behind the counters.
#[inline(always)]
pub(super) unsafe fn store<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    lane: u32,
) -> Work {
    const { assert!(TEAM_SLOTS == 2) };
    // How many of each team's parts have been stored, four bits for each team: the lowest is the
    // slot of the next one.
    let mut n_stored: u32 = 0;
    // SAFETY: each team fills one slot per part of its own, in this order; the whole warp is here.
    unsafe {
        let unit = Unit::new(params);
        let tile = unit.tile;
        let queries = QueryTile::new::<K>(params, tile, lane);
        let groups = TileGroups::new(queries.group, lane);
        let valid = take_rows::<K>(params, shared, norms, tile, lane);
        let (turns, under_way) = (Turns { ahead: 0 }, [UnderWay::NONE; TEAMS]);
        let mut ended = Ended { unit, turns, under_way, next: UnderWay::NONE };
        while let Some(part) = ended.next() {
            let entry = part.entry;
            let lane = lane_here();
            let by = [part.is(FIRST), part.is(SECOND)];
            let slots = [n_stored % 2, 2 + (n_stored >> 4) % 2];
            unroll!(TEAM in 0..2 => {
                if by[TEAM] {
                    barrier_wait(shared.found(slots[TEAM]), n_stored >> (4 * TEAM + 1) & 1);
                    n_stored += 1 << (4 * TEAM);
                }
            });
            // Bits of one pair's number would otherwise reach the other's.
            n_stored &= 0x33;
            let slot = if by[0] { slots[0] } else { slots[1] };
            let sums = shared.team_sums(slot);
            let mut half = 0;
            while half < 2 {
                let mut most = most_of_warps(shared, slot, half, lane);
                if by[0] & by[1] {
                    let other = most_of_warps(shared, slots[1], half, lane);
                    unroll!(I in 0..4 => { most[I] = max_nan(most[I], other[I]); });
                }
                let (unit, first_row) = (&ended.unit, 128 * half);
                if part.is(GOES_ON) {
                    leave::<K, 1>(params, unit.index, unit.tile, first_row, [most], lane);
                } else {
                    if part.is(ENDS) {
                        [most] = collect::<K, 1>(params, unit, entry, first_row, [most], lane);
                    }
                    most = scale_rows(shared, valid, half, most, lane);
                    leave_sums(sums, half, most, lane);
                }
                half += 1;
            }
            sync_warp();
            let sum = load_shared_f32(sums + 4 * (lane % K::GROUPS));
            // Pieces have some, and what both teams have.
            let has_tokens = load_shared_f32(sums + HAS_TOKENS) != 0.0;
            sync_warp();
            unroll!(TEAM in 0..2 => {
                barrier_arrive_if(shared.read(slots[TEAM]), (by[TEAM] & (lane == 0)) as u32);
            });
            if !part.is(GOES_ON) {
                groups.store(params, entry, if has_tokens { sum } else { 0.0 });
            }
        }
        ended.unit.work()
    }
}
