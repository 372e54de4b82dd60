//! MaxSim forward on Hopper: TMA, mbarriers and wgmma.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: 256 (or 128) query rows stay in shared memory while the documents of a unit
//! stream past in tiles of 128 tokens; a row's maximum over a document stays in registers.
//!
//! Pipeline:
//!  1. The producer thread fills a ring of document slabs (128 tokens × 64 elements) by TMA.
//!  2. Two consumer warpgroups multiply each tile with two (or one) 64-row fragments, and fold
//!     the first fragment's maxima while the second is still being multiplied.
//!  3. After a document's last tile each consumer warp adds its rows' maxima and hands the
//!     sum to the storing thread through a small ring.
//!  4. The storing thread adds the eight sums in order and writes the score, so that
//!     consumers never wait for each other.
//!
//! Budget: 40 registers for the producer's warpgroup, 232 for consumers (2 × 64
//! accumulators); shared memory as `layout::sm90` says, one block per multiprocessor.
//!
//! Known loss: a query's last tile multiplies rows that do not exist, and so does a
//! document's last tile; short queries waste most of a tile's rows.

mod consumer;
mod element;
mod producer;

pub use element::{Bf16, F16, Half};

use crate::layout::sm90::*;
use crate::params::ForwardParams;
use crate::ptx::barrier::{barrier_fence, barrier_init};
use crate::ptx::copy::prefetch_map;
use crate::ptx::memory::dynamic_shared;
use crate::ptx::thread::*;

/// Window addresses of the block's shared memory.
#[derive(Clone, Copy)]
struct Shared {
    queries: u32,
    ring: u32,
    barriers: u32,
    sums: u32,
    stages: u32,
    /// Query rows per tile.
    query_tile: u32,
}

impl Shared {
    #[inline(always)]
    fn new(query_tile: usize, slabs: usize, stages: usize) -> Shared {
        let align = TILE_ALIGN as u32;
        let base = (dynamic_shared() + align - 1) & !(align - 1);
        Shared {
            queries: base,
            ring: base + ring_offset(query_tile, slabs) as u32,
            barriers: base + barriers_offset(query_tile, slabs, stages) as u32,
            sums: base + sums_offset(query_tile, slabs, stages) as u32,
            stages: stages as u32,
            query_tile: query_tile as u32,
        }
    }

    /// Slab of the query tile.
    #[inline(always)]
    fn query_slab(&self, slab: u32) -> u32 {
        self.queries + slab * query_slab_bytes(self.query_tile as usize) as u32
    }

    /// Slab of the document ring.
    #[inline(always)]
    fn stage(&self, slot: u32) -> u32 {
        self.ring + slot * STAGE_BYTES as u32
    }

    /// Completes when a stage holds a slab.
    #[inline(always)]
    fn full(&self, slot: u32) -> u32 {
        self.barriers + 8 * slot
    }

    /// Completes when every consumer warp is done with a stage.
    #[inline(always)]
    fn empty(&self, slot: u32) -> u32 {
        self.barriers + 8 * (self.stages + slot)
    }

    /// Completes when the query tile is there.
    #[inline(always)]
    fn query_full(&self) -> u32 {
        self.barriers + 8 * (2 * self.stages)
    }

    /// Completes when every consumer warp is done with the query tile.
    #[inline(always)]
    fn query_empty(&self) -> u32 {
        self.barriers + 8 * (2 * self.stages + 1)
    }

    /// Completes when every consumer warp has put its sum into a slot.
    #[inline(always)]
    fn sum_full(&self, slot: u32) -> u32 {
        self.barriers + 8 * (2 * self.stages + 2 + slot)
    }

    /// Completes when the sums of a slot are stored.
    #[inline(always)]
    fn sum_empty(&self, slot: u32) -> u32 {
        self.barriers + 8 * (2 * self.stages + 2 + SUM_SLOTS as u32 + slot)
    }

    /// A consumer warp's place in a slot of sums.
    #[inline(always)]
    fn sum(&self, slot: u32, warp: u32) -> u32 {
        self.sums + 4 * (slot * CONSUMER_WARPS as u32 + warp)
    }
}

/// A position in a ring, and the parity of its current round.
#[derive(Clone, Copy)]
struct Ring {
    slot: u32,
    parity: u32,
}

impl Ring {
    const START: Ring = Ring { slot: 0, parity: 0 };

    #[inline(always)]
    fn next(self, n_slots: u32) -> Ring {
        let slot = self.slot + 1;
        if slot == n_slots {
            Ring { slot: 0, parity: self.parity ^ 1 }
        } else {
            Ring { slot, parity: self.parity }
        }
    }
}

/// The forward kernel of one row of the variant table.
///
/// # Safety
/// Launched with `THREADS` threads and the row's dynamic shared memory; `params` as [`ForwardParams`] says; the addresses are those of its tensor maps.
#[inline(always)]
pub unsafe fn forward<
    E: Half,
    const FRAGMENTS: usize,
    const SLABS: usize,
    const STAGES: usize,
    const WINNERS: bool,
>(
    params: &ForwardParams,
    query_map: u64,
    document_map: u64,
) {
    let shared = Shared::new(query_tile(FRAGMENTS), SLABS, STAGES);
    let thread = thread_idx_x();
    // SAFETY: one thread initialises every barrier once, before the block-wide barrier.
    unsafe {
        if thread == 0 {
            prefetch_map(query_map);
            prefetch_map(document_map);
            let mut slot = 0;
            while slot < STAGES as u32 {
                barrier_init(shared.full(slot), 1);
                barrier_init(shared.empty(slot), CONSUMER_WARPS as u32);
                slot += 1;
            }
            barrier_init(shared.query_full(), 1);
            barrier_init(shared.query_empty(), CONSUMER_WARPS as u32);
            slot = 0;
            while slot < SUM_SLOTS as u32 {
                barrier_init(shared.sum_full(slot), CONSUMER_WARPS as u32);
                barrier_init(shared.sum_empty(slot), 1);
                slot += 1;
            }
            barrier_fence();
        }
        sync_threads();
    }
    // SAFETY: the branch is uniform per warpgroup, and each warpgroup has one role.
    unsafe {
        if thread < 128 {
            release_registers::<40>();
            match thread {
                0 => producer::load::<SLABS>(params, &shared, query_map, document_map),
                32 => producer::store_sums(params, &shared),
                _ => {}
            }
        } else {
            claim_registers::<232>();
            consumer::consume::<E, FRAGMENTS, SLABS, WINNERS>(params, &shared, thread - 128);
        }
    }
}
