//! Points in memory and in registers.

use crate::abi::element::ElementType;
use crate::abi::params::chamfer::{CloudPair, Clouds, Points, tag};
use crate::primitives::unroll::unroll;
use crate::ptx::convert::widen_f16;
use crate::ptx::global::{load_u8_if, load_u16_if, load_u32_if, load_u32x4, opaque};
use crate::ptx::math::fma;

/// Coordinates of a point, zeros behind its last.
pub type Point<const W: usize> = [f32; W];

/// Reads a pair.
///
/// # Safety
/// There must be the pair.
#[inline(always)]
pub unsafe fn cloud_pair(pairs: u64, pair: u32) -> CloudPair {
    let address = pairs + u64::from(pair) * size_of::<CloudPair>() as u64;
    // SAFETY: 32 bytes per pair.
    unsafe {
        let [x_start, y_start, x_len, y_len] = load_u32x4(address);
        let [x_place, y_place, weight, reserved] = load_u32x4(address + 16);
        CloudPair {
            starts: [x_start, y_start],
            lens: [x_len, y_len],
            places: [x_place, y_place],
            weight: f32::from_bits(weight),
            reserved,
        }
    }
}

/// A cloud of a pair.
#[derive(Clone, Copy)]
pub struct Cloud {
    pub start: u32,
    pub len: u32,
    pub place: u32,
    pub points: Points,
}

impl Cloud {
    /// The cloud of a side.
    #[inline(always)]
    pub fn of(clouds: &Clouds, pair: &CloudPair, side: u32) -> Cloud {
        let of = |[x, y]: [u32; 2]| if side == 0 { x } else { y };
        let [x, y] = [&clouds.sides[0], &clouds.sides[1]];
        Cloud {
            start: of(pair.starts),
            len: of(pair.lens),
            place: of(pair.places),
            points: Points {
                base: of_side(side, [x.base, y.base]),
                pitch_bytes: of_side(side, [x.pitch_bytes, y.pitch_bytes]),
                mask: of_side(side, [x.mask, y.mask]),
            },
        }
    }

    /// Whether there is a point and it is not masked.
    ///
    /// # Safety
    /// Its matrix must be as the parameters say.
    #[inline(always)]
    pub unsafe fn is_valid(&self, point: u32) -> bool {
        let is_there = point < self.len;
        let is_masked = is_there & (self.points.mask != 0);
        let row = self.points.mask + u64::from(self.start) + u64::from(point);
        // SAFETY: the mask has a byte per row.
        is_there & ((unsafe { load_u8_if(row, u32::from(is_masked)) } != 0) | !is_masked)
    }

    /// Coordinates of a point; zeros where `is_there` is false.
    ///
    /// # Safety
    /// As [`Cloud::is_valid`]; there must be the point if `is_there`.
    #[inline(always)]
    pub unsafe fn point<const W: usize>(
        &self,
        clouds: &Clouds,
        point: u32,
        is_there: bool,
    ) -> Point<W> {
        let address = self.row(point);
        let is = |k: usize| u32::from(is_there & ((k as u32) < clouds.dim));
        let mut values = [0.0; W];
        // SAFETY: the row has so many elements.
        unsafe {
            if clouds.element == tag(ElementType::F32) {
                unroll!(K in 0..16 => { if K < W {
                    let word = load_u32_if(address + 4 * K as u64, is(K));
                    values[K] = f32::from_bits(word);
                }});
            } else {
                let is_f16 = clouds.element == tag(ElementType::F16);
                unroll!(K in 0..16 => { if K < W {
                    let half = load_u16_if(address + 2 * K as u64, is(K));
                    let wide = widen_f16(half)[0];
                    values[K] = if is_f16 { wide } else { f32::from_bits(half << 16) };
                }});
            }
        }
        values
    }
}

impl Cloud {
    /// A coordinate of a point.
    ///
    /// # Safety
    /// The row must have it.
    #[inline(always)]
    pub unsafe fn coordinate(&self, clouds: &Clouds, point: u32, k: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { self.coordinate_if(clouds, point, k, true) }
    }

    /// A coordinate of a point, or 0 where `is_there` is false.
    ///
    /// # Safety
    /// The row must have it if `is_there`.
    #[inline(always)]
    pub unsafe fn coordinate_if(&self, clouds: &Clouds, point: u32, k: u32, is_there: bool) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { element_if(clouds, self.row(point), k, is_there) }
    }

    /// The address of a point's row.
    #[inline(always)]
    pub fn row(&self, point: u32) -> u64 {
        let row = u64::from(self.start) + u64::from(point);
        self.points.base + row * self.points.pitch_bytes
    }
}

/// An element of a row, or 0 where `is_there` is false.
///
/// # Safety
/// The row must have it if `is_there`.
#[inline(always)]
pub unsafe fn element_if(clouds: &Clouds, row: u64, k: u32, is_there: bool) -> f32 {
    let is_there = u32::from(is_there);
    // SAFETY: the caller's promise.
    unsafe {
        if clouds.element == tag(ElementType::F32) {
            return f32::from_bits(load_u32_if(row + u64::from(k) * 4, is_there));
        }
        let half = load_u16_if(row + u64::from(k) * 2, is_there);
        let is_f16 = clouds.element == tag(ElementType::F16);
        if is_f16 { widen_f16(half)[0] } else { f32::from_bits(half << 16) }
    }
}

/// What a side has of two. (The compiler would choose between their addresses, in memory.)
#[inline(always)]
pub fn of_side(side: u32, [x, y]: [u64; 2]) -> u64 {
    if side == 0 { opaque(x) } else { opaque(y) }
}

/// The distance of two points of up to `D` dims: what is added for each, in their order, as the CPU
/// does it.
#[inline(always)]
pub fn distance<const D: usize, const W: usize, const L1: bool>(a: &Point<W>, b: &Point<W>) -> f32 {
    let mut sum = 0.0f32;
    unroll!(K in 0..16 => { if K < D {
        let difference = b[K] - a[K];
        sum = match (L1, K) {
            (true, 0) => difference.abs(),
            (true, _) => sum + difference.abs(),
            (false, 0) => difference * difference,
            (false, _) => fma(difference, difference, sum),
        };
    }});
    sum
}

/// The bits of the least of some distances, given by theirs: from 0 on their order is that of the
/// numbers, and those of NaN are above them. (The assembler makes one instruction of two such
/// minima, which it does not of floats.)
#[inline(always)]
pub fn least<const N: usize>(bits: [u32; N]) -> u32 {
    let mut least = bits[0];
    unroll!(I in 0..3 => { if I < N {
        least = if bits[I] < least { bits[I] } else { least };
    }});
    least
}

/// Adds what a difference of coordinates adds to a distance.
#[inline(always)]
pub fn add<const L1: bool>(sum: f32, difference: f32) -> f32 {
    if L1 { sum + difference.abs() } else { fma(difference, difference, sum) }
}

/// Whether a coordinate is NaN or infinite.
#[inline(always)]
pub fn is_odd<const W: usize>(point: &Point<W>) -> bool {
    let mut is_odd = false;
    unroll!(K in 0..16 => { if K < W {
        is_odd |= point[K].abs() >= f32::INFINITY || point[K].is_nan();
    }});
    is_odd
}
