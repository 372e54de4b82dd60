//! Fixup: adds the partial sums of rows that span segments, a warp per segment in which one starts.
//!
//! A row of many parts, as one that every source chose has, is the whole block's: the parts are
//! shared out among the warps in their order, and so are the warps' sums added. With up to a part
//! per warp that is the order of the parts, which a warp alone adds sooner.

use crate::abi::params::backward::{
    NO_ROW, SegmentedSumParams, THREADS, WARPS, chunk_start, n_continued,
};
use crate::backward::output::store_element;
use crate::backward::sum_chunks::sum_parts;
use crate::ptx::global::{load_f32, load_u32, load_u32x2};
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32, load_shared_u32, store_shared_f32, store_shared_u32,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};

/// A row whose sources span several segments.
#[derive(Clone, Copy)]
struct SpanningRow {
    segment: u32,
    row: u32,
    /// Number of parts: one in each segment.
    n_parts: u32,
}

/// Adds the partial sums of rows that start in this CTA's segments and span several.
///
/// # Safety
/// `params` must be those of the segmented sum that ran before on the same stream; all threads of
/// the block.
#[inline(always)]
pub unsafe fn fixup(params: &SegmentedSumParams) {
    // SAFETY: the caller's promise.
    unsafe { fixup_block(params, block_idx_x()) }
}

/// Does the work of block `block` of [`fixup`].
///
/// # Safety
/// As [`fixup`], for a block that there is.
#[inline(always)]
pub unsafe fn fixup_block(params: &SegmentedSumParams, block: u32) {
    let (thread, shared) = (thread_idx_x(), dynamic_shared());
    let (warp, lane) = (thread / 32, thread % 32);
    let first = block * WARPS;
    // Behind the sums, for each of the CTA's segments: row and number of parts of a row that all
    // warps add.
    let (rows, parts) = (shared + THREADS as u32 * 4, shared + (THREADS as u32 + WARPS) * 4);
    // SAFETY: the host launches a warp per segment, with shared memory for a word per thread and
    // two per warp; all threads take the same way around the barriers.
    unsafe {
        let own = sum_of_row(params, first + warp);
        let is_large = own.n_parts > WARPS;
        if !is_large {
            let mut element = lane;
            while element < params.out.dim && own.n_parts > 0 {
                let sum = sum_parts(own.n_parts, |i| part(params, own.segment, i, element));
                store_sum(params, own.row, element, sum);
                element += 32;
            }
        }
        if lane == 0 {
            store_shared_u32(rows + warp * 4, own.row);
            store_shared_u32(parts + warp * 4, if is_large { own.n_parts } else { 0 });
        }
        sync_threads();
        let mut other = 0;
        while other < WARPS {
            let n_parts = load_shared_u32(parts + other * 4);
            if n_parts > 0 {
                let row = load_shared_u32(rows + other * 4);
                let large = SpanningRow { segment: first + other, row, n_parts };
                fixup_large(params, large, shared, thread);
            }
            other += 1;
        }
    }
}

/// The row that starts in a segment and spans several; no partial sums where there is none.
///
/// # Safety
/// As [`fixup`].
#[inline(always)]
unsafe fn sum_of_row(params: &SegmentedSumParams, segment: u32) -> SpanningRow {
    let nothing = SpanningRow { segment, row: NO_ROW, n_parts: 0 };
    if segment >= params.n_segments {
        return nothing;
    }
    // SAFETY: the segment has a last destination, which exists.
    unsafe {
        let index = load_u32(params.lasts + u64::from(segment) * 4);
        let address = params.destinations + u64::from(index) * 8;
        let [first, row] = load_u32x2(address);
        let last = match index + 1 < params.n_destinations {
            true => load_u32(address + 8),
            false => params.n_sources,
        };
        match n_continued(segment, params.segment_len, first, last) {
            0 => nothing,
            _ if row == NO_ROW => nothing,
            n => SpanningRow { segment, row, n_parts: n + 1 },
        }
    }
}

/// Element of part `i` of the row that starts in a segment.
///
/// # Safety
/// The row must have the part.
#[inline(always)]
unsafe fn part(params: &SegmentedSumParams, segment: u32, i: u32, element: u32) -> f32 {
    let base = if i == 0 { params.tails } else { params.heads };
    let index = u64::from(segment + i) * u64::from(params.out.dim) + u64::from(element);
    // SAFETY: the caller's promise; the segmented sum has stored it.
    unsafe { load_f32(base + index * 4) }
}

/// Stores an element of a row.
///
/// # Safety
/// The row must be one of the output's, for this thread to write.
#[inline(always)]
unsafe fn store_sum(params: &SegmentedSumParams, row: u32, element: u32, sum: f32) {
    let row = u64::from(row - params.first_row);
    // SAFETY: the caller's promise.
    unsafe { store_element(&params.out, row * u64::from(params.out.dim) + u64::from(element), sum) }
}

/// Adds the parts of a row that has many, all warps together.
///
/// # Safety
/// All threads of the block, behind a barrier.
#[inline(always)]
unsafe fn fixup_large(params: &SegmentedSumParams, large: SpanningRow, shared: u32, thread: u32) {
    let (warp, lane, dim) = (thread / 32, thread % 32, params.out.dim);
    let begin = chunk_start(large.n_parts, warp, WARPS);
    let n_own = chunk_start(large.n_parts, warp + 1, WARPS) - begin;
    let mut column = 0;
    // SAFETY: the caller's promise; all threads take the same way around the barriers.
    unsafe {
        while column < dim {
            let element = column + lane;
            let is_there = element < dim;
            let mut sum = 0.0;
            if is_there {
                sum = sum_parts(n_own, |i| part(params, large.segment, begin + i, element));
            }
            store_shared_f32(shared + thread * 4, sum);
            sync_threads();
            if warp == 0 && is_there {
                let mut sum = 0.0;
                let mut other = 0;
                while other < WARPS {
                    sum += load_shared_f32(shared + (other * 32 + lane) * 4);
                    other += 1;
                }
                store_sum(params, large.row, element, sum);
            }
            sync_threads();
            column += 32;
        }
    }
}
