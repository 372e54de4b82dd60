//! Host/device ABI of the losses over rows of scores.
//!
//! A row is the scores of one query. `rows` computes each query's loss and its gradients, `mean`
//! adds the losses. Every order is fixed by the sizes alone, so that results have the same bits
//! every time.
//!
//! The factor 1 / T of all scores may be beyond the range of an f32 where the temperature T is not:
//! a [`Factor`] is a product of two numbers that stay within.

/// Threads per block of every entry here.
pub const THREADS: usize = 256;

/// Warps per block.
pub const WARPS: u32 = THREADS as u32 / 32;

/// Dynamic shared memory of every entry here in bytes: a number per warp.
pub const SHARED_BYTES: usize = WARPS as usize * 4;

/// Longest rows that a warp has for itself; of longer ones each has a block.
pub const WARP_DOCUMENTS_MAX: u32 = 128;

/// Rows of a block.
pub const fn rows_per_block(n_documents: u32) -> u32 {
    if n_documents <= WARP_DOCUMENTS_MAX { WARPS } else { 1 }
}

/// A number as the product of two.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor {
    /// A power of two: what is multiplied by it is not rounded, unless to nothing.
    pub power: f32,
    /// The rest.
    pub rest: f32,
}

impl Factor {
    /// `value`, above 0 and well within the range of f64, rounded to the precision of f32.
    pub fn new(value: f64) -> Factor {
        const POWER: f64 = (1u128 << 96) as f64;
        let power = match value {
            0.0..1e-30 => 1.0 / POWER,
            1e30.. => POWER,
            _ => 1.0,
        };
        Factor { power: power as f32, rest: (value / power) as f32 }
    }

    /// `x` times the number.
    #[inline(always)]
    pub fn of(&self, x: f32) -> f32 {
        x * self.power * self.rest
    }
}

/// A sum of n terms with an error of 2⁻²⁴ of itself, plus at worst n² · 2⁻⁴⁸ of their magnitude
/// (Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", ZAMM 54,
/// 1974).
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    sum: f32,
    /// Sum of the rounding errors so far.
    lost: f32,
}

impl Sum {
    /// The sum of no numbers.
    pub const ZERO: Sum = Sum { sum: 0.0, lost: 0.0 };

    /// Adds a term.
    #[inline(always)]
    pub fn add(&mut self, term: f32) {
        let sum = self.sum + term;
        let added = sum - self.sum;
        self.lost += (self.sum - (sum - added)) + (term - added);
        self.sum = sum;
    }

    /// The sum; of terms that are not finite, as if they were just added.
    #[inline(always)]
    pub fn value(&self) -> f32 {
        if self.sum.is_finite() { self.sum + self.lost } else { self.sum }
    }
}

/// Parameters of `maxsim_loss_contrastive` and `maxsim_loss_distillation`: a block per
/// [`rows_per_block`] rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowsParams {
    /// Address of the f32 scores `[n_queries, n_documents]`.
    pub scores: u64,
    /// Address of a u32 column per query, its positive; or of the teacher's f32 scores
    /// `[n_queries, n_documents]`.
    pub targets: u64,
    /// Address of the f32 gradients of the scores.
    pub grad_scores: u64,
    /// Address of an f32 loss per query.
    pub losses: u64,
    /// Number of rows.
    pub n_queries: u32,
    /// Length of a row, not 0.
    pub n_documents: u32,
    /// 2 · log₂ e / T, for halves of differences of scores.
    pub scale: Factor,
    /// 1 / (T · n_queries).
    pub grad_scale: Factor,
}

/// Parameters of `maxsim_loss_mean`: one block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MeanParams {
    /// Address of an f32 loss per query.
    pub losses: u64,
    /// Address of their f32 mean.
    pub mean: u64,
    /// Number of losses; the mean of none is 0.
    pub n_queries: u32,
    /// 1 / n_queries.
    pub inverse: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_no_padding_that_nobody_named() {
        assert_eq!(size_of::<RowsParams>(), 4 * 8 + 2 * 4 + 2 * 8);
        assert_eq!(size_of::<MeanParams>(), 2 * 8 + 2 * 4);
    }

    #[test]
    fn factors_go_beyond_the_range_of_f32() {
        for t in [1e-45f32, 1e-40, 1e-30, 0.02, 1.0, 30.0, 1e30, f32::MAX] {
            let exact = 1.0 / f64::from(t);
            let factor = Factor::new(exact);
            assert!(factor.power.is_normal() && factor.rest.is_normal(), "{t}: {factor:?}");
            let product = f64::from(factor.power) * f64::from(factor.rest);
            assert!((product / exact - 1.0).abs() <= 2f64.powi(-24), "{t}: {factor:?}");
            // In the order in which the kernels multiply: T · (1 / T).
            assert!((factor.of(t) - 1.0).abs() <= 1e-6 || t < 1e-38, "{t}: {}", factor.of(t));
            assert_eq!(factor.of(0.0), 0.0);
            assert_eq!(factor.of(f32::NEG_INFINITY), f32::NEG_INFINITY);
        }
    }

    #[test]
    fn sums_do_not_err_more_with_more_terms() {
        let mut sum = Sum::ZERO;
        let mut exact = 0.0;
        // A thread has as many of a row of 25 million.
        for i in 0..100_000u32 {
            let term = 1.0 / (1.0 + (i % 1000) as f32);
            sum.add(term);
            exact += f64::from(term);
        }
        let error = (f64::from(sum.value()) / exact - 1.0).abs();
        assert!(error <= 2f64.powi(-23), "{error:e}");
    }

    #[test]
    fn sums_of_what_is_not_finite_are_those_of_plain_additions() {
        const INF: f32 = f32::INFINITY;
        let of = |terms: &[f32]| {
            let mut sum = Sum::ZERO;
            terms.iter().for_each(|&term| sum.add(term));
            sum.value()
        };
        assert_eq!(of(&[]).to_bits(), 0);
        assert_eq!(of(&[1.0, INF, 2.0, INF, -3.0]), INF);
        assert_eq!(of(&[f32::MAX, f32::MAX, 1.0]), INF);
        assert!(of(&[1.0, f32::NAN, 2.0]).is_nan() && of(&[INF, -INF]).is_nan());
    }

    #[test]
    fn short_rows_share_a_block() {
        assert_eq!([1, 128, 129, u32::MAX].map(rows_per_block), [8, 8, 1, 1]);
    }
}
