//! Results on the host, and the ranking they give.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::problem::{Problem, ScoreShape, TokenOffsets};

/// What to compute besides the scores, and with which kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScoreOptions {
    /// Also return, per query token, the index of the winning document token.
    pub winners: bool,
    /// Also return, per query token, the winning similarity.
    pub token_scores: bool,
    /// Allow f32 elements to be rounded to TF32 (10 fraction bits, to nearest) before they are
    /// multiplied, where a kernel is faster for it: the error of a similarity is then up to
    /// 2⁻¹⁰ · Σ_k |q_k d_k|. Without it, as in engines that have no such kernel, products are
    /// those of f32, or on Hopper's tensor cores within 2⁻²¹ · |q_k d_k| of them (infinities meet
    /// zero where a factor is below 2⁻¹²⁶). Other element types are not concerned.
    pub allow_tf32: bool,
    /// Divide every row by its length: the similarity of rows q and d is ⟨q, d⟩ · r(q) · r(d), with
    /// r(x) = 1 / √max(‖x‖², 10⁻¹²) in f32. Rows are never rounded to the element type again; a
    /// row of zeros has similarity 0, one with an infinity (or whose ‖x‖² is 2¹²⁸ or more) none that
    /// is not NaN or 0. Gradients are those with respect to the rows as they are given.
    ///
    /// A similarity errs by up to (dim + 8) · 2⁻²³ · Σ_k |q_k d_k| · r(q) · r(d), and so far apart
    /// may two that engines order otherwise be; f16 elements below 2⁻¹⁴ count as 2⁻¹⁴ there, since
    /// tensor cores go by their exponents. On a GPU a handle keeps r of its rows, 4 bytes each,
    /// from the first such call on (which waits for them); for memory of others it is computed
    /// anew by each call. `allow_tf32` changes nothing: f32 is exact here.
    pub normalize: bool,
    /// Run this row of the variant table instead of choosing one. It must be eligible.
    pub kernel: Option<String>,
    /// On a GPU: cut documents into this many pieces that are scored side by side, or fewer where
    /// they are short (pieces start at multiples of 128 tokens) or the pieces' results would take
    /// more than 32 MB. 1 = never cut; `None` = as is faster; 0 is an error. The same kernel gives
    /// the same bits whether documents are cut or not. The CPU engine ignores it.
    pub document_pieces: Option<usize>,
}

/// Scores and, where they were asked for, winners and token scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    pub(crate) shape: ScoreShape,
    pub(crate) values: Vec<f32>,
    pub(crate) token_offsets: Option<TokenOffsets>,
    pub(crate) winners: Option<Vec<i32>>,
    pub(crate) token_scores: Option<Vec<f32>>,
    pub(crate) screened: bool,
}

impl Scores {
    /// Room for the results of a problem: scores 0, winners -1, token scores 0.
    pub(crate) fn new(problem: &Problem<'_>, options: &ScoreOptions) -> Result<Scores> {
        let tokens = options.winners || options.token_scores;
        let token_offsets = tokens.then(|| problem.token_offsets());
        Scores::with_room(problem.shape(), token_offsets, options.winners, options.token_scores)
    }

    /// Room for results: scores 0, and winners -1 and token scores 0 where asked for.
    pub(crate) fn with_room(
        shape: ScoreShape,
        token_offsets: Option<TokenOffsets>,
        winners: bool,
        token_scores: bool,
    ) -> Result<Scores> {
        let n_tokens = token_offsets.as_ref().map_or(0, TokenOffsets::total);
        Ok(Scores {
            shape,
            values: filled(shape.n_scores() as u64, 0.0)?,
            winners: winners.then(|| filled(n_tokens, -1)).transpose()?,
            token_scores: token_scores.then(|| filled(n_tokens, 0.0)).transpose()?,
            token_offsets,
            screened: false,
        })
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.shape
    }

    /// The scores in the order of the pairing, row-major.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The scores of one query, in the order of its documents or candidates. `None` of pairs, which are in
    /// whatever order, and of queries that are not there.
    pub fn row(&self, query: usize) -> Option<&[f32]> {
        let len = self.shape.row_len()?;
        let n_queries = match self.shape {
            ScoreShape::Cross { n_queries, .. } | ScoreShape::Candidates { n_queries, .. } => {
                n_queries
            }
            ScoreShape::Pairs { .. } => 0,
        };
        (query < n_queries).then(|| &self.values[query * len..][..len])
    }

    /// The scores, without a copy.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// Whether the winners are those of INT8 screening: scores are then, up to the rounding of f32,
    /// lower bounds of the exact ones. See [`coarse`](crate::coarse).
    pub fn are_screened(&self) -> bool {
        self.screened
    }

    /// All winners, pair-major: index of the winning token within its document, -1 = none.
    /// `None` when they were not asked for.
    pub fn winners(&self) -> Option<&[i32]> {
        self.winners.as_deref()
    }

    /// All token scores, pair-major. `None` when they were not asked for.
    pub fn token_scores(&self) -> Option<&[f32]> {
        self.token_scores.as_deref()
    }

    /// Where the query tokens of each score lie in `winners` and `token_scores`.
    pub fn token_offsets(&self) -> Option<&TokenOffsets> {
        self.token_offsets.as_ref()
    }
}

pub(crate) fn filled<T: Clone>(n: u64, value: T) -> Result<Vec<T>> {
    let error = Error::HostMemory { requested_bytes: n.saturating_mul(size_of::<T>() as u64) };
    let Ok(n) = usize::try_from(n) else { return Err(error) };
    let mut values = Vec::new();
    if values.try_reserve_exact(n).is_err() {
        return Err(error);
    }
    values.resize(n, value);
    Ok(values)
}

pub(crate) fn copied<T: Copy + Default>(values: &[T]) -> Result<Vec<T>> {
    let mut copy = filled(values.len() as u64, T::default())?;
    copy.copy_from_slice(values);
    Ok(copy)
}

/// One ranked document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Document id.
    pub id: u32,
    /// Its score.
    pub score: f32,
    /// Whether the document has a valid token; without one it scores 0 and ranks last.
    pub has_tokens: bool,
}

impl Ranked {
    /// The order of a ranking: scores of documents with tokens, descending, equal scores by
    /// lower id; then NaN; then documents without tokens.
    pub(crate) fn rank(&self, other: &Ranked) -> Ordering {
        let class = |r: &Ranked| match (r.has_tokens, r.score.is_nan()) {
            (true, false) => 0,
            (true, true) => 1,
            (false, _) => 2,
        };
        class(self)
            .cmp(&class(other))
            .then_with(|| match class(self) {
                0 => other.score.partial_cmp(&self.score).unwrap_or(Ordering::Equal),
                _ => Ordering::Equal,
            })
            .then_with(|| self.id.cmp(&other.id))
    }
}

/// The best `k` documents of one query, best first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking {
    /// At most `k` documents.
    pub ranked: Vec<Ranked>,
    /// Documents with tokens whose score is NaN, among all that were seen.
    pub n_nan: u64,
    /// Documents without a valid token, among all that were seen.
    pub n_empty: u64,
}

/// A running top-k: push scores in any order, in as many chunks as there are.
///
/// Keeps at most `2 · k` documents; a push costs amortised constant time.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    kept: Vec<Ranked>,
    n_nan: u64,
    n_empty: u64,
}

impl TopK {
    /// A top-k that has seen nothing.
    pub fn new(k: usize) -> TopK {
        TopK { k, kept: Vec::new(), n_nan: 0, n_empty: 0 }
    }

    /// Takes one document into account.
    pub fn push(&mut self, document: Ranked) {
        if !document.has_tokens {
            self.n_empty += 1;
        } else if document.score.is_nan() {
            self.n_nan += 1;
        }
        self.kept.push(document);
        if self.kept.len() >= self.k.saturating_mul(2).max(64) {
            self.shrink();
        }
    }

    /// The ranking of everything pushed so far.
    pub fn into_ranking(mut self) -> Ranking {
        self.shrink();
        self.kept.sort_unstable_by(Ranked::rank);
        Ranking { ranked: self.kept, n_nan: self.n_nan, n_empty: self.n_empty }
    }

    fn shrink(&mut self) {
        if self.k == 0 {
            self.kept.clear();
        } else if self.kept.len() > self.k {
            self.kept.select_nth_unstable_by(self.k - 1, Ranked::rank);
            self.kept.truncate(self.k);
        }
    }
}
