//! Host/device ABI of Chamfer distances: pairs of clouds, the keys of neighbours, and fixed-point
//! sums of gradients.
//!
//! The points of both sides have *places*: those of the first clouds from 0 on, cloud after cloud,
//! then those of the second clouds. A point's neighbour and distance are a *key* of 64 bits, and
//! the nearest neighbour is the largest key, in whatever order keys come:
//!
//! ```text
//! bits 32 to 63    falling with the distance; largest for NaN
//! bits 0 to 31     the complement of the neighbour's index
//! ```
//!
//! The key 0 is none.

pub mod products;
pub mod select;

use crate::abi::element::ElementType;

/// Threads per CTA.
pub const THREADS: usize = 128;

/// Points that a thread of `maxsim_chamfer_nearest_*` has at a time, by the most dims of a point.
pub const fn points_per_thread(width: usize) -> usize {
    if width <= 4 { 4 } else { 2 }
}

/// Most dims of points that `maxsim_chamfer_nearest_*` take.
pub const NARROW_DIM: usize = 15;

/// Points of a CTA of `maxsim_chamfer_compare`, which takes any dim.
pub const WIDE_OWN: u32 = 64;

/// Points of the other cloud that it compares them with at a time.
pub const WIDE_TILE: u32 = 128;

/// Dims of them in shared memory at a time.
pub const WIDE_SLICE: u32 = 16;

/// Dynamic shared memory of that.
pub const WIDE_SHARED_BYTES: usize = wide_shared_bytes(WIDE_OWN);

/// Shared memory that so many points take to be compared with a tile: a slice of both sides, with
/// padding, and a word for each point of the tile.
pub const fn wide_shared_bytes(own: u32) -> usize {
    (WIDE_SLICE * (own + WIDE_TILE + 8) + WIDE_TILE) as usize * 4
}

/// Bytes of the other cloud's points that a CTA has in shared memory.
pub const TILE_BYTES: usize = 32 << 10;

/// Points of a tile that a distance is first the minimum of, and then looked for among.
pub const BLOCK_LEN: u32 = 32;

/// Offset of the tile in shared memory, behind a word.
pub const TILE_OFFSET: u32 = 16;

/// Dynamic shared memory of `maxsim_chamfer_nearest_*` with the longest tile.
pub const NEAREST_SHARED_BYTES: usize = TILE_OFFSET as usize + TILE_BYTES;

/// Most points of a tile.
pub const fn tile_len_max(width: usize) -> u32 {
    (TILE_BYTES / (width * 4)) as u32
}

/// Rows that a thread of `maxsim_chamfer_both_*` has, by the numbers of a point in memory.
pub const fn rows_per_thread(width: usize) -> usize {
    if width <= 4 { 8 } else { 4 }
}

/// Rows of a CTA: its warps have the same, and other columns.
pub const fn rows_of_cta(width: usize) -> usize {
    32 * rows_per_thread(width)
}

/// Columns that a warp has at a time: one for each lane.
pub const COLUMNS: u32 = 32;

/// Columns that a row's least distance is first the minimum over, and then looked for among.
pub const COLUMNS_BLOCK: u32 = 16;

/// Most columns of a CTA.
pub const fn columns_max(width: usize) -> u32 {
    if width <= 8 { 1024 } else { 512 }
}

/// Where things are in the shared memory of `maxsim_chamfer_both_*`, whose points have `W` numbers.
/// First there are two words that say whether columns, and rows, have one that is not finite.
#[derive(Clone, Copy, Debug)]
pub struct BothShared<const W: usize>;

impl<const W: usize> BothShared<W> {
    /// Of each warp's columns the least distance, and the lanes that have it.
    pub const FOUND: u32 = 16;
    /// Bytes of a warp of these.
    pub const FOUND_BYTES: u32 = COLUMNS * 8;
    /// Of each row, by warp, the least distance and the block that has it.
    pub const BESTS: u32 = Self::FOUND + THREADS as u32 / 32 * Self::FOUND_BYTES;
    /// Bytes of a warp of these.
    pub const BESTS_BYTES: u32 = rows_of_cta(W) as u32 * 8;
    /// Bytes of a point.
    pub const POINT_BYTES: u32 = W as u32 * 4;
    /// The rows.
    pub const ROWS: u32 = Self::BESTS + THREADS as u32 / 32 * Self::BESTS_BYTES;
    /// The columns.
    pub const TILE: u32 = Self::ROWS + rows_of_cta(W) as u32 * Self::POINT_BYTES;
    /// Dynamic shared memory with most columns.
    pub const MOST_BYTES: usize = (Self::TILE + columns_max(W) * Self::POINT_BYTES) as usize;
}

/// Offset of the tile of the other cloud's points, by the numbers of a point, of the kernels of one
/// direction or of both.
pub const fn tile_offset(width: usize, serves_both: bool) -> u32 {
    match (serves_both, width) {
        (false, _) => TILE_OFFSET,
        (true, 4) => BothShared::<4>::TILE,
        (true, 8) => BothShared::<8>::TILE,
        (true, _) => BothShared::<16>::TILE,
    }
}

/// Threads per CTA of `maxsim_chamfer_reduce`.
pub const REDUCE_THREADS: usize = 512;

/// Bytes of a warp's result there.
pub const REDUCE_SLOT_BYTES: u32 = 32;

/// Dynamic shared memory of that.
pub const REDUCE_SHARED_BYTES: usize = REDUCE_THREADS / 32 * REDUCE_SLOT_BYTES as usize;

/// Threads per CTA of the kernels of gradients.
pub const GRADIENT_THREADS: usize = 256;

/// The points of one side.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Points {
    /// Address of element (0, 0).
    pub base: u64,
    /// Distance between rows in bytes.
    pub pitch_bytes: u64,
    /// Address of one byte per row, non-zero = valid; 0 = every row is valid.
    pub mask: u64,
}

/// Pairs of clouds of one call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Clouds {
    /// The points of both sides.
    pub sides: [Points; 2],
    /// Address of a [`CloudPair`] for each pair.
    pub pairs: u64,
    /// Dims of a point.
    pub dim: u32,
    /// The [`tag`] of the element type.
    pub element: u32,
    /// 1 for the L1 metric, 0 for squared L2.
    pub is_l1: u32,
    /// 1 where the second clouds' points have no neighbours.
    pub single_direction: u32,
}

/// The number of an element type.
pub const fn tag(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => 0,
        ElementType::F16 => 1,
        ElementType::Bf16 => 2,
    }
}

/// A pair of clouds.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CloudPair {
    /// First row of each cloud in its matrix.
    pub starts: [u32; 2],
    /// Points of each.
    pub lens: [u32; 2],
    /// Place of the first point of each.
    pub places: [u32; 2],
    /// What the value is multiplied by.
    pub weight: f32,
    /// Padding to a multiple of 16.
    pub reserved: u32,
}

/// Some points of a cloud against some of the other one: what a CTA compares.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearestTask {
    /// Twice the number of the pair, and the side of the points.
    pub pair_and_side: u32,
    /// First point of the own cloud, of as many as a CTA has.
    pub first: u32,
    /// First point of the other cloud.
    pub first_other: u32,
    /// Points of the other cloud, a tile at most.
    pub n_others: u32,
}

/// Parameters of `maxsim_chamfer_nearest_*`, and of `maxsim_chamfer_both_*`, which find neighbours
/// of the other cloud's points too: a CTA per task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NearestParams {
    /// The clouds.
    pub clouds: Clouds,
    /// Address of a [`NearestTask`] for each CTA.
    pub tasks: u64,
    /// Address of the keys, by place.
    pub keys: u64,
}

/// Sums and extremes of a cloud's points that have a neighbour.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CloudStats {
    /// Sum of the distances.
    pub sum: f64,
    /// Number of points.
    pub n: u32,
    /// Index of the first of the farthest points.
    pub farthest: u32,
    /// Its distance.
    pub most: f32,
    /// The largest finite distance.
    pub most_finite: f32,
    /// Padding to a multiple of 16.
    pub reserved: [u32; 2],
}

/// Reductions of the distances of a cloud's points, as numbers.
pub mod reduction {
    /// Their mean.
    pub const MEAN: u32 = 0;
    /// Their sum.
    pub const SUM: u32 = 1;
    /// The largest.
    pub const MAX: u32 = 2;
    /// None: values are 0.
    pub const NONE: u32 = 3;
}

/// Parameters of `maxsim_chamfer_reduce`: a CTA per pair, which makes of keys what is found, and
/// clears them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReduceParams {
    /// Address of a [`CloudPair`] for each pair.
    pub pairs: u64,
    /// Address of the keys, by place.
    pub keys: u64,
    /// Address of the f32 distances, by place.
    pub distances: u64,
    /// Address of the i32 indices of neighbours, by place; −1 = none.
    pub indices: u64,
    /// Address of two [`CloudStats`] for each pair.
    pub stats: u64,
    /// Address of the f32 value of each pair.
    pub values: u64,
    /// One of [`reduction`].
    pub reduction: u32,
    /// 1 where the second clouds' points have no neighbours.
    pub single_direction: u32,
}

/// Parameters of `maxsim_chamfer_scatter` and `maxsim_chamfer_gradients`: a CTA per
/// [`PointTask`].
///
/// A point adds to its neighbour's sums: whole numbers, so that the order does not matter, of which
/// 2^shift are 1. [`shift`] has the same value where they are added and where they are read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradientParams {
    /// The clouds.
    pub clouds: Clouds,
    /// Address of a [`PointTask`] for each CTA.
    pub tasks: u64,
    /// Address of the f32 distances of neighbours, by place.
    pub distances: u64,
    /// Address of the i32 indices of neighbours, by place.
    pub indices: u64,
    /// Address of two [`CloudStats`] for each pair.
    pub stats: u64,
    /// Address of the f32 gradient of each pair's value, or 0: then
    /// [`point_grads`](GradientParams::point_grads) has those of distances.
    pub grads: u64,
    /// Address of the f32 gradient of each distance, by place.
    pub point_grads: u64,
    /// Address of i64 sums `[places, dim]`, which are 0 between calls.
    pub sums: u64,
    /// Address of u64 words `[places, flag_words(dim)]`, 0 between calls: for each of 16 dims three
    /// bits, 16 apart, that say whether NaN, +∞ and −∞ were added.
    pub flags: u64,
    /// Addresses of the gradients `[rows, dim]` of both sides.
    pub gradients: [u64; 2],
    /// No smaller than the magnitudes of `point_grads` that are finite.
    pub most_grad: f32,
    /// One of [`reduction`].
    pub reduction: u32,
    /// The [`tag`] of the element type of gradients.
    pub gradient_element: u32,
    /// Threads that share a point are 2 to this power: [`lanes_log2`] of the dim.
    pub lanes_log2: u32,
}

/// Threads that share a point of so many dims are 2 to this power: one, or a warp.
pub const fn lanes_log2(dim: usize) -> u32 {
    if dim <= NARROW_DIM { 0 } else { 5 }
}

/// Words of flags of a point of so many dims.
pub const fn flag_words(dim: usize) -> usize {
    dim.div_ceil(DIMS_OF_FLAGS as usize)
}

/// Dims that a word of flags is of.
pub const DIMS_OF_FLAGS: u32 = 16;

/// Some points of a cloud, one for each 2^[`lanes_log2`] threads of a CTA.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointTask {
    /// Twice the number of the pair, and the side of the points.
    pub pair_and_side: u32,
    /// First point.
    pub first: u32,
}

/// The key of no neighbour.
pub const NO_KEY: u64 = 0;

/// The index of no point.
pub const NO_POINT: u32 = u32::MAX;

/// Upper word of the key of distance +∞.
const INFINITE: u32 = 1;

/// Upper word of keys of distance NaN.
const NAN: u32 = INFINITE + f32::INFINITY.to_bits() + 1;

/// The key of a neighbour at a distance that is not negative.
#[inline(always)]
pub const fn key(distance: f32, index: u32) -> u64 {
    let word = match distance.is_nan() {
        true => NAN,
        false => INFINITE + (f32::INFINITY.to_bits() - distance.to_bits()),
    };
    ((word as u64) << 32) | !index as u64
}

/// Distance and index of a key that is not [`NO_KEY`].
#[inline(always)]
pub const fn neighbour(key: u64) -> (f32, u32) {
    let word = (key >> 32) as u32;
    let distance = match word {
        NAN => f32::NAN,
        _ => f32::from_bits(f32::INFINITY.to_bits() - (word - INFINITE)),
    };
    (distance, !(key as u32))
}

/// How many binary places whole numbers have that sums of up to `n` terms are made of, none of
/// which is larger than `most`: the sum is below 2⁶².
#[inline(always)]
pub const fn shift(most: f32, n: u32) -> i32 {
    // The exponent of a power of two above `most`; that of subnormal numbers, of infinity and NaN
    // is what it is at the ends of the normal ones.
    let biased = (most.to_bits() >> 23 & 0xFF) as i32;
    let exponent = if biased > 254 { 128 } else { biased - 126 };
    61 - (32 - n.leading_zeros() as i32) - exponent
}

/// No smaller than the magnitude of what a point at a distance up to `most_finite` adds to its
/// neighbour's gradient, times 1/`factor`: differences whose squares are rounded to 0 included.
#[inline(always)]
pub const fn most_slope(root: f32, is_l1: bool) -> f32 {
    // 2⁻⁷²
    const LOST: f32 = f32::from_bits((127 - 72) << 23);
    if is_l1 { 1.0 } else { 2.0 * (root + LOST) }
}

/// 2 to the power of a [`shift`], or of its opposite.
#[inline(always)]
pub const fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearer_neighbours_have_larger_keys() {
        let distances = [f32::NAN, 0.0, 1e-45, 1.0, 1.5, f32::MAX, f32::INFINITY];
        let mut least = u64::MAX;
        for distance in distances {
            for index in [0, 1, i32::MAX as u32] {
                let key = key(distance, index);
                assert!(key < least && key > NO_KEY, "{distance} {index}");
                let found = neighbour(key);
                assert!(found.0 == distance || found.0.is_nan() && distance.is_nan());
                assert_eq!(found.1, index);
                least = key;
            }
        }
    }

    #[test]
    fn sums_of_terms_fit() {
        for most in [1e-45f32, 1e-38, 0.5, 1.0, 1.999, 3e38, f32::INFINITY] {
            for n in [1u32, 2, 3, 1000, (1 << 31) - 1] {
                let shift = shift(most, n);
                let largest = f64::from(most.min(f32::MAX)) * f64::from(n) * power(shift);
                assert!(largest < 2f64.powi(62), "{most} {n}");
                // And are not far below that, where numbers are normal.
                assert!(most < f32::MIN_POSITIVE || largest > 2f64.powi(58), "{most} {n}");
                assert_eq!(power(shift) * power(-shift), 1.0);
            }
        }
    }

    #[test]
    fn tiles_fit() {
        for width in [4, 8, 16] {
            assert!(tile_len_max(width).is_multiple_of(BLOCK_LEN));
            assert!(columns_max(width).is_multiple_of(COLUMNS));
            assert!(tile_offset(width, true).is_multiple_of(16));
        }
        assert_eq!(size_of::<CloudPair>(), 32);
        assert_eq!(size_of::<NearestTask>(), 16);
        assert_eq!(size_of::<CloudStats>(), 32);
        assert_eq!(size_of::<PointTask>(), 8);
    }
}
