//! Walks the valid document tokens in tiles.
//!
//! A tile is a list of spans: consecutive rows of one document. Spans cover valid rows only, so
//! that no other code of the engine reads masks of documents.

use std::ops::Range;

use super::scratch::grow;
use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::gemm::MIN_ROWS;
use crate::linalg::gemm::TILE_LEN;
use crate::tokens::element::ElementType;
use crate::tokens::format::widen;
use crate::tokens::format::{Format, TokenFormat};

/// Consecutive valid rows of one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Index of the document in the task.
    pub document: usize,
    /// Rows of the document matrix.
    pub rows: Range<usize>,
    /// Index of the first row's token in the document.
    pub token: usize,
    /// Whether the document's first, and its last, valid token are here.
    pub is_first: bool,
    pub is_last: bool,
}

/// Visits the valid rows of the documents in order, in tiles of at most [`TILE_LEN`] rows.
///
/// Tiles run on from one document into the next. Across a gap they do so only while they are
/// less than half full: a tile with a gap is copied, one without is read where it lies.
pub(super) fn for_each_tile(
    documents: impl Iterator<Item = Range<usize>>,
    mask: Option<&[u8]>,
    spans: &mut Vec<Span>,
    mut visit: impl FnMut(&[Span]) -> Result<()>,
) -> Result<()> {
    spans.clear();
    let mut filled = 0;
    for (document, item) in documents.enumerate() {
        let mut is_first = true;
        let mut runs = valid_runs(item.clone(), mask).peekable();
        while let Some(mut run) = runs.next() {
            while !run.is_empty() {
                let gap = spans.last().is_some_and(|span: &Span| span.rows.end != run.start);
                if filled == TILE_LEN || gap && filled >= TILE_LEN / 2 {
                    visit(spans)?;
                    spans.clear();
                    filled = 0;
                }
                let len = run.len().min(TILE_LEN - filled);
                let rows = run.start..run.start + len;
                run.start += len;
                filled += len;
                let is_last = run.is_empty() && runs.peek().is_none();
                spans.push(Span {
                    document,
                    token: rows.start - item.start,
                    rows,
                    is_first,
                    is_last,
                });
                is_first = false;
            }
        }
    }
    if spans.is_empty() { Ok(()) } else { visit(spans) }
}

/// The maximal runs of valid rows among `rows`.
fn valid_runs(rows: Range<usize>, mask: Option<&[u8]>) -> impl Iterator<Item = Range<usize>> {
    let mut next = rows.start;
    std::iter::from_fn(move || {
        let Some(mask) = mask else {
            let run = next..rows.end;
            next = rows.end;
            return (!run.is_empty()).then_some(run);
        };
        let start = next + mask[next..rows.end].iter().position(|&m| m != 0)?;
        let len = mask[start..rows.end].iter().position(|&m| m == 0);
        next = len.map_or(rows.end, |len| start + len);
        Some(start..next)
    })
}

/// Returns the rows of a tile as f32 `[n, dim]`: in place where possible, else in `buffer`.
///
/// `n` is at least [`MIN_ROWS`]: a row beyond the spans may hold anything.
pub(super) fn tile_rows<'a, F: Format>(
    spans: &[Span],
    documents: Matrix<'a, F>,
    dim: usize,
    buffer: &'a mut Vec<f32>,
) -> Result<&'a [f32]> {
    let n_rows = spans.iter().map(|span| span.rows.len()).sum::<usize>().max(MIN_ROWS);
    let (start, end) = (spans[0].rows.start, spans[spans.len() - 1].rows.end);
    let is_contiguous = spans.windows(2).all(|s| s[0].rows.end == s[1].rows.start);
    let is_f32 = F::FORMAT == TokenFormat::Element(ElementType::F32);
    if is_f32 && is_contiguous && end - start == n_rows {
        return Ok(bytemuck::cast_slice(&documents.data[start * dim..end * dim]));
    }
    grow(buffer, n_rows * dim)?;
    let mut free = &mut buffer[..n_rows * dim];
    for span in spans {
        let (values, rest) = free.split_at_mut(span.rows.len() * dim);
        free = rest;
        match documents.residuals {
            Some(residuals) => residuals.decode(span.rows.start, values),
            None => {
                for (row, values) in span.rows.clone().zip(values.chunks_exact_mut(dim)) {
                    widen::<F>(&documents.data[row * dim..][..dim], values);
                }
            }
        }
    }
    Ok(&buffer[..n_rows * dim])
}
