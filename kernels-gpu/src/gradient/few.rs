//! `∂D` of documents that few query tokens choose: those of one pair, whose query has at most a
//! warp's worth of tokens.
//!
//! A block per run of a document's rows. Each warp has all the sources, one per lane, sorted by
//! destination in its registers; it sums those of its own rows, and writes zeros to the others. So
//! the gradient is written once, and nothing is sorted through memory.

use super::gather::row_task;
use super::output::{store, store_element};
use super::pairs::{pair, winner_if};
use super::sources::{Columns, Element, Sums, add, add_slots};
use super::{FewParams, NO_ROW, Output, RowTask, WARPS};
use crate::ptx::memory::dynamic_shared;
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{ballot, sync_warp};
use crate::ptx::wide::{
    lane_idx, load_shared_u32, or_lanes, shuffle, store_shared_u32, store_u32x4,
};
use core::hint::assert_unchecked;

/// Sums the sources of this block's rows.
///
/// # Safety
/// `params` must describe a call as [`FewParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn few<T: Element>(params: &FewParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.source.aligned {
            0 => sum_rows::<T, false>(params),
            _ => sum_rows::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`few`]; `ALIGNED` is that of the source.
#[inline(always)]
unsafe fn sum_rows<T: Element, const ALIGNED: bool>(params: &FewParams) {
    // SAFETY: the host launches a block per task and column; what it lists exists.
    unsafe {
        assert_unchecked(params.n_tasks != 0);
        let (column, task) = (block_idx_x() / params.n_tasks, block_idx_x() % params.n_tasks);
        let task = row_task(params.tasks, task);
        let columns = Columns::new::<T>(&params.source, column);
        let warp = thread_idx_x() / 32;
        let sources = Sources::load(params, &task).sorted(warp);
        let mut done = warp * 32;
        while done < task.n_rows {
            let (first, n_rows) = (task.row + done, (task.n_rows - done).min(32));
            let own = sources.destination.wrapping_sub(first);
            let chosen = or_lanes(if own < n_rows { 1 << own } else { 0 });
            if params.fills != 0 && column == 0 {
                clear(&params.out, first, n_rows, chosen);
            }
            let mut left = chosen;
            while left != 0 {
                let row = first + left.trailing_zeros();
                left &= left - 1;
                // Lanes that follow each other.
                let lanes = ballot(u32::from(sources.destination == row));
                let (lane, count) = (lanes.trailing_zeros(), lanes.count_ones());
                let mut sums: Sums = core::mem::zeroed();
                add::<T, ALIGNED>(&columns, sources.source, lane, count, &mut sums);
                add_slots::<T>(&columns, &mut sums);
                store::<T>(&params.out, &columns, u64::from(row), &sums);
            }
            done += 32 * WARPS;
        }
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
            Sources {
                destination: if is_there { pair.document_start + winner } else { NO_ROW },
                source: [pair.query_start + lane, pair.factor.to_bits()],
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

    /// Bytes of one in shared memory.
    const BYTES: u32 = 12;
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
