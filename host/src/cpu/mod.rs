//! The CPU engine.
//!
//! A task is a few queries against a run of documents ([`tasks`]). The queries' valid tokens
//! are packed into panels of at most [`PANEL_LEN`] columns ([`queries`]); the documents'
//! valid tokens pass by in tiles of at most [`TILE_LEN`] rows ([`tiles`]); a GEMM gives the
//! similarities of one tile and one panel ([`gemm`]), which stay in the first-level cache
//! until the running maxima have taken them in ([`reduce`]).
//!
//! Two properties carry the semantics:
//!  - Masked tokens of either side never reach the GEMM, so nothing has to be masked after it.
//!  - A similarity is one chain of fused multiply-adds over dim (in blocks that depend on dim
//!    alone), wherever its row and column lie. Identical rows therefore tie bitwise, and no
//!    result depends on the pairing, the tiles or the number of threads.
//!
//! Where rows are normalised ([`norms`]) or compressed, similarities are multiplied by both rows'
//! factors ([`factors`]): the document's before the maximum, the query's after it. Dot products of
//! integer codes are exact.
//!
//! Gradients are sums over the winners ([`gradients`]), and so are coarse-to-fine scores, of winners
//! that INT8 codes have found ([`coarse`]).

mod coarse;
mod factors;
mod gemm;
mod gradients;
mod norms;
mod queries;
mod reduce;
mod run;
mod scratch;
mod tasks;
mod tiles;

#[cfg(test)]
mod tests;

use rayon::iter::{ParallelBridge, ParallelIterator};

use crate::error::Result;
use crate::format::Format;
use crate::parallel::Parallel;
use crate::problem::Problem;
use crate::residual::HostResiduals;
use crate::scaled_rows::{ScaledRows, scaled_rows};
use crate::scales::Scales;
use crate::scores::{ScoreOptions, Scores};
pub(crate) use coarse::score_coarse_to_fine;
use factors::Factors;
pub(crate) use gemm::{MIN_ROWS, similarities};
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub(crate) use gradients::Runs;
pub(crate) use gradients::add_gradients;
use norms::Norms;
pub(crate) use norms::add_projected;
pub(crate) use queries::widen;
use run::Call;
use scratch::Scratch;
use tasks::Tasks;

/// Most query tokens of a panel. The widest GEMM micro-kernel (AVX-512) has 64 rows.
pub(crate) const PANEL_LEN: usize = 64;

/// Panel widths are multiples of this: one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;

/// Most query tokens that share one pass over the documents: enough arithmetic per document
/// byte that memory is not the limit, little enough for the panels to stay in cache.
const BLOCK_LEN: usize = 4 * PANEL_LEN;

/// Most document tokens of a tile: a multiple of the micro-kernels' 4 and 6 columns, and the
/// most for which `gemm` reads the query panel in place (8 · 6) instead of packing it anew.
pub(crate) const TILE_LEN: usize = 48;

/// A token matrix in host memory; its layout is the problem's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, F: Format> {
    pub data: &'a [F::Stored],
    /// Of codes.
    pub scales: Option<&'a Scales<'a>>,
    /// What rows are decoded from, where there is no `data`.
    pub residuals: Option<&'a HostResiduals>,
    pub mask: Option<&'a [u8]>,
}

impl<F: Format> Matrix<'_, F> {
    /// The rows of a call that normalises them where some are too long for it; see
    /// [`scaled_rows`].
    fn scaled_rows(&self, normalize: bool, dim: usize) -> Result<Option<ScaledRows<F::Stored>>> {
        if normalize { scaled_rows::<F>(self.data, dim) } else { Ok(None) }
    }

    /// The same with these rows, where there are any.
    fn with_rows<'b>(&'b self, rows: &'b Option<ScaledRows<F::Stored>>) -> Matrix<'b, F> {
        let data = rows.as_ref().map_or(self.data, |rows| &rows.data);
        Matrix { data, ..*self }
    }
}

/// Threads that the engine uses.
pub(crate) fn n_threads() -> usize {
    rayon::current_num_threads()
}

/// Scores a problem.
pub(crate) fn score<Q: Format, D: Format>(
    problem: &Problem<'_>,
    queries: Matrix<'_, Q>,
    documents: Matrix<'_, D>,
    options: &ScoreOptions,
) -> Result<Scores> {
    let mut scores = Scores::new(problem, options)?;
    let parallel = Parallel::new();
    let scaled = (
        queries.scaled_rows(options.normalize, problem.dim())?,
        documents.scaled_rows(options.normalize, problem.dim())?,
    );
    let (queries, documents) = (queries.with_rows(&scaled.0), documents.with_rows(&scaled.1));
    let norms = options.normalize.then(|| Norms::new(queries, documents, problem.dim(), parallel));
    let norms = &norms.transpose()?;
    let factors = Factors::new(norms.as_ref(), queries.scales, documents.scales);
    let call = Call { problem, queries, documents, factors };
    // A task owns its part of the outputs, so it does not matter which thread takes it when.
    let run = |scratch: &mut Scratch, batch: Vec<_>| {
        batch.into_iter().try_for_each(|task| call.run(task, scratch))
    };
    let mut tasks = Tasks::new(problem, &mut scores);
    parallel.share(|_| match parallel.is_alone() {
        true => {
            let mut scratch = Scratch::new();
            tasks.try_for_each(|batch| run(&mut scratch, batch))
        }
        false => tasks.par_bridge().try_for_each_init(Scratch::new, run),
    })?;
    Ok(scores)
}
