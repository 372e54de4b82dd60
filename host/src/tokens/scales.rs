//! The numbers that codes are read with.

use std::borrow::Cow;
use std::ops::Range;

use half::f16;

use super::format::TokenFormat;
use super::layout::{TokenLayout, check_len};
use super::streamed::runs::RowRuns;
use crate::error::{Error, Result};
use crate::runtime::alloc::copy_of;

/// How the scales of compressed tokens are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleType {
    /// One f16 number per token.
    #[default]
    F16,
    /// One f32 number per token; not for [`Int8Affine`](crate::format::Int8Affine).
    F32,
    /// One f32 number for all tokens; for [`Fp8`](crate::format::Fp8) alone.
    Tensor,
}

impl ScaleType {
    /// The name used in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            ScaleType::F16 => "f16",
            ScaleType::F32 => "f32",
            ScaleType::Tensor => "tensor",
        }
    }
}

/// Scales that the codes of compressed tokens are multiplied by, and the minima where codes start.
///
/// Scales of valid tokens are not negative and not infinite. One that is NaN makes every
/// similarity of its token NaN.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scales<'a> {
    /// One f16 number per row of the matrix.
    F16(Cow<'a, [f16]>),
    /// One f32 number per row of the matrix.
    F32(Cow<'a, [f32]>),
    /// One number for all rows.
    Tensor(f32),
    /// A scale and a minimum per row of the matrix, for [`Int8Affine`](crate::format::Int8Affine).
    Affine {
        /// The distance of two codes.
        scales: Cow<'a, [f16]>,
        /// Number that code 0 stands for.
        mins: Cow<'a, [f16]>,
    },
}

impl Scales<'_> {
    /// The scale of row `row`.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn scale(&self, row: usize) -> f32 {
        match self {
            Scales::F16(scales) | Scales::Affine { scales, .. } => scales[row].to_f32(),
            Scales::F32(scales) => scales[row],
            Scales::Tensor(scale) => *scale,
        }
    }

    /// Number that code 0 of row `row` stands for: 0 unless rows are affine.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn min(&self, row: usize) -> f32 {
        match self {
            Scales::Affine { mins, .. } => mins[row].to_f32(),
            _ => 0.0,
        }
    }

    /// Bytes that they occupy.
    pub fn size_bytes(&self) -> u64 {
        let bytes = match self {
            Scales::F16(scales) => size_of_val(&scales[..]),
            Scales::F32(scales) => size_of_val(&scales[..]),
            Scales::Tensor(scale) => size_of_val(scale),
            Scales::Affine { scales, mins } => size_of_val(&scales[..]) + size_of_val(&mins[..]),
        };
        bytes as u64
    }

    /// Storage type of the scales.
    pub fn storage(&self) -> ScaleType {
        match self {
            Scales::F16(_) | Scales::Affine { .. } => ScaleType::F16,
            Scales::F32(_) => ScaleType::F32,
            Scales::Tensor(_) => ScaleType::Tensor,
        }
    }

    /// Borrows the scales of some rows.
    ///
    /// # Panics
    /// When there are no such rows.
    pub(crate) fn of_rows(&self, rows: Range<usize>) -> Scales<'_> {
        match self {
            Scales::F16(scales) => Scales::F16(scales[rows].into()),
            Scales::F32(scales) => Scales::F32(scales[rows].into()),
            Scales::Tensor(scale) => Scales::Tensor(*scale),
            Scales::Affine { scales, mins } => {
                Scales::Affine { scales: scales[rows.clone()].into(), mins: mins[rows].into() }
            }
        }
    }

    /// Borrows all of them.
    pub(crate) fn borrowed(&self) -> Scales<'_> {
        match self {
            Scales::F16(scales) => Scales::F16(scales[..].into()),
            Scales::F32(scales) => Scales::F32(scales[..].into()),
            Scales::Tensor(scale) => Scales::Tensor(*scale),
            Scales::Affine { scales, mins } => {
                Scales::Affine { scales: scales[..].into(), mins: mins[..].into() }
            }
        }
    }

    /// A copy of its own.
    pub(crate) fn copied(&self) -> Result<Scales<'static>> {
        Ok(match self {
            Scales::F16(scales) => Scales::F16(copy_of(scales)?.into()),
            Scales::F32(scales) => Scales::F32(copy_of(scales)?.into()),
            Scales::Tensor(scale) => Scales::Tensor(*scale),
            Scales::Affine { scales, mins } => {
                Scales::Affine { scales: copy_of(scales)?.into(), mins: copy_of(mins)?.into() }
            }
        })
    }

    /// A copy of the scales of some rows.
    ///
    /// # Panics
    /// When there are no such rows.
    pub(crate) fn gathered(&self, rows: &RowRuns) -> Result<Scales<'static>> {
        Ok(match self {
            Scales::F16(scales) => Scales::F16(rows.gathered(scales)?.into()),
            Scales::F32(scales) => Scales::F32(rows.gathered(scales)?.into()),
            Scales::Tensor(scale) => Scales::Tensor(*scale),
            Scales::Affine { scales, mins } => Scales::Affine {
                scales: rows.gathered(scales)?.into(),
                mins: rows.gathered(mins)?.into(),
            },
        })
    }

    /// Checks that these are the scales of `rows` rows of a format.
    pub(crate) fn check(&self, format: TokenFormat, rows: usize) -> Result<()> {
        let (expected, fits) = match format {
            TokenFormat::Int8 => {
                ("Scales::F16 or Scales::F32", matches!(self, Scales::F16(_) | Scales::F32(_)))
            }
            TokenFormat::Int8Affine => ("Scales::Affine", matches!(self, Scales::Affine { .. })),
            _ => (
                "Scales::F16, Scales::F32 or Scales::Tensor",
                !matches!(self, Scales::Affine { .. }),
            ),
        };
        if !fits {
            return Err(Error::Shape {
                argument: "scales",
                expected: format!("{expected} for {format} tokens"),
                found: format!("Scales::{}", self.variant()),
            });
        }
        let len = |found| check_len("scales", rows, "one per row", found);
        match self {
            Scales::F16(scales) => len(scales.len()),
            Scales::F32(scales) => len(scales.len()),
            Scales::Tensor(_) => Ok(()),
            Scales::Affine { scales, mins } => {
                len(scales.len())?;
                check_len("mins", rows, "one per row", mins.len())
            }
        }
    }

    /// Checks the scales of the valid tokens. What other rows have does not matter.
    pub(crate) fn check_values(&self, layout: &TokenLayout, mask: Option<&[u8]>) -> Result<()> {
        let rows = (0..layout.n_items()).flat_map(|i| layout.item_rows(i));
        let mut valid = rows.filter(|&row| mask.is_none_or(|mask| mask[row] != 0));
        let wrong = match self {
            Scales::Tensor(_) => valid.next().filter(|&row| !self.is_right(row)),
            _ => valid.find(|&row| !self.is_right(row)),
        };
        match wrong {
            None => Ok(()),
            Some(row) => Err(Error::Shape {
                argument: "scales",
                expected: "finite numbers of 0 or more, or NaN, for valid tokens".into(),
                found: format!("{} for row {row}", self.scale(row)),
            }),
        }
    }

    /// Whether the scale of row `row` may be that of a valid token.
    pub(crate) fn is_right(&self, row: usize) -> bool {
        let scale = self.scale(row);
        !(scale < 0.0 || scale.is_infinite())
    }

    /// The word that a device keeps for the scale of row `row`: an f32, or f16 scale and minimum.
    pub(crate) fn word(&self, row: usize) -> u32 {
        match self {
            Scales::Affine { scales, mins } => {
                u32::from(mins[row].to_bits()) << 16 | u32::from(scales[row].to_bits())
            }
            _ => self.scale(row).to_bits(),
        }
    }

    fn variant(&self) -> &'static str {
        match self {
            Scales::F16(_) => "F16",
            Scales::F32(_) => "F32",
            Scales::Tensor(_) => "Tensor",
            Scales::Affine { .. } => "Affine",
        }
    }
}
