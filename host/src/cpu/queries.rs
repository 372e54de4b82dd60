//! Query tokens, packed the way the GEMM reads them fastest.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use super::scratch::{fill, reserve};
use super::{LANES, Matrix, PANEL_LEN};
use crate::element::{Element, ElementType};
use crate::error::Result;

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
    /// What each column is; columns from here to `width` are zeros.
    pub columns: Vec<QueryToken>,
    pub width: usize,
    pub values: Vec<f32>,
}

impl Panel {
    /// Packs the next tokens; false when there was none.
    pub fn pack<T: Element>(
        &mut self,
        tokens: &mut impl Iterator<Item = QueryToken>,
        queries: Matrix<'_, T>,
        dim: usize,
        row: &mut Vec<f32>,
    ) -> Result<bool> {
        self.columns.clear();
        reserve(&mut self.columns, PANEL_LEN)?;
        self.columns.extend(tokens.take(PANEL_LEN));
        self.width = self.columns.len().next_multiple_of(LANES);
        fill(&mut self.values, dim * self.width, 0.0)?;
        fill(row, dim, 0.0)?;
        for (s, column) in self.columns.iter().enumerate() {
            widen(&queries.data[column.row * dim..][..dim], row);
            for (values, &x) in self.values.chunks_exact_mut(self.width).zip(&*row) {
                values[s] = x;
            }
        }
        Ok(!self.columns.is_empty())
    }
}

/// Converts elements to f32, exactly.
pub(super) fn widen<T: Element>(elements: &[T], values: &mut [f32]) {
    match T::TYPE {
        ElementType::F32 => values.copy_from_slice(bytemuck::cast_slice(elements)),
        ElementType::F16 => {
            bytemuck::cast_slice::<T, f16>(elements).convert_to_f32_slice(values);
        }
        // Not by `half`: its care for signalling NaNs costs a branch an element.
        ElementType::Bf16 => {
            for (value, x) in values.iter_mut().zip(bytemuck::cast_slice::<T, bf16>(elements)) {
                *value = f32::from_bits(u32::from(x.to_bits()) << 16);
            }
        }
    }
}
