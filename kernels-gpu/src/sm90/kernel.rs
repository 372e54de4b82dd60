//! The persistent kernel: its constants, the roles of its warps, its barriers.

use crate::abi::layout::sm90::*;
use crate::abi::params::ForwardParams;
use crate::primitives::row_scales::Norms;
use crate::ptx::barrier::{barrier_fence, barrier_init};
use crate::ptx::copy::prefetch_map;
use crate::ptx::thread::*;
use crate::ptx::warp::sync_warp;
use crate::ptx::wgmma::{Element, Operands};
use crate::sm90::epilogue::store_sums;
use crate::sm90::producers::{QueryTile, load, load_queries};
use crate::sm90::scales::load_masks;
use crate::sm90::scheduler::Told;
use crate::sm90::smem::Shared;
use crate::sm90::tf32x3;
use crate::sm90::warpgroup::consume;

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
    /// Whether INT32 accumulators skip the conversion to floats ([`crate::sm90::bitwise_max`]).
    const FOLDS_SUMS: bool = matches!(Self::Element::OPERANDS, Operands::I8) && !Self::WINNERS;
    /// Whether documents' scales may be halves, as
    /// [`crate::table::forward::Variant::reads_half_scales`] says.
    const HALF_SCALES: bool = Self::FOLDS_SUMS && Self::CONSUMERS == 1;
    /// Whether the kernel is swap-AB: documents on M ([`crate::sm90::swap_ab`]).
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
    const GROUPS: u32 = (Self::QUERY_TILE / crate::abi::params::Group::ROWS) as u32;
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
pub(super) const CONSUMER_WARPS: u32 = 4;

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

/// Slabs of a token row.
#[inline(always)]
pub(crate) fn n_slabs<K: Kernel>(params: &ForwardParams) -> u32 {
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
            consume::<K>(params, &shared, norms, thread - 128);
            return;
        }
        let (warp, lane) = (thread / 32, thread % 32);
        let mut queries = QueryTile::NONE;
        if warp == 0 {
            // No other warp's barriers are needed to load documents: no wait.
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
                queries = QueryTile::first::<K>(params, lane);
            }
            wait_threads(n_threads::<K>());
        }
        release_registers::<FIRST>();
        // Loading last, so that its code follows: a jump ahead is a miss of the instruction cache.
        match warp {
            2.. if K::Element::SPLITS => {
                return tf32x3::split_slabs::<K>(params, &shared, warp - 2, lane);
            }
            1 => return store_sums::<K>(params, &shared, lane),
            2 => return load_masks::<K>(params, &shared, norms, lane),
            3 => return load_queries::<K>(params, &shared, maps, queries, lane),
            _ => {}
        }
        load::<K>(params, &shared, maps, lane);
    }
}

/// Threads of a block.
pub(super) const fn n_threads<K: Kernel>() -> u32 {
    threads(K::CONSUMERS) as u32
}

/// What the loading warp needs: the barriers of stages and of units. The maps' prefetch and the
/// barriers' constant addresses keep this short, which delays the first copy.
///
/// # Safety
/// One thread, before any use of the barriers.
#[inline(always)]
pub(super) unsafe fn init_loading<K: Kernel>(params: &ForwardParams, shared: &Shared, maps: Maps) {
    let n_loaders = match params.documents.mask {
        _ if K::Element::SPLITS => tf32x3::WARPS,
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
            barrier_init(shared.unit_empty(slot), Told::n_warps::<K>(params));
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
pub(super) unsafe fn init_storing<K: Kernel>(shared: &Shared) {
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
