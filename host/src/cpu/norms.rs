//! What rows are multiplied by where they are normalised: r = 1 / √max(‖x‖², 10⁻¹²).

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::Matrix;
use super::queries::widen;
use super::scratch::fill;
use crate::element::Element;
use crate::error::Result;
use crate::format::Format;
use crate::parallel::Parallel;

/// Squared lengths below this count as this, so that r is never more than 10⁶.
const SQUARE_MIN: f32 = 1e-12;

/// Rows that a thread takes at once.
const CHUNK_LEN: usize = 256;

/// r of every row of both sides.
#[derive(Debug)]
pub(super) struct Norms {
    pub queries: Vec<f32>,
    pub documents: Vec<f32>,
}

impl Norms {
    pub fn new<Q: Format, D: Format>(
        queries: Matrix<'_, Q>,
        documents: Matrix<'_, D>,
        dim: usize,
        parallel: Parallel,
    ) -> Result<Norms> {
        let queries = of_rows::<Q>(queries.data, dim, parallel)?;
        Ok(Norms { queries, documents: of_rows::<D>(documents.data, dim, parallel)? })
    }

    /// Those of the queries (0) or of the documents (1).
    pub fn of(&self, side: usize) -> &[f32] {
        [&self.queries, &self.documents][side]
    }
}

/// r of every row of a matrix `[rows, dim]`.
fn of_rows<F: Format>(matrix: &[F::Stored], dim: usize, parallel: Parallel) -> Result<Vec<f32>> {
    let mut norms = Vec::new();
    fill(&mut norms, matrix.len() / dim, 0.0)?;
    let chunks = matrix.par_chunks(CHUNK_LEN * dim).zip(norms.par_chunks_mut(CHUNK_LEN));
    let of_chunk = |row: &mut Vec<f32>, (rows, norms): (&[F::Stored], &mut [f32])| {
        for (stored, norm) in rows.chunks_exact(dim).zip(norms) {
            widen::<F>(stored, row);
            *norm = norm_of(square(row));
        }
    };
    parallel
        .share(|min_len| chunks.with_min_len(min_len).for_each_init(|| vec![0.0; dim], of_chunk));
    Ok(norms)
}

/// ‖x‖².
fn square(row: &[f32]) -> f32 {
    row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() as f32
}

/// r of a squared length; NaN of NaN.
fn norm_of(square: f32) -> f32 {
    let square = if square <= SQUARE_MIN { SQUARE_MIN } else { square };
    1.0 / square.sqrt()
}

/// Adds to `gradient` what a row's is, from the gradient `sum` with respect to the row normalised:
/// r · (sum - x̂ · ⟨x̂, sum⟩) with x̂ = r · x, or r · sum where r is constant. Nothing is added where
/// the sum is 0 throughout, whatever the row holds.
pub(crate) fn add_projected<T: Element>(row: &[T], norm: f32, sum: &[f32], gradient: &mut [f32]) {
    if sum.iter().all(|&s| s == 0.0) {
        return;
    }
    if norm == norm_of(0.0) {
        gradient.iter_mut().zip(sum).for_each(|(gradient, &s)| *gradient += norm * s);
        return;
    }
    let unit = |x: &T| norm * x.to_f32();
    let terms = row.iter().zip(sum).map(|(x, &s)| f64::from(unit(x)) * f64::from(s));
    let product = terms.sum::<f64>() as f32;
    for ((gradient, &s), x) in gradient.iter_mut().zip(sum).zip(row) {
        *gradient += norm * (s - unit(x) * product);
    }
}
