//! From maxima and thresholds to scores.

use crate::error::Result;
use crate::problem::Problem;
use crate::problem::scores::Scores;
use crate::problem::xtr::Normalizer;
use crate::runtime::alloc::{filled, reserve};
use crate::tokens::layout::TokenLayout;

/// The least divisor of [`Normalizer::PylateCompatible`].
const LEAST_DIVISOR: f64 = 1e-3;

/// Whether a maximum is of a token that was retrieved: NaN shows.
pub(super) fn is_retrieved(maximum: f32, threshold: f32) -> bool {
    maximum.is_nan() || maximum >= threshold
}

/// Where the thresholds of each query's tokens begin.
pub(super) fn first_thresholds(queries: &TokenLayout) -> Result<Vec<usize>> {
    let mut first = Vec::new();
    reserve(&mut first, queries.n_items())?;
    let mut next = 0;
    for query in 0..queries.n_items() {
        first.push(next);
        next += queries.item_len(query);
    }
    Ok(first)
}

/// Replaces scores by XTR scores, and winners that were not retrieved by −1; takes the maxima.
/// Returns what sums were divided by. `masks` are those of queries and documents; `minima` finds
/// the least similarities, where [`Normalizer::PylateCompatible`] needs them.
pub(super) fn reduce(
    problem: &Problem<'_>,
    scores: &mut Scores,
    thresholds: &[f32],
    normalizer: Normalizer,
    masks: [Option<&[u8]>; 2],
    minima: impl FnOnce() -> Result<Vec<f32>>,
) -> Result<Vec<f32>> {
    let maxima = scores.token_scores.take().unwrap_or_default();
    let winners = scores.winners.as_deref_mut().unwrap_or_default();
    let (queries, documents) = (problem.queries(), problem.documents());
    let offsets = problem.token_offsets();
    let first = first_thresholds(queries)?;
    let [valid_queries, valid_documents] =
        [n_valid(queries, masks[0])?, n_valid(documents, masks[1])?];
    let is_compatible = normalizer == Normalizer::PylateCompatible;
    let longest = documents.max_len();
    let is_negative = |maximum: &f32| *maximum < 0.0;
    let minima = match is_compatible && maxima.iter().any(is_negative) {
        true => minima()?,
        false => Vec::new(),
    };
    let mut divisors = filled(scores.values.len() as u64, 0.0f32)?;
    for (p, (value, divided_by)) in scores.values.iter_mut().zip(&mut divisors).enumerate() {
        let (query, document) = problem.pair(p);
        let thresholds = &thresholds[first[query]..][..queries.item_len(query)];
        let is_whole = is_compatible && valid_documents[document] == longest;
        let (mut sum, mut n_retrieved, mut n_positive) = (0.0f64, 0usize, 0usize);
        for (entry, &threshold) in offsets.range(p).zip(thresholds) {
            let maximum = maxima[entry];
            let mut counts = winners[entry] >= 0 && is_retrieved(maximum, threshold);
            if is_compatible && is_negative(&maximum) {
                counts &= is_whole && minima[entry] >= threshold;
            }
            if counts {
                sum += f64::from(maximum);
                n_retrieved += 1;
                n_positive += usize::from(maximum > 0.0);
            } else {
                winners[entry] = -1;
            }
        }
        let divisor = match normalizer {
            Normalizer::Retrieved => n_retrieved.max(1) as f64,
            Normalizer::QueryTokens => valid_queries[query].max(1) as f64,
            Normalizer::None => 1.0,
            Normalizer::PylateCompatible => (n_positive as f64).max(LEAST_DIVISOR),
        };
        (*value, *divided_by) = ((sum / divisor) as f32, divisor as f32);
    }
    Ok(divisors)
}

/// The valid tokens of each item.
fn n_valid(layout: &TokenLayout, mask: Option<&[u8]>) -> Result<Vec<usize>> {
    let mut counts = Vec::new();
    reserve(&mut counts, layout.n_items())?;
    counts.extend((0..layout.n_items()).map(|item| layout.n_valid(item, mask)));
    Ok(counts)
}
