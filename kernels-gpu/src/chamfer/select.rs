//! Finds the blocks of the other cloud that may have the neighbours of points: 256 threads, 32
//! points, one for each lane.
//!
//! ```text
//! best       the largest s of each point, of all blocks: warps share them
//! bound      s of a block that has a point as near as the one with that s is at least this
//! masks      a bit for each block and point: whether s reaches the point's bound
//! ```
//!
//! The distance between copies is off by no more than both copies are from their points, and s by
//! what sums round: so no block is left out that has the nearest point, or another as near. No
//! distance is needed: what a product says of one is bound enough, since comparing a few blocks
//! more costs less than comparing one first.

use super::known::known_of;
use super::points::{Cloud, cloud_pair};
use crate::abi::params::chamfer::select::{
    ITEM, MARK, RefineParams, SELECT_POINTS, SELECT_THREADS,
};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{read_f32, store_u32_if};
use crate::ptx::math::sqrt;
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{ballot, lane_idx};

/// Warps of a CTA.
const WARPS: u32 = SELECT_THREADS as u32 / 32;

/// Blocks that a warp loads s of at a time.
const LOADED: u32 = 8;

/// What a CTA works on.
struct Task<'a> {
    params: &'a RefineParams,
    own: Cloud,
    /// This lane's point, in its cloud, and whether it has a neighbour.
    point: u32,
    is_valid: bool,
    /// Number of the CTA's points in the slice.
    group: u32,
    /// Address of s of this lane's point and the first block, and bytes from block to block.
    maxima: u64,
    step: u64,
}

/// Finds the blocks that may have the neighbours of this CTA's points.
///
/// # Safety
/// `params` must describe memory as [`RefineParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn select(params: &RefineParams) {
    // SAFETY: the caller's promise.
    unsafe {
        let clouds = &params.copies.clouds;
        let pair = cloud_pair(clouds.pairs, params.pair_and_side / 2);
        let side = params.pair_and_side % 2;
        let group = block_idx_x();
        let offset = group * SELECT_POINTS + lane_idx();
        let item = offset & !(ITEM - 1);
        let left = params.n_points - item;
        let row_len = if left < ITEM { left } else { ITEM };
        let in_item = offset - item;
        let before = u64::from(item) * u64::from(params.n_blocks) + u64::from(in_item);
        let own = Cloud::of(clouds, &pair, side);
        let point = params.first + offset;
        let task = Task {
            params,
            point,
            is_valid: (offset < params.n_points) && own.is_valid(point),
            own,
            group,
            maxima: params.maxima + before * 4,
            step: u64::from(row_len) * 4,
        };
        let best = task.best(thread_idx_x() / 32);
        let bound = if task.is_valid { task.bound(best) } else { f32::INFINITY };
        task.masks(thread_idx_x() / 32, bound);
    }
}

impl Task<'_> {
    /// s of this lane's point and eight blocks, `WARPS` apart; `absent` where there is no such
    /// block, and where the point needs none.
    ///
    /// # Safety
    /// As [`select`].
    #[inline(always)]
    unsafe fn eight(&self, first: u32, absent: f32) -> [f32; LOADED as usize] {
        let mut found = [absent; LOADED as usize];
        // All loads before what is loaded is looked at.
        unroll!(I in 0..8 => {
            let block = first + I as u32 * WARPS;
            if self.is_valid & (block < self.params.n_blocks) {
                // SAFETY: there are both.
                found[I] = unsafe { read_f32(self.maxima + u64::from(block) * self.step) };
            }
        });
        found
    }

    /// The largest s of this lane's point, of blocks without marks.
    ///
    /// # Safety
    /// All threads together.
    #[inline(always)]
    unsafe fn best(&self, warp: u32) -> f32 {
        let mut best = f32::NEG_INFINITY;
        // SAFETY: a number of each thread; threads come to the barrier together.
        unsafe {
            let mut at = warp;
            while at < self.params.n_blocks {
                let found = self.eight(at, f32::INFINITY);
                unroll!(I in 0..8 => {
                    best = if (found[I] > best) & (found[I] < MARK) { found[I] } else { best };
                });
                at += LOADED * WARPS;
            }
            let by_warp = dynamic_shared() + lane_idx() * 4;
            store_shared_f32(by_warp + warp * 128, best);
            sync_threads();
            let mut other = 0;
            while other < WARPS {
                let found = load_shared_f32(by_warp + other * 128);
                best = if found > best { found } else { best };
                other += 1;
            }
        }
        best
    }

    /// A number that s of no block is below that has a point as near as the one with the largest s,
    /// or nearer.
    ///
    /// # Safety
    /// There must be the point.
    #[inline(always)]
    unsafe fn bound(&self, best: f32) -> f32 {
        // SAFETY: the caller's promise.
        let selected = unsafe { known_of(self.params, &self.own, self.point) };
        // Only blocks with marks have others at distance NaN, and they reach any bound.
        let is_known = (selected.error < f32::INFINITY) & (best > f32::NEG_INFINITY);
        let bound = selected.bound(selected.reach(best, sqrt), sqrt);
        if is_known { bound } else { f32::NEG_INFINITY }
    }

    /// Writes which blocks reach the bounds of which points. An s that is NaN reaches any.
    ///
    /// # Safety
    /// All lanes together.
    #[inline(always)]
    unsafe fn masks(&self, warp: u32, bound: f32) {
        let n_groups = u64::from(self.params.n_words());
        let mut at = warp;
        // SAFETY: a word for each block and group.
        unsafe {
            while at < self.params.n_blocks {
                let found = self.eight(at, f32::NEG_INFINITY);
                unroll!(I in 0..8 => {
                    let block = at + I as u32 * WARPS;
                    let is_below = found[I] < bound;
                    let reaches = self.is_valid & !is_below;
                    let mask = ballot(u32::from(reaches));
                    let index = u64::from(block) * n_groups + u64::from(self.group);
                    let writes = (lane_idx() == 0) & (block < self.params.n_blocks);
                    store_u32_if(self.params.masks + index * 4, mask, u32::from(writes));
                });
                at += LOADED * WARPS;
            }
        }
    }
}
