//! f32 numbers as sums of two TF32 numbers, which tensor cores multiply exactly.
//!
//! With x = hi(x) + lo(x),
//!
//! ```text
//! q · d ≈ hi(q) · hi(d) + hi(q) · lo(d) + lo(q) · hi(d)        |error| ≤ 2⁻²¹ · |q · d|
//! ```
//!
//! hi is the nearest TF32 number, so |lo| ≤ 2⁻¹¹ |x|, of either sign: the product that is left
//! out, lo(q) · lo(d), is at most 2⁻²² |q · d| and has no bias. lo has up to 12 significant bits,
//! of which the tensor cores read 11: what is lost is one unit in the last place of x, at most
//! 2⁻²³ |x|, on either side. (TF32 numbers below 2⁻¹²⁶ may count as zero.)
//!
//! An infinite x meets lo = 0 on the other side, so the last two products are no numbers where
//! the first is infinite. Where the first one is finite they are too; hence they count only
//! where they are finite.

/// The bits of an f32 that make a TF32 number: sign, exponent and 10 fraction bits.
pub const TF32_BITS: u32 = !0x1FFF;

/// Half a unit in the last place of a TF32 number.
const HALF: u32 = 0x1000;

/// Bit that keeps a NaN one when its other fraction bits go.
const QUIET: u32 = 0x0040_0000;

/// Splits numbers into (hi, lo). For ±∞ hi is x, for NaN a NaN, and lo is 0.
///
/// Four at a time: all that is out of the ordinary shows in the sum of their lo.
#[inline(always)]
pub fn split(x: [f32; 4]) -> ([f32; 4], [f32; 4]) {
    // Ties go away from zero. The carry of a fraction moves into the exponent, as it should.
    let hi = x.map(|x| f32::from_bits(x.to_bits().wrapping_add(HALF) & TF32_BITS));
    let lo = [x[0] - hi[0], x[1] - hi[1], x[2] - hi[2], x[3] - hi[3]];
    let sum = (lo[0] + lo[1]) + (lo[2] + lo[3]);
    if is_finite(sum) {
        return (hi, lo);
    }
    let hi = [unusual_hi(x[0]), unusual_hi(x[1]), unusual_hi(x[2]), unusual_hi(x[3])];
    let lo = |i: usize| if is_finite(x[i]) { x[i] - hi[i] } else { 0.0 };
    (hi, [lo(0), lo(1), lo(2), lo(3)])
}

/// hi of any number: where the nearest TF32 number would be infinite, the next one towards zero,
/// whose lo has 13 significant bits.
#[inline(always)]
fn unusual_hi(x: f32) -> f32 {
    let bits = x.to_bits();
    let nearest = f32::from_bits(bits.wrapping_add(HALF) & TF32_BITS);
    // The carry of a NaN may have made anything of it.
    let truncates = x.is_nan() | !is_finite(nearest);
    let upper = if truncates { bits & TF32_BITS } else { nearest.to_bits() };
    let quiet = if x.is_nan() { QUIET } else { 0 };
    f32::from_bits(upper | quiet)
}

/// Whether `x` is neither infinite nor NaN: one comparison.
#[inline(always)]
pub fn is_finite(x: f32) -> bool {
    x.abs() < f32::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number as the tensor cores read it.
    fn tf32(x: f32) -> f32 {
        f32::from_bits(x.to_bits() & TF32_BITS)
    }

    fn split_one(x: f32) -> (f32, f32) {
        let (hi, lo) = split([1.0, x, -3.5, 0.0]);
        assert_eq!((hi[0], lo[0], hi[2], lo[2]), (1.0, 0.0, -3.5, 0.0));
        assert_eq!(hi[1].to_bits() & !TF32_BITS, 0, "{x:e}");
        (hi[1], lo[1])
    }

    /// Deterministic bits, one word after the other.
    fn words(n: usize) -> impl Iterator<Item = u32> {
        let mut state = 0x6d61_7873_696d_u64;
        (0..n).map(move |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 32) as u32
        })
    }

    /// Uniform in (-1, 1).
    fn numbers(n: usize) -> impl Iterator<Item = f32> {
        words(n).map(|word| word as i32 as f32 / 2_147_483_648.0)
    }

    #[test]
    fn both_parts_give_the_number_back() {
        let edges = [f32::MIN_POSITIVE, 1.0, 1.0 - f32::EPSILON / 2.0, 1.000_488_3, 3.0e38];
        let edges = edges.into_iter().flat_map(|x| [x, -x]);
        for x in words(200_000).map(f32::from_bits).chain(edges) {
            if !is_finite(x) || x.abs() < f32::MIN_POSITIVE {
                continue;
            }
            let (hi, lo) = split_one(x);
            assert_eq!(hi + lo, x);
            assert!(lo.abs() <= x.abs() / 2048.0, "{x:e} = {hi:e} + {lo:e}");
            // One unit in the last place of x, which is below TF32's numbers where x is tiny.
            let lost = f64::from(x) - f64::from(hi) - f64::from(tf32(lo));
            let unit = f64::from(x.abs()) * f64::from(f32::EPSILON);
            assert!(lost.abs() <= unit.max(2f64.powi(-136)), "{x:e} loses {lost:e}");
        }
    }

    #[test]
    fn what_is_a_tf32_number_has_no_lower_part() {
        for x in words(10_000).map(|word| f32::from_bits(word & TF32_BITS)) {
            if is_finite(x) {
                let (hi, lo) = split_one(x);
                assert_eq!((hi.to_bits(), lo), (x.to_bits(), 0.0));
            }
        }
        for x in [0.0, -0.0] {
            let (hi, lo) = split_one(x);
            assert_eq!((hi.to_bits(), lo), (f32::to_bits(x), 0.0));
        }
    }

    #[test]
    fn no_number_becomes_infinite_and_no_nan_a_number() {
        for x in [f32::MAX, f32::MIN, f32::from_bits(0x7F7F_F000), f32::from_bits(0x7F7F_EFFF)] {
            let (hi, lo) = split_one(x);
            assert!(is_finite(hi) && lo.abs() <= x.abs() / 1024.0);
            assert_eq!(hi + lo, x);
        }
        for x in [f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(split_one(x), (x, 0.0));
        }
        for bits in [0x7F80_0001, 0xFF80_0001, 0x7F80_1FFF, 0x7FC0_0000, 0x7FFF_FFFF, 0xFFFF_FFFF] {
            let (hi, lo) = split_one(f32::from_bits(bits));
            assert!(tf32(hi).is_nan() && lo == 0.0, "{bits:x}");
        }
        let (hi, lo) = split([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX]);
        assert!(hi[0] == f32::INFINITY && hi[1] == f32::NEG_INFINITY && hi[2].is_nan());
        assert_eq!((hi[3] + lo[3], &lo[..3]), (f32::MAX, &[0.0; 3][..]));
    }

    #[test]
    fn products_err_by_their_bound() {
        let mut numbers = numbers(200_000);
        while let (Some(q), Some(d)) = (numbers.next(), numbers.next()) {
            let ((hi_q, lo_q), (hi_d, lo_d)) = (split_one(q), split_one(d));
            let [hi_q, lo_q, hi_d, lo_d] =
                [hi_q, lo_q, hi_d, lo_d].map(|part| f64::from(tf32(part)));
            let exact = f64::from(q) * f64::from(d);
            let found = hi_q * hi_d + hi_q * lo_d + lo_q * hi_d;
            assert!((found - exact).abs() <= exact.abs() / 2f64.powi(21), "{q:e} · {d:e}");
        }
    }

    /// The kernels' order: 8 products a step, each step's sum truncated to f32, one sum per slab
    /// of 32 for the large products, one along the row for the small ones.
    fn similarity(q: &[[f32; 2]], d: &[[f32; 2]]) -> f32 {
        let step = |sum: f32, q: &[[f32; 2]], d: &[[f32; 2]], parts: [usize; 2]| {
            let products = q
                .iter()
                .zip(d)
                .map(|(q, d)| f64::from(tf32(q[parts[0]])) * f64::from(tf32(d[parts[1]])));
            truncated(f64::from(sum) + products.sum::<f64>())
        };
        let (mut total, mut small) = (0.0, 0.0);
        for (q, d) in q.chunks(32).zip(d.chunks(32)) {
            let mut large = 0.0;
            for (q, d) in q.chunks(8).zip(d.chunks(8)) {
                large = step(large, q, d, [0, 0]);
                small = step(small, q, d, [0, 1]);
                small = step(small, q, d, [1, 0]);
            }
            total += large;
        }
        total + small
    }

    /// Rounded to f32 towards zero.
    fn truncated(x: f64) -> f32 {
        let nearest = x as f32;
        if f64::from(nearest).abs() > x.abs() {
            f32::from_bits(nearest.to_bits() - 1)
        } else {
            nearest
        }
    }

    #[test]
    fn scores_of_random_unit_rows_err_by_less_than_a_millionth() {
        const DIM: usize = 128;
        const ROWS: usize = 96;
        let row = |numbers: &mut dyn Iterator<Item = f32>| {
            let mut row = [0.0; DIM];
            row.fill_with(|| numbers.next().expect("enough numbers"));
            // The square root by Newton's steps: core has none.
            let square: f32 = row.iter().map(|x| x * x).sum();
            let norm = (0..20).fold(square, |root, _| (root + square / root) / 2.0);
            row.map(|x| x / norm)
        };
        let mut numbers = numbers(2 * ROWS * DIM);
        let queries: [[f32; DIM]; ROWS] = core::array::from_fn(|_| row(&mut numbers));
        let documents: [[f32; DIM]; ROWS] = core::array::from_fn(|_| row(&mut numbers));
        let parts = |row: &[f32; DIM]| row.map(|x| <[f32; 2]>::from(split_one(x)));
        let documents_split = documents.each_ref().map(parts);
        let (mut score, mut exact) = (0.0f32, 0.0f64);
        for query in &queries {
            let query_split = parts(query);
            let found = documents_split.iter().map(|d| similarity(&query_split, d));
            score += found.fold(f32::NEG_INFINITY, f32::max);
            let dot = |d: &[f32; DIM]| -> f64 {
                query.iter().zip(d).map(|(&q, &d)| f64::from(q) * f64::from(d)).sum()
            };
            exact += documents.iter().map(dot).fold(f64::NEG_INFINITY, f64::max);
        }
        let error = (f64::from(score) / exact - 1.0).abs();
        assert!(error <= 5e-7, "relative error {error:e}");
    }
}
