//! Gradients: a gather for the query's tokens, and for the document's an inverted scatter. Winners
//! are sorted by the document token that they name, and each row adds its own sources, in order.

use maxsim_oracle::gradients::{Sum, gradients};
use maxsim_oracle::maxsim;
use serde::Serialize;

use crate::example::{DIM, document, document_len, query};

/// What the gradients are made of, of a score whose own gradient is 1.
#[derive(Serialize)]
pub struct Backward {
    /// The winner of each query token, from the forward pass.
    winners: Vec<usize>,
    /// The gradient of each query token: the row that it chose.
    queries: Vec<[f64; DIM]>,
    /// Pairs of a document token and a query token that chose it, sorted.
    sorted: Vec<[usize; 2]>,
    /// The document's tokens that were chosen.
    rows: Vec<Row>,
    /// Document tokens whose gradient is 0, since no query token chose them.
    untouched: usize,
}

/// A row of the document's gradient.
#[derive(Serialize)]
struct Row {
    token: usize,
    /// The query tokens that chose it, in order: one owner adds them, whatever the hardware does
    /// first, so that the bits are the same every time.
    sources: Vec<usize>,
    gradient: [f64; DIM],
}

/// The gradients of the example.
pub fn steps() -> Backward {
    let (query, document) = (query(), document(document_len()));
    let answer = maxsim(&query, 0, &document, 0);
    let winners: Vec<usize> = answer.tokens.iter().filter_map(|token| token.winner).collect();
    let named: Vec<i32> = winners.iter().map(|&t| t as i32).collect();
    let expected = gradients([&query, &document], &[(0, 0)], &named, &[1.0]);
    let row =
        |sums: &[Sum], i: usize| std::array::from_fn::<f64, DIM, _>(|k| sums[i * DIM + k].exact);
    let mut sorted: Vec<[usize; 2]> = winners.iter().enumerate().map(|(s, &t)| [t, s]).collect();
    sorted.sort_unstable();
    let rows: Vec<Row> = sorted
        .chunk_by(|a, b| a[0] == b[0])
        .map(|of_token| Row {
            token: of_token[0][0],
            sources: of_token.iter().map(|&[_, s]| s).collect(),
            gradient: row(&expected.documents, of_token[0][0]),
        })
        .collect();
    Backward {
        queries: (0..winners.len()).map(|s| row(&expected.queries, s)).collect(),
        untouched: document_len() - rows.len(),
        winners,
        sorted,
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_add_the_tokens_that_chose_them() {
        let backward = steps();
        assert_eq!(backward.sorted, [[1, 2], [2, 3], [6, 0], [6, 1]]);
        let last = backward.rows.last().unwrap();
        assert_eq!((last.token, &last.sources[..]), (6, &[0, 1][..]));
        assert_eq!(last.gradient, [1.75, 0.0, 0.75, 0.0]);
        assert_eq!(backward.queries[2], [0.0, 1.0, 0.125, 0.0]);
        assert_eq!(backward.untouched, 7);
    }
}
