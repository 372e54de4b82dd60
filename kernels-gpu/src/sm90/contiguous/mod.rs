//! MaxSim of up to 32 query rows with contiguous documents, which lie one behind the other.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: queries on M, documents on N of `mma.sync`. The documents of a unit, or its share of
//! them, are one run of rows, distributed over the warps in chunks of 4 KB, whatever documents they
//! belong to. A warp has all 32 query rows in registers, and multiplies 16 rows of documents at a
//! time.
//!
//! Pipeline:
//!  1. Each warp requests its own chunks, as many ahead as its ring has stages, by one bulk copy
//!     each: rows lie together, so that there is no tensor map and no producer warp. Codes' scales
//!     come by another copy ([`int8`]).
//!  2. It multiplies a chunk's rows of a document with the query rows and keeps the maxima per
//!     lane. The K permutation is free as long as A and B use the same one: lane (g, t) takes every
//!     fourth 16-byte chunk of its rows, from chunk t on, as they lie.
//!  3. Epilogue: lanes exchange maxima, and each of the 32 stores that of one query row for the
//!     storing warp, in a small ring.
//!  4. The storing warp takes the maxima of all warps, adds the rows, and stores the score. It
//!     loads the query tiles, too.
//!  5. Where rows are normalised, a warp finds r of a chunk's rows from the elements that it
//!     multiplies, and the storing warp r of the query tile's ([`norms`]): rows are read once.
//!  6. Large calls of codes use the dynamic scheduler ([`tile_scheduler`]): a warp takes tickets
//!     and publishes the next unit, whose first chunks the others prefetch while they multiply the
//!     last of this one.
//!  7. Stream-K, in kernels of its own ([`stream_k`]), gives each CTA an equal share of the rows:
//!     the part of a document that continues in the next share comes first, and the storing warp
//!     publishes its maxima. A warp's first chunk is copied by its lanes ([`prologue`]), before
//!     there are barriers.
//!
//! Budget: 64 registers of queries (32 of codes), 16 of sums, 16 of documents; a few chunks a warp
//! in flight. With more of them the first of every CTA, and the code itself, wait longer behind
//! those of others.
//!
//! Known loss: eight lanes that read 64 bytes of two rows at a time meet half of the banks; that is
//! a third of the time beside the products. Statically scheduled units do not prefetch across their
//! boundary.

mod chunks;
mod element;
mod epilogue;
mod int8;
mod mma_loop;
mod norms;
mod prefetch;
mod products;
mod prologue;
mod share;
mod stream_k;
mod tile_scheduler;
mod units;

use crate::abi::layout::contiguous::*;
use crate::abi::params::{ContiguousParams, ContiguousStreamKParams, Group, NORMS_PADDING};
use crate::primitives::row_scales::RowScales;
use crate::ptx::element::Element;
pub use crate::ptx::element::{Bf16, F16, I8, NormalizedBf16, NormalizedF16};
use crate::ptx::shared::dynamic_shared;
use crate::ptx::thread::thread_idx_x;
use crate::ptx::warp::broadcast;
use crate::sm90::contiguous::chunks::OfUnit;
use crate::sm90::contiguous::element::ChunkElement;
use crate::sm90::contiguous::epilogue::store;
use crate::sm90::contiguous::mma_loop::multiply;
use crate::sm90::contiguous::prefetch::Prefetch;
use crate::sm90::contiguous::tile_scheduler::schedule;
use core::marker::PhantomData;

/// Groups of a query tile.
const GROUPS: u32 = (QUERY_ROWS / Group::ROWS) as u32;

/// A line of the variant table.
pub trait Kernel {
    /// Element of the rows.
    type Element: ChunkElement;
    /// Warps that multiply.
    const WARPS: usize;
    /// Depth of each one's ring.
    const STAGES: usize;
    /// Rows of a chunk.
    const CHUNK_ROWS: usize;
    /// Whether a launch may use the dynamic scheduler, as
    /// [`crate::table::forward::Variant::has_scheduler`].
    const HAS_SCHEDULER: bool = Self::Element::HAS_SCALES;
    /// `CHUNK_ROWS` as a u32.
    const ROWS: u32 = Self::CHUNK_ROWS as u32;
    /// Rows from one chunk of a warp to the next one.
    const STRIDE: u32 = Self::ROWS * Self::WARPS as u32;
    /// Bytes of a row.
    const BYTES: u32 = (DIM * <Self::Element as Element>::BYTES) as u32;
    /// Shared memory.
    const GEOMETRY: Geometry = Geometry {
        warps: Self::WARPS,
        stages: Self::STAGES,
        row_bytes: Self::BYTES as usize,
        chunk_rows: Self::CHUNK_ROWS,
        has_scales: Self::Element::HAS_SCALES,
        has_scheduler: Self::HAS_SCHEDULER,
    };
    /// Threads of a block.
    const THREADS: u32 = threads(Self::WARPS, Self::HAS_SCHEDULER) as u32;
}

/// Window addresses of the block's shared memory.
struct Shared<K> {
    base: u32,
    warp: u32,
    kernel: PhantomData<K>,
}

impl<K> Clone for Shared<K> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Shared<K> {}

impl<K: Kernel> Shared<K> {
    /// Index of a stage of the warp's ring among all warps' stages.
    #[inline(always)]
    fn index(&self, slot: u32) -> u32 {
        self.warp * K::STAGES as u32 + slot
    }

    /// A chunk of the warp's ring.
    #[inline(always)]
    fn stage(&self, slot: u32) -> u32 {
        self.base + self.index(slot) * const { K::GEOMETRY.chunk_bytes() as u32 }
    }

    /// The query tile.
    #[inline(always)]
    fn queries(&self) -> u32 {
        self.base + const { K::GEOMETRY.queries_offset() as u32 }
    }

    /// The scales of a chunk of the warp's ring.
    #[inline(always)]
    fn scales(&self, slot: u32) -> u32 {
        let first = self.base + const { K::GEOMETRY.scales_offset() as u32 };
        first + self.index(slot) * const { K::GEOMETRY.scales_bytes() as u32 }
    }

    /// A warp's maxima of a document, in a slot.
    #[inline(always)]
    fn maxima(&self, slot: u32, warp: u32) -> u32 {
        let first = self.base + const { K::GEOMETRY.maxima_offset() as u32 };
        first + (slot * K::WARPS as u32 + warp) * MAXIMA_BYTES as u32
    }

    /// A published unit, in a slot.
    #[inline(always)]
    fn unit(&self, slot: u32) -> u32 {
        self.base + const { K::GEOMETRY.units_offset() as u32 } + slot * UNIT_BYTES as u32
    }

    /// The entry whose maxima a slot has, with the dynamic scheduler.
    #[inline(always)]
    fn entry(&self, slot: u32) -> u32 {
        self.unit(UNIT_SLOTS as u32) + 4 * slot
    }

    #[inline(always)]
    fn barriers(&self) -> u32 {
        self.base + const { K::GEOMETRY.barriers_offset() as u32 }
    }

    /// Completes when a stage of the warp's holds a chunk.
    #[inline(always)]
    fn full(&self, slot: u32) -> u32 {
        self.barriers() + 8 * self.index(slot)
    }

    /// Completes when the query tile is there.
    #[inline(always)]
    fn query_full(&self) -> u32 {
        self.barriers() + 8 * (K::WARPS * K::STAGES) as u32
    }

    /// Completes when every warp has the query tile in registers.
    #[inline(always)]
    fn query_empty(&self) -> u32 {
        self.query_full() + 8
    }

    /// Completes when every warp has stored its maxima in a slot.
    #[inline(always)]
    fn maxima_full(&self, slot: u32) -> u32 {
        self.query_full() + 8 * (2 + slot)
    }

    /// Completes when the maxima of a slot are read.
    #[inline(always)]
    fn maxima_empty(&self, slot: u32) -> u32 {
        self.maxima_full(SLOTS as u32) + 8 * slot
    }

    /// Completes when a slot has a unit.
    #[inline(always)]
    fn unit_full(&self, slot: u32) -> u32 {
        self.maxima_empty(SLOTS as u32) + 8 * slot
    }

    /// Completes when every warp that multiplies knows the unit of a slot.
    #[inline(always)]
    fn unit_empty(&self, slot: u32) -> u32 {
        self.unit_full(UNIT_SLOTS as u32) + 8 * slot
    }
}

/// The forward kernel of one line of the variant table.
///
/// # Safety
/// Launched with the line's threads and dynamic shared memory; `params` as
/// [`ContiguousParams`] says, and `row_scales` as [`crate::abi::params::ScaledContiguousParams`],
/// where rows have scales.
#[inline(always)]
pub unsafe fn forward<K: Kernel>(params: &ContiguousParams, row_scales: RowScales) {
    const { assert!(K::CHUNK_ROWS.is_multiple_of(PRODUCT_ROWS) && K::STAGES <= 16) };
    // Copies of the scales of a chunk that begins with the last row end within what lies behind
    // them.
    const { assert!(K::CHUNK_ROWS + COPY_ALIGN / 2 <= NORMS_PADDING) };
    let lane = thread_idx_x() % 32;
    // SAFETY: every warp is whole, and has one role; it sets up the barriers that it waits for
    // first. By the broadcast the assembler knows that the number is the same in all lanes.
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let shared = Shared::<K> { base: dynamic_shared(), warp, kernel: PhantomData };
        if K::HAS_SCHEDULER && warp == K::WARPS as u32 + 1 {
            return schedule(params, shared, lane);
        }
        if warp == K::WARPS as u32 {
            return store(params, shared, row_scales, lane);
        }
        match K::HAS_SCHEDULER {
            true => multiply::<K, Prefetch<K>>(params, shared, row_scales, lane),
            false => multiply::<K, OfUnit<K>>(params, shared, row_scales, lane),
        }
    }
}

/// The forward kernel of one line of the variant table under Stream-K.
///
/// # Safety
/// Launched with the line's threads and dynamic shared memory; `params` as
/// [`ContiguousStreamKParams`] says; `row_scales` has none.
#[inline(always)]
pub unsafe fn forward_stream_k<K: Kernel>(params: &ContiguousStreamKParams, row_scales: RowScales) {
    const { assert!(K::STAGES <= 16 && !K::HAS_SCHEDULER && !K::Element::HAS_SCALES) };
    let lane = thread_idx_x() % 32;
    // SAFETY: as in [`forward`].
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let shared = Shared::<K> { base: dynamic_shared(), warp, kernel: PhantomData };
        if warp == K::WARPS as u32 {
            return stream_k::store(params, shared, row_scales, lane);
        }
        stream_k::multiply(params, shared, lane);
    }
}

/// Whether the launch uses the dynamic scheduler.
#[inline(always)]
fn is_dynamic<K: Kernel>(params: &ContiguousParams) -> bool {
    K::HAS_SCHEDULER && params.forward.tickets != 0
}

/// Stands for an entry where there are no more.
const END: u32 = u32::MAX;

/// The group, and the row of it, that a lane ends with.
#[inline(always)]
fn lane_row(lane: u32) -> (u32, u32) {
    (lane / 2 % 2, lane % 2 * 8 + lane / 4)
}
