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
        rows: &mut Vec<f32>,
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
        fill(rows, dim * LANES, 0.0)?;
        for (block, tokens) in self.columns.chunks(LANES).enumerate() {
            let first = block * LANES;
            for (s, (token, row)) in tokens.iter().zip(rows.chunks_exact_mut(dim)).enumerate() {
                widen::<F>(&queries.data[token.row * dim..][..dim], row);
                if is_shifted {
                    let sum: i32 = row.iter().map(|&code| code as i32).sum();
                    self.added[first + s] = (-shift * sum) as u32;
                }
                if with_sums {
                    // In f64: of codes it is exact, of others rounded once.
                    self.sums[first + s] = row.iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
                }
            }
            let rows = &rows[..tokens.len() * dim];
            let lines = columns.chunks_exact_mut(self.width).map(|line| &mut line[first..]);
            match operand {
                Operand::F32 => set_groups::<1>(lines, rows, dim, f32::to_bits),
                Operand::Bf16 => {
                    set_groups::<2>(lines, rows, dim, |x| u32::from(bf16::from_f32(x).to_bits()))
                }
                // Whole numbers of 8 bits, which these types hold.
                Operand::Words => {
                    set_groups::<2>(lines, rows, dim, |x| u32::from(x as i16 as u16));
                }
                Operand::Bytes | Operand::SignedBytes => {
                    set_groups::<4>(lines, rows, dim, |x| u32::from(x as i8 as u8));
                }
            }
        }
        Ok(!self.columns.is_empty())
    }
}

/// Writes rows of `dim` as columns of groups of `N` elements, which lie one behind the other in a
/// line; zeros where the last group has fewer.
fn set_groups<'a, const N: usize>(
    lines: impl Iterator<Item = &'a mut [u32]>,
    rows: &[f32],
    dim: usize,
    bits: impl Fn(f32) -> u32,
) {
    let group = |elements: &[f32; N]| {
        let bits = elements.iter().map(|&x| bits(x)).enumerate();
        bits.fold(0, |group, (i, bits)| group | bits << (i * 32 / N))
    };
    for (k, line) in lines.take(dim.div_ceil(N)).enumerate() {
        for (to, row) in line.iter_mut().zip(rows.chunks_exact(dim)) {
            let rest = &row[k * N..];
            *to = match rest.first_chunk::<N>() {
                Some(elements) => group(elements),
                None => {
                    let mut last = [0.0; N];
                    last[..rest.len()].copy_from_slice(rest);
                    group(&last)
                }
            };
        }
    }
}
