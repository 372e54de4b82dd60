//! Checks queries, documents and pairing against each other, once; a [`Problem`] is the proof.

pub(crate) mod chamfer;
pub(crate) mod chunks;
pub(crate) mod options;
pub(crate) mod outputs;
pub(crate) mod pairing;
pub(crate) mod provenance;
pub(crate) mod ranking;
pub(crate) mod runs;
pub(crate) mod scores;
pub(crate) mod shape;
pub(crate) mod top_k;
pub(crate) mod xtr;

use std::ops::Range;

use self::pairing::{Kind, Pairing};
use crate::error::{Error, Result};
use crate::problem::shape::ScoreShape;
use crate::problem::shape::TokenOffsets;
use crate::tokens::layout::limits::check_dim;
use crate::tokens::layout::{TokenLayout, check_count};

/// A well-formed request: layouts that fit together and a pairing whose ids exist.
#[derive(Clone, Debug)]
#[must_use]
pub struct Problem<'a> {
    queries: &'a TokenLayout,
    documents: &'a TokenLayout,
    pairing: &'a Pairing,
    shape: ScoreShape,
    /// Queries whose pairs are wanted; in a cross product these may be some of them.
    wanted: Range<usize>,
}

impl<'a> Problem<'a> {
    /// Checks queries, documents and pairing against each other.
    pub fn new(
        queries: &'a TokenLayout,
        documents: &'a TokenLayout,
        pairing: &'a Pairing,
    ) -> Result<Problem<'a>> {
        if queries.dim() != documents.dim() {
            return Err(Error::Shape {
                argument: "documents",
                expected: format!("dim {} like the queries", queries.dim()),
                found: format!("dim {}", documents.dim()),
            });
        }
        check_dim(queries.dim())?;
        queries.check_read("queries")?;
        documents.check_unweighted("of documents", "weights are those of query tokens")?;
        if let Kind::Pairs { .. } = pairing.0 {
            // Their units say where documents start.
            documents.check_read("documents of pairs")?;
        }
        let (n_queries, n_documents) = (queries.n_items(), documents.n_items());
        let shape = match &pairing.0 {
            Kind::Cross => ScoreShape::Cross { n_queries, n_documents },
            Kind::OwnCandidates { k } => {
                if n_queries.checked_mul(*k) != Some(n_documents) {
                    return Err(Error::Shape {
                        argument: "documents",
                        expected: format!("{n_queries} queries × {k} own candidates"),
                        found: format!("{n_documents} documents"),
                    });
                }
                ScoreShape::Candidates { n_queries, k: *k }
            }
            Kind::Candidates { ids, k } => {
                if n_queries.checked_mul(*k) != Some(ids.len()) {
                    return Err(Error::Shape {
                        argument: "candidate ids",
                        expected: format!("{n_queries} queries × {k} ids"),
                        found: format!("{} ids", ids.len()),
                    });
                }
                check_ids("candidate ids", ids.iter().copied(), n_documents)?;
                ScoreShape::Candidates { n_queries, k: *k }
            }
            Kind::Pairs { ids } => {
                check_ids("query_ids", ids.iter().map(|p| p[0]), n_queries)?;
                check_ids("document_ids", ids.iter().map(|p| p[1]), n_documents)?;
                ScoreShape::Pairs { n_pairs: ids.len() }
            }
        };
        if let ScoreShape::Cross { .. } = shape {
            check_count("number of pairs", n_queries.saturating_mul(n_documents))?;
        }
        check_count("number of pairs", shape.n_scores())?;
        Ok(Problem { queries, documents, pairing, shape, wanted: 0..n_queries })
    }

    /// Restricts a cross product to the pairs of some queries: scores, tokens and ids keep their
    /// numbers.
    pub(crate) fn of_queries(&self, wanted: Range<usize>) -> Problem<'a> {
        debug_assert!(matches!(self.shape, ScoreShape::Cross { .. }));
        Problem { wanted, ..self.clone() }
    }

    /// Queries whose pairs are wanted.
    pub(crate) fn wanted(&self) -> Range<usize> {
        self.wanted.clone()
    }

    /// The queries' layout.
    pub(crate) fn queries(&self) -> &'a TokenLayout {
        self.queries
    }

    /// The documents' layout.
    pub(crate) fn documents(&self) -> &'a TokenLayout {
        self.documents
    }

    /// The pairing.
    pub(crate) fn pairing(&self) -> &'a Pairing {
        self.pairing
    }

    /// Elements per token.
    pub(crate) fn dim(&self) -> usize {
        self.queries.dim()
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.shape
    }

    /// The (query, document) of score `p`.
    ///
    /// # Panics
    /// May panic, or give ids that are not there, where `p` is not below the number of scores.
    pub(crate) fn pair(&self, p: usize) -> (usize, usize) {
        match &self.pairing.0 {
            Kind::Cross => (p / self.documents.n_items(), p % self.documents.n_items()),
            Kind::OwnCandidates { k } => (p / k, p),
            Kind::Candidates { ids, k } => (p / k, ids[p] as usize),
            Kind::Pairs { ids } => (ids[p][0] as usize, ids[p][1] as usize),
        }
    }

    /// Offsets of each score's query tokens in the pair-major outputs.
    pub fn token_offsets(&self) -> TokenOffsets {
        let mut total = 0u64;
        let mut next = |tokens: u64| {
            let base = total;
            total += tokens;
            base
        };
        let len = |q: usize| self.queries.item_len(q) as u64;
        match self.shape.row_len() {
            Some(row_len) => {
                let n = self.queries.n_items();
                let bases = (0..n).map(|q| next(len(q) * row_len as u64)).collect();
                let lens = (0..n).map(len).collect();
                TokenOffsets { bases, row_len: Some(row_len), lens, total }
            }
            None => {
                let lens: Vec<u64> =
                    (0..self.shape.n_scores()).map(|p| len(self.pair(p).0)).collect();
                let bases = lens.iter().map(|&l| next(l)).collect();
                TokenOffsets { bases, row_len: None, lens, total }
            }
        }
    }
}

fn check_ids(argument: &'static str, ids: impl Iterator<Item = u32>, n_items: usize) -> Result<()> {
    for (index, id) in ids.enumerate() {
        if id as usize >= n_items {
            return Err(Error::Id { argument, index, found: i64::from(id), n_items });
        }
    }
    Ok(())
}
