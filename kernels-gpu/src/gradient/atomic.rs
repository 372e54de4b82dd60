//! Both gradients in one pass over the winners: a warp per query token, as in `gather`.
//!
//! `∂Q[q, s] = Σ_k g[q, d_k] · D[d_k, winner(q, d_k, s)]` is summed in registers in the order of the
//! query's pairs, and `g · Q[q, s]` is added to the winner's row of ∂D in memory, in whatever order
//! warps come to it: `Q[q, s]` is read once, and nothing is sorted.
//!
//! Where rows are normalised, g is multiplied by what the winner's row is for ∂Q, and `Q[q, s]` by
//! its own for ∂D.
//!
//! Each lane has as many additions under way as loads. Known loss: a row of ∂D that everybody chose
//! is added to by one unit of the L2 cache, one after the other; and where the device has no
//! additions of 16 bytes (before sm_90), each element is an addition of its own.

use super::gather::{Ahead, row_task};
use super::output::store;
use super::sources::{Columns, Element, LANE_ELEMENTS, Sums, add_and, add_slots, unroll};
use super::{AtomicParams, NO_ROW, chunk_start};
use crate::ptx::memory::load_u32;
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::wide::{add_f32_if, add_f32x4_if, shuffle};
use core::hint::assert_unchecked;

/// Sums the sources of this warp's row, and adds the row to the gradients of theirs.
///
/// # Safety
/// `params` must describe a call as [`AtomicParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn atomic<T: Element>(params: &AtomicParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.sums.source.aligned {
            0 => sum_and_add::<T, false>(params),
            _ => sum_and_add::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`atomic`]; `ALIGNED` is that of the documents' rows.
#[inline(always)]
unsafe fn sum_and_add<T: Element, const ALIGNED: bool>(params: &AtomicParams) {
    let AtomicParams { sums: gather, .. } = params;
    // SAFETY: the host launches a block per task, column and chunk; what it lists exists. Queries
    // have as many columns as documents, and a source's row is one of the documents'.
    unsafe {
        assert_unchecked(gather.n_tasks != 0 && gather.source.n_columns != 0);
        let block = block_idx_x();
        let (rest, task) = (block / gather.n_tasks, block % gather.n_tasks);
        let (chunk, column) = (rest / gather.source.n_columns, rest % gather.source.n_columns);
        let task = row_task(gather.tasks, task);
        let warp = thread_idx_x() / 32;
        if warp >= task.n_rows {
            return;
        }
        let row = task.row + warp;
        let mut k = chunk_start(task.n_pairs, chunk, gather.n_chunks);
        let end = chunk_start(task.n_pairs, chunk + 1, gather.n_chunks);
        let columns = Columns::new::<T>(&gather.source, column);
        let own = own_elements::<T>(params, row, column);
        let mut sums: Sums = core::mem::zeroed();
        if k < end {
            let mut next = Ahead::load(gather, &task.first, row, k, end);
            while k < end {
                let (plain, count) = (next.factor(), (end - k).min(32));
                let sources = next.source(&gather.pairs);
                k += 32;
                next = Ahead::load(gather, &task.first, row, k, end);
                add_and::<T, ALIGNED, 4>(
                    &columns,
                    sources,
                    0,
                    count,
                    &mut sums,
                    |before, factor| {
                        let i = before + columns.slot;
                        let row = shuffle(sources[0], i);
                        let is_there = (i < count) & (row != NO_ROW) & (columns.n_elements > 0);
                        // The factor of a row that is normalised has what it is multiplied by.
                        let mut factor = factor;
                        if gather.pairs.source_norms != 0 {
                            factor = f32::from_bits(shuffle(plain, i));
                        }
                        add_own::<T>(params, &columns, row, factor, &own, is_there);
                    },
                );
            }
        }
        add_slots::<T>(&columns, &mut sums);
        let index = match gather.n_chunks {
            1 => u64::from(row),
            _ => u64::from(chunk) * u64::from(gather.n_rows) + u64::from(task.index + warp),
        };
        store::<T>(&gather.out, &columns, index, &sums);
    }
}

/// The lane's elements of a query row.
///
/// # Safety
/// As [`atomic`]; the queries must have the row, and its matrix the column.
#[inline(always)]
unsafe fn own_elements<T: Element>(
    params: &AtomicParams,
    row: u32,
    column: u32,
) -> [f32; LANE_ELEMENTS] {
    let columns = Columns::new::<T>(&params.queries, column);
    let is_there = u32::from(columns.n_elements > 0);
    // SAFETY: the caller's promise; four bytes per row of what it is normalised by.
    unsafe {
        let mut own = T::widen(match params.queries.aligned {
            0 => columns.load::<T, false>(row, is_there),
            _ => columns.load::<T, true>(row, is_there),
        });
        if params.query_norms != 0 {
            let norm = f32::from_bits(load_u32(params.query_norms + u64::from(row) * 4));
            unroll!(e in eight => own[e] *= norm);
        }
        own
    }
}

/// Adds the lane's elements of the query row, times a factor, to a row of the documents' gradient.
///
/// # Safety
/// As [`atomic`]; the row must exist where it says so.
#[inline(always)]
unsafe fn add_own<T: Element>(
    params: &AtomicParams,
    columns: &Columns,
    row: u32,
    factor: f32,
    own: &[f32; LANE_ELEMENTS],
    is_there: bool,
) {
    let out = &params.documents;
    let first = u64::from(row) * u64::from(out.dim) + u64::from(columns.element);
    let address = out.base + first * 4;
    // SAFETY: the caller's promise; whole lanes are aligned where the output says so.
    unsafe {
        if out.aligned != 0 && columns.n_elements == T::N as u32 {
            unroll!(k in 0 1 => if k < T::N / 4 {
                let mut four = [0.0f32; 4];
                unroll!(e in four => four[e] = factor * own[4 * k + e]);
                add_f32x4_if(address + k as u64 * 16, four, u32::from(is_there));
            });
            return;
        }
        unroll!(e in eight => {
            let is_there = is_there & ((e as u32) < columns.n_elements);
            add_f32_if(address + e as u64 * 4, factor * own[e], u32::from(is_there));
        });
    }
}
