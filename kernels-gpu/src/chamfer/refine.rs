//! Compares points with the blocks of the other cloud that were selected for them, by differences:
//! the points that want a block together.
//!
//! ```text
//! count      the points of the slice that want this CTA's block
//! list       32 of them at a time, in the order of their indices
//! compare    as a tile of the block, from shared memory: 4 × 8 pairs a thread
//! ```
//!
//! [`REFINE_SHARES`] CTAs share a block's points, 32 by turns: a point that many others have as
//! their neighbour would keep one CTA busy long after all others. Those with no turn end at once.

use super::compare::{Tile, fill_listed, is_writer, own_place, share_best};
use super::points::{Cloud, cloud_pair};
use crate::abi::params::chamfer::products::row_at;
use crate::abi::params::chamfer::select::{
    BLOCK, REFINE_LIST, REFINE_POINTS, REFINE_SHARES, RefineParams, SELECT_POINTS,
};
use crate::abi::params::chamfer::{NO_KEY, THREADS, WIDE_TILE};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::max_u64_if;
use crate::ptx::global::read_u32;
use crate::ptx::shared::{dynamic_shared, load_shared_u32, store_shared_u32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, sum_up_to_lane};

/// Warps of a CTA.
const WARPS: u32 = THREADS as u32 / 32;

/// Offset in shared memory of the points that each warp has counted, behind the list.
const COUNTS: u32 = REFINE_LIST as u32 + REFINE_POINTS * 4;

const _: () = assert!(BLOCK == WIDE_TILE && SELECT_POINTS == 32);

/// This thread's words of the block's masks, and how many points they and those before them have.
struct Masks {
    /// Address of the first word, and the number of it and of words.
    words: u64,
    first: u32,
    n: u32,
    /// Points before, and of these.
    before: u32,
    points: u32,
    /// Points of all threads.
    total: u32,
}

/// Compares the points of this CTA's share with its block.
///
/// # Safety
/// `params` must describe memory as [`RefineParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn refine(params: &RefineParams) {
    // There is one; the compiler cannot know.
    let n_blocks = if params.n_blocks == 0 { 1 } else { params.n_blocks };
    let share = block_idx_x() / n_blocks;
    let block = block_idx_x() - share * n_blocks;
    // SAFETY: the caller's promise; all threads come to barriers together.
    unsafe {
        let masks = Masks::of(params, block);
        let mut first = share * REFINE_POINTS;
        if first >= masks.total {
            return;
        }
        let clouds = &params.copies.clouds;
        let pair = cloud_pair(clouds.pairs, params.pair_and_side / 2);
        let own = Cloud::of(clouds, &pair, params.pair_and_side % 2);
        let other = Cloud::of(clouds, &pair, 1 - params.pair_and_side % 2);
        let first_other = (params.first_block + block) * BLOCK;
        let tile = Tile::<4> { clouds, other: &other, first: first_other };
        let list = dynamic_shared() + REFINE_LIST as u32;
        while first < masks.total {
            // Everyone has read the list before.
            sync_threads();
            if thread_idx_x() < REFINE_POINTS && first + thread_idx_x() >= masks.total {
                store_shared_u32(list + 4 * thread_idx_x(), u32::MAX);
            }
            masks.list(params, first, list);
            sync_threads();
            let sums = tile.sums::<false>(|k| fill_listed(clouds, &own, list, k));
            let mut best = [NO_KEY; 4];
            tile.nearer(&mut best, &sums);
            share_best(&mut best);
            unroll!(I in 0..4 => {
                let at = own_place::<4>(I);
                let point = load_shared_u32(list + 4 * at);
                let writes = is_writer(I) & (point < own.len) & (best[I] != NO_KEY);
                let place = u64::from(own.place) + u64::from(point);
                max_u64_if(params.keys + place * 8, best[I], u32::from(writes));
            });
            first += REFINE_SHARES * REFINE_POINTS;
        }
    }
}

impl Masks {
    /// Counts the points that want a block.
    ///
    /// # Safety
    /// As [`refine`].
    #[inline(always)]
    unsafe fn of(params: &RefineParams, block: u32) -> Masks {
        let n_words = params.n_words();
        let most = n_words.div_ceil(THREADS as u32);
        let first = thread_idx_x() * most;
        let n = n_words.saturating_sub(first);
        let n = if n < most { n } else { most };
        let index = u64::from(block) * u64::from(n_words) + u64::from(first);
        let words = params.masks + index * 4;
        let (mut points, mut i) = (0, 0);
        let counts = dynamic_shared() + COUNTS;
        // SAFETY: so many words of the block; a number for each warp.
        unsafe {
            while i < n {
                points += read_u32(words + u64::from(i) * 4).count_ones();
                i += 1;
            }
            let up_to = sum_up_to_lane(points);
            if lane_idx() == 31 {
                store_shared_u32(counts + thread_idx_x() / 32 * 4, up_to);
            }
            sync_threads();
            let (mut before, mut total, mut warp) = (up_to - points, 0, 0);
            while warp < WARPS {
                let of_warp = load_shared_u32(counts + warp * 4);
                before += if warp < thread_idx_x() / 32 { of_warp } else { 0 };
                total += of_warp;
                warp += 1;
            }
            Masks { words, first, n, before, points, total }
        }
    }

    /// Lists this thread's points among the `REFINE_POINTS` from the `first` on.
    ///
    /// # Safety
    /// As [`refine`]; the list must have its place in shared memory.
    #[inline(always)]
    unsafe fn list(&self, params: &RefineParams, first: u32, list: u32) {
        let end = first + REFINE_POINTS;
        if (self.before >= end) | (self.before + self.points <= first) {
            return;
        }
        let (mut at, mut i) = (self.before, 0);
        while i < self.n {
            // SAFETY: so many words.
            let mut word = unsafe { read_u32(self.words + u64::from(i) * 4) };
            while word != 0 {
                if (at >= first) & (at < end) {
                    let bit = word.trailing_zeros();
                    let offset = (self.first + i) * SELECT_POINTS + bit;
                    let offset = if params.are_rows != 0 { row_at(offset) } else { offset };
                    let point = params.first + offset;
                    // SAFETY: the list has room for so many.
                    unsafe { store_shared_u32(list + 4 * (at - first), point) };
                }
                word &= word - 1;
                at += 1;
            }
            i += 1;
        }
    }
}
