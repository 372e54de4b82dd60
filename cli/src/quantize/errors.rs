//! What was written, and how far it is off.

use maxsim::{Element, TokenLayout};
use rayon::prelude::*;
use serde::Serialize;

/// Rows that a thread takes at once.
const ROWS_LEN: usize = 256;

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Written {
    /// Tokens of all items.
    pub n_tokens: usize,
    /// Elements per token.
    pub dim: usize,
    /// Bytes of the embeddings as they were.
    pub bytes_before: u64,
    /// Bytes of codes and scales, or of codes, buckets and the codec's tables.
    pub bytes: u64,
    /// How many times smaller that is.
    pub ratio: f64,
    /// How far elements of tokens are off, on average. Those of tokens that are not finite do not
    /// count.
    pub mean_error: f64,
    /// How far any element is off.
    pub max_error: f64,
    /// Tokens with a NaN or an infinity.
    pub n_not_finite: usize,
}

impl Written {
    /// Of bytes before and after.
    pub(super) fn new(errors: Errors, dim: usize, [bytes_before, bytes]: [u64; 2]) -> Written {
        let n_elements = ((errors.n_tokens - errors.n_not_finite) * dim).max(1);
        Written {
            n_tokens: errors.n_tokens,
            dim,
            bytes_before,
            bytes,
            ratio: bytes_before as f64 / bytes.max(1) as f64,
            mean_error: errors.sum / n_elements as f64,
            max_error: errors.max,
            n_not_finite: errors.n_not_finite,
        }
    }
}

/// Which rows belong to an item.
pub(super) fn used_rows(layout: &TokenLayout) -> Vec<bool> {
    let mut is_used = vec![false; layout.rows()];
    (0..layout.n_items()).for_each(|item| is_used[layout.item_rows(item)].fill(true));
    is_used
}

/// Errors of some tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    n_tokens: usize,
    n_not_finite: usize,
    sum: f64,
    max: f64,
}

impl Errors {
    /// How far the elements of the rows that belong to items are off.
    pub(super) fn of<T: Element>(
        elements: &[T],
        values: &[f32],
        dim: usize,
        is_used: &[bool],
    ) -> Errors {
        let elements = elements.par_chunks(ROWS_LEN * dim);
        let parts = elements.zip(values.par_chunks(ROWS_LEN * dim));
        let of_part = |(elements, values): (&[T], &[f32]), is_used: &[bool]| {
            let rows = elements.chunks_exact(dim).zip(values.chunks_exact(dim)).zip(is_used);
            rows.filter(|(_, is_used)| **is_used).fold(Errors::default(), |errors, (row, _)| {
                let pairs = row.0.iter().map(|x| x.to_f32()).zip(row.1);
                if !row.0.iter().all(|x| x.to_f32().is_finite()) {
                    return errors.and(Errors {
                        n_tokens: 1,
                        n_not_finite: 1,
                        ..Errors::default()
                    });
                }
                let errors_of = pairs.map(|(x, &y)| (f64::from(x) - f64::from(y)).abs());
                let (sum, max) =
                    errors_of.fold((0.0, 0.0), |(s, m): (f64, f64), e| (s + e, m.max(e)));
                errors.and(Errors { n_tokens: 1, sum, max, ..Errors::default() })
            })
        };
        let is_used = is_used.par_chunks(ROWS_LEN);
        // In order, so that the sum is the same in every run.
        let parts: Vec<Errors> =
            parts.zip(is_used).map(|(part, used)| of_part(part, used)).collect();
        parts.into_iter().fold(Errors::default(), Errors::and)
    }

    pub(super) fn and(self, other: Errors) -> Errors {
        Errors {
            n_tokens: self.n_tokens + other.n_tokens,
            n_not_finite: self.n_not_finite + other.n_not_finite,
            sum: self.sum + other.sum,
            max: self.max.max(other.max),
        }
    }
}
