//! Gradients of points, from their neighbours: a thread per point, or a warp where they have many
//! dims.
//!
//! ```text
//! scatter      a point p with neighbour q adds −factor · slope(p − q) to the sums of q: i64
//! gradients    factor · slope(p − q) + the sums of p · 2^−shift, rounded once; sums become 0
//! ```
//!
//! Every term is a whole number of units, of which 2^shift are 1; the shift is chosen by the
//! largest term that there may be and the number of terms, so that 2⁶² is never reached: with 10⁶
//! points a unit is 2⁻⁴¹ of the largest term. Terms that are not finite are flags, and so are all
//! of a point at a distance that is not.

use super::points::{Cloud, cloud_pair, of_side};
use crate::abi::element::ElementType;
use crate::abi::params::chamfer::{
    CloudPair, CloudStats, DIMS_OF_FLAGS, GRADIENT_THREADS, GradientParams, NARROW_DIM, NO_POINT,
    PointTask, most_slope, power, reduction, shift, tag,
};
use crate::ptx::atomic::{add_u64, or_u32x2};
use crate::ptx::convert::{narrow_bf16, narrow_f16};
use crate::ptx::global::{
    load_u32, load_u32x2, load_u32x4, load_written_u64, store_u16, store_u32, store_u32x2,
};
use crate::ptx::math::sqrt;
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::sync_warp;

/// The point of a thread.
struct Own {
    pair_index: u32,
    pair: CloudPair,
    side: u32,
    cloud: Cloud,
    point: u32,
}

impl Own {
    /// The thread's point, which may lie behind the last.
    ///
    /// # Safety
    /// There must be a task for each CTA.
    #[inline(always)]
    unsafe fn new(params: &GradientParams) -> Own {
        let task = params.tasks + u64::from(block_idx_x()) * size_of::<PointTask>() as u64;
        // SAFETY: the caller's promise.
        unsafe {
            let [pair_and_side, first] = load_u32x2(task);
            let (pair_index, side) = (pair_and_side / 2, pair_and_side % 2);
            let pair = cloud_pair(params.clouds.pairs, pair_index);
            let cloud = Cloud::of(&params.clouds, &pair, side);
            let point = first + (thread_idx_x() >> params.lanes_log2);
            Own { pair_index, pair, side, cloud, point }
        }
    }

    #[inline(always)]
    fn is_there(&self) -> bool {
        self.point < self.cloud.len
    }

    #[inline(always)]
    fn place(&self) -> u64 {
        u64::from(self.cloud.place) + u64::from(self.point)
    }

    /// The index of its neighbour; [`NO_POINT`] where there is none, or the loss does not depend on
    /// its distance.
    ///
    /// # Safety
    /// There must be the point.
    #[inline(always)]
    unsafe fn neighbour(&self, params: &GradientParams, direction: &Direction) -> u32 {
        let has_none = (self.side != 0) & (params.clouds.single_direction != 0);
        let is_max = (params.grads != 0) & (params.reduction == reduction::MAX);
        if has_none | (is_max & (direction.farthest != self.point)) {
            return NO_POINT;
        }
        // SAFETY: an index per place.
        unsafe { load_u32(params.indices + self.place() * 4) }
    }

    /// Whether its distance to its neighbour is finite.
    ///
    /// # Safety
    /// There must be the point.
    #[inline(always)]
    unsafe fn is_near(&self, params: &GradientParams) -> bool {
        // SAFETY: a distance per place.
        f32::from_bits(unsafe { load_u32(params.distances + self.place() * 4) }) < f32::INFINITY
    }
}

/// The points of a side of a pair, as the gradients of their distances need them.
struct Direction {
    /// Gradient of each distance, where they have one alike.
    factor: f32,
    farthest: u32,
    shift: i32,
}

impl Direction {
    /// # Safety
    /// There must be the pair.
    #[inline(always)]
    unsafe fn new(params: &GradientParams, pair_index: u32, weight: f32, side: u32) -> Direction {
        let index = u64::from(2 * pair_index + side);
        let stats = params.stats + index * size_of::<CloudStats>() as u64;
        // SAFETY: two of them for each pair, and a gradient.
        unsafe {
            let [_, _, n, farthest] = load_u32x4(stats);
            let [_, most_finite, ..] = load_u32x4(stats + 16);
            let mut factor = 0.0;
            if params.grads != 0 {
                let grad = load_u32(params.grads + u64::from(pair_index) * 4);
                factor = f32::from_bits(grad) * weight;
                if params.reduction == reduction::MEAN {
                    factor /= if n > 0 { n as f32 } else { 1.0 };
                }
            }
            let most = if params.grads != 0 { factor.abs() } else { params.most_grad };
            let root = sqrt(f32::from_bits(most_finite));
            let slope = most_slope(root, params.clouds.is_l1 != 0);
            Direction { factor, farthest, shift: shift(most * slope, n) }
        }
    }

    /// The gradient of a point's distance.
    ///
    /// # Safety
    /// There must be the point.
    #[inline(always)]
    unsafe fn factor(&self, params: &GradientParams, place: u64) -> f32 {
        if params.grads != 0 {
            return self.factor;
        }
        // SAFETY: a gradient per place.
        f32::from_bits(unsafe { load_u32(params.point_grads + place * 4) })
    }
}

/// What a difference of coordinates adds to the gradient.
#[inline(always)]
fn slope(params: &GradientParams, difference: f32) -> f32 {
    if params.clouds.is_l1 == 0 {
        return 2.0 * difference;
    }
    let is_zero = difference == 0.0 || difference.is_nan();
    if is_zero { difference } else { f32::from_bits(difference.to_bits() & 0x8000_0000 | ONE) }
}

/// Bits of 1.
const ONE: u32 = 1.0f32.to_bits();

/// Adds what the points of this CTA add to their neighbours.
///
/// # Safety
/// `params` must describe memory as [`GradientParams`] says.
#[inline(always)]
pub unsafe fn scatter(params: &GradientParams) {
    // SAFETY: the caller's promise; indices are those of points.
    unsafe {
        let own = Own::new(params);
        if !own.is_there() {
            return;
        }
        let direction = Direction::new(params, own.pair_index, own.pair.weight, own.side);
        let neighbour = own.neighbour(params, &direction);
        let other = Cloud::of(&params.clouds, &own.pair, 1 - own.side);
        if neighbour >= other.len {
            return;
        }
        // Where the distance is not finite its largest coordinate says nothing of the others.
        let factor = match own.is_near(params) {
            true => direction.factor(params, own.place()),
            false => f32::NAN,
        };
        let place = u64::from(other.place) + u64::from(neighbour);
        let unit = power(direction.shift);
        let mut k = lane_of_point(params);
        while k < params.clouds.dim {
            let p = own.cloud.coordinate(&params.clouds, own.point, k);
            let q = other.coordinate(&params.clouds, neighbour, k);
            let term = -(factor * slope(params, p - q));
            if term.abs() < f32::INFINITY {
                let units = (f64::from(term) * unit) as i64;
                let sum = place * u64::from(params.clouds.dim) + u64::from(k);
                add_u64(params.sums + sum * 8, units as u64);
            } else {
                let kind = match term.is_nan() {
                    true => 0,
                    false if term > 0.0 => 16,
                    false => 32,
                };
                let bits = 1u64 << (kind + k % DIMS_OF_FLAGS);
                let flags = flags_of(params, place, k);
                or_u32x2(flags, [bits as u32, (bits >> 32) as u32]);
            }
            k += 1 << params.lanes_log2;
        }
    }
}

/// Writes the gradients of this CTA's points.
///
/// # Safety
/// As [`scatter`], behind it.
#[inline(always)]
pub unsafe fn gradients(params: &GradientParams) {
    // SAFETY: the caller's promise; a thread has its point's row, sums and flags alone.
    unsafe {
        let own = Own::new(params);
        if !own.is_there() {
            return;
        }
        let weight = own.pair.weight;
        let direction = Direction::new(params, own.pair_index, weight, own.side);
        let back = Direction::new(params, own.pair_index, weight, 1 - own.side);
        let neighbour = own.neighbour(params, &direction);
        let other = Cloud::of(&params.clouds, &own.pair, 1 - own.side);
        let has_neighbour = neighbour < other.len;
        let mut factor = 0.0;
        if has_neighbour {
            factor = match own.is_near(params) {
                true => direction.factor(params, own.place()),
                false => f32::NAN,
            };
        }
        let unit = power(-back.shift);
        let row = u64::from(own.cloud.start) + u64::from(own.point);
        let mut k = lane_of_point(params);
        while k < params.clouds.dim {
            let mut term = 0.0;
            if has_neighbour {
                let p = own.cloud.coordinate(&params.clouds, own.point, k);
                let q = other.coordinate(&params.clouds, neighbour, k);
                term = factor * slope(params, p - q);
            }
            let sum = params.sums + (own.place() * u64::from(params.clouds.dim) + u64::from(k)) * 8;
            let units = load_written_u64(sum) as i64;
            if units != 0 {
                store_u32x2(sum, [0; 2]);
            }
            let mut total = (f64::from(term) + units as f64 * unit) as f32;
            let flags = load_written_u64(flags_of(params, own.place(), k)) >> (k % DIMS_OF_FLAGS);
            total += if flags & 1 != 0 { f32::NAN } else { 0.0 };
            total += if flags >> 16 & 1 != 0 { f32::INFINITY } else { 0.0 };
            total += if flags >> 32 & 1 != 0 { f32::NEG_INFINITY } else { 0.0 };
            let base = of_side(own.side, params.gradients);
            store(params, base, row * u64::from(params.clouds.dim) + u64::from(k), total);
            k += 1 << params.lanes_log2;
        }
        clear_flags(params, own.place());
    }
}

/// Which of the threads that share a point this is: it has every dim that is so many modulo their
/// number.
#[inline(always)]
fn lane_of_point(params: &GradientParams) -> u32 {
    thread_idx_x() & ((1 << params.lanes_log2) - 1)
}

/// Clears the flags of a point.
///
/// # Safety
/// All threads that share the point, whose lanes are a warp's or a single one, have read them.
#[inline(always)]
unsafe fn clear_flags(params: &GradientParams, place: u64) {
    // SAFETY: a warp's lanes come here together; the words are the point's.
    unsafe {
        let mut k = lane_of_point(params) * DIMS_OF_FLAGS;
        if params.lanes_log2 > 0 {
            sync_warp();
        }
        while k < params.clouds.dim {
            let flags = flags_of(params, place, k);
            if load_written_u64(flags) != 0 {
                store_u32x2(flags, [0; 2]);
            }
            k += DIMS_OF_FLAGS << params.lanes_log2;
        }
    }
}

/// The address of the flags of a dim of a point.
#[inline(always)]
fn flags_of(params: &GradientParams, place: u64, k: u32) -> u64 {
    let words = params.clouds.dim.div_ceil(DIMS_OF_FLAGS);
    params.flags + (place * u64::from(words) + u64::from(k / DIMS_OF_FLAGS)) * 8
}

/// Stores an element of a gradient.
///
/// # Safety
/// The gradient must have it.
#[inline(always)]
unsafe fn store(params: &GradientParams, base: u64, index: u64, value: f32) {
    const F32: u32 = tag(ElementType::F32);
    const F16: u32 = tag(ElementType::F16);
    // SAFETY: the caller's promise.
    unsafe {
        match params.gradient_element {
            F32 => store_u32(base + index * 4, value.to_bits()),
            F16 => store_u16(base + index * 2, narrow_f16(value, 0.0)),
            _ => store_u16(base + index * 2, narrow_bf16(value, 0.0)),
        }
    }
}

const _: () = assert!(NARROW_DIM < 32 && GRADIENT_THREADS.is_multiple_of(32));
