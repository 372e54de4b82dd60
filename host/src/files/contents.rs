//! Contents of a file of token embeddings, and how its rows are read.

use std::borrow::Cow;
use std::ops::Range;

use half::f16;
use rayon::prelude::*;

use super::bytes::elements;
use super::error::{Context, FileError, Result, bail, ensure};
use super::format::FileFormat;
use super::items::{Items, ValidRows};
use super::options::FileOptions;
use super::{npy, safetensors};
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::format::{Quantized, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::{ScaleType, Scales};

/// Codes that a thread looks through at once.
const CODES_LEN: usize = 1 << 20;

/// Contents of a file of token embeddings: format, layout, and the places of the embeddings in
/// the file's bytes.
///
/// ```
/// use maxsim::files::{Contents, FileFormat, ScalesPlace};
///
/// // `embeddings` [1, 1, 2] of f32, in bytes that a caller has from anywhere.
/// let header = br#"{"embeddings":{"dtype":"F32","shape":[1,1,2],"data_offsets":[0,8]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend(header);
/// file.extend([2.0f32, 0.5].iter().flat_map(|x| x.to_le_bytes()));
/// let contents = Contents::parse(&file, FileFormat::Safetensors)?;
/// assert_eq!(contents.data, file.len() - 8..file.len());
/// assert_eq!(contents.scales, None::<ScalesPlace>);
/// assert_eq!(contents.tokens::<f32>(&file, 0..1)?.data(), [2.0, 0.5]);
/// assert_eq!(contents.elements::<f32>(&file, 0..1)?[..], [2.0, 0.5]);
/// assert_eq!(contents.stored_row(0), 0);
/// // Other formats and bytes are errors.
/// assert!(contents.codes::<maxsim::format::Int8>(&file, 0..1).is_err());
/// assert!(contents.tokens::<f32>(&file[1..], 0..1).is_err());
/// # Ok::<(), maxsim::files::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// Storage format of the embeddings.
    pub format: TokenFormat,
    /// Bytes of the matrix in the file: row-major, little-endian.
    pub data: Range<usize>,
    /// Places of the scales of codes.
    pub scales: Option<ScalesPlace>,
    /// Rows, dim, and the rows of each item. Where a mask excludes more than the last tokens of
    /// items, these are the valid rows alone, one item after the other.
    pub layout: TokenLayout,
    /// Stored rows that the tokens are, where they are not all of them.
    pub(crate) valid: Option<ValidRows>,
    /// Whether the file states how long items are.
    pub(crate) is_stated: bool,
}

/// Places of the scales of a compressed matrix, in bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScalesPlace {
    /// One per row, or one.
    pub scales: Range<usize>,
    /// Storage type of the scales.
    pub storage: ScaleType,
    /// One f16 number per row, where rows are affine.
    pub mins: Option<Range<usize>>,
}

impl Contents {
    /// Reads the description of the embeddings out of a whole file's bytes, with the defaults of
    /// [`FileOptions`].
    ///
    /// # Errors
    /// Where the file is broken, or says too little or what does not add up; for
    /// [`FileFormat::Npz`] and [`FileFormat::Folder`], whose arrays are files of their own.
    pub fn parse(bytes: &[u8], format: FileFormat) -> Result<Contents, FileError> {
        let options = FileOptions::default();
        match format {
            FileFormat::Safetensors => safetensors::parse(bytes, &options, &[]),
            FileFormat::Npy => npy::parse(bytes, &options, &[]),
            FileFormat::Npz | FileFormat::Folder => bail!("its arrays are files of their own"),
        }
    }

    /// A matrix of a format with its items.
    pub(super) fn new(
        format: TokenFormat,
        data: Range<usize>,
        scales: Option<ScalesPlace>,
        items: Items,
    ) -> Contents {
        let Items { layout, valid, is_stated } = items;
        Contents { format, data, scales, layout, valid, is_stated }
    }

    /// The embeddings of a range of items of `bytes`, the file that this was parsed from.
    /// Borrowed where the file has them on element boundaries, copied where it does not.
    ///
    /// # Errors
    /// Where the embeddings are of another format, there are fewer items, or `bytes` are not those
    /// of the file; where memory is lacking.
    pub fn tokens<'a, T: Element>(
        &self,
        bytes: &'a [u8],
        items: Range<usize>,
    ) -> Result<Tokens<'a, T>, FileError> {
        let (rows, layout) = self.layout.items(items)?;
        self.tokens_of_rows(bytes, rows, layout)
    }

    /// As [`Contents::tokens`], of compressed embeddings.
    ///
    /// # Errors
    /// Those of [`Contents::tokens`].
    pub fn codes<'a, F: Quantized>(
        &self,
        bytes: &'a [u8],
        items: Range<usize>,
    ) -> Result<Tokens<'a, F>, FileError> {
        let (rows, layout) = self.layout.items(items)?;
        self.codes_of_rows(bytes, rows, layout)
    }

    /// Rows of the layout with items among them.
    pub(super) fn tokens_of_rows<'a, T: Element>(
        &self,
        bytes: &'a [u8],
        rows: Range<usize>,
        layout: TokenLayout,
    ) -> Result<Tokens<'a, T>> {
        Ok(Tokens::from_layout(self.elements::<T>(bytes, rows)?, layout)?)
    }

    /// As [`Contents::tokens_of_rows`], of compressed embeddings.
    pub(super) fn codes_of_rows<'a, F: Quantized>(
        &self,
        bytes: &'a [u8],
        rows: Range<usize>,
        layout: TokenLayout,
    ) -> Result<Tokens<'a, F>> {
        let scales = self.scales_of_rows(bytes, &rows)?;
        let codes = self.codes_alone::<F>(bytes, &rows)?;
        Ok(Tokens::from_codes(codes, scales, layout)?)
    }

    /// The scales of a range of the layout's rows.
    pub(super) fn scales_of_rows<'a>(
        &self,
        bytes: &'a [u8],
        rows: &Range<usize>,
    ) -> Result<Scales<'a>> {
        let place = self.scales.as_ref().context("the codes have no scales")?;
        let f16s = |of: &Range<usize>| self.gather::<f16>(part(bytes, of)?, rows, 2);
        Ok(match (place.storage, &place.mins) {
            (ScaleType::F16, None) => Scales::F16(f16s(&place.scales)?),
            (ScaleType::F16, Some(mins)) => {
                Scales::Affine { scales: f16s(&place.scales)?, mins: f16s(mins)? }
            }
            (ScaleType::F32, _) => {
                Scales::F32(self.gather::<f32>(part(bytes, &place.scales)?, rows, 4)?)
            }
            (ScaleType::Tensor, _) => {
                let scale = part(bytes, &place.scales)?.first_chunk().context(OTHER_BYTES)?;
                Scales::Tensor(f32::from_le_bytes(*scale))
            }
        })
    }

    /// The codes of a range of the layout's rows, `[n, dim]`.
    pub(super) fn codes_alone<'a, F: Quantized>(
        &self,
        bytes: &'a [u8],
        rows: &Range<usize>,
    ) -> Result<Cow<'a, [F::Stored]>> {
        self.check_format(F::FORMAT)?;
        self.gather::<F::Stored>(part(bytes, &self.data)?, rows, self.layout.dim())
    }

    /// A range of the layout's rows of `bytes`, the file that this was parsed from: `[n, dim]`.
    ///
    /// # Errors
    /// Where the embeddings are of another type, there are fewer rows, or `bytes` are not those of
    /// the file; where memory is lacking.
    pub fn elements<'a, T: Element>(
        &self,
        bytes: &'a [u8],
        rows: Range<usize>,
    ) -> Result<Cow<'a, [T]>, FileError> {
        self.check_format(T::TYPE.into())?;
        let row_bytes = self.layout.dim() * self.format.size_bytes();
        self.gather(part(bytes, &self.data)?, &rows, row_bytes)
    }

    /// Row of the stored matrix that a row of the layout is. They differ where a mask excludes more
    /// than the last tokens of items.
    pub fn stored_row(&self, row: usize) -> usize {
        self.valid.as_ref().map_or(row, |valid| valid.stored_row(row))
    }

    fn check_format(&self, format: TokenFormat) -> Result<()> {
        ensure!(format == self.format, "the embeddings are {}, not {format}", self.format);
        Ok(())
    }

    /// Elements of a range of rows of a tensor, borrowed where they follow each other.
    fn gather<'a, E: bytemuck::Pod>(
        &self,
        tensor: &'a [u8],
        rows: &Range<usize>,
        row_bytes: usize,
    ) -> Result<Cow<'a, [E]>> {
        ensure!(
            rows.start <= rows.end && rows.end <= self.layout.rows(),
            "rows {rows:?} are not within 0..{}",
            self.layout.rows()
        );
        match &self.valid {
            Some(valid) => valid.gather(tensor, rows.clone(), row_bytes),
            None => elements(part(tensor, &bytes_of(rows, row_bytes))?),
        }
    }
}

/// Says that bytes are too few for what was parsed.
pub(super) const OTHER_BYTES: &str = "the bytes are not those of the file that was parsed";

/// Bytes of a range of rows. They are beyond any file where their number has no place in a `usize`.
pub(super) fn bytes_of(rows: &Range<usize>, row_bytes: usize) -> Range<usize> {
    rows.start.saturating_mul(row_bytes)..rows.end.saturating_mul(row_bytes)
}

/// Part of a file, or of one of its tensors.
fn part<'a>(bytes: &'a [u8], range: &Range<usize>) -> Result<&'a [u8]> {
    bytes.get(range.clone()).context(OTHER_BYTES)
}

/// Refuses the code -128, which no element is compressed to, in rows of items. The codes are those
/// of a layout's rows from `first_row` on; `stored_row` maps a row of it to the file's row.
pub(super) fn check_int8(
    codes: &[u8],
    first_row: usize,
    layout: &TokenLayout,
    stored_row: impl Fn(usize) -> usize,
) -> Result<()> {
    const WRONG: u8 = i8::MIN.cast_unsigned();
    if !codes.par_chunks(CODES_LEN).any(|codes| codes.contains(&WRONG)) {
        return Ok(());
    }
    // Rows of no item may hold anything.
    let dim = layout.dim();
    let end = first_row + codes.len() / dim;
    let rows = (0..layout.n_items()).map(|item| layout.item_rows(item));
    let mut rows = rows.flat_map(|rows| rows.start.max(first_row)..rows.end.min(end));
    let wrong = rows.find(|row| codes[(row - first_row) * dim..][..dim].contains(&WRONG));
    match wrong {
        Some(row) => {
            bail!("row {} has the code -128; int8 codes go from -127 to 127", stored_row(row))
        }
        None => Ok(()),
    }
}
