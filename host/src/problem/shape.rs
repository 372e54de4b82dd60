//! Shape of scores, and where the query tokens of each score lie.

use std::ops::Range;

/// Shape of the scores.
///
/// ```
/// use maxsim::{Device, Pairing, Ranking, ScoreShape, Tokens};
///
/// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
/// let documents = Tokens::padded(&[0.0f32, 1.0, 0.5, 0.5], 2, 1, 2)?;
/// let scores = Device::cpu().score(&queries, &documents, &Pairing::cross())?;
/// assert_eq!(scores.shape(), ScoreShape::Cross { n_queries: 1, n_documents: 2 });
/// let best: Vec<Ranking> = scores.top_k(&documents, 1)?;
/// assert_eq!(best[0].ranked[0].id, 1);
///
/// // Of three candidates: document 1 twice.
/// let pairing = Pairing::candidates(&[1, 0, 1], 3)?;
/// let scores = Device::cpu().score(&queries, &documents, &pairing)?;
/// assert_eq!(scores.shape(), ScoreShape::Candidates { n_queries: 1, k: 3 });
/// assert_eq!(scores.shape().n_scores(), 3);
/// let best: Vec<Ranking> = scores.top_k_of(&pairing, &documents, 3)?;
/// assert!(best[0].ranked.iter().map(|document| document.id).eq([1, 1, 0]));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScoreShape {
    /// `[n_queries, n_documents]`
    Cross {
        /// Rows.
        n_queries: usize,
        /// Columns.
        n_documents: usize,
    },
    /// `[n_queries, k]`
    Candidates {
        /// Rows.
        n_queries: usize,
        /// Columns.
        k: usize,
    },
    /// `[n_pairs]`
    Pairs {
        /// Entries.
        n_pairs: usize,
    },
}

impl ScoreShape {
    /// Number of scores.
    pub fn n_scores(self) -> usize {
        match self {
            ScoreShape::Cross { n_queries, n_documents } => n_queries * n_documents,
            ScoreShape::Candidates { n_queries, k } => n_queries * k,
            ScoreShape::Pairs { n_pairs } => n_pairs,
        }
    }

    /// Scores per query, where every query has equally many.
    pub(crate) fn row_len(self) -> Option<usize> {
        match self {
            ScoreShape::Cross { n_documents, .. } => Some(n_documents),
            ScoreShape::Candidates { k, .. } => Some(k),
            ScoreShape::Pairs { .. } => None,
        }
    }
}

/// Offsets of each score's query tokens in `winners` and `token_scores`, which are pair-major:
/// score `p` has as many consecutive entries as its query has tokens.
///
/// ```
/// use maxsim::layout::TokenOffsets;
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// let queries = Tokens::packed(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0], 2, &[0i64, 1, 3])?;
/// let documents = Tokens::padded(&[2.0f32, 0.0, 0.0, 3.0], 1, 2, 2)?;
/// let options = ScoreOptions::default().winners(true);
/// let scores =
///     Device::cpu().score_with(&queries, &documents, &Pairing::cross(), &options)?;
/// let offsets: &TokenOffsets = scores.token_offsets().expect("winners were asked for");
/// // The second query's two tokens chose the document's second.
/// assert_eq!(scores.winners().map(|x| &x[offsets.range(1)]), Some(&[1, 1][..]));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOffsets {
    /// Per query (row_len known) or per score.
    pub(super) bases: Vec<u64>,
    pub(super) row_len: Option<usize>,
    pub(super) lens: Vec<u64>,
    pub(super) total: u64,
}

impl TokenOffsets {
    /// Entries of `winners` and `token_scores` that belong to score `p`.
    ///
    /// # Panics
    /// When there is no score `p`.
    pub fn range(&self, p: usize) -> Range<usize> {
        let (start, len) = match self.row_len {
            Some(row_len) => {
                let (q, j) = (p / row_len, p % row_len);
                (self.bases[q] + j as u64 * self.lens[q], self.lens[q])
            }
            None => (self.bases[p], self.lens[p]),
        };
        start as usize..(start + len) as usize
    }

    /// Number of entries in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// First entry per query (when every query has equally many scores) or per score.
    pub(crate) fn bases(&self) -> &[u64] {
        &self.bases
    }
}
