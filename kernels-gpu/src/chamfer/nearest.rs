//! Compares points of a cloud with a tile of the other: 128 threads, each with four points in
//! registers, or two of more than 4 dims.
//!
//! ```text
//! fill     the tile, as f32, points behind the end and masked ones at infinity
//! find     for each 32 points of the tile the least distance of each own point: per pair of points
//!          a subtraction and a fused multiply-add for each dim, and a minimum
//! look     the first point of the best 32 that has that distance
//! key      the larger one of the key in memory and this one
//! ```
//!
//! NaN and infinities are rare: where own points or the tile have any, or nothing was nearer than
//! infinity, the tile is compared once more with care. Loss: a CTA computes nothing while it fills
//! its tile; several share a multiprocessor.

use super::points::{Cloud, Point, cloud_pair, distance, is_odd};
use crate::abi::params::chamfer::{
    BLOCK_LEN, NearestParams, NearestTask, THREADS, TILE_OFFSET, key,
};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::{max_u64_if, or_shared_if};
use crate::ptx::global::load_u32x4;
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32x4, load_shared_u32, store_shared_u32, store_shared_u32x4,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};

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
        let has_odd = fill::<W>(params, &other, first_other, n_others);
        let first = first + thread_idx_x();
        let mut points = [[0.0; W]; Q];
        unroll!(I in 0..4 => { if I < Q {
            let point = first + (I * THREADS) as u32;
            points[I] = own.point::<W>(clouds, point, point < own.len);
        }});
        let best = find::<D, W, Q, L1>(&points, n_others);
        unroll!(I in 0..4 => { if I < Q {
            let point = first + (I * THREADS) as u32;
            if own.is_valid(point) {
                let (least, block) = (best[I].0, best[I].1);
                let is_plain = !has_odd & (least < f32::INFINITY) & !is_odd(&points[I]);
                let found = match is_plain {
                    true => look::<D, W, L1>(&points[I], least, block, first_other),
                    false => with_care::<D, W, L1>(&points[I], &other, first_other, n_others),
                };
                let place = u64::from(own.place) + u64::from(point);
                max_u64_if(params.keys + place * 8, found, u32::from(found != 0));
            }
        }});
    }
}

/// Fills the tile; whether it has a point with NaN or infinity.
///
/// # Safety
/// As [`nearest`], all threads.
#[inline(always)]
unsafe fn fill<const W: usize>(params: &NearestParams, other: &Cloud, first: u32, n: u32) -> bool {
    let odd = dynamic_shared();
    let len = n.next_multiple_of(BLOCK_LEN);
    // SAFETY: the tile has room for whole blocks.
    unsafe {
        if thread_idx_x() == 0 {
            store_shared_u32(odd, 0);
        }
        sync_threads();
        let mut i = thread_idx_x();
        while i < len {
            let (mut points, mut is_valid) = ([[0.0; W]; 4], [false; 4]);
            // All loads before what is loaded is looked at.
            unroll!(J in 0..4 => { if J < points_at_once(W) {
                let at = i + (J * THREADS) as u32;
                is_valid[J] = (at < n) && other.is_valid(first + at);
                points[J] = other.point::<W>(&params.clouds, first + at, is_valid[J]);
            }});
            unroll!(J in 0..4 => { if J < points_at_once(W) {
                let at = i + (J * THREADS) as u32;
                or_shared_if(odd, 1, u32::from(is_odd(&points[J])));
                // Coordinates behind the last dim are those of all points.
                if !is_valid[J] {
                    points[J][0] = f32::INFINITY;
                }
                if at < len {
                    store_point::<W>(address::<W>(at), &points[J]);
                }
            }});
            i += (points_at_once(W) * THREADS) as u32;
        }
        sync_threads();
        load_shared_u32(odd) != 0
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
unsafe fn store_point<const W: usize>(address: u32, point: &Point<W>) {
    unroll!(K in 0..4 => { if K < W / 4 {
        let four = [point[4 * K], point[4 * K + 1], point[4 * K + 2], point[4 * K + 3]];
        // SAFETY: the caller's promise.
        unsafe { store_shared_u32x4(address + 16 * K as u32, four.map(f32::to_bits)) };
    }});
}

/// Address of a point of the tile.
#[inline(always)]
fn address<const W: usize>(point: u32) -> u32 {
    dynamic_shared() + TILE_OFFSET + point * 4 * W as u32
}

/// A point of the tile.
///
/// # Safety
/// The tile must have it.
#[inline(always)]
unsafe fn tile_point<const W: usize>(address: u32) -> Point<W> {
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
    n: u32,
) -> [(f32, u32); Q] {
    let mut best = [(f32::INFINITY, 0); Q];
    let (mut block, mut at) = (0, address::<W>(0));
    while block * BLOCK_LEN < n {
        let mut least = [f32::INFINITY; Q];
        let mut i = 0;
        while i < BLOCK_LEN {
            unroll!(J in 0..4 => {
                // SAFETY: tiles are whole blocks.
                let other = unsafe { tile_point::<W>(at + (J * 4 * W) as u32) };
                unroll!(I in 0..4 => { if I < Q {
                    least[I] = least[I].min(distance::<D, W, L1>(&points[I], &other));
                }});
            });
            at += 4 * 4 * W as u32;
            i += 4;
        }
        unroll!(I in 0..4 => { if I < Q && least[I] < best[I].0 {
            best[I] = (least[I], block);
        }});
        block += 1;
    }
    best
}

/// The key of the first point of a block at a distance.
///
/// # Safety
/// The tile must be full, and have the block.
#[inline(always)]
unsafe fn look<const D: usize, const W: usize, const L1: bool>(
    point: &Point<W>,
    least: f32,
    block: u32,
    first: u32,
) -> u64 {
    let end = (block + 1) * BLOCK_LEN;
    let (mut i, mut found) = (end, 0);
    while i > block * BLOCK_LEN {
        i -= 1;
        // SAFETY: the caller's promise.
        let other = unsafe { tile_point::<W>(address::<W>(i)) };
        found = if distance::<D, W, L1>(point, &other) == least { i } else { found };
    }
    key(least, first + found)
}

/// The key of the nearest point of the tile, whatever its points are.
///
/// # Safety
/// As [`nearest`]; the tile must be full.
#[inline(always)]
unsafe fn with_care<const D: usize, const W: usize, const L1: bool>(
    point: &Point<W>,
    other: &Cloud,
    first: u32,
    n: u32,
) -> u64 {
    let (mut i, mut best) = (0, 0);
    while i < n {
        // SAFETY: the caller's promise.
        unsafe {
            let at = tile_point::<W>(address::<W>(i));
            if other.is_valid(first + i) {
                let own = key(distance::<D, W, L1>(point, &at), first + i);
                best = if own > best { own } else { best };
            }
        }
        i += 1;
    }
    best
}
