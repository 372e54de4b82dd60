//! Parameters of the backward kernels, and how their work is divided, as pure functions.

mod counting_sort;
pub mod residual;
mod segmented_sum;

use crate::abi::element::ElementType;
use crate::abi::params::Matrix;
pub use crate::abi::params::backward::counting_sort::{
    CountParams, Destination, PLACE_BYTES, SCAN_WORDS, SortParams, SortTask, Source,
    TASK_SOURCES_MAX, WARP_SOURCES, WINDOW_ROWS, count_shared_bytes, shared_bytes,
};
pub use crate::abi::params::backward::segmented_sum::{
    FIXUP_SHARED_BYTES, Place, SegmentedSumParams, n_continued, place,
};

/// Threads per block of every kernel here.
pub const THREADS: usize = 256;

/// Warps per block.
pub const WARPS: u32 = THREADS as u32 / 32;

/// No row: of a source that adds nothing, and of the destination that such sources go to.
pub const NO_ROW: u32 = u32::MAX;

/// Most sources of a document for `maxsim_gradient_short_query_*`: one per lane.
pub const FEW_SOURCES: u64 = 32;

/// Most rows of a task of it.
pub const FEW_ROWS: usize = 1024;

/// Dynamic shared memory of its CTAs.
pub const SHORT_QUERY_SHARED_BYTES: usize = THREADS * 4;

/// Start of some pairs of a query and a document: pair `k` is that many steps on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstPair {
    /// Index of the query.
    pub query: u32,
    /// Index of the document.
    pub document: u32,
    /// Index of the score; where pairs are listed, the place in the list.
    pub score: u32,
}

/// The pairs of a call, and what is known of each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// The query tokens.
    pub queries: Matrix,
    /// The document tokens.
    pub documents: Matrix,
    /// Address of a [`PairSlot`] per score; 0 = pairs are computed, `*_step` apart.
    pub slots: u64,
    /// Address of a u32 per listed pair: its score; 0 = the place in the list.
    pub order: u64,
    /// Address of an i64 per query: where the winners of its first score are, further ones
    /// following at the query's length (computed pairs). 0 = queries are of one length.
    pub query_token_base: u64,
    /// Address of the winners, pair-major.
    pub winners: u64,
    /// Address of the f32 gradients of the scores.
    pub grad_scores: u64,
    /// Address of an f32 per row of the sources' matrix, which their gradients are multiplied by:
    /// what rows are normalised by, or the scales of codes; 0 = neither.
    pub source_norms: u64,
    /// Bytes of a winner: 2 (none = 0xFFFF) or 4 (none = -1).
    pub winner_bytes: u32,
    /// Scores per query (computed pairs).
    pub row_len: u32,
    /// Queries from pair to pair (computed pairs).
    pub query_step: u32,
    /// Documents from pair to pair.
    pub document_step: u32,
    /// Scores from pair to pair.
    pub score_step: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// A pair that cannot be computed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairSlot {
    /// Index of the pair's winners in the pair-major outputs.
    pub token_base: u64,
    /// Index of the score.
    pub score: u32,
    /// First row of the query.
    pub query_start: u32,
    /// Rows of the query.
    pub query_len: u32,
    /// First row of the document.
    pub document_start: u32,
    /// Rows of the document.
    pub document_len: u32,
    /// Padding that makes it two loads of 16 bytes.
    pub reserved: u32,
}

/// A token matrix that sources are rows of, and how a warp reads a row of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Address of element (0, 0).
    pub base: u64,
    /// Distance between rows in bytes.
    pub pitch_bytes: u64,
    /// Elements per row.
    pub dim: u32,
    /// The binary logarithm of the lanes that share a row, 16 bytes each, or [`LANE_CODES`].
    pub lanes_log2: u32,
    /// How often as many bytes as the lanes take must be taken for a row: each time by another
    /// warp.
    pub n_columns: u32,
    /// 1 when rows start on 16-byte boundaries and can be read up to one.
    pub aligned: u32,
}

/// Lanes that share a row of so many bytes (as a binary logarithm), and how often they must be
/// taken for it.
pub const fn columns(row_bytes: usize) -> (u32, u32) {
    let n_chunks = row_bytes.div_ceil(16);
    if n_chunks >= 32 {
        return (5, n_chunks.div_ceil(32) as u32);
    }
    (n_chunks.next_power_of_two().ilog2(), 1)
}

/// Codes that a lane reads of a row at once: as many as elements of two bytes, for as many sums.
pub const LANE_CODES: usize = 8;

/// Bytes that a code counts as in [`columns`].
pub const CODE_BYTES: usize = 16 / LANE_CODES;

/// Parameters of `maxsim_row_norms_*`: a warp per `32 >> rows.lanes_log2` rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowNormsParams {
    /// The rows.
    pub rows: Rows,
    /// Address of an f32 per row, which becomes 1 / √max(‖x‖², [`SQUARE_MIN`]).
    ///
    /// [`SQUARE_MIN`]: crate::abi::params::SQUARE_MIN
    pub norms: u64,
    /// Address of an f32 per row, which that is multiplied by; 0 = rows have no weights.
    pub weights: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameters of `maxsim_gradient_project_*`: a warp per row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProjectParams {
    /// The rows.
    pub rows: Rows,
    /// The gradient.
    pub out: Output,
    /// Address of f32 sums `[rows, dim]`: gradients with respect to the normalised rows, of tokens
    /// whose weights are 1. May be where the gradient is.
    pub sums: u64,
    /// Address of an f32 per row, what it is normalised by; 0 = rows are not normalised.
    pub norms: u64,
    /// Address of an f32 per row, its weight; 0 = rows have none.
    pub weights: u64,
    /// Address of the f32 gradient of the weights, which is written or added to as the rows' is; 0
    /// = not wanted.
    pub grad_weights: u64,
    /// Number of rows.
    pub n_rows: u32,
    /// 1 where rows of zeros have no gradient: those of angular scores.
    pub skips_zeros: u32,
}

/// A matrix of gradients, or of parts of them: `[rows, dim]` without gaps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Address of element (0, 0).
    pub base: u64,
    /// One of [`Output::F32`], [`Output::F16`], [`Output::BF16`].
    pub element: u32,
    /// 1 to add to what is there, 0 to overwrite it.
    pub adds: u32,
    /// Elements per row.
    pub dim: u32,
    /// 1 when 16 bytes that start at a multiple of 8 elements (f32: of 4) are on a 16-byte
    /// boundary.
    pub aligned: u32,
}

impl Output {
    /// f32 elements.
    pub const F32: u32 = 0;
    /// f16 elements.
    pub const F16: u32 = 1;
    /// bf16 elements.
    pub const BF16: u32 = 2;

    /// The number for elements of a type.
    pub const fn tag(element: ElementType) -> u32 {
        match element {
            ElementType::F32 => Output::F32,
            ElementType::F16 => Output::F16,
            ElementType::Bf16 => Output::BF16,
        }
    }
}

/// Up to [`WARPS`] rows of a query, or of several that overlap, with all of their pairs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowTask {
    /// First row.
    pub row: u32,
    /// Number of rows.
    pub n_rows: u32,
    /// The first pair.
    pub first: FirstPair,
    /// Number of pairs.
    pub n_pairs: u32,
    /// Index of the first row among the rows of all tasks.
    pub index: u32,
    /// Padding that makes it two loads of 16 bytes.
    pub reserved: u32,
}

/// Parameters of `maxsim_gradient_short_query_*`: a block per task, which has rows of a document
/// and its only pair, and column; before them the blocks of `maxsim_gradient_gather_*`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShortQueryParams {
    /// The pairs.
    pub pairs: Pairs,
    /// The queries' rows.
    pub source: Rows,
    /// The gradient of the documents.
    pub out: Output,
    /// Address of the [`RowTask`]s.
    pub tasks: u64,
    /// Number of tasks.
    pub n_tasks: u32,
    /// 1 to write zeros to rows that no query token chose.
    pub fills: u32,
    /// The sums over pairs.
    pub gather: GatherParams,
}

/// Parameters of `maxsim_gradient_gather_*`: a block per task, column and chunk of pairs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GatherParams {
    /// The pairs.
    pub pairs: Pairs,
    /// The documents' rows.
    pub source: Rows,
    /// The gradient; where there are several chunks, f32 sums `[chunk, row of all tasks, dim]`.
    pub out: Output,
    /// Address of the [`RowTask`]s.
    pub tasks: u64,
    /// Number of tasks.
    pub n_tasks: u32,
    /// Chunks that the pairs of each task are cut into.
    pub n_chunks: u32,
    /// Rows of all tasks.
    pub n_rows: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Parameters of `maxsim_gradient_atomic_*`: as those of `maxsim_gradient_gather_*`, and where the
/// rows of the queries are added to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AtomicParams {
    /// The sums over pairs.
    pub sums: GatherParams,
    /// The queries' rows.
    pub queries: Rows,
    /// The gradient of the documents, f32, which holds what is added to.
    pub documents: Output,
    /// Address of an f32 per row of the queries' matrix, which they are multiplied by; 0 = rows are
    /// not normalised.
    pub query_norms: u64,
}

/// The pairs of a chunk.
pub const fn chunk_start(n_pairs: u32, chunk: u32, n_chunks: u32) -> u32 {
    match (n_pairs as u64 * chunk as u64).checked_div(n_chunks as u64) {
        Some(start) => start as u32,
        None => 0,
    }
}

/// Parameters of `maxsim_gradient_sum_chunks`: `out[row] = Σ_c parts[c][row]`, a block per task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SumParams {
    /// The gradient.
    pub out: Output,
    /// Address of f32 sums `[chunk, row of all tasks, dim]`.
    pub parts: u64,
    /// Address of the [`RowTask`]s.
    pub tasks: u64,
    /// Number of chunks.
    pub n_chunks: u32,
    /// Rows of all tasks.
    pub n_rows: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_no_padding_that_nobody_named() {
        assert_eq!(size_of::<FirstPair>(), 12);
        assert_eq!(size_of::<PairSlot>(), 32);
        assert_eq!(size_of::<Pairs>(), 2 * 40 + 6 * 8 + 6 * 4);
        assert_eq!(size_of::<RowTask>(), 32);
        assert_eq!(size_of::<SortTask>(), 64);
        assert_eq!(size_of::<Rows>(), 32);
        assert_eq!(size_of::<Output>(), 24);
        assert_eq!(size_of::<GatherParams>(), size_of::<Pairs>() + 32 + 24 + 8 + 4 * 4);
        assert_eq!(size_of::<AtomicParams>(), size_of::<GatherParams>() + 32 + 24 + 8);
        assert_eq!(size_of::<ProjectParams>(), 32 + 24 + 4 * 8 + 2 * 4);
        assert_eq!(size_of::<SegmentedSumParams>(), 32 + 24 + 5 * 8 + 6 * 4);
    }

    #[test]
    fn lanes_cover_rows_of_any_length() {
        for bytes in 1..=16384 {
            let (lanes_log2, n_columns) = columns(bytes);
            let taken = (16usize << lanes_log2) * n_columns as usize;
            assert!(taken >= bytes && lanes_log2 <= 5, "{bytes}");
            assert!(n_columns == 1 || lanes_log2 == 5, "{bytes}");
            assert!(taken < 2 * bytes.next_multiple_of(16), "{bytes}");
        }
        assert_eq!(columns(256), (4, 1));
        assert_eq!(columns(16384), (5, 32));
        for dim in 1..=4096 {
            let (lanes_log2, n_columns) = columns(dim * CODE_BYTES);
            assert!((LANE_CODES << lanes_log2) * n_columns as usize >= dim, "{dim}");
        }
    }

    #[test]
    fn warps_share_pairs_and_tokens_without_gaps() {
        let task = |n_pairs, token_begin, token_end, n_warps| SortTask {
            row: 0,
            n_rows: 1,
            first: FirstPair::default(),
            n_pairs,
            token_begin,
            token_end,
            n_warps,
            chunk: 0,
            n_chunks: 1,
            counts: 0,
            destination: 0,
            list: 0,
            share: 0,
            n_sources: 0,
        };
        for n_warps in 1..=WARPS {
            for n_pairs in 2..40 {
                let task = task(n_pairs, 0, u32::MAX, n_warps);
                assert_eq!(task.warp_start(0, 7), (0, 0));
                assert_eq!(task.warp_start(n_warps, 7), (n_pairs, 0));
            }
            for (begin, end, len) in [(0, u32::MAX, 100), (64, 1000, 5000), (8192, 9000, 8200)] {
                let task = task(1, begin, end, n_warps);
                assert_eq!(task.warp_start(0, len), (0, begin));
                let (pair, last) = task.warp_start(n_warps, len);
                assert!(pair == 1 && last >= end.min(len) && last < end.min(len) + 32);
            }
        }
    }

    #[test]
    fn sums_go_where_the_row_is_finished() {
        // Segments of 10; a row with sources 5 .. 25, one 25 .. 30, one 30 .. 40.
        assert_eq!(place(5, 25, 0, 10), Place::Tail);
        assert_eq!(place(5, 25, 10, 20), Place::Head);
        assert_eq!(place(5, 25, 20, 30), Place::Head);
        assert_eq!(place(25, 30, 20, 30), Place::Out);
        assert_eq!(place(30, 40, 30, 40), Place::Out);
        assert_eq!(n_continued(0, 10, 5, 25), 2);
        assert_eq!(n_continued(1, 10, 5, 25), 0);
        assert_eq!(n_continued(2, 10, 25, 30), 0);
        assert_eq!(n_continued(3, 10, 30, 41), 1);
    }
}
