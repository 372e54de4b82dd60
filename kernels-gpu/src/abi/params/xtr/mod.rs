//! Parameters of the kernels of XTR: they find thresholds, and make scores of maxima and these.

pub mod keys;

use crate::abi::layout::sm80;
use crate::abi::params::NormalizedParams;

/// Threads of a CTA that selects.
pub const SELECT_THREADS: usize = 256;
/// Bins of a digit of a number's key.
pub const DIGITS: usize = 256;
/// Keys that a CTA keeps while it selects.
pub const KEYS_MAX: usize = 4096;
/// Shared memory of a CTA that selects: the histogram of a digit, what was found of it, and keys.
pub const SELECT_SHARED_BYTES: usize = DIGITS * 4 + 16 + KEYS_MAX * 4;
/// The count of a query token whose threshold is known.
pub const DONE: u32 = u32::MAX;
/// Threads of a CTA that scores: a pair each.
pub const SCORE_THREADS: usize = 128;

/// Similarities that a warp has room for before they go to their lists. Queues of so many fit
/// behind the largest ring on a device with 99 KB of shared memory.
pub const QUEUE_LEN: usize = 88;
/// Bytes of a warp's queue: a similarity and its row each, and how many there are.
pub const QUEUE_BYTES: usize = QUEUE_LEN * 8 + 16;

/// Shared memory of a CTA that collects: that of the forward kernel with the tile, and the queues.
pub const fn collect_shared_bytes(
    warps: usize,
    query_tile: usize,
    document_tile: usize,
    slabs: usize,
    stages: usize,
) -> usize {
    queues_offset(query_tile, document_tile, slabs, stages) + warps * QUEUE_BYTES
}

/// Where the queues lie in it.
pub const fn queues_offset(
    query_tile: usize,
    document_tile: usize,
    slabs: usize,
    stages: usize,
) -> usize {
    sm80::shared_bytes(query_tile, document_tile, slabs, stages).next_multiple_of(16)
}

/// Geometry of the kernels for sm_90a: the tiles of `sm90_*_d128_q256_winners`, and queues of each
/// consumer thread in place of four of the ring's stages.
pub mod mapped {
    use crate::abi::layout::sm90;
    use crate::abi::params::Group;

    /// Query rows of a tile.
    const QUERY_TILE: usize = sm90::query_tile(2, 2);
    /// Slabs of a row.
    const SLABS: usize = 2;
    /// Depth of the ring.
    pub const STAGES: usize = 6;
    /// Threads of a CTA.
    pub const THREADS: usize = sm90::threads(2);
    /// Bytes from a pair in a thread's queue to the next: the pairs of all consumer threads lie
    /// beside each other.
    pub const QUEUE_STEP_BYTES: usize = 256 * 8;
    /// Bytes of all threads' queues of a row of their fragments, of 16 pairs each: all that a row
    /// has in a tile.
    pub const QUEUE_ROW_BYTES: usize = 16 * QUEUE_STEP_BYTES;
    /// Where the queues lie in shared memory.
    pub const QUEUES_OFFSET: usize =
        sm90::shared_bytes(QUERY_TILE, SLABS, STAGES, 1, false, false).next_multiple_of(8);
    /// Where the bounds of a tile's rows lie.
    pub const BOUNDS_OFFSET: usize = QUEUES_OFFSET + 2 * QUEUE_ROW_BYTES;
    /// Where the query token of each group's first row lies.
    pub const TOKENS_OFFSET: usize = BOUNDS_OFFSET + QUERY_TILE * 4;
    /// Dynamic shared memory.
    pub const SHARED_BYTES: usize = TOKENS_OFFSET + QUERY_TILE / Group::ROWS * 4;
}

/// What is collected of each query token, of all queries one after the other.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Collected {
    /// Address of an f32 per query token: larger similarities are collected.
    pub bounds: u64,
    /// Address of a u32 per query token: how many there were, also those that found no room; 0
    /// before they are collected, [`DONE`] where the threshold is known.
    pub counts: u64,
    /// Address of `capacity` f32 per query token: the first that came, in any order.
    pub lists: u64,
    /// Address of a u32 per query: its first query token.
    pub first_tokens: u64,
    /// Room of a query token.
    pub capacity: u32,
    /// Not used.
    pub reserved: u32,
}

/// Parameters of the kernels that collect: those of a forward kernel with the same tile, whose
/// outputs are not written.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CollectParams {
    /// Tokens, row scales where rows are normalised, and work lists.
    pub normalized: NormalizedParams,
    /// Bounds, and where similarities go.
    pub collected: Collected,
}

/// Where a query token's maxima over documents are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaximaPlace {
    /// Index of the first of them.
    pub first: u64,
    /// From one of them to the next.
    pub stride: u32,
    /// How many there are.
    pub n: u32,
}

/// Parameters of the kernel that selects: of the maxima first bounds, with counts of 0, thresholds
/// of −∞ and no query token that has none yet; of what was collected thresholds or better bounds.
/// A CTA for each query token.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SelectParams {
    /// Bounds, counts and lists, which are read and written.
    pub collected: Collected,
    /// Address of an f32 per query token: the thresholds.
    pub thresholds: u64,
    /// Address of an f32 per row of the queries, which thresholds are multiplied by; 0 = none.
    pub scales: u64,
    /// Address of the u32 row of each query token.
    pub rows: u64,
    /// Address of the f32 maxima; 0 = it selects of what was collected.
    pub maxima: u64,
    /// Address of the winners of the maxima; 0 = every one has one.
    pub winners: u64,
    /// Address of a [`MaximaPlace`] per query token, where there are maxima.
    pub places: u64,
    /// Address of a u32: how many query tokens have no threshold yet, which is added to.
    pub n_open: u64,
    /// How many similarities a query token retrieves, at most `capacity`.
    pub k: u32,
    /// Bytes of a winner, 2 or 4.
    pub winner_bytes: u32,
    /// 1 where it is likely, and not sure, that `k` similarities reach each bound: one that fewer
    /// are above is replaced by −∞.
    pub bounds_are_likely: u32,
    /// Not used.
    pub reserved: u32,
}

/// What sums of retrieved maxima are divided by, as numbers that kernels take.
pub mod divisor {
    /// The number of query tokens that retrieved one of the document, or 1.
    pub const RETRIEVED: u32 = 0;
    /// The number of the query's valid tokens, or 1.
    pub const QUERY_TOKENS: u32 = 1;
    /// Nothing.
    pub const NONE: u32 = 2;
    /// Nothing; thresholds are added where nothing was retrieved, winners stay, and in place of
    /// divisors there is 1 where something was retrieved, or 0.
    pub const IMPUTED: u32 = 3;
}

/// A query: where its maxima are, and its tokens among those of all queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryPlace {
    /// Index of the first maximum of its first pair, where pairs are not listed.
    pub first_entry: u64,
    /// Its first token.
    pub first_token: u32,
    /// Its tokens.
    pub len: u32,
}

/// A pair that is listed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairPlace {
    /// Index of its first maximum.
    pub first_entry: u64,
    /// Its query.
    pub query: u32,
    /// Not used.
    pub reserved: u32,
}

/// Parameters of the kernel that makes scores of maxima and thresholds: a thread for each pair.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScoreParams {
    /// Address of the f32 maxima, pair-major.
    pub maxima: u64,
    /// Address of their winners; all-ones = none. Those that were not retrieved become none.
    pub winners: u64,
    /// Address of an f32 per query token.
    pub thresholds: u64,
    /// Address of a [`QueryPlace`] per query.
    pub queries: u64,
    /// Address of a [`PairPlace`] per pair; 0 = a query has the next `row_len` pairs.
    pub pairs: u64,
    /// Address of the u32 row of each query token.
    pub rows: u64,
    /// Address of a byte per row of the queries, 0 of those that are masked; 0 = none is.
    pub mask: u64,
    /// Address of an f32 per pair: the scores.
    pub scores: u64,
    /// Address of an f32 per pair: what sums were divided by.
    pub divisors: u64,
    /// Number of pairs.
    pub n_pairs: u32,
    /// Pairs of a query, where they are not listed.
    pub row_len: u32,
    /// Bytes of a winner, 2 or 4.
    pub winner_bytes: u32,
    /// One of [`divisor`].
    pub divisor: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_no_padding_that_nobody_named() {
        assert_eq!(size_of::<Collected>(), 4 * 8 + 2 * 4);
        assert_eq!(size_of::<CollectParams>(), size_of::<NormalizedParams>() + 40);
        assert_eq!(size_of::<SelectParams>(), 40 + 7 * 8 + 4 * 4);
        assert_eq!(size_of::<MaximaPlace>(), 16);
        assert_eq!(size_of::<QueryPlace>(), 16);
        assert_eq!(size_of::<PairPlace>(), 16);
        assert_eq!(size_of::<ScoreParams>(), 9 * 8 + 4 * 4);
    }
}
