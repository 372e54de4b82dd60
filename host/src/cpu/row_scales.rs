//! Row scales: what similarities are multiplied by, r of normalised rows or the scales of codes.

use maxsim_kernels::abi::quantize::affine_similarity;

use super::norms::Norms;
use super::panels::Panel;
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

    /// Turns dot products `[n_rows, width]` of document rows with a panel's columns into
    /// similarities.
    pub fn apply(&self, products: &mut [f32], panel: &Panel, rows: impl Iterator<Item = usize>) {
        if let Of::None = self.documents {
            return;
        }
        for (products, row) in products.chunks_exact_mut(panel.width).zip(rows) {
            let factor = self.documents.get(row);
            if let Of::Scales(scales @ Scales::Affine { .. }) = self.documents {
                let min = scales.min(row);
                for (product, &sum) in products.iter_mut().zip(&panel.sums) {
                    *product = affine_similarity(*product, factor, sum, min);
                }
            } else {
                products.iter_mut().for_each(|product| *product *= factor);
            }
        }
    }

    /// Factor of a query row's maxima. It is never negative, so that the winner stays the winner.
    pub fn query(&self, row: usize) -> f32 {
        self.queries.get(row)
    }
}
