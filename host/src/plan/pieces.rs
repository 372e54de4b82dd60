//! Pieces of residual-compressed documents that are decoded at once, before they are scored: a pure
//! function of shapes.

use std::ops::Range;

use maxsim_kernels::table::forward::Variant;

use super::limits::Access;
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;

/// Most bytes of decoded rows: few enough beside what a search keeps on a device, and enough for
/// launches of some hundred microseconds.
const BYTES_MAX: u64 = 128 << 20;

/// Consecutive documents, and the rows that they lie in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub documents: Range<u32>,
    pub rows: Range<u32>,
}

/// Access to decoded rows of `dim` elements, as many as a kernel reads at once.
pub(crate) fn decoded_access(row: &Variant, dim: usize) -> Access {
    match row.operand {
        super::Operand::Residual(element) => Access::uploaded(dim, TokenFormat::from(element)),
        _ => Access { base: 0, pitch_bytes: 0, n_centroids: 0 },
    }
}

/// Most rows of a piece.
pub(crate) fn rows_max(row: &Variant, dim: usize) -> u32 {
    (BYTES_MAX / decoded_access(row, dim).pitch_bytes.max(1)).min(1 << 30) as u32
}

/// Divides documents, none of them of more than `rows_max` rows, into as few pieces as may be, of
/// about as many rows each.
pub(crate) fn pieces(documents: &TokenLayout, rows_max: u32) -> Vec<Piece> {
    let pieces = cut(documents, rows_max);
    let rows: u64 = pieces.iter().map(|piece| piece.rows.len() as u64).sum();
    let share = rows / pieces.len() as u64 + documents.max_len() as u64;
    let alike = cut(documents, share.min(u64::from(rows_max)) as u32);
    if alike.len() == pieces.len() { alike } else { pieces }
}

/// Ends a piece where the next document would make it longer than `most` rows.
fn cut(documents: &TokenLayout, most: u32) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut first, mut rows) = (0, 0..0);
    for (document, &[start, len]) in (0u32..).zip(documents.segments()) {
        let own = start..start + len;
        let both = match (rows.is_empty(), own.is_empty()) {
            (true, _) => own.clone(),
            (false, true) => rows.clone(),
            (false, false) => rows.start.min(own.start)..rows.end.max(own.end),
        };
        if both.len() > most as usize && !rows.is_empty() {
            pieces.push(Piece { documents: first..document, rows });
            (first, rows) = (document, own);
        } else {
            rows = both;
        }
    }
    pieces.push(Piece { documents: first..documents.n_items() as u32, rows });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_all_documents_in_order_and_their_rows() {
        let lens: Vec<i64> = (0..500).map(|i| i * 37 % 90).collect();
        let starts: Vec<i64> = (0..500).map(|i| i * 131 % 7000).collect();
        let empty = TokenLayout::scattered(9, 8, &[0i64; 4], &[0i64; 4]).unwrap();
        let layouts = [
            TokenLayout::padded(1000, 64, 8).unwrap(),
            TokenLayout::padded(500, 90, 8).unwrap().with_lengths(&lens).unwrap(),
            TokenLayout::scattered(7090, 8, &starts, &lens).unwrap(),
            TokenLayout::padded(0, 64, 8).unwrap(),
            empty,
        ];
        for documents in layouts {
            for most in [90, 91, 1000, 1 << 30] {
                let pieces = pieces(&documents, most);
                let mut next = 0;
                for piece in &pieces {
                    assert_eq!(piece.documents.start, next);
                    next = piece.documents.end;
                    assert!(piece.rows.len() <= most as usize, "{piece:?}");
                    for document in piece.documents.clone() {
                        let rows = documents.item_rows(document as usize);
                        let inside = piece.rows.start as usize..piece.rows.end as usize;
                        let is_inside = inside.start <= rows.start && rows.end <= inside.end;
                        assert!(rows.is_empty() || is_inside, "{piece:?} {rows:?}");
                    }
                }
                assert_eq!(next as usize, documents.n_items());
            }
        }
        // Four of 250 instead of three of 312 and one of 64.
        let pieces = pieces(&TokenLayout::padded(1000, 64, 8).unwrap(), 20_000);
        let lens: Vec<usize> = pieces.iter().map(|piece| piece.documents.len()).collect();
        assert_eq!(lens, [251, 251, 251, 247]);
    }
}
