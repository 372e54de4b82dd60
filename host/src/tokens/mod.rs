//! Token matrices and how items (queries or documents) lie in them.
//!
//! Every layout is *segments over one token matrix*: a row-major matrix
//! `[rows, dim]` and, per item, a run of consecutive rows. Padded, packed and
//! scattered are three ways to say which rows; a mask may switch single rows off.
//! All checks happen here, once.

pub(crate) mod any;
pub(crate) mod conversion;
pub(crate) mod digest;
pub(crate) mod dispatch;
pub(crate) mod element;
pub(crate) mod format;
pub(crate) mod index;
pub(crate) mod layout;
pub(crate) mod pack;
pub(crate) mod quantize;
pub(crate) mod quantize_report;
pub(crate) mod raw_items;
pub(crate) mod scaled_rows;
pub(crate) mod scales;
pub(crate) mod streamed;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use self::element::Element;
use self::format::{Format, Quantized, TokenFormat};
use self::index::Index;
use self::scales::Scales;
use crate::error::{Error, Result};
use crate::runtime::alloc::{copy_of, filled};
use crate::tokens::layout::limits::check_row_len;
use crate::tokens::layout::{TokenLayout, check_len};

/// Token embeddings in host memory: a matrix `[rows, dim]`, the rows of each item, and optionally a
/// mask. Borrows its data, or owns it (after [`Tokens::pack`] or [`Tokens::quantize`], say).
///
/// `F` is the type of the elements, or of the codes of a compressed [`Format`], which come with
/// [`Scales`].
#[derive(Clone)]
#[must_use]
pub struct Tokens<'a, F: Format> {
    data: Cow<'a, [F::Stored]>,
    /// Scales of codes.
    scales: Option<Scales<'a>>,
    layout: TokenLayout,
    mask: Option<Cow<'a, [u8]>>,
    weights: Option<Cow<'a, [f32]>>,
}

/// Prints everything but the matrix.
impl<F: Format> fmt::Debug for Tokens<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("format", &F::FORMAT)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl<F: Format> AsRef<TokenLayout> for Tokens<'_, F> {
    fn as_ref(&self) -> &TokenLayout {
        &self.layout
    }
}

impl<'a, T: Element> Tokens<'a, T> {
    /// Items of equal length: `data` is `[n, len, dim]`, row-major.
    pub fn padded(data: &'a [T], n: usize, len: usize, dim: usize) -> Result<Self> {
        Tokens::from_layout(data, TokenLayout::padded(n, len, dim)?)
    }

    /// Makes packed tokens of items one after the other: `data` is `[rows, dim]`, item `i` the rows
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
        Ok(Tokens { data, scales: None, layout, mask: None, weights: None })
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
        scales.check(F::FORMAT, layout.rows())?;
        Ok(Tokens { data, scales: Some(scales), layout, mask: None, weights: None })
    }

    /// Scales that the codes are multiplied by.
    pub fn scales(&self) -> &Scales<'a> {
        // Codes never come without.
        const NONE: &Scales<'static> = &Scales::Tensor(1.0);
        self.scales.as_ref().unwrap_or(NONE)
    }
}

impl<'a, F: Format> Tokens<'a, F> {
    /// Data that fits its layout, scales that fit the format, and what is beside the rows.
    pub(crate) fn assemble(
        data: Cow<'a, [F::Stored]>,
        scales: Option<Scales<'a>>,
        layout: TokenLayout,
        (mask, weights): (Option<&[u8]>, Option<&[f32]>),
    ) -> Result<Self> {
        debug_assert_eq!(layout.is_weighted(), weights.is_some());
        let mask = mask.map(copy_of).transpose()?.map(Cow::Owned);
        let weights = weights.map(copy_of).transpose()?.map(Cow::Owned);
        Ok(Tokens { data, scales, layout, mask, weights })
    }

    /// Mask and weights, as [`Tokens::assemble`] takes them.
    pub(crate) fn beside(&self) -> (Option<&[u8]>, Option<&[f32]>) {
        (self.mask(), self.weights())
    }

    /// Keeps the first `lengths[i]` tokens of item `i` of a padded layout.
    pub fn with_lengths<I: Index>(self, lengths: &[I]) -> Result<Self> {
        let layout = self.layout.with_lengths(lengths)?;
        Ok(Tokens { layout, ..self })
    }

    /// Borrows some consecutive items.
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
        let (rows, layout) = self.layout.items(items)?;
        let dim = self.layout.dim();
        let tokens = Tokens {
            data: self.data[rows.start * dim..rows.end * dim].into(),
            scales: self.scales.as_ref().map(|scales| scales.of_rows(rows.clone())),
            layout: layout.weighted_if(self.weights.is_some()),
            mask: None,
            weights: self.weights.as_ref().map(|weights| weights[rows.clone()].into()),
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

    /// Gives query tokens weights: one per row of the matrix, of any sign. A score is then
    /// `Σ_s w[s] · max_t ⟨Q[s], D[t]⟩`.
    ///
    /// Winners and [token scores](crate::Scores::token_scores) do not depend on weights. A token
    /// of weight 0 counts for nothing, though its weight has a gradient; a NaN shows, unless the
    /// token is masked. Weights stay with the tokens: where they are uploaded,
    /// [compressed](Tokens::quantize) or [borrowed in part](Tokens::items).
    ///
    /// What would not count them refuses them: documents with weights, searches that compare by
    /// bounds, [`Device::rescore`](crate::Device::rescore), XTR, and
    /// [`Device::project`](crate::Device::project) of hidden states on CUDA devices.
    ///
    /// ```
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let queries = queries.with_weights(&[2.0, -0.5])?;
    /// assert_eq!(queries.weights(), Some(&[2.0, -0.5][..]));
    /// assert!(queries.layout().is_weighted());
    /// let documents = Tokens::padded(&[3.0f32, 4.0, -1.0, 5.0], 1, 2, 2)?;
    /// let scores = Device::cpu().score(&queries, &documents, &Pairing::cross())?;
    /// assert_eq!(scores.values(), [2.0 * 3.0 - 0.5 * 5.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where they are not as many as the matrix has rows.
    pub fn with_weights(self, weights: impl Into<Cow<'a, [f32]>>) -> Result<Self> {
        let weights = weights.into();
        check_len("weights", self.layout.rows(), "one per row", weights.len())?;
        let layout = self.layout.weighted_if(true);
        Ok(Tokens { layout, weights: Some(weights), ..self })
    }

    /// Divides weights by the number of the query's valid tokens, so that scores are means over
    /// them (MeanMaxSim). Weights are 1 before where tokens have none. Lengths and mask come first:
    /// later ones change no weight.
    ///
    /// ```
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?.with_mean_weights()?;
    /// let documents = Tokens::padded(&[3.0f32, 4.0, -1.0, 5.0], 1, 2, 2)?;
    /// let scores = Device::cpu().score(&queries, &documents, &Pairing::cross())?;
    /// assert_eq!(scores.values(), [(3.0 + 5.0) / 2.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where items of different numbers of valid tokens share a row;
    /// [`Error::HostMemory`].
    pub fn with_mean_weights(self) -> Result<Self> {
        let mut weights = filled(self.layout.rows() as u64, 0.0f32)?;
        for item in 0..self.layout.n_items() {
            let rows = || self.layout.item_rows(item);
            let is_valid = |row: &usize| self.mask().is_none_or(|mask| mask[*row] != 0);
            let n_valid = self.layout.n_valid(item, self.mask());
            for row in rows().filter(is_valid) {
                let weight = self.weights().map_or(1.0, |weights| weights[row]) / n_valid as f32;
                let found = std::mem::replace(&mut weights[row], weight);
                if found != 0.0 && found.to_bits() != weight.to_bits() {
                    return Err(Error::Shape {
                        argument: "items",
                        expected: format!("one length of all items that have row {row}"),
                        found: format!("{n_valid} valid tokens of item {item}, others before"),
                    });
                }
            }
        }
        self.with_weights(weights)
    }

    /// The weights of the rows, where there are any.
    pub fn weights(&self) -> Option<&[f32]> {
        self.weights.as_deref()
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

    /// Storage format of the tokens.
    pub fn format(&self) -> TokenFormat {
        F::FORMAT
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
    layout.check_read("layout")?;
    let expected = layout.rows() as u64 * layout.dim() as u64;
    if len as u64 != expected {
        return Err(Error::Shape {
            argument,
            expected: format!("{expected} elements ({} rows of {})", layout.rows(), layout.dim()),
            found: format!("{len} elements"),
        });
    }
    if layout.is_masked() {
        return Err(Error::Shape {
            argument: "layout",
            expected: "a layout without a mask".into(),
            found: "a masked layout".into(),
        });
    }
    layout.check_unweighted("of a layout", "give them to Tokens::with_weights")
}

fn whole_rows(elements: usize, dim: usize) -> Result<usize> {
    check_row_len(dim)?;
    if !elements.is_multiple_of(dim) {
        return Err(Error::Shape {
            argument: "data",
            expected: format!("whole rows of {dim} elements"),
            found: format!("{elements} elements"),
        });
    }
    Ok(elements / dim)
}
