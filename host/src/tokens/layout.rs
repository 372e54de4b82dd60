//! Assigns the rows of a token matrix to items.

mod beside;
mod chosen;
pub(crate) mod limits;

use std::fmt;
use std::ops::Range;

use bytemuck::cast_slice;
use twox_hash::XxHash3_64;

use self::limits::check_row_len;
use super::index::Index;
use crate::error::{Error, Result};
use crate::runtime::alloc::filled;

/// Rows, items and pairs are counted below this (2³¹).
pub const MAX_COUNT: usize = 1 << 31;

/// How the items of a token matrix were described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKind {
    /// `[n, len, dim]`: item `i` starts at row `i · len`.
    Padded,
    /// Packed items, one after the other, from `offsets` ("cu_seqlens").
    Packed,
    /// Items anywhere in a larger matrix, from `starts` and `lengths`.
    Scattered,
}

/// Shape of a token matrix and the rows of each item; no data.
///
/// ```
/// use maxsim::{TokenLayout, Tokens};
///
/// // Two passages of a text of five tokens, which both have its third; dim 1.
/// let (starts, lengths) = ([0i64, 2], [3i64, 2]);
/// let layout = TokenLayout::scattered(5, 1, &starts, &lengths)?;
/// assert_eq!((layout.item_rows(1), layout.item_len(1)), (2..4, 2));
/// assert_eq!((layout.max_len(), layout.total_len()), (3, 5));
/// assert_eq!((layout.rows(), layout.dim()), (5, 1));
///
/// let text = [1.0f32, 2.0, 3.0, 4.0, 5.0];
/// let passages = Tokens::from_layout(&text[..], layout.clone())?;
/// assert_eq!(Tokens::scattered(&text, 1, &starts, &lengths)?.layout(), passages.layout());
/// assert_eq!(passages.items(1..2)?.data(), [3.0, 4.0]);
///
/// // Stop words are masked: the second passage has nothing else.
/// let layout = layout.with_mask(&[1, 1, 0, 0, 1])?;
/// assert!(layout.is_masked() && layout.has_tokens(0) && !layout.has_tokens(1));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct TokenLayout {
    kind: LayoutKind,
    rows: usize,
    dim: usize,
    /// (start row, length) per item.
    segments: Vec<[u32; 2]>,
    max_len: usize,
    total_len: u64,
    masked: bool,
    /// Whether tokens have weights.
    weighted: bool,
    /// Per item: does it have a valid token?
    has_tokens: Vec<bool>,
    /// Whether some item may have no valid token.
    has_empty_items: bool,
    /// Whether the device alone knows the items.
    unread: bool,
    /// Whether the device alone knows which rows are masked.
    unread_mask: bool,
    /// Length of items that all have it and lie one behind the other from row 0 on.
    regular_len: Option<u32>,
    /// The same for layouts whose items are the same rows; hardly ever for others.
    key: u64,
}

/// Prints counts instead of items, of which there may be millions.
impl fmt::Debug for TokenLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLayout")
            .field("kind", &self.kind)
            .field("n_items", &self.n_items())
            .field("rows", &self.rows)
            .field("dim", &self.dim)
            .field("max_len", &self.max_len)
            .field("is_masked", &self.masked)
            .field("is_weighted", &self.weighted)
            .finish_non_exhaustive()
    }
}

impl AsRef<TokenLayout> for TokenLayout {
    fn as_ref(&self) -> &TokenLayout {
        self
    }
}

impl TokenLayout {
    pub(super) fn new(
        kind: LayoutKind,
        rows: usize,
        dim: usize,
        segments: Vec<[u32; 2]>,
    ) -> TokenLayout {
        let max_len = segments.iter().map(|s| s[1] as usize).max().unwrap_or(0);
        let total_len = segments.iter().map(|s| u64::from(s[1])).sum();
        let has_tokens = segments.iter().map(|s| s[1] > 0).collect();
        let has_empty_items = segments.iter().any(|s| s[1] == 0);
        let regular_len = regular_len(&segments);
        let key = match regular_len {
            Some(len) => XxHash3_64::oneshot(cast_slice(&[segments.len() as u64, u64::from(len)])),
            None => XxHash3_64::oneshot(cast_slice(&segments)),
        };
        TokenLayout {
            kind,
            rows,
            dim,
            segments,
            max_len,
            total_len,
            masked: false,
            weighted: false,
            has_tokens,
            has_empty_items,
            unread: false,
            unread_mask: false,
            regular_len,
            key,
        }
    }

    /// Layout of `[n, len, dim]`, every item of full length.
    pub fn padded(n: usize, len: usize, dim: usize) -> Result<TokenLayout> {
        check_row_len(dim)?;
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
        let layout = TokenLayout::new(self.kind, self.rows, self.dim, self.segments);
        Ok(layout.weighted_if(self.weighted))
    }

    /// Makes a layout of items one after the other in `[rows, dim]`: item `i` is the rows
    /// `offsets[i] .. offsets[i + 1]`. `offsets` has one entry more than there are items. Rows
    /// before the first offset and from the last one on are no item's.
    pub fn packed<I: Index>(rows: usize, dim: usize, offsets: &[I]) -> Result<TokenLayout> {
        check_row_len(dim)?;
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
        check_row_len(dim)?;
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

    /// Layout of `n_items` items anywhere in `[rows, dim]`, of at most `max_len` rows each, whose
    /// rows are known on the device alone: every item counts as one that may be empty. Calls are
    /// planned as if all items had `planned_len` rows; how fast they are depends on it, what they
    /// find does not. For documents of
    /// [`DeviceTokens::from_raw_unchecked`](crate::DeviceTokens::from_raw_unchecked) with
    /// [segments](crate::format::RawRows::segments); there is no other use of such a layout.
    ///
    /// ```
    /// let layout = maxsim::TokenLayout::unread(5000, 128, 20, 512, 250)?;
    /// assert!(layout.is_unread() && layout.max_len() == 512 && layout.has_tokens(0));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] for a dim that there is not, or items longer than the matrix,
    /// [`Error::TooLarge`].
    pub fn unread(
        rows: usize,
        dim: usize,
        n_items: usize,
        max_len: usize,
        planned_len: usize,
    ) -> Result<TokenLayout> {
        check_row_len(dim)?;
        check_count("rows of a token matrix", rows)?;
        check_count("number of items", n_items)?;
        if max_len > rows || planned_len > max_len {
            return Err(Error::Shape {
                argument: "max_len, planned_len",
                expected: format!("items of at most {rows} rows, planned to have no more"),
                found: format!("up to {max_len} rows, planned {planned_len}"),
            });
        }
        // An item may have a row, whatever is planned.
        let len = planned_len.max(max_len.min(1)) as u32;
        let layout = TokenLayout::new(LayoutKind::Scattered, rows, dim, vec![[0, len]; n_items]);
        let key = XxHash3_64::oneshot(cast_slice(&[u64::MAX, max_len as u64, layout.key]));
        Ok(TokenLayout {
            max_len,
            has_empty_items: true,
            unread: true,
            regular_len: None,
            key,
            ..layout
        })
    }

    /// Whether the items' rows are known on the device alone.
    pub fn is_unread(&self) -> bool {
        self.unread
    }

    /// Refuses items that the device alone knows.
    pub(crate) fn check_read(&self, argument: &'static str) -> Result<()> {
        match self.is_unread() {
            false => Ok(()),
            true => Err(Error::Shape {
                argument,
                expected: "a layout whose items the host knows".into(),
                found: "one of items that the device alone knows (TokenLayout::unread)".into(),
            }),
        }
    }

    /// Takes a row mask into account: finds the items left without a valid token.
    pub fn with_mask(mut self, mask: &[u8]) -> Result<TokenLayout> {
        self.check_read("layout")?;
        check_len("mask", self.rows, "one byte per row", mask.len())?;
        (self.masked, self.unread_mask) = (true, false);
        for (has, segment) in self.has_tokens.iter_mut().zip(&self.segments) {
            let start = segment[0] as usize;
            *has = mask[start..start + segment[1] as usize].iter().any(|&m| m != 0);
        }
        self.has_empty_items = self.has_tokens.iter().any(|&has| !has);
        Ok(self)
    }

    /// Says that rows are masked by bytes that are never read on the host: every item counts as one
    /// that has a valid token and as one that may have none. For
    /// [`DeviceTokens::from_raw_unchecked`](crate::DeviceTokens::from_raw_unchecked).
    ///
    /// ```
    /// let layout = maxsim::TokenLayout::padded(2, 300, 128)?.with_unread_mask();
    /// assert!(layout.is_masked() && layout.has_tokens(1));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn with_unread_mask(self) -> TokenLayout {
        TokenLayout { masked: true, unread_mask: true, has_empty_items: true, ..self }
    }

    /// The rows from the first to the last token of some consecutive items, and how the items lie
    /// in these. A mask is not part of that: it is one of rows, and stays with them.
    ///
    /// # Errors
    /// [`Error::Offset`] where there are fewer items.
    ///
    /// ```
    /// let layout = maxsim::TokenLayout::packed(4, 1, &[0i64, 1, 1, 4])?;
    /// let (rows, items) = layout.items(1..3)?;
    /// assert_eq!((rows, items.segments()), (1..4, &[[0, 0], [0, 3]][..]));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn items(&self, items: Range<usize>) -> Result<(Range<usize>, TokenLayout)> {
        self.check_read("items")?;
        let segments = self.segments.get(items.clone()).ok_or_else(|| Error::Offset {
            argument: "items",
            index: items.start,
            expected: format!("a range within 0..{}", self.n_items()),
            found: items.end as i128,
        })?;
        let with_rows = || segments.iter().filter(|segment| segment[1] > 0);
        let first = with_rows().map(|segment| segment[0]).min().unwrap_or(0);
        let end = with_rows().map(|segment| segment[0] + segment[1]).max().unwrap_or(0);
        // An item without tokens may start anywhere: it needs no row.
        let moved = |&[start, len]: &[u32; 2]| [if len == 0 { 0 } else { start - first }, len];
        let rows = first as usize..end as usize;
        let segments = segments.iter().map(moved).collect();
        let layout = TokenLayout::new(LayoutKind::Scattered, rows.len(), self.dim, segments);
        Ok((rows, layout))
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

    /// Whether the items are the same rows of an equally large matrix, masks aside, and both or
    /// neither have weights.
    pub(crate) fn same_items(&self, other: &TokenLayout) -> bool {
        let is_same_matrix = (self.rows, self.dim, self.key) == (other.rows, other.dim, other.key)
            && self.weighted == other.weighted;
        let are_same_lens = match (self.regular_len, other.regular_len) {
            (Some(a), Some(b)) => a == b && self.n_items() == other.n_items(),
            (None, None) => {
                self.unread == other.unread
                    && self.segments == other.segments
                    && self.max_len == other.max_len
            }
            _ => false,
        };
        is_same_matrix && are_same_lens
    }

    /// A number that is the same for layouts of the same items, and hardly ever for others.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// The length of items that all have it and lie one behind the other from row 0 on; else
    /// `None`.
    pub(crate) fn regular_len(&self) -> Option<u32> {
        self.regular_len
    }

    /// Whether the items are the same rows, and the same of them have valid tokens, however that
    /// was said.
    pub(crate) fn same_tokens(&self, other: &TokenLayout) -> bool {
        self.same_items(other) && self.has_tokens == other.has_tokens
    }

    /// For each row of the matrix, whether an item has it. Masks are not counted with.
    pub(crate) fn used_rows(&self) -> Result<Vec<bool>> {
        let mut is_used = filled(self.rows as u64, false)?;
        (0..self.n_items()).for_each(|item| is_used[self.item_rows(item)].fill(true));
        Ok(is_used)
    }

    /// Whether some item may have no valid token.
    pub(crate) fn has_empty_items(&self) -> bool {
        self.has_empty_items
    }

    /// Whether the host knows which items have a valid token.
    pub(crate) fn knows_empty_items(&self) -> bool {
        !self.unread && !self.unread_mask
    }

    /// Whether item `i` has a valid token: a document without one scores 0.
    ///
    /// # Panics
    /// When there is no item `i`.
    pub fn has_tokens(&self, i: usize) -> bool {
        self.has_tokens[i]
    }
}

/// The length of items that all have it and lie one behind the other from row 0 on; else `None`.
pub(crate) fn regular_len(segments: &[[u32; 2]]) -> Option<u32> {
    let len = segments.first().map_or(0, |segment| segment[1]);
    let mut expected = (0u32..).map(|i| [i.wrapping_mul(len), len]);
    segments.iter().all(|&segment| Some(segment) == expected.next()).then_some(len)
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
