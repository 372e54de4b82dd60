//! Token matrices and how items (queries or documents) lie in them.
//!
//! Every layout is *segments over one token matrix*: a row-major matrix
//! `[rows, dim]` and, per item, a run of consecutive rows. Padded, packed and
//! scattered are three ways to say which rows; a mask may switch single rows off.
//! All checks happen here, once.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::element::Element;
use crate::error::{Error, Result};
use crate::format::{Format, Quantized};
use crate::handle::copy_of;
use crate::index::Index;
use crate::scales::Scales;
use crate::scores::filled;

/// Largest number of elements per token.
pub const MAX_DIM: usize = 4096;

/// Rows, items and pairs are counted below this (2³¹).
pub const MAX_COUNT: usize = 1 << 31;

/// How the items of a token matrix were described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKind {
    /// `[n, len, dim]`: item `i` starts at row `i · len`.
    Padded,
    /// Items one after the other, from `offsets` ("cu_seqlens").
    Packed,
    /// Items anywhere in a larger matrix, from `starts` and `lengths`.
    Scattered,
}

/// Shape of a token matrix and the rows of each item; no data.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenLayout {
    kind: LayoutKind,
    rows: usize,
    dim: usize,
    /// (start row, length) per item.
    segments: Vec<[u32; 2]>,
    max_len: usize,
    total_len: u64,
    masked: bool,
    /// Per item: does it have a valid token?
    has_tokens: Vec<bool>,
}

/// Without the items one by one, of which there may be millions.
impl fmt::Debug for TokenLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLayout")
            .field("kind", &self.kind)
            .field("n_items", &self.n_items())
            .field("rows", &self.rows)
            .field("dim", &self.dim)
            .field("max_len", &self.max_len)
            .field("is_masked", &self.masked)
            .finish_non_exhaustive()
    }
}

impl TokenLayout {
    fn new(kind: LayoutKind, rows: usize, dim: usize, segments: Vec<[u32; 2]>) -> TokenLayout {
        let max_len = segments.iter().map(|s| s[1] as usize).max().unwrap_or(0);
        let total_len = segments.iter().map(|s| u64::from(s[1])).sum();
        let has_tokens = segments.iter().map(|s| s[1] > 0).collect();
        TokenLayout { kind, rows, dim, segments, max_len, total_len, masked: false, has_tokens }
    }

    /// Layout of `[n, len, dim]`, every item of full length.
    pub fn padded(n: usize, len: usize, dim: usize) -> Result<TokenLayout> {
        check_dim(dim)?;
        let rows = n.saturating_mul(len);
        check_count("rows of a token matrix", rows)?;
        check_count("number of items", n)?;
        let segments = (0..n).map(|i| [(i * len) as u32, len as u32]).collect();
        Ok(TokenLayout::new(LayoutKind::Padded, rows, dim, segments))
    }

    /// Shortens item `i` of a padded layout to its first `lengths[i]` tokens.
    pub fn with_lengths<I: Index>(mut self, lengths: &[I]) -> Result<TokenLayout> {
        if self.kind != LayoutKind::Padded || self.masked {
            return Err(Error::Shape {
                argument: "lengths",
                expected: "a padded layout, before its mask is set".into(),
                found: match self.masked {
                    true => "a layout with a mask; call with_lengths first".into(),
                    false => format!("{:?}", self.kind),
                },
            });
        }
        check_len("lengths", self.segments.len(), "one per item", lengths.len())?;
        for (index, (segment, &length)) in self.segments.iter_mut().zip(lengths).enumerate() {
            segment[1] = checked_entry("lengths", index, length, 0, i64::from(segment[1]))?;
        }
        Ok(TokenLayout::new(self.kind, self.rows, self.dim, self.segments))
    }

    /// Layout of items one after the other in `[rows, dim]`: item `i` is the rows
    /// `offsets[i] .. offsets[i + 1]`. `offsets` has one entry more than there are items. Rows before the
    /// first offset and from the last one on are no item's.
    pub fn packed<I: Index>(rows: usize, dim: usize, offsets: &[I]) -> Result<TokenLayout> {
        check_dim(dim)?;
        check_count("rows of a token matrix", rows)?;
        if offsets.is_empty() {
            return Err(Error::Shape {
                argument: "offsets",
                expected: "number of items + 1 entries".into(),
                found: "0 entries".into(),
            });
        }
        check_count("number of items", offsets.len() - 1)?;
        let mut segments = Vec::with_capacity(offsets.len() - 1);
        let mut start = checked_entry("offsets", 0, offsets[0], 0, rows as i64)?;
        for (index, &offset) in offsets.iter().enumerate().skip(1) {
            let end = checked_entry("offsets", index, offset, i64::from(start), rows as i64)?;
            segments.push([start, end - start]);
            start = end;
        }
        Ok(TokenLayout::new(LayoutKind::Packed, rows, dim, segments))
    }

    /// Layout of items anywhere in `[rows, dim]`: item `i` is the `lengths[i]` rows from
    /// `starts[i]`. Items may overlap.
    pub fn scattered<I: Index>(
        rows: usize,
        dim: usize,
        starts: &[I],
        lengths: &[I],
    ) -> Result<TokenLayout> {
        check_dim(dim)?;
        check_count("rows of a token matrix", rows)?;
        check_count("number of items", starts.len())?;
        check_len("lengths", starts.len(), "as many as starts", lengths.len())?;
        let mut segments = Vec::with_capacity(starts.len());
        for (index, (&start, &length)) in starts.iter().zip(lengths).enumerate() {
            let start = checked_entry("starts", index, start, 0, rows as i64)?;
            let most = rows as i64 - i64::from(start);
            segments.push([start, checked_entry("lengths", index, length, 0, most)?]);
        }
        Ok(TokenLayout::new(LayoutKind::Scattered, rows, dim, segments))
    }

    /// Takes a row mask into account: finds the items left without a valid token.
    pub fn with_mask(mut self, mask: &[u8]) -> Result<TokenLayout> {
        check_len("mask", self.rows, "one byte per row", mask.len())?;
        self.masked = true;
        for (has, segment) in self.has_tokens.iter_mut().zip(&self.segments) {
            let start = segment[0] as usize;
            *has = mask[start..start + segment[1] as usize].iter().any(|&m| m != 0);
        }
        Ok(self)
    }

    /// How the items were described.
    pub fn kind(&self) -> LayoutKind {
        self.kind
    }

    /// Rows of the token matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per token.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of items (queries or documents).
    pub fn n_items(&self) -> usize {
        self.segments.len()
    }

    /// (start row, length in rows) of every item.
    pub fn segments(&self) -> &[[u32; 2]] {
        &self.segments
    }

    /// The rows of item `i`.
    ///
    /// # Panics
    /// When there is no item `i`.
    pub fn item_rows(&self, i: usize) -> std::ops::Range<usize> {
        let [start, len] = self.segments[i];
        start as usize..start as usize + len as usize
    }

    /// Length of item `i` in tokens, masked ones included.
    ///
    /// # Panics
    /// When there is no item `i`.
    pub fn item_len(&self, i: usize) -> usize {
        self.segments[i][1] as usize
    }

    /// Length of the longest item in tokens.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Sum of the items' lengths in tokens.
    pub fn total_len(&self) -> u64 {
        self.total_len
    }

    /// Whether the items are the same rows of an equally large matrix, masks aside.
    pub(crate) fn same_items(&self, other: &TokenLayout) -> bool {
        self.rows == other.rows && self.dim == other.dim && self.segments == other.segments
    }

    /// Whether the items are the same rows, and the same of them have valid tokens, however that was said.
    pub(crate) fn same_tokens(&self, other: &TokenLayout) -> bool {
        self.same_items(other) && self.has_tokens == other.has_tokens
    }

    /// For each row of the matrix, whether an item has it. Masks are not counted with.
    pub(crate) fn used_rows(&self) -> Result<Vec<bool>> {
        let mut is_used = filled(self.rows as u64, false)?;
        (0..self.n_items()).for_each(|item| is_used[self.item_rows(item)].fill(true));
        Ok(is_used)
    }

    /// Whether single rows are masked.
    pub fn is_masked(&self) -> bool {
        self.masked
    }

    /// Whether item `i` has a valid token: a document without one scores 0.
    ///
    /// # Panics
    /// When there is no item `i`.
    pub fn has_tokens(&self, i: usize) -> bool {
        self.has_tokens[i]
    }
}

/// Token embeddings in host memory: a matrix `[rows, dim]`, the rows of each item,
/// and optionally a mask. Borrows its data, or owns it (after [`Tokens::pack`] or [`Tokens::quantize`],
/// say).
///
/// `F` is the type of the elements, or of the codes of a compressed [`Format`], which come with
/// [`Scales`].
#[derive(Clone)]
pub struct Tokens<'a, F: Format> {
    data: Cow<'a, [F::Stored]>,
    /// Of codes.
    scales: Option<Scales<'a>>,
    layout: TokenLayout,
    mask: Option<Cow<'a, [u8]>>,
}

/// Without the matrix.
impl<F: Format> fmt::Debug for Tokens<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("format", &F::FORMAT)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl<'a, T: Element> Tokens<'a, T> {
    /// Items of equal length: `data` is `[n, len, dim]`, row-major.
    pub fn padded(data: &'a [T], n: usize, len: usize, dim: usize) -> Result<Self> {
        Tokens::from_layout(data, TokenLayout::padded(n, len, dim)?)
    }

    /// Items one after the other: `data` is `[rows, dim]`, item `i` the rows
    /// `offsets[i] .. offsets[i + 1]`. Offsets are of any integer type ([`Index`]).
    ///
    /// ```
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// // Documents of one and two tokens, their rows one after the other; dim 2.
    /// let documents: Vec<Vec<f32>> = vec![vec![2.0, 0.0], vec![3.0, 4.0, -1.0, 5.0]];
    /// let mut offsets: Vec<usize> = vec![0];
    /// for document in &documents {
    ///     offsets.push(offsets[offsets.len() - 1] + document.len() / 2);
    /// }
    /// let data = documents.concat();
    /// let documents = Tokens::packed(&data, 2, &offsets)?;
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let scores = Device::cpu().score(&queries, &documents, &Pairing::cross())?;
    /// assert_eq!(scores.values(), [2.0, 3.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn packed<I: Index>(data: &'a [T], dim: usize, offsets: &[I]) -> Result<Self> {
        let rows = whole_rows(data.len(), dim)?;
        Tokens::from_layout(data, TokenLayout::packed(rows, dim, offsets)?)
    }

    /// Items anywhere in `data` `[rows, dim]`: item `i` is the `lengths[i]` rows from `starts[i]`.
    pub fn scattered<I: Index>(
        data: &'a [T],
        dim: usize,
        starts: &[I],
        lengths: &[I],
    ) -> Result<Self> {
        let rows = whole_rows(data.len(), dim)?;
        Tokens::from_layout(data, TokenLayout::scattered(rows, dim, starts, lengths)?)
    }

    /// Any layout over `data` `[rows, dim]`. A layout made with a mask is refused: give the
    /// mask to [`Tokens::with_mask`].
    pub fn from_layout(data: impl Into<Cow<'a, [T]>>, layout: TokenLayout) -> Result<Self> {
        let data = data.into();
        check_data("data", data.len(), &layout)?;
        Ok(Tokens { data, scales: None, layout, mask: None })
    }
}

impl<'a, F: Quantized> Tokens<'a, F> {
    /// Codes `[rows, dim]`, row-major, in any layout, with their scales. A layout made with a
    /// mask is refused: give the mask to [`Tokens::with_mask`].
    ///
    /// # Errors
    /// [`Error::Shape`] where the codes are not as many as the layout says, or scales are not as
    /// many, or of another kind than the format has. The scales' values are checked when the tokens
    /// are uploaded or scored: those of valid tokens must not be negative or infinite.
    pub fn from_codes(
        codes: impl Into<Cow<'a, [F::Stored]>>,
        scales: Scales<'a>,
        layout: TokenLayout,
    ) -> Result<Self> {
        let data = codes.into();
        check_data("codes", data.len(), &layout)?;
        scales.check(F::FORMAT, layout.rows)?;
        Ok(Tokens { data, scales: Some(scales), layout, mask: None })
    }

    /// What the codes are read with.
    pub fn scales(&self) -> &Scales<'a> {
        // Codes never come without.
        const NONE: &Scales<'static> = &Scales::Tensor(1.0);
        self.scales.as_ref().unwrap_or(NONE)
    }
}

impl<'a, F: Format> Tokens<'a, F> {
    /// Data that fits its layout, and scales that fit the format.
    pub(crate) fn assemble(
        data: Cow<'a, [F::Stored]>,
        scales: Option<Scales<'a>>,
        layout: TokenLayout,
        mask: Option<&[u8]>,
    ) -> Result<Self> {
        let mask = mask.map(copy_of).transpose()?.map(Cow::Owned);
        Ok(Tokens { data, scales, layout, mask })
    }

    /// Keeps the first `lengths[i]` tokens of item `i` of a padded layout.
    pub fn with_lengths<I: Index>(self, lengths: &[I]) -> Result<Self> {
        let layout = self.layout.with_lengths(lengths)?;
        Ok(Tokens { layout, ..self })
    }

    /// Some consecutive items, borrowed.
    ///
    /// # Errors
    /// [`Error::Offset`] where there are fewer items.
    ///
    /// ```
    /// let tokens = maxsim::Tokens::packed(&[1.0f32, 2.0, 3.0, 4.0], 1, &[0i64, 1, 1, 4])?;
    /// let last = tokens.items(1..3)?;
    /// assert_eq!(last.data(), [2.0, 3.0, 4.0]);
    /// assert_eq!(last.layout().segments(), [[0, 0], [0, 3]]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn items(&self, items: Range<usize>) -> Result<Tokens<'_, F>> {
        let segments = self.layout.segments.get(items.clone()).ok_or_else(|| Error::Offset {
            argument: "items",
            index: items.start,
            expected: format!("a range within 0..{}", self.layout.n_items()),
            found: items.end as i128,
        })?;
        let with_rows = || segments.iter().filter(|segment| segment[1] > 0);
        let first = with_rows().map(|segment| segment[0]).min().unwrap_or(0);
        let end = with_rows().map(|segment| segment[0] + segment[1]).max().unwrap_or(0);
        // Items without rows may be anywhere.
        let moved = segments.iter().map(|&[start, len]| [start.clamp(first, end) - first, len]);
        let rows = first as usize..end as usize;
        let dim = self.layout.dim;
        let layout =
            TokenLayout::new(LayoutKind::Scattered, rows.len(), dim, moved.collect::<Vec<_>>());
        let tokens = Tokens {
            data: self.data[rows.start * dim..rows.end * dim].into(),
            scales: self.scales.as_ref().map(|scales| scales.of_rows(rows.clone())),
            layout,
            mask: None,
        };
        match &self.mask {
            Some(mask) => tokens.with_mask(&mask[rows]),
            None => Ok(tokens),
        }
    }

    /// Switches rows off: one byte per row of the matrix, non-zero = valid, any pattern.
    pub fn with_mask(self, mask: impl Into<Cow<'a, [u8]>>) -> Result<Self> {
        let mask = mask.into();
        let layout = self.layout.with_mask(&mask)?;
        Ok(Tokens { layout, mask: Some(mask), ..self })
    }

    /// The token matrix, row-major: elements, or codes.
    pub fn data(&self) -> &[F::Stored] {
        &self.data
    }

    /// The scales of codes; `None` where rows are elements.
    pub(crate) fn scales_of_codes(&self) -> Option<&Scales<'a>> {
        self.scales.as_ref()
    }

    /// Rows that an item has and the mask does not switch off, in rising order, each once.
    pub(crate) fn valid_rows(&self) -> Result<Vec<u32>> {
        let is_used = self.layout.used_rows()?;
        let is_valid = |row: usize| is_used[row] && self.mask().is_none_or(|mask| mask[row] != 0);
        Ok((0..is_used.len()).filter(|&row| is_valid(row)).map(|row| row as u32).collect())
    }

    /// Checks what only the values of scales show.
    pub(crate) fn check_scales(&self) -> Result<()> {
        match &self.scales {
            None => Ok(()),
            Some(scales) => scales.check_values(&self.layout, self.mask()),
        }
    }

    /// Shape and items.
    pub fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    /// The row mask, where there is one.
    pub fn mask(&self) -> Option<&[u8]> {
        self.mask.as_deref()
    }
}

/// Checks that a matrix of `len` numbers is what a layout without a mask describes.
fn check_data(argument: &'static str, len: usize, layout: &TokenLayout) -> Result<()> {
    let expected = layout.rows as u64 * layout.dim as u64;
    if len as u64 != expected {
        return Err(Error::Shape {
            argument,
            expected: format!("{expected} elements ({} rows of {})", layout.rows, layout.dim),
            found: format!("{len} elements"),
        });
    }
    if layout.masked {
        return Err(Error::Shape {
            argument: "layout",
            expected: "a layout without a mask".into(),
            found: "a masked layout".into(),
        });
    }
    Ok(())
}

fn whole_rows(elements: usize, dim: usize) -> Result<usize> {
    check_dim(dim)?;
    if !elements.is_multiple_of(dim) {
        return Err(Error::Shape {
            argument: "data",
            expected: format!("whole rows of {dim} elements"),
            found: format!("{elements} elements"),
        });
    }
    Ok(elements / dim)
}

pub(crate) fn check_dim(dim: usize) -> Result<()> {
    if dim == 0 || dim > MAX_DIM {
        return Err(Error::Shape {
            argument: "dim",
            expected: format!("1 to {MAX_DIM}"),
            found: dim.to_string(),
        });
    }
    Ok(())
}

pub(crate) fn check_count(what: &'static str, count: usize) -> Result<()> {
    if count >= MAX_COUNT {
        return Err(Error::TooLarge { what, limit: MAX_COUNT as u64 - 1, found: count as u64 });
    }
    Ok(())
}

pub(crate) fn check_len(
    argument: &'static str,
    expected: usize,
    meaning: &str,
    found: usize,
) -> Result<()> {
    if expected != found {
        return Err(Error::Shape {
            argument,
            expected: format!("{expected} entries ({meaning})"),
            found: format!("{found} entries"),
        });
    }
    Ok(())
}

fn checked_entry(
    argument: &'static str,
    index: usize,
    value: impl Index,
    least: i64,
    most: i64,
) -> Result<u32> {
    let value = value.to_i128();
    if value < i128::from(least) || value > i128::from(most) {
        let expected = format!("{least} to {most}");
        return Err(Error::Offset { argument, index, expected, found: value });
    }
    Ok(value as u32)
}
