//! A compressed file, written a run of rows at a time, so that only scales must fit in memory.

use std::io::Write;
use std::ops::Range;

use anyhow::{Context, Result};
use half::{bf16, f16};
use indicatif::ProgressBar;
use maxsim::{
    Element, ElementType, LayoutKind, Quantized, ScaleType, Scales, TokenFormat, TokenLayout,
    Tokens,
};
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Serialize;

use crate::input::TokenFile;

/// Elements that are compressed at once.
const CHUNK_LEN: usize = 1 << 24;

/// Rows that a thread takes at once.
const ROWS_LEN: usize = 256;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Written {
    /// Tokens of all items.
    pub n_tokens: usize,
    /// Elements per token.
    pub dim: usize,
    /// Bytes of the embeddings as they were.
    pub bytes_before: u64,
    /// Bytes of codes and scales.
    pub bytes: u64,
    /// How many times smaller that is.
    pub ratio: f64,
    /// How far elements of tokens are off, on average. Those of tokens that are not finite do not
    /// count.
    pub mean_error: f64,
    /// How far any element is off.
    pub max_error: f64,
    /// Tokens with a NaN or an infinity.
    pub n_not_finite: usize,
}

/// Writes the file's embeddings, compressed, and says what became of them.
pub(super) fn write<F: Quantized>(
    file: &TokenFile,
    scales: ScaleType,
    out: &mut dyn Write,
    progress: &ProgressBar,
) -> Result<Written> {
    match file.contents().format {
        TokenFormat::Element(ElementType::F16) => {
            Writer::<f16>::new(file).write::<F>(scales, out, progress)
        }
        TokenFormat::Element(ElementType::Bf16) => {
            Writer::<bf16>::new(file).write::<F>(scales, out, progress)
        }
        _ => Writer::<f32>::new(file).write::<F>(scales, out, progress),
    }
}

/// A file of elements that are compressed.
struct Writer<'a, T> {
    file: &'a TokenFile,
    /// Rows that belong to an item.
    is_used: Vec<bool>,
    element: std::marker::PhantomData<T>,
}

impl<'a, T: Element> Writer<'a, T> {
    fn new(file: &'a TokenFile) -> Self {
        let layout = file.layout();
        let mut is_used = vec![false; layout.rows()];
        (0..layout.n_items()).for_each(|item| is_used[layout.item_rows(item)].fill(true));
        Writer { file, is_used, element: std::marker::PhantomData }
    }

    fn write<F: Quantized>(
        &self,
        scales: ScaleType,
        out: &mut dyn Write,
        progress: &ProgressBar,
    ) -> Result<Written> {
        let layout = self.file.layout();
        let (rows, dim) = (layout.rows(), layout.dim());
        let (header, offsets) = header::<F>(layout, scales)?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        out.write_all(bytemuck::cast_slice(&offsets))?;
        // One scale for all tokens needs them all.
        let step = if scales == ScaleType::Tensor { rows } else { (CHUNK_LEN / dim).max(1) };
        let (mut scale_bytes, mut min_bytes) = (Vec::new(), Vec::new());
        let mut errors = Errors::default();
        let mut start = 0;
        // A file without rows has a scale all the same, where it is one for all.
        while start < rows || rows == 0 && start == 0 && scales == ScaleType::Tensor {
            let part = start..(start + step).min(rows);
            let elements = self.file.elements::<T>(part.clone())?;
            let layout = match part.len() == rows {
                true => layout.clone(),
                false => TokenLayout::padded(1, part.len(), dim)?,
            };
            let codes = Tokens::from_layout(elements, layout)?;
            let (elements, codes) = (&codes, codes.quantize::<F>(scales)?);
            out.write_all(bytemuck::cast_slice(codes.data()))?;
            match codes.scales() {
                Scales::F16(scales) => scale_bytes.extend_from_slice(bytemuck::cast_slice(scales)),
                Scales::F32(scales) => scale_bytes.extend_from_slice(bytemuck::cast_slice(scales)),
                Scales::Tensor(scale) => scale_bytes.extend_from_slice(&scale.to_le_bytes()),
                Scales::Affine { scales, mins } => {
                    scale_bytes.extend_from_slice(bytemuck::cast_slice(scales));
                    min_bytes.extend_from_slice(bytemuck::cast_slice(mins));
                }
            }
            errors = errors.and(self.errors(elements.data(), codes.dequantize()?.data(), &part));
            progress.inc(part.len() as u64);
            start = part.end.max(start + 1);
        }
        out.write_all(&scale_bytes)?;
        out.write_all(&min_bytes)?;

        let bytes_before = (rows * dim * size_of::<T>()) as u64;
        let bytes = (rows * dim + scale_bytes.len() + min_bytes.len()) as u64;
        let n_elements = ((errors.n_tokens - errors.n_not_finite) * dim).max(1);
        Ok(Written {
            n_tokens: errors.n_tokens,
            dim,
            bytes_before,
            bytes,
            ratio: bytes_before as f64 / bytes.max(1) as f64,
            mean_error: errors.sum / n_elements as f64,
            max_error: errors.max,
            n_not_finite: errors.n_not_finite,
        })
    }

    /// How far the elements of the rows that belong to items are off.
    fn errors(&self, elements: &[T], values: &[f32], rows: &Range<usize>) -> Errors {
        let dim = self.file.layout().dim();
        let elements = elements.par_chunks(ROWS_LEN * dim);
        let parts = elements.zip(values.par_chunks(ROWS_LEN * dim));
        let of_part = |(elements, values): (&[T], &[f32]), is_used: &[bool]| {
            let rows = elements.chunks_exact(dim).zip(values.chunks_exact(dim)).zip(is_used);
            rows.filter(|(_, is_used)| **is_used).fold(Errors::default(), |errors, (row, _)| {
                let pairs = row.0.iter().map(|x| x.to_f32()).zip(row.1);
                if !row.0.iter().all(|x| x.to_f32().is_finite()) {
                    return errors.and(Errors {
                        n_tokens: 1,
                        n_not_finite: 1,
                        ..Errors::default()
                    });
                }
                let errors_of = pairs.map(|(x, &y)| (f64::from(x) - f64::from(y)).abs());
                let (sum, max) =
                    errors_of.fold((0.0, 0.0), |(s, m): (f64, f64), e| (s + e, m.max(e)));
                errors.and(Errors { n_tokens: 1, sum, max, ..Errors::default() })
            })
        };
        let is_used = self.is_used[rows.clone()].par_chunks(ROWS_LEN);
        // In order, so that the sum is the same in every run.
        let parts: Vec<Errors> =
            parts.zip(is_used).map(|(part, used)| of_part(part, used)).collect();
        parts.into_iter().fold(Errors::default(), Errors::and)
    }
}

/// Errors of some tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    n_tokens: usize,
    n_not_finite: usize,
    sum: f64,
    max: f64,
}

impl Errors {
    fn and(self, other: Errors) -> Errors {
        Errors {
            n_tokens: self.n_tokens + other.n_tokens,
            n_not_finite: self.n_not_finite + other.n_not_finite,
            sum: self.sum + other.sum,
            max: self.max.max(other.max),
        }
    }
}

/// The header of the file, and the offsets or lengths, which come first.
fn header<F: Quantized>(layout: &TokenLayout, scales: ScaleType) -> Result<(Vec<u8>, Vec<i64>)> {
    let (n, rows, dim) = (layout.n_items(), layout.rows(), layout.dim());
    let lengths = || layout.segments().iter().map(|&[_, len]| i64::from(len));
    let (name, items, row_shape) = match layout.kind() {
        LayoutKind::Padded => {
            // Without rows, any length will do.
            let len = rows.checked_div(n).unwrap_or(0);
            ("lengths", lengths().collect::<Vec<i64>>(), vec![n, len])
        }
        LayoutKind::Packed | LayoutKind::Scattered => {
            let first = layout.segments().first().map_or(0, |&[start, _]| i64::from(start));
            let ends = layout.segments().iter().map(|&[start, len]| i64::from(start + len));
            ("offsets", std::iter::once(first).chain(ends).collect(), vec![rows])
        }
    };
    let codes = match F::FORMAT {
        TokenFormat::Int8 => Dtype::I8,
        TokenFormat::Int8Affine => Dtype::U8,
        _ => Dtype::F8_E4M3,
    };
    let (dtype, scales_shape) = match scales {
        ScaleType::F16 => (Dtype::F16, row_shape.clone()),
        ScaleType::F32 => (Dtype::F32, row_shape.clone()),
        ScaleType::Tensor => (Dtype::F32, vec![1]),
    };
    let codes_shape = [&row_shape[..], &[dim]].concat();
    let mut tensors = vec![
        (name, Dtype::I64, vec![items.len()]),
        ("embeddings", codes, codes_shape),
        ("scales", dtype, scales_shape),
    ];
    if F::FORMAT == TokenFormat::Int8Affine {
        tensors.push(("mins", Dtype::F16, row_shape));
    }
    let mut end = 0;
    let tensors = tensors.into_iter().map(|(name, dtype, shape)| {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name.to_string(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let metadata = Metadata::new(None, tensors.collect()).context("the file's header")?;
    let mut header = serde_json::to_vec(&metadata)?;
    // Whatever follows is on a boundary of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok((header, items))
}
