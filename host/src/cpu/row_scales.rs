//! Row scales: what similarities are multiplied by, r of normalised rows or the scales of codes.

use std::ops::Range;

use maxsim_kernels::abi::quantize::affine_similarity;
use pulp::{Arch, Simd, WithSimd};

use super::norms::Norms;
use super::panels::Panel;
use crate::error::Result;
use crate::linalg::gemm::TILE_LEN;
use crate::linalg::kernels::dispatch;
use crate::runtime::alloc::reserve;
use crate::tokens::scales::Scales;

/// The row scales of both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowScales<'a> {
    queries: Of<'a>,
    documents: Of<'a>,
}

/// The row scales of one side.
#[derive(Clone, Copy, Debug)]
enum Of<'a> {
    /// Rows are elements, without a scale.
    None,
    /// Rows are normalised.
    Norms(&'a [f32]),
    /// Rows are codes.
    Scales(&'a Scales<'a>),
}

impl<'a> Of<'a> {
    fn new(norms: Option<&'a [f32]>, scales: Option<&'a Scales<'a>>) -> Of<'a> {
        match (norms, scales) {
            (Some(norms), _) => Of::Norms(norms),
            (None, Some(scales)) => Of::Scales(scales),
            (None, None) => Of::None,
        }
    }

    fn get(&self, row: usize) -> f32 {
        match self {
            Of::None => 1.0,
            Of::Norms(norms) => norms[row],
            Of::Scales(scales) => scales.scale(row),
        }
    }
}

impl<'a> RowScales<'a> {
    /// The norms of both sides, or else the scales that each may have.
    pub fn new(
        norms: Option<&'a Norms>,
        queries: Option<&'a Scales<'a>>,
        documents: Option<&'a Scales<'a>>,
    ) -> RowScales<'a> {
        RowScales {
            queries: Of::new(norms.map(|norms| &norms.queries[..]), queries),
            documents: Of::new(norms.map(|norms| &norms.documents[..]), documents),
        }
    }

    /// Whether [`RowScales::apply`] needs the sums of the query tokens.
    pub fn need_sums(&self) -> bool {
        matches!(self.documents, Of::Scales(Scales::Affine { .. }))
    }

    /// Reads what a tile's rows are multiplied by into `factors`, for all of its panels.
    pub fn of_tile(
        &self,
        rows: impl Iterator<Item = Range<usize>>,
        factors: &mut Factors,
    ) -> Result<()> {
        let Factors { scales, mins } = factors;
        scales.clear();
        mins.clear();
        if let Of::None = self.documents {
            return Ok(());
        }
        reserve(scales, TILE_LEN)?;
        reserve(mins, TILE_LEN)?;
        for rows in rows {
            scales.extend(rows.clone().map(|row| self.documents.get(row)));
            if let Of::Scales(of @ Scales::Affine { .. }) = self.documents {
                mins.extend(rows.map(|row| of.min(row)));
            }
        }
        Ok(())
    }

    /// Turns products `[n_rows, width]` of a tile's rows with a panel's columns, bits of f32 or of
    /// i32, into similarities.
    pub fn apply<'b>(
        arch: Arch,
        are_integers: bool,
        products: &'b mut [u32],
        panel: &Panel,
        factors: &Factors,
    ) -> &'b [f32] {
        match are_integers {
            true => dispatch(arch, Apply::<true> { products, panel, factors }),
            false if factors.scales.is_empty() => {}
            false => dispatch(arch, Apply::<false> { products, panel, factors }),
        }
        bytemuck::cast_slice(products)
    }

    /// Factor of a query row's maxima. It is never negative, so that the winner stays the winner.
    pub fn query(&self, row: usize) -> f32 {
        self.queries.get(row)
    }
}

/// What rows of a tile are multiplied by, and what is added; empty where nothing is.
#[derive(Debug, Default)]
pub(super) struct Factors {
    scales: Vec<f32>,
    mins: Vec<f32>,
}

/// The loop of [`RowScales::apply`], compiled for the widest registers that may be used.
struct Apply<'a, const INTEGERS: bool> {
    products: &'a mut [u32],
    panel: &'a Panel,
    factors: &'a Factors,
}

impl<const INTEGERS: bool> WithSimd for Apply<'_, INTEGERS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let number = |bits: u32| {
            // Rounded once: a sum of whole numbers is exact up to here.
            if INTEGERS { bits as i32 as f32 } else { f32::from_bits(bits) }
        };
        let Factors { scales, mins } = self.factors;
        let rows = self.products.chunks_exact_mut(self.panel.width).zip(scales);
        if mins.is_empty() {
            for (products, factor) in rows {
                for product in products {
                    *product = (number(*product) * factor).to_bits();
                }
            }
        } else {
            for ((products, &factor), &min) in rows.zip(mins) {
                for (product, &sum) in products.iter_mut().zip(&self.panel.sums) {
                    *product = affine_similarity(number(*product), factor, sum, min).to_bits();
                }
            }
        }
    }
}
