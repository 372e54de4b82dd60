//! Compresses tokens to codes of one byte, and decodes them.
//!
//! The formulas are those of [`maxsim_kernels::abi::quantize`], the same on every engine: equal
//! elements give equal codes and scales, to the bit, wherever they are made.

use half::f16;
use maxsim_kernels::abi::quantize;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::Tokens;
use super::element::Element;
use super::format::widen;
use super::format::{Format, Fp8, Int8, Int8Affine, Quantized, TokenFormat};
use super::scales::{ScaleType, Scales};
use crate::error::{Error, Result};
use crate::runtime::alloc::zeroed;
use crate::runtime::pool::Parallel;

/// Rows that a thread takes at once.
const CHUNK_LEN: usize = 256;

/// Codes of a matrix, with their scales.
type Codes<F> = (Vec<<F as Format>::Stored>, Scales<'static>);

/// How codes are made. Sealed: the module is private.
pub trait Quantizer: Format {
    /// Largest distance of neighbouring codes; rounding loses less than that, times the scale.
    #[doc(hidden)]
    const STEP: f64 = 1.0;

    /// The codes and scales of all rows; scales are of a type that the format has.
    #[doc(hidden)]
    fn codes_of<T: Element>(tokens: &Tokens<'_, T>, scales: ScaleType) -> Result<Codes<Self>>;
}

impl<T: Element> Tokens<'_, T> {
    /// Compresses the tokens to codes with scales: layout and mask stay.
    ///
    /// `F` is [`Int8`], [`Int8Affine`] or [`Fp8`], and `scales` says how scales are stored. With x
    /// the elements of a row, all in f32, rounded to nearest with ties to even:
    ///
    /// | format | scale | code |
    /// |---|---|---|
    /// | [`Int8`] | max(max abs x, 10⁻⁸) / 127 | rint(x / scale), clamped to ±127 |
    /// | [`Int8Affine`] | max(10⁻⁸, (max x − min x) / 255) | rint((x − min) / scale), 0 to 255 |
    /// | [`Fp8`] | max(max abs x, 10⁻⁶) / 448 | x / scale, to the nearest e4m3 number, saturating |
    ///
    /// Scales are rounded to their storage before they divide; as f16 they are clamped to
    /// 2⁻²⁴ … 65504, so rows whose scale would lie beyond lose more than half a step. The
    /// minimum of an affine row is f16 too, clamped to ±65504
    /// ([`QuantizeReport`](crate::format::QuantizeReport) counts such rows). With
    /// [`ScaleType::Tensor`] the maximum is that of the valid tokens' rows.
    ///
    /// An INT8 row with a NaN or an infinity has the scale NaN, codes 0 and (affine) the minimum
    /// 0. In FP8, elements that are not finite become e4m3's NaN, 0x7F, and count for no scale. So
    /// in either, similarities with such a token are NaN.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the format has no such scales, [`Error::HostMemory`].
    pub fn quantize<F: Quantized>(&self, scales: ScaleType) -> Result<Tokens<'static, F>> {
        check_scales::<F>(scales)?;
        let (codes, scales) = F::codes_of(self, scales)?;
        Tokens::assemble(codes.into(), Some(scales), self.layout().clone(), self.beside())
    }
}

impl<F: Quantized> Tokens<'_, F> {
    /// Decodes the codes to f32: exactly, but for products with an f32 scale and affine sums, which
    /// are rounded. Layout and mask stay.
    ///
    /// # Errors
    /// [`Error::HostMemory`].
    pub fn dequantize(&self) -> Result<Tokens<'static, f32>> {
        let dim = self.layout().dim();
        let mut values = zeroed(self.data().len() as u64)?;
        let scales = self.scales();
        let chunks = values.par_chunks_mut(CHUNK_LEN * dim).enumerate();
        let widened = |(chunk, values): (usize, &mut [f32])| {
            for (row, values) in (chunk * CHUNK_LEN..).zip(values.chunks_exact_mut(dim)) {
                widen::<F>(&self.data()[row * dim..][..dim], values);
                let (scale, min) = (scales.scale(row), scales.min(row));
                values.iter_mut().for_each(|x| *x = *x * scale + min);
            }
        };
        Parallel::new().over(self.data().len()).for_each(chunks, widened);
        Tokens::assemble(values.into(), None, self.layout().clone(), self.beside())
    }
}

impl Quantizer for Int8 {
    fn codes_of<T: Element>(tokens: &Tokens<'_, T>, scales: ScaleType) -> Result<Codes<Int8>> {
        let scale = |row: &[f32]| quantize::int8_scale(largest(row, |_| true));
        let encode = |row: &[f32], scale: f32, codes: &mut [i8]| {
            codes.iter_mut().zip(row).for_each(|(code, &x)| *code = quantize::int8_code(x, scale));
        };
        by_row(tokens, scales == ScaleType::F16, scale, encode)
    }
}

impl Quantizer for Int8Affine {
    fn codes_of<T: Element>(tokens: &Tokens<'_, T>, _: ScaleType) -> Result<Codes<Self>> {
        let (codes, params) = of_rows(tokens, |row, codes| {
            let largest = largest(row, |_| true);
            let (min, max) = row.iter().fold((row[0], row[0]), |(min, max), &x| {
                (if x < min { x } else { min }, if x > max { x } else { max })
            });
            let scale = f16_scale(quantize::affine_scale(min, max, largest));
            let min = f16::from_f32(quantize::affine_min(min, largest));
            let (divisor, start) = (scale.to_f32(), min.to_f32());
            for (code, &x) in codes.iter_mut().zip(row) {
                *code = quantize::affine_code(x, divisor, start);
            }
            [scale, min]
        })?;
        let column = |i: usize| params.iter().map(|row: &[f16; 2]| row[i]).collect::<Vec<f16>>();
        Ok((codes, Scales::Affine { scales: column(0).into(), mins: column(1).into() }))
    }
}

impl Quantizer for Fp8 {
    /// Distance of the largest neighbouring e4m3 numbers.
    const STEP: f64 = 32.0;

    fn codes_of<T: Element>(tokens: &Tokens<'_, T>, scales: ScaleType) -> Result<Codes<Fp8>> {
        let scale = |row: &[f32]| quantize::fp8_scale(largest(row, quantize::is_finite));
        let encode = |row: &[f32], scale: f32, codes: &mut [u8]| {
            codes.iter_mut().zip(row).for_each(|(code, &x)| *code = quantize::fp8_code(x, scale));
        };
        match scales {
            ScaleType::Tensor => {
                let scale = quantize::fp8_scale(largest_of_valid(tokens)?);
                let (codes, _) = of_rows(tokens, |row, codes| encode(row, scale, codes))?;
                Ok((codes, Scales::Tensor(scale)))
            }
            _ => by_row(tokens, scales == ScaleType::F16, scale, encode),
        }
    }
}

/// Codes with a scale for every row, as f16 or f32; codes are made with the scale as it is stored.
fn by_row<T: Element, C: bytemuck::Pod + Send>(
    tokens: &Tokens<'_, T>,
    as_f16: bool,
    scale: impl Fn(&[f32]) -> f32 + Sync,
    encode: impl Fn(&[f32], f32, &mut [C]) + Sync,
) -> Result<(Vec<C>, Scales<'static>)> {
    if as_f16 {
        let (codes, scales) = of_rows(tokens, |row, codes| {
            let scale = f16_scale(scale(row));
            encode(row, scale.to_f32(), codes);
            scale
        })?;
        return Ok((codes, Scales::F16(scales.into())));
    }
    let (codes, scales) = of_rows(tokens, |row, codes| {
        let scale = scale(row);
        encode(row, scale, codes);
        scale
    })?;
    Ok((codes, Scales::F32(scales.into())))
}

/// The codes of every row, and what else `encode` makes of it.
fn of_rows<T: Element, C: bytemuck::Pod + Send, P: bytemuck::Zeroable + Clone + Send>(
    tokens: &Tokens<'_, T>,
    encode: impl Fn(&[f32], &mut [C]) -> P + Sync,
) -> Result<(Vec<C>, Vec<P>)> {
    let dim = tokens.layout().dim();
    let mut codes = zeroed(tokens.data().len() as u64)?;
    let mut params = zeroed(tokens.layout().rows() as u64)?;
    let rows = tokens.data().par_chunks(CHUNK_LEN * dim);
    let outputs = codes.par_chunks_mut(CHUNK_LEN * dim).zip(params.par_chunks_mut(CHUNK_LEN));
    Parallel::new().over(tokens.data().len()).for_each_with(
        rows.zip(outputs),
        || vec![0.0; dim],
        |row, (elements, (codes, params)): (&[T], (&mut [C], &mut [P]))| {
            let codes = codes.chunks_exact_mut(dim).zip(params);
            for (elements, (codes, params)) in elements.chunks_exact(dim).zip(codes) {
                widen::<T>(elements, row);
                *params = encode(row, codes);
            }
        },
    );
    Ok((codes, params))
}

/// The largest magnitude of a row, as bits, among those that count.
fn largest(row: &[f32], counts: impl Fn(u32) -> bool) -> u32 {
    let magnitudes = row.iter().map(|&x| quantize::magnitude_bits(x));
    magnitudes.map(|bits| if counts(bits) { bits } else { 0 }).fold(0, u32::max)
}

/// The largest finite magnitude of all valid tokens, as bits.
fn largest_of_valid<T: Element>(tokens: &Tokens<'_, T>) -> Result<u32> {
    let dim = tokens.layout().dim();
    let mut values = vec![0.0; dim];
    let mut most = 0;
    for row in tokens.valid_rows()? {
        widen::<T>(&tokens.data()[row as usize * dim..][..dim], &mut values);
        most = most.max(largest(&values, quantize::is_finite));
    }
    Ok(most)
}

/// A scale as f16.
fn f16_scale(scale: f32) -> f16 {
    f16::from_f32(quantize::clamped_to_f16(scale))
}

/// Checks that a format has scales of a type.
pub(crate) fn check_scales<F: Format>(scales: ScaleType) -> Result<()> {
    let there_are = match (F::FORMAT, scales) {
        (TokenFormat::Int8, ScaleType::Tensor) => "f16 or f32",
        (TokenFormat::Int8Affine, ScaleType::F32 | ScaleType::Tensor) => "f16",
        _ => return Ok(()),
    };
    Err(Error::Unsupported {
        what: format!("{} tokens with scales of type {}", F::FORMAT, scales.name()),
        why: format!("their scales are {there_are}"),
    })
}
