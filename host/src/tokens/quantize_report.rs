//! Measures losses beyond the rounding of codes: where a scale or a minimum cannot hold what a row
//! needs.

use maxsim_kernels::abi::quantize::F16_MAX;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSlice;

use super::Tokens;
use super::element::Element;
use super::format::Quantized;
use super::format::widen;
use super::layout::TokenLayout;
use super::scales::Scales;
use crate::error::{Error, Result};
use crate::runtime::pool::Parallel;

/// Rows that a thread takes at once.
const CHUNK_LEN: usize = 256;

/// The share of a row's largest magnitude that an element may be off: FP8's rounding loses half of
/// that, INT8's a thirtieth.
const COARSE: f64 = 1.0 / 8.0;

/// Counts of tokens that lost more than the rounding of codes takes, and how much.
///
/// [`Tokens::quantize`] clamps scales (and minima) to what their storage holds. Elements of rows
/// that need more are clipped: as f16 from about 8.3 · 10⁶ on (INT8), 2.9 · 10⁷ (FP8), and for
/// [`Int8Affine`](crate::format::Int8Affine) also where a row's minimum is beyond ±65504. Rows of
/// tiny elements lose bits, or become zeros: as f16 below about 3 · 10⁻⁵ (INT8). With
/// [`ScaleType::F32`](crate::format::ScaleType) nothing is clipped, and only rows below 10⁻⁸ (INT8)
/// or 10⁻⁶ (FP8) lose more.
///
/// Rows that no item has, that the mask switches off, or that have elements that are not finite do
/// not count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct QuantizeReport {
    /// Valid tokens of finite elements.
    pub n_tokens: u64,
    /// Tokens with clipped elements.
    pub n_clipped_tokens: u64,
    /// Elements that became smaller by more than a step of their row's codes, as the scale or the
    /// minimum is the largest there is.
    pub n_clipped: u64,
    /// How far the worst of them is off.
    pub largest_clip: f64,
    /// Other tokens with an element that is off by more than an eighth of the largest: they keep
    /// two bits or fewer.
    pub n_coarse_tokens: u64,
    /// Coarse tokens that became zeros.
    pub n_zeroed_tokens: u64,
}

impl QuantizeReport {
    /// Compares codes with what they were made of.
    ///
    /// ```
    /// use maxsim::Tokens;
    /// use maxsim::format::{Int8, QuantizeReport, ScaleType};
    ///
    /// let tokens = Tokens::padded(&[1.8e9f32, 1.0, 0.5, 0.25], 2, 1, 2)?;
    /// let codes = tokens.quantize::<Int8>(ScaleType::F16)?;
    /// let report = QuantizeReport::measured(&codes, &tokens)?;
    /// assert_eq!((report.n_clipped, report.n_tokens), (1, 2));
    /// let codes = tokens.quantize::<Int8>(ScaleType::F32)?;
    /// let of_f32 = QuantizeReport::measured(&codes, &tokens)?;
    /// assert!(of_f32.is_rounding_alone());
    /// // Of a corpus that is quantized in parts.
    /// let both = report.and(of_f32);
    /// assert_eq!((both.n_clipped, both.n_tokens), (1, 4));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where the matrices are not of one size, [`Error::HostMemory`].
    pub fn measured<F: Quantized, T: Element>(
        codes: &Tokens<'_, F>,
        tokens: &Tokens<'_, T>,
    ) -> Result<QuantizeReport> {
        let size = |layout: &TokenLayout| (layout.rows(), layout.dim());
        let of = |layout: &TokenLayout| format!("{} rows of {}", layout.rows(), layout.dim());
        if size(tokens.layout()) != size(codes.layout()) {
            return Err(Error::Shape {
                argument: "tokens",
                expected: of(codes.layout()),
                found: of(tokens.layout()),
            });
        }
        let rows = codes.valid_rows()?;
        let of_chunk = |rows: &[u32]| {
            let of_row = |row: &u32| QuantizeReport::of_row(codes, tokens, *row as usize);
            rows.iter().map(of_row).fold(QuantizeReport::default(), QuantizeReport::and)
        };
        // In any order: counts and a maximum.
        Ok(Parallel::new().share(|min_len| {
            let chunks = rows.par_chunks(CHUNK_LEN).with_min_len(min_len);
            chunks.map(of_chunk).reduce(QuantizeReport::default, QuantizeReport::and)
        }))
    }

    /// Whether no token lost more than the rounding of codes takes.
    pub fn is_rounding_alone(&self) -> bool {
        self.n_clipped_tokens == 0 && self.n_coarse_tokens == 0
    }

    /// Adds the counts of other tokens.
    pub fn and(self, other: QuantizeReport) -> QuantizeReport {
        QuantizeReport {
            n_tokens: self.n_tokens + other.n_tokens,
            n_clipped_tokens: self.n_clipped_tokens + other.n_clipped_tokens,
            n_clipped: self.n_clipped + other.n_clipped,
            largest_clip: self.largest_clip.max(other.largest_clip),
            n_coarse_tokens: self.n_coarse_tokens + other.n_coarse_tokens,
            n_zeroed_tokens: self.n_zeroed_tokens + other.n_zeroed_tokens,
        }
    }

    fn of_row<F: Quantized, T: Element>(
        codes: &Tokens<'_, F>,
        tokens: &Tokens<'_, T>,
        row: usize,
    ) -> QuantizeReport {
        let dim = tokens.layout().dim();
        let elements = &tokens.data()[row * dim..][..dim];
        if !elements.iter().all(|x| x.to_f32().is_finite()) {
            return QuantizeReport::default();
        }
        let mut values = vec![0.0; dim];
        widen::<F>(&codes.data()[row * dim..][..dim], &mut values);
        let scales = codes.scales();
        let (scale, min) = (f64::from(scales.scale(row)), f64::from(scales.min(row)));
        let step = F::STEP * scale;
        let (mut largest, mut largest_error, mut largest_value) = (0.0f64, 0.0f64, 0.0f64);
        let mut n_clipped = 0;
        for (x, code) in elements.iter().zip(&values) {
            let (x, value) = (f64::from(x.to_f32()), f64::from(*code) * scale + min);
            let error = (x - value).abs();
            n_clipped += u64::from(error > step);
            largest = largest.max(x.abs());
            largest_value = largest_value.max(value.abs());
            largest_error = largest_error.max(error);
        }
        let mut report = QuantizeReport { n_tokens: 1, ..QuantizeReport::default() };
        if n_clipped > 0 && is_at_the_end(scales, row) {
            report.n_clipped_tokens = 1;
            report.n_clipped = n_clipped;
            report.largest_clip = largest_error;
        } else if largest_error > COARSE * largest {
            report.n_coarse_tokens = 1;
            report.n_zeroed_tokens = u64::from(largest_value == 0.0);
        }
        report
    }
}

/// Whether a row's scale or minimum is the largest that its storage has.
fn is_at_the_end(scales: &Scales<'_>, row: usize) -> bool {
    let is_f16 = matches!(scales, Scales::F16(_) | Scales::Affine { .. });
    is_f16 && (scales.scale(row) >= F16_MAX || scales.min(row).abs() >= F16_MAX)
}
