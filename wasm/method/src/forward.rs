//! Scores, tile by tile: what a kernel has in registers after each tile of the document, and the
//! bytes that it has moved beside those of a program that stores the table.

use maxsim_oracle::{maxsim, similarity};
use serde::Serialize;

use crate::example::{DIM, ELEMENT_BYTES, document, document_len, query};
use crate::shape::Bytes;

/// All steps of a scan.
#[derive(Serialize)]
pub struct Forward {
    tile: usize,
    steps: Vec<Step>,
    score: f64,
    /// Bytes of the whole call.
    bytes: Bytes,
}

/// The state after a tile.
#[derive(Serialize)]
struct Step {
    /// The document's tokens of this tile.
    first: usize,
    end: usize,
    /// Similarities of the tile, which live in registers until the next one:
    /// `[query token][token of the tile]`.
    similarities: Vec<Vec<f64>>,
    /// The largest similarity so far of each query token, and the document token that has it.
    maxima: Vec<f64>,
    winners: Vec<Option<usize>>,
    /// Whether this tile has it.
    is_new: Vec<bool>,
    /// The fused kernel's bytes so far: the query once, and the tiles that were read.
    fused_bytes: usize,
    /// Numbers that it keeps: a tile of similarities, and a maximum of each query token.
    kept: usize,
    /// Numbers of the table that a program without fusion has stored by now.
    stored: usize,
}

/// The steps in tiles of `tile` document tokens.
pub fn steps(tile: usize) -> Forward {
    let (query, whole) = (query(), document(document_len()));
    let n_query = query.items[0].len();
    let mut steps = Vec::new();
    for first in (0..document_len()).step_by(tile) {
        let end = (first + tile).min(document_len());
        // The oracle on the part of the document that was seen.
        let seen = maxsim(&query, 0, &document(end), 0);
        let of_row = |s: usize| {
            let of = |t: usize| similarity(query.row(s), whole.row(t)).exact;
            (first..end).map(of).collect()
        };
        let winners: Vec<_> = seen.tokens.iter().map(|token| token.winner).collect();
        steps.push(Step {
            first,
            end,
            similarities: (0..n_query).map(of_row).collect(),
            maxima: seen.tokens.iter().map(|token| token.score.exact).collect(),
            is_new: winners.iter().map(|t| t.is_some_and(|t| t >= first)).collect(),
            winners,
            fused_bytes: (n_query + end) * DIM * ELEMENT_BYTES,
            kept: n_query * (end - first) + n_query,
            stored: n_query * end,
        });
    }
    let score = maxsim(&query, 0, &whole, 0).score.exact;
    let bytes = Bytes::of([1, n_query, 1, document_len()].map(|n| n as f64), DIM, ELEMENT_BYTES);
    Forward { tile, steps, score, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_width_ends_with_the_score() {
        for tile in 1..12 {
            let forward = steps(tile);
            let last = forward.steps.last().unwrap();
            assert_eq!(last.maxima, [0.96875, 0.84375, 1.0, 1.0], "tiles of {tile}");
            assert_eq!(last.winners, [6, 6, 1, 2].map(Some), "tiles of {tile}");
            assert_eq!(forward.score, 3.8125);
            assert_eq!(last.fused_bytes + 4, forward.bytes.fused as usize);
            assert_eq!(forward.steps.len(), 10usize.div_ceil(tile));
        }
    }

    #[test]
    fn maxima_grow_where_a_tile_has_a_better_token() {
        let forward = steps(4);
        let [first, second, third] = &forward.steps[..] else { panic!("three tiles") };
        assert_eq!(first.winners, [3, 2, 1, 2].map(Some));
        assert_eq!(second.is_new, [true, true, false, false]);
        assert_eq!(third.is_new, [false; 4]);
        assert_eq!(second.similarities[0], [0.0, 0.8125, 0.96875, 0.03125]);
    }
}
