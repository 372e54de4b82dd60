//! Finds the rows of items from offsets, lengths and ids in device memory, so that calls whose
//! items the host does not know need not wait for them.
//!
//! A thread per item, or per byte of the items' mask. Input is checked here, since the host
//! cannot: what is invalid becomes an empty item and is marked, so that no kernel reads outside a
//! matrix.

use crate::abi::params::{SEGMENTS_THREADS, Segment, SegmentsParams};
use crate::ptx::global::{load_u8, load_u32, load_u64, store_u8, store_u32x2};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use core::hint::assert_unchecked;

/// Writes the segment of this thread's item, whether that is invalid, or a byte of its mask.
///
/// # Safety
/// `params` must describe memory as [`SegmentsParams`] says, and what is written may not be read by
/// the same launch.
#[inline(always)]
pub unsafe fn segments(params: &SegmentsParams) {
    let i = u64::from(block_idx_x()) * SEGMENTS_THREADS as u64 + u64::from(thread_idx_x());
    let width = params.width();
    if i >= u64::from(params.n_items) * u64::from(width) {
        return;
    }
    // Fewer than 2³¹, as all rows are.
    let i = i as u32;
    // SAFETY: the host sized all arrays; the width is not 0.
    unsafe {
        assert_unchecked(width != 0);
        let (item, row) = (i / width, i % width);
        let found = find(params, item);
        let rows = found.unwrap_or(Segment { start: 0, len: 0 });
        if row == 0 {
            if params.segments != 0 {
                let address = params.segments + u64::from(item) * size_of::<Segment>() as u64;
                store_u32x2(address, [rows.start, rows.len]);
            }
            store_u8(params.invalid + u64::from(item), found.is_none() as u32);
        }
        if params.mask != 0 && params.max_len != 0 {
            let is_kept = params.mask_in == 0 || load_u8(params.mask_in + u64::from(i)) != 0;
            store_u8(params.mask + u64::from(i), (row < rows.len && is_kept) as u32);
        }
    }
}

/// The rows of an item; `None` where it is invalid.
///
/// # Safety
/// As [`segments`]; there must be the item.
#[inline(always)]
unsafe fn find(params: &SegmentsParams, item: u32) -> Option<Segment> {
    // SAFETY: an index per item, and what is read of source items is checked to be there.
    unsafe {
        let source = match params.ids {
            0 => i64::from(item),
            ids => index(ids, u64::from(item), params.has_wide_ids),
        };
        if source < 0 || source >= i64::from(params.n_sources) {
            return None;
        }
        let source = source as u64;
        let start = match params.starts {
            0 => (source * u64::from(params.stride)) as i64,
            starts => index(starts, source, params.is_wide),
        };
        if params.lengths != 0 {
            return params.rows_of_len(start, index(params.lengths, source, params.is_wide));
        }
        match params.starts {
            0 => params.rows_of_len(start, i64::from(params.max_len)),
            starts => params.rows(start, index(starts, source + 1, params.is_wide)),
        }
    }
}

/// Entry `i` of a list of numbers of 64 or 32 bits.
///
/// # Safety
/// The list must have it.
#[inline(always)]
unsafe fn index(list: u64, i: u64, is_wide: u32) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        match is_wide {
            0 => i64::from(load_u32(list + i * 4) as i32),
            _ => load_u64(list + i * 8) as i64,
        }
    }
}
