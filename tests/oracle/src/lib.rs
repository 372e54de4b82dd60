//! The oracle: MaxSim as it is defined, in f64 over the stored values, and beside it the
//! same sums in plain f32 order (the *twin*), which says how much error f32 itself brings.
//!
//! Nothing here is shared with the library: segments, masks and pairs are the test's own.

pub mod gradients;

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
    /// Weight of each row of queries.
    pub weights: Option<Vec<f32>>,
    /// Factor of each row: [`norm`] where rows are normalised, the scale of codes.
    pub factors: Option<Vec<f64>>,
    /// Offset of each element of a row, added after the factor.
    pub offsets: Option<Vec<f64>>,
    /// The smallest normal number of the element type, or 0: see [`Value::magnitude`].
    pub least: f64,
}

/// A row as it is multiplied: stored values, and a factor for the similarity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// The stored values.
    pub values: &'a [f32],
    /// Factor of the elements.
    pub factor: f64,
    /// Offset of the elements, added after the factor.
    pub offset: f64,
    /// [`Matrix::least`].
    pub least: f64,
}

impl Row<'_> {
    /// Magnitude that a value counts as in a sum's.
    fn size(&self, value: f32) -> f64 {
        let size = f64::from(value).abs();
        // `max` would lose a NaN.
        if size > 0.0 && size < self.least { self.least } else { size }
    }
}

/// 1 / √max(‖x‖², 10⁻¹²).
pub fn norm(values: &[f32]) -> f64 {
    let square: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
    // `max` would lose a NaN.
    if square <= SQUARE_MIN { 1.0 / SQUARE_MIN.sqrt() } else { 1.0 / square.sqrt() }
}

/// The least squared length that rows are divided by.
pub const SQUARE_MIN: f64 = 1e-12;

impl Matrix {
    /// The matrix with its rows normalised.
    pub fn normalized(self) -> Matrix {
        let norms = self.values.chunks_exact(self.dim).map(norm).collect();
        Matrix { factors: Some(norms), ..self }
    }

    /// Row `row` of the matrix.
    pub fn row(&self, row: usize) -> Row<'_> {
        let factor = self.factors.as_ref().map_or(1.0, |factors| factors[row]);
        let offset = self.offsets.as_ref().map_or(0.0, |offsets| offsets[row]);
        let values = &self.values[row * self.dim..][..self.dim];
        Row { values, factor, offset, least: self.least }
    }

    /// Weight of row `row` of the queries.
    pub fn weight(&self, row: usize) -> f32 {
        self.weights.as_ref().map_or(1.0, |weights| weights[row])
    }

    /// Token `t` of item `i`, or `None` where it is masked.
    pub fn token(&self, i: usize, t: usize) -> Option<Row<'_>> {
        let row = self.items[i].start + t;
        let valid = self.mask.as_ref().is_none_or(|mask| mask[row] != 0);
        valid.then(|| self.row(row))
    }

    /// The valid tokens of item `i`, each with its index.
    pub fn tokens(&self, i: usize) -> impl Iterator<Item = (usize, Row<'_>)> {
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
    /// Σ |q_k d_k| behind the value, of normalised or scaled rows where they are. Subnormal numbers
    /// of two bytes count as the smallest normal one: tensor cores align products by the exponents
    /// that are stored, and cut off what lies too far below the largest.
    pub magnitude: f64,
}

/// The similarity of two rows. Queries have no offsets.
pub fn similarity(query: Row<'_>, document: Row<'_>) -> Value {
    let mut sum = Value::default();
    for (&q, &d) in query.values.iter().zip(document.values) {
        let product = f64::from(q) * f64::from(d);
        sum.exact += product;
        sum.twin += q * d;
        sum.magnitude += query.size(q) * document.size(d);
    }
    // The document's first, as engines do: an infinity or an overflow shows alike.
    sum.exact *= document.factor;
    sum.twin *= document.factor as f32;
    sum.magnitude *= document.factor;
    if document.offset != 0.0 {
        let exact: f64 = query.values.iter().map(|&q| f64::from(q)).sum();
        let twin: f32 = query.values.iter().sum();
        let magnitude: f64 = query.values.iter().map(|&q| query.size(q)).sum();
        sum.exact += exact * document.offset;
        sum.twin += twin * document.offset as f32;
        sum.magnitude += magnitude * document.offset.abs();
    }
    sum.exact *= query.factor;
    sum.twin *= query.factor as f32;
    sum.magnitude *= query.factor;
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
    /// The sum of the token scores, times their weights.
    pub score: Value,
    /// One entry per query token, masked ones included.
    pub tokens: Vec<TokenAnswer>,
}

impl Answer {
    /// Minus the sum of the distances 1 − cos, which are at least 0, each times its weight, where
    /// this is of cosines; −∞ where the document has no token.
    pub fn angular(mut self, weight: impl Fn(usize) -> f32, has_tokens: bool) -> Answer {
        // `min` would make a number of a NaN.
        let at_most_zero = |x: f64| if x > 0.0 { 0.0 } else { x };
        self.score = Value::default();
        for (s, token) in self.tokens.iter_mut().enumerate().filter(|(_, t)| t.winner.is_some()) {
            let Value { exact, twin, magnitude } = token.score;
            token.score = Value {
                exact: at_most_zero(exact - 1.0),
                twin: at_most_zero(f64::from(twin - 1.0)) as f32,
                magnitude: magnitude + 1.0,
            };
            self.score.exact += token.score.exact * f64::from(weight(s));
            self.score.twin += token.score.twin * weight(s);
            self.score.magnitude += token.score.magnitude * f64::from(weight(s).abs());
        }
        if !has_tokens {
            self.score.exact = f64::NEG_INFINITY;
        }
        self
    }
}

/// MaxSim of query `q` against document `d`.
pub fn maxsim(queries: &Matrix, q: usize, documents: &Matrix, d: usize) -> Answer {
    let mut answer = Answer::default();
    for s in 0..queries.items[q].len() {
        let token =
            queries.token(q, s).map(|row| best(row, documents.tokens(d))).unwrap_or_default();
        // A masked token's weight may be anything.
        let is_valid = queries.token(q, s).is_some();
        let weight = if is_valid { queries.weight(queries.items[q].start + s) } else { 1.0 };
        answer.score.exact += token.score.exact * f64::from(weight);
        answer.score.twin += token.score.twin * weight;
        answer.score.magnitude += token.score.magnitude * f64::from(weight.abs());
        answer.tokens.push(token);
    }
    answer
}

/// The best document token: the first of the greatest similarities, or the first NaN.
fn best<'a>(query: Row<'_>, document: impl Iterator<Item = (usize, Row<'a>)>) -> TokenAnswer {
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
