//! Results on the host, and the ranking they give.

use super::Problem;
use super::shape::{ScoreShape, TokenOffsets};
use crate::error::{Error, Result};
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::{Kind, Pairing};
use crate::problem::ranking::{Ranked, Ranking, TopK};
use crate::runtime::alloc::{filled, zeroed};
use crate::tokens::layout::TokenLayout;

/// Scores and, where they were asked for, winners and token scores.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Scores {
    pub(crate) shape: ScoreShape,
    pub(crate) values: Vec<f32>,
    pub(crate) token_offsets: Option<TokenOffsets>,
    pub(crate) winners: Option<Vec<i32>>,
    pub(crate) token_scores: Option<Vec<f32>>,
    pub(crate) rescored: bool,
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
            values: zeroed(shape.n_scores() as u64)?,
            winners: winners.then(|| filled(n_tokens, -1)).transpose()?,
            token_scores: token_scores.then(|| zeroed(n_tokens)).transpose()?,
            token_offsets,
            rescored: false,
        })
    }

    /// Gives some scores, of documents without tokens, the value −∞.
    pub(crate) fn leave_out(&mut self, without_tokens: &[u32]) {
        without_tokens.iter().for_each(|&p| self.values[p as usize] = f32::NEG_INFINITY);
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.shape
    }

    /// The scores in the order of the pairing, row-major.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The scores of one query, in the order of its documents or candidates. `None` of pairs, which
    /// are in any order, and of queries that are not there.
    pub fn row(&self, query: usize) -> Option<&[f32]> {
        self.rows().nth(query)
    }

    /// The scores of each query in turn, in the order of its documents or candidates. Empty of
    /// pairs, which are in any order.
    ///
    /// ```
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?;
    /// let documents = Tokens::padded(&[3.0f32, 4.0, 5.0, 6.0], 2, 1, 2)?;
    /// let scores = Device::cpu().score(&queries, &documents, &Pairing::cross())?;
    /// assert_eq!(scores.rows().collect::<Vec<_>>(), [[3.0, 5.0], [4.0, 6.0]]);
    /// assert_eq!((scores.row(1), scores.row(2)), (Some(&[4.0, 6.0][..]), None));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        let n_queries = match self.shape {
            ScoreShape::Cross { n_queries, .. } | ScoreShape::Candidates { n_queries, .. } => {
                n_queries
            }
            ScoreShape::Pairs { .. } => 0,
        };
        let len = self.shape.row_len().unwrap_or(0);
        (0..n_queries).map(move |query| &self.values[query * len..][..len])
    }

    /// The `k` best documents of each query, of the scores of every query with every document
    /// ([`Pairing::cross`]). Equal scores are in the order of the documents' ids, documents without
    /// tokens come last, NaN before them.
    ///
    /// # Errors
    /// [`Error::Shape`] where the scores are not those of a cross product with as many documents.
    ///
    /// ```
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
    /// let scores = Device::cpu().score(&queries, &documents, &Pairing::cross())?;
    /// let best = &scores.top_k(&documents, 10)?[0];
    /// assert_eq!((best.ranked[0].id, best.ranked[0].score), (1, 8.0));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn top_k(&self, documents: &impl AsRef<TokenLayout>, k: usize) -> Result<Vec<Ranking>> {
        self.top_k_of(&Pairing::cross(), documents, k)
    }

    /// As [`Scores::top_k`], of the scores of candidates, too: `pairing` is that of the scores. A
    /// document that is a query's candidate twice is ranked twice.
    ///
    /// # Errors
    /// [`Error::Shape`] where scores, pairing and documents do not go together, of pairs, which
    /// have no rows, and of documents of which the device alone knows which have a token
    /// ([`TokenLayout::unread`], [`TokenLayout::with_unread_mask`]): an empty one would have a
    /// place by its score 0. [`Device::top_k`](crate::Device::top_k) reads them there.
    pub fn top_k_of(
        &self,
        pairing: &Pairing,
        documents: &impl AsRef<TokenLayout>,
        k: usize,
    ) -> Result<Vec<Ranking>> {
        let documents = documents.as_ref();
        if !documents.knows_empty_items() {
            return Err(Error::Shape {
                argument: "documents",
                expected: "a layout that says which documents have a token".into(),
                found: "one of items or masks that the device alone knows".into(),
            });
        }
        let [n_queries, row_len] = [self.rows().len(), self.shape.row_len().unwrap_or(0)];
        let n_documents = documents.n_items();
        let fits = match (&pairing.0, self.shape) {
            (Kind::Cross, ScoreShape::Cross { n_documents: n, .. }) => n == n_documents,
            (Kind::OwnCandidates { k }, ScoreShape::Candidates { k: n, .. }) => {
                n == *k && n * n_queries == n_documents
            }
            (Kind::Candidates { ids, k }, ScoreShape::Candidates { k: n, .. }) => {
                n == *k
                    && ids.len() == n * n_queries
                    && ids.iter().all(|&id| (id as usize) < n_documents)
            }
            _ => false,
        };
        if !fits {
            return Err(Error::Shape {
                argument: "scores",
                expected: format!("those of this pairing and {n_documents} documents, with rows"),
                found: format!("{:?}", self.shape),
            });
        }
        let id = |query: usize, i: usize| match &pairing.0 {
            // A layout has fewer than 2³¹ items.
            Kind::OwnCandidates { k } => (query * k + i) as u32,
            Kind::Candidates { ids, k } => ids[query * k + i],
            Kind::Cross | Kind::Pairs { .. } => i as u32,
        };
        let ranking = |(query, row): (usize, &[f32])| {
            let mut best = TopK::new(k.min(row_len));
            for (i, &score) in row.iter().enumerate() {
                let id = id(query, i);
                best.push(Ranked { id, score, has_tokens: documents.has_tokens(id as usize) });
            }
            best.into_ranking()
        };
        Ok(self.rows().enumerate().map(ranking).collect())
    }

    /// The scores, without a copy.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// Whether the winners are those of coarse codes: scores are then, up to the rounding of f32,
    /// lower bounds of the exact ones. See [`CoarseCodes`](crate::search::CoarseCodes).
    pub fn are_rescored(&self) -> bool {
        self.rescored
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

    /// Offsets of each score's query tokens in `winners` and `token_scores`.
    pub fn token_offsets(&self) -> Option<&TokenOffsets> {
        self.token_offsets.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(shape: ScoreShape, values: &[f32]) -> Scores {
        let mut scores = Scores::with_room(shape, None, false, false).unwrap();
        scores.values.copy_from_slice(values);
        scores
    }

    fn ids(rankings: &[Ranking]) -> Vec<Vec<u32>> {
        rankings.iter().map(|r| r.ranked.iter().map(|document| document.id).collect()).collect()
    }

    #[test]
    fn the_best_of_candidates_have_the_documents_ids() {
        let documents = TokenLayout::padded(6, 1, 2).unwrap();
        let shape = ScoreShape::Candidates { n_queries: 2, k: 3 };
        let scores = scores(shape, &[1.0, 3.0, 2.0, 5.0, f32::NAN, 6.0]);
        let own = Pairing::own_candidates(3);
        let best = scores.top_k_of(&own, &documents, 2).unwrap();
        assert_eq!(ids(&best), [[1, 2], [5, 3]]);
        assert_eq!((best[0].n_nan, best[1].n_nan), (0, 1));
        let shared = Pairing::candidates(&[4u32, 0, 2, 5, 1, 0], 3).unwrap();
        let best = scores.top_k_of(&shared, &documents, 9).unwrap();
        assert_eq!(ids(&best), [[0, 2, 4], [0, 5, 1]]);
        // These do not fit the scores.
        let others = TokenLayout::padded(5, 1, 2).unwrap();
        assert!(scores.top_k(&documents, 2).is_err());
        assert!(scores.top_k_of(&own, &others, 2).is_err());
        assert!(scores.top_k_of(&shared, &others, 2).is_err());
        assert!(scores.top_k_of(&Pairing::own_candidates(2), &documents, 2).is_err());
    }

    #[test]
    fn documents_that_may_be_empty_unseen_are_refused() {
        let scores = scores(ScoreShape::Cross { n_queries: 1, n_documents: 2 }, &[-1.0, 0.0]);
        let unread = TokenLayout::unread(2, 1, 2, 1, 1).unwrap();
        let masked = TokenLayout::padded(2, 1, 1).unwrap().with_unread_mask();
        for documents in [unread, masked] {
            let error = scores.top_k(&documents, 2).unwrap_err().to_string();
            assert!(error.contains("which documents have a token"), "{error}");
        }
        assert!(scores.top_k(&TokenLayout::padded(2, 1, 1).unwrap(), 2).is_ok());
    }

    #[test]
    fn documents_without_tokens_come_last() {
        let documents = TokenLayout::packed(2, 1, &[0i64, 1, 1, 2]).unwrap();
        let shape = ScoreShape::Cross { n_queries: 1, n_documents: 3 };
        let best = scores(shape, &[-2.0, 0.0, -1.0]).top_k(&documents, 3).unwrap();
        assert_eq!(ids(&best), [[2, 0, 1]]);
        assert_eq!(best[0].n_empty, 1);
        assert!(scores(ScoreShape::Pairs { n_pairs: 1 }, &[0.0]).top_k(&documents, 1).is_err());
    }
}
