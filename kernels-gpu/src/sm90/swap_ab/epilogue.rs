//! The epilogue, in the producer warpgroup: query rows' scales, maxima of warps, sums, scores.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::accumulator::TileGroups;
use crate::primitives::documents::{Documents, TokenPlace};
use crate::primitives::row_maxima::sum_eight;
use crate::primitives::row_scales::RowScales;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::primitives::work_tile::{Work, row_is_valid};
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::global::store_u32;
use crate::ptx::math::max_nan;
use crate::ptx::shared::{load_shared_f32, load_shared_f32x4, store_shared_f32};
use crate::ptx::thread::lane_here;
use crate::ptx::warp::{shuffle_xor_f32, sync_warp};
use crate::sm90::kernel::Kernel;
use crate::sm90::producers::QueryTile;
use crate::sm90::scheduler::ReceivedUnits;
use crate::sm90::smem::Shared;
use crate::sm90::swap_ab::kernel::HAS_TOKENS;
use crate::sm90::swap_ab::tile_scheduler::PairScheduler;

/// In place of an entry: there is none.
const NONE: u32 = u32::MAX;

/// Takes the maxima of each document's query rows over those of its warps, adds the groups'
/// sums by query and stores scores or partial sums, and token scores.
///
/// A lane has four rows of each half of a tile: those from [`first_row`] on of group `8 half + lane
/// / 4`.
///
/// # Safety
/// As [`crate::sm90::producers::load`].
#[inline(always)]
pub(super) unsafe fn store_maxima<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    row_scales: RowScales,
    lane: u32,
) {
    // How many of each pair's documents have been stored: the lowest bit is the slot of the next
    // one.
    let mut n_stored = [0; PAIRS];
    const { assert!(PAIR_SLOTS == 2) };
    let mut tile = u32::MAX;
    let mut units = ReceivedUnits::START;
    let mut scheduler = PairScheduler::new(params);
    // SAFETY: each pair fills one slot per document of its own, in this order; the whole warp is
    // here.
    unsafe {
        let mut groups = TileGroups::new(Group::NONE, lane);
        let mut valid = 0;
        while let Some(work) = units.next(shared, lane) {
            if work.tile != tile {
                tile = work.tile;
                let queries = QueryTile::new::<K>(params, tile, lane);
                groups = TileGroups::new(queries.group, lane);
                valid = load_row_scales::<K>(params, shared, row_scales, tile, lane);
            }
            let mut ended = Ended::new(Documents::new(params, &work));
            while let Some((entry, by)) = ended.next(&mut scheduler, &work) {
                // There are no registers for what follows from it.
                let lane = lane_here();
                let slots = [n_stored[0] % 2, 2 + n_stored[1] % 2];
                unroll!(PAIR in 0..2 => {
                    if by[PAIR] {
                        barrier_wait(shared.maxima_full(slots[PAIR]), n_stored[PAIR] / 2 % 2);
                        n_stored[PAIR] += 1;
                    }
                });
                let are_both = by[0] & by[1];
                let slot = if by[0] { slots[0] } else { slots[1] };
                let sums = shared.pair_sums(slot);
                let mut has_tokens = load_shared_f32(sums + HAS_TOKENS) != 0.0;
                if are_both {
                    has_tokens |= load_shared_f32(shared.pair_sums(slots[1]) + HAS_TOKENS) != 0.0;
                }
                let mut half = 0;
                while half < 2 {
                    let mut most = most_of_warps(shared, slot, half, lane);
                    if are_both {
                        let other = most_of_warps(shared, slots[1], half, lane);
                        unroll!(I in 0..4 => { most[I] = max_nan(most[I], other[I]); });
                    }
                    most = scale_rows(shared, valid, half, most, lane);
                    if has_tokens && params.token_scores != 0 {
                        let group = work_tile::group(params, own_group::<K>(tile, half, lane));
                        store_tokens(params, group, entry, valid >> (4 * half), most, lane);
                    }
                    store_group_sums(sums, half, most, lane);
                    half += 1;
                }
                sync_warp();
                let sum = load_shared_f32(sums + 4 * (lane % K::GROUPS));
                sync_warp();
                unroll!(PAIR in 0..2 => {
                    let reads = (by[PAIR] & (lane == 0)) as u32;
                    barrier_arrive_if(shared.maxima_empty(slots[PAIR]), reads);
                });
                groups.store(params, entry, if has_tokens { sum } else { 0.0 });
            }
            if params.counters != 0 {
                work_tile::count_part(params, &work, groups.first_query(), lane);
            }
        }
    }
}

/// The similarities of the lane's rows of a half of the tile, of their maxima; 0 of rows that are
/// no query tokens.
///
/// # Safety
/// One whole warp, behind [`load_row_scales`], which says what is `valid`.
#[inline(always)]
pub(super) unsafe fn scale_rows(
    shared: &Shared,
    valid: u32,
    half: u32,
    mut most: [f32; 4],
    lane: u32,
) -> [f32; 4] {
    // SAFETY: the caller's promise.
    let scales = unsafe { load_shared_f32x4(shared.row_scales(half) + 16 * lane) };
    unroll!(I in 0..4 => {
        let is_row = valid >> (4 * half + I as u32) & 1 != 0;
        most[I] = if is_row { most[I] * scales[I] } else { 0.0 };
    });
    most
}

/// Stores the sums of a half's groups in a slot: rows 8 apart, then neighbours, the order of all
/// kernels ([`crate::primitives::row_maxima`]).
///
/// # Safety
/// One whole warp; the slot's sums must be free.
#[inline(always)]
pub(super) unsafe fn store_group_sums(sums: u32, half: u32, mut most: [f32; 4], lane: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        unroll!(I in 0..4 => { most[I] += shuffle_xor_f32::<2>(most[I]); });
        let mut other = most;
        unroll!(I in 0..4 => { other[I] = shuffle_xor_f32::<1>(most[I]); });
        if lane.is_multiple_of(4) {
            store_shared_f32(sums + 4 * (8 * half + lane / 4), sum_eight(most, other));
        }
    }
}

/// The documents of a unit in the order in which pairs end them: one that another one of its pair
/// follows, and then the unit's last ones.
struct Ended<'a> {
    documents: Documents<'a>,
    /// The last entry of each pair.
    in_flight: [u32; PAIRS],
    /// Whether both have some of the unit's last one.
    share_last: bool,
}

impl<'a> Ended<'a> {
    #[inline(always)]
    fn new(documents: Documents<'a>) -> Self {
        Ended { documents, in_flight: [NONE; PAIRS], share_last: false }
    }

    /// The next entry, and which pairs have it.
    ///
    /// # Safety
    /// One whole warp; the documents must be those of the unit.
    #[inline(always)]
    unsafe fn next(
        &mut self,
        scheduler: &mut PairScheduler,
        work: &Work,
    ) -> Option<(u32, [bool; PAIRS])> {
        // SAFETY: the caller's promise.
        unsafe {
            while let Some((entry, document)) = self.documents.next() {
                let [first, second] = scheduler.next(work, entry, document);
                let is_first = first.is_some();
                if is_first && second.is_some() {
                    self.share_last = true;
                    continue;
                }
                let [a, b] = self.in_flight;
                let ended = if is_first { a } else { b };
                self.in_flight = if is_first { [entry, b] } else { [a, entry] };
                if ended != NONE {
                    return Some((ended, [is_first, !is_first]));
                }
            }
        }
        let [first, second] = self.in_flight;
        if first != NONE && (second == NONE || scheduler.pair() == 0) {
            self.in_flight = [NONE, second];
            return Some((first, [true, false]));
        }
        if second != NONE {
            self.in_flight = [first, NONE];
            return Some((second, [false, true]));
        }
        let share_last = self.share_last;
        self.share_last = false;
        share_last.then_some((work.entry_end - 1, [true; PAIRS]))
    }
}

/// The lane's first row of its groups.
#[inline(always)]
fn first_row(lane: u32) -> u32 {
    4 * (lane % 4)
}

/// The lane's group of a half of a tile.
#[inline(always)]
fn own_group<K: Kernel>(tile: u32, half: u32, lane: u32) -> u32 {
    tile * K::GROUPS + 8 * half + lane / 4
}

/// Keeps the scales of the lane's rows of a new tile, times their weights: token scores are not
/// stored where there are any ([`ForwardParams::query_weights`]). Says which of the rows are query
/// tokens, four bits for each half.
///
/// # Safety
/// The tile must be of this launch.
#[inline(always)]
pub(super) unsafe fn load_row_scales<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    row_scales: RowScales,
    tile: u32,
    lane: u32,
) -> u32 {
    let mut valid = 0;
    let mut half = 0;
    while half < 2 {
        // SAFETY: the tile has the group; only rows of it are looked up.
        unsafe {
            let group = work_tile::group(params, own_group::<K>(tile, half, lane));
            unroll!(I in 0..4 => {
                let row = first_row(lane) + I as u32;
                if row < group.n_rows() {
                    let is_row = row_is_valid(&params.queries, group.start + row);
                    valid |= u32::from(is_row) << (4 * half + I as u32);
                    let place = shared.row_scales(half) + 16 * lane + 4 * I as u32;
                    let weight = work_tile::load_weight(params.query_weights, group.start + row);
                    store_shared_f32(place, row_scales.query(group, row) * weight);
                }
            });
        }
        half += 1;
    }
    valid
}

/// The largest that the four warps of a half have stored in a slot of each of the lane's rows.
///
/// # Safety
/// They must have stored them.
#[inline(always)]
pub(super) unsafe fn most_of_warps(shared: &Shared, slot: u32, half: u32, lane: u32) -> [f32; 4] {
    let place = shared.maxima(slot, 4 * half) + 16 * lane;
    // SAFETY: the caller's promise.
    let of_warp = |warp: usize| unsafe { load_shared_f32x4(place + (warp * MAXIMA_BYTES) as u32) };
    let mut most = of_warp(0);
    unroll!(WARP in 0..4 => {
        if WARP != 0 {
            let other = of_warp(WARP);
            unroll!(I in 0..4 => { most[I] = max_nan(most[I], other[I]); });
        }
    });
    most
}

/// Stores token scores of the lane's rows of a group, those that are query tokens.
///
/// # Safety
/// The entry must belong to the group's query; token scores must be stored.
#[inline(always)]
unsafe fn store_tokens(
    params: &ForwardParams,
    group: Group,
    entry: u32,
    valid: u32,
    scores: [f32; 4],
    lane: u32,
) {
    if valid & 15 == 0 {
        return;
    }
    // SAFETY: the caller's promise; each row has one owner.
    unsafe {
        let index = TokenPlace::new(params, group).index(params, entry);
        let place = params.token_scores + (index + u64::from(first_row(lane))) * 4;
        unroll!(I in 0..4 => {
            if valid >> I & 1 != 0 {
                store_u32(place + 4 * I as u64, scores[I].to_bits());
            }
        });
    }
}
