//! Walks the valid document tokens in tiles.
//!
//! A tile is a list of spans: consecutive rows of one document. Spans cover valid rows only, so
//! that no other code of the engine reads masks of documents.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::gemm::TILE_LEN;
use crate::linalg::kernels::{Kernel, Operand, dispatch};
use crate::runtime::alloc::{Line, fill_lines};
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
/// less than half full: a tile with a gap is copied, one without is read where it lies. `visit`
/// also gets the first of the rows that follow, if any do.
pub(super) fn for_each_tile(
    documents: impl Iterator<Item = Range<usize>>,
    mask: Option<&[u8]>,
    spans: &mut Vec<Span>,
    mut visit: impl FnMut(&[Span], Option<usize>) -> Result<()>,
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
                    visit(spans, Some(run.start))?;
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
    if spans.is_empty() { Ok(()) } else { visit(spans, None) }
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

/// Returns the rows of a tile as so many groups for a kernel, `[n, groups]`: in place where that is
/// possible and no slower, else in `buffer`.
pub(super) fn tile_rows<'a, F: Format>(
    (kernel, groups): (&Kernel, usize),
    arch: Arch,
    spans: &[Span],
    documents: Matrix<'a, F>,
    dim: usize,
    buffer: &'a mut Vec<Line>,
) -> Result<&'a [u32]> {
    let n_rows = spans.iter().map(|span| span.rows.len()).sum::<usize>();
    let (start, end) = (spans[0].rows.start, spans[spans.len() - 1].rows.end);
    let is_contiguous = spans.windows(2).all(|s| s[0].rows.end == s[1].rows.start);
    let operand = kernel.operand();
    let is_stored = match operand {
        Operand::F32 => F::FORMAT == TokenFormat::Element(ElementType::F32),
        Operand::Bf16 => true,
        Operand::SignedBytes => F::FORMAT == TokenFormat::Int8,
        Operand::Bytes => F::FORMAT != TokenFormat::Int8,
        Operand::Words => false,
    };
    if is_stored
        && groups * operand.group() == dim
        && is_contiguous
        // Rows of less than 32 bits an element may start between two groups of the machine's.
        && let Ok(rows) = bytemuck::try_cast_slice(&documents.data[start * dim..end * dim])
        && !kernel.wants_copy(rows, groups)
    {
        return Ok(rows);
    }
    if size_of_val(&buffer[..]) < n_rows * groups * size_of::<u32>() {
        fill_lines(buffer, n_rows * groups)?;
    }
    let copy = &mut bytemuck::cast_slice_mut(buffer)[..n_rows * groups];
    let mut free = &mut copy[..];
    for span in spans {
        let (values, rest) = free.split_at_mut(span.rows.len() * groups);
        free = rest;
        match documents.residuals {
            Some(residuals) => {
                residuals.decode(span.rows.start, bytemuck::cast_slice_mut(values));
            }
            None => {
                let data = &documents.data[span.rows.start * dim..span.rows.end * dim];
                dispatch(arch, Rows::<F> { operand, data, dim, to: values });
            }
        }
    }
    Ok(copy)
}

/// Writes rows as groups, zeros where a row does not fill its last one.
struct Rows<'a, F: Format> {
    operand: Operand,
    data: &'a [F::Stored],
    dim: usize,
    to: &'a mut [u32],
}

impl<F: Format> WithSimd for Rows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Rows { operand, data, dim, to } = self;
        let bytes: &[u8] = bytemuck::cast_slice(data);
        match (operand, F::FORMAT) {
            (Operand::F32, _) => widen::<F>(data, bytemuck::cast_slice_mut(to)),
            (Operand::Bf16, _) => {
                let elements: &[u16] = bytemuck::cast_slice(data);
                rows(elements, dim, bytemuck::cast_slice_mut(to), |x| x);
            }
            (Operand::SignedBytes, TokenFormat::Int8)
            | (Operand::Bytes, TokenFormat::Int8Affine) => {
                rows(bytes, dim, bytemuck::cast_slice_mut(to), |x| x);
            }
            // Codes of the other sign; see `Panel::pack`.
            (Operand::Bytes | Operand::SignedBytes, _) => {
                rows(bytes, dim, bytemuck::cast_slice_mut(to), |x| x ^ 0x80);
            }
            (Operand::Words, TokenFormat::Int8) => {
                rows(bytes, dim, bytemuck::cast_slice_mut(to), |x| i16::from(x as i8));
            }
            (Operand::Words, _) => rows(bytes, dim, bytemuck::cast_slice_mut(to), i16::from),
        }
    }
}

/// Writes rows of `dim` elements to as many longer ones, zeros behind each.
#[inline(always)]
fn rows<A: Copy, B: Copy + Default>(from: &[A], dim: usize, to: &mut [B], of: impl Fn(A) -> B) {
    let n = from.len() / dim;
    // All at once where rows are as long.
    let (dim, len) =
        if from.len() == to.len() { (from.len(), to.len()) } else { (dim, to.len() / n) };
    for (from, to) in from.chunks_exact(dim).zip(to.chunks_exact_mut(len)) {
        let (to, rest) = to.split_at_mut(dim);
        to.iter_mut().zip(from).for_each(|(to, &x)| *to = of(x));
        rest.fill(B::default());
    }
}
