//! The CPU engine: scores, gradients and coarse-to-fine scores on the threads of a pool.
//!
//! A task is a few queries against a run of documents ([`tasks`]). The queries' valid tokens are
//! packed into panels of at most [`PANEL_LEN`] columns ([`panels`]); the documents' valid tokens
//! pass by in tiles of at most [`TILE_LEN`] rows ([`tiles`]); a kernel gives the products of one
//! tile and one panel ([`gemm`](crate::linalg::gemm)), which stay in the first-level cache until
//! the running maxima have accumulated them ([`maxima`]). Meanwhile the next tile is fetched.
//!
//! Two properties carry the semantics:
//!  - Masked tokens of either side never reach a kernel, so nothing has to be masked after it.
//!  - A similarity is one chain of fused multiply-adds over dim (in blocks that depend on dim
//!    alone), wherever its row and column lie. Identical rows therefore tie bitwise, and no
//!    result depends on the pairing, the tiles or the number of threads.
//!
//! Where rows are normalised ([`norms`]) or compressed, similarities are multiplied by the scales
//! of both rows ([`row_scales`]): the document's before the maximum, the query's after it. Dot
//! products of integer codes are exact.
//!
//! Gradients are sums over the winners ([`backward`]), and so are coarse-to-fine scores, of
//! winners that INT8 codes have found ([`rescore`]). Thresholds of XTR are a second pass of the
//! same similarities ([`xtr`]). Neighbours between clouds of points are a search of its own
//! ([`chamfer`]). Tokens that are projections of hidden states are made by the same
//! kernels ([`projection`]).

mod backward;
pub(crate) mod chamfer;
mod maxima;
mod norms;
mod panels;
pub(crate) mod projection;
mod rescore;
mod row_scales;
mod score;
mod scratch;
mod tasks;
mod tiles;
pub(crate) mod tokens;
pub(crate) mod xtr;

#[cfg(test)]
mod tests;

use rayon::iter::{ParallelBridge, ParallelIterator};

use crate::cpu::tokens::Matrix;
use crate::error::Result;
use crate::linalg::gemm::PANEL_LEN;
use crate::linalg::kernels::{Kernel, Kernels};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::without_tokens;
use crate::problem::scores::Scores;
use crate::runtime::interrupt::Interrupt;
use crate::runtime::pool::Parallel;
use crate::tokens::element::ElementType;
use crate::tokens::format::{Format, TokenFormat};
pub(crate) use backward::add_gradients;
use norms::Norms;
pub(crate) use rescore::rescore;
use row_scales::RowScales;
use score::Call;
use scratch::Scratch;
use tasks::{Task, Tasks};

/// Most query tokens that share one pass over the documents: enough arithmetic per document
/// byte that memory is not the limit, little enough for the panels to stay in cache.
const BLOCK_LEN: usize = 4 * PANEL_LEN;

/// Scores a problem.
pub(crate) fn score<Q: Format, D: Format>(
    problem: &Problem<'_>,
    queries: Matrix<'_, Q>,
    documents: Matrix<'_, D>,
    options: &ScoreOptions,
) -> Result<Scores> {
    let mut scores = Scores::new(problem, options)?;
    let parallel = Parallel::new();
    with_call(problem, queries, documents, (options.normalize, parallel), |call| {
        let call = Call { angular: options.angular, ..call };
        score_tasks(&call, Tasks::new(problem, &mut scores), parallel)
    })?;
    scores.leave_out(&without_tokens(problem, options));
    Ok(scores)
}

/// Scores all tasks of a call.
fn score_tasks<Q: Format, D: Format>(
    call: &Call<'_, Q, D>,
    tasks: Tasks<'_>,
    parallel: Parallel,
) -> Result<()> {
    share_tasks(tasks, parallel, &|task, scratch| call.run(task, scratch))
}

/// Does `each` with every task. Not of any types, so that programs have it once.
fn share_tasks<'a>(
    mut tasks: Tasks<'a>,
    parallel: Parallel,
    each: &(dyn Fn(Task<'a>, &mut Scratch) -> Result<()> + Sync),
) -> Result<()> {
    let interrupt = Interrupt::current();
    // What fits in one batch is one thread's, and need not be handed to it.
    let head: Vec<_> = tasks.by_ref().take(2).collect();
    let parallel = parallel.unless(head.len() < 2);
    let mut tasks = head.into_iter().chain(tasks);
    // A task owns its part of the outputs, so it does not matter which thread takes it when.
    let run = |scratch: &mut Scratch, batch: Vec<Task<'a>>| {
        batch.into_iter().try_for_each(|task| {
            interrupt.check()?;
            each(task, scratch)
        })
    };
    parallel.share(|_| match parallel.is_alone() {
        true => {
            let mut scratch = Scratch::new();
            tasks.try_for_each(|batch| run(&mut scratch, batch))
        }
        false => tasks.par_bridge().try_for_each_init(Scratch::new, run),
    })
}

/// Runs a call with the row scales of both sides, of rows that may be normalised.
fn with_call<Q: Format, D: Format, R>(
    problem: &Problem<'_>,
    queries: Matrix<'_, Q>,
    documents: Matrix<'_, D>,
    (normalize, parallel): (bool, Parallel),
    run: impl FnOnce(Call<'_, Q, D>) -> Result<R>,
) -> Result<R> {
    let scaled = (
        queries.scaled_rows(normalize, problem.dim())?,
        documents.scaled_rows(normalize, problem.dim())?,
    );
    let (queries, documents) = (queries.with_rows(&scaled.0), documents.with_rows(&scaled.1));
    let norms = normalize.then(|| Norms::new(queries, documents, problem.dim(), parallel));
    let norms = norms.transpose()?;
    let row_scales = RowScales::new(norms.as_ref(), queries.scales, documents.scales);
    let kernels = Kernels::get()?;
    let kernel = kernel_of(kernels, Q::FORMAT, D::FORMAT);
    let arch = kernels.arch;
    run(Call { problem, queries, documents, row_scales, kernel, arch, angular: false })
}

/// The kernel for rows of these formats.
fn kernel_of(
    kernels: &'static Kernels,
    queries: TokenFormat,
    documents: TokenFormat,
) -> &'static Kernel {
    let bf16 = TokenFormat::Element(ElementType::Bf16);
    match (queries.is_integer() && documents.is_integer(), kernels.bf16) {
        (true, _) if documents == TokenFormat::Int8 => kernels.signed,
        (true, _) => kernels.unsigned,
        (false, Some(kernel)) if queries == bf16 && documents == bf16 => kernel,
        _ => kernels.f32,
    }
}
