//! Thresholds of XTR: the k-th largest similarity of each query token over the tokens of many
//! documents.
//!
//! Of every query token the largest k similarities so far are kept, and as many more before the
//! smaller half is forgotten: what there is to look at is above a floor that rises quickly. Blocks
//! of query tokens and runs of documents are shared among the threads. What each has kept is put
//! together in any order: the k-th largest of a set of numbers does not depend on one.

use std::ops::Range;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::slice::ParallelSlice;

use super::panels::QueryToken;
use super::score::Call;
use super::scratch::{Scratch, TileScratch};
use super::tokens::Matrix;
use super::{BLOCK_LEN, with_call};
use crate::error::Result;
use crate::linalg::gemm::{LANES, PANEL_LEN};
use crate::problem::Problem;
use crate::problem::xtr::Pool;
use crate::runtime::alloc::{filled, reserve};
use crate::runtime::interrupt::{Heeded, Interrupt};
use crate::runtime::pool::Parallel;
use crate::tokens::format::Format;

/// Document tokens that a thread looks at before it hands on what it has kept, at least.
const RUN_TOKENS: usize = 4096;

/// The thresholds of all query tokens, those of a query after those of the one before: the `k`-th
/// largest similarity to a token of its pool, −∞ where there are fewer than `k` (NaN is none of
/// them) and of masked tokens.
///
/// Takes about 16 · `k` bytes at most for each of 256 query tokens a thread, whatever the sizes.
pub(crate) fn thresholds<Q: Format, D: Format>(
    problem: &Problem<'_>,
    queries: Matrix<'_, Q>,
    documents: Matrix<'_, D>,
    normalize: bool,
    (pools, k): (&[Pool], usize),
) -> Result<Vec<f32>> {
    let parallel = Parallel::new();
    with_call(problem, queries, documents, (normalize, parallel), |call| {
        let mut found = filled(problem.queries().total_len(), f32::NEG_INFINITY)?;
        let mut rest = &mut found[..];
        for pool in pools {
            let n_tokens = pool.queries.clone().map(|q| problem.queries().item_len(q)).sum();
            let (of_pool, others) = rest.split_at_mut(n_tokens);
            rest = others;
            let runs = runs(&call, &pool.documents)?;
            let n_valid: usize = runs.iter().map(|run| run.n_valid).sum();
            if k <= n_valid {
                let search = Search { call: &call, pool, runs: &runs, k, parallel };
                search.find(of_pool, &Interrupt::current())?;
            }
        }
        Ok(found)
    })
}

/// Consecutive documents of a pool.
struct Run {
    documents: Range<usize>,
    n_valid: usize,
}

/// Cuts the documents of a pool into runs.
fn runs<Q: Format, D: Format>(call: &Call<'_, Q, D>, documents: &[u32]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    let (mut start, mut n_valid) = (0, 0);
    for (i, &document) in documents.iter().enumerate() {
        n_valid += call.problem.documents().n_valid(document as usize, call.documents.mask);
        if n_valid >= RUN_TOKENS || i + 1 == documents.len() {
            reserve(&mut runs, 1)?;
            runs.push(Run { documents: start..i + 1, n_valid });
            (start, n_valid) = (i + 1, 0);
        }
    }
    Ok(runs)
}

/// The search for the thresholds of one pool.
struct Search<'a, Q: Format, D: Format> {
    call: &'a Call<'a, Q, D>,
    pool: &'a Pool,
    runs: &'a [Run],
    k: usize,
    parallel: Parallel,
}

impl<Q: Format, D: Format> Search<'_, Q, D> {
    /// Writes the thresholds of the pool's valid query tokens to `found`.
    fn find(&self, found: &mut [f32], interrupt: &Heeded) -> Result<()> {
        let mut tokens = Vec::new();
        let mut places = Vec::new();
        reserve(&mut tokens, found.len())?;
        reserve(&mut places, found.len())?;
        let mut first = 0;
        for query in self.pool.queries.clone() {
            for token in self.call.valid_tokens(query, query) {
                tokens.push(token);
                places.push(first + token.token);
            }
            first += self.call.problem.queries().item_len(query);
        }
        let blocks: Vec<Vec<f32>> = self.parallel.share(|min_len| {
            let blocks = tokens.par_chunks(BLOCK_LEN).with_min_len(min_len);
            blocks.map(|tokens| self.of_block(tokens, interrupt)).collect::<Result<_>>()
        })?;
        for (place, threshold) in places.into_iter().zip(blocks.into_iter().flatten()) {
            found[place] = threshold;
        }
        Ok(())
    }

    /// The thresholds of at most [`BLOCK_LEN`] query tokens.
    fn of_block(&self, tokens: &[QueryToken], interrupt: &Heeded) -> Result<Vec<f32>> {
        let mut scratch = Scratch::new();
        self.call.pack_block(&mut tokens.iter().copied(), &mut scratch)?;
        let panels = &scratch.panels[..scratch.n_panels];
        let kept = self.parallel.share(|min_len| {
            let runs = self.runs.par_iter().with_min_len(min_len);
            let kept = runs.try_fold(
                || Kept::new(tokens.len(), self.k),
                |mut kept, run| {
                    interrupt.check()?;
                    let Kept { tile, largest } = &mut kept;
                    let documents = &self.pool.documents[run.documents.clone()];
                    let documents = documents.iter().map(|&document| document as usize);
                    self.call.pass(panels, documents, tile, |i, _, similarities| {
                        let width = panels[i].width;
                        largest.take_in(i * PANEL_LEN, similarities, width)
                    })?;
                    Ok(kept)
                },
            );
            kept.try_reduce(|| Kept::new(0, self.k), |a, b| a.merged(b))
        })?;
        let thresholds = kept.largest.thresholds().zip(tokens).map(|(found, token)| {
            let threshold = found.map(|x| x * self.call.row_scales.query(token.row));
            // A normalised row with an infinity has products that are infinite, and no similarity
            // that is a number.
            threshold.filter(|x| !x.is_nan()).unwrap_or(f32::NEG_INFINITY)
        });
        Ok(thresholds.collect())
    }
}

/// What a thread has kept.
struct Kept {
    tile: TileScratch,
    largest: Largest,
}

impl Kept {
    fn new(n_tokens: usize, k: usize) -> Kept {
        Kept { tile: TileScratch::default(), largest: Largest::new(n_tokens, k) }
    }

    fn merged(mut self, mut other: Kept) -> Result<Kept> {
        if self.largest.kept.len() < other.largest.kept.len() {
            std::mem::swap(&mut self, &mut other);
        }
        for (column, values) in other.largest.kept.into_iter().enumerate() {
            for value in values {
                self.largest.push(column, value)?;
            }
        }
        Ok(self)
    }
}

/// The largest `k` numbers of each column, and up to as many others.
struct Largest {
    k: usize,
    kept: Vec<Vec<f32>>,
    /// Only numbers above it matter; ∞ of columns that there are none of, up to a whole register.
    floors: Vec<f32>,
}

impl Largest {
    fn new(n_columns: usize, k: usize) -> Largest {
        let mut floors = vec![f32::NEG_INFINITY; n_columns];
        floors.resize(n_columns.next_multiple_of(LANES), f32::INFINITY);
        Largest { k, kept: vec![Vec::new(); n_columns], floors }
    }

    /// Takes rows of `width` numbers into account, of the columns from `first` on.
    fn take_in(&mut self, first: usize, rows: &[f32], width: usize) -> Result<()> {
        for row in rows.chunks_exact(width) {
            for (start, values) in (first..).step_by(LANES).zip(row.chunks_exact(LANES)) {
                let floors = &self.floors[start..start + LANES];
                // NaN is above nothing.
                let above = values.iter().zip(floors).map(|(value, floor)| value > floor);
                if above.fold(false, |any, is_above| any | is_above) {
                    for (column, &value) in (start..).zip(values) {
                        self.push(column, value)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, column: usize, value: f32) -> Result<()> {
        if value.is_nan() || value <= self.floors[column] {
            return Ok(());
        }
        let kept = &mut self.kept[column];
        reserve(kept, 1)?;
        kept.push(value);
        if kept.len() == self.k.saturating_mul(2) {
            self.floors[column] = *nth_largest(kept, self.k);
            kept.truncate(self.k);
        }
        Ok(())
    }

    /// The `k`-th largest number of each column, where it has so many.
    fn thresholds(self) -> impl Iterator<Item = Option<f32>> {
        let of = move |mut kept: Vec<f32>| {
            (kept.len() >= self.k).then(|| *nth_largest(&mut kept, self.k))
        };
        self.kept.into_iter().map(of)
    }
}

/// The `k`-th largest of numbers without NaN, of which there are as many; larger ones come to lie
/// before it, smaller ones behind it.
fn nth_largest(values: &mut [f32], k: usize) -> &f32 {
    values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}
