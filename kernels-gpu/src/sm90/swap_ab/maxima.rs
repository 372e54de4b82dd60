//! A consumer thread's maxima: of 32 query rows, as floats or as bits.

use crate::primitives::row_scales::times;
use crate::primitives::unroll::unroll;
use crate::ptx::math::{max_nan, mul};
use crate::ptx::warp::shuffle_xor_f32;
use crate::sm90::bitwise_max::{SIMILARITY, ZERO, to_factor};
use crate::sm90::kernel::Kernel;

/// A thread's maxima: two of every eight columns.
pub(super) type Maxima = [f32; 32];

/// Maxima of no tokens.
pub(super) const NONE: Maxima = [f32::NEG_INFINITY; 32];

/// The upper bits of a thread's maxima, the first in the uppermost.
#[inline(always)]
pub(super) fn signs(best: &Maxima) -> u32 {
    let mut signs = 0;
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => { signs = signs << 1 | best[2 * I + J].to_bits() >> 31; });
    });
    signs
}

/// [`signs`] of the larger one of a column's two whole numbers.
#[inline(always)]
pub(super) fn larger_signs(c: &[f32; 64]) -> u32 {
    let mut signs = 0;
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let both = c[4 * I + J].to_bits() & c[4 * I + 2 + J].to_bits();
            signs = signs << 1 | both >> 31;
        });
    });
    signs
}

/// Gives one of two maxima to the lane whose number differs by `MASK`, which is another row's, and
/// finds the larger of the other and what that lane gives.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
unsafe fn larger<const MASK: u32, const BITS: bool>(lane: u32, low: f32, high: f32) -> f32 {
    let (keep, give) = if lane & MASK != 0 { (high, low) } else { (low, high) };
    // SAFETY: the caller's promise.
    let other = unsafe { shuffle_xor_f32::<MASK>(give) };
    if BITS { f32::from_bits(keep.to_bits().max(other.to_bits())) } else { max_nan(keep, other) }
}

/// The largest of lanes that are 16 apart: each gets half of their columns. `BITS`: maxima of sums,
/// as bits.
///
/// # Safety
/// All lanes of the warp together.
#[inline(always)]
pub(super) unsafe fn most_of_halves<const BITS: bool>(best: &Maxima, lane: u32) -> [f32; 16] {
    let mut most = [0.0; 16];
    unroll!(I in 0..16 => {
        // SAFETY: the caller's promise.
        most[I] = unsafe { larger::<16, BITS>(lane, best[I], best[16 + I]) };
    });
    most
}

/// The largest of the lanes with the same columns, of [`most_of_halves`]: each gets four of the
/// columns.
///
/// # Safety
/// All lanes of the warp together.
#[inline(always)]
pub(super) unsafe fn most_of_lanes(sixteen: &[f32; 16], lane: u32) -> [f32; 4] {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    // SAFETY: the caller's promise.
    unsafe {
        unroll!(I in 0..8 => {
            eight[I] = larger::<8, false>(lane, sixteen[I], sixteen[8 + I]);
        });
        unroll!(I in 0..4 => {
            four[I] = larger::<4, false>(lane, eight[I], eight[4 + I]);
        });
    }
    four
}

/// Takes a product into account, as floats; -∞ in rows that are no document tokens.
#[inline(always)]
pub(super) fn fold_floats<K: Kernel>(
    best: &mut Maxima,
    c: &[f32; 64],
    scales: [f32; 2],
    valid: [bool; 2],
) {
    let similarity = |i: usize, row: usize| {
        let sum = match K::SKIPS_CONVERSION {
            true => c[i].to_bits() as i32 as f32,
            false => c[i],
        };
        if valid[row] { times(sum, scales[row]) } else { f32::NEG_INFINITY }
    };
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let most = max_nan(similarity(4 * I + J, 0), similarity(4 * I + 2 + J, 1));
            best[2 * I + J] = max_nan(best[2 * I + J], most);
        });
    });
}

/// The maxima of a first product, as bits. Where sums are folded as they are, a negative one's is
/// any.
#[inline(always)]
pub(super) fn first_bits<K: Kernel>(c: &[f32; 64], scales: [f32; 2]) -> Maxima {
    // SAFETY: all-zero bytes are floats. (A literal would be a loop.)
    let mut best: Maxima = unsafe { core::mem::zeroed() };
    let scales = if K::SKIPS_CONVERSION { scales.map(to_factor) } else { scales };
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let [a, b] = [mul(c[4 * I + J], scales[0]), mul(c[4 * I + 2 + J], scales[1])];
            best[2 * I + J] = match K::SKIPS_CONVERSION {
                true => f32::from_bits(a.to_bits().max(b.to_bits())),
                false => max_nan(a, b),
            };
        });
    });
    best
}

/// Takes a product of document tokens into account, as bits.
#[inline(always)]
pub(super) fn fold_bits<K: Kernel>(best: &mut Maxima, c: &[f32; 64], scales: [f32; 2]) {
    let scales = if K::SKIPS_CONVERSION { scales.map(to_factor) } else { scales };
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let [a, b] = [mul(c[4 * I + J], scales[0]), mul(c[4 * I + 2 + J], scales[1])];
            let (a, b, most) = (a.to_bits(), b.to_bits(), best[2 * I + J].to_bits());
            best[2 * I + J] = f32::from_bits(match K::SKIPS_CONVERSION {
                true => most.max(a).max(b),
                false => (most as i32).max(a as i32).max(b as i32) as u32,
            });
        });
    });
}

/// Makes floats of maxima of bits, of which each column has one in some lane that is not negative:
/// 0 of those that are.
#[inline(always)]
pub(super) fn into_floats<K: Kernel>(best: &mut Maxima) {
    if K::SKIPS_CONVERSION {
        unroll!(I in 0..16 => {
            unroll!(J in 0..2 => { best[2 * I + J] = sum_into_float(best[2 * I + J]); });
        });
    }
}

/// Converts one maximum.
#[inline(always)]
pub(super) fn sum_into_float(most: f32) -> f32 {
    mul(f32::from_bits(most.to_bits().max(ZERO)), SIMILARITY)
}

/// Makes maxima of bits of floats: of sums' products with factors, where sums are folded as they
/// are.
#[inline(always)]
pub(super) fn into_bits<K: Kernel>(best: &mut Maxima) {
    if K::SKIPS_CONVERSION {
        unroll!(I in 0..16 => {
            unroll!(J in 0..2 => { best[2 * I + J] = mul(best[2 * I + J], 1.0 / SIMILARITY); });
        });
    }
}
