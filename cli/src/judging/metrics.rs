//! How good rankings are, by relevance judgements.
//!
//! With `grade(i)` the grade of the document at rank `i` (from 1), 0 where it is not judged or its
//! grade is negative, and `R` the number of documents that are judged relevant to the query, of a
//! grade of 1 or more:
//!
//! ```text
//! DCG@10    = Σ_{i=1..10} grade(i) / log2(i + 1)
//! nDCG@10   = DCG@10, divided by that of the relevant documents in falling order of grades
//! recall@10 = relevant documents among the first 10 / R
//! ```
//!
//! Relevant documents that are not in the token file count as not found. These are the
//! `ndcg_cut_10` and `recall_10` of trec_eval for the same order of documents. Both are means over
//! the queries that have a relevant document, whether or not one was found; trec_eval counts a
//! judged query without one as 0. Judged queries that are not in the token file are excluded, as by
//! trec_eval without its option `-c`.
//!
//! Discounted cumulated gain and its normalisation are from K. Järvelin and J. Kekäläinen,
//! "Cumulated gain-based evaluation of IR techniques", ACM TOIS 20(4), 2002; the discount is the
//! log2(i + 1) that has become usual since, which discounts from the second rank on.

use maxsim::Ranking;
use serde::Serialize;

use crate::judging::qrels::Qrels;
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
            let Some(judged) = qrels.get(query).filter(|j| j.n_relevant() > 0) else {
                continue;
            };
            let (mut dcg, mut n_hits) = (0.0, 0);
            for (rank, ranked) in (1..=DEPTH).zip(&ranking.ranked) {
                if let Some(grade) = judged.grade(ranked.id) {
                    dcg += discounted(grade, rank);
                    n_hits += 1;
                }
            }
            let best = (1..=DEPTH).zip(judged.best_grades());
            let ideal: f64 = best.map(|(rank, &grade)| discounted(grade, rank)).sum();
            ndcg += dcg / ideal;
            recall += f64::from(n_hits) / judged.n_relevant() as f64;
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

fn discounted(grade: u32, rank: usize) -> f64 {
    f64::from(grade) / (rank as f64 + 1.0).log2()
}
