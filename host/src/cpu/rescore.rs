//! Rescoring: the INT8 engine finds the winners, their rows are multiplied in f32.
//!
//! A task is some scores that follow each other, mostly of one query, whose rows are widened once.
//! A similarity is 16 sums of every 16th product, added as a tree, whatever the pairing and the
//! CPU's registers; token scores are added as by the engine that takes full-precision tokens, in
//! f64.

use std::ops::Add;

use pulp::{Arch, Simd, WithSimd};
use rayon::iter::IntoParallelIterator;

use super::score;
use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::kernels::{Kernels, dispatch};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::scores::Scores;
use crate::problem::shape::TokenOffsets;
use crate::runtime::alloc::fill;
use crate::runtime::alloc::filled;
use crate::runtime::fetch::fetch;
use crate::runtime::pool::Parallel;
use crate::tokens::element::{Element, LANES, widen_lanes};
use crate::tokens::format::Int8;
use crate::tokens::format::widen;

/// Scores of a task.
const TASK_LEN: usize = 64;

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
    let arch = Kernels::get()?.arch;
    let call = Call { problem, tokens, winners: &winners, offsets: &offsets, arch };
    let n_elements = winners.len().saturating_mul(problem.dim());
    Parallel::new().over(n_elements).try_for_each_with(
        tasks.into_par_iter(),
        Room::default,
        |room, task| call.run(task, room),
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
    /// The instructions that the engine may use, looked up once.
    arch: Arch,
}

/// Scores that follow each other, and where they go.
struct Task<'a> {
    first: usize,
    values: &'a mut [f32],
    token_scores: Option<&'a mut [f32]>,
}

/// Room for a task.
#[derive(Default)]
struct Room {
    /// Rows of a query in f32.
    query: Vec<f32>,
    /// Similarities of a pair.
    similarities: Vec<f32>,
}

impl<T: Element> Call<'_, T> {
    fn run(&self, task: Task<'_>, room: &mut Room) -> Result<()> {
        let Task { first, values, mut token_scores } = task;
        let dim = self.problem.dim();
        let [queries, documents] = self.tokens;
        let start = self.offsets.range(first).start;
        let mut widened = usize::MAX;
        for (p, value) in (first..).zip(values) {
            let (q, d) = self.problem.pair(p);
            let (query, document) =
                (self.problem.queries().item_rows(q), self.problem.documents().item_rows(d));
            if q != widened {
                fill(&mut room.query, query.len() * dim, 0.0)?;
                widen::<T>(&queries.data[query.start * dim..query.end * dim], &mut room.query);
                fill(&mut room.similarities, query.len(), 0.0)?;
                widened = q;
            }
            let places = self.offsets.range(p);
            dispatch(
                self.arch,
                Similarities {
                    dim,
                    query: &room.query,
                    document: &documents.data[document.start * dim..document.end * dim],
                    winners: &self.winners[places.clone()],
                    similarities: &mut room.similarities,
                },
            );
            *value = room.similarities.iter().map(|&x| f64::from(x)).fold(0.0, f64::add) as f32;
            if let Some(token_scores) = &mut token_scores {
                token_scores[places.start - start..places.end - start]
                    .copy_from_slice(&room.similarities);
            }
        }
        Ok(())
    }
}

/// The winners' similarities of one pair, compiled for the widest registers that the CPU has.
struct Similarities<'a, T> {
    dim: usize,
    query: &'a [f32],
    document: &'a [T],
    /// Tokens of the document; negative where there is none.
    winners: &'a [i32],
    /// 0 where there is no winner.
    similarities: &'a mut [f32],
}

impl<T: Element> WithSimd for Similarities<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Similarities { dim, query, document, winners, similarities } = self;
        let row = |winner: i32| Some(&document[usize::try_from(winner).ok()? * dim..][..dim]);
        fetch(winners.iter().filter_map(|&winner| row(winner)));
        let queries = query.chunks_exact(dim).zip(winners);
        for (similarity, (query, &winner)) in similarities.iter_mut().zip(queries) {
            *similarity = row(winner).map_or(0.0, |row| dot(simd, query, row));
        }
    }
}

/// The product of two rows: 16 sums of every 16th product, each rounded, added as a tree.
#[inline(always)]
fn dot<S: Simd, T: Element>(simd: S, query: &[f32], row: &[T]) -> f32 {
    let ((query, query_rest), (row, row_rest)) =
        (query.as_chunks::<LANES>(), row.as_chunks::<LANES>());
    // As many registers as hold 16 numbers.
    let n = LANES / S::F32_LANES;
    let mut registers = [simd.splat_f32s(0.0); LANES];
    for (query, row) in query.iter().zip(row) {
        let row = widen_lanes(row);
        let (query, row) = (S::as_simd_f32s(query).0, S::as_simd_f32s(&row).0);
        for ((sum, &a), &b) in registers[..n].iter_mut().zip(query).zip(row) {
            *sum = simd.add_f32s(*sum, simd.mul_f32s(a, b));
        }
    }
    let mut sums = [0.0f32; LANES];
    S::as_mut_simd_f32s(&mut sums).0.copy_from_slice(&registers[..n]);
    for ((sum, a), b) in sums.iter_mut().zip(query_rest).zip(row_rest) {
        *sum += a * b.to_f32();
    }
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            sums[i] += sums[i + n];
        }
        n /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::linalg::kernels::InstructionSet;

    const DOCUMENT_LEN: usize = 5;
    const WINNERS: [i32; 4] = [4, -1, 0, 2];

    /// Numbers whose products need rounding.
    fn values(n: usize, seed: usize) -> Vec<f32> {
        (seed..seed + n).map(|i| (i * 2_654_435_761 % 1009) as f32 / 761.0 - 0.6).collect()
    }

    /// The product of two rows as the module's documentation has it.
    fn expected(query: &[f32], row: &[f32]) -> f32 {
        let mut sums = [0.0f32; 16];
        for (k, (a, b)) in query.iter().zip(row).enumerate() {
            sums[k % 16] += a * b;
        }
        for n in [8, 4, 2, 1] {
            (0..n).for_each(|i| sums[i] += sums[i + n]);
        }
        sums[0]
    }

    fn check<T: Element>(dim: usize) {
        let query = values(WINNERS.len() * dim, 31);
        let document: Vec<T> = values(DOCUMENT_LEN * dim, 7).into_iter().map(T::from_f32).collect();
        let rows: Vec<f32> = document.iter().map(|x| x.to_f32()).collect();
        let expected = WINNERS.iter().zip(query.chunks_exact(dim)).map(|(&winner, query)| {
            let row = usize::try_from(winner).ok().map(|winner| &rows[winner * dim..][..dim]);
            row.map_or(0.0, |row| expected(query, row)).to_bits()
        });
        let expected: Vec<u32> = expected.collect();
        for arch in InstructionSet::available().map(InstructionSet::arch) {
            let mut found = vec![f32::NAN; WINNERS.len()];
            dispatch(
                arch,
                Similarities {
                    dim,
                    query: &query,
                    document: &document,
                    winners: &WINNERS,
                    similarities: &mut found,
                },
            );
            let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
            assert_eq!(found, expected, "{arch:?}, {} of dim {dim}", T::TYPE);
        }
    }

    #[test]
    fn similarities_have_the_same_bits_on_every_instruction_set() {
        for dim in [1, 2, 15, 16, 17, 31, 32, 33, 128, 130, 1000] {
            check::<f32>(dim);
            check::<f16>(dim);
            check::<bf16>(dim);
        }
    }
}
