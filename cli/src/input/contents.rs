//! Contents of a file of token embeddings, and how its rows are read.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use half::f16;
use maxsim::format::{Element, Quantized, ScaleType, Scales, TokenFormat};
use maxsim::{TokenLayout, Tokens};
use rayon::prelude::*;

use super::items::Items;
use super::valid::ValidRows;
use super::{Format, InputOptions, Reading, elements, npy, safetensors};

/// Codes that a thread looks through at once.
const CODES_LEN: usize = 1 << 20;

/// Contents of a file of token embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
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
pub struct ScalesPlace {
    /// One per row, or one.
    pub scales: Range<usize>,
    /// Storage type of the scales.
    pub storage: ScaleType,
    /// One f16 number per row, where rows are affine.
    pub mins: Option<Range<usize>>,
}

impl Contents {
    /// Reads the description of the embeddings out of a whole file's bytes.
    pub fn parse(bytes: &[u8], format: Format) -> Result<Contents> {
        let options = InputOptions::new(Reading::Read);
        match format {
            Format::Safetensors => safetensors::parse(bytes, &options, &[]),
            Format::Npy => npy::parse(bytes, &options, &[]),
            Format::Npz | Format::Folder => bail!("its arrays are files of their own"),
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
    pub fn tokens<'a, T: Element>(
        &self,
        bytes: &'a [u8],
        items: Range<usize>,
    ) -> Result<Tokens<'a, T>> {
        let (rows, layout) = self.layout.items(items)?;
        Ok(Tokens::from_layout(self.elements::<T>(bytes, rows)?, layout)?)
    }

    /// As [`Contents::tokens`], of compressed embeddings.
    pub fn codes<'a, F: Quantized>(
        &self,
        bytes: &'a [u8],
        items: Range<usize>,
    ) -> Result<Tokens<'a, F>> {
        self.check_format(F::FORMAT)?;
        let (rows, layout) = self.layout.items(items)?;
        let place = self.scales.as_ref().context("the codes have no scales")?;
        let f16s = |of: &Range<usize>| self.gather::<f16>(&bytes[of.clone()], &rows, 2);
        let scales = match (place.storage, &place.mins) {
            (ScaleType::F16, None) => Scales::F16(f16s(&place.scales)?),
            (ScaleType::F16, Some(mins)) => {
                Scales::Affine { scales: f16s(&place.scales)?, mins: f16s(mins)? }
            }
            (ScaleType::F32, _) => {
                Scales::F32(self.gather::<f32>(&bytes[place.scales.clone()], &rows, 4)?)
            }
            (ScaleType::Tensor, _) => {
                Scales::Tensor(bytemuck::pod_read_unaligned(&bytes[place.scales.clone()]))
            }
            (other, _) => bail!("{} scales are not read", other.name()),
        };
        let codes = &bytes[self.data.clone()];
        let codes = self.gather::<F::Stored>(codes, &rows, self.layout.dim())?;
        Ok(Tokens::from_codes(codes, scales, layout)?)
    }

    /// A range of the layout's rows of `bytes`, the file that this was parsed from: `[n, dim]`.
    pub fn elements<'a, T: Element>(
        &self,
        bytes: &'a [u8],
        rows: Range<usize>,
    ) -> Result<Cow<'a, [T]>> {
        self.check_format(T::TYPE.into())?;
        let row_bytes = self.layout.dim() * self.format.size_bytes();
        self.gather(&bytes[self.data.clone()], &rows, row_bytes)
    }

    /// Row of the stored matrix that a row of the layout is.
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
        match &self.valid {
            Some(valid) => valid.gather(tensor, rows.clone(), row_bytes),
            None => elements(&tensor[rows.start * row_bytes..rows.end * row_bytes]),
        }
    }
}

/// Refuses the code -128, which no element is compressed to; `stored_row` maps a row to the file's
/// row.
pub(super) fn check_int8(
    codes: &[u8],
    layout: &TokenLayout,
    stored_row: impl Fn(usize) -> usize,
) -> Result<()> {
    const WRONG: u8 = i8::MIN.cast_unsigned();
    if !codes.par_chunks(CODES_LEN).any(|codes| codes.contains(&WRONG)) {
        return Ok(());
    }
    // Rows of no item may hold anything.
    let mut rows = (0..layout.n_items()).flat_map(|item| layout.item_rows(item));
    let dim = layout.dim();
    let wrong = rows.find(|row| codes[row * dim..][..dim].contains(&WRONG));
    match wrong {
        Some(row) => {
            bail!("row {} has the code -128; int8 codes go from -127 to 127", stored_row(row))
        }
        None => Ok(()),
    }
}
