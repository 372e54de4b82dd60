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

use super::element::ElementType;
use super::format::{Format, TokenFormat};
use crate::error::Result;
use crate::runtime::alloc::copy_of;
use crate::runtime::alloc::filled;
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
    let can_be = matches!(
        F::FORMAT,
        TokenFormat::Element(ElementType::F32) | TokenFormat::Element(ElementType::Bf16)
    );
    if !can_be || !any_is_large::<F>(data) {
        return Ok(None);
    }
    let mut factors = filled((data.len() / dim) as u64, 1.0)?;
    for (factor, row) in factors.iter_mut().zip(data.chunks_exact(dim)) {
        *factor = factor_of(largest::<F>(row));
    }
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok(None);
    }
    let mut data = copy_of(data)?;
    let rows = data.par_chunks_mut(dim).zip(&factors[..]);
    Parallel::new().share(|min_len| {
        rows.with_min_len(min_len).for_each(|(row, &factor)| scale::<F>(row, factor));
    });
    Ok(Some(ScaledRows { data, factors }))
}

/// Whether some element may be too large, or is no number.
fn any_is_large<F: Format>(data: &[F::Stored]) -> bool {
    let is_large = |chunk: &[F::Stored]| largest::<F>(chunk) >= LARGEST.to_bits();
    let chunks = data.par_chunks(CHUNK_LEN);
    Parallel::new().share(|min_len| chunks.with_min_len(min_len).any(is_large))
}

/// The bits of the largest |x|, as an f32. A NaN is above all numbers.
fn largest<F: Format>(elements: &[F::Stored]) -> u32 {
    match F::FORMAT {
        TokenFormat::Element(ElementType::F32) => {
            let bits = bytemuck::cast_slice::<_, u32>(elements).iter();
            bits.fold(0, |most, bits| most.max(bits & 0x7FFF_FFFF))
        }
        TokenFormat::Element(ElementType::Bf16) => {
            let bits = bytemuck::cast_slice::<_, u16>(elements).iter();
            u32::from(bits.fold(0, |most: u16, bits| most.max(bits & 0x7FFF))) << 16
        }
        _ => 0,
    }
}

/// Factor of a row, by its [`largest`] element: which then is 1 or more, and below 2.
fn factor_of(largest: u32) -> f32 {
    if !(LARGEST.to_bits()..f32::INFINITY.to_bits()).contains(&largest) {
        return 1.0;
    }
    let exponent = (largest >> 23) as i32 - 127;
    2f64.powi(-exponent) as f32
}

fn scale<F: Format>(row: &mut [F::Stored], factor: f32) {
    if factor == 1.0 {
        return;
    }
    match F::FORMAT {
        TokenFormat::Element(ElementType::F32) => {
            bytemuck::cast_slice_mut::<_, f32>(row).iter_mut().for_each(|x| *x *= factor);
        }
        TokenFormat::Element(ElementType::Bf16) => {
            let row = bytemuck::cast_slice_mut::<_, half::bf16>(row);
            row.iter_mut().for_each(|x| *x = half::bf16::from_f32(x.to_f32() * factor));
        }
        _ => {}
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
