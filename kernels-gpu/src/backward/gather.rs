//! `∂Q[q, s] = Σ_k g[q, d_k] · D[d_k, winner(q, d_k, s)]`: a warp per query token, in the order of
//! the query's pairs.
//!
//! Lane `l` looks up the winner in the `l`-th of the next 32 pairs, while the rows of the 32
//! before are summed. Warps of a block have neighbouring tokens, whose winners share sectors.
//! Where tokens are few, pairs are cut into chunks, whose sums `sum_chunks` adds in their order.

use crate::abi::params::backward::{FirstPair, GatherParams, NO_ROW, Pairs, RowTask, chunk_start};
use crate::backward::normalize::scaled;
use crate::backward::output::store;
use crate::backward::pairs::{Pair, pair, winner_if};
use crate::primitives::row_vector::sum::{add, add_slots};
use crate::primitives::row_vector::{Columns, Sums, VectorElement};
use crate::ptx::global::load_u32x4;
use crate::ptx::thread::{block_idx_x, thread_idx_x, wait_for_previous_grid};
use crate::ptx::warp::lane_idx;
use core::hint::assert_unchecked;

/// Loads in flight per lane: with 4 blocks of a multiprocessor 131 µs for 4 million sources; 3
/// loads and 5 blocks 142, 8 and 2 161.
const LOADS: usize = 4;

/// Sums the sources of this warp's row.
///
/// # Safety
/// `params` must describe a call as [`GatherParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn gather<T: VectorElement>(params: &GatherParams) {
    // SAFETY: the caller's promise.
    unsafe { gather_block::<T, true>(params, block_idx_x()) }
}

/// Does the work of block `block` of [`gather`]. Where rows have `MANY` pairs, lanes look up the
/// next ones before they know whether there are any; where they have not, the grid may have begun
/// early.
///
/// # Safety
/// As [`gather`], for a block that there is.
#[inline(always)]
pub unsafe fn gather_block<T: VectorElement, const MANY: bool>(params: &GatherParams, block: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.source.aligned {
            0 => gather_rows::<T, false, MANY>(params, block),
            _ => gather_rows::<T, true, MANY>(params, block),
        }
    }
}

/// # Safety
/// As [`gather`]; `ALIGNED` is that of the source.
#[inline(always)]
unsafe fn gather_rows<T: VectorElement, const ALIGNED: bool, const MANY: bool>(
    params: &GatherParams,
    block: u32,
) {
    // SAFETY: the host launches a block per task, column and chunk; what it lists exists.
    unsafe {
        let part = RowPart::of_warp(params, block);
        if part.has_no_row() {
            return;
        }
        let (row, begin, end) = (part.row(), part.begin(params), part.end(params));
        let columns = Columns::new::<T>(&params.source, part.column);
        if !MANY {
            wait_for_previous_grid();
        }
        let mut sums: Sums = core::mem::zeroed();
        let mut k = begin;
        if begin < end {
            let mut next = Ahead::load(params, &part.task.first, row, k, end);
            while k < end {
                let sources = next.source(&params.pairs);
                let count = (end - k).min(32);
                k += 32;
                if MANY || k < end {
                    next = Ahead::load(params, &part.task.first, row, k, end);
                }
                add::<T, ALIGNED, LOADS>(&columns, sources, 0, count, &mut sums);
            }
        }
        add_slots::<T>(&columns, &mut sums);
        store::<T>(&params.out, &columns, part.index(params), &sums);
    }
}

/// A warp's part of a row's sum, in a grid with a block per task, column and chunk: one column,
/// over one chunk of the row's pairs.
#[derive(Clone, Copy)]
pub struct RowPart {
    pub task: RowTask,
    pub column: u32,
    chunk: u32,
    warp: u32,
}

impl RowPart {
    /// The part of this warp of block `block`.
    ///
    /// # Safety
    /// As [`gather`], for a block that there is.
    #[inline(always)]
    pub unsafe fn of_warp(params: &GatherParams, block: u32) -> RowPart {
        // SAFETY: the host launches a block per task, column and chunk; what it lists exists.
        unsafe {
            assert_unchecked(params.n_tasks != 0 && params.source.n_columns != 0);
            let (rest, task) = (block / params.n_tasks, block % params.n_tasks);
            let (chunk, column) = (rest / params.source.n_columns, rest % params.source.n_columns);
            let task = row_task(params.tasks, task);
            RowPart { task, column, chunk, warp: thread_idx_x() / 32 }
        }
    }

    /// Whether the task has no row for the warp.
    #[inline(always)]
    pub fn has_no_row(&self) -> bool {
        self.warp >= self.task.n_rows
    }

    /// The warp's row.
    #[inline(always)]
    pub fn row(&self) -> u32 {
        self.task.row + self.warp
    }

    /// The first pair of the chunk.
    #[inline(always)]
    pub fn begin(&self, params: &GatherParams) -> u32 {
        chunk_start(self.task.n_pairs, self.chunk, params.n_chunks)
    }

    /// The pair behind the chunk's last.
    #[inline(always)]
    pub fn end(&self, params: &GatherParams) -> u32 {
        chunk_start(self.task.n_pairs, self.chunk + 1, params.n_chunks)
    }

    /// Row of the output: the row itself, or where there are several chunks its place among their
    /// sums.
    #[inline(always)]
    pub fn index(&self, params: &GatherParams) -> u64 {
        match params.n_chunks {
            1 => u64::from(self.row()),
            _ => {
                let first = u64::from(self.chunk) * u64::from(params.n_rows);
                first + u64::from(self.task.index + self.warp)
            }
        }
    }
}

/// Task `task` of a list.
///
/// # Safety
/// The list must have it.
#[inline(always)]
pub unsafe fn row_task(tasks: u64, task: u32) -> RowTask {
    let address = tasks + u64::from(task) * size_of::<RowTask>() as u64;
    // SAFETY: 32 bytes per task.
    unsafe {
        let [row, n_rows, query, document] = load_u32x4(address);
        let [score, n_pairs, index, _] = load_u32x4(address + 16);
        let first = FirstPair { query, document, score };
        RowTask { row, n_rows, first, n_pairs, index, reserved: 0 }
    }
}

/// Loads of a lane's pair that are in flight while earlier pairs are added. They are not touched
/// before they are used: that would wait for them.
#[derive(Clone, Copy)]
pub struct Ahead {
    winner: u32,
    factor: f32,
    document_start: u32,
    /// 0 where the lane has no pair.
    document_len: u32,
}

impl Ahead {
    /// Loads what this lane's pair has, which is as many behind `k` as the lane says.
    ///
    /// # Safety
    /// There must be pairs up to `end`, and one at least.
    #[inline(always)]
    pub unsafe fn load(
        params: &GatherParams,
        first: &FirstPair,
        row: u32,
        k: u32,
        end: u32,
    ) -> Ahead {
        let k = k + lane_idx();
        // SAFETY: a pair that exists: the last one again behind it.
        unsafe {
            let pair = pair(&params.pairs, first, k.min(end - 1));
            Ahead::of(params, &pair, row, [k, end])
        }
    }

    /// Loads what a lane's pair has, if that is before the end.
    ///
    /// # Safety
    /// The pair must be one of the call.
    #[inline(always)]
    pub unsafe fn of(params: &GatherParams, pair: &Pair, row: u32, [k, end]: [u32; 2]) -> Ahead {
        let token = row.wrapping_sub(pair.query_start);
        // A row of another query that overlaps this one has no token here.
        let is_there = (k < end) & (token < pair.query_len);
        let index = pair.token_base + u64::from(token);
        Ahead {
            // SAFETY: a pair has a winner for each of its query's rows.
            winner: unsafe { winner_if(&params.pairs, index, u32::from(is_there)) },
            factor: pair.factor,
            document_start: pair.document_start,
            document_len: if is_there { pair.document_len } else { 0 },
        }
    }

    /// Gradient of the pair's score, whatever its row is normalised by.
    #[inline(always)]
    pub fn factor(&self) -> u32 {
        self.factor.to_bits()
    }

    /// Row and factor.
    ///
    /// # Safety
    /// The pair must be one of `pairs`.
    #[inline(always)]
    pub unsafe fn source(self, pairs: &Pairs) -> [u32; 2] {
        let is_there = self.winner < self.document_len;
        let row = if is_there { self.document_start + self.winner } else { NO_ROW };
        // SAFETY: a winner is a row of the documents.
        [row, unsafe { scaled(pairs, row, self.factor) }.to_bits()]
    }
}
