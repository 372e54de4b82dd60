//! Device memory that chunks of documents take turns in.

use std::sync::Arc;

use maxsim_kernels::abi::params::NORMS_PADDING;

use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::calls::{Kept, StreamCall, StreamedRows};
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::event::CudaEvent;
use crate::cuda::driver::memory::Buffer;
use crate::error::Result;
use crate::tokens::streamed::staged::Staged;

/// Chunks in device memory at once: one is copied, one waits, one is scored.
pub(super) const N_SLOTS: usize = 3;

/// Alignment of what lies in a slot or in a piece of staging memory.
pub(super) const ALIGN_BYTES: usize = 256;

/// Where rows, the words beside them and their mask lie in memory for so many rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Bytes from one row to the next; 0 where rows have no place here.
    pub pitch_bytes: usize,
    pub words_at: usize,
    pub mask_at: usize,
    /// What decoded rows are normalised by, which the device finds; not in staging memory.
    pub norms_at: usize,
    pub len_bytes: usize,
}

impl Places {
    /// Places in staging memory.
    pub fn staging(rows: usize, pitch_bytes: usize, documents: &dyn Staged) -> Places {
        let words = if documents.has_words() { rows } else { 0 };
        Places::new(rows * pitch_bytes, words, documents.mask().map_or(0, |_| rows), 0, pitch_bytes)
    }

    /// Places in device memory, with what kernels may read behind the last row.
    pub fn device(rows: usize, call: &StreamCall<'_>) -> Places {
        let (documents, padded) = (call.documents, rows + NORMS_PADDING);
        let pitch_bytes = documents.pitch_bytes();
        let (rows_len, norms) = match call.rows {
            StreamedRows::Stored(..) => (rows, 0),
            StreamedRows::Residual(_, codec, _) if codec.normalize() => (padded, padded),
            StreamedRows::Residual(..) => (padded, 0),
        };
        let words = if documents.has_words() { padded } else { 0 };
        let mask = documents.mask().map_or(0, |_| rows);
        Places::new(rows_len * pitch_bytes, words, mask, norms, pitch_bytes)
    }

    fn new(
        row_bytes: usize,
        words: usize,
        mask: usize,
        norms: usize,
        pitch_bytes: usize,
    ) -> Places {
        let words_at = row_bytes.next_multiple_of(ALIGN_BYTES);
        let mask_at = (words_at + words * 4).next_multiple_of(ALIGN_BYTES);
        let norms_at = (mask_at + mask).next_multiple_of(ALIGN_BYTES);
        let len_bytes = if norms > 0 { norms_at + norms * 4 } else { mask_at + mask };
        Places { pitch_bytes, words_at, mask_at, norms_at, len_bytes }
    }
}

/// Memory for one chunk, and the work that uses it.
#[derive(Debug)]
pub(super) struct Slot {
    pub memory: Buffer,
    /// The last copy to the memory.
    pub copied: CudaEvent,
    /// The last work that reads it.
    pub scored: CudaEvent,
}

impl Slot {
    /// Memory with anything in it, or with zeros: codes of a centroid, which kernels may read
    /// behind the last row.
    pub fn new(device: &Arc<CudaDevice>, len_bytes: u64, is_decoded: bool) -> Result<Slot> {
        Ok(Slot {
            memory: match is_decoded {
                true => Buffer::zeroed(device, len_bytes)?,
                false => Buffer::new(device, len_bytes)?,
            },
            copied: CudaEvent::new(device, false)?,
            scored: CudaEvent::new(device, false)?,
        })
    }
}

/// The device memory of a search.
#[derive(Debug)]
pub(super) struct Memory {
    pub places: Places,
    pub slots: Vec<Slot>,
    /// Room for the scores of a chunk, whichever is the largest: one, or where they are read one
    /// for each slot.
    scores: Vec<CudaOutputs>,
}

impl Memory {
    pub fn new(device: &Arc<CudaDevice>, call: &StreamCall<'_>) -> Result<Memory> {
        let rows = call.chunks.iter().map(|chunk| chunk.rows.len()).max().unwrap_or(0);
        let items = call.chunks.iter().map(|chunk| chunk.items.len()).max().unwrap_or(0);
        let places = Places::device(rows, call);
        let is_decoded = matches!(call.rows, StreamedRows::Residual(..));
        let n_slots = N_SLOTS.min(call.chunks.len());
        let slot = |_| Slot::new(device, places.len_bytes as u64, is_decoded);
        let slots = (0..n_slots).map(slot).collect::<Result<_>>()?;
        let n_scores = (call.query_layout.n_items() as u64).saturating_mul(items as u64);
        let room = |_| CudaOutputs::with_room(device, [n_scores.saturating_mul(4), 0, 0]);
        let n_rooms = match call.kept {
            Kept::Best(_) => n_slots.min(1),
            Kept::Scores(_) => n_slots,
        };
        let scores = (0..n_rooms).map(room).collect::<Result<_>>()?;
        Ok(Memory { places, slots, scores })
    }

    /// Room for the scores of the chunk of this number.
    pub fn scores(&self, chunk: usize) -> &CudaOutputs {
        &self.scores[chunk % self.scores.len()]
    }

    /// The slot that a chunk of this number lies in.
    pub fn slot(&self, chunk: usize) -> &Slot {
        &self.slots[chunk % self.slots.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_memory_does_not_overlap() {
        for lens in [[0, 0, 0, 0], [1, 1, 0, 0], [3000, 0, 7, 0], [900, 200, 0, 41], [5, 6, 7, 8]] {
            let [rows, words, mask, norms] = lens;
            let places = Places::new(rows, words, mask, norms, 1);
            assert!(places.words_at >= rows && places.mask_at >= places.words_at + words * 4);
            assert!(places.norms_at >= places.mask_at + mask);
            assert!(places.len_bytes >= places.mask_at + mask);
            assert!(norms == 0 || places.len_bytes == places.norms_at + norms * 4);
            let starts = [places.words_at, places.mask_at, places.norms_at];
            assert!(starts.iter().all(|at| at.is_multiple_of(ALIGN_BYTES)));
        }
    }
}
