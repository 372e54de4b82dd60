//! The persistent kernel: the roles of its warps.

use crate::abi::params::ForwardParams;
use crate::primitives::row_scales::RowScales;
use crate::ptx::barrier::barrier_wait;
use crate::ptx::thread::*;
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::compute::Stored;
use crate::sm90::consumer::{Product, consume};
use crate::sm90::epilogue::store_sums;
use crate::sm90::kernel::{Kernel, Maps, n_threads};
use crate::sm90::producers::{QueryTile, load, load_queries, load_query};
use crate::sm90::prologue::{begin, first_queries, init_loading, init_storing};
use crate::sm90::scales::load_masks;
use crate::sm90::scales::norms::Norms;
use crate::sm90::scheduler::ReceivedUnits;
use crate::sm90::smem::Shared;
use crate::sm90::tf32x3;

/// The forward kernel of one line of the variant table. `PRODUCER`, `ALONE` and `CONSUMER` are its
/// [`Kernel::REGISTERS`].
///
/// # Safety
/// Launched with the line's threads and dynamic shared memory; `params` as [`ForwardParams`]
/// says; the addresses are those of its tensor maps, and of what its rows are normalised by.
#[inline(always)]
pub unsafe fn forward<K: Kernel, const PRODUCER: u32, const ALONE: u32, const CONSUMER: u32>(
    params: &ForwardParams,
    maps: Maps,
    row_scales: RowScales,
) {
    // SAFETY: the caller's promise.
    unsafe { run::<K, Stored, PRODUCER, ALONE, CONSUMER>(params, maps, row_scales, Stored) }
}

/// As [`forward`], with tiles multiplied and reduced by `product`.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn run<
    K: Kernel,
    P: Product,
    const PRODUCER: u32,
    const ALONE: u32,
    const CONSUMER: u32,
>(
    params: &ForwardParams,
    maps: Maps,
    row_scales: RowScales,
    product: P,
) {
    const { assert!(K::FRAGMENTS == 1 || K::FRAGMENTS == 2) };
    const { assert!(!K::NORMALIZES || !K::Element::SPLITS) };
    const { assert!(!K::LOADS_SCALES || K::WINNERS && K::FRAGMENTS == 1) };
    // Both sides' row scales come with the launch; beside promoted sums there is room for one
    // fragment.
    const { assert!(!K::Element::HAS_MINS || K::WINNERS && K::FRAGMENTS == 1) };
    // The largest sum has to be below 2²²: 128 products of numbers up to 127 are.
    const { assert!(!K::SKIPS_CONVERSION || K::SLABS == 1) };
    const { assert!(!K::Element::HAS_SCALES || K::NORMALIZES) };
    const { assert!(!K::Element::PROMOTES || K::SLABS == 1 || K::FRAGMENTS == 1) };
    const { assert!(!K::Element::HAS_SCALES || K::SLABS > 0 || K::FRAGMENTS == 1) };
    let shared = Shared::new::<K>();
    let thread = thread_idx_x();
    // SAFETY: the branches are uniform per warp, where they change registers per warpgroup; each
    // warp has one role. Barriers are initialised before others pass the block-wide barrier.
    unsafe {
        if thread >= 128 {
            wait_threads(n_threads::<K>());
            // The gradients of short queries come from a kernel that begins early.
            if K::WINNERS && K::QUERY_TILE == 64 && !K::Element::HAS_SCALES {
                let_next_grid_begin();
            }
            if K::CONSUMERS == 1 {
                claim_registers::<ALONE>();
            } else {
                claim_registers::<CONSUMER>();
            }
            return consume::<K, P>(params, &shared, row_scales, product, thread - 128);
        }
        let (warp, lane) = (thread / 32, thread % 32);
        let mut queries = QueryTile::NONE;
        begin!(
            K PRODUCER [warp, lane],
            init_loading::<K>(params, &shared, maps),
            init_storing::<K>(&shared),
            {
                if K::SLABS > 0 {
                    queries = first_queries::<K>(params, maps, lane);
                }
            }
        );
        // Consumers first and loading last, so that their code follows: a jump ahead is a miss of
        // the instruction cache.
        match warp {
            2.. if K::Element::SPLITS => {
                return tf32x3::split_slabs::<K>(params, &shared, warp - 2, lane);
            }
            1 => return store_sums::<K>(params, &shared, lane),
            2 => return load_masks::<K>(params, &shared, row_scales, lane),
            3 if K::FINDS_NORMS => {
                return load_queries_and_find_norms::<K>(params, &shared, maps, queries, lane);
            }
            3 => return load_queries::<K>(params, &shared, maps, queries, lane),
            _ => {}
        }
        load::<K>(params, &shared, maps, lane);
    }
}

/// Loads query tiles as [`load_queries`] does, and finds r of rows beside the warp that prepares
/// masks: of a unit behind its query tile, without which consumers release no document.
///
/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn load_queries_and_find_norms<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    maps: Maps,
    mut queries: QueryTile,
    lane: u32,
) {
    let mut norms = Norms::<1>::START;
    let mut units = ReceivedUnits::START;
    let mut parity = 0;
    // SAFETY: the caller's promise; consumers give a tile back when they receive a unit of another.
    unsafe {
        load_query::<K>(shared, maps, queries, lane);
        while let Some(work) = units.next(shared, lane) {
            if work.tile != queries.tile {
                queries = QueryTile::new::<K>(params, work.tile, lane);
                barrier_wait(shared.query_empty(), parity);
                parity ^= 1;
                load_query::<K>(shared, maps, queries, lane);
            }
            norms.find::<K>(params, shared, &work, lane);
        }
    }
}
