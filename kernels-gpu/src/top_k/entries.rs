//! The entries that a block selects among: the upper words of their keys, and the lower ones.

use super::{NO_WORD, THREADS, TopKParams};
use crate::abi::params::top_k::word;
use crate::primitives::unroll::unroll;
use crate::ptx::global::{
    load_u8, load_u32, load_u32x2, opaque, read_f32, read_f32x8_apart, read_u32,
};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use core::hint::assert_unchecked;

/// The entries of a block: a chunk of a row, and keys that take part beside it.
pub struct Entries {
    /// The chunk's first entry, of all rows.
    start: u64,
    /// Its document, where documents are in order.
    document: u32,
    /// Entries of the chunk.
    n: u32,
    /// Address of the first key, where entries are keys.
    keys: u64,
}

/// Entries that lie one behind the other.
#[derive(Clone, Copy)]
struct Source {
    /// Address of the first one's score, the position of its score, or the upper word of its key.
    address: u64,
    /// Bytes from one to the next.
    pitch: u32,
    n: u32,
    /// 1 where they are scores.
    are_scores: u32,
    /// 1 where they are of the chunk.
    is_own: u32,
}

/// Where an entry is.
#[derive(Clone, Copy)]
pub struct Place {
    source: Source,
    index: u32,
}

impl Place {
    /// Whether the entry is of the chunk.
    #[inline(always)]
    pub fn is_own(&self) -> bool {
        self.source.is_own != 0
    }

    /// The entry so many turns of a block further.
    #[inline(always)]
    pub fn behind(&self, n: u32) -> Place {
        Place { source: self.source, index: self.index + n * THREADS as u32 }
    }

    /// The upper word of the key of a plain entry.
    ///
    /// # Safety
    /// As [`Entries::each`]; there must be the entry.
    #[inline(always)]
    pub unsafe fn plain_word(&self) -> u32 {
        // SAFETY: the caller's promise.
        word(unsafe { read_f32(self.source.address + u64::from(self.index) * 4) }, false)
    }
}

impl Source {
    /// The index of an entry of this thread; behind the last one that is looked at again.
    #[inline(always)]
    fn index(&self, first: u32, k: usize) -> u32 {
        let index = first + (k * THREADS) as u32;
        if index < self.n { index } else { self.n - 1 }
    }

    /// The bits of an entry's score, or the upper word of its key.
    ///
    /// # Safety
    /// As [`Entries::each`]; there must be the entry.
    #[inline(always)]
    unsafe fn load(&self, params: &TopKParams, index: u32) -> u32 {
        // SAFETY: the host sized all lists for the entries of rows, of which this is one.
        unsafe {
            let found = read_u32(self.address + u64::from(index) * u64::from(self.pitch));
            match (self.are_scores != 0, params.positions) {
                (true, 1..) => read_u32(params.scores + u64::from(found) * 4),
                _ => found,
            }
        }
    }
}

impl Entries {
    /// Those of this block; none where the row's best were found, and this is not what ends it.
    ///
    /// # Safety
    /// `params` must describe memory as [`TopKParams`] says.
    #[inline(always)]
    pub unsafe fn of_block(params: &TopKParams) -> Option<Entries> {
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
        let document = params.first_document + row * params.row_documents + first;
        let start = start + u64::from(first);
        let mut entries = Entries { start, document, n, keys: params.keys + start * 8 };
        if params.found != 0 {
            // SAFETY: two words per row.
            let n_found = unsafe { read_u32(params.found + u64::from(row) * 8) };
            if n_found <= params.room {
                if params.n_chunks != 1 {
                    return None;
                }
                entries.n = n_found;
                entries.keys = params.found_keys + u64::from(row) * u64::from(params.room) * 8;
            }
        }
        Some(entries)
    }

    /// The row.
    #[inline(always)]
    pub fn row(&self, params: &TopKParams) -> u32 {
        // SAFETY: as in `of_block`.
        unsafe { assert_unchecked(params.n_chunks != 0) };
        block_idx_x() / params.n_chunks
    }

    /// The entries of the chunk.
    #[inline(always)]
    fn own(&self, params: &TopKParams) -> Source {
        let (n, is_own) = (self.n, 1);
        match (params.scores, params.positions) {
            (0, _) => Source { address: self.keys + 4, pitch: 8, n, are_scores: 0, is_own },
            (scores, 0) => {
                Source { address: scores + self.start * 4, pitch: 4, n, are_scores: 1, is_own }
            }
            (_, positions) => {
                Source { address: positions + self.start * 4, pitch: 4, n, are_scores: 1, is_own }
            }
        }
    }

    /// The keys that take part beside the chunk.
    #[inline(always)]
    fn best(&self, params: &TopKParams) -> Source {
        let n = if params.best == 0 { 0 } else { params.k };
        let address = params.best + u64::from(self.row(params)) * u64::from(params.k) * 8 + 4;
        Source { address, pitch: 8, n, are_scores: 0, is_own: 0 }
    }

    /// Whether the entries of the chunk are scores that lie in order, of documents with tokens.
    #[inline(always)]
    pub fn are_plain(&self, params: &TopKParams) -> bool {
        params.scores != 0 && params.positions == 0 && params.empty == 0 && params.reads_items == 0
    }

    /// Calls `each` with eight scores of each thread, and where the first of them is: the others
    /// follow in steps of a block. Returns where entries begin that do not fill a block's turn.
    /// Only of a chunk that is plain.
    ///
    /// # Safety
    /// As [`Entries::of_block`].
    #[inline(always)]
    pub unsafe fn each_eight(
        &self,
        params: &TopKParams,
        mut each: impl FnMut([f32; 8], Place),
    ) -> u32 {
        let source = self.own(params);
        let mut start = 0;
        while start + 8 * THREADS as u32 <= source.n {
            let index = start + thread_idx_x();
            let address = source.address + u64::from(index) * 4;
            // SAFETY: the row has these entries.
            let scores = unsafe { read_f32x8_apart::<{ THREADS * 4 }>(address) };
            each(scores, Place { source, index });
            start += 8 * THREADS as u32;
        }
        start
    }

    /// Calls `each` with the upper word of the key of every entry, of the chunk from `start` on and
    /// beside it, or with [`NO_WORD`] where lanes of a warp have none; and says which is the last
    /// of four of a thread. Whole warps call it together.
    ///
    /// What is done with an entry is there once, in a loop: instructions come from memory too.
    ///
    /// # Safety
    /// As [`Entries::of_block`], by all threads of the block.
    #[inline(always)]
    pub unsafe fn each(
        &self,
        params: &TopKParams,
        start: u32,
        mut each: impl FnMut(u32, Place, bool),
    ) {
        let mut source = self.own(params);
        let mut start = start;
        loop {
            // As often as the first lane of the block.
            while start < source.n {
                let mut index = start + thread_idx_x();
                let mut words = [0; 4];
                unroll!(K in 0..4 => {
                    // SAFETY: there are these entries.
                    words[K] = unsafe { source.load(params, source.index(index, K)) };
                });
                // Opaque, so that it stays a loop.
                let end = index + opaque(4 * THREADS as u64) as u32;
                while index != end {
                    let place = Place { source, index: source.index(index, 0) };
                    // SAFETY: as above.
                    let word = unsafe { self.word(params, words[0], &place) };
                    let is_there = index < source.n;
                    // Opaque, so that no branch above it becomes one around what warps do.
                    let word = opaque(u64::from(if is_there { word } else { NO_WORD })) as u32;
                    index += THREADS as u32;
                    each(word, place, index == end);
                    words = [words[1], words[2], words[3], words[0]];
                }
                start += 4 * THREADS as u32;
            }
            if source.is_own == 0 {
                return;
            }
            (source, start) = (self.best(params), 0);
        }
    }

    /// The upper word of the key of an entry, of which that or the bits of the score are loaded.
    ///
    /// # Safety
    /// As [`Entries::each`]; there must be the entry.
    #[inline(always)]
    unsafe fn word(&self, params: &TopKParams, loaded: u32, place: &Place) -> u32 {
        if place.source.are_scores == 0 {
            return loaded;
        }
        // SAFETY: the caller's promise.
        let is_empty = (params.empty != 0 || params.reads_items != 0)
            && unsafe { is_empty(params, loaded, self.document(params, place.index)) };
        word(f32::from_bits(loaded), is_empty)
    }

    /// The lower word of the key of an entry.
    ///
    /// # Safety
    /// As [`Entries::each`]; there must be the entry.
    #[inline(always)]
    pub unsafe fn lower_word(&self, params: &TopKParams, place: &Place) -> u32 {
        // SAFETY: the caller's promise; the lower word is before the upper one.
        unsafe {
            match place.source.are_scores {
                0 => read_u32(place.source.address + u64::from(place.index) * 8 - 4),
                _ => !params.first_id.wrapping_add(self.document(params, place.index)),
            }
        }
    }

    /// The document of an entry of the chunk.
    ///
    /// # Safety
    /// As [`Entries::each`]; there must be the entry.
    #[inline(always)]
    unsafe fn document(&self, params: &TopKParams, index: u32) -> u32 {
        match params.documents {
            0 => self.document + index,
            // SAFETY: the list has a document for each entry.
            all => unsafe { load_u32(all + (self.start + u64::from(index)) * 4) },
        }
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
        score << 1 == 0 && item_is_empty(params, document)
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
