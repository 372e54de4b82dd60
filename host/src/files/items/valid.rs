//! Selects the valid rows of a matrix where some are masked.
//!
//! A mask that keeps the first tokens of every item is the same as lengths. Any other one, such as
//! that of items padded on the left, makes a matrix of the valid rows alone: they are gathered when
//! they are read, and everything behind the reader sees packed items without a mask.

use std::borrow::Cow;
use std::ops::Range;

use crate::files::bytes::{elements, reserved};
use crate::files::contents::{OTHER_BYTES, bytes_of};
use crate::files::error::{Context, Result, ensure};
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::runs::RowRuns;

/// The valid rows of a stored matrix, in runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValidRows {
    /// The stored rows that the valid ones are, counted without the others.
    runs: RowRuns,
    /// The first stored row of each item, valid or not.
    starts: Vec<u32>,
}

impl ValidRows {
    /// First valid row of each run, and the stored row that it is.
    pub fn runs(&self) -> &[[u32; 2]] {
        self.runs.runs()
    }

    /// Stored row that a valid row is.
    pub fn stored_row(&self, row: usize) -> usize {
        self.runs.stored_row(row)
    }

    /// The first stored row of an item, valid or not.
    pub fn start(&self, item: usize) -> usize {
        self.starts[item] as usize
    }

    /// Elements of some valid rows of a matrix: borrowed where these follow each other.
    pub fn gather<'a, T: bytemuck::Pod>(
        &self,
        matrix: &'a [u8],
        rows: Range<usize>,
        row_bytes: usize,
    ) -> Result<Cow<'a, [T]>> {
        let mut parts = self.runs.stored(rows.clone()).peekable();
        let Some(first) = parts.next() else { return Ok(Cow::Borrowed(&[])) };
        let bytes =
            |rows: Range<usize>| matrix.get(bytes_of(&rows, row_bytes)).context(OTHER_BYTES);
        if parts.peek().is_none() {
            return elements(bytes(first)?);
        }
        let mut found = reserved(rows.len().saturating_mul(row_bytes) / size_of::<T>())?;
        for part in std::iter::once(first).chain(parts) {
            found.extend_from_slice(&elements::<T>(bytes(part)?)?);
        }
        Ok(Cow::Owned(found))
    }
}

/// The rows of items that a mask keeps, and the items among these, one after the other. A mask has
/// a byte for each row.
pub(crate) fn masked(
    layout: &TokenLayout,
    is_valid: impl Fn(usize) -> bool,
) -> Result<(TokenLayout, ValidRows)> {
    let starts = reserved(layout.n_items())?;
    let mut valid = ValidRows { starts, ..ValidRows::default() };
    let mut offsets = reserved(layout.n_items() + 1)?;
    offsets.push(0i64);
    for item in 0..layout.n_items() {
        let rows = layout.item_rows(item);
        valid.starts.push(rows.start as u32);
        let mut start = rows.start;
        while start < rows.end {
            let end = (start..rows.end).find(|&row| !is_valid(row)).unwrap_or(rows.end);
            valid.runs.push(start..end)?;
            start = (end..rows.end).find(|&row| is_valid(row)).unwrap_or(rows.end);
        }
        offsets.push(valid.runs.n_rows() as i64);
    }
    ensure!(valid.runs.n_rows() <= layout.rows(), "items overlap");
    Ok((TokenLayout::packed(valid.runs.n_rows(), layout.dim(), &offsets)?, valid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mask_and_every_range_gives_the_rows_that_are_valid() {
        let matrix: Vec<u8> = (0..12).collect();
        let layout = TokenLayout::padded(3, 4, 1).unwrap();
        for mask in 0..1u32 << 12 {
            let is_valid = |row: usize| mask >> row & 1 == 1;
            let kept: Vec<u8> = (0..12u8).filter(|&row| is_valid(usize::from(row))).collect();
            let (packed, valid) = masked(&layout, is_valid).unwrap();
            assert_eq!(packed.rows(), kept.len());
            for item in 0..3 {
                let n = (4 * item..4 * item + 4).filter(|&row| is_valid(row)).count();
                assert_eq!(packed.item_len(item), n);
                assert_eq!(valid.start(item), 4 * item);
            }
            for (row, &stored) in kept.iter().enumerate() {
                assert_eq!(valid.stored_row(row), usize::from(stored));
            }
            for start in 0..=kept.len() {
                for end in start..=kept.len() {
                    let found = valid.gather::<u8>(&matrix, start..end, 1).unwrap();
                    assert_eq!(&found[..], &kept[start..end], "{mask:b} {start}..{end}");
                }
            }
        }
    }
}
