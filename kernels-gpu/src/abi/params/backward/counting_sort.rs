//! Parameters of the counting sort of winners by document row.

use crate::abi::params::backward::{
    FIXUP_SHARED_BYTES, FirstPair, Pairs, SegmentedSumParams, WARPS, chunk_start,
};

/// Most destination rows that winners are sorted by at a time: a block has a place for each and
/// warp in shared memory, of which a block has 99 KB at least.
pub const WINDOW_ROWS: u32 = 1472;

/// Bytes of a place: where a warp's next source of a bucket goes, and which lanes have one.
pub const PLACE_BYTES: u32 = 8;

/// Sources that one warp counts and places, where there are enough for several.
pub const WARP_SOURCES: u32 = 1024;

/// Words of shared memory that the sort needs beside the places.
pub const SCAN_WORDS: u32 = WARPS;

/// Most sources of a task, so that those of a warp in one bucket are counted in 16 bits.
pub const TASK_SOURCES_MAX: u64 = u16::MAX as u64;

/// Shared memory of `count` for windows of up to so many rows, and more than the fixup needs.
pub const fn count_shared_bytes(n_rows: u32) -> usize {
    let counts = ((n_rows + 1) * WARPS * 4) as usize;
    if counts > FIXUP_SHARED_BYTES { counts } else { FIXUP_SHARED_BYTES }
}

/// Shared memory of the sort for windows of up to so many rows.
pub const fn shared_bytes(n_rows: u32) -> usize {
    ((n_rows + 1) * WARPS * PLACE_BYTES + SCAN_WORDS * 4) as usize
}

/// Winners to be sorted: some of the pairs of a document, or of several that overlap, by the rows
/// of a window.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortTask {
    /// First destination row.
    pub row: u32,
    /// Destination rows.
    pub n_rows: u32,
    /// The first pair.
    pub first: FirstPair,
    /// Number of pairs.
    pub n_pairs: u32,
    /// First query token; 0 unless there is one pair.
    pub token_begin: u32,
    /// One past the last query token, or more.
    pub token_end: u32,
    /// Warps that share the sources.
    pub n_warps: u32,
    /// Index of the task among those of its window.
    pub chunk: u32,
    /// Tasks of the window.
    pub n_chunks: u32,
    /// Index of the window's first count: there are `n_rows + 1` per task, where there are
    /// several tasks.
    pub counts: u32,
    /// Index of the window's first destination.
    pub destination: u32,
    /// Index of the window's first source in the sorted list.
    pub list: u32,
    /// Index of the first source of this task's share of that list: it has as many places there as
    /// sources, if not the same ones.
    pub share: u32,
    /// Sources of this task.
    pub n_sources: u32,
}

impl SortTask {
    /// Rows, and what goes to none of them.
    #[inline(always)]
    pub const fn n_buckets(&self) -> u32 {
        self.n_rows + 1
    }

    /// Pairs, and of a single pair the tokens, from which warp `warp` continues to where the next
    /// one starts. Warps from `n_warps` on have nothing. `len` is the length of a single pair's
    /// query.
    #[inline(always)]
    pub const fn warp_start(&self, warp: u32, len: u32) -> (u32, u32) {
        if self.n_pairs > 1 {
            return (chunk_start(self.n_pairs, warp, self.n_warps), self.token_begin);
        }
        let end = if self.token_end < len { self.token_end } else { len };
        let n_steps = end.saturating_sub(self.token_begin).div_ceil(32);
        let step = chunk_start(n_steps, warp, self.n_warps);
        (if warp < self.n_warps { 0 } else { self.n_pairs }, self.token_begin + step * 32)
    }

    /// Index of the task's first u32 count.
    #[inline(always)]
    pub const fn first_count(&self) -> u64 {
        self.counts as u64 + self.chunk as u64 * self.n_buckets() as u64
    }

    /// Index of the task's first u16 count of a warp.
    #[inline(always)]
    pub const fn first_warp_count(&self) -> u64 {
        self.first_count() * WARPS as u64
    }

    /// Bucket of the window that a winner is sorted into. A winner that is no token of the
    /// document, or whose row is not in the window, has the last bucket.
    #[inline(always)]
    pub const fn bucket(&self, document_start: u32, document_len: u32, winner: u32) -> u32 {
        let row = document_start.wrapping_add(winner).wrapping_sub(self.row);
        if winner < document_len && row < self.n_rows { row } else { self.n_rows }
    }
}

/// A source of the sorted list.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Source {
    /// Row of the queries' matrix.
    pub row: u32,
    /// Gradient of the pair's score.
    pub factor: f32,
}

/// A row with its sources, which end where the next one's start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// Index of the first source in the sorted list.
    pub first: u32,
    /// The row, or [`crate::abi::params::backward::NO_ROW`].
    pub row: u32,
}

/// Parameters of `maxsim_gradient_sort`, a block per task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SortParams {
    /// The pairs.
    pub pairs: Pairs,
    /// Address of the [`SortTask`]s.
    pub tasks: u64,
    /// Address of the u32 counts of windows that have several tasks: task by task, one per bucket.
    pub counts: u64,
    /// Address of u16 counts of the warps of those tasks: task by task, warp by warp.
    pub warp_counts: u64,
    /// Address of the [`Source`]s.
    pub list: u64,
    /// Address of the [`Destination`]s.
    pub destinations: u64,
}

/// Parameters of `maxsim_gradient_count`: a block per task, and behind them those of
/// `maxsim_gradient_fixup` for the group before.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CountParams {
    /// Parameters of the sort that is counted.
    pub sort: SortParams,
    /// The sums whose fixup runs, where there are blocks for it. They read nothing that the tasks
    /// write.
    pub fixup: SegmentedSumParams,
    /// Number of tasks.
    pub n_tasks: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}
