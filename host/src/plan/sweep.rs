//! Sweeps: large calls that memory's rate bounds read their documents in order, all CTAs together.

use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::layout::sm90::DOCUMENT_TILE;
use maxsim_kernels::table::forward::{RowOperation, Variant};

use super::cost::n_tiles;
use super::limits::DeviceLimits;
use crate::problem::Problem;

/// Fewest tokens per CTA for the dynamic scheduler. A CTA takes a ticket as soon as it has room for
/// copies, of hundreds of tokens: with fewer tokens all units are taken before any CTA is late.
/// With several query tiles the scheduler is static in any case: arithmetic bounds such calls, and
/// a ticket costs each consumer some hundred clocks.
pub(crate) const DYNAMIC_TOKENS_MIN: u64 = 8192;

/// Query rows of a tile, at most: with more, arithmetic takes as long as reading.
const QUERY_TILE_MAX: usize = 128;

/// Document tiles that a CTA's ring holds, at least: what one CTA of a multiprocessor keeps in
/// flight must cover memory's latency.
const RING_TILES_MIN: usize = 3;

/// Tokens of the mean document, at least: shorter ones are read as fast as one run of rows.
const MEAN_LEN_MIN: usize = DOCUMENT_TILE;

/// Whether one CTA a multiprocessor takes the documents in order, a few at a time, from the first
/// to the last.
///
/// The documents that are read at one time then lie within some ten megabytes, in fewer runs than
/// two CTAs with shares of their own would read: memory's rate is up to 3 % higher
/// (docs/decisions/forward-schedules.md, "Documents in order").
pub(crate) fn is_sweep(row: &Variant, problem: &Problem<'_>, limits: &DeviceLimits) -> bool {
    let n_multiprocessors = limits.n_multiprocessors.max(1);
    let documents = problem.documents();
    row.arch == Arch::Sm90a
        && row.has_scheduler()
        && !row.schedule.is_contiguous()
        && !row.schedule.is_stream_k()
        && !row.winners
        && matches!(row.row_operation, RowOperation::Plain | RowOperation::Scaled)
        && !row.streams_queries
        && row.query_tile <= QUERY_TILE_MAX
        && row.stages >= RING_TILES_MIN * row.slabs(problem.dim())
        && n_tiles(row, problem) == 1.0
        && documents.n_items() > n_multiprocessors
        && documents.total_len() >= (documents.n_items() * MEAN_LEN_MIN) as u64
        && documents.total_len() / n_multiprocessors as u64 >= DYNAMIC_TOKENS_MIN
}
