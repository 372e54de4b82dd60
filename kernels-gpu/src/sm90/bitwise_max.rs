//! Maxima of similarities on the bits of floats, as integers.
//!
//! The bits of positive floats rise with them, and NaN, which products give with a positive sign,
//! is above all. So a maximum of bits is right if it is positive; it takes three at a time, one
//! instruction for two of `max.NaN`. A document's first tokens usually give each row a positive
//! maximum. A tile after which one is not positive is reduced again, as floats.
//!
//! INT32 accumulators skip the conversion: the bits of a sum from 0 to 2²³, taken for a float, are
//! the subnormal sum · 2⁻¹⁴⁹, and a factor multiplies it as exactly as any. A negative sum's bits
//! are NaN. With negative factors, products of sums from 0 on have the upper bit set and rise as
//! integers with their size, above NaN, which has not: so maxima are those of unsigned integers.
//! Factors are scales · -2⁶⁴, so that products are normal for all of [`factor`].

use crate::primitives::accumulator::Best;
use crate::primitives::row_scales::ColumnScales;
use crate::primitives::unroll::unroll;
use crate::ptx::math::mul;

/// Factor that turns scales into factors of sums, …
const FACTOR: f32 = -((1u128 << 64) as f32);
/// … and products of those with sums' bits, to be similarities.
pub(super) const SIMILARITY: f32 = -((1u128 << 85) as f32);
/// The scales that have factors.
const LEAST: f32 = 1.0 / (1u64 << 40) as f32;
const MOST: f32 = (1u64 << 62) as f32;
/// Bits of the product of a sum that is 0.
pub(super) const ZERO: u32 = 0x8000_0000;

/// The factor of a scale's column; NaN for scales whose products may not be normal.
#[inline(always)]
pub(super) fn factor(scale: f32) -> f32 {
    if (LEAST..=MOST).contains(&scale) { to_factor(scale) } else { f32::NAN }
}

/// Whether both scales have a [`factor`].
#[inline(always)]
pub(super) fn have_factors(scales: [f32; 2]) -> bool {
    // Bits of positive floats rise with them, and all others' are further from the least's.
    let [a, b] = scales.map(|scale| scale.to_bits().wrapping_sub(LEAST.to_bits()));
    a.max(b) <= MOST.to_bits() - LEAST.to_bits()
}

/// The [`factor`] of a scale that has one.
#[inline(always)]
pub(super) fn to_factor(scale: f32) -> f32 {
    scale * FACTOR
}

/// Whether a column's [`factor`] is one.
#[inline(always)]
pub(super) fn is_factor(factor: f32) -> bool {
    bits(factor) < 0
}

/// [`fold_bits`] of sums of products of whole numbers, each times its column's [`factor`]; -∞ is
/// none.
#[inline(always)]
pub(super) fn fold_sums<const N: usize>(best: &mut Best, c: &[f32; N], factors: &ColumnScales) {
    let mut most = [ZERO; 4];
    unroll!(I in 0..8 => {
        if 8 * I < N {
            unroll!(J in 0..4 => {
                let a = mul(c[8 * I + J], factors[4 * I + J % 2]);
                let b = mul(c[8 * I + 4 + J], factors[4 * I + 2 + J % 2]);
                most[J] = most[J].max(a.to_bits()).max(b.to_bits());
            });
        }
    });
    unroll!(ROW in 0..2 => {
        let most = f32::from_bits(most[2 * ROW].max(most[2 * ROW + 1]));
        let most = bits(mul(most, SIMILARITY)).max(bits(best.value[ROW]));
        best.value[ROW] = f32::from_bits(most as u32);
    });
}

#[inline(always)]
fn bits(x: f32) -> i32 {
    x.to_bits() as i32
}

/// Whether the thread's maxima are right if they come from bits.
#[inline(always)]
pub(super) fn is_positive(best: &Best) -> bool {
    bits(best.value[0]).min(bits(best.value[1])) > 0
}

/// [`crate::primitives::accumulator::fold`] without winners, by bits.
#[inline(always)]
pub(super) fn fold_bits<const N: usize>(best: &mut Best, c: &[f32; N]) {
    // Four independent chains: two rows × two columns.
    let mut most = [bits(best.value[0]), i32::MIN, bits(best.value[1]), i32::MIN];
    unroll!(I in 0..8 => {
        if 8 * I < N {
            unroll!(J in 0..4 => {
                most[J] = most[J].max(bits(c[8 * I + J])).max(bits(c[8 * I + 4 + J]));
            });
        }
    });
    let float = |bits: i32| f32::from_bits(bits as u32);
    best.value = [float(most[0].max(most[1])), float(most[2].max(most[3]))];
}
