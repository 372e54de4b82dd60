//! Compares points with the blocks of the other cloud that may have their neighbours, by
//! differences: 256 threads, 32 points, one for each lane.
//!
//! ```text
//! best       the block with the largest s of each point, of all blocks: warps share them
//! compare    a warp for each point: a lane has four points of the block
//! bound      s of a block that has a point as near as what was found is at least this
//! list       of 64 blocks at a time, those that reach the bounds of their points
//! compare    a warp for each entry
//! ```
//!
//! The distance between copies is off by no more than both copies are from their points, and s by
//! what sums round: so no block is left out that has the nearest point, or another as near.

use super::points::{Cloud, add, cloud_pair};
use crate::abi::element::ElementType;
use crate::abi::params::chamfer::select::{
    BLOCK, ITEM, MARK, REFINE_BLOCKS, REFINE_LIST, REFINE_POINTS, REFINE_THREADS, RefineParams,
    SelectedPoint, extent, scale,
};
use crate::abi::params::chamfer::{NO_KEY, key, neighbour, tag};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::{fetch_add_shared_if, max_u64_if};
use crate::ptx::convert::widen_f16;
use crate::ptx::global::{load_u32x4, load_u32x4_if, read_f32};
use crate::ptx::math::sqrt;
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32, load_shared_u32, store_shared_f32, store_shared_u32,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle_u64};

/// Warps of a CTA.
const WARPS: u32 = REFINE_THREADS as u32 / 32;

/// Points of a block that a lane has.
const PER_LANE: usize = 4;

/// Offsets in shared memory, behind the length of the list: the largest s of points by each warp
/// and its block; the best block of each point and its bound.
const BY_WARP: u32 = 16;
const BY_POINT: u32 = BY_WARP + REFINE_THREADS as u32 * 8;

const _: () = assert!(REFINE_LIST as u32 == BY_POINT + REFINE_POINTS * 8);
const _: () = assert!(BLOCK == 32 * PER_LANE as u32);

/// No block.
const NONE: u32 = u32::MAX;

/// What a CTA works on.
struct Task<'a> {
    params: &'a RefineParams,
    own: Cloud,
    other: Cloud,
    side: u32,
    /// First point, and points.
    first: u32,
    n: u32,
    /// Address of s of the first point and block, and points of a block's row.
    maxima: u64,
    row_len: u32,
}

/// Finds the neighbours of this CTA's points.
///
/// # Safety
/// `params` must describe memory as [`RefineParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn refine(params: &RefineParams) {
    // SAFETY: the caller's promise.
    unsafe {
        let clouds = &params.copies.clouds;
        let pair = cloud_pair(clouds.pairs, params.pair_and_side / 2);
        let side = params.pair_and_side % 2;
        let offset = block_idx_x() * REFINE_POINTS;
        let item = offset & !(ITEM - 1);
        let left = params.n_points - item;
        let row_len = if left < ITEM { left } else { ITEM };
        let in_item = offset - item;
        let n = row_len - in_item;
        let before = u64::from(item) * u64::from(params.n_blocks) + u64::from(in_item);
        let task = Task {
            params,
            own: Cloud::of(clouds, &pair, side),
            other: Cloud::of(clouds, &pair, 1 - side),
            side,
            first: params.first + offset,
            n: if n < REFINE_POINTS { n } else { REFINE_POINTS },
            maxima: params.maxima + before * 4,
            row_len,
        };
        task.run();
    }
}

impl Task<'_> {
    /// # Safety
    /// All threads together.
    #[inline(always)]
    unsafe fn run(&self) {
        let shared = dynamic_shared();
        let warp = thread_idx_x() / 32;
        // SAFETY: the caller's promise; points below `n` are there.
        unsafe {
            self.best_blocks(warp);
            let mut point = warp;
            while point < self.n {
                let is_valid = self.own.is_valid(self.first + point);
                let block = load_shared_u32(shared + BY_POINT + point * 8);
                let mut found = NO_KEY;
                if is_valid & (block != NONE) {
                    found = self.compare(point, block);
                }
                let bound = if is_valid { self.bound(point, found) } else { f32::INFINITY };
                if lane_idx() == 0 {
                    store_shared_f32(shared + BY_POINT + point * 8 + 4, bound);
                }
                point += WARPS;
            }
            let mut first = 0;
            while first < self.params.n_blocks {
                self.others(warp, first);
                first += REFINE_BLOCKS;
            }
        }
    }

    /// s of a point and a block.
    ///
    /// # Safety
    /// There must be both.
    #[inline(always)]
    unsafe fn maximum(&self, point: u32, block: u32) -> f32 {
        let index = u64::from(block) * u64::from(self.row_len) + u64::from(point);
        // SAFETY: the caller's promise.
        unsafe { read_f32(self.maxima + index * 4) }
    }

    /// Finds the block with the largest s of each point, of those without marks.
    ///
    /// # Safety
    /// All threads together.
    #[inline(always)]
    unsafe fn best_blocks(&self, warp: u32) {
        let shared = dynamic_shared();
        let (mut best, mut block) = (f32::NEG_INFINITY, NONE);
        // SAFETY: lanes below `n` have points.
        unsafe {
            if lane_idx() < self.n {
                let mut at = warp;
                while at < self.params.n_blocks {
                    // All loads before what is loaded is looked at.
                    let mut found = [f32::INFINITY; 4];
                    unroll!(I in 0..4 => {
                        if at + I as u32 * WARPS < self.params.n_blocks {
                            found[I] = self.maximum(lane_idx(), at + I as u32 * WARPS);
                        }
                    });
                    unroll!(I in 0..4 => {
                        if (found[I] > best) & (found[I] < MARK) {
                            (best, block) = (found[I], at + I as u32 * WARPS);
                        }
                    });
                    at += 4 * WARPS;
                }
            }
            let own = shared + BY_WARP + thread_idx_x() * 8;
            store_shared_f32(own, best);
            store_shared_u32(own + 4, block);
            sync_threads();
            if warp == 0 {
                let (mut best, mut block) = (f32::NEG_INFINITY, NONE);
                let mut other = 0;
                while other < WARPS {
                    let theirs = shared + BY_WARP + (other * 32 + lane_idx()) * 8;
                    let found = load_shared_f32(theirs);
                    if found > best {
                        (best, block) = (found, load_shared_u32(theirs + 4));
                    }
                    other += 1;
                }
                store_shared_u32(shared + BY_POINT + lane_idx() * 8, block);
            }
            sync_threads();
        }
    }

    /// A number that s of no block is below that has a point as near as what was found.
    ///
    /// # Safety
    /// There must be the point.
    #[inline(always)]
    unsafe fn bound(&self, point: u32, found: u64) -> f32 {
        let copies = &self.params.copies;
        let place = u64::from(self.own.place) + u64::from(self.first + point);
        let word = |word: u32| {
            let pair = u64::from(self.params.pair_and_side / 2);
            let index = pair * u64::from(extent::LEN) + u64::from(word);
            // SAFETY: words of the pair.
            unsafe { read_f32(copies.extents + index * 4) }
        };
        // SAFETY: a number per place.
        let (norm, error) =
            unsafe { (read_f32(copies.norms + place * 4), read_f32(copies.errors + place * 4)) };
        if error >= f32::INFINITY || error.is_nan() {
            return f32::NEG_INFINITY;
        }
        let distance = if found == NO_KEY { f32::INFINITY } else { neighbour(found).0 };
        if distance.is_nan() {
            // Only blocks with marks have others at distance NaN.
            return MARK;
        }
        let selected = SelectedPoint {
            norm,
            error,
            other_norm: word(extent::NORMS + 1 - self.side),
            other_error: word(extent::ERRORS + 1 - self.side),
            scale: scale(word(extent::MOST).to_bits()),
            dims: copies.copied_dim as f32,
        };
        selected.bound(distance, sqrt)
    }

    /// Compares points with those of 64 blocks whose s reaches their bounds.
    ///
    /// # Safety
    /// All threads together.
    #[inline(always)]
    unsafe fn others(&self, warp: u32, first: u32) {
        let shared = dynamic_shared();
        let (list, n_blocks) = (shared + REFINE_LIST as u32, self.params.n_blocks);
        let end = if first + REFINE_BLOCKS < n_blocks { first + REFINE_BLOCKS } else { n_blocks };
        // SAFETY: the list has room for all points and blocks; threads come to barriers together.
        unsafe {
            if thread_idx_x() == 0 {
                store_shared_u32(shared, 0);
            }
            sync_threads();
            let own = shared + BY_POINT + lane_idx() * 8;
            let (best, bound) = (load_shared_u32(own), load_shared_f32(own + 4));
            let mut block = first + warp;
            while block < end {
                let mut reaches = false;
                if (lane_idx() < self.n) & (block != best) {
                    reaches = self.maximum(lane_idx(), block) >= bound;
                }
                let place = fetch_add_shared_if(shared, 1, u32::from(reaches));
                if reaches {
                    let entry = (block - first) * REFINE_POINTS + lane_idx();
                    store_shared_u32(list + place * 4, entry);
                }
                block += WARPS;
            }
            sync_threads();
            let (n, mut at) = (load_shared_u32(shared), warp);
            while at < n {
                let entry = load_shared_u32(list + at * 4);
                self.compare(entry % REFINE_POINTS, first + entry / REFINE_POINTS);
                at += WARPS;
            }
            sync_threads();
        }
    }

    /// Compares a point with those of a block; the largest key, in all lanes.
    ///
    /// # Safety
    /// The warp together; there must be both, and the point be valid.
    #[inline(always)]
    unsafe fn compare(&self, point: u32, block: u32) -> u64 {
        let point = self.first + point;
        let first = block * BLOCK + lane_idx();
        let mut is_valid = [false; PER_LANE];
        let mut best = NO_KEY;
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(I in 0..4 => { is_valid[I] = self.other.is_valid(first + 32 * I as u32); });
            let sums = self.sums(point, first, &is_valid);
            unroll!(I in 0..4 => {
                let own = key(sums[I], first + 32 * I as u32);
                best = if is_valid[I] & (own > best) { own } else { best };
            });
            let mut distance = 16;
            while distance > 0 {
                let theirs = shuffle_u64(best, lane_idx() ^ distance);
                best = if theirs > best { theirs } else { best };
                distance /= 2;
            }
            let place = u64::from(self.own.place) + u64::from(point);
            let stores = (lane_idx() == 0) & (best != NO_KEY);
            max_u64_if(self.params.keys + place * 8, best, u32::from(stores));
        }
        best
    }

    /// Distances of a point to four of the other cloud, 32 apart.
    ///
    /// # Safety
    /// There must be the point, and those that are valid.
    #[inline(always)]
    unsafe fn sums(&self, point: u32, first: u32, is_valid: &[bool; PER_LANE]) -> [f32; PER_LANE] {
        let clouds = &self.params.copies.clouds;
        let mut sums = [0.0f32; PER_LANE];
        let row = |cloud: &Cloud, point: u32| {
            let row = u64::from(cloud.start) + u64::from(point);
            cloud.points.base + row * cloud.points.pitch_bytes
        };
        let own = row(&self.own, point);
        let mut others = [0u64; PER_LANE];
        unroll!(I in 0..4 => { others[I] = row(&self.other, first + 32 * I as u32); });
        let is_f32 = clouds.element == tag(ElementType::F32);
        let is_f16 = clouds.element == tag(ElementType::F16);
        let is_aligned = (own | others[0] | self.other.points.pitch_bytes).is_multiple_of(16);
        let per_load = if is_f32 { 4 } else { 8 };
        // A lane's rows begin on 16-byte boundaries as those of the others do.
        let vectors = if is_aligned { clouds.dim / per_load } else { 0 };
        let mut at = 0;
        // SAFETY: rows have so many vectors; the caller's promise.
        unsafe {
            while at < vectors {
                let offset = u64::from(at) * 16;
                let own = widen(load_u32x4(own + offset), is_f32, is_f16);
                let mut loaded = [[0u32; 4]; PER_LANE];
                unroll!(I in 0..4 => {
                    loaded[I] = load_u32x4_if(others[I] + offset, u32::from(is_valid[I]));
                });
                unroll!(I in 0..4 => {
                    let other = widen(loaded[I], is_f32, is_f16);
                    unroll!(K in 0..8 => { if (K < 4) | !is_f32 {
                        sums[I] = add::<false>(sums[I], other[K] - own[K]);
                    }});
                });
                at += 1;
            }
            let mut k = vectors * per_load;
            while k < clouds.dim {
                let own = self.own.coordinate(clouds, point, k);
                unroll!(I in 0..4 => {
                    let at = first + 32 * I as u32;
                    let other = self.other.coordinate_if(clouds, at, k, is_valid[I]);
                    sums[I] = add::<false>(sums[I], other - own);
                });
                k += 1;
            }
        }
        sums
    }
}

/// The elements of sixteen bytes: four, or eight.
#[inline(always)]
fn widen([a, b, c, d]: [u32; 4], is_f32: bool, is_f16: bool) -> [f32; 8] {
    if is_f32 {
        return [a, b, c, d, 0, 0, 0, 0].map(f32::from_bits);
    }
    let two = |pair: u32| match is_f16 {
        true => widen_f16(pair),
        false => [f32::from_bits(pair << 16), f32::from_bits(pair & 0xFFFF_0000)],
    };
    let ([a, b], [c, d], [e, f], [g, h]) = (two(a), two(b), two(c), two(d));
    [a, b, c, d, e, f, g, h]
}
