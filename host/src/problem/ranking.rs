//! The ranking that scores give.

use std::cmp::Ordering;

use maxsim_kernels::abi::params::top_k::key;

/// One ranked document.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ranked {
    /// Document id.
    pub id: u32,
    /// Score of the document.
    pub score: f32,
    /// Whether the document has a valid token; without one it scores 0 and ranks last.
    pub has_tokens: bool,
}

impl Ranked {
    /// The order of a ranking: scores of documents with tokens, descending, equal scores by
    /// lower id; then NaN; then documents without tokens.
    pub(crate) fn rank(&self, other: &Ranked) -> Ordering {
        other.key().cmp(&self.key())
    }

    fn key(&self) -> u64 {
        key(self.score.to_bits(), self.id, !self.has_tokens)
    }
}

/// The best `k` documents of one query, best first.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use]
pub struct Ranking {
    /// At most `k` documents.
    pub ranked: Vec<Ranked>,
    /// Documents with tokens whose score is NaN, among all that were pushed.
    pub n_nan: u64,
    /// Documents without a valid token, among all that were seen.
    pub n_empty: u64,
}

impl Ranking {
    /// The best `k` of what several devices or machines have found, each among other documents:
    /// the ranking that one of them would give for all. Each must be of `k` or more.
    ///
    /// ```
    /// use maxsim::{Ranked, Ranking, TopK};
    ///
    /// let shard = |documents: [(u32, f32); 2]| -> Ranking {
    ///     let mut best = TopK::new(1);
    ///     documents.map(|(id, score)| best.push(Ranked { id, score, has_tokens: true }));
    ///     best.into_ranking()
    /// };
    /// let shards = [shard([(0, 1.0), (1, 3.0)]), shard([(2, 3.0), (3, f32::NAN)])];
    /// let best = Ranking::merge(shards, 1);
    /// assert_eq!((best.ranked[0].id, best.n_nan), (1, 1));
    /// ```
    pub fn merge(rankings: impl IntoIterator<Item = Ranking>, k: usize) -> Ranking {
        let mut best = TopK::new(k);
        let (mut n_nan, mut n_empty) = (0, 0);
        for ranking in rankings {
            ranking.ranked.into_iter().for_each(|document| best.push(document));
            n_nan += ranking.n_nan;
            n_empty += ranking.n_empty;
        }
        Ranking { n_nan, n_empty, ..best.into_ranking() }
    }
}

/// A running top-k: push scores in any order, in as many chunks as there are.
///
/// Keeps at most `2 · k` documents; a push costs amortised constant time.
#[derive(Clone, Debug)]
#[must_use]
pub struct TopK {
    k: usize,
    kept: Vec<Ranked>,
    n_nan: u64,
    n_empty: u64,
}

impl TopK {
    /// Makes an empty top-k.
    pub fn new(k: usize) -> TopK {
        TopK { k, kept: Vec::new(), n_nan: 0, n_empty: 0 }
    }

    /// Takes one document into account.
    pub fn push(&mut self, mut document: Ranked) {
        if !document.has_tokens {
            // An angular score is −∞.
            document.score = 0.0;
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
