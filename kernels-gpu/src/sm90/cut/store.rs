//! The storing warp: scores, and what blocks tell each other of documents that they share.

use super::units::{Kind, Part, Unit};
use crate::layout::sm90::*;
use crate::params::{ForwardParams, N_COUNTERS};
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::math::max_nan;
use crate::ptx::memory::{load_shared_f32x4, load_word, store_word};
use crate::ptx::warp::{shuffle_xor_f32, sync_warp};
use crate::ptx::wide::shuffle;
use crate::reduce::{TileGroups, unroll};
use crate::rows::sum_four;
use crate::sm90::first::QueryTile;
use crate::sm90::{Kernel, Ring, Shared};
use crate::work::{count_part, unit_start};

/// In a word of eight bytes: the maximum is there, in the other half.
pub(in crate::sm90) const TOLD: u64 = 1 << 32;

/// Stores scores, as [`crate::sm90::first::store_sums`], and what is found of pieces. Here two lanes have a group.
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
                    leave::<K, 2>(params, unit.index, unit.tile, 0, [sums, others], lane);
                    continue;
                }
                let maxima = collect::<K, 2>(params, &unit, entry, 0, [sums, others], lane);
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

/// Leaves the maxima of a lane's `4 N` rows, of those that lanes have from `first_row` of the tile on, for the unit
/// that has the document's end.
///
/// # Safety
/// As [`store_sums`].
#[inline(always)]
pub(in crate::sm90) unsafe fn leave<K: Kernel, const N: usize>(
    params: &ForwardParams,
    index: u32,
    tile: u32,
    first_row: u32,
    maxima: [[f32; 4]; N],
    lane: u32,
) {
    let place = place_of::<K, N>(params, index, tile, first_row, lane);
    if lane < 2 * K::GROUPS {
        unroll!(I in 0..8 => {
            if I < 4 * N {
                // SAFETY: the caller's promise; a place is its lane's.
                unsafe {
                    let word = TOLD | u64::from(maxima[I / 4][I % 4].to_bits());
                    store_word(place + 8 * I as u64, word);
                }
            }
        });
    }
}

/// The maxima of a lane's rows over all pieces of an entry's document, of which the unit has the end.
///
/// # Safety
/// As [`store_sums`].
#[inline(always)]
pub(in crate::sm90) unsafe fn collect<K: Kernel, const N: usize>(
    params: &ForwardParams,
    unit: &Unit,
    entry: u32,
    first_row: u32,
    mut maxima: [[f32; 4]; N],
    lane: u32,
) -> [[f32; 4]; N] {
    let mut index = unit.index;
    loop {
        index -= 1;
        let place = place_of::<K, N>(params, index, unit.tile, first_row, lane);
        // SAFETY: the caller's promise; the unit before has a piece, and leaves what it finds. The whole warp is here.
        unsafe {
            if lane < 2 * K::GROUPS {
                // All words at once: one after the other would take as many times as long as memory answers.
                let mut words = [[0; 4]; N];
                let mut are_told = 0;
                while are_told == 0 {
                    are_told = TOLD;
                    unroll!(I in 0..8 => {
                        if I < 4 * N {
                            words[I / 4][I % 4] = load_word(place + 8 * I as u64);
                        }
                    });
                    unroll!(I in 0..8 => {
                        if I < 4 * N {
                            are_told &= words[I / 4][I % 4];
                        }
                    });
                }
                unroll!(I in 0..8 => {
                    if I < 4 * N {
                        store_word(place + 8 * I as u64, 0);
                        let other = f32::from_bits(words[I / 4][I % 4] as u32);
                        maxima[I / 4][I % 4] = max_nan(maxima[I / 4][I % 4], other);
                    }
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
fn place_of<K: Kernel, const N: usize>(
    params: &ForwardParams,
    index: u32,
    tile: u32,
    first_row: u32,
    lane: u32,
) -> u64 {
    let places = params.draws + u64::from(N_COUNTERS) * 4;
    let unit = index * params.n_tiles + tile - params.tile_base;
    let row = unit * K::QUERY_TILE as u32 + first_row + 4 * N as u32 * lane;
    places + u64::from(row) * 8
}
