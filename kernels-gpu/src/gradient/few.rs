//! `∂D` of documents that few query tokens choose: those of one pair, whose query has at most a
//! warp's worth of tokens.
//!
//! A block per run of a document's rows. Each warp has all the sources, one per lane, sorted by
//! destination in its registers. Destinations are shared out among the block's warps, and within a
//! warp among the lanes that read a row: all of them are under way at once. The other rows are
//! cleared meanwhile. So the gradient is written once, and nothing is sorted through memory.
//!
//! Blocks behind the last task sum over pairs as `gather` does: a launch less, and work for
//! multiprocessors whose last task has ended.

use super::gather::{gather_block, row_task};
use super::normalize::scaled;
use super::output::{store, store_element, store_lane};
use super::pairs::{pair, winner_if};
use super::sources::{Columns, Element, Sums, add, add_slots, multiply, unroll};
use super::{FewParams, NO_ROW, Output, RowTask, WARPS};
use crate::ptx::memory::dynamic_shared;
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{ballot, sync_warp};
use crate::ptx::wide::{
    lane_idx, load_shared_u32, or_lanes, shuffle, shuffle_up_or_zero, store_shared_u32,
    store_shared_u32_if, store_u32x4,
};
use core::hint::assert_unchecked;

/// Sums the sources of this block's rows.
///
/// # Safety
/// `params` must describe a call as [`FewParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn few<T: Element>(params: &FewParams) {
    let n_blocks = params.n_tasks * params.source.n_columns;
    let block = block_idx_x();
    // SAFETY: the caller's promise.
    unsafe {
        if block >= n_blocks {
            return gather_block::<T>(&params.gather, block - n_blocks);
        }
        match params.source.aligned {
            0 => sum_rows::<T, false, 1>(params, block),
            _ => sum_rows::<T, true, SHARES_MAX>(params, block),
        }
    }
}

/// # Safety
/// As [`few`], for a block that has a task; `ALIGNED` is that of the source. A lane has `SHARES`
/// destinations at once.
#[inline(always)]
unsafe fn sum_rows<T: Element, const ALIGNED: bool, const SHARES: usize>(
    params: &FewParams,
    block: u32,
) {
    const { assert!(SHARES <= SHARES_MAX) };
    // SAFETY: the host launches a block per task and column; what it lists exists, and no two
    // lanes have the same destination's elements.
    unsafe {
        assert_unchecked(params.n_tasks != 0);
        let (column, task) = (block / params.n_tasks, block % params.n_tasks);
        let task = row_task(params.tasks, task);
        let columns = Columns::new::<T>(&params.source, column);
        let warp = thread_idx_x() / 32;
        let sources = Sources::load(params, &task).sorted(warp);
        let n_shares = sources.share_out(&task, warp);
        let is_there = |i: u32, share: Share| (i < share.count()) & (columns.n_elements > 0);
        // Of those that the warp's lanes read at once, the block has one after the other.
        let at_once = 32 >> columns.lanes_log2;
        let mut index = warp * at_once + columns.slot;
        let mut done = 0;
        loop {
            let mut own = [Share::NONE; SHARES_MAX];
            unroll!(u in 0 1 => if u < SHARES {
                let share = sources.share(index + u as u32 * WARPS * at_once, n_shares, warp);
                own[u] = if share.count() > ALONE_MAX { Share::NONE } else { share };
            });
            let mut sums: [Sums; SHARES_MAX] = core::mem::zeroed();
            let mut i = 0;
            loop {
                let mut words = [[0u32; 4]; SHARES_MAX];
                let mut factors = [0.0f32; SHARES_MAX];
                unroll!(u in 0 1 => if u < SHARES {
                    let [row, factor] = sources.source.map(|word| shuffle(word, own[u].lane() + i));
                    let is_there = is_there(i, own[u]);
                    words[u] = columns.load::<T, ALIGNED>(row, u32::from(is_there));
                    factors[u] = if is_there { f32::from_bits(factor) } else { 0.0 };
                });
                // While the first rows come.
                if done + i == 0 && params.fills != 0 && column == 0 {
                    clear_others(params, &task, sources.destination, warp);
                }
                unroll!(u in 0 1 => if u < SHARES {
                    multiply::<T>(words[u], factors[u], &mut sums[u]);
                });
                i += 1;
                if ballot(u32::from(i < own[0].count().max(own[1].count()))) == 0 {
                    break;
                }
            }
            unroll!(u in 0 1 => if u < SHARES {
                let row = shuffle(sources.destination, own[u].lane());
                if is_there(0, own[u]) {
                    store_lane::<T>(&params.out, &columns, u64::from(row), &sums[u]);
                }
            });
            done += SHARES as u32 * WARPS * at_once;
            index += SHARES as u32 * WARPS * at_once;
            if done >= n_shares {
                break;
            }
        }
        let mut index = warp;
        while index < n_shares {
            let share = sources.share(index, n_shares, warp);
            if share.count() > ALONE_MAX {
                sum_large::<T, ALIGNED>(params, &columns, &sources, share);
            }
            index += WARPS;
        }
    }
}

/// Most destinations that a lane has at once: with lanes for two rows of 256 bytes, all that there
/// can be. Rows that are not aligned are read element by element, which is enough in flight.
const SHARES_MAX: usize = 2;

/// Most sources that the lanes of one row sum one after the other: for more of them the whole warp
/// reads as many at once as it can.
const ALONE_MAX: u32 = 4;

/// Sums the sources of a destination that has many.
///
/// # Safety
/// As [`sum_rows`], for the whole warp, with the same destination.
#[inline(always)]
unsafe fn sum_large<T: Element, const ALIGNED: bool>(
    params: &FewParams,
    columns: &Columns,
    sources: &Sources,
    share: Share,
) {
    let (first, count) = (share.lane(), share.count());
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums: Sums = core::mem::zeroed();
        add::<T, ALIGNED, 3>(columns, sources.source, first, count, &mut sums);
        add_slots::<T>(columns, &mut sums);
        let row = shuffle(sources.destination, first);
        store::<T>(&params.out, columns, u64::from(row), &sums);
    }
}

/// A destination: in the lowest byte the lane of its first source, above it the number of sources,
/// in lanes that follow each other; 0 = none. (One word, since registers are short.)
#[derive(Clone, Copy)]
struct Share(u32);

impl Share {
    const NONE: Share = Share(0);

    #[inline(always)]
    fn lane(self) -> u32 {
        self.0 & 0xFF
    }

    #[inline(always)]
    fn count(self) -> u32 {
        self.0 >> 8
    }
}

/// A source per lane.
#[derive(Clone, Copy)]
struct Sources {
    /// Row of the documents' matrix, [`NO_ROW`] where the lane has none.
    destination: u32,
    /// Row of the queries' matrix, and factor.
    source: [u32; 2],
}

impl Sources {
    /// Those of a task's pair, in the order of the query's tokens.
    ///
    /// # Safety
    /// The task must be of the call, and its query have at most 32 tokens.
    #[inline(always)]
    unsafe fn load(params: &FewParams, task: &RowTask) -> Sources {
        let lane = lane_idx();
        // SAFETY: the pair has a winner for each of its query's tokens.
        unsafe {
            let pair = pair(&params.pairs, &task.first, 0);
            let is_there = u32::from(lane < pair.query_len);
            let winner = winner_if(&params.pairs, pair.token_base + u64::from(lane), is_there);
            let is_there = is_there != 0 && winner < pair.document_len;
            let row = if is_there { pair.query_start + lane } else { NO_ROW };
            Sources {
                destination: if is_there { pair.document_start + winner } else { NO_ROW },
                source: [row, scaled(&params.pairs, row, pair.factor).to_bits()],
            }
        }
    }

    /// The same by destination, and in their order where that is equal.
    ///
    /// # Safety
    /// A whole warp, the block's `warp`th, with room in shared memory for its sources.
    #[inline(always)]
    unsafe fn sorted(self, warp: u32) -> Sources {
        let lane = lane_idx();
        let mut place = 0;
        let mut other = 0;
        // SAFETY: the whole warp is here, and each lane has a place of its own.
        unsafe {
            while other < 32 {
                let destination = shuffle(self.destination, other);
                let is_equal = destination == self.destination;
                let is_before = (destination < self.destination) | (is_equal & (other < lane));
                place += u32::from(is_before);
                other += 1;
            }
            let base = dynamic_shared() + warp * 32 * Self::BYTES;
            let address = base + place * Self::BYTES;
            store_shared_u32(address, self.destination);
            store_shared_u32(address + 4, self.source[0]);
            store_shared_u32(address + 8, self.source[1]);
            sync_warp();
            let address = base + lane * Self::BYTES;
            Sources {
                destination: load_shared_u32(address),
                source: [load_shared_u32(address + 4), load_shared_u32(address + 8)],
            }
        }
    }

    /// Lists the destinations among a task's rows, of sorted sources, for [`Sources::share`]; how
    /// many there are.
    ///
    /// # Safety
    /// A whole warp, the block's `warp`th, with the room that it has for its sources.
    #[inline(always)]
    unsafe fn share_out(&self, task: &RowTask, warp: u32) -> u32 {
        let lane = lane_idx();
        // SAFETY: the whole warp is here, and each destination has a word of its own.
        unsafe {
            let before = shuffle_up_or_zero(self.destination, 1);
            let is_first = (lane == 0) | (self.destination != before);
            let firsts = ballot(u32::from(is_first));
            let behind = firsts & !(2u32 << lane).wrapping_sub(1);
            let end = if behind == 0 { 32 } else { behind.trailing_zeros() };
            let is_ours = is_first & (self.destination.wrapping_sub(task.row) < task.n_rows);
            let ours = ballot(u32::from(is_ours));
            let index = (ours & ((1 << lane) - 1)).count_ones();
            let address = dynamic_shared() + warp * 32 * Self::BYTES + index * 4;
            // All have read the sources that were there.
            sync_warp();
            store_shared_u32_if(address, lane | (end - lane) << 8, u32::from(is_ours));
            sync_warp();
            ours.count_ones()
        }
    }

    /// Destination `index` of `n`.
    ///
    /// # Safety
    /// The block's `warp`th warp, behind [`Sources::share_out`].
    #[inline(always)]
    unsafe fn share(&self, index: u32, n: u32, warp: u32) -> Share {
        if index >= n {
            return Share::NONE;
        }
        let address = dynamic_shared() + warp * 32 * Self::BYTES + index * 4;
        // SAFETY: the caller's promise.
        Share(unsafe { load_shared_u32(address) })
    }

    /// Bytes of one in shared memory.
    const BYTES: u32 = 12;
}

/// Writes zeros to the rows of a warp's share of a task that are no lane's destination.
///
/// # Safety
/// As [`clear`], for the task's rows.
#[inline(always)]
unsafe fn clear_others(params: &FewParams, task: &RowTask, destination: u32, warp: u32) {
    let mut done = warp * 32;
    while done < task.n_rows {
        let (first, n_rows) = (task.row + done, (task.n_rows - done).min(32));
        let own = destination.wrapping_sub(first);
        // SAFETY: the caller's promise; the whole warp takes every round.
        unsafe {
            let chosen = or_lanes(if own < n_rows { 1 << own } else { 0 });
            clear(&params.out, first, n_rows, chosen);
        }
        done += 32 * WARPS;
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
    // SAFETY: the caller's promise; pieces of 16 bytes are aligned where the output says so.
    unsafe {
        if out.aligned != 0 && row_bytes.is_multiple_of(16) {
            let pieces = row_bytes / 16;
            assert_unchecked(pieces != 0);
            let base = out.base + u64::from(first) * u64::from(row_bytes);
            let mut piece = lane_idx();
            while piece < n_rows * pieces {
                if except >> (piece / pieces) & 1 == 0 {
                    store_u32x4(base + u64::from(piece) * 16, [0; 4]);
                }
                piece += 32;
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
