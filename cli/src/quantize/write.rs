//! A compressed file, written a run of rows at a time, so that only scales must fit in memory.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::{Context, Result};
use half::{bf16, f16};
use indicatif::ProgressBar;
use maxsim::{
    Element, ElementType, LayoutKind, Quantized, ScaleType, Scales, TokenFormat, TokenLayout,
    Tokens,
};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::errors::{Errors, Written, used_rows};
use crate::input::{Change, TokenFile};
use crate::output::Destination;
use crate::provenance::{Digests, Notes};

/// Elements that are compressed at once.
pub(super) const CHUNK_LEN: usize = 1 << 24;

/// Writes the file's embeddings, compressed, and says what became of them.
pub(super) fn write<F: Quantized>(
    file: &TokenFile,
    scales: ScaleType,
    destination: &Destination,
    progress: &ProgressBar,
) -> Result<(Written, Notes)> {
    match file.contents().format {
        TokenFormat::Element(ElementType::F16) => {
            Writer::<f16>::new(file).write::<F>(scales, destination, progress)
        }
        TokenFormat::Element(ElementType::Bf16) => {
            Writer::<bf16>::new(file).write::<F>(scales, destination, progress)
        }
        _ => Writer::<f32>::new(file).write::<F>(scales, destination, progress),
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
        Writer { file, is_used: used_rows(file.layout()), element: std::marker::PhantomData }
    }

    /// The digests are known when all has been read, and the header that has them comes first: in a file
    /// it is written again, for a pipe everything is compressed twice.
    fn write<F: Quantized>(
        &self,
        scales: ScaleType,
        destination: &Destination,
        progress: &ProgressBar,
    ) -> Result<(Written, Notes)> {
        let layout = self.file.layout();
        let mut notes = Notes::empty::<T>(self.file);
        if !destination.is_file() {
            notes = self.body::<F>(scales, &mut io::sink(), &ProgressBar::hidden())?.1;
        }
        let mut written = None;
        destination.write_with_head(|out| {
            let (head, offsets) = header::<F>(layout, scales, &notes)?;
            out.write_all(&head)?;
            out.write_all(bytemuck::cast_slice(&offsets))?;
            let found = self.body::<F>(scales, out, progress)?;
            let (head, _) = header::<F>(layout, scales, &found.1)?;
            // Before the file appears.
            self.file.check_unchanged(Change::Content)?;
            written = Some(found);
            Ok(head)
        })?;
        written.context("nothing was written")
    }

    /// Writes all but the header, and says what the digests are.
    fn body<F: Quantized>(
        &self,
        scales: ScaleType,
        out: &mut dyn Write,
        progress: &ProgressBar,
    ) -> Result<(Written, Notes)> {
        let layout = self.file.layout();
        let (rows, dim) = (layout.rows(), layout.dim());
        // One scale for all tokens needs them all.
        let step = if scales == ScaleType::Tensor { rows } else { (CHUNK_LEN / dim).max(1) };
        let (mut scale_bytes, mut min_bytes) = (Vec::new(), Vec::new());
        let mut errors = Errors::default();
        let mut digests = Digests::new::<T>(F::FORMAT, scales, dim);
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
            let is_used = &self.is_used[part.clone()];
            digests.rows(elements, &codes, is_used);
            errors =
                errors.and(Errors::of(elements.data(), codes.dequantize()?.data(), dim, is_used));
            progress.inc(part.len() as u64);
            start = part.end.max(start + 1);
        }
        out.write_all(&scale_bytes)?;
        out.write_all(&min_bytes)?;

        let bytes_before = (rows * dim * size_of::<T>()) as u64;
        let bytes = (rows * dim + scale_bytes.len() + min_bytes.len()) as u64;
        let notes = digests.finish(self.file, &self.is_used);
        Ok((Written::new(errors, dim, [bytes_before, bytes]), notes))
    }
}

/// The header of the file with its length, and the offsets or lengths, which come first behind it.
fn header<F: Quantized>(
    layout: &TokenLayout,
    scales: ScaleType,
    notes: &Notes,
) -> Result<(Vec<u8>, Vec<i64>)> {
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
    // The crate would put metadata in any order, so that equal tokens would be unequal files.
    let tensors = serde_json::to_string(&metadata)?;
    let tensors = tensors.strip_prefix('{').context("the file's header")?;
    let notes: BTreeMap<&str, String> = notes.entries().into_iter().collect();
    let header = format!("{{\"__metadata__\":{},{tensors}", serde_json::to_string(&notes)?);
    // Whatever follows is on a boundary of eight bytes.
    let len = header.len().next_multiple_of(8);
    let header = format!("{header:len$}");
    Ok(([&(len as u64).to_le_bytes(), header.as_bytes()].concat(), items))
}
