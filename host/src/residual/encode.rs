//! Encodes tokens as codes and buckets.

use std::sync::Arc;

use half::f16;
use maxsim_kernels::abi::residual::{BitOrder, bucket_of, per_byte, with_bucket};
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::codec::ResidualCodec;
use super::nearest::{Nearest, Panels};
use super::tokens::ResidualTokens;
use crate::error::{Error, Result};
use crate::runtime::alloc::zeroed;
use crate::runtime::pool::Parallel;
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::layout::{LayoutKind, TokenLayout};

/// Rows that a thread takes at once.
const CHUNK_LEN: usize = 384;

/// Precision in which rows are compared with centroids, and residuals with cutoffs. It decides
/// about rows that lie nearly as close to a second centroid, and elements nearly at a cutoff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Arithmetic {
    /// f32 throughout, as next-plaid computes.
    #[default]
    F32,
    /// Rows, centroids, dot products (added up in f32) and residuals are each rounded to f16, as
    /// fast-plaid computes, and ColBERT on a GPU: indexes come out with the same bytes.
    F16,
}

impl Arithmetic {
    pub(super) fn round(self, x: f32) -> f32 {
        match self {
            Arithmetic::F32 => x,
            Arithmetic::F16 => f16::from_f32(x).to_f32(),
        }
    }

    /// Rows as f32, rounded.
    pub(super) fn rows<T: Element>(self, rows: &[T]) -> Vec<f32> {
        rows.iter().map(|x| self.round(x.to_f32())).collect()
    }
}

/// How tokens are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct EncodeOptions {
    /// How the bits of buckets are laid out; by default as ColBERT's.
    #[cfg_attr(feature = "serde", serde(with = "crate::runtime::by_name"))]
    pub order: BitOrder,
    /// Meaning of the nearest centroid.
    pub nearest: Nearest,
    /// Precision of the comparisons.
    pub arithmetic: Arithmetic,
}

impl Default for EncodeOptions {
    fn default() -> EncodeOptions {
        EncodeOptions {
            order: BitOrder::Colbert,
            nearest: Nearest::default(),
            arithmetic: Arithmetic::default(),
        }
    }
}

/// The defaults with one thing changed after the other.
impl EncodeOptions {
    /// Sets [`EncodeOptions::order`](field@EncodeOptions::order).
    pub fn order(self, order: BitOrder) -> EncodeOptions {
        EncodeOptions { order, ..self }
    }

    /// Sets [`EncodeOptions::nearest`](field@EncodeOptions::nearest).
    pub fn nearest(self, nearest: Nearest) -> EncodeOptions {
        EncodeOptions { nearest, ..self }
    }

    /// Sets [`EncodeOptions::arithmetic`](field@EncodeOptions::arithmetic).
    pub fn arithmetic(self, arithmetic: Arithmetic) -> EncodeOptions {
        EncodeOptions { arithmetic, ..self }
    }
}

impl<'a> ResidualTokens<'a> {
    /// Encodes tokens, in their own layout and with their mask:
    ///
    /// ```text
    /// code      = the nearest centroid's
    /// bucket[k] = how many cutoffs are below x[k] - centroids[code][k]
    /// ```
    ///
    /// Tokens are not normalised first: for a codec that normalises what it decodes they should
    /// have length 1. A row of zeros has the same dot product with every centroid and takes the
    /// first.
    ///
    /// ```
    /// use maxsim::Tokens;
    /// use maxsim::residual::{Arithmetic, EncodeOptions, Nearest};
    /// use maxsim::residual::{ResidualCodec, ResidualTokens, TrainOptions};
    ///
    /// // Four tokens of length 1, and a codec for such.
    /// let rows = [0.8f32, 0.6, 0.6, 0.8, -1.0, 0.0, -0.96, 0.28];
    /// let tokens = Tokens::packed(&rows, 2, &[0i64, 1, 4])?;
    /// let encode =
    ///     EncodeOptions::default().nearest(Nearest::Distance).arithmetic(Arithmetic::F32);
    /// let options = TrainOptions::default().nbits(8).n_centroids(2).encode(encode);
    /// let codec = ResidualCodec::train(&tokens, &options)?;
    /// let encoded = ResidualTokens::encode(codec.into(), &tokens, &options.encode)?;
    /// assert_eq!(encoded.size_bytes(), 4 * (4 + 2)); // a code and two buckets each
    /// for (x, y) in rows.iter().zip(encoded.decode::<f32>()?.data()) {
    ///     assert!((x - y).abs() < 0.01);
    /// }
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where the tokens' dim is not the codec's, the codec has no cutoffs, or a
    /// valid token has an element that is not finite (in the arithmetic asked for);
    /// [`Error::HostMemory`] where there is no room for the result.
    pub fn encode<T: Element>(
        codec: Arc<ResidualCodec<'a>>,
        tokens: &Tokens<'_, T>,
        options: &EncodeOptions,
    ) -> Result<ResidualTokens<'a>> {
        check_dims(codec.dim(), tokens)?;
        let Some(cutoffs) = codec.bucket_cutoffs() else {
            return Err(Error::Shape {
                argument: "codec",
                expected: "bucket_cutoffs, which encoding needs".into(),
                found: "none".into(),
            });
        };
        check_finite(tokens, options.arithmetic)?;
        let encoder = Encoder::new(&codec, cutoffs, options)?;
        let (dim, row_bytes) = (codec.dim(), codec.row_bytes());
        let rows = tokens.layout().rows();
        let mut codes = zeroed::<i32>(rows as u64)?;
        let mut residuals = zeroed::<u8>(rows as u64 * row_bytes as u64)?;
        let outputs = codes.par_chunks_mut(CHUNK_LEN);
        let outputs = outputs.zip(residuals.par_chunks_mut(CHUNK_LEN * row_bytes));
        let inputs = tokens.data().par_chunks(CHUNK_LEN * dim);
        Parallel::new().share(|min_len| {
            outputs.zip(inputs).with_min_len(min_len).for_each(|((codes, residuals), rows)| {
                let rows = options.arithmetic.rows(rows);
                encoder.chunk(&rows, codes, residuals);
            });
        });
        let layout = unmasked(tokens)?;
        let encoded = ResidualTokens::new(codec, codes, residuals, options.order, layout)?;
        match tokens.mask() {
            Some(mask) => encoded.with_mask(mask.to_vec()),
            None => Ok(encoded),
        }
    }
}

/// A codec prepared for encoding.
struct Encoder<'a> {
    dim: usize,
    nbits: u32,
    panels: Panels,
    /// `[n_centroids, dim]`, rounded.
    centroids: Vec<f32>,
    cutoffs: &'a [f32],
    options: EncodeOptions,
}

impl<'a> Encoder<'a> {
    fn new(
        codec: &ResidualCodec<'_>,
        cutoffs: &'a [f32],
        options: &EncodeOptions,
    ) -> Result<Encoder<'a>> {
        let centroids = options.arithmetic.rows(&codec.centroids().to_f32());
        let rounds = options.arithmetic == Arithmetic::F16;
        let panels = Panels::new(&centroids, codec.dim(), options.nearest, rounds)?;
        let (dim, nbits) = (codec.dim(), codec.nbits());
        Ok(Encoder { dim, nbits, panels, centroids, cutoffs, options: *options })
    }

    fn chunk(&self, rows: &[f32], codes: &mut [i32], residuals: &mut [u8]) {
        self.panels.assign_chunk(rows, codes);
        let row_bytes = residuals.len() / codes.len();
        let outputs = codes.iter().zip(residuals.chunks_exact_mut(row_bytes));
        for (row, (&code, bytes)) in rows.chunks_exact(self.dim).zip(outputs) {
            let centroid = &self.centroids[code as usize * self.dim..][..self.dim];
            let n = per_byte(self.nbits) as usize;
            for (byte, (row, centroid)) in
                bytes.iter_mut().zip(row.chunks(n).zip(centroid.chunks(n)))
            {
                for (i, (&x, &c)) in (0..).zip(row.iter().zip(centroid)) {
                    let bucket = bucket_of(self.options.arithmetic.round(x - c), self.cutoffs);
                    *byte = with_bucket(*byte, i, bucket, self.nbits, self.options.order);
                }
            }
        }
    }
}

fn check_dims<T: Element>(dim: usize, tokens: &Tokens<'_, T>) -> Result<()> {
    if tokens.layout().dim() == dim {
        return Ok(());
    }
    Err(Error::Shape {
        argument: "tokens",
        expected: format!("{dim} elements per token, as the centroids have"),
        found: tokens.layout().dim().to_string(),
    })
}

/// Checks that valid tokens have finite elements once they are rounded.
pub(super) fn check_finite<T: Element>(
    tokens: &Tokens<'_, T>,
    arithmetic: Arithmetic,
) -> Result<()> {
    let dim = tokens.layout().dim();
    let is_bad = |x: &T| !arithmetic.round(x.to_f32()).is_finite();
    let bad_row = |&row: &u32| tokens.data()[row as usize * dim..][..dim].iter().any(is_bad);
    match tokens.valid_rows()?.iter().find(|row| bad_row(row)) {
        None => Ok(()),
        Some(row) => {
            let elements = match arithmetic {
                Arithmetic::F32 => "finite elements",
                Arithmetic::F16 => "elements that are finite in f16",
            };
            Err(Error::Shape {
                argument: "tokens",
                expected: elements.into(),
                found: format!("another value in row {row}"),
            })
        }
    }
}

/// The tokens' layout without their mask.
fn unmasked<T: Element>(tokens: &Tokens<'_, T>) -> Result<TokenLayout> {
    let layout = tokens.layout();
    if tokens.mask().is_none() {
        return Ok(layout.clone());
    }
    let starts: Vec<i64> = layout.segments().iter().map(|&[start, _]| start.into()).collect();
    let lengths: Vec<i64> = layout.segments().iter().map(|&[_, len]| len.into()).collect();
    let (rows, dim) = (layout.rows(), layout.dim());
    match layout.kind() {
        LayoutKind::Padded => {
            let n = layout.n_items();
            let len = rows.checked_div(n).unwrap_or(0);
            TokenLayout::padded(n, len, dim)?.with_lengths(&lengths)
        }
        LayoutKind::Packed => {
            let first = starts.first().copied().unwrap_or(0);
            let ends = starts.iter().zip(&lengths).map(|(start, len)| start + len);
            let offsets: Vec<i64> = std::iter::once(first).chain(ends).collect();
            TokenLayout::packed(rows, dim, &offsets)
        }
        LayoutKind::Scattered => TokenLayout::scattered(rows, dim, &starts, &lengths),
    }
}
