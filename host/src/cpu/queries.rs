//! Query tokens, packed the way the GEMM reads them fastest.

use half::{bf16, f16, slice::HalfFloatSliceExt};
use maxsim_kernels::quantize::e4m3_value;

use super::scratch::{fill, reserve};
use super::{LANES, Matrix, PANEL_LEN};
use crate::element::ElementType;
use crate::error::Result;
use crate::format::{Format, TokenFormat};

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

/// The number that each code of FP8 stands for.
const FP8_VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e4m3_value(code as u8);
        code += 1;
    }
    values
};

/// Converts elements or codes to f32, exactly.
pub(crate) fn widen<F: Format>(stored: &[F::Stored], values: &mut [f32]) {
    match F::FORMAT {
        TokenFormat::Element(ElementType::F32) => {
            values.copy_from_slice(bytemuck::cast_slice(stored));
        }
        TokenFormat::Element(ElementType::F16) => {
            bytemuck::cast_slice::<_, f16>(stored).convert_to_f32_slice(values);
        }
        // Not by `half`: its care for signalling NaNs costs a branch an element.
        TokenFormat::Element(ElementType::Bf16) => {
            for (value, x) in values.iter_mut().zip(bytemuck::cast_slice::<_, bf16>(stored)) {
                *value = f32::from_bits(u32::from(x.to_bits()) << 16);
            }
        }
        TokenFormat::Int8 => {
            for (value, &code) in values.iter_mut().zip(bytemuck::cast_slice::<_, i8>(stored)) {
                *value = code.into();
            }
        }
        TokenFormat::Int8Affine => {
            for (value, &code) in values.iter_mut().zip(bytemuck::cast_slice::<_, u8>(stored)) {
                *value = code.into();
            }
        }
        // Rows of residuals are decoded where they are read.
        TokenFormat::Residual(_) => debug_assert!(false, "residuals are no rows"),
        TokenFormat::Fp8 => {
            for (value, &code) in values.iter_mut().zip(bytemuck::cast_slice::<_, u8>(stored)) {
                *value = FP8_VALUES[usize::from(code)];
            }
        }
    }
}
