//! Bounds of the scores of pairs, from the terms of both sides.

use maxsim_kernels::abi::params::search::LinearFactors;

use super::bounds::{Columns, ErrorTerms, Terms};
use super::compressed::check_unweighted;
use super::driven::There;
use super::scanned::{BLOCK, scores_where};
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::pairing::Pairing;
use crate::runtime::alloc::filled;
use crate::tokens::dispatch::with_element;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::TokenFormat;

/// Largest error of tensor cores in e4m3 products, relative to Σ |q_k d_k|: of 128 products and of
/// the four sums that they are added to, bits below 2⁻¹³ of the largest are cut off. With one large
/// element among small ones that is lost; random tokens lose up to 5 · 10⁻⁴.
const FP8_CUT: f64 = 132.0 / 8192.0;

/// Bounds of |score − exact score| of every score of a pairing, in its order, where the exact score
/// is that of the embeddings and the score is what any engine gives for the compressed tokens.
///
/// So two documents whose scores for a query differ by more than the sum of their bounds are in
/// their true order. +∞ where nothing is known: see the [`ErrorTerms`], which has
/// the formula. A query or document without tokens has the bound 0.
///
/// # Errors
/// The errors of [`Problem::new`]; [`Error::HostMemory`](crate::Error::HostMemory).
pub fn score_bounds(
    queries: &ErrorTerms,
    documents: &ErrorTerms,
    pairing: &Pairing,
) -> Result<Vec<f32>> {
    PairBounds::of_scores(queries, documents).all(pairing)
}

/// As [`score_bounds`], where the exact score is not a real number but what an engine computes from
/// the embeddings, of elements of this type: bounds are larger by what f32 loses there,
///
/// ```text
/// ρ · Σ_s (‖q_s‖₂ + √dim · δ) · max_t (‖d_t‖₂ + √dim · δ)
/// ```
///
/// with ‖x‖₂ ≤ ‖x̂‖₂ + ‖u‖₂, ρ = (8 + Lq + dim) · 2⁻²³ (f32: 3 · dim, since products are split),
/// and δ the smallest normal number of the type, since tensor cores align subnormal numbers by its
/// exponent (bf16: 2⁻⁵², for CPUs that take subnormal numbers for 0). What a search re-scores is
/// compared with what it does not by these.
///
/// # Errors
/// The errors of [`Problem::new`]; [`Error::HostMemory`](crate::Error::HostMemory).
pub fn rescore_bounds(
    queries: &ErrorTerms,
    documents: &ErrorTerms,
    pairing: &Pairing,
    element: ElementType,
) -> Result<Vec<f32>> {
    PairBounds::of_rescored(queries, documents, element).all(pairing)
}

/// δ of bf16. CPUs that multiply pairs take numbers and sums below 2⁻¹²⁶ for 0, which moves a score
/// by at most 2⁻¹²⁶ · (√dim · (‖d‖₂ · n + Σ_s ‖q_s‖₂) + n · dim) for n query tokens. With this δ
/// the formula of [`rescore_bounds`] has each of these terms, since ρ is more than 2⁻²¹.
const BF16_LEAST: f32 = 1.0 / (1u64 << 52) as f32;

/// The bounds of the scores of two sides, pair by pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairBounds<'a> {
    queries: &'a ErrorTerms,
    documents: &'a ErrorTerms,
    dim: usize,
    rescored: Option<Rescored>,
}

/// What full-precision scores of an element type lose to rounding.
#[derive(Clone, Copy, Debug)]
struct Rescored {
    /// Products that a similarity is a sum of, split ones counted each.
    n_products: f64,
    /// √dim · δ.
    least: f64,
}

impl<'a> PairBounds<'a> {
    /// Those of [`score_bounds`].
    pub fn of_scores(queries: &'a ErrorTerms, documents: &'a ErrorTerms) -> PairBounds<'a> {
        PairBounds { queries, documents, dim: queries.layout.dim(), rescored: None }
    }

    /// Those of [`rescore_bounds`].
    pub fn of_rescored(
        queries: &'a ErrorTerms,
        documents: &'a ErrorTerms,
        element: ElementType,
    ) -> PairBounds<'a> {
        let bounds = PairBounds::of_scores(queries, documents);
        let dim = bounds.dim as f64;
        let (n_products, least) = with_element!(element, T => (T::N_PRODUCTS, T::NORMAL_MIN));
        let least = if element == ElementType::Bf16 { BF16_LEAST } else { least };
        let (n_products, least) = (n_products as f64 * dim, dim.sqrt() * f64::from(least));
        PairBounds { rescored: Some(Rescored { n_products, least }), ..bounds }
    }

    /// The bound of every score of a pairing, in its order.
    fn all(&self, pairing: &Pairing) -> Result<Vec<f32>> {
        check_unweighted(&self.queries.layout)?;
        let problem = Problem::new(&self.queries.layout, &self.documents.layout, pairing)?;
        let mut bounds = filled(problem.shape().n_scores() as u64, 0.0)?;
        bounds.iter_mut().enumerate().for_each(|(p, place)| {
            let (query, document) = problem.pair(p);
            *place = self.of(query, document);
        });
        Ok(bounds)
    }

    /// Number of queries.
    pub fn n_queries(&self) -> usize {
        self.queries.items.len()
    }

    /// Number of documents.
    pub fn n_documents(&self) -> usize {
        self.documents.items.len()
    }

    /// Documents without a valid token.
    pub fn empty(&self) -> &'a [u32] {
        &self.documents.empty
    }

    /// The bound of the score of one pair.
    pub fn of(&self, query: usize, document: usize) -> f32 {
        let document = &self.documents.items[document];
        if document.n_tokens == 0 { 0.0 } else { self.of_terms(query, &document.maxima) }
    }

    /// A bound that no document's is above: that of one which has the largest of each term. (Sums
    /// and products of numbers that are not negative rise with each of them, rounded or not.) Where
    /// it is finite, so are those of all documents.
    pub fn largest(&self, query: usize) -> f32 {
        self.of_terms(query, &self.documents.maxima)
    }

    /// Bounds of a query that are a little more than these: the products of terms with the index 2
    /// in place of the smaller of two, which they mostly are.
    pub(super) fn linear(&self, query: usize) -> LinearBounds<'a> {
        let query = &self.queries.items[query];
        let (q, formats) = (&query.sums, [self.queries.format, self.documents.format]);
        let rho = rounding(formats, self.dim, query.n_tokens);
        let rounded = self.rescored.map_or(0.0, |of| of.of_query(query.n_tokens, q));
        let least = self.rescored.map_or(0.0, |of| of.least);
        // By more than sums and products in f32 are rounded down.
        let up = |x: f64| ((x * (1.0 + 8.0 * f64::from(f32::EPSILON))) as f32).next_up();
        let factors = LinearFactors {
            l2: up(q.u2 + rounded),
            u2: up(q.l2 + q.u2 + rounded),
            magnitude: up(rho * q.l2),
            rest: up(rounded * least),
        };
        LinearBounds { factors, columns: &self.documents.columns }
    }

    /// What a device keeps of the documents' terms.
    pub(super) fn there(&self) -> &'a There {
        &self.documents.there
    }

    /// The bound of a query and a document that has a token and these terms.
    fn of_terms(&self, query: usize, d: &Terms) -> f32 {
        let query = &self.queries.items[query];
        if query.n_tokens == 0 {
            return 0.0;
        }
        let formats = [self.queries.format, self.documents.format];
        let rho = rounding(formats, self.dim, query.n_tokens);
        let q = &query.sums;
        let of_document = (d.u_max * q.l1).min(d.u2 * q.l2);
        let of_query = (d.l1 * q.u_max).min(d.l2 * q.u2);
        let bound = of_document + of_query + d.u2 * q.u2 + rho * d.magnitude * q.l2;
        let bound = bound + self.rescored.map_or(0.0, |of| of.rounding(query.n_tokens, q, d));
        // An infinite term times 0 is NaN: no bound.
        let is_known = bound.is_finite() && d.magnitude * q.l2 < f64::from(f32::MAX) / 2.0;
        if is_known { (bound as f32).next_up() } else { f32::INFINITY }
    }
}

impl Rescored {
    fn rounding(&self, n_tokens: usize, q: &Terms, d: &Terms) -> f64 {
        self.of_query(n_tokens, q) * (d.l2 + d.u2 + self.least)
    }

    /// The factor that a query has in it.
    fn of_query(&self, n_tokens: usize, q: &Terms) -> f64 {
        let n_tokens = n_tokens as f64;
        let rho = (8.0 + n_tokens + self.n_products) * f64::from(f32::EPSILON);
        rho * (q.l2 + q.u2 + n_tokens * self.least)
    }
}

/// Bounds of one query that are a little more than those of [`PairBounds::of`], in f32: each is
/// linear in three terms of its document, so that many are found at a time.
pub(super) struct LinearBounds<'a> {
    pub factors: LinearFactors,
    pub columns: &'a Columns,
}

impl<'a> LinearBounds<'a> {
    /// The documents with tokens of a row of scores that can score `least`: those that are within
    /// their bounds of it, with their scores and bounds. Rounding of the sum is the caller's to
    /// count with, by 16 ulps of the larger of the two. Reads the terms in their order: those of
    /// single documents, far from each other, take as long to come as all of these.
    pub fn reaching(&self, row: &[f32], least: f32) -> Vec<(u32, f32, f32)> {
        let found = scores_where(row, |block, scores| {
            let bounds = self.of_block(block);
            std::array::from_fn(|lane| scores[lane] + bounds[lane] >= least)
        });
        found.into_iter().map(|(id, score)| (id, score, self.of(id))).collect()
    }

    /// The bound of a document; NaN of one without tokens.
    pub fn of(&self, id: u32) -> f32 {
        self.of_block(id as usize / BLOCK)[id as usize % BLOCK]
    }

    #[inline(always)]
    fn of_block(&self, block: usize) -> [f32; BLOCK] {
        let Columns { l2, u2, magnitude } = self.columns;
        let (l2, u2, magnitude) = (&l2[block], &u2[block], &magnitude[block]);
        std::array::from_fn(|lane| self.factors.bound(l2[lane], u2[lane], magnitude[lane]))
    }
}

/// ρ: what engines lose to rounding, relative to the products' magnitudes.
fn rounding([queries, documents]: [TokenFormat; 2], dim: usize, query_len: usize) -> f64 {
    let ulp = f64::from(f32::EPSILON);
    let few = (8 + query_len) as f64 * ulp;
    match (queries, documents) {
        (TokenFormat::Int8, TokenFormat::Int8) => few,
        (_, TokenFormat::Fp8) => few + dim as f64 * ulp + FP8_CUT,
        _ => few + dim as f64 * ulp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Tokens;
    use crate::tokens::format::{Fp8, Int8, Quantized};
    use crate::tokens::scales::ScaleType;

    const DIM: usize = 8;

    fn check<F: Quantized>(strange: f32) {
        // Rows of any size, of which each term is largest in another document.
        let mut data: Vec<f32> = (0..600 * DIM)
            .map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0)
            .enumerate()
            .map(|(i, x)| if i / DIM % 7 == i % DIM { 9.0 * x } else { x * (1 + i % 3) as f32 })
            .collect();
        data[81 * DIM] = strange;
        let documents = Tokens::padded(&data, 200, 3, DIM).unwrap();
        let lengths: Vec<i64> = (0..200).map(|i| i % 4).collect();
        let documents = documents.with_lengths(&lengths).unwrap();
        let queries = Tokens::padded(&data[..6 * DIM], 3, 2, DIM).unwrap();
        let queries = queries.with_lengths(&[2i64, 0, 1]).unwrap();
        let codes = [&queries, &documents].map(|x| x.quantize::<F>(ScaleType::F16).unwrap());
        let terms = [
            ErrorTerms::measured(&codes[0], &queries).unwrap(),
            ErrorTerms::measured(&codes[1], &documents).unwrap(),
        ];
        let bounds = PairBounds::of_rescored(&terms[0], &terms[1], ElementType::F32);
        let all = bounds.all(&Pairing::cross()).unwrap();
        for (query, of_query) in all.chunks(200).enumerate() {
            let (largest, most) =
                (bounds.largest(query), of_query.iter().copied().reduce(f32::max));
            assert!(most.is_some_and(|most| most <= largest && largest <= 4.0 * most), "{query}");
            let (scores, linear) = ([0.5; 200], bounds.linear(query));
            for (id, &bound) in (0u32..).zip(of_query).filter(|(id, _)| id % 4 != 0) {
                let found_with = |least: f32| linear.reaching(&scores, least);
                let of = |&(d, _, most): &(u32, f32, f32)| (d == id).then_some(most);
                let most = found_with(0.5).iter().find_map(of);
                assert!(most.is_some_and(|most| most >= bound), "{query}, {id}: {bound}, {most:?}");
                let reaching = |least: f32| found_with(least).iter().any(|found| found.0 == id);
                assert!(reaching(0.5 + bound * (1.0 - 1e-6)), "{query}, {id}");
                let is_bound = bound > 0.0 && bound.is_finite();
                assert!(!(is_bound && reaching(0.5 + 1.5 * bound)), "{query}, {id}");
            }
        }
        assert_eq!(all[200..400], [0.0; 200], "a query without tokens");
        assert!(terms[1].empty.iter().copied().eq((0..200).filter(|i| i % 4 == 0)));
        assert_eq!(bounds.largest(0).is_finite(), strange.is_finite());
    }

    #[test]
    fn no_bound_is_above_the_largest() {
        for strange in [0.5, f32::NAN, f32::INFINITY] {
            check::<Int8>(strange);
            check::<Fp8>(strange);
        }
    }
}
