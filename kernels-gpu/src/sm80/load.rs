//! Copies of slabs from a token matrix into shared memory.

use super::{Block, Element};
use crate::layout::sm80::DOCUMENT_TILE;
use crate::layout::{CHUNK_BYTES, SLAB_BYTES, chunk_offset};
use crate::params::{Matrix, Segment};
use crate::ptx::copy::{copy_async_16, copy_commit};
use crate::ptx::memory::store_shared_u32x4;

/// Chunks of a slab row.
const CHUNKS: u32 = (SLAB_BYTES / CHUNK_BYTES) as u32;

impl Block<'_> {
    /// Starts the copy of step `step` of a document: slab `step % n_slabs` of tile
    /// `step / n_slabs`. Closes a group in any case, so that groups count steps.
    ///
    /// # Safety
    /// Every thread of the block; the step's stage must be free.
    #[inline(always)]
    pub(super) unsafe fn load_step<E: Element, const WARPS: usize, const STAGES: usize>(
        &self,
        document: Segment,
        step: u32,
        n_steps: u32,
    ) {
        if step < n_steps {
            let first = step / self.n_slabs * DOCUMENT_TILE as u32;
            // SAFETY: the caller's promise.
            unsafe {
                self.load_slab::<E, WARPS>(
                    &self.params.documents,
                    DOCUMENT_TILE as u32,
                    step % self.n_slabs,
                    self.stage::<STAGES>(step),
                    |row| (first + row < document.len).then_some(document.start + first + row),
                );
            }
        }
        copy_commit();
    }

    /// Starts the copy of slab `slab` of `n_rows` rows, the matrix rows that `row_of` gives.
    /// Rows without one, and bytes past the row's end, become zeros.
    ///
    /// # Safety
    /// Every thread of the block; `row_of` must give rows of the matrix; `shared` must be free.
    #[inline(always)]
    pub(super) unsafe fn load_slab<E: Element, const WARPS: usize>(
        &self,
        matrix: &Matrix,
        n_rows: u32,
        slab: u32,
        shared: u32,
        row_of: impl Fn(u32) -> Option<u32>,
    ) {
        let row_bytes = self.params.dim * E::BYTES as u32;
        let mut i = self.thread;
        while i < n_rows * CHUNKS {
            let (row, chunk) = (i / CHUNKS, i % CHUNKS);
            let offset = slab * SLAB_BYTES as u32 + chunk * CHUNK_BYTES as u32;
            let row_bytes_left = row_bytes.saturating_sub(offset).min(CHUNK_BYTES as u32);
            let to = shared + chunk_offset(row, chunk);
            let (from, n_bytes) = match row_of(row) {
                Some(row) if row_bytes_left > 0 => {
                    let start = matrix.base + u64::from(row) * matrix.pitch_bytes;
                    (start + u64::from(offset), row_bytes_left)
                }
                // Nothing is read; the address only has to be aligned.
                _ => (matrix.base & !15, 0),
            };
            // SAFETY: `n_bytes` bytes from there belong to the row.
            unsafe {
                if self.params.aligned != 0 {
                    copy_async_16(to, from, n_bytes);
                } else {
                    store_shared_u32x4(to, E::load_chunk(from, n_bytes));
                }
            }
            i += 32 * WARPS as u32;
        }
    }
}
