//! Query tokens, packed the way kernels read them.

use half::bf16;

use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::gemm::{LANES, PANEL_LEN};
use crate::linalg::kernels::Operand;
use crate::runtime::alloc::{Line, fill, fill_lines, reserve};
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

/// How query tokens are packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    pub operand: Operand,
    /// Groups of a row.
    pub groups: usize,
    /// Whether codes of documents have a sign, which kernels of bytes may take otherwise.
    pub is_signed: bool,
    /// Whether documents need Σ of each token.
    pub with_sums: bool,
}

/// Up to [`PANEL_LEN`] query tokens as columns.
#[derive(Debug, Default)]
pub(super) struct Panel {
    /// Query token of each column; columns from here to `width` are zeros.
    pub columns: Vec<QueryToken>,
    pub width: usize,
    /// `[groups of a row, width]`.
    groups: Vec<Line>,
    /// What is added to each column's products of whole numbers, where anything is.
    pub added: Vec<u32>,
    /// Σ of each column, where documents need it.
    pub sums: Vec<f32>,
}

impl Panel {
    /// The columns, `[groups of a row, width]`.
    pub fn groups(&self) -> &[u32] {
        // Widths are multiples of a line's numbers.
        bytemuck::cast_slice(&self.groups)
    }

    /// Packs the next tokens; false when there was none.
    pub fn pack<F: Format>(
        &mut self,
        tokens: &mut impl Iterator<Item = QueryToken>,
        queries: Matrix<'_, F>,
        dim: usize,
        packing: Packing,
        row: &mut Vec<f32>,
    ) -> Result<bool> {
        let Packing { operand, groups, is_signed, with_sums } = packing;
        // What is added to codes of documents for the operand's sign: Σ (d + a) · q is more than
        // Σ d · q by a · Σ q.
        let shift = match operand {
            Operand::Bytes if is_signed => 128,
            Operand::SignedBytes if !is_signed => -128,
            _ => 0,
        };
        let is_shifted = shift != 0;
        self.columns.clear();
        reserve(&mut self.columns, PANEL_LEN)?;
        self.columns.extend(tokens.take(PANEL_LEN));
        self.width = self.columns.len().next_multiple_of(LANES);
        let columns = fill_lines(&mut self.groups, groups * self.width)?;
        fill(&mut self.added, if is_shifted { self.width } else { 0 }, 0)?;
        fill(&mut self.sums, if with_sums { self.width } else { 0 }, 0.0)?;
        fill(row, dim, 0.0)?;
        for (s, column) in self.columns.iter().enumerate() {
            widen::<F>(&queries.data[column.row * dim..][..dim], row);
            if is_shifted {
                let sum: i32 = row.iter().map(|&code| code as i32).sum();
                self.added[s] = (-shift * sum) as u32;
            }
            if with_sums {
                // In f64: of codes it is exact, of others rounded once.
                self.sums[s] = row.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
            }
            let column = &mut columns[s..];
            match operand {
                Operand::F32 => set_groups::<1>(column, self.width, row, f32::to_bits),
                Operand::Bf16 => set_groups::<2>(column, self.width, row, |x| {
                    u32::from(bf16::from_f32(x).to_bits())
                }),
                // Whole numbers of 8 bits, which these types hold.
                Operand::Words => {
                    set_groups::<2>(column, self.width, row, |x| u32::from(x as i16 as u16));
                }
                Operand::Bytes | Operand::SignedBytes => {
                    set_groups::<4>(column, self.width, row, |x| u32::from(x as i8 as u8));
                }
            }
        }
        Ok(!self.columns.is_empty())
    }
}

/// Writes a row as groups of `N` elements, each `width` behind the other; zeros where the last one
/// has fewer.
fn set_groups<const N: usize>(
    groups: &mut [u32],
    width: usize,
    row: &[f32],
    bits: impl Fn(f32) -> u32,
) {
    let group = |elements: &[f32; N]| {
        let bits = elements.iter().map(|&x| bits(x)).enumerate();
        bits.fold(0, |group, (i, bits)| group | bits << (i * 32 / N))
    };
    let (whole, rest) = row.as_chunks::<N>();
    let mut last = [0.0; N];
    last[..rest.len()].copy_from_slice(rest);
    let all = whole.iter().chain((!rest.is_empty()).then_some(&last));
    for (to, elements) in groups.iter_mut().step_by(width).zip(all) {
        *to = group(elements);
    }
}
