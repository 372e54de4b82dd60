//! Query tokens, packed the way the GEMM reads them fastest.

use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::gemm::{LANES, PANEL_LEN};
use crate::runtime::alloc::{fill, reserve};
use crate::tokens::format::Format;
use crate::tokens::format::widen;

/// A query token of a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryToken {
    /// Index of the query in the task.
    pub query: usize,
    /// Index of the token in the query.
    pub token: usize,
    /// Row of the query matrix.
    pub row: usize,
}

/// Up to [`PANEL_LEN`] query tokens as columns: `values` is `[dim, width]`.
#[derive(Debug, Default)]
pub(super) struct Panel {
    /// Query token of each column; columns from here to `width` are zeros.
    pub columns: Vec<QueryToken>,
    pub width: usize,
    pub values: Vec<f32>,
    /// Σ of each column, where documents need it.
    pub sums: Vec<f32>,
}

impl Panel {
    /// Packs the next tokens; false when there was none.
    pub fn pack<F: Format>(
        &mut self,
        tokens: &mut impl Iterator<Item = QueryToken>,
        queries: Matrix<'_, F>,
        dim: usize,
        with_sums: bool,
        row: &mut Vec<f32>,
    ) -> Result<bool> {
        self.columns.clear();
        reserve(&mut self.columns, PANEL_LEN)?;
        self.columns.extend(tokens.take(PANEL_LEN));
        self.width = self.columns.len().next_multiple_of(LANES);
        fill(&mut self.values, dim * self.width, 0.0)?;
        fill(&mut self.sums, if with_sums { self.width } else { 0 }, 0.0)?;
        fill(row, dim, 0.0)?;
        for (s, column) in self.columns.iter().enumerate() {
            widen::<F>(&queries.data[column.row * dim..][..dim], row);
            if with_sums {
                // In f64: of codes it is exact, of others rounded once.
                self.sums[s] = row.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
            }
            for (values, &x) in self.values.chunks_exact_mut(self.width).zip(&*row) {
                values[s] = x;
            }
        }
        Ok(!self.columns.is_empty())
    }
}
