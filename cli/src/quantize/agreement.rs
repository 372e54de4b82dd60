//! Measures how well rankings of compressed tokens agree with those of the embeddings.

use std::ops::Range;

use anyhow::{Result, ensure};
use maxsim::{Device, Ranked, Ranking, ScoreOptions, TokenLayout, TopK};
use rayon::prelude::*;
use serde::Serialize;

use crate::documents::Documents;
use crate::input::TokenFile;
use crate::judging::metrics::{self, Metrics};
use crate::judging::qrels::Qrels;
use crate::progress::progress_bar;
use crate::rank::queries::scales as query_scales;
use crate::rank::stream::{self, Request, check_numbers};
use crate::selection::Selected;

/// Scores that are held at once, before and after: 128 MB each.
const N_SCORES: usize = 1 << 25;

/// Places that are compared.
const TOP: usize = 20;

/// Means over the queries, unless a line says otherwise; of documents that have tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Queries that were ranked for.
    pub n_queries: usize,
    /// How far scores are off, over all pairs.
    pub mean_score_error: f64,
    /// How far any score is off.
    pub max_score_error: f64,
    /// Spearman's rank correlation ρ of all documents: Pearson's of their ranks, equal scores
    /// sharing the mean of their ranks. Queries that score all documents alike do not count.
    pub spearman: Option<f64>,
    /// The least of any query.
    pub least_spearman: Option<f64>,
    /// Share of the 20 best documents that are among the 20 best after.
    pub top20_overlap: Option<f64>,
    /// nDCG@10 before, where there are judgements.
    pub ndcg_before: Option<f64>,
    /// nDCG@10 after.
    pub ndcg_after: Option<f64>,
}

/// Checks that queries can rank documents before and after.
pub(super) fn check(queries: &TokenFile, documents: &TokenFile) -> Result<()> {
    let (q, d) = (queries.contents(), documents.contents());
    ensure!(
        q.format == d.format && q.layout.dim() == d.layout.dim(),
        "queries are {} of dim {}, the input is {} of dim {}; {}",
        q.format,
        q.layout.dim(),
        d.format,
        d.layout.dim(),
        match (q.layout.dim() == d.layout.dim(), q.format.element()) {
            (true, Some(_)) => "use --convert",
            _ => "they must come from one model",
        }
    );
    Ok(())
}

/// Ranks documents before and after for all queries, some of them at a time.
pub(super) fn measure(
    queries: &TokenFile,
    files: [&Documents<'_>; 2],
    qrels: Option<&Qrels>,
) -> Result<Agreement> {
    let (n_queries, n_documents) = (queries.n_items(), files[0].n_items());
    let step = (N_SCORES / n_documents.max(1)).clamp(1, n_queries.max(1));
    let format = match files[1] {
        Documents::Tokens(file) => file.contents().format,
        Documents::Residual(..) => queries.contents().format,
    };
    // Losses of queries that are too small for codes show in the agreement.
    let query_scales = query_scales(queries, format, &mut Vec::new())?;
    let progress = progress_bar(2 * n_queries * n_documents, "pairs");
    let mut found: Vec<Query> = Vec::with_capacity(n_queries);
    for start in (0..n_queries).step_by(step) {
        let group = start..(start + step).min(n_queries);
        let mut scores = [Vec::new(), Vec::new()];
        for (documents, scores) in files.into_iter().zip(&mut scores) {
            let request = Request {
                queries,
                documents,
                selected: &Selected::All,
                // Both by the same engine: what differs is what the tokens are stored as. The
                // CPU has one for every format.
                device: &Device::cpu(),
                devices: None,
                options: &ScoreOptions::default(),
                query_scales,
                allow_infinite: false,
                top_k: 0,
                chunk_bytes: None,
                progress: &progress,
            };
            *scores = all_scores(&request, group.clone())?;
        }
        let [before, after] = scores;
        let of_query =
            |(before, after): (&[f32], &[f32])| Query::new(before, after, files[0].layout());
        let pairs = before.par_chunks(n_documents.max(1)).zip(after.par_chunks(n_documents.max(1)));
        found.par_extend(pairs.map(of_query));
    }
    progress.finish_and_clear();
    Ok(summary(found, n_queries, qrels))
}

/// The scores `[n_queries, n_documents]` of a range of queries.
fn all_scores(request: &Request<'_>, queries: Range<usize>) -> Result<Vec<f32>> {
    let n_documents = request.documents.n_items();
    let mut all = vec![0.0; queries.len() * n_documents];
    stream::scores(request, queries.clone(), |items, scores| {
        check_numbers(scores, queries.start, items, false)?;
        let rows = all.chunks_exact_mut(n_documents).zip(scores.chunks_exact(items.len()));
        rows.for_each(|(row, scores)| {
            items.iter().zip(scores).for_each(|(document, &score)| row[document] = score);
        });
        Ok(())
    })?;
    Ok(all)
}

/// Agreement of one query.
struct Query {
    score_errors: f64,
    max_score_error: f64,
    n_scores: usize,
    spearman: Option<f64>,
    overlap: Option<f64>,
    rankings: [Ranking; 2],
}

impl Query {
    /// Compares the scores of all documents before and after.
    fn new(before: &[f32], after: &[f32], documents: &TokenLayout) -> Query {
        let ranking = |scores: &[f32]| {
            let mut best = TopK::new(TOP.max(metrics::DEPTH));
            for (id, &score) in (0u32..).zip(scores) {
                best.push(Ranked { id, score, has_tokens: documents.has_tokens(id as usize) });
            }
            best.into_ranking()
        };
        let with_tokens = |scores: &[f32]| -> Vec<f32> {
            let pairs = scores.iter().enumerate();
            pairs.filter(|(id, _)| documents.has_tokens(*id)).map(|(_, &score)| score).collect()
        };
        let rankings = [ranking(before), ranking(after)];
        let (before, after) = (with_tokens(before), with_tokens(after));
        let errors = before.iter().zip(&after).map(|(&b, &a)| (f64::from(b) - f64::from(a)).abs());
        let (score_errors, max_score_error) =
            errors.fold((0.0, 0.0), |(sum, max): (f64, f64), error| (sum + error, max.max(error)));
        Query {
            score_errors,
            max_score_error,
            n_scores: before.len(),
            spearman: spearman(&before, &after),
            overlap: overlap(&rankings),
            rankings,
        }
    }
}

fn summary(found: Vec<Query>, n_queries: usize, qrels: Option<&Qrels>) -> Agreement {
    let mean = |values: Vec<f64>| {
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let spearmans: Vec<f64> = found.iter().filter_map(|query| query.spearman).collect();
    let overlaps = found.iter().filter_map(|query| query.overlap).collect();
    let n_scores: usize = found.iter().map(|query| query.n_scores).sum();
    let errors: f64 = found.iter().map(|query| query.score_errors).sum();
    let max_score_error = found.iter().map(|query| query.max_score_error).fold(0.0, f64::max);
    let least_spearman = spearmans.iter().copied().reduce(f64::min);
    let (before, after): (Vec<Ranking>, Vec<Ranking>) =
        found.into_iter().map(|query| query.rankings.into()).unzip();
    let ndcg = |rankings: &[Ranking]| Metrics::new(rankings, qrels?).ndcg;
    Agreement {
        n_queries,
        mean_score_error: errors / n_scores.max(1) as f64,
        max_score_error,
        spearman: mean(spearmans),
        least_spearman,
        top20_overlap: mean(overlaps),
        ndcg_before: ndcg(&before),
        ndcg_after: ndcg(&after),
    }
}

/// Share of the first [`TOP`] documents with tokens that both rankings have.
fn overlap([before, after]: &[Ranking; 2]) -> Option<f64> {
    let top = |ranking: &Ranking| -> Vec<u32> {
        let with_tokens = ranking.ranked.iter().filter(|ranked| ranked.has_tokens);
        with_tokens.take(TOP).map(|ranked| ranked.id).collect()
    };
    let (before, after) = (top(before), top(after));
    let n_both = before.iter().filter(|id| after.contains(id)).count();
    (!before.is_empty()).then(|| n_both as f64 / before.len() as f64)
}

/// Spearman's ρ; `None` where either side has all values equal.
fn spearman(a: &[f32], b: &[f32]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let sum = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(x, y)| (x - mean) * (y - mean)).sum()
    };
    let variances = sum(&a, &a) * sum(&b, &b);
    (variances > 0.0).then(|| sum(&a, &b) / variances.sqrt())
}

/// The rank of each value from 0, equal ones sharing the mean.
fn ranks(values: &[f32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|&i, &j| values[i].total_cmp(&values[j]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for equal in order.chunk_by(|&i, &j| values[i] == values[j]) {
        let rank = start as f64 + (equal.len() as f64 - 1.0) / 2.0;
        equal.iter().for_each(|&i| ranks[i] = rank);
        start += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_equal_values_are_shared() {
        assert_eq!(ranks(&[3.0, 1.0, 2.0, 1.0]), [3.0, 0.5, 2.0, 0.5]);
        // +0 equals -0, wherever they come.
        assert_eq!(ranks(&[0.0, -1.0, -0.0]), [1.5, 0.0, 1.5]);
        assert!(ranks(&[]).is_empty());
    }

    #[test]
    fn spearmans_correlation() {
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[10.0, 20.0, 21.0]), Some(1.0));
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        assert_eq!(spearman(&[1.0, 2.0], &[5.0, 5.0]), None);
        assert_eq!(spearman(&[], &[]), None);
        // 1 − 6 · Σ d² / (n · (n² − 1)), without ties: d = 1, 1, 0, 0.
        let found = spearman(&[1.0, 2.0, 3.0, 4.0], &[2.0, 1.0, 3.0, 4.0]).unwrap();
        assert!((found - 0.8).abs() < 1e-12, "{found}");
    }
}
