//! The entries of a block's chunk, as keys.

use super::{NO_KEY, THREADS, TopKParams};
use crate::abi::params::top_k::key;
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_u8, load_u32, load_u32x2, load_written_u64, opaque};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use core::hint::assert_unchecked;

/// Loads in flight per thread.
const UNROLL: usize = 8;

/// A chunk of a row.
pub struct Entries {
    /// The row.
    pub row: u32,
    /// The row's first entry, of all rows.
    start: u64,
    /// The chunk within the row.
    first: u32,
    end: u32,
}

impl Entries {
    /// The chunk of this block.
    ///
    /// # Safety
    /// `params` must describe memory as [`TopKParams`] says.
    #[inline(always)]
    pub unsafe fn of_block(params: &TopKParams) -> Entries {
        // SAFETY: the host launches a block per chunk, and of none no block.
        unsafe { assert_unchecked(params.n_chunks != 0) };
        let (row, chunk) = (block_idx_x() / params.n_chunks, block_idx_x() % params.n_chunks);
        let (start, len) = match params.starts {
            0 => (u64::from(row) * u64::from(params.row_len), params.row_len),
            starts => {
                let address = starts + u64::from(row) * 4;
                // SAFETY: the rows' starts, and the end of the last.
                let [start, end] = unsafe { [load_u32(address), load_u32(address + 4)] };
                (u64::from(start), end - start)
            }
        };
        let first = chunk * params.chunk_len;
        let left = len.saturating_sub(first);
        let n = if left < params.chunk_len { left } else { params.chunk_len };
        Entries { row, start, first, end: first + n }
    }

    /// Calls `each` with the key of every entry of the chunk, and of those that take part beside
    /// it; and with [`NO_KEY`] where lanes of a warp have none. Whole warps call it together.
    ///
    /// # Safety
    /// As [`Entries::of_block`], by all threads of the block.
    #[inline(always)]
    pub unsafe fn each(&self, params: &TopKParams, mut each: impl FnMut(u64)) {
        // SAFETY: the caller's promise.
        unsafe {
            self.each_own(params, &mut each);
            self.each_best(params, &mut each);
        }
    }

    /// As [`Entries::each`], with the entries of the chunk alone.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn each_own(&self, params: &TopKParams, each: impl FnMut(u64)) {
        // SAFETY: the row has these entries.
        unsafe {
            match params.scores {
                0 => self.each_key(params, each),
                _ => self.each_score(params, each),
            }
        }
    }

    /// As [`Entries::each_own`], where entries are keys.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn each_key(&self, params: &TopKParams, mut each: impl FnMut(u64)) {
        let mut first = self.first + thread_idx_x();
        let all = params.keys + self.start * 8;
        // As often as the first lane of the block.
        while first - thread_idx_x() < self.end {
            let mut keys = [NO_KEY; 4];
            unroll!(K in 0..4 => {
                // SAFETY: the row has these entries.
                keys[K] = unsafe { load_written_u64(all + u64::from(self.column(first, K)) * 8) };
            });
            unroll!(K in 0..4 => {
                let is_there = first + ((K * THREADS) as u32) < self.end;
                // Opaque, so that no branch above it becomes one around what whole warps do.
                each(opaque(if is_there { keys[K] } else { NO_KEY }));
            });
            first += (4 * THREADS) as u32;
        }
    }

    /// As [`Entries::each_own`], where entries are scores.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn each_score(&self, params: &TopKParams, mut each: impl FnMut(u64)) {
        let mut first = self.first + thread_idx_x();
        while first - thread_idx_x() < self.end {
            // SAFETY: the row has these entries.
            let scores = unsafe { self.scores(params, first) };
            unroll!(K in 0..8 => {
                let column = self.column(first, K);
                // SAFETY: as above.
                let key = unsafe { self.key(params, scores[K], column) };
                let is_there = first + ((K * THREADS) as u32) < self.end;
                each(opaque(if is_there { key } else { NO_KEY }));
            });
            first += (UNROLL * THREADS) as u32;
        }
    }

    /// As [`Entries::each`], with the keys that take part beside the chunk alone.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn each_best(&self, params: &TopKParams, mut each: impl FnMut(u64)) {
        if params.best == 0 {
            return;
        }
        let best = params.best + u64::from(self.row) * u64::from(params.k) * 8;
        let mut first = 0;
        while first < params.k {
            let place = first + thread_idx_x();
            let is_there = place < params.k;
            let place = if is_there { place } else { params.k - 1 };
            // SAFETY: the row has k keys.
            let key = unsafe { load_written_u64(best + u64::from(place) * 8) };
            each(opaque(if is_there { key } else { NO_KEY }));
            first += THREADS as u32;
        }
    }

    /// The scores of [`UNROLL`] entries.
    ///
    /// # Safety
    /// As [`Entries::each`]; the chunk must have an entry.
    #[inline(always)]
    unsafe fn scores(&self, params: &TopKParams, first: u32) -> [u32; UNROLL] {
        let mut scores = [0u32; UNROLL];
        // SAFETY: the host sized all lists for the entries of rows, of which this is one.
        unsafe {
            if params.positions == 0 {
                let all = params.scores + self.start * 4;
                unroll!(K in 0..8 => {
                    scores[K] = load_u32(all + u64::from(self.column(first, K)) * 4);
                });
                return scores;
            }
            let all = params.positions + self.start * 4;
            unroll!(K in 0..8 => {
                let position = load_u32(all + u64::from(self.column(first, K)) * 4);
                scores[K] = load_u32(params.scores + u64::from(position) * 4);
            });
        }
        scores
    }

    /// The key of an entry.
    ///
    /// # Safety
    /// As [`Entries::scores`]; the chunk must have the column.
    #[inline(always)]
    unsafe fn key(&self, params: &TopKParams, score: u32, column: u32) -> u64 {
        // SAFETY: as there.
        unsafe {
            let document = match params.documents {
                0 => params.first_document + self.row * params.row_documents + column,
                documents => load_u32(documents + (self.start + u64::from(column)) * 4),
            };
            let is_empty = is_empty(params, score, document);
            key(score, params.first_id.wrapping_add(document), is_empty)
        }
    }

    /// The column of an entry of this thread; behind the chunk's last one it is looked at again.
    #[inline(always)]
    fn column(&self, first: u32, k: usize) -> u32 {
        let column = first + (k * THREADS) as u32;
        if column < self.end { column } else { self.end - 1 }
    }
}

/// Whether a document has no token.
///
/// # Safety
/// As [`Entries::each`]; there must be the document.
#[inline(always)]
unsafe fn is_empty(params: &TopKParams, score: u32, document: u32) -> bool {
    // SAFETY: a bit per document; items are rows of the matrix, each with a byte of the mask.
    unsafe {
        if params.empty != 0 {
            return load_u32(params.empty + u64::from(document / 32) * 4) >> (document % 32) & 1
                != 0;
        }
        // An empty document scores 0.
        params.reads_items != 0 && score << 1 == 0 && item_is_empty(params, document)
    }
}

/// Whether an item has no row that is valid.
///
/// # Safety
/// As [`is_empty`].
#[inline(always)]
unsafe fn item_is_empty(params: &TopKParams, item: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let [start, len] = match params.segments {
            0 => [item * params.item_len, params.item_len],
            segments => load_u32x2(segments + u64::from(item) * 8),
        };
        let mut row = 0;
        while row < len {
            if params.mask == 0 || load_u8(params.mask + u64::from(start + row)) != 0 {
                return false;
            }
            row += 1;
        }
        true
    }
}
