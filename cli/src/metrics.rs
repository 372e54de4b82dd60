//! How good rankings are, by binary relevance judgements.
//!
//! With `rel(i)` 1 where the document at rank `i` (from 1) is relevant, else 0, and `R` the
//! number of relevant documents of the query:
//!
//! ```text
//! DCG@10    = Σ_{i=1..10} rel(i) / log2(i + 1)
//! nDCG@10   = DCG@10 / Σ_{i=1..min(10, R)} 1 / log2(i + 1)
//! recall@10 = Σ_{i=1..10} rel(i) / R
//! ```
//!
//! Both are means over the queries that have a relevant document. Discounted cumulated gain
//! and its normalisation are from K. Järvelin and J. Kekäläinen, "Cumulated gain-based
//! evaluation of IR techniques", ACM TOIS 20(4), 2002; the discount is the log2(i + 1) that
//! has become usual since, which discounts from the second rank on.

use maxsim::Ranking;
use serde::Serialize;

use crate::qrels::Qrels;
use crate::texts::counted;

/// Ranks that the metrics look at.
pub const DEPTH: usize = 10;

/// Means over the judged queries; `None` when no query has a relevant document.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Metrics {
    /// Normalised discounted cumulated gain of the first ten ranks.
    #[serde(rename = "ndcg@10")]
    pub ndcg: Option<f64>,
    /// Share of the relevant documents among the first ten ranks.
    #[serde(rename = "recall@10")]
    pub recall: Option<f64>,
    /// Queries that have a relevant document.
    #[serde(skip)]
    pub n_judged: usize,
}

impl Metrics {
    /// Judges rankings of at least [`DEPTH`] documents each, or of all there are.
    pub fn new(rankings: &[Ranking], qrels: &Qrels) -> Metrics {
        let (mut ndcg, mut recall, mut n_judged) = (0.0, 0.0, 0);
        for (query, ranking) in (0u32..).zip(rankings) {
            let Some(judged) = qrels.get(query).filter(|j| !j.relevant.is_empty()) else {
                continue;
            };
            let n_relevant = judged.relevant.len();
            let hits = (1..=DEPTH).zip(&ranking.ranked).filter(|(_, r)| judged.is_relevant(r.id));
            let (mut dcg, mut n_hits) = (0.0, 0);
            for (rank, _) in hits {
                dcg += discount(rank);
                n_hits += 1;
            }
            let ideal: f64 = (1..=DEPTH.min(n_relevant)).map(discount).sum();
            ndcg += dcg / ideal;
            recall += f64::from(n_hits) / n_relevant as f64;
            n_judged += 1;
        }
        let mean = |sum: f64| (n_judged > 0).then(|| sum / n_judged as f64);
        Metrics { ndcg: mean(ndcg), recall: mean(recall), n_judged }
    }
}

impl std::fmt::Display for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.ndcg, self.recall) {
            (Some(ndcg), Some(recall)) => {
                write!(f, "nDCG@10 {ndcg:.4}, recall@10 {recall:.4}, ")?;
                f.write_str("over ")?;
                f.write_str(&counted(self.n_judged as u64, "judged query", "judged queries"))
            }
            _ => f.write_str("no metrics: no query has a relevant document"),
        }
    }
}

fn discount(rank: usize) -> f64 {
    1.0 / (rank as f64 + 1.0).log2()
}
