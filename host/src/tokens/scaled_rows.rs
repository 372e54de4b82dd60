//! Rows too long for f32 to square, times powers of two that bring them into its range.
//!
//! A row that is normalised is multiplied by r = 1 / √max(‖x‖², 10⁻¹²), and its dot products are
//! formed before that. Both overflow f32 long before an element does, from about 2⁶³ on. A power of
//! two changes no bit of an element's fraction, and r takes it out again: x · 2⁻ᵏ has the direction
//! of x, exactly. Rows whose elements are below [`LARGEST`] stay as they are.
//!
//! f16 needs none of this: 4096 elements of 65504 have a squared length of 2 · 10¹³.

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::dispatch::with_format;
use super::element::Element;
use super::format::{Format, TokenFormat};
use crate::error::Result;
use crate::runtime::alloc::filled;
use crate::runtime::alloc::shared_copy_of;
use crate::runtime::pool::Parallel;

/// 2⁵⁰: rows of 4096 elements below this have squared lengths and dot products below 2¹¹².
pub(crate) const LARGEST: f32 = (1u64 << 50) as f32;

/// Elements that a thread looks at at once.
const CHUNK_LEN: usize = 1 << 18;

/// A matrix in which no row is too long.
#[derive(Debug)]
pub(crate) struct ScaledRows<S> {
    /// `[rows, dim]`.
    pub data: Vec<S>,
    /// Factor that each row was multiplied by: 1, or a power of two below.
    pub factors: Vec<f32>,
}

/// The rows of a matrix `[rows, dim]`, each times a power of two where it is too long; `None` where
/// none is. A row with a NaN or an infinity stays as it is.
pub(crate) fn scaled_rows<F: Format>(
    data: &[F::Stored],
    dim: usize,
) -> Result<Option<ScaledRows<F::Stored>>> {
    let factors = with_format!(F::FORMAT, {
        element T => factors_of::<T>(bytemuck::cast_slice(data), dim)?,
        _ => None,
    });
    let Some(factors) = factors else { return Ok(None) };
    let mut data = shared_copy_of(data)?;
    with_format!(F::FORMAT, {
        element T => scale::<T>(bytemuck::cast_slice_mut(&mut data), dim, &factors),
        _ => {},
    });
    Ok(Some(ScaledRows { data, factors }))
}

/// Whether rows of a format may be too long.
pub(crate) fn may_be_long(format: TokenFormat) -> bool {
    with_format!(format, {
        element T => T::from_f32(LARGEST).to_f32().is_finite(),
        _ => false,
    })
}

/// Multiplies the rows that are too long by a power of two each, where they are.
pub(crate) fn scale_in_place<F: Format>(data: &mut [F::Stored], dim: usize) {
    with_format!(F::FORMAT, {
        element T => scale_each::<T>(bytemuck::cast_slice_mut(data), dim),
        _ => {},
    });
}

fn scale_each<T: Element>(elements: &mut [T], dim: usize) {
    for row in elements.chunks_exact_mut(dim) {
        scale_row(row, factor_of(T::largest_magnitude(row)));
    }
}

/// Factors of rows; `None` where all are 1.
fn factors_of<T: Element>(elements: &[T], dim: usize) -> Result<Option<Vec<f32>>> {
    if !may_be_long(T::FORMAT) || !any_is_large(elements) {
        return Ok(None);
    }
    let mut factors = filled((elements.len() / dim) as u64, 1.0)?;
    for (factor, row) in factors.iter_mut().zip(elements.chunks_exact(dim)) {
        *factor = factor_of(T::largest_magnitude(row));
    }
    let is_any = factors.iter().any(|&factor| factor != 1.0);
    Ok(is_any.then_some(factors))
}

/// Whether some element may be too large, or is no number.
fn any_is_large<T: Element>(elements: &[T]) -> bool {
    let is_large = |chunk: &[T]| {
        let largest = T::largest_magnitude(chunk);
        largest >= LARGEST || largest.is_nan()
    };
    let parallel = Parallel::new().over(elements.len());
    if parallel.is_alone() {
        return elements.chunks(CHUNK_LEN).any(is_large);
    }
    parallel.share(|_| elements.par_chunks(CHUNK_LEN).any(is_large))
}

/// Factor of a row, by its largest magnitude: which then is 1 or more, and below 2.
fn factor_of(largest: f32) -> f32 {
    if !(LARGEST..f32::INFINITY).contains(&largest) {
        return 1.0;
    }
    let exponent = (largest.to_bits() >> 23) as i32 - 127;
    2f64.powi(-exponent) as f32
}

/// Multiplies each row by its factor.
fn scale<T: Element>(elements: &mut [T], dim: usize, factors: &[f32]) {
    let parallel = Parallel::new().over(elements.len());
    let rows = elements.par_chunks_mut(dim).zip(factors);
    parallel.for_each(rows, |(row, &factor): (&mut [T], &f32)| scale_row(row, factor));
}

fn scale_row<T: Element>(row: &mut [T], factor: f32) {
    if factor != 1.0 {
        row.iter_mut().for_each(|x| *x = T::from_f32(x.to_f32() * factor));
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn long_rows_keep_their_fractions_and_others_their_bits() {
        let huge = 1.5 * 2f32.powi(127);
        let rows = [1.0f32, -2.0, huge, -huge / 4.0, LARGEST, 3.0, LARGEST.next_down(), 0.0];
        let scaled = scaled_rows::<f32>(&rows, 2).unwrap().unwrap();
        assert_eq!(scaled.factors, [1.0, 2f32.powi(-127), 2f32.powi(-50), 1.0]);
        let small = 3.0 * 2f32.powi(-50);
        let expected = [1.0, -2.0, 1.5, -0.375, 1.0, small, LARGEST.next_down(), 0.0];
        assert_eq!(scaled.data, expected);
        let rows = rows.map(bf16::from_f32);
        let scaled = scaled_rows::<bf16>(&rows, 2).unwrap().unwrap();
        assert_eq!(scaled.data[..6], expected.map(bf16::from_f32)[..6]);
    }

    #[test]
    fn rows_that_need_nothing_are_not_copied() {
        assert!(scaled_rows::<f32>(&[1.0, LARGEST.next_down()], 2).unwrap().is_none());
        assert!(scaled_rows::<f32>(&[f32::NAN, 1e30, f32::INFINITY, 1e30], 2).unwrap().is_none());
        assert!(scaled_rows::<f16>(&[f16::MAX; 4], 2).unwrap().is_none());
        assert!(scaled_rows::<f32>(&[], 3).unwrap().is_none());
    }
}
