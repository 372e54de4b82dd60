//! The closed form of the gradients in f64, over given winners, and how far f32 sums may be from
//! it.
//!
//! Winners are given because engines may differ in them where similarities nearly tie; that they
//! are right is for scores' comparison to say.

use crate::{Matrix, SQUARE_MIN};

/// One element of a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Σ g · x in f64.
    pub exact: f64,
    /// Σ |g · x|.
    pub magnitude: f64,
    /// Terms of the sum.
    pub n_terms: usize,
    /// Whether f32 sums of a normalised row's gradient may be 0 throughout.
    pub may_be_none: bool,
}

impl Sum {
    fn add(&mut self, g: f64, x: f32) {
        let term = g * f64::from(x);
        self.exact += term;
        self.magnitude += term.abs();
        self.n_terms += 1;
    }

    /// Whether an f32 sum of these terms may be `found`.
    ///
    /// With u = 2⁻²⁴: a product is rounded once, by at most u of itself, or by 2⁻¹⁵⁰ where it is
    /// subnormal. It then takes part in at most n - 1 additions, since the first only adds it to
    /// 0, and each rounds what it gives by at most u of itself, which is at most u · Σ |g · x|
    /// when counted term by term. Each term is so rounded at most n times, and
    ///
    /// ```text
    /// |found − exact| ≤ ((1 + u)ⁿ − 1) · Σ |g · x| + n · 2⁻¹⁵⁰ · (1 + u)ⁿ
    /// ```
    ///
    /// As long as n · u ≤ 1, (1 + u)ⁿ − 1 ≤ n · u · (1 + n · u), which is what is used here; the
    /// f64 sum's own error, n · 2⁻⁵³ of the magnitude, is far less than one part of it.
    pub fn agrees(&self, exact_sums: bool, found: f32) -> bool {
        let got = f64::from(found);
        if self.n_terms == 0 {
            // Not even -0: nothing was added.
            return found.to_bits() == 0;
        }
        if !self.exact.is_finite() {
            let is_same = got == self.exact || got.is_nan() && self.exact.is_nan();
            return is_same || self.may_be_none && got == 0.0;
        }
        (got - self.exact).abs() <= self.limit(exact_sums)
    }

    /// How far an f32 sum may be from the exact one.
    pub fn limit(&self, exact_sums: bool) -> f64 {
        if exact_sums {
            return 0.0;
        }
        let nu = self.n_terms as f64 * 2f64.powi(-24);
        nu * (1.0 + nu) * self.magnitude + 2.0 * self.n_terms as f64 * 2f64.powi(-150)
    }
}

/// The gradients of both sides, `[rows, dim]` of each matrix, and of the queries' weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Sums of the queries.
    pub queries: Vec<Sum>,
    /// Sums of the documents.
    pub documents: Vec<Sum>,
    /// One per row of the queries; none where they have no weights.
    pub weights: Vec<Sum>,
}

/// The closed form: `winners` pair-major, -1 = none; one number of `grad_scores` per pair of a
/// query and a document.
pub fn gradients(
    [queries, documents]: [&Matrix; 2],
    pairs: &[(usize, usize)],
    winners: &[i32],
    grad_scores: &[f32],
) -> Expected {
    let dim = documents.dim;
    let zeros = |matrix: &Matrix| vec![Sum::default(); matrix.values.len()];
    let mut expected =
        Expected { queries: zeros(queries), documents: zeros(documents), weights: Vec::new() };
    let mut winners = winners.iter();
    for (&(q, d), &g) in pairs.iter().zip(grad_scores) {
        for query_row in queries.items[q].clone() {
            let winner = *winners.next().expect("a winner per query token of each pair");
            let Ok(t) = usize::try_from(winner) else { continue };
            let document_row = documents.items[d].start + t;
            let of_query = f64::from(g) * documents.row(document_row).factor;
            let weight = f64::from(queries.weight(query_row));
            let of_document = f64::from(g) * queries.row(query_row).factor * weight;
            for k in 0..dim {
                let (query, document) = (query_row * dim + k, document_row * dim + k);
                expected.queries[query].add(of_query, documents.values[document]);
                expected.documents[document].add(of_document, queries.values[query]);
            }
        }
    }
    assert!(winners.next().is_none(), "more winners than query tokens");
    expected.weights = of_weights(&expected.queries, queries);
    project(&mut expected.queries, queries);
    project(&mut expected.documents, documents);
    if queries.weights.is_some() {
        for (row, sums) in expected.queries.chunks_exact_mut(dim).enumerate() {
            sums.iter_mut().filter(|sum| sum.n_terms > 0).for_each(|sum| {
                sum.exact *= f64::from(queries.weight(row));
                sum.magnitude *= f64::from(queries.weight(row).abs());
                sum.n_terms += 1;
            });
        }
        // g times the weight is rounded.
        let sums = expected.documents.iter_mut().filter(|sum| sum.n_terms > 0);
        sums.for_each(|sum| sum.n_terms += 1);
    }
    expected
}

/// ∂w = ⟨x̂, ∂x̂⟩ of each row of the queries, from the gradients ∂x̂ of rows whose weight is 1: a
/// sum of dim products of sums.
fn of_weights(sums: &[Sum], queries: &Matrix) -> Vec<Sum> {
    if queries.weights.is_none() {
        return Vec::new();
    }
    let of_row = |(row, sums): (usize, &[Sum])| {
        let mut sum = Sum::default();
        if sums.iter().all(|sum| sum.magnitude == 0.0) {
            return sum;
        }
        let row = queries.row(row);
        for (from, &x) in sums.iter().zip(row.values) {
            let x = f64::from(x) * row.factor;
            sum.exact += x * from.exact;
            sum.magnitude += x.abs() * from.magnitude;
            sum.n_terms = sum.n_terms.max(from.n_terms);
        }
        // Products, their sum, and r of a normalised row as for `project`.
        sum.n_terms += 2 * sums.len() + 8;
        sum
    };
    sums.chunks_exact(queries.dim).enumerate().map(of_row).collect()
}

/// Makes gradients with respect to normalised rows those with respect to the rows, where rows are
/// normalised: ∂x = r · (∂x̂ - x̂ · ⟨x̂, ∂x̂⟩), and r · ∂x̂ where the length was too small for
/// that. Rows with ∂x̂ = 0 throughout get 0, whatever they hold.
///
/// With u = 2⁻²⁴ and d = dim: r errs by (d / 2 + 2) · u of itself (a sum of d squares, whose error
/// the root halves, a root and a quotient), and each element of ∂x̂ by (n + 1) · u of its magnitude
/// and by its sources' r once more. What is subtracted has r three times besides, and a sum of d
/// products. Together less than n + 3 · d + 16 roundings of
///
/// ```text
/// r · (m_k + |x̂_k| · Σ_j |x̂_j| · m_j)       with m the magnitudes of ∂x̂
/// ```
fn project(sums: &mut [Sum], matrix: &Matrix) {
    let Some(norms) = &matrix.factors else { return };
    let dim = matrix.dim;
    for (i, sums) in sums.chunks_exact_mut(dim).enumerate() {
        if sums.iter().all(|sum| sum.magnitude == 0.0) {
            continue;
        }
        // Terms that cancel: f32 may find 0 throughout, which stays 0 whatever the row holds.
        let may_be_0 = |sum: &Sum| {
            let sum = Sum { n_terms: sum.n_terms + 8, ..*sum };
            sum.exact.abs() <= sum.limit(false)
        };
        let may_be_none = sums.iter().all(may_be_0);
        sums.iter_mut().for_each(|sum| sum.may_be_none = may_be_none);
        let row = matrix.row(i).values;
        let is_constant = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() <= SQUARE_MIN;
        for sum in &mut *sums {
            sum.exact *= norms[i];
            sum.magnitude *= norms[i];
            sum.n_terms += 3 * dim + 16;
        }
        if is_constant {
            continue;
        }
        let unit = |k: usize| norms[i] * f64::from(row[k]);
        let along: f64 = (0..dim).map(|k| unit(k) * sums[k].exact).sum();
        let magnitude: f64 = (0..dim).map(|k| unit(k).abs() * sums[k].magnitude).sum();
        for (k, sum) in sums.iter_mut().enumerate() {
            sum.exact -= unit(k) * along;
            sum.magnitude += unit(k).abs() * magnitude;
        }
    }
}
