//! Measures what was written, and its error.

use maxsim::TokenLayout;
use maxsim::format::{Element, QuantizeReport};
use rayon::prelude::*;
use serde::Serialize;

/// Rows that a thread takes at once.
const ROWS_LEN: usize = 256;

/// Sizes and errors of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Written {
    /// Tokens of all items.
    pub n_tokens: usize,
    /// Elements per token.
    pub dim: usize,
    /// Bytes of the embeddings before compression.
    pub bytes_before: u64,
    /// Bytes of codes and scales, or of codes, buckets and the codec's tables.
    pub bytes: u64,
    /// How many times smaller that is.
    pub ratio: f64,
    /// How far elements of tokens are off, on average.
    pub mean_error: f64,
    /// How far any element is off.
    pub max_error: f64,
    /// Tokens with clipped elements: their scale or minimum is the largest that f16 has.
    pub n_clipped_tokens: u64,
    /// Number of clipped elements.
    pub n_clipped: u64,
    /// How far the worst of them is off.
    pub largest_clip: f64,
    /// Other tokens that keep two bits or fewer of their largest element.
    pub n_coarse_tokens: u64,
    /// Coarse tokens that became zeros.
    pub n_zeroed_tokens: u64,
}

impl Written {
    /// Combines errors with the bytes before and after.
    pub(super) fn new(errors: Errors, dim: usize, [bytes_before, bytes]: [u64; 2]) -> Written {
        let n_elements = (errors.n_tokens * dim).max(1);
        Written {
            n_tokens: errors.n_tokens,
            dim,
            bytes_before,
            bytes,
            ratio: bytes_before as f64 / bytes.max(1) as f64,
            mean_error: errors.sum / n_elements as f64,
            max_error: errors.max,
            ..Written::default()
        }
    }

    /// With what codes lost beyond their rounding.
    pub(super) fn with_report(self, report: QuantizeReport) -> Written {
        Written {
            n_clipped_tokens: report.n_clipped_tokens,
            n_clipped: report.n_clipped,
            largest_clip: report.largest_clip,
            n_coarse_tokens: report.n_coarse_tokens,
            n_zeroed_tokens: report.n_zeroed_tokens,
            ..self
        }
    }
}

/// Marks the rows that belong to an item.
pub(super) fn used_rows(layout: &TokenLayout) -> Vec<bool> {
    let mut is_used = vec![false; layout.rows()];
    (0..layout.n_items()).for_each(|item| is_used[layout.item_rows(item)].fill(true));
    is_used
}

/// Errors of some tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors {
    n_tokens: usize,
    sum: f64,
    max: f64,
    /// Whether a row has an element that is off by more than an eighth of the row's largest.
    is_coarse: bool,
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
                let mut errors_of_row = Errors { n_tokens: 1, ..Errors::default() };
                let mut largest = 0.0f64;
                for (x, &y) in row.0.iter().map(|x| f64::from(x.to_f32())).zip(row.1) {
                    let error = (x - f64::from(y)).abs();
                    errors_of_row.sum += error;
                    errors_of_row.max = errors_of_row.max.max(error);
                    largest = largest.max(x.abs());
                }
                errors_of_row.is_coarse = errors_of_row.max > largest / 8.0;
                errors.and(errors_of_row)
            })
        };
        let is_used = is_used.par_chunks(ROWS_LEN);
        // In order, so that the sum is the same in every run.
        let parts: Vec<Errors> =
            parts.zip(is_used).map(|(part, used)| of_part(part, used)).collect();
        parts.into_iter().fold(Errors::default(), Errors::and)
    }

    /// Whether any token may have lost more than rounding takes.
    pub(super) fn is_coarse(&self) -> bool {
        self.is_coarse
    }

    pub(super) fn and(self, other: Errors) -> Errors {
        Errors {
            n_tokens: self.n_tokens + other.n_tokens,
            sum: self.sum + other.sum,
            max: self.max.max(other.max),
            is_coarse: self.is_coarse || other.is_coarse,
        }
    }
}
