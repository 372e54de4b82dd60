//! Compares points of a cloud with a tile of the other: 128 threads, each with four points in
//! registers, or two of more than 4 dims.
//!
//! ```text
//! fill     the tile, as f32, points behind the end and masked ones at NaN
//! find     for each 32 points of the tile the least distance of each own point: per pair of points
//!          a subtraction and a fused multiply-add for each dim, and a minimum
//! look     the first point of the best 32 that has that distance, each lane from another one on,
//!          so that they load from different banks
//! key      the larger one of the key in memory and this one
//! ```
//!
//! NaN and infinities are rare: where own points or the tile have any, or nothing was nearer than
//! infinity, the tile is compared once more with care. Loss: a CTA computes nothing while it fills
//! its tile; several share a multiprocessor.

use super::points::{Cloud, Point, cloud_pair, distance, is_odd, least};
use crate::abi::params::chamfer::{
    BLOCK_LEN, Clouds, NO_KEY, NO_POINT, NearestParams, NearestTask, THREADS, TILE_OFFSET, key,
};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::{max_u64_if, or_shared_if};
use crate::ptx::global::load_u32x4;
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32x4, load_shared_u32, store_shared_u32, store_shared_u32x4,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::lane_idx;

/// Compares this CTA's points, `Q` of each thread, of up to `D` dims and `W` numbers in memory.
///
/// # Safety
/// `params` must describe memory as [`NearestParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn nearest<const D: usize, const W: usize, const Q: usize>(params: &NearestParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.clouds.is_l1 {
            0 => compare::<D, W, Q, false>(params),
            _ => compare::<D, W, Q, true>(params),
        }
    }
}

/// # Safety
/// As [`nearest`].
#[inline(always)]
unsafe fn compare<const D: usize, const W: usize, const Q: usize, const L1: bool>(
    params: &NearestParams,
) {
    let clouds = &params.clouds;
    let address = params.tasks + u64::from(block_idx_x()) * size_of::<NearestTask>() as u64;
    // SAFETY: the host has made a task for each CTA; threads come to barriers together.
    unsafe {
        let [pair_and_side, first, first_other, n_others] = load_u32x4(address);
        let pair = cloud_pair(clouds.pairs, pair_and_side / 2);
        let own = Cloud::of(clouds, &pair, pair_and_side % 2);
        let other = Cloud::of(clouds, &pair, 1 - pair_and_side % 2);
        let (odd, tile) = (dynamic_shared(), dynamic_shared() + TILE_OFFSET);
        if thread_idx_x() == 0 {
            store_shared_u32(odd, 0);
        }
        sync_threads();
        let len = n_others.next_multiple_of(BLOCK_LEN);
        fill::<W>(clouds, &other, (tile, len), odd, |i| {
            if i < n_others { first_other + i } else { NO_POINT }
        });
        sync_threads();
        let has_odd = load_shared_u32(odd) != 0;
        let first = first + thread_idx_x();
        let mut points = [[0.0; W]; Q];
        unroll!(I in 0..4 => { if I < Q {
            let point = first + (I * THREADS) as u32;
            points[I] = own.point::<W>(clouds, point, point < own.len);
        }});
        let best = find::<D, W, Q, L1>(&points, tile, n_others);
        unroll!(I in 0..4 => { if I < Q {
            let point = first + (I * THREADS) as u32;
            if own.is_valid(point) {
                let (nearest, block) = (best[I].0, best[I].1);
                let is_plain = !has_odd & (nearest < f32::INFINITY) & !is_odd(&points[I]);
                let found = if is_plain {
                    let place = block * BLOCK_LEN;
                    let at = tile + place * 4 * W as u32;
                    let look = look::<D, W, { BLOCK_LEN }, L1>(&points[I], nearest, at);
                    key(nearest, first_other + place + look)
                } else {
                    with_care::<D, W, L1>(&points[I], (tile, n_others), |i| first_other + i)
                };
                let place = u64::from(own.place) + u64::from(point);
                max_u64_if(params.keys + place * 8, found, u32::from(found != NO_KEY));
            }
        }});
    }
}

/// Bits of the first coordinate of a point of a tile that is not there or masked: NaN, so that it
/// is near nothing, of which there are many, and a point that is there has another one.
const NOT_THERE: u32 = u32::MAX;

/// Whether a point of a tile is there and not masked.
#[inline(always)]
pub(super) fn is_there<const W: usize>(point: &Point<W>) -> bool {
    point[0].to_bits() != NOT_THERE
}

/// Fills a tile's places, of which the address and number are given. A word is not 0 behind it if
/// there is a point with NaN or infinity.
///
/// # Safety
/// As [`nearest`], all threads; there must be so many places, in shared memory.
#[inline(always)]
pub(super) unsafe fn fill<const W: usize>(
    clouds: &Clouds,
    cloud: &Cloud,
    (tile, len): (u32, u32),
    odd: u32,
    point_at: impl Fn(u32) -> u32,
) {
    let mut i = thread_idx_x();
    while i < len {
        let (mut points, mut is_valid) = ([[0.0; W]; 4], [false; 4]);
        // SAFETY: what is loaded is there; the caller's promise.
        unsafe {
            // All loads before what is loaded is looked at.
            unroll!(J in 0..4 => { if J < points_at_once(W) {
                let at = i + (J * THREADS) as u32;
                let point = if at < len { point_at(at) } else { NO_POINT };
                is_valid[J] = cloud.is_valid(point);
                points[J] = cloud.point::<W>(clouds, point, is_valid[J]);
            }});
            unroll!(J in 0..4 => { if J < points_at_once(W) {
                let at = i + (J * THREADS) as u32;
                or_shared_if(odd, 1, u32::from(is_odd(&points[J])));
                let mut words = points[J].map(f32::to_bits);
                words[0] = match is_valid[J] {
                    true if points[J][0].is_nan() => f32::NAN.to_bits(),
                    true => words[0],
                    false => NOT_THERE,
                };
                if at < len {
                    store_point::<W>(tile + at * 4 * W as u32, &words);
                }
            }});
        }
        i += (points_at_once(W) * THREADS) as u32;
    }
}

/// Points that a thread loads together.
const fn points_at_once(width: usize) -> usize {
    if width <= 4 { 4 } else { 1 }
}

/// Writes a point of the tile.
///
/// # Safety
/// The tile must have room for it.
#[inline(always)]
unsafe fn store_point<const W: usize>(address: u32, words: &[u32; W]) {
    unroll!(K in 0..4 => { if K < W / 4 {
        let four = [words[4 * K], words[4 * K + 1], words[4 * K + 2], words[4 * K + 3]];
        // SAFETY: the caller's promise.
        unsafe { store_shared_u32x4(address + 16 * K as u32, four) };
    }});
}

/// A point of the tile.
///
/// # Safety
/// The tile must have it.
#[inline(always)]
pub(super) unsafe fn tile_point<const W: usize>(address: u32) -> Point<W> {
    let mut point = [0.0; W];
    unroll!(K in 0..4 => { if K < W / 4 {
        // SAFETY: the caller's promise.
        let [a, b, c, d] = unsafe { load_shared_f32x4(address + 16 * K as u32) };
        (point[4 * K], point[4 * K + 1]) = (a, b);
        (point[4 * K + 2], point[4 * K + 3]) = (c, d);
    }});
    point
}

/// The least distance of each own point, and the first block that has it.
///
/// # Safety
/// The tile must be full.
#[inline(always)]
unsafe fn find<const D: usize, const W: usize, const Q: usize, const L1: bool>(
    points: &[Point<W>; Q],
    tile: u32,
    n: u32,
) -> [(f32, u32); Q] {
    let mut best = [(f32::INFINITY.to_bits(), 0); Q];
    let (mut block, mut at) = (0, tile);
    while block * BLOCK_LEN < n {
        let mut nearest = [f32::INFINITY.to_bits(); Q];
        let mut i = 0;
        while i < BLOCK_LEN {
            unroll!(J in 0..2 => {
                // SAFETY: tiles are whole blocks.
                let [a, b] = unsafe { two_points::<W>(at + (2 * J * 4 * W) as u32) };
                unroll!(I in 0..4 => { if I < Q {
                    let [a, b] = [&a, &b].map(|other| distance::<D, W, L1>(&points[I], other));
                    nearest[I] = least([nearest[I], a.to_bits(), b.to_bits()]);
                }});
            });
            at += 4 * 4 * W as u32;
            i += 4;
        }
        unroll!(I in 0..4 => { if I < Q && nearest[I] < best[I].0 {
            best[I] = (nearest[I], block);
        }});
        block += 1;
    }
    best.map(|(bits, block)| (f32::from_bits(bits), block))
}

/// Two points of a tile.
///
/// # Safety
/// The tile must have them.
#[inline(always)]
pub(super) unsafe fn two_points<const W: usize>(address: u32) -> [Point<W>; 2] {
    // SAFETY: the caller's promise.
    unsafe { [tile_point::<W>(address), tile_point::<W>(address + 4 * W as u32)] }
}

/// The first of `LEN` points, a power of two, that is at a distance; `LEN` if there is none.
///
/// # Safety
/// There must be the points, in shared memory.
#[inline(always)]
pub(super) unsafe fn look<const D: usize, const W: usize, const LEN: u32, const L1: bool>(
    point: &Point<W>,
    nearest: f32,
    points: u32,
) -> u32 {
    let (mut turn, mut found) = (0, LEN);
    while turn < LEN {
        // Lanes look at points of different blocks, which begin in the same bank.
        let i = (turn + lane_idx()) % LEN;
        // SAFETY: the caller's promise.
        let other = unsafe { tile_point::<W>(points + i * 4 * W as u32) };
        let is_it = distance::<D, W, L1>(point, &other) == nearest;
        found = if is_it & (i < found) { i } else { found };
        turn += 1;
    }
    found
}

/// The key of the nearest point of a tile, whatever its points are: of which indices are given by
/// place.
///
/// # Safety
/// The tile must be full.
#[inline(always)]
pub(super) unsafe fn with_care<const D: usize, const W: usize, const L1: bool>(
    point: &Point<W>,
    (tile, n): (u32, u32),
    point_at: impl Fn(u32) -> u32,
) -> u64 {
    let (mut i, mut best) = (0, NO_KEY);
    while i < n {
        // SAFETY: the caller's promise.
        let other = unsafe { tile_point::<W>(tile + i * 4 * W as u32) };
        if is_there(&other) {
            let own = key(distance::<D, W, L1>(point, &other), point_at(i));
            best = if own > best { own } else { best };
        }
        i += 1;
    }
    best
}
