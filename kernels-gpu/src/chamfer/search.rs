//! Finds the neighbours of sorted points: a warp has a tile of 32 neighbours on the curve.
//!
//! ```text
//! begin     of the group at the warp's place on the other cloud's curve the tile that is nearest
//!           to the middle of the warp's points gives a first distance
//! groups    32 boxes of 1024 points at a time, of which those that are near are looked into
//! tiles     their 32 boxes, of which those that are near are compared
//! compare   each lane's point with the 32 of the tile, where some lane's is near enough
//! ```
//!
//! The distance to a box is computed as that to a point is, operation by operation, and rounding
//! keeps order: it is never larger than that of a point inside. Loss: lanes wait for those whose
//! points are near more tiles.

use super::points::{Point, distance, is_odd};
use super::sort::{Frame, cloud_of};
use crate::abi::params::chamfer::{NO_KEY, key};
use crate::abi::params::chamfer_search::{
    BOX_BYTES, CELLS, ENTRY_BYTES, GROUP_LEN, GROUP_TILES, NO_POINT, POINT_BYTES, SEARCH_THREADS,
    SIDE_BIT, SearchParams, TILE_LEN, known,
};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_u32, load_u32x4, opaque, store_u32x2};
use crate::ptx::math::fma;
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{ballot, lane_idx, max_lanes};

/// The nearest point so far.
#[derive(Clone, Copy)]
struct Best {
    distance: f32,
    index: u32,
}

impl Best {
    /// Nothing: no point at infinity replaces it.
    const NONE: Best = Best { distance: f32::INFINITY, index: 0 };
}

/// A box with the lowest index of its points.
#[derive(Clone, Copy)]
struct Bounds {
    low: [f32; 3],
    high: [f32; 3],
    least: u32,
}

impl Bounds {
    /// Reads a box.
    ///
    /// # Safety
    /// There must be the box.
    #[inline(always)]
    unsafe fn load(boxes: u64, number: u32) -> Bounds {
        let address = boxes + u64::from(number) * BOX_BYTES;
        // SAFETY: the caller's promise.
        let [[a, b, c, least], [d, e, f, _]] =
            unsafe { [load_u32x4(address), load_u32x4(address + 16)] };
        let [low, high] = [[a, b, c], [d, e, f]].map(|x| x.map(f32::from_bits));
        Bounds { low, high, least }
    }

    /// The box of a point.
    #[inline(always)]
    fn of(&[x, y, z, _]: &Point<4>) -> Bounds {
        Bounds { low: [x, y, z], high: [x, y, z], least: 0 }
    }

    /// About the middle of the box.
    #[inline(always)]
    fn center(&self) -> Point<4> {
        let mut center = [0.0; 4];
        unroll!(K in 0..3 => { center[K] = self.low[K] * 0.5 + self.high[K] * 0.5; });
        center
    }

    /// A number that no distance of a point of one box to one of the other is below.
    #[inline(always)]
    fn gap<const L1: bool>(&self, other: &Bounds) -> f32 {
        let mut sum = 0.0f32;
        unroll!(K in 0..3 => {
            let (below, above) = (self.low[K] - other.high[K], other.low[K] - self.high[K]);
            let gap = below.max(above).max(0.0);
            sum = if L1 { sum + gap } else { fma(gap, gap, sum) };
        });
        sum
    }
}

/// Finds the neighbours of this warp's points, of both sides.
///
/// # Safety
/// `params` must describe memory as [`SearchParams`] says, sorted; whole warps.
#[inline(always)]
pub unsafe fn search(params: &SearchParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.clouds.is_l1 {
            0 => find::<false>(params),
            _ => find::<true>(params),
        }
    }
}

/// # Safety
/// As [`search`].
#[inline(always)]
unsafe fn find<const L1: bool>(params: &SearchParams) {
    let tile = (block_idx_x() * SEARCH_THREADS as u32 + thread_idx_x()) / 32;
    let place = tile * TILE_LEN;
    let end = params.padded[0] + params.padded[1];
    let side = u32::from(place >= params.padded[0]);
    let is_wanted = (side == 0) | (params.clouds.single_direction == 0);
    if (place >= end) | !is_wanted {
        return;
    }
    // SAFETY: the caller's promise; lanes take every step together.
    unsafe {
        let own = params.points + u64::from(place + lane_idx()) * POINT_BYTES;
        let [x, y, z, index] = load_u32x4(own);
        let [x, y, z] = [x, y, z].map(f32::from_bits);
        let (point, is_there) = ([x, y, z, 0.0], index != NO_POINT);
        let is_sought = is_there & !is_odd(&point);
        let mut best = Best::NONE;
        if ballot(u32::from(is_sought)) != 0 {
            best = near::<L1>(params, tile, side, &point, is_sought);
        }
        let found = of_all(params, side, &point, &best);
        if is_there {
            let to = u64::from(cloud_of(params, side).place) + u64::from(index);
            store_u32x2(params.keys + to * 8, [found as u32, (found >> 32) as u32]);
        }
    }
}

/// The key of the nearest point, of those with NaN and infinities too.
///
/// # Safety
/// As [`search`].
#[inline(always)]
unsafe fn of_all(params: &SearchParams, side: u32, point: &Point<4>, best: &Best) -> u64 {
    let words = known::SIDES as u32 + (1 - side) * known::PER_SIDE as u32;
    // The complement of the index of the other cloud's first point of a kind, or 0.
    let first = |k: usize| {
        // SAFETY: there are so many words of each cloud.
        unsafe { load_u32(params.known + u64::from(words + k as u32) * 4) }
    };
    let mut nan = first(known::NAN);
    unroll!(K in 0..3 => {
        // NaN is at no distance from anything, and infinity from itself.
        let kind = match point[K] {
            x if x.is_nan() => known::VALID,
            f32::INFINITY => known::INFINITE + K,
            f32::NEG_INFINITY => known::INFINITE + 3 + K,
            _ => known::NAN,
        };
        let found = first(kind);
        nan = if found > nan { found } else { nan };
    });
    let valid = first(known::VALID);
    if nan != 0 {
        key(f32::NAN, !nan)
    } else if best.distance < f32::INFINITY {
        key(best.distance, best.index)
    } else if valid != 0 {
        // All are infinitely far.
        key(f32::INFINITY, !valid)
    } else {
        NO_KEY
    }
}

/// The nearest of the other cloud's points without NaN or infinity.
///
/// # Safety
/// As [`search`].
#[inline(always)]
unsafe fn near<const L1: bool>(
    params: &SearchParams,
    tile: u32,
    side: u32,
    point: &Point<4>,
    is_sought: bool,
) -> Best {
    let (first, n) = match side {
        0 => (params.padded[0], params.padded[1]),
        _ => (0, params.padded[0]),
    };
    let first_tile = first / TILE_LEN;
    let mut best = Best::NONE;
    // SAFETY: tiles and groups of the other side.
    unsafe {
        let own = Bounds::load(params.tiles, tile);
        let (first_group, n_groups) = (first / GROUP_LEN, n / GROUP_LEN);
        let center = own.center();
        let wanted = Frame::of_all(params).code::<CELLS>(&center);
        let wanted = wanted | if side == 0 { SIDE_BIT } else { 0 };
        let start = place_of(params, wanted, first, n) / GROUP_LEN;
        let start = if start < n_groups { start } else { n_groups - 1 };
        let nearest = first_tile + start * GROUP_TILES;
        let bounds = Bounds::load(params.tiles, nearest + lane_idx());
        let gap = bounds.gap::<L1>(&Bounds::of(&center)).to_bits();
        let nearest = nearest + ballot(u32::from(gap == !max_lanes(!gap))).trailing_zeros();
        // Tiles to compare, from one on; groups of tiles, from one on, and the first behind these.
        let (mut tiles, mut left) = (nearest, 1u32);
        let (mut base, mut groups, mut next) = (start, 1u32, 0);
        loop {
            while left != 0 {
                let tile = tiles + left.trailing_zeros();
                compare::<L1>(params, tile, point, is_sought, &mut best);
                left &= left - 1;
            }
            while (groups == 0) & (next < n_groups) {
                (base, next) = (next, next + 32);
                let (number, limit) = (base + lane_idx(), Limit::of(&best, is_sought));
                let mut is_near = (number < n_groups) & (number != start);
                if is_near {
                    let bounds = Bounds::load(params.groups, first_group + number);
                    is_near = limit.admits(own.gap::<L1>(&bounds), bounds.least);
                }
                groups = ballot(u32::from(is_near));
            }
            if groups == 0 {
                return best;
            }
            tiles = first_tile + (base + groups.trailing_zeros()) * GROUP_TILES;
            groups &= groups - 1;
            let (tile, limit) = (tiles + lane_idx(), Limit::of(&best, is_sought));
            let bounds = Bounds::load(params.tiles, tile);
            let is_near = limit.admits(own.gap::<L1>(&bounds), bounds.least);
            left = ballot(u32::from(is_near & (tile != nearest)));
        }
    }
}

/// What no lane of a warp would take a point beyond.
struct Limit {
    distance: u32,
    index: u32,
}

impl Limit {
    /// # Safety
    /// All lanes together.
    #[inline(always)]
    unsafe fn of(best: &Best, is_sought: bool) -> Limit {
        // SAFETY: the caller's promise. Distances are not negative, so their bits have their order.
        unsafe {
            Limit {
                distance: max_lanes(if is_sought { best.distance.to_bits() } else { 0 }),
                index: max_lanes(if is_sought { best.index } else { 0 }),
            }
        }
    }

    /// Whether a box so far away, of this lowest index, may have a point that a lane takes.
    #[inline(always)]
    fn admits(&self, gap: f32, least: u32) -> bool {
        (gap.to_bits() < self.distance) | ((gap.to_bits() == self.distance) & (least < self.index))
    }
}

/// The place in a cloud's order, from its first, of a code: all lanes look at places of their own.
///
/// # Safety
/// As [`search`].
#[inline(always)]
unsafe fn place_of(params: &SearchParams, wanted: u32, first: u32, n: u32) -> u32 {
    let (mut low, mut high) = (0, n);
    while low < high {
        let step = (high - low).div_ceil(32);
        let at = low + lane_idx() * step;
        let mut is_before = false;
        // SAFETY: entries by place.
        unsafe {
            if at < high {
                let address = params.entries[0] + u64::from(first + at) * ENTRY_BYTES;
                is_before = load_u32(address) < wanted;
            }
            let n_before = ballot(u32::from(is_before)).count_ones();
            if n_before == 0 {
                return low;
            }
            let end = low + n_before * step;
            (low, high) = (low + (n_before - 1) * step + 1, if end < high { end } else { high });
        }
    }
    low
}

/// Compares the lanes' points with those of a tile, where one of them may be nearer.
///
/// # Safety
/// As [`search`]; there must be the tile.
#[inline(always)]
unsafe fn compare<const L1: bool>(
    params: &SearchParams,
    tile: u32,
    point: &Point<4>,
    is_sought: bool,
    best: &mut Best,
) {
    // SAFETY: a tile has 32 points.
    unsafe {
        let bounds = Bounds::load(params.tiles, tile);
        let gap = bounds.gap::<L1>(&Bounds::of(point));
        let may_be = (gap < best.distance) | ((gap == best.distance) & (bounds.least < best.index));
        if ballot(u32::from(is_sought & may_be)) == 0 {
            return;
        }
        let mut points = params.points + u64::from(tile * TILE_LEN) * POINT_BYTES;
        // The assembler would unroll the rest, and have no registers for it.
        let end = opaque(points + u64::from(TILE_LEN) * POINT_BYTES);
        let mut found = Best::NONE;
        while points < end {
            unroll!(J in 0..8 => {
                let address = points + J as u64 * POINT_BYTES;
                let (distance, index) = to_point::<L1>(point, load_u32x4(address));
                // The first of equally near ones has the lowest index.
                found.index = if distance < found.distance { index } else { found.index };
                found.distance = found.distance.min(distance);
            });
            points += 8 * POINT_BYTES;
        }
        let is_lower = (found.distance == best.distance) & (found.index < best.index);
        *best = if (found.distance < best.distance) | is_lower { found } else { *best };
    }
}

/// Distance and index of a sorted point.
#[inline(always)]
fn to_point<const L1: bool>(point: &Point<4>, [x, y, z, index]: [u32; 4]) -> (f32, u32) {
    let [x, y, z] = [x, y, z].map(f32::from_bits);
    (distance::<3, 4, L1>(point, &[x, y, z, 0.0]), index)
}
