//! Reduction of partial row maxima across CTAs, for documents that span several (Stream-K).

use crate::abi::params::{ForwardParams, N_COUNTERS};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::unit_start;
use crate::ptx::global::{load_word, store_word};
use crate::ptx::math::max_nan;
use crate::ptx::warp::sync_warp;
use crate::sm90::kernel::Kernel;
use crate::sm90::units::Unit;

/// Bit of a word of eight bytes that says that the maximum is there, in the other half.
pub(in crate::sm90) const PUBLISHED: u64 = 1 << 32;

/// Publishes the maxima of a lane's `4 N` rows, of those that lanes have from `first_row` of the
/// tile on, for the unit that has the document's end.
///
/// # Safety
/// As [`crate::sm90::stream_k`].
#[inline(always)]
pub(in crate::sm90) unsafe fn publish<K: Kernel, const N: usize>(
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
                    let word = PUBLISHED | u64::from(maxima[I / 4][I % 4].to_bits());
                    store_word(place + 8 * I as u64, word);
                }
            }
        });
    }
}

/// The maxima of a lane's rows over all parts of an entry's document, of which the unit has the
/// end.
///
/// # Safety
/// As [`crate::sm90::stream_k`].
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
        // SAFETY: the caller's promise; the unit before has a partial, and publishes it. The whole
        // warp is here.
        unsafe {
            if lane < 2 * K::GROUPS {
                // All words at once: one after the other would take as many times as long as memory
                // answers.
                let mut words = [[0; 4]; N];
                let mut are_published = 0;
                while are_published == 0 {
                    are_published = PUBLISHED;
                    unroll!(I in 0..8 => {
                        if I < 4 * N {
                            words[I / 4][I % 4] = load_word(place + 8 * I as u64);
                        }
                    });
                    unroll!(I in 0..8 => {
                        if I < 4 * N {
                            are_published &= words[I / 4][I % 4];
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

/// Address at which a tile's unit publishes the maxima of a lane's rows: a word of eight bytes for
/// each.
#[inline(always)]
fn place_of<K: Kernel, const N: usize>(
    params: &ForwardParams,
    index: u32,
    tile: u32,
    first_row: u32,
    lane: u32,
) -> u64 {
    let places = params.tickets + u64::from(N_COUNTERS) * 4;
    let unit = index * params.n_tiles + tile - params.tile_base;
    let row = unit * K::QUERY_TILE as u32 + first_row + 4 * N as u32 * lane;
    places + u64::from(row) * 8
}
