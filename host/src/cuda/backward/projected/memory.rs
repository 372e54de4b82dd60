//! The memory of a work, and where in it what lies.

use std::sync::Arc;

use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::memory::Buffer;
use crate::error::Result;
use crate::runtime::swap::lock;

/// Alignment of what lies in the memory of a work.
const ALIGN: u64 = 256;

/// Most bytes of the memory of a work that a device keeps for the next one.
const KEPT_BYTES_MAX: u64 = 256 << 20;

/// Addresses in the memory of a work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// The row of each slot.
    pub rows: u64,
    /// Hidden states and tokens of slots.
    pub states: u64,
    pub tokens: u64,
    /// Gradients of tokens, and u and r where these are normalised.
    pub gradients: u64,
    pub projected: u64,
    pub norms: u64,
    pub winners: u64,
    pub grad_scores: u64,
    /// Sums of the queries' gradient and of that of their weights.
    pub queries: u64,
    pub query_weights: u64,
    /// Parts of ∂W and of ∂b.
    pub parts: u64,
    pub bias_parts: u64,
}

/// Memory that the device keeps for the next work.
#[derive(Debug)]
pub(super) struct Memory(Option<Buffer>);

impl Memory {
    pub(super) fn new(device: &Arc<CudaDevice>, len_bytes: u64) -> Result<Memory> {
        let fits = |idle: &mut Buffer| {
            (len_bytes..=len_bytes.saturating_mul(2)).contains(&idle.len_bytes())
        };
        let idle = lock(&device.idle_slots).take_if(fits);
        let buffer = idle.map_or_else(|| Buffer::new(device, len_bytes), Ok)?;
        Ok(Memory(Some(buffer)))
    }

    pub(super) fn address(&self) -> u64 {
        self.0.as_ref().map_or(0, Buffer::address)
    }
}

impl Drop for Memory {
    /// Calls wait for what they enqueue: nothing uses the memory any more.
    fn drop(&mut self) {
        let own = self.0.take().filter(|own| (1..=KEPT_BYTES_MAX).contains(&own.len_bytes()));
        let Some(own) = own else { return };
        let device = own.device().clone();
        let before = lock(&device.idle_slots).replace(own);
        // Outside the lock.
        drop(before);
    }
}

/// Divides memory.
#[derive(Debug, Default)]
pub(super) struct Divided(pub u64);

impl Divided {
    /// The offset of the next `len_bytes` bytes.
    pub(super) fn next(&mut self, len_bytes: u64) -> u64 {
        let start = self.0;
        self.0 = (start + len_bytes).next_multiple_of(ALIGN);
        start
    }
}

impl Addresses {
    /// Makes addresses of offsets.
    pub(super) fn place(&mut self, base: u64) {
        let Addresses { rows, states, tokens, gradients, projected, norms, .. } = self;
        for offset in [rows, states, tokens, gradients, projected, norms] {
            *offset += base;
        }
        let Addresses { winners, grad_scores, queries, query_weights, parts, bias_parts, .. } =
            self;
        for offset in [winners, grad_scores, queries, query_weights, parts, bias_parts] {
            *offset += base;
        }
    }
}
