//! Pairings: which queries are scored against which documents.

use crate::error::{Error, Result};
use crate::tokens::index::Index;
use crate::tokens::layout::{check_count, check_len};

/// The (query, document) pairs to score, and their order.
///
/// ```
/// use maxsim::{Device, Pairing, Result, Tokens};
///
/// // Two queries and four documents of one token each; dim 2.
/// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2)?;
/// let documents = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
/// let documents = Tokens::padded(&documents, 4, 1, 2)?;
/// let score = |pairing: Pairing| -> Result<Vec<f32>> {
///     Ok(Device::cpu().score(&queries, &documents, &pairing)?.into_values())
/// };
/// assert_eq!(score(Pairing::cross())?, [1.0, 3.0, 5.0, 7.0, 2.0, 4.0, 6.0, 8.0]);
/// // The first two documents were retrieved for the first query, the others for the second.
/// assert_eq!(score(Pairing::own_candidates(2))?, [1.0, 3.0, 6.0, 8.0]);
/// assert_eq!(score(Pairing::candidates(&[3, 0, 0, 1], 2)?)?, [7.0, 1.0, 2.0, 4.0]);
/// assert_eq!(score(Pairing::pairs(&[0, 1, 1], &[2, 2, 0])?)?, [5.0, 6.0, 2.0]);
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Pairing(pub(crate) Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cross,
    OwnCandidates { k: usize },
    Candidates { ids: Vec<u32>, k: usize },
    Pairs { ids: Vec<[u32; 2]> },
}

impl Pairing {
    /// Every query with every document: scores `[n_queries, n_documents]`.
    pub fn cross() -> Pairing {
        Pairing(Kind::Cross)
    }

    /// `k` documents per query, each query's own: document `q · k + j` is candidate `j` of
    /// query `q`. Scores `[n_queries, k]`.
    pub fn own_candidates(k: usize) -> Pairing {
        Pairing(Kind::OwnCandidates { k })
    }

    /// `k` documents per query out of shared ones: `ids` is `[n_queries, k]`, row-major.
    /// Scores `[n_queries, k]`. A document may be named any number of times.
    pub fn candidates<I: Index>(ids: &[I], k: usize) -> Result<Pairing> {
        if k == 0 && !ids.is_empty() || k > 0 && !ids.len().is_multiple_of(k) {
            return Err(Error::Shape {
                argument: "candidate ids",
                expected: format!("a multiple of k = {k} entries"),
                found: format!("{} entries", ids.len()),
            });
        }
        check_count("number of pairs", ids.len())?;
        Ok(Pairing(Kind::Candidates { ids: checked_ids("candidate ids", ids)?, k }))
    }

    /// Any list of pairs: score `p` is query `query_ids[p]` against document `document_ids[p]`.
    pub fn pairs<I: Index>(query_ids: &[I], document_ids: &[I]) -> Result<Pairing> {
        check_len("document_ids", query_ids.len(), "as many as query_ids", document_ids.len())?;
        check_count("number of pairs", query_ids.len())?;
        let queries = checked_ids("query_ids", query_ids)?;
        let documents = checked_ids("document_ids", document_ids)?;
        let ids = queries.into_iter().zip(documents).map(|(q, d)| [q, d]).collect();
        Ok(Pairing(Kind::Pairs { ids }))
    }

    /// Whether each query, or one after the other, meets documents in the order of their numbers.
    pub(crate) fn has_documents_in_order(&self) -> bool {
        matches!(self.0, Kind::Cross | Kind::OwnCandidates { .. })
    }
}

fn checked_ids<I: Index>(argument: &'static str, ids: &[I]) -> Result<Vec<u32>> {
    ids.iter()
        .enumerate()
        .map(|(index, &id)| {
            let found = id.to_i128();
            u32::try_from(found).map_err(|_| Error::Offset {
                argument,
                index,
                expected: "a number from 0 to 4294967295".into(),
                found,
            })
        })
        .collect()
}
