//! Rescoring: the INT8 engine finds the winners, their rows are multiplied in f32.
//!
//! A task is some scores that follow each other, mostly of one query, whose rows are widened once.
//! A similarity is 16 sums of every 16th product, added as a tree, whatever the pairing; token
//! scores are added as by the engine that takes full-precision tokens, in f64.

use rayon::iter::IntoParallelIterator;

use super::score;
use super::tokens::Matrix;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::scores::Scores;
use crate::problem::shape::TokenOffsets;
use crate::runtime::alloc::fill;
use crate::runtime::alloc::filled;
use crate::runtime::pool::Parallel;
use crate::tokens::element::Element;
use crate::tokens::format::Int8;
use crate::tokens::format::widen;

/// Scores of a task.
const TASK_LEN: usize = 64;

/// Sums of a similarity.
const SUMS: usize = 16;

/// Scores a problem whose winners the codes find, with the caller's `options`.
pub(crate) fn rescore<T: Element>(
    problem: &Problem<'_>,
    codes: [Matrix<'_, Int8>; 2],
    tokens: [Matrix<'_, T>; 2],
    options: &ScoreOptions,
) -> Result<Scores> {
    let coarse = ScoreOptions { winners: true, token_scores: false, ..options.clone() };
    let mut scores = score(problem, codes[0], codes[1], &coarse)?;
    scores.rescored = true;
    let winners = scores.winners.take().unwrap_or_default();
    let offsets = problem.token_offsets();
    let mut token_scores =
        options.token_scores.then(|| filled(offsets.total(), 0.0f32)).transpose()?;
    let mut tasks = Vec::new();
    let mut rest = token_scores.as_deref_mut();
    for (i, values) in scores.values.chunks_mut(TASK_LEN).enumerate() {
        let first = i * TASK_LEN;
        let last = first + values.len() - 1;
        let n_tokens = offsets.range(last).end - offsets.range(first).start;
        let (task, others) = match rest {
            Some(rest) => {
                let (task, others) = rest.split_at_mut(n_tokens);
                (Some(task), Some(others))
            }
            None => (None, None),
        };
        rest = others;
        tasks.push(Task { first, values, token_scores: task });
    }
    let call = Call { problem, tokens, winners: &winners, offsets: &offsets };
    let n_elements = winners.len().saturating_mul(problem.dim());
    Parallel::new().over(n_elements).try_for_each_with(
        tasks.into_par_iter(),
        Rows::default,
        |rows, task| call.run(task, rows),
    )?;
    scores.token_scores = token_scores;
    if options.winners {
        scores.winners = Some(winners);
    }
    if !options.winners && !options.token_scores {
        scores.token_offsets = None;
    }
    Ok(scores)
}

/// Inputs that all tasks of a call share.
struct Call<'a, T: Element> {
    problem: &'a Problem<'a>,
    tokens: [Matrix<'a, T>; 2],
    winners: &'a [i32],
    offsets: &'a TokenOffsets,
}

/// Scores that follow each other, and where they go.
struct Task<'a> {
    first: usize,
    values: &'a mut [f32],
    token_scores: Option<&'a mut [f32]>,
}

/// Rows in f32.
#[derive(Default)]
struct Rows {
    query: Vec<f32>,
    document: Vec<f32>,
}

impl<T: Element> Call<'_, T> {
    fn run(&self, task: Task<'_>, rows: &mut Rows) -> Result<()> {
        let Task { first, values, mut token_scores } = task;
        let dim = self.problem.dim();
        let [queries, documents] = self.tokens;
        let start = self.offsets.range(first).start;
        let mut widened = usize::MAX;
        fill(&mut rows.document, dim, 0.0)?;
        for (p, value) in (first..).zip(values) {
            let (q, d) = self.problem.pair(p);
            let (query, document) =
                (self.problem.queries().item_rows(q), self.problem.documents().item_rows(d));
            if q != widened {
                fill(&mut rows.query, query.len() * dim, 0.0)?;
                widen::<T>(&queries.data[query.start * dim..query.end * dim], &mut rows.query);
                widened = q;
            }
            let mut sum = 0.0;
            let places = self.offsets.range(p);
            for (at, query) in places.zip(rows.query.chunks_exact(dim)) {
                // A negative winner means that there is none.
                let Ok(winner) = usize::try_from(self.winners[at]) else { continue };
                let row = document.start + winner;
                widen::<T>(&documents.data[row * dim..][..dim], &mut rows.document);
                let similarity = dot(query, &rows.document);
                sum += f64::from(similarity);
                if let Some(token_scores) = &mut token_scores {
                    token_scores[at - start] = similarity;
                }
            }
            *value = sum as f32;
        }
        Ok(())
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; SUMS];
    let (a, b) = (a.chunks(SUMS), b.chunks(SUMS));
    for (a, b) in a.zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let mut n = SUMS / 2;
    while n > 0 {
        for i in 0..n {
            sums[i] += sums[i + n];
        }
        n /= 2;
    }
    sums[0]
}
