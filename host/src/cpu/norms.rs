//! Row scales of normalised rows, r = 1 / √max(‖x‖², 10⁻¹²), of whole matrices.

use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::normalize::norm_of;
use crate::linalg::normalize::square;
use crate::runtime::alloc::zeroed;
use crate::runtime::pool::Parallel;
use crate::tokens::format::Format;
use crate::tokens::format::widen;

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

    /// r of the queries' rows (0) or of the documents' (1).
    pub fn of(&self, side: usize) -> &[f32] {
        [&self.queries, &self.documents][side]
    }
}

/// r of every row of a matrix `[rows, dim]`.
fn of_rows<F: Format>(matrix: &[F::Stored], dim: usize, parallel: Parallel) -> Result<Vec<f32>> {
    let mut norms = zeroed((matrix.len() / dim) as u64)?;
    let chunks = matrix.par_chunks(CHUNK_LEN * dim).zip(norms.par_chunks_mut(CHUNK_LEN));
    let of_chunk = |row: &mut Vec<f32>, (rows, norms): (&[F::Stored], &mut [f32])| {
        for (stored, norm) in rows.chunks_exact(dim).zip(norms) {
            widen::<F>(stored, row);
            *norm = norm_of(square(row));
        }
    };
    parallel.over(matrix.len()).for_each_with(chunks, || vec![0.0; dim], of_chunk);
    Ok(norms)
}
