//! A compressed file, written a run of rows at a time, so that only scales must fit in memory.

use std::cmp::Ordering::Less;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

use anyhow::{Context, Result, bail};
use half::f16;
use indicatif::ProgressBar;
use maxsim::files::type_name;
use maxsim::format::{
    Element, ElementType, QuantizeReport, Quantized, ScaleType, Scales, with_format,
};
use maxsim::layout::LayoutKind;
use maxsim::{TokenLayout, Tokens};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::errors::{Errors, Written, used_rows};
use crate::finite::{self, Checked};
use crate::input::{Change, TokenFile};
use crate::judging::ids::Side;
use crate::output::Destination;
use crate::provenance::{Digests, Notes};

/// Elements that are compressed at once.
pub(super) const CHUNK_LEN: usize = 1 << 24;

/// Treatment of tokens whose elements f16 scales would clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clips {
    /// Clip such elements, and count them.
    Take,
    /// The first of them ends it, with the error [`Clipped`].
    Refuse,
    /// There are none, as scales are f32 because of them: those that f16 scales would clip are
    /// counted.
    Avoid,
}

/// Result of the compression of a file's embeddings.
#[derive(Debug)]
pub(super) struct Found {
    /// Sizes and errors of what was written.
    pub written: Written,
    /// Losses that f16 scales would have had, for [`Clips::Avoid`].
    pub avoided: QuantizeReport,
    /// Notes about the source of the codes.
    pub notes: Notes,
}

/// There are elements that f16 scales would clip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clipped;

impl fmt::Display for Clipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("f16 scales would clip elements; use --scales f32")
    }
}

impl std::error::Error for Clipped {}

/// Writes the file's embeddings, compressed, and returns the losses and the notes.
///
/// # Errors
/// For the first token that is not finite, and where the output cannot be written to.
pub(super) fn write<F: Quantized>(
    file: &TokenFile,
    how: (ScaleType, Clips),
    destination: &Destination,
    progress: &ProgressBar,
) -> Result<Found> {
    with_format!(file.contents().format, {
        element T => Writer::<T>::new(file).write::<F>(how, destination, progress),
        other => bail!("{other} tokens are compressed already"),
    })
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

    /// The digests are known when all has been read, and the header that has them comes first: in a
    /// file it is written again, for a pipe everything is compressed twice.
    fn write<F: Quantized>(
        &self,
        how: (ScaleType, Clips),
        destination: &Destination,
        progress: &ProgressBar,
    ) -> Result<Found> {
        let layout = self.file.layout();
        let mut notes = Notes::empty::<T>(self.file);
        if !destination.is_file() {
            notes = self.body::<F>(how, &mut io::sink(), &ProgressBar::hidden())?.notes;
        }
        let ids = self.file.ids(Side::Documents)?.note()?;
        notes.ids.clone_from(&ids);
        let mut written = None;
        destination.write_with_head(|out| {
            let (head, offsets) = header::<F>(layout, how.0, &notes)?;
            out.write_all(&head)?;
            out.write_all(bytemuck::cast_slice(&offsets))?;
            let mut found = self.body::<F>(how, out, progress)?;
            found.notes.ids = ids;
            let (head, _) = header::<F>(layout, how.0, &found.notes)?;
            // Before the file appears.
            self.file.check_unchanged(Change::Content)?;
            written = Some(found);
            Ok(head)
        })?;
        written.context("nothing was written")
    }

    /// Writes all but the header, and returns the digests.
    fn body<F: Quantized>(
        &self,
        (scales, clips): (ScaleType, Clips),
        out: &mut dyn Write,
        progress: &ProgressBar,
    ) -> Result<Found> {
        let layout = self.file.layout();
        let (rows, dim) = (layout.rows(), layout.dim());
        // One scale for all tokens needs them all.
        let step = if scales == ScaleType::Tensor { rows } else { (CHUNK_LEN / dim).max(1) };
        let (mut scale_bytes, mut min_bytes) = (Vec::new(), Vec::new());
        let mut errors = Errors::default();
        let mut digests = Digests::new::<T>(F::FORMAT, scales, dim);
        let (mut report, mut avoided) = (QuantizeReport::default(), QuantizeReport::default());
        let mut start = 0;
        // A file without rows has a scale all the same, where it is one for all.
        while start < rows || rows == 0 && start == 0 && scales == ScaleType::Tensor {
            let part = start..(start + step).min(rows);
            let is_used = &self.is_used[part.clone()];
            let (elements, codes) = self.compressed::<F>(part.clone(), is_used, scales)?;
            // Other threads digest what this one writes.
            rayon::in_place_scope(|scope| {
                scope.spawn(|_| digests.rows(&elements, &codes, is_used));
                out.write_all(bytemuck::cast_slice(codes.data()))
            })?;
            match codes.scales() {
                Scales::F16(scales) => scale_bytes.extend_from_slice(bytemuck::cast_slice(scales)),
                Scales::F32(scales) => scale_bytes.extend_from_slice(bytemuck::cast_slice(scales)),
                Scales::Tensor(scale) => scale_bytes.extend_from_slice(&scale.to_le_bytes()),
                Scales::Affine { scales, mins } => {
                    scale_bytes.extend_from_slice(bytemuck::cast_slice(scales));
                    min_bytes.extend_from_slice(bytemuck::cast_slice(mins));
                }
                other => bail!("{} scales are not written", other.storage().name()),
            }
            let found = Errors::of(elements.data(), codes.dequantize()?.data(), dim, is_used);
            errors = errors.and(found);
            if found.is_coarse() || is_beyond_f16(&elements) {
                let (of_part, of_f16) = reports(&elements, codes, is_used, clips)?;
                (report, avoided) = (report.and(of_part), avoided.and(of_f16));
                if clips == Clips::Refuse && report.n_clipped_tokens > 0 {
                    bail!(Clipped);
                }
            }
            progress.inc(part.len() as u64);
            start = part.end.max(start + 1);
        }
        out.write_all(&scale_bytes)?;
        out.write_all(&min_bytes)?;

        let bytes_before = (rows * dim * size_of::<T>()) as u64;
        let bytes = (rows * dim + scale_bytes.len() + min_bytes.len()) as u64;
        let notes = digests.finish(self.file, &self.is_used);
        let written = Written::new(errors, dim, [bytes_before, bytes]).with_report(report);
        Ok(Found { written, avoided, notes })
    }

    /// Reads a range of rows, and compresses them.
    fn compressed<F: Quantized>(
        &self,
        rows: Range<usize>,
        is_used: &[bool],
        scales: ScaleType,
    ) -> Result<(Tokens<'a, T>, Tokens<'static, F>)> {
        let layout = self.file.layout();
        let layout = match rows.len() == layout.rows() {
            true => layout.clone(),
            false => TokenLayout::padded(1, rows.len(), layout.dim())?,
        };
        let elements = Checked::finite(self.file, "item").rows::<T>(rows, is_used)?;
        let compress = || -> Result<(Tokens<'a, T>, Tokens<'static, F>)> {
            let elements = Tokens::from_layout(elements, layout)?;
            let codes = elements.quantize::<F>(scales)?;
            Ok((elements, codes))
        };
        compress().with_context(|| self.file.path().display().to_string())
    }
}

/// Whether elements are so large that an f16 scale or minimum may not do.
fn is_beyond_f16<T: Element>(elements: &Tokens<'_, T>) -> bool {
    let most = f16::MAX.to_f32();
    // Rows that are not used may have NaN, which is not below anything.
    T::TYPE != ElementType::F16 && finite::largest(elements.data()).partial_cmp(&most) != Some(Less)
}

/// Measures what the used rows' codes lost, and what they would have with f16 scales.
fn reports<T: Element, F: Quantized>(
    elements: &Tokens<'_, T>,
    codes: Tokens<'_, F>,
    is_used: &[bool],
    clips: Clips,
) -> Result<(QuantizeReport, QuantizeReport)> {
    let mask: Vec<u8> = is_used.iter().map(|&is_used| u8::from(is_used)).collect();
    let of_f16 = match clips {
        Clips::Avoid => {
            let codes = elements.quantize::<F>(ScaleType::F16)?.with_mask(&mask)?;
            QuantizeReport::measured(&codes, elements)?
        }
        _ => QuantizeReport::default(),
    };
    Ok((QuantizeReport::measured(&codes.with_mask(&mask)?, elements)?, of_f16))
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
            // If there are no rows, any length will do.
            let len = rows.checked_div(n).unwrap_or(0);
            ("lengths", lengths().collect::<Vec<i64>>(), vec![n, len])
        }
        LayoutKind::Packed | LayoutKind::Scattered => {
            let first = layout.segments().first().map_or(0, |&[start, _]| i64::from(start));
            let ends = layout.segments().iter().map(|&[start, len]| i64::from(start + len));
            ("offsets", std::iter::once(first).chain(ends).collect(), vec![rows])
        }
    };
    let Some(codes) = type_name(F::FORMAT) else { bail!("{} codes are not written", F::FORMAT) };
    let codes = Dtype::deserialize(codes.into_deserializer() as StrDeserializer<'_, ValueError>)?;
    let (dtype, scales_shape) = match scales {
        ScaleType::F16 => (Dtype::F16, row_shape.clone()),
        ScaleType::F32 => (Dtype::F32, row_shape.clone()),
        ScaleType::Tensor => (Dtype::F32, vec![1]),
        other => bail!("{} scales are not written", other.name()),
    };
    let codes_shape = [&row_shape[..], &[dim]].concat();
    let mut tensors = vec![
        (name, Dtype::I64, vec![items.len()]),
        ("embeddings", codes, codes_shape),
        ("scales", dtype, scales_shape),
    ];
    if F::FORMAT.has_mins() {
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
    // Pad the header: the data must start on a boundary of eight bytes. Codes, which lie behind the
    // items' numbers, start on one of 64: where the file is mapped, a line of the caches.
    let before = size_of::<u64>() + size_of_val(&items[..]);
    let len = (before + header.len()).next_multiple_of(64) - before;
    let header = format!("{header:len$}");
    Ok(([&(len as u64).to_le_bytes(), header.as_bytes()].concat(), items))
}
