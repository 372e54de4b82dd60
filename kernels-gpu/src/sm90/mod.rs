//! MaxSim forward on Hopper: TMA, mbarriers and wgmma.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: 256, 128 or 64 query rows, in groups of 16 that may belong to different queries, stay
//! in shared memory while the documents of a unit stream past in tiles of 128 tokens; a row's
//! maximum over a document stays in registers. Above dim 256 query slabs stream along.
//!
//! Pipeline:
//!  1. A loading warp draws units, tells the other warps, and fills a ring of document slabs
//!     (128 tokens × 128 bytes) by TMA. A document's last tile is copied in boxes of 16 tokens.
//!  2. Consumer warpgroups multiply each tile with two (or one) 64-row fragments, and fold the
//!     first fragment's maxima while the second is still being multiplied. The last tile is as
//!     wide as its tokens need.
//!  3. After a document's last tile each consumer warp adds its rows' maxima and hands the sum
//!     of each group to the storing warp through a small ring.
//!  4. The storing warp adds the groups of each query in order and writes the results, so that
//!     consumers never wait for each other.
//!  5. Of the other two warps of the first warpgroup, one loads query tiles; where documents are
//!     masked, the other turns the mask into column bits, a tile ahead. Where elements are split,
//!     both do that between copy and product, and the mask besides.
//!
//! Where rows are normalised ([`crate::norms`]), a consumer multiplies a tile's similarities by their
//! columns' factors before it folds them, and what a document leaves by the rows'.
//!
//! Long queries of codes have four consumers, for which documents are the rows of products ([`turned`]).
//! Where blocks have few long documents each, units end within documents ([`cut`]).
//! Tiles of four slabs are multiplied slab by slab: the ring holds one and a half.
//!
//! Budget: 56 registers for the first warpgroup, 224 for each of two consumers (2 × 64
//! accumulators): 504 in all, as the block has at entry (3 × 168; a claim beyond that waits for
//! ever). 200 for the only consumer where two blocks share a multiprocessor (2 × 128 at entry).
//! 72 and 216, 80 and 176 where elements are split; 64 and 104 beside four consumers (5 × 96 at entry).
//! Shared memory as `layout::sm90` says.
//!
//! Known loss: a tile's rows beyond the last query, and a document's columns up to the next
//! width of the product.

mod codes;
mod consumer;
pub mod cut;
mod first;
mod fold;
mod halves;
pub mod residual;
mod rows;
pub mod runs;
mod split;
pub mod turned;
mod units;

use crate::layout::sm90::*;
use crate::norms::Norms;
use crate::params::ForwardParams;
use crate::ptx::barrier::{barrier_fence, barrier_init};
use crate::ptx::copy::prefetch_map;
use crate::ptx::memory::dynamic_shared;
use crate::ptx::thread::*;
use crate::ptx::warp::sync_warp;
use crate::ptx::wgmma::{Element, Operands};

/// A row of the variant table.
pub trait Kernel {
    /// What is multiplied.
    type Element: Element;
    /// Consumer warpgroups.
    const CONSUMERS: usize;
    /// 64-row fragments of each.
    const FRAGMENTS: usize;
    /// Products of 32 bytes of each row; 0 where slabs of both sides stream.
    const STEPS: usize;
    /// Depth of the ring.
    const STAGES: usize;
    /// Narrowest of the widths of a document's last tile, in columns.
    const TAIL_STEP: usize;
    /// Whether winners are found.
    const WINNERS: bool;
    /// Whether rows are normalised.
    const NORMALIZES: bool;
    /// Whether consumers load what columns are normalised by; scales of codes come with the tile.
    const LOADS_NORMS: bool = Self::NORMALIZES && !Self::Element::HAS_SCALES;
    /// Whether maxima are found of sums of products of whole numbers as they are ([`fold`]).
    const FOLDS_SUMS: bool = matches!(Self::Element::OPERANDS, Operands::I8) && !Self::WINNERS;
    /// Whether documents' scales may be halves, as [`crate::variants::Variant::reads_half_scales`] says.
    const HALF_SCALES: bool = Self::FOLDS_SUMS && Self::CONSUMERS == 1;
    /// Whether documents are the rows of products ([`turned`]).
    const IS_TURNED: bool = Self::CONSUMERS == TURNED_CONSUMERS;
    /// Query slabs that stay in shared memory.
    const SLABS: usize = Self::STEPS.div_ceil(SLAB_STEPS);
    /// Query rows per tile.
    const QUERY_TILE: usize = query_tile(Self::CONSUMERS, Self::FRAGMENTS);
    /// Registers of a thread of the first warpgroup, of an only consumer, and of one of two.
    const REGISTERS: [u32; 3] = match (Self::Element::SPLITS, Self::CONSUMERS) {
        (_, TURNED_CONSUMERS) => [64, 104, 104],
        (false, _) => [56, 200, 224],
        (true, 1) => [80, 176, 216],
        (true, _) => [72, 176, 216],
    };
    /// Groups of 16 rows per tile.
    const GROUPS: u32 = (Self::QUERY_TILE / crate::params::Group::ROWS) as u32;
}

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident $slab_elements:literal;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl Element for $name {
            const OPERANDS: Operands = Operands::$name;
            const SLAB_ELEMENTS: u32 = $slab_elements;
        }
    )*};
}

elements! {
    /// IEEE 754 binary16.
    F16 64;
    /// bfloat16.
    Bf16 64;
    /// binary32 that TMA rounds to its upper 19 bits.
    Tf32 32;
    /// Signed whole numbers of one byte.
    I8 128;
    /// The same of queries, whole numbers from 0 on of documents.
    I8Affine 128;
    /// Floating point numbers of one byte, 3 fraction bits.
    E4m3 128;
}

/// binary32, multiplied as the sum of two numbers of 19 bits.
pub struct F32;

impl Element for F32 {
    const OPERANDS: Operands = Operands::Tf32;
    const SLAB_ELEMENTS: u32 = 32;
    const SPLITS: bool = true;
}

/// Warps of a consumer warpgroup.
const CONSUMER_WARPS: u32 = 4;

/// The tensor maps' addresses.
#[derive(Clone, Copy)]
pub struct Maps {
    /// Queries in boxes of 16 rows.
    pub queries: u64,
    /// Documents in boxes of 128 rows.
    pub documents: u64,
    /// Documents in boxes of 16 rows.
    pub document_tails: u64,
}

/// Window addresses of the block's shared memory.
#[derive(Clone, Copy)]
struct Shared {
    queries: u32,
    ring: u32,
    masks: u32,
    barriers: u32,
    sums: u32,
    maxima: u32,
    units: u32,
    stages: u32,
    stage_bytes: u32,
    query_slab_bytes: u32,
    n_groups: u32,
    sum_slots: u32,
}

impl Shared {
    #[inline(always)]
    fn new<K: Kernel>() -> Shared {
        // Changes nothing, since the memory is declared with this alignment, but the compiler learns it here.
        let align = TILE_ALIGN as u32;
        let base = (dynamic_shared() + align - 1) & !(align - 1);
        let (rows, slabs, stages) = (K::QUERY_TILE, K::SLABS, K::STAGES);
        let parts = parts(K::Element::SPLITS);
        Shared {
            queries: base,
            ring: base + ring_offset(rows, slabs) as u32,
            masks: base + masks_offset(rows, slabs, stages, parts) as u32,
            barriers: base + barriers_offset(rows, slabs, stages, parts) as u32,
            sums: base + sums_offset(rows, slabs, stages, parts) as u32,
            maxima: base + maxima_offset(rows, slabs, stages, parts) as u32,
            units: base + units_offset(rows, slabs, stages, parts) as u32,
            stages: stages as u32,
            stage_bytes: stage_bytes(rows, slabs, parts) as u32,
            query_slab_bytes: query_slab_bytes(rows) as u32,
            n_groups: K::GROUPS,
            sum_slots: sum_slots(rows) as u32,
        }
    }

    /// Resident slab of the query tile.
    #[inline(always)]
    fn query_slab(&self, slab: u32) -> u32 {
        self.queries + slab * self.query_slab_bytes
    }

    /// Document slab of a stage.
    #[inline(always)]
    fn stage(&self, slot: u32) -> u32 {
        self.ring + slot * self.stage_bytes
    }

    /// Query slab of a stage, where queries stream.
    #[inline(always)]
    fn stage_queries(&self, slot: u32) -> u32 {
        self.stage(slot) + DOCUMENT_SLAB_BYTES as u32
    }

    /// Distance from a stage's slabs to their lower parts, where elements are split.
    #[inline(always)]
    fn lower_bytes(&self) -> u32 {
        self.stage_bytes / 2
    }

    /// Column mask of the tile whose first slab is in a stage.
    #[inline(always)]
    fn mask(&self, slot: u32) -> u32 {
        self.masks + slot * MASK_BYTES as u32
    }

    /// Scales of the columns of the tile whose first slab is in a stage, where rows are codes.
    #[inline(always)]
    fn scales(&self, slot: u32) -> u32 {
        self.unit(UNIT_SLOTS as u32) + slot * SCALES_BYTES as u32
    }

    /// Completes when a stage's slab is copied, where it has to be split then.
    #[inline(always)]
    fn landed(&self, slot: u32) -> u32 {
        self.unit_empty(UNIT_SLOTS as u32) + 8 * slot
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

    /// Completes when every consumer warp has put its sums into a slot.
    #[inline(always)]
    fn sum_full(&self, slot: u32) -> u32 {
        self.barriers + 8 * (2 * self.stages + 2 + slot)
    }

    /// Completes when the sums of a slot are read.
    #[inline(always)]
    fn sum_empty(&self, slot: u32) -> u32 {
        self.barriers + 8 * (2 * self.stages + 2 + self.sum_slots + slot)
    }

    /// Completes when a slot has a unit.
    #[inline(always)]
    fn unit_full(&self, slot: u32) -> u32 {
        self.sum_empty(self.sum_slots) + 8 * slot
    }

    /// Completes when every warp that is told has read a unit.
    #[inline(always)]
    fn unit_empty(&self, slot: u32) -> u32 {
        self.unit_full(UNIT_SLOTS as u32) + 8 * slot
    }

    /// What a slot says of its unit.
    #[inline(always)]
    fn unit(&self, slot: u32) -> u32 {
        self.units + slot * UNIT_BYTES as u32
    }

    /// A group's sums in a slot.
    #[inline(always)]
    fn sums(&self, slot: u32, group: u32) -> u32 {
        self.sums + GROUP_SUMS_BYTES as u32 * (slot * self.n_groups + group)
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

/// Slabs of a token row.
#[inline(always)]
fn n_slabs<K: Kernel>(params: &ForwardParams) -> u32 {
    match K::SLABS {
        0 => params.dim.div_ceil(K::Element::SLAB_ELEMENTS),
        slabs => slabs as u32,
    }
}

/// The forward kernel of one row of the variant table. `FIRST`, `ALONE` and `CONSUMER` are its
/// [`Kernel::REGISTERS`].
///
/// # Safety
/// Launched with the row's threads and dynamic shared memory; `params` as [`ForwardParams`]
/// says; the addresses are those of its tensor maps, and of what its rows are normalised by.
#[inline(always)]
pub unsafe fn forward<K: Kernel, const FIRST: u32, const ALONE: u32, const CONSUMER: u32>(
    params: &ForwardParams,
    maps: Maps,
    norms: Norms,
) {
    let shared = Shared::new::<K>();
    let thread = thread_idx_x();
    // Consumers first for the same reason.
    // SAFETY: the branches are uniform per warp, where they change registers per warpgroup; each
    // warp has one role. Barriers are initialised before others pass the block-wide barrier.
    unsafe {
        if thread >= 128 {
            wait_threads(n_threads::<K>());
            // The gradients of short queries are found by a kernel that begins early.
            if K::WINNERS && K::QUERY_TILE == 64 && !K::Element::HAS_SCALES {
                let_next_grid_begin();
            }
            if K::CONSUMERS == 1 {
                claim_registers::<ALONE>();
            } else {
                claim_registers::<CONSUMER>();
            }
            consumer::consume::<K>(params, &shared, norms, thread - 128);
            return;
        }
        let (warp, lane) = (thread / 32, thread % 32);
        let mut queries = first::QueryTile::NONE;
        if warp == 0 {
            // Nobody else's barriers are needed to load documents: no wait.
            if lane == 0 {
                init_loading::<K>(params, &shared, maps);
            }
            sync_warp();
            arrive_threads(n_threads::<K>());
        } else {
            if warp == 1 && lane == 0 {
                init_storing::<K>(&shared);
            }
            if warp == 3 && K::SLABS > 0 {
                if lane == 0 {
                    prefetch_map(maps.queries);
                }
                queries = first::QueryTile::first::<K>(params, lane);
            }
            wait_threads(n_threads::<K>());
        }
        release_registers::<FIRST>();
        // Loading last, so that its code follows: a jump ahead is a miss of the instruction cache.
        match warp {
            2.. if K::Element::SPLITS => {
                return split::split_slabs::<K>(params, &shared, warp - 2, lane);
            }
            1 => return first::store_sums::<K>(params, &shared, lane),
            2 => return first::load_masks::<K>(params, &shared, norms, lane),
            3 => return first::load_queries::<K>(params, &shared, maps, queries, lane),
            _ => {}
        }
        first::load::<K>(params, &shared, maps, lane);
    }
}

/// Threads of a block.
const fn n_threads<K: Kernel>() -> u32 {
    threads(K::CONSUMERS) as u32
}

/// What the loading warp needs: the barriers of stages and of units. The maps' prefetch and the
/// barriers' constant addresses keep this short, which delays the first copy.
///
/// # Safety
/// One thread, before any use of the barriers.
#[inline(always)]
unsafe fn init_loading<K: Kernel>(params: &ForwardParams, shared: &Shared, maps: Maps) {
    let n_loaders = match params.documents.mask {
        _ if K::Element::SPLITS => split::WARPS,
        0 => 1,
        _ => 2,
    };
    // Each lane says when its scales have arrived.
    let n_loaders = if K::Element::HAS_SCALES { n_loaders + 32 } else { n_loaders };
    // SAFETY: the caller's promise.
    unsafe {
        prefetch_map(maps.documents);
        prefetch_map(maps.document_tails);
        if K::SLABS == 0 {
            prefetch_map(maps.queries);
        }
        let mut slot = 0;
        while slot < K::STAGES as u32 {
            barrier_init(shared.full(slot), n_loaders);
            barrier_init(shared.empty(slot), CONSUMER_WARPS * K::CONSUMERS as u32);
            if K::Element::SPLITS {
                barrier_init(shared.landed(slot), 1);
            }
            slot += 1;
        }
        slot = 0;
        while slot < UNIT_SLOTS as u32 {
            barrier_init(shared.unit_full(slot), 1);
            barrier_init(shared.unit_empty(slot), units::Told::n_warps::<K>(params));
            slot += 1;
        }
        barrier_fence();
    }
}

/// The barriers of the query tile and of sums.
///
/// # Safety
/// As [`init_loading`].
#[inline(always)]
unsafe fn init_storing<K: Kernel>(shared: &Shared) {
    // SAFETY: the caller's promise.
    unsafe {
        barrier_init(shared.query_full(), 1);
        barrier_init(shared.query_empty(), CONSUMER_WARPS * K::CONSUMERS as u32);
        let mut slot = 0;
        while slot < sum_slots(K::QUERY_TILE) as u32 {
            barrier_init(shared.sum_full(slot), CONSUMER_WARPS * K::CONSUMERS as u32);
            barrier_init(shared.sum_empty(slot), 1);
            slot += 1;
        }
        barrier_fence();
    }
}
