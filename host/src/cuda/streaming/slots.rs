//! Device memory that chunks of documents take turns in.

use std::sync::Arc;

use maxsim_kernels::abi::params::NORMS_PADDING;

use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::calls::StreamCall;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::event::CudaEvent;
use crate::cuda::driver::memory::Buffer;
use crate::error::Result;
use crate::tokens::format::Format;

/// Chunks in device memory at once: one is copied, one waits, one is scored.
pub(super) const N_SLOTS: usize = 3;

/// Alignment of what lies in a slot or in a piece of staging memory.
const ALIGN_BYTES: usize = 256;

/// Where rows, the words of their scales and their mask lie in memory for so many rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Bytes from one row to the next; 0 where rows have no place here.
    pub pitch_bytes: usize,
    pub scales_at: usize,
    pub mask_at: usize,
    pub len_bytes: usize,
}

impl Places {
    pub fn new(rows: usize, pitch_bytes: usize, has_scales: bool, has_mask: bool) -> Places {
        let scales_at = (rows * pitch_bytes).next_multiple_of(ALIGN_BYTES);
        let scales_bytes = if has_scales { (rows + NORMS_PADDING) * size_of::<u32>() } else { 0 };
        let mask_at = (scales_at + scales_bytes).next_multiple_of(ALIGN_BYTES);
        let len_bytes = mask_at + if has_mask { rows } else { 0 };
        Places { pitch_bytes, scales_at, mask_at, len_bytes }
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
    pub fn new(device: &Arc<CudaDevice>, places: &Places) -> Result<Slot> {
        Ok(Slot {
            memory: Buffer::new(device, places.len_bytes as u64)?,
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
    /// Scores of one chunk, whichever is the largest.
    pub scores: CudaOutputs,
}

impl Memory {
    pub fn new<D: Format>(
        device: &Arc<CudaDevice>,
        call: &StreamCall<'_, D>,
        pitch_bytes: usize,
    ) -> Result<Memory> {
        let (has_scales, has_mask) = call.documents.beside();
        let rows = call.chunks.iter().map(|chunk| chunk.rows.len()).max().unwrap_or(0);
        let items = call.chunks.iter().map(|chunk| chunk.items.len()).max().unwrap_or(0);
        let places = Places::new(rows, pitch_bytes, has_scales, has_mask);
        let n_slots = N_SLOTS.min(call.chunks.len());
        let slots = (0..n_slots).map(|_| Slot::new(device, &places)).collect::<Result<_>>()?;
        let n_scores = (call.query_layout.n_items() as u64).saturating_mul(items as u64);
        let scores = CudaOutputs::with_room(device, [n_scores.saturating_mul(4), 0, 0])?;
        Ok(Memory { places, slots, scores })
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
    fn what_lies_in_a_slot_does_not_overlap() {
        for [rows, pitch] in [[0, 16], [1, 16], [100, 256], [100, 0]] {
            for (has_scales, has_mask) in [(false, false), (true, false), (false, true)] {
                let places = Places::new(rows, pitch, has_scales, has_mask);
                assert!(places.scales_at >= rows * pitch);
                let words = if has_scales { rows + NORMS_PADDING } else { 0 };
                assert!(places.mask_at >= places.scales_at + words * 4);
                assert_eq!(places.len_bytes, places.mask_at + if has_mask { rows } else { 0 });
                assert!([places.scales_at, places.mask_at].iter().all(|at| at % ALIGN_BYTES == 0));
            }
        }
    }
}
