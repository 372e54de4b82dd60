//! The kernel: the roles of its warps, its barriers.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::row_scales::RowScales;
use crate::primitives::work_tile;
use crate::ptx::barrier::{barrier_arrive_if, barrier_fence, barrier_init, barrier_wait};
use crate::ptx::copy::prefetch_map;
use crate::ptx::shared::load_shared_u32x4;
use crate::ptx::thread::*;
use crate::ptx::warp::{broadcast, shuffle_xor};
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::kernel::{Kernel, Maps, n_threads};
use crate::sm90::producers::{QueryTile, load_queries, load_query, publish_rows};
use crate::sm90::prologue::begin;
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;
use crate::sm90::swap_ab::consumer::Consumer;
use crate::sm90::swap_ab::epilogue::store_maxima;
use crate::sm90::swap_ab::partial;
use crate::sm90::swap_ab::producer::{load, load_second_pair};
use crate::sm90::units::Unit;

/// The forward kernel of a line of the variant table, as [`crate::sm90::persistent::forward`].
/// `IS_STREAM_K`: units may end within documents.
///
/// # Safety
/// As there; where units may, there must be starts of units, and places of partials behind the
/// counters.
#[inline(always)]
pub unsafe fn forward<
    K: Kernel,
    const PRODUCER: u32,
    const CONSUMER: u32,
    const IS_STREAM_K: bool,
>(
    params: &ForwardParams,
    maps: Maps,
    row_scales: RowScales,
) {
    const { assert!(K::CONSUMERS == SWAP_AB_CONSUMERS) };
    const { assert!(K::SLABS == 1 && K::FRAGMENTS == 1 && !K::WINNERS) };
    const { assert!(K::Element::HAS_SCALES && !K::Element::HAS_MINS) };
    let shared = Shared::new::<K>();
    let thread = thread_idx_x();
    // SAFETY: as there.
    unsafe {
        if thread >= 128 {
            wait_threads(n_threads::<K>());
            claim_registers::<CONSUMER>();
            return consume::<K>(params, &shared, thread - 128);
        }
        let (warp, lane) = (thread / 32, thread % 32);
        let mut queries = QueryTile::NONE;
        // Of a block's only tile the warp that loads it requests the groups, and does not wait for
        // them: all others would wait for it when they meet.
        let (mut tile, mut group) = (0, Group::NONE);
        if IS_STREAM_K && warp % 2 == 0 {
            // For the loading warps, which need it when barriers are set up.
            Unit::first_entry(params);
        }
        begin!(
            K PRODUCER [warp, lane],
            init_loading::<K>(&shared, maps),
            init_storing::<IS_STREAM_K>(&shared),
            {
                if lane == 0 {
                    prefetch_map(maps.queries);
                }
                if IS_STREAM_K {
                    tile = work_tile::tile(params, block_idx_x());
                    group = QueryTile::group::<K>(params, tile, lane);
                } else {
                    queries = QueryTile::first::<K>(params, lane);
                }
            }
        );
        if IS_STREAM_K {
            let (work, n) = match warp {
                1 => (partial::store::<K>(params, &shared, row_scales, lane), 1),
                3 => {
                    let queries = QueryTile::of(tile, group);
                    load_query::<K>(&shared, maps, queries, lane);
                    publish_rows::<K>(params, &shared, tile, lane);
                    barrier_arrive_if(shared.query_full(), (lane == 0) as u32);
                    (partial::one_entry(params), 0)
                }
                // One code for both pairs: a block starts with cold instruction caches.
                _ => {
                    let pair = broadcast(warp) / 2;
                    return partial::load::<K>(params, &shared, maps, row_scales, pair, lane);
                }
            };
            return partial::end::<K>(params, &work, n);
        }
        match warp {
            1 => return store_maxima::<K>(params, &shared, row_scales, lane),
            2 => return load_second_pair::<K>(params, &shared, maps, row_scales, lane),
            3 => return load_queries::<K>(params, &shared, maps, queries, lane),
            _ => {}
        }
        load::<K>(params, &shared, maps, row_scales, lane);
    }
}

/// The barriers of stages and of units.
///
/// # Safety
/// One thread, before any use of the barriers.
#[inline(always)]
unsafe fn init_loading<K: Kernel>(shared: &Shared, maps: Maps) {
    // SAFETY: the caller's promise.
    unsafe {
        prefetch_map(maps.documents);
        prefetch_map(maps.document_tails);
        let mut slot = 0;
        while slot < (PAIRS * K::STAGES) as u32 {
            // Each lane arrives when its scales have landed, one announces the copies of the rows.
            barrier_init(shared.pair_full(slot), 33);
            barrier_init(shared.pair_empty(slot), PAIR_WARPS as u32);
            slot += 1;
        }
        slot = 0;
        while slot < UNIT_SLOTS as u32 {
            barrier_init(shared.unit_full(slot), 1);
            // The producer warpgroup's other warps receive units.
            barrier_init(shared.unit_empty(slot), 3);
            slot += 1;
        }
        barrier_fence();
    }
}

/// The barriers of the query tile and of slots.
///
/// # Safety
/// As [`init_loading`].
#[inline(always)]
unsafe fn init_storing<const IS_STREAM_K: bool>(shared: &Shared) {
    // SAFETY: the caller's promise.
    unsafe {
        // That the tile's copies are in flight, and, where that is published separately, which rows
        // are query tokens.
        barrier_init(shared.query_full(), if IS_STREAM_K { 2 } else { 1 });
        barrier_init(shared.query_empty(), (PAIRS * PAIR_WARPS) as u32);
        let mut slot = 0;
        while slot < (PAIRS * PAIR_SLOTS) as u32 {
            barrier_init(shared.maxima_full(slot), PAIR_WARPS as u32);
            barrier_init(shared.maxima_empty(slot), 1);
            slot += 1;
        }
        barrier_fence();
    }
}

/// Query rows of a warpgroup.
pub(super) const COLUMNS: u32 = 128;
/// Document tokens of a product.
pub(super) const ROWS: u32 = FRAGMENT_ROWS as u32;
/// Behind the sums of 16 groups: whether the document has tokens.
pub(super) const HAS_TOKENS: u32 = 64;

/// The pair of a consumer warp.
#[inline(always)]
pub(super) fn pair(warp: u32) -> u32 {
    warp / 4 % PAIRS as u32
}

/// A thread's first row of a product; the second is 8 further on.
#[inline(always)]
pub(super) fn row(warp: u32, lane: u32) -> u32 {
    Group::ROWS as u32 * (warp % 4) + lane / 4
}

/// In place of a document's tokens: there is no document.
pub(super) const NO_LEN: u32 = u32::MAX;
/// Word in which a document's stage publishes its query tile: the last one's, …
pub(super) const SAME_TILE: u32 = 0;
/// … or another one, the block's first, and the parity of its barrier, …
pub(super) const NEW_TILE: u32 = 4;
pub(super) const FIRST_TILE: u32 = 2;
pub(super) const TILE_PARITY: u32 = 1;
/// … or that there are no more documents. (Consumers have no registers to keep tiles and parities
/// in.)
pub(super) const END: u32 = u32::MAX;

/// Works through the documents of the pair.
///
/// # Safety
/// All consumer threads; shared memory and barriers as [`crate::sm90::swap_ab::kernel::forward`]
/// sets them up.
#[inline(always)]
pub(super) unsafe fn consume<K: Kernel>(params: &ForwardParams, shared: &Shared, thread: u32) {
    // SAFETY: every warp is whole here.
    let warp = unsafe { broadcast(thread / 32) };
    let lane = thread % 32;
    let first_stage = pair(warp) * shared.stages;
    // The exchange with itself keeps the address in a register: the assembler would form it anew
    // for every tile, behind the products.
    // SAFETY: as above.
    let scales = unsafe { shuffle_xor::<0>(shared.pair_scales(first_stage) + 4 * row(warp, lane)) };
    let (ring, sums) = (Ring::START, Ring::START);
    let mut consumer = Consumer { params, shared, warp, scales, ring, sums };
    // SAFETY: the pair's loading warp fills the stages with what is waited for, in this order.
    unsafe {
        loop {
            consumer.wait();
            let [len, tile, ..] = load_shared_u32x4(shared.words(consumer.stage()));
            let (len, tile) = (broadcast(len), broadcast(tile));
            if tile == END {
                return;
            }
            if tile != SAME_TILE {
                let releases = tile & FIRST_TILE == 0 && lane == 0;
                barrier_arrive_if(shared.query_empty(), releases as u32);
                barrier_wait(shared.query_full(), tile & TILE_PARITY);
                consumer.load_valid_rows();
            }
            if len == NO_LEN {
                consumer.release();
                continue;
            }
            consumer.documents::<K>(len);
        }
    }
}
