//! The oracle: MaxSim as it is defined, in f64 over the stored values, and beside it the
//! same sums in plain f32 order (the *twin*), which says how much error f32 itself brings.
//!
//! Nothing here is shared with the library: segments, masks and pairs are the test's own.

use std::ops::Range;

/// The stored values of one side, widened to `f32` (exact for every element type).
#[derive(Clone, Debug)]
pub struct Matrix {
    /// `[rows, dim]`, row-major.
    pub values: Vec<f32>,
    /// Elements per row.
    pub dim: usize,
    /// The rows of each item.
    pub items: Vec<Range<usize>>,
    /// Non-zero = the row is valid.
    pub mask: Option<Vec<u8>>,
}

impl Matrix {
    /// Token `t` of item `i`, or `None` where it is masked.
    pub fn token(&self, i: usize, t: usize) -> Option<&[f32]> {
        let row = self.items[i].start + t;
        let valid = self.mask.as_ref().is_none_or(|mask| mask[row] != 0);
        valid.then(|| &self.values[row * self.dim..][..self.dim])
    }

    /// The valid tokens of item `i`, each with its index.
    pub fn tokens(&self, i: usize) -> impl Iterator<Item = (usize, &[f32])> {
        (0..self.items[i].len()).filter_map(move |t| Some((t, self.token(i, t)?)))
    }
}

/// One number of the answer: exact, as f32 gives it, and the scale of its rounding errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Value {
    /// The value in f64.
    pub exact: f64,
    /// The value in f32, added in index order.
    pub twin: f32,
    /// Σ |q_k d_k| behind the value.
    pub magnitude: f64,
}

/// The similarity of two rows.
pub fn similarity(query: &[f32], document: &[f32]) -> Value {
    let mut sum = Value::default();
    for (&q, &d) in query.iter().zip(document) {
        let product = f64::from(q) * f64::from(d);
        sum.exact += product;
        sum.twin += q * d;
        sum.magnitude += product.abs();
    }
    sum
}

/// The answer for one query token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenAnswer {
    /// Index of the winning document token; `None` for a masked query token or an empty document.
    pub winner: Option<usize>,
    /// The maximum; its magnitude is the largest of any finite similarity.
    pub score: Value,
}

/// The answer for one (query, document) pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The sum of the token scores.
    pub score: Value,
    /// One entry per query token, masked ones included.
    pub tokens: Vec<TokenAnswer>,
}

/// MaxSim of query `q` against document `d`.
pub fn maxsim(queries: &Matrix, q: usize, documents: &Matrix, d: usize) -> Answer {
    let mut answer = Answer::default();
    for s in 0..queries.items[q].len() {
        let token =
            queries.token(q, s).map(|row| best(row, documents.tokens(d))).unwrap_or_default();
        answer.score.exact += token.score.exact;
        answer.score.twin += token.score.twin;
        answer.score.magnitude += token.score.magnitude;
        answer.tokens.push(token);
    }
    answer
}

/// The best document token: the first of the greatest similarities, or the first NaN.
fn best<'a>(query: &[f32], document: impl Iterator<Item = (usize, &'a [f32])>) -> TokenAnswer {
    let mut best = TokenAnswer::default();
    for (t, row) in document {
        let new = similarity(query, row);
        let first = best.winner.is_none();
        let score = &mut best.score;
        if first || new.exact > score.exact || (new.exact.is_nan() && !score.exact.is_nan()) {
            (score.exact, best.winner) = (new.exact, Some(t));
        }
        if first || new.twin > score.twin || new.twin.is_nan() {
            score.twin = new.twin;
        }
        if new.exact.is_finite() {
            score.magnitude = score.magnitude.max(new.magnitude);
        }
    }
    best
}
