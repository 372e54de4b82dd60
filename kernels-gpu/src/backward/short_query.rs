//! `∂D` of documents of one pair, whose query has at most a warp's worth of tokens: no sort.
//!
//! A CTA has a run of a document's rows. Each warp has the destinations of all tokens, one per
//! lane, and sums for some of the tokens, as many rows at once as its lanes can read: those that
//! are the first to choose their row, for all that chose it. The other rows are cleared while the
//! first rows are in flight: loads that are issued behind stores wait for them. So the gradient is
//! written once, and nothing is sorted.
//!
//! The first CTAs sum over pairs as `gather` does: a launch less, and their reads come before the
//! others' writes.
//!
//! On sm_90 CTAs begin while the kernel before them ends (programmatic dependent launch), which is
//! that of the scores where no loss is computed in between. Lists of the host, which no kernel
//! writes, are read before the wait for it; everything else is read and written behind it, and
//! nothing of that was in a cache of this grid's before.

use crate::abi::params::backward::{NO_ROW, Output, RowTask, ShortQueryParams, WARPS};
use crate::backward::gather::{gather_block, row_task};
use crate::backward::normalize::scaled;
use crate::backward::output::{store, store_element, store_lane};
use crate::backward::pairs::{pair_behind, winner_if};
use crate::primitives::row_vector::sum::{add, add_slots, multiply};
use crate::primitives::row_vector::{Columns, Sums, VectorElement, unroll};
use crate::ptx::global::store_u32x4;
use crate::ptx::shared::{dynamic_shared, load_shared_u32, store_shared_u32_if};
use crate::ptx::thread::{block_idx_x, grid_dim_x, thread_idx_x, wait_for_previous_grid};
use crate::ptx::warp::{ballot, lane_idx, or_lanes, shuffle, sync_warp};
use core::hint::assert_unchecked;

/// Sums the sources of this block's rows.
///
/// # Safety
/// `params` must describe a call as [`ShortQueryParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn short_query<T: VectorElement>(params: &ShortQueryParams) {
    let n_blocks = params.n_tasks * params.source.n_columns;
    let block = block_idx_x();
    // SAFETY: the caller's promise.
    unsafe {
        let n_gather_blocks = grid_dim_x() - n_blocks;
        if block < n_gather_blocks {
            return gather_block::<T, false>(&params.gather, block);
        }
        let block = block - n_gather_blocks;
        match params.source.aligned {
            0 => sum_rows::<T, false, 1>(params, block),
            _ => sum_rows::<T, true, SHARES_MAX>(params, block),
        }
    }
}

/// # Safety
/// As [`short_query`], for a block that there is; `ALIGNED` is that of the source. A lane
/// has `SHARES` destinations at once.
#[inline(always)]
unsafe fn sum_rows<T: VectorElement, const ALIGNED: bool, const SHARES: usize>(
    params: &ShortQueryParams,
    block: u32,
) {
    const { assert!(SHARES <= SHARES_MAX) };
    // SAFETY: the host launches a block per task and column; what it lists exists, and no two
    // lanes have the same destination's elements.
    unsafe {
        assert_unchecked(params.n_tasks != 0);
        let (column, task) = match params.source.n_columns {
            1 => (0, block),
            _ => (block / params.n_tasks, block % params.n_tasks),
        };
        let task = row_task(params.tasks, task);
        let columns = Columns::new::<T>(&params.source, column);
        let warp = thread_idx_x() / 32;
        let sources = Sources::load(params, &task);
        let mut clears = params.fills != 0 && column == 0;
        // Warps take turns: each has the tokens that its lanes hold at once, then skips those of
        // the other warps.
        let at_once = 32 >> columns.lanes_log2;
        let mut token = warp * at_once;
        // At least once: every warp clears rows.
        loop {
            let mut own = [Share::NONE; SHARES_MAX];
            unroll!(u in 0 1 => if u < SHARES {
                own[u] = sources.share(&task, token + u as u32 * WARPS * at_once, &columns);
            });
            let is_alone = |u: usize| own[u].tokens.count_ones() <= ALONE_MAX;
            let mut left = [0u32; SHARES_MAX];
            unroll!(u in 0 1 => left[u] = if is_alone(u) { own[u].tokens } else { 0 });
            let load = |left: &mut [u32; SHARES_MAX]| {
                load_rows::<T, ALIGNED, SHARES>(params, &columns, &sources, left)
            };
            let (mut words, mut factors) = load(&mut left);
            // While the rows come: what is requested behind stores waits for them.
            if clears {
                clear_others(params, &task, sources.destination, warp);
                clears = false;
            }
            let mut sums: [Sums; SHARES_MAX] = core::mem::zeroed();
            loop {
                unroll!(u in 0 1 => if u < SHARES {
                    multiply::<T>(words[u], factors[u], &mut sums[u]);
                });
                if ballot(left[0] | left[1]) == 0 {
                    break;
                }
                (words, factors) = load(&mut left);
            }
            let mut large = 0;
            unroll!(u in 0 1 => if u < SHARES {
                let Share { tokens, row } = own[u];
                if (tokens != 0) & is_alone(u) & (columns.n_elements > 0) {
                    store_lane::<T>(&params.out, &columns, u64::from(row), &sums[u]);
                }
                large |= if is_alone(u) { 0 } else { tokens & tokens.wrapping_neg() };
            });
            if ballot(large) != 0 {
                large = or_lanes(large);
                while large != 0 {
                    sum_large::<T, ALIGNED>(params, &columns, &sources, large.trailing_zeros());
                    large &= large - 1;
                }
            }
            token += SHARES as u32 * WARPS * at_once;
            if token >= sources.query_len {
                return;
            }
        }
    }
}

/// Loads for each of a lane's destinations the row of the first token that is left, with its
/// factor, and takes the token from what is left.
///
/// # Safety
/// As [`sum_rows`], for a whole warp.
#[inline(always)]
unsafe fn load_rows<T: VectorElement, const ALIGNED: bool, const SHARES: usize>(
    params: &ShortQueryParams,
    columns: &Columns,
    sources: &Sources,
    left: &mut [u32; SHARES_MAX],
) -> ([[u32; 4]; SHARES_MAX], [f32; SHARES_MAX]) {
    let mut words = [[0u32; 4]; SHARES_MAX];
    let mut factors = [0.0f32; SHARES_MAX];
    unroll!(u in 0 1 => if u < SHARES {
        let is_there = (left[u] != 0) & (columns.n_elements > 0);
        let row = sources.query_start + left[u].trailing_zeros();
        // SAFETY: the caller's promise: the query has the token.
        unsafe {
            words[u] = columns.load::<T, ALIGNED>(row, u32::from(is_there));
            if is_there {
                factors[u] = scaled(&params.pairs, row, sources.factor);
            }
        }
        left[u] &= left[u].wrapping_sub(1);
    });
    (words, factors)
}

/// Most destinations that a lane has at once: with lanes for two rows of 256 bytes, all that there
/// can be. Rows that are not aligned are read element by element, which is enough in flight.
const SHARES_MAX: usize = 2;

/// Most sources that the lanes of one row sum one after the other: for more of them the whole warp
/// reads as many at once as it can.
const ALONE_MAX: u32 = 4;

/// Sums the sources of the destination that a token chose, of which there are many.
///
/// # Safety
/// As [`sum_rows`], for a whole warp, with the same token.
#[inline(always)]
unsafe fn sum_large<T: VectorElement, const ALIGNED: bool>(
    params: &ShortQueryParams,
    columns: &Columns,
    sources: &Sources,
    token: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let row = shuffle(sources.destination, token);
        let (token, count) = sources.tokens_of(row);
        let source = if lane_idx() < count { sources.query_start + token } else { NO_ROW };
        let factor = scaled(&params.pairs, source, sources.factor).to_bits();
        let mut sums: Sums = core::mem::zeroed();
        // As many in flight as there are registers for.
        match T::N {
            8 => add::<T, ALIGNED, 4>(columns, [source, factor], 0, count, &mut sums),
            _ => add::<T, ALIGNED, 3>(columns, [source, factor], 0, count, &mut sums),
        }
        add_slots::<T>(columns, &mut sums);
        store::<T>(&params.out, columns, u64::from(row), &sums);
    }
}

/// A destination, and the tokens that chose it, as bits: none where it is another's to sum for.
#[derive(Clone, Copy)]
struct Share {
    row: u32,
    tokens: u32,
}

impl Share {
    const NONE: Share = Share { row: 0, tokens: 0 };
}

/// The sources of a task's pair: a token per lane.
#[derive(Clone, Copy)]
struct Sources {
    /// Row of the documents' matrix, [`NO_ROW`] where the lane's token has none.
    destination: u32,
    /// First row of the query.
    query_start: u32,
    /// Rows of the query.
    query_len: u32,
    /// Gradient of the pair's score.
    factor: f32,
}

impl Sources {
    /// Loads the sources of a task's pair.
    ///
    /// # Safety
    /// The task must be of the call, and its query have at most 32 tokens.
    #[inline(always)]
    unsafe fn load(params: &ShortQueryParams, task: &RowTask) -> Sources {
        let lane = lane_idx();
        // SAFETY: the pair has a winner for each of its query's tokens.
        unsafe {
            let pair = pair_behind(&params.pairs, &task.first, 0, wait_for_previous_grid);
            let is_there = u32::from(lane < pair.query_len);
            let winner = winner_if(&params.pairs, pair.token_base + u64::from(lane), is_there);
            let is_there = is_there != 0 && winner < pair.document_len;
            Sources {
                destination: if is_there { pair.document_start + winner } else { NO_ROW },
                query_start: pair.query_start,
                query_len: pair.query_len,
                factor: pair.factor,
            }
        }
    }

    /// The destination of the token that this lane's slot has, of those from `first` on, if it is a
    /// row of the task and no earlier token has chosen it.
    ///
    /// # Safety
    /// A whole warp, with the same `first`.
    #[inline(always)]
    unsafe fn share(&self, task: &RowTask, first: u32, columns: &Columns) -> Share {
        let (mut slot, mut own) = (0, Share::NONE);
        while slot < 32 >> columns.lanes_log2 {
            let token = first + slot;
            // SAFETY: the whole warp is here, with the same token.
            let (row, tokens) = unsafe {
                let row = shuffle(self.destination, token);
                (row, ballot(u32::from(self.destination == row)))
            };
            let is_task = row.wrapping_sub(task.row) < task.n_rows;
            let is_first = tokens.trailing_zeros() == token;
            if (columns.slot == slot) & is_task & is_first {
                own = Share { row, tokens };
            }
            slot += 1;
        }
        own
    }

    /// The tokens that chose a row, one per lane from the first on, and how many they are.
    ///
    /// # Safety
    /// A whole warp, with room in the block's shared memory for its tokens, and the same row.
    #[inline(always)]
    unsafe fn tokens_of(&self, row: u32) -> (u32, u32) {
        let lane = lane_idx();
        let is_one = self.destination == row;
        // SAFETY: the whole warp is here, and each token has a place of its own.
        unsafe {
            let all = ballot(u32::from(is_one));
            let place = (all & ((1 << lane) - 1)).count_ones();
            let base = dynamic_shared() + thread_idx_x() / 32 * 32 * 4;
            // All have read what was there.
            sync_warp();
            store_shared_u32_if(base + place * 4, lane, u32::from(is_one));
            sync_warp();
            (load_shared_u32(base + lane * 4), all.count_ones())
        }
    }
}

/// Writes zeros to the rows of a warp's share of a task that are no token's destination.
///
/// # Safety
/// As [`clear`], for the task's rows.
#[inline(always)]
unsafe fn clear_others(params: &ShortQueryParams, task: &RowTask, destination: u32, warp: u32) {
    let share = task.n_rows.div_ceil(WARPS).min(32);
    let mut done = warp * share;
    while done < task.n_rows {
        let (first, n_rows) = (task.row + done, (task.n_rows - done).min(share));
        let own = destination.wrapping_sub(first);
        // SAFETY: the caller's promise; the whole warp takes every round.
        unsafe {
            let chosen = or_lanes(if own < n_rows { 1 << own } else { 0 });
            clear(&params.out, first, n_rows, chosen);
        }
        done += share * WARPS;
    }
}

/// Writes zeros to rows `first .. first + n_rows`, up to 32, except those whose bit is set.
///
/// # Safety
/// A whole warp; the output must have the rows, and overwrite them.
#[inline(always)]
unsafe fn clear(out: &Output, first: u32, n_rows: u32, except: u32) {
    let element_bytes = if out.element == Output::F32 { 4 } else { 2 };
    let row_bytes = out.dim * element_bytes;
    // SAFETY: the caller's promise; chunks of 16 bytes are aligned where the output says so.
    unsafe {
        if out.aligned != 0 && row_bytes.is_multiple_of(16) {
            let chunks = row_bytes / 16;
            // A row is written by the most lanes, a power of two, that all have a chunk of it.
            let lanes_log2 = (31 - (chunks | 1).leading_zeros()).min(5);
            let (lanes, slots) = (1 << lanes_log2, 32 >> lanes_log2);
            let (slot, mut chunk) = (lane_idx() >> lanes_log2, lane_idx() & (lanes - 1));
            let rows = (!except & u32::MAX >> (32 - n_rows)).unbounded_shr(slot);
            let base = out.base + u64::from(first + slot) * u64::from(row_bytes);
            while chunk < chunks {
                let (mut left, mut address) = (rows, base + u64::from(chunk) * 16);
                while left != 0 {
                    unroll!(_k in four => {
                        if left & 1 != 0 {
                            store_u32x4(address, [0; 4]);
                        }
                        left = left.unbounded_shr(slots);
                        address += u64::from(slots * row_bytes);
                    });
                }
                chunk += lanes;
            }
            return;
        }
        let mut row = 0;
        while row < n_rows {
            let mut element = lane_idx();
            while except >> row & 1 == 0 && element < out.dim {
                let index = u64::from(first + row) * u64::from(out.dim) + u64::from(element);
                store_element(out, index, 0.0);
                element += 32;
            }
            row += 1;
        }
    }
}
