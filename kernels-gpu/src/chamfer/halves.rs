//! Finds the blocks of the other cloud that may have the neighbours of points, by the least half
//! distances of [products](super::products): 256 threads, 256 points, eight for each lane.
//!
//! ```text
//! least      the least t of each point, of all blocks: warps share them
//! bound      t of a block that has a point as near as the one with that t is at most this
//! masks      a byte for each block and eight points: a bit where t reaches the point's bound
//! ```
//!
//! Everything is read twice, in 16 bytes a lane: nothing of it is small enough to be kept. Points
//! are taken in the order in which their numbers lie, which is not that of rows.

use super::known::known_of;
use super::points::{Cloud, cloud_pair};
use crate::abi::params::chamfer::products::row_at;
use crate::abi::params::chamfer::select::{HALVES_POINTS, RefineParams};
use crate::primitives::unroll::unroll;
use crate::ptx::convert::cut_f16_from_zero;
use crate::ptx::convert::widen_f16;
use crate::ptx::global::{read_u32, read_u32x4, store_u8, store_u32};
use crate::ptx::math::{min_u16x2, sqrt};
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x4, store_shared_u32, store_shared_u32x4,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{ballot, lane_idx, shuffle_xor};

/// Warps of a CTA.
const WARPS: u32 = HALVES_POINTS / 32;

/// Blocks that a warp loads t of at a time.
const LOADED: u32 = 4;

/// Bytes of t of a strip of points.
const STRIP_BYTES: u32 = HALVES_POINTS * 2;

/// Offset in shared memory of the bounds, behind the least t by each warp, …
const BOUNDS: u32 = WARPS * STRIP_BYTES;
/// … and of the bits of points that have neighbours.
const VALID: u32 = BOUNDS + STRIP_BYTES;

/// A lane of a CTA.
struct Lane<'a> {
    params: &'a RefineParams,
    warp: u32,
    /// Address of t of the first block and the lane's first point.
    first: u64,
}

/// Finds the blocks that may have the neighbours of this CTA's points.
///
/// # Safety
/// `params` must describe memory as [`RefineParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn select(params: &RefineParams) {
    let strip = block_idx_x() * HALVES_POINTS;
    let (thread, lane, shared) = (thread_idx_x(), lane_idx(), dynamic_shared());
    let first = params.maxima + u64::from(strip + 8 * lane) * 2;
    let of_lane = Lane { params, warp: thread / 32, first };
    // SAFETY: the caller's promise; each thread has words of its own, and barriers are between
    // those who write and those who read.
    unsafe {
        let least = of_lane.least();
        store_shared_u32x4(shared + of_lane.warp * STRIP_BYTES + lane * 16, least);
        sync_threads();
        let mut least = u32::MAX;
        let mut warp = 0;
        while warp < WARPS {
            let pair = load_shared_u32(shared + warp * STRIP_BYTES + thread / 2 * 4);
            least = min_u16x2(least, pair);
            warp += 1;
        }
        let least = if thread % 2 == 0 { least & 0xFFFF } else { least >> 16 };
        let (is_valid, bound) = bound(params, strip + thread, least);
        let other = shuffle_xor::<1>(bound);
        if thread % 2 == 0 {
            store_shared_u32(shared + BOUNDS + thread * 2, bound | other << 16);
        }
        let valid = ballot(u32::from(is_valid));
        if lane == 0 {
            store_shared_u32(shared + VALID + of_lane.warp * 4, valid);
        }
        sync_threads();
        let bounds = load_shared_u32x4(shared + BOUNDS + lane * 16);
        let valid = load_shared_u32(shared + VALID + lane / 4 * 4) >> (8 * (lane % 4)) & 0xFF;
        of_lane.masks(strip / 8 + lane, &bounds, valid);
    }
}

/// Whether the point at a place of the strips has a neighbour, and the largest f16 that t of a
/// block may be that has it, by the least t of all blocks.
///
/// # Safety
/// As [`select`], all threads together.
#[inline(always)]
unsafe fn bound(params: &RefineParams, place: u32, mut least: u32) -> (bool, u32) {
    // SAFETY: the caller's promise; a number per place.
    unsafe {
        let clouds = &params.copies.clouds;
        let pair = cloud_pair(clouds.pairs, params.pair_and_side / 2);
        let own = Cloud::of(clouds, &pair, params.pair_and_side % 2);
        let offset = if params.are_rows != 0 { row_at(place) } else { place };
        let point = params.first + offset;
        if offset >= params.n_points || !own.is_valid(point) {
            return (false, 0);
        }
        if params.bests != 0 {
            let kept = params.bests + (u64::from(own.place) + u64::from(point)) * 4;
            if params.is_first == 0 {
                least = least.min(read_u32(kept));
            }
            store_u32(kept, least);
        }
        let known = known_of(params, &own, point);
        let least = widen_f16(least)[0];
        let bound = known.bound_of_half(known.reach_of_half(least, sqrt), sqrt);
        let bound = if known.error < f32::INFINITY { bound } else { f32::INFINITY };
        (true, cut_f16_from_zero(bound, 0.0))
    }
}

impl Lane<'_> {
    /// t of the lane's points and four blocks, `WARPS` apart; of the last one where there is none.
    ///
    /// # Safety
    /// As [`select`].
    #[inline(always)]
    unsafe fn four(&self, at: u32) -> [[u32; 4]; LOADED as usize] {
        let last = self.params.n_blocks - 1;
        let mut found = [[0; 4]; LOADED as usize];
        // All loads before what is loaded is looked at: the compiler may not move these.
        unroll!(I in 0..4 => {
            let block = (at + I as u32 * WARPS).min(last);
            let address = self.first + u64::from(block) * u64::from(self.params.pitch_bytes);
            // SAFETY: there are both.
            found[I] = unsafe { read_u32x4(address) };
        });
        found
    }

    /// The least t of the lane's points, of the warp's blocks.
    ///
    /// # Safety
    /// As [`select`].
    #[inline(always)]
    unsafe fn least(&self) -> [u32; 4] {
        let mut least = [u32::MAX; 4];
        let mut at = self.warp;
        while at < self.params.n_blocks {
            // SAFETY: the caller's promise.
            let found = unsafe { self.four(at) };
            unroll!(I in 0..4 => {
                unroll!(J in 0..4 => {
                    least[J] = min_u16x2(least[J], found[I][J]);
                });
            });
            at += LOADED * WARPS;
        }
        least
    }

    /// Writes which blocks reach the bounds of which points.
    ///
    /// # Safety
    /// As [`select`].
    #[inline(always)]
    unsafe fn masks(&self, byte: u32, bounds: &[u32; 4], valid: u32) {
        let n_bytes = self.params.n_words() * 4;
        let mut at = self.warp;
        while at < self.params.n_blocks {
            // SAFETY: the caller's promise; a word for each block, and so many bytes.
            unsafe {
                let found = self.four(at);
                let mut odd = [0; LOADED as usize];
                unroll!(I in 0..4 => {
                    let block = (at + I as u32 * WARPS).min(self.params.n_blocks - 1);
                    odd[I] = read_u32(self.params.odd + u64::from(block) * 4);
                });
                unroll!(I in 0..4 => {
                    let block = at + I as u32 * WARPS;
                    let mut mask = 0;
                    unroll!(J in 0..4 => {
                        let above = min_u16x2(found[I][J], bounds[J]) ^ found[I][J];
                        mask |= u32::from(above & 0xFFFF == 0) << (2 * J);
                        mask |= u32::from(above >> 16 == 0) << (2 * J + 1);
                    });
                    if block < self.params.n_blocks && byte < n_bytes {
                        let mask = if odd[I] != 0 { valid } else { mask & valid };
                        let to = u64::from(block) * u64::from(n_bytes) + u64::from(byte);
                        store_u8(self.params.masks + to, mask);
                    }
                });
            }
            at += LOADED * WARPS;
        }
    }
}
