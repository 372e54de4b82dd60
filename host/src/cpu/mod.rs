//! The CPU engine.

use crate::element::Element;
use crate::error::Result;
use crate::problem::Problem;
use crate::scores::{ScoreOptions, Scores};

/// A token matrix in host memory; its layout is the problem's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    pub data: &'a [T],
    pub mask: Option<&'a [u8]>,
}

/// Threads that the engine uses.
pub(crate) fn n_threads() -> usize {
    rayon::current_num_threads()
}

/// Scores a problem.
pub(crate) fn score<T: Element>(
    problem: &Problem<'_>,
    queries: Matrix<'_, T>,
    documents: Matrix<'_, T>,
    options: &ScoreOptions,
) -> Result<Scores> {
    let mut scores = Scores::new(problem, options)?;
    let dim = problem.dim();
    let valid = |m: &Matrix<'_, T>, row: usize| m.mask.is_none_or(|mask| mask[row] != 0);
    for p in 0..problem.shape().n_scores() {
        let (q, d) = problem.pair(p);
        if !problem.documents().has_tokens(d) {
            continue;
        }
        let mut sum = 0.0f32;
        let first_token = scores.token_offsets.as_ref().map_or(0, |o| o.range(p).start);
        for (s, row) in problem.queries().item_rows(q).enumerate() {
            if !valid(&queries, row) {
                continue;
            }
            let (mut best, mut winner) = (f32::NEG_INFINITY, -1i32);
            for (t, token) in problem.documents().item_rows(d).enumerate() {
                if !valid(&documents, token) {
                    continue;
                }
                let dot: f32 = (0..dim)
                    .map(|k| {
                        queries.data[row * dim + k].to_f32()
                            * documents.data[token * dim + k].to_f32()
                    })
                    .sum();
                if winner < 0 || dot > best || (dot.is_nan() && !best.is_nan()) {
                    (best, winner) = (dot, t as i32);
                }
            }
            sum += best;
            if let Some(winners) = &mut scores.winners {
                winners[first_token + s] = winner;
            }
            if let Some(token_scores) = &mut scores.token_scores {
                token_scores[first_token + s] = best;
            }
        }
        scores.values[p] = sum;
    }
    Ok(scores)
}
