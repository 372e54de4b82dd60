//! Residual-compressed tokens, validated once.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use maxsim_kernels::abi::residual::BitOrder;

use super::codec::ResidualCodec;
use crate::error::{Error, Result};
use crate::runtime::alloc::copy_of;
use crate::tokens::layout::{TokenLayout, check_len};

/// Ids of centroids, one per token, in either of the types that indexes have them in.
#[derive(Clone, Debug)]
pub enum Codes<'a> {
    /// As ColBERT stores them.
    I32(Cow<'a, [i32]>),
    /// As fast-plaid and next-plaid store them. They are narrowed to i32 when they are checked.
    I64(Cow<'a, [i64]>),
}

impl Codes<'_> {
    fn len(&self) -> usize {
        match self {
            Codes::I32(codes) => codes.len(),
            Codes::I64(codes) => codes.len(),
        }
    }
}

impl<'a> From<&'a [i32]> for Codes<'a> {
    fn from(codes: &'a [i32]) -> Codes<'a> {
        Codes::I32(codes.into())
    }
}

impl<'a> From<&'a [i64]> for Codes<'a> {
    fn from(codes: &'a [i64]) -> Codes<'a> {
        Codes::I64(codes.into())
    }
}

impl From<Vec<i32>> for Codes<'_> {
    fn from(codes: Vec<i32>) -> Self {
        Codes::I32(codes.into())
    }
}

impl From<Vec<i64>> for Codes<'_> {
    fn from(codes: Vec<i64>) -> Self {
        Codes::I64(codes.into())
    }
}

/// Tokens as codes and buckets: a centroid's id per token, `ceil(dim · nbits / 8)` bytes of buckets
/// per token, the rows of each item, and optionally a mask. Borrows its data, or owns it.
#[derive(Clone)]
#[must_use]
pub struct ResidualTokens<'a> {
    codec: Arc<ResidualCodec<'a>>,
    codes: Cow<'a, [i32]>,
    residuals: Cow<'a, [u8]>,
    order: BitOrder,
    layout: TokenLayout,
    mask: Option<Mask<'a>>,
}

/// A row mask, and the layout that takes it into account.
#[derive(Clone, Debug)]
struct Mask<'a> {
    rows: Cow<'a, [u8]>,
    layout: TokenLayout,
}

/// Prints everything but codes and buckets.
impl fmt::Debug for ResidualTokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidualTokens")
            .field("codec", &self.codec)
            .field("order", &self.order)
            .field("layout", self.layout())
            .finish_non_exhaustive()
    }
}

impl AsRef<TokenLayout> for ResidualTokens<'_> {
    fn as_ref(&self) -> &TokenLayout {
        &self.layout
    }
}

impl<'a> ResidualTokens<'a> {
    /// Checks and takes `codes` `[rows]` and `residuals` `[rows, ceil(dim · nbits / 8)]`, whose
    /// bits are in `order`. The layout, of any kind, says which rows an item has; its dim is the
    /// codec's. A layout made with a mask is refused: give the mask to
    /// [`ResidualTokens::with_mask`].
    ///
    /// Every code must be that of a centroid, those of padding too: kernels read whole tiles.
    pub fn new(
        codec: Arc<ResidualCodec<'a>>,
        codes: impl Into<Codes<'a>>,
        residuals: impl Into<Cow<'a, [u8]>>,
        order: BitOrder,
        layout: TokenLayout,
    ) -> Result<Self> {
        let (codes, residuals) = (codes.into(), residuals.into());
        if layout.dim() != codec.dim() {
            return Err(Error::Shape {
                argument: "layout",
                expected: format!("tokens of {} elements, as the codec's", codec.dim()),
                found: format!("tokens of {}", layout.dim()),
            });
        }
        if layout.is_masked() {
            return Err(Error::Shape {
                argument: "layout",
                expected: "a layout without a mask".into(),
                found: "a masked layout".into(),
            });
        }
        check_len("codes", layout.rows(), "one per row", codes.len())?;
        let expected = layout.rows() as u64 * codec.row_bytes() as u64;
        if residuals.len() as u64 != expected {
            return Err(Error::Shape {
                argument: "residuals",
                expected: format!(
                    "{expected} bytes ({} rows of {})",
                    layout.rows(),
                    codec.row_bytes()
                ),
                found: format!("{} bytes", residuals.len()),
            });
        }
        let codes = checked_codes(codes, codec.n_centroids())?;
        Ok(ResidualTokens { codec, codes, residuals, order, layout, mask: None })
    }

    /// Switches rows off: one byte per row, non-zero = valid, any pattern.
    pub fn with_mask(self, mask: impl Into<Cow<'a, [u8]>>) -> Result<Self> {
        let rows = mask.into();
        let layout = self.layout.clone().with_mask(&rows)?;
        Ok(ResidualTokens { mask: Some(Mask { rows, layout }), ..self })
    }

    /// Changes the bit order of the buckets: copies them with the bits of every byte reversed, or
    /// does nothing where they are in `order` already.
    pub fn into_order(self, order: BitOrder) -> Self {
        if order == self.order {
            return self;
        }
        let mut residuals = self.residuals.into_owned();
        residuals.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        ResidualTokens { residuals: residuals.into(), order, ..self }
    }

    /// Codec that decodes the tokens.
    pub fn codec(&self) -> &Arc<ResidualCodec<'a>> {
        &self.codec
    }

    /// A centroid's id per row.
    pub fn codes(&self) -> &[i32] {
        &self.codes
    }

    /// Buckets, [`ResidualCodec::row_bytes`] per row.
    pub fn residuals(&self) -> &[u8] {
        &self.residuals
    }

    /// How the bits of the buckets lie.
    pub fn order(&self) -> BitOrder {
        self.order
    }

    /// Rows, dim, and the rows of each item.
    pub fn layout(&self) -> &TokenLayout {
        self.mask.as_ref().map_or(&self.layout, |mask| &mask.layout)
    }

    /// The row mask, where there is one.
    pub fn mask(&self) -> Option<&[u8]> {
        self.mask.as_ref().map(|mask| &mask.rows[..])
    }

    /// The layout without the mask.
    pub(super) fn unmasked(&self) -> &TokenLayout {
        &self.layout
    }

    /// Makes a copy that borrows nothing, without the mask.
    pub(crate) fn copied(&self) -> Result<ResidualTokens<'static>> {
        Ok(ResidualTokens {
            codec: Arc::new(self.codec.copied()?),
            codes: copy_of(&self.codes)?.into(),
            residuals: copy_of(&self.residuals)?.into(),
            order: self.order,
            layout: self.layout.clone(),
            mask: None,
        })
    }

    /// Bytes of codes and buckets; the codec's tables not counted.
    pub fn size_bytes(&self) -> u64 {
        size_of_val(self.codes()) as u64 + self.residuals.len() as u64
    }

    /// Whether the items are all rows, one after the other, in any kind of layout.
    pub fn is_packed(&self) -> bool {
        let mut end = 0;
        let follows = |&[start, len]: &[u32; 2]| {
            let is_next = start as usize == end;
            end += len as usize;
            is_next
        };
        self.layout.segments().iter().all(follows) && end == self.layout.rows()
    }
}

fn checked_codes(codes: Codes<'_>, n_centroids: usize) -> Result<Cow<'_, [i32]>> {
    let wrong = |index, found| Error::Id { argument: "codes", index, found, n_items: n_centroids };
    let exists = |code: i64| (0..n_centroids as i64).contains(&code);
    match codes {
        Codes::I32(codes) => match codes.iter().position(|&code| !exists(code.into())) {
            Some(index) => Err(wrong(index, codes[index].into())),
            None => Ok(codes),
        },
        Codes::I64(codes) => match codes.iter().position(|&code| !exists(code)) {
            Some(index) => Err(wrong(index, codes[index])),
            // There are fewer than 2³¹ centroids.
            None => Ok(codes.iter().map(|&code| code as i32).collect()),
        },
    }
}
