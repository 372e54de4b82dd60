//! Documents as threads write them to staging memory for a device.

use std::ops::Range;

use super::Streamed;
use crate::error::Result;
use crate::runtime::alloc::fill;
use crate::runtime::pitch::write_rows;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scaled_rows::scale_in_place;

/// What a device gets of documents: rows at a pitch, with a word beside each where it has one.
pub(crate) trait Staged: Sync {
    fn layout(&self) -> &TokenLayout;

    fn mask(&self) -> Option<&[u8]>;

    /// Bytes from a row to the next on a device.
    fn pitch_bytes(&self) -> usize;

    /// Whether each row has a word beside it: its scale, or its code.
    fn has_words(&self) -> bool;

    /// Writes rows to `to`, unless that is empty, and their words to `words`, where they have some.
    fn write(
        &self,
        rows: Range<usize>,
        to: &mut [u8],
        words: &mut [u32],
        scratch: &mut Vec<u64>,
    ) -> Result<()>;

    /// Bytes of a row on a device, with all that comes with it.
    fn bytes_per_row(&self, pitch_bytes: usize) -> usize {
        let word = if self.has_words() { size_of::<u32>() } else { 0 };
        pitch_bytes + word + usize::from(self.mask().is_some())
    }
}

/// The mask of documents whose rows, with the words beside them, are not staged.
pub(crate) struct MaskAlone<'a>(pub &'a dyn Staged);

impl Staged for MaskAlone<'_> {
    fn layout(&self) -> &TokenLayout {
        self.0.layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        self.0.mask()
    }

    fn pitch_bytes(&self) -> usize {
        0
    }

    fn has_words(&self) -> bool {
        false
    }

    fn write(&self, _: Range<usize>, _: &mut [u8], _: &mut [u32], _: &mut Vec<u64>) -> Result<()> {
        Ok(())
    }
}

/// Rows of elements or codes.
pub(crate) struct StagedRows<'a, F: Format> {
    pub documents: &'a Streamed<'a, F>,
    pub pitch_bytes: usize,
    /// Whether rows may be too long to be normalised as they are.
    pub rescales: bool,
}

impl<F: Format> Staged for StagedRows<'_, F> {
    fn layout(&self) -> &TokenLayout {
        self.documents.layout
    }

    fn mask(&self) -> Option<&[u8]> {
        self.documents.mask
    }

    fn pitch_bytes(&self) -> usize {
        self.pitch_bytes
    }

    fn has_words(&self) -> bool {
        self.documents.scales.is_some()
    }

    fn write(
        &self,
        rows: Range<usize>,
        to: &mut [u8],
        words: &mut [u32],
        scratch: &mut Vec<u64>,
    ) -> Result<()> {
        if !to.is_empty() {
            self.write_rows(rows.clone(), to, scratch)?;
        }
        if let Some(scales) = &self.documents.scales {
            self.documents.check_scales(rows.clone())?;
            rows.zip(words).for_each(|(row, to)| *to = scales.word(row));
        }
        Ok(())
    }
}

impl<F: Format> StagedRows<'_, F> {
    fn write_rows(&self, rows: Range<usize>, to: &mut [u8], scratch: &mut Vec<u64>) -> Result<()> {
        let (documents, dim) = (self.documents, self.documents.layout.dim());
        let row_bytes = dim * size_of::<F::Stored>();
        let len_bytes = rows.len() * row_bytes;
        let is_together = row_bytes == self.pitch_bytes;
        if !is_together {
            fill(scratch, len_bytes.div_ceil(size_of::<u64>()), 0)?;
        }
        let filled = match is_together {
            true => &mut to[..len_bytes],
            false => &mut bytemuck::cast_slice_mut(scratch)[..len_bytes],
        };
        let elements: &mut [F::Stored] = bytemuck::cast_slice_mut(filled);
        documents.fill(rows, elements)?;
        if self.rescales {
            scale_in_place::<F>(elements, dim);
        }
        if !is_together {
            let rows = &bytemuck::cast_slice(scratch)[..len_bytes];
            write_rows(to, rows, row_bytes, self.pitch_bytes);
        }
        Ok(())
    }
}
