//! Gradients of scores with respect to tokens, from the winners.
//!
//! With g the gradient of a score, every winner of its pair (query row q, document row d) adds
//!
//! ```text
//! ∂Q[q] += g · D[d]            ∂D[d] += g · Q[q]
//! ```
//!
//! Both sides are the same sum, from the other side's rows. Rows of codes are read as scale · code,
//! rounded to f32; residuals are decoded. The rows of a side fall into *runs* that no item crosses:
//! a run is an item, or several that overlap ([`Runs`]). The winners of a run's pairs are sorted by
//! the gradient row they add to ([`Buckets`]), a bounded number at a time, and each row is then
//! summed by one thread.
//!
//! Where rows are normalised, g is multiplied by the source row's factor, and what comes of it is
//! the gradient with respect to the normalised row; [`add_projected`] makes it that of the row.
//! Weights of query rows multiply g for the documents, and the sum for the queries: so that sum,
//! times the row, is the gradient of the weight, which may be 0.
//! Rows too long for f32 are read times a power of two ([`scaled_rows`]), and so is their gradient.
//!
//! [`scaled_rows`]: crate::tokens::scaled_rows
//!
//! Sources are added in the order of the scores, and within a score of the query's tokens; the sum
//! so far stays in the gradient itself, in f32. So no bit depends on the number of threads or on
//! how many winners are sorted at a time, and nothing is atomic.

use rayon::iter::{
    IndexedParallelIterator, IntoParallelIterator, IntoParallelRefIterator,
    IntoParallelRefMutIterator, ParallelIterator,
};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::norms::Norms;
use super::tokens::Matrix;
use crate::error::Result;
use crate::linalg::normalize::add_projected;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::runs::Runs;
use crate::problem::shape::TokenOffsets;
use crate::residual::HostResiduals;
use crate::runtime::alloc::fill;
use crate::runtime::interrupt::{Heeded, Interrupt};
use crate::runtime::pool::Parallel;
use crate::tokens::format::Format;
use crate::tokens::format::widen;
use crate::tokens::layout::TokenLayout;

/// Winners of a run that are sorted at a time, at least (more where the run has more rows, or
/// one query more tokens): 1 MB of [`Source`]s a thread, enough that a pass over the run's rows
/// is little beside the sums.
const SORTED_LEN: usize = 1 << 17;

/// Columns of a gradient row that are summed together: the f32 form of so many elements of a
/// source row stays in registers or the first-level cache.
const COLUMNS: usize = 128;

/// The side that a gradient is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Queries = 0,
    Documents = 1,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Queries => Side::Documents,
            Side::Documents => Side::Queries,
        }
    }
}

/// A contribution of a winner to a gradient row.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    /// Gradient of the pair's score, times r of the source row where rows are normalised.
    factor: f32,
    /// Row of the other side's matrix.
    row: u32,
}

/// Adds the gradients of a problem to what `gradients` hold: of the queries, of the documents,
/// each `[rows, dim]` of its matrix, and of the queries' weights, one per row; or empty where they
/// are not wanted, the weights' where the queries' are not. `winners` must be the problem's,
/// `grad_scores` one number per score. Where rows are normalised or have weights, the sums of a
/// side take another 4 bytes per element for a while. Of `options`, those are heeded that say what
/// scores are: `normalize` and `angular`.
pub(crate) fn add_gradients<Q: Format, D: Format>(
    problem: &Problem<'_>,
    queries: Matrix<'_, Q>,
    documents: Matrix<'_, D>,
    winners: &[i32],
    grad_scores: &[f32],
    gradients: [&mut [f32]; 3],
    options: &ScoreOptions,
) -> Result<()> {
    let normalize = options.normalize;
    let token_offsets = problem.token_offsets();
    let parallel = Parallel::new();
    let scaled = (
        queries.scaled_rows(normalize, problem.dim())?,
        documents.scaled_rows(normalize, problem.dim())?,
    );
    let (queries, documents) = (queries.with_rows(&scaled.0), documents.with_rows(&scaled.1));
    let factors = (scaled.0.as_ref(), scaled.1.as_ref());
    let factors =
        (factors.0.map(|rows| &rows.factors[..]), factors.1.map(|rows| &rows.factors[..]));
    let norms = normalize.then(|| Norms::new(queries, documents, problem.dim(), parallel));
    let norms = norms.transpose()?;
    let norms = norms.as_ref();
    let token_offsets = &token_offsets;
    let interrupt = &Interrupt::current();
    let weights = queries.weights;
    let call = Call {
        problem,
        token_offsets,
        winners,
        grad_scores,
        norms,
        angular: options.angular,
        weights,
        parallel,
        interrupt,
    };
    let [of_queries, of_documents, of_weights] = gradients;
    if !of_queries.is_empty() {
        let to = (of_queries, of_weights);
        call.add_side(Side::Queries, (queries, factors.0), documents, to)?;
    }
    if !of_documents.is_empty() {
        let to = (of_documents, &mut [][..]);
        call.add_side(Side::Documents, (documents, factors.1), queries, to)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Call<'a> {
    problem: &'a Problem<'a>,
    token_offsets: &'a TokenOffsets,
    winners: &'a [i32],
    grad_scores: &'a [f32],
    norms: Option<&'a Norms>,
    /// Whether rows of zeros have no gradient.
    angular: bool,
    /// Weights of the queries' rows.
    weights: Option<&'a [f32]>,
    parallel: Parallel,
    interrupt: &'a Heeded,
}

impl Call<'_> {
    /// Adds the gradient of one side, whose matrix is `own`, and of its weights; `source` is the
    /// other side's matrix. `factors` are those of normalised rows, if rows are normalised.
    fn add_side<O: Format, S: Format>(
        &self,
        side: Side,
        (own, factors): (Matrix<'_, O>, Option<&[f32]>),
        source: Matrix<'_, S>,
        (gradient, of_weights): (&mut [f32], &mut [f32]),
    ) -> Result<()> {
        let norms = self.norms.map(|norms| norms.of(side as usize));
        if norms.is_none() && own.weights.is_none() {
            return self.add(side, source, gradient);
        }
        let dim = self.problem.dim();
        let mut sums = Vec::new();
        fill(&mut sums, gradient.len(), 0.0)?;
        self.add(side, source, &mut sums)?;
        let mut found = Vec::new();
        fill(&mut found, sums.len() / dim, 0.0)?;
        let rows = own.data.par_chunks(dim).zip(sums.par_chunks(dim)).zip(found.par_iter_mut());
        let rows = rows.zip(gradient.par_chunks_mut(dim)).enumerate();
        self.parallel.share(|min_len| {
            rows.with_min_len(min_len).for_each_init(
                || vec![0.0; dim],
                |row, (i, (((stored, sum), found), gradient))| {
                    widen::<O>(stored, row);
                    if self.angular && row.iter().all(|&x| x == 0.0) {
                        return;
                    }
                    let factor = factors.map_or(1.0, |factors| factors[i]);
                    let norm = norms.map(|norms| norms[i]);
                    match own.weights {
                        None => add_scaled(row, norm, sum, factor, gradient),
                        // No token chose the row, or it is masked: its weight may be anything.
                        Some(_) if sum.iter().all(|&s| s == 0.0) => {}
                        Some(weights) => {
                            *found = along(row, norm, sum);
                            add_scaled(row, norm, sum, factor * weights[i], gradient);
                        }
                    }
                },
            );
        });
        of_weights.iter_mut().zip(&found).for_each(|(gradient, found)| *gradient += found);
        Ok(())
    }

    /// Adds the gradient of one side; `source` is the other side's matrix.
    fn add<S: Format>(
        &self,
        side: Side,
        source: Matrix<'_, S>,
        gradient: &mut [f32],
    ) -> Result<()> {
        let runs = Runs::new(self.layout(side))?;
        let pairs = self.pairs_by_run(side, &runs)?;
        let parts = runs.parts(gradient, self.problem.dim())?;
        let parts = parts.into_par_iter().zip(runs.rows.par_iter()).enumerate();
        self.parallel.share(|min_len| {
            parts.with_min_len(min_len).try_for_each(|(run, (gradient, rows))| {
                self.add_run(side, rows.start, pairs.of(run), source, gradient)
            })
        })
    }

    /// Adds the gradient of the rows of one run, from `first_row` on.
    fn add_run<S: Format>(
        &self,
        side: Side,
        first_row: usize,
        mut pairs: &[u32],
        source: Matrix<'_, S>,
        gradient: &mut [f32],
    ) -> Result<()> {
        let dim = self.problem.dim();
        let n_rows = gradient.len() / dim;
        let mut sources = Buckets::default();
        while !pairs.is_empty() {
            self.interrupt.check()?;
            let (now, later) = pairs.split_at(self.n_sorted_together(pairs, n_rows));
            pairs = later;
            let winners = now.iter().flat_map(|&p| self.sources(side, p as usize));
            sources.sort(n_rows, winners.map(|(row, source)| (row - first_row, source)))?;
            let rows = gradient.par_chunks_mut(dim).enumerate();
            self.parallel.share(|min_len| {
                let rows = rows.with_min_len(min_len);
                match source.residuals {
                    None => rows.for_each(|(row, sum)| add_rows(sources.of(row), source, sum)),
                    Some(residuals) => rows.for_each_init(
                        || vec![0.0; dim],
                        |decoded, (row, sum)| add_decoded(sources.of(row), residuals, decoded, sum),
                    ),
                }
            });
        }
        Ok(())
    }

    /// How many of `pairs` have their winners sorted together: one at least.
    fn n_sorted_together(&self, pairs: &[u32], n_rows: usize) -> usize {
        let most = SORTED_LEN.max(n_rows);
        let mut n_winners = 0;
        let fits = |p: &&u32| {
            n_winners += self.token_offsets.range(**p as usize).len();
            n_winners <= most
        };
        pairs.iter().take_while(fits).count().max(1)
    }

    /// Lists the contributions of score `p`'s winners to the gradient of `side`, each with its
    /// gradient row.
    fn sources(&self, side: Side, p: usize) -> impl Iterator<Item = (usize, Source)> + Clone {
        let factor = self.grad_scores[p];
        let (q, d) = self.problem.pair(p);
        let first_query_row = self.problem.queries().item_rows(q).start;
        let first_document_row = self.problem.documents().item_rows(d).start;
        let winners = self.winners[self.token_offsets.range(p)].iter().enumerate();
        let norms = self.norms.map(|norms| norms.of(side.other() as usize));
        let weights = self.weights.filter(|_| side == Side::Documents);
        // Winners of other documents, which not every caller can exclude, may be past these.
        let document_len = self.problem.documents().item_len(d) as i32;
        let names_token = move |winner: i32| (0..document_len).contains(&winner);
        winners.filter(move |(_, winner)| names_token(**winner)).map(move |(s, &t)| {
            let rows = [first_query_row + s, first_document_row + t as usize];
            let row = rows[side.other() as usize];
            let factor = norms.map_or(factor, |norms| factor * norms[row]);
            let factor = weights.map_or(factor, |weights| factor * weights[row]);
            (rows[side as usize], Source { factor, row: row as u32 })
        })
    }

    /// Lists for each run the scores whose item of `side` lies in it, in order.
    fn pairs_by_run(&self, side: Side, runs: &Runs) -> Result<Buckets<u32>> {
        let item = |p: usize| {
            let (q, d) = self.problem.pair(p);
            [q, d][side as usize]
        };
        let layout = self.layout(side);
        let pairs = (0..self.grad_scores.len())
            .map(|p| (item(p), p as u32))
            .filter(|(item, _)| layout.item_len(*item) > 0)
            .map(|(item, p)| (runs.of_item[item] as usize, p));
        let mut buckets = Buckets::default();
        buckets.sort(runs.rows.len(), pairs)?;
        Ok(buckets)
    }

    fn layout(&self, side: Side) -> &TokenLayout {
        match side {
            Side::Queries => self.problem.queries(),
            Side::Documents => self.problem.documents(),
        }
    }
}

/// Adds `factor` times what [`add_projected`] would, or the sum where rows are not normalised.
fn add_scaled(row: &[f32], norm: Option<f32>, sum: &[f32], factor: f32, gradient: &mut [f32]) {
    let Some(norm) = norm else {
        return gradient.iter_mut().zip(sum).for_each(|(gradient, &s)| *gradient += factor * s);
    };
    if factor == 1.0 {
        return add_projected(row, norm, sum, gradient);
    }
    let mut of_scaled = vec![0.0; row.len()];
    add_projected(row, norm, sum, &mut of_scaled);
    gradient.iter_mut().zip(of_scaled).for_each(|(gradient, x)| *gradient += x * factor);
}

/// ⟨x̂, sum⟩, with x̂ the row, normalised where rows are: the gradient of its weight.
fn along(row: &[f32], norm: Option<f32>, sum: &[f32]) -> f32 {
    let norm = norm.unwrap_or(1.0);
    let terms = row.iter().zip(sum).map(|(&x, &s)| f64::from(norm * x) * f64::from(s));
    terms.sum::<f64>() as f32
}

/// Adds every source, in order, to the gradient row `sum`.
fn add_rows<S: Format>(sources: &[Source], matrix: Matrix<'_, S>, sum: &mut [f32]) {
    let dim = sum.len();
    for (block, sum) in sum.chunks_mut(COLUMNS).enumerate() {
        let mut buffer = [0.0; COLUMNS];
        let values = &mut buffer[..sum.len()];
        for source in sources {
            let start = source.row as usize * dim + block * COLUMNS;
            widen::<S>(&matrix.data[start..start + values.len()], values);
            if let Some(scales) = matrix.scales {
                let scale = scales.scale(source.row as usize);
                values.iter_mut().for_each(|x| *x *= scale);
            }
            for (sum, &x) in sum.iter_mut().zip(&*values) {
                *sum += source.factor * x;
            }
        }
    }
}

/// As [`add_rows`], of rows that are decoded into `row` first.
fn add_decoded(sources: &[Source], residuals: &HostResiduals, row: &mut [f32], sum: &mut [f32]) {
    for source in sources {
        residuals.decode(source.row as usize, row);
        sum.iter_mut().zip(&*row).for_each(|(sum, &x)| *sum += source.factor * x);
    }
}

/// Values by bucket, in the order they came in: a counting sort.
#[derive(Debug, Default)]
struct Buckets<V> {
    /// End of each bucket's values; a bucket starts at the end of the one before.
    ends: Vec<u32>,
    values: Vec<V>,
}

impl<V: Copy + Default> Buckets<V> {
    /// Sorts fewer than 2³² values, each with its bucket, which is below `n_buckets`.
    fn sort(
        &mut self,
        n_buckets: usize,
        values: impl Iterator<Item = (usize, V)> + Clone,
    ) -> Result<()> {
        fill(&mut self.ends, n_buckets, 0)?;
        values.clone().for_each(|(bucket, _)| self.ends[bucket] += 1);
        let mut total = 0;
        for end in &mut self.ends {
            // For now where the bucket starts: placing its values moves it to their end.
            (*end, total) = (total, total + *end);
        }
        fill(&mut self.values, total as usize, V::default())?;
        for (bucket, value) in values {
            let at = &mut self.ends[bucket];
            self.values[*at as usize] = value;
            *at += 1;
        }
        Ok(())
    }

    fn of(&self, bucket: usize) -> &[V] {
        let start = bucket.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.values[start as usize..self.ends[bucket] as usize]
    }
}
