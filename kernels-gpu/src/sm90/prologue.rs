//! Prologue of a CTA: barriers, roles, registers.

use crate::abi::layout::sm90::*;
use crate::abi::params::ForwardParams;
use crate::ptx::barrier::{barrier_fence, barrier_init};
use crate::ptx::copy::prefetch_map;
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::kernel::{CONSUMER_WARPS, Kernel, Maps, SPLITTING_WARPS};
use crate::sm90::producers::QueryTile;
use crate::sm90::scheduler::ReceivedUnits;
use crate::sm90::smem::Shared;
use crate::sm90::smem::norms::NORM_WARPS;

/// Runs the prologue of each warp of the producer warpgroup before its role: the first initialises
/// the barriers of loading in one thread, the second those of storing, and the last looks up the
/// query tile. Then all meet the consumers, and release registers to them. A macro, so that the
/// first copies come as early as when each kernel had this code of its own.
macro_rules! begin {
    (
        $kernel:ident $registers:ident [$warp:ident, $lane:ident],
        $init_loading:expr, $init_storing:expr, $find_queries:block
    ) => {
        if $warp == 0 {
            // No other warp's barriers are needed to load documents: no wait.
            if $lane == 0 {
                $init_loading;
            }
            $crate::ptx::warp::sync_warp();
            $crate::ptx::thread::arrive_threads($crate::sm90::kernel::n_threads::<$kernel>());
        } else {
            if $warp == 1 && $lane == 0 {
                $init_storing;
            }
            if $warp == 3 $find_queries
            $crate::ptx::thread::wait_threads($crate::sm90::kernel::n_threads::<$kernel>());
        }
        $crate::ptx::thread::release_registers::<$registers>();
    };
}
pub(super) use begin;

/// The first query tile, which the last warp looks up where tiles stay.
///
/// # Safety
/// One whole warp.
#[inline(always)]
pub(super) unsafe fn first_queries<K: Kernel>(
    params: &ForwardParams,
    maps: Maps,
    lane: u32,
) -> QueryTile {
    // SAFETY: the caller's promise.
    unsafe {
        if lane == 0 {
            prefetch_map(maps.queries);
        }
        QueryTile::first::<K>(params, lane)
    }
}

/// Initialises the barriers of stages and of units for the loading warp. The maps' prefetch and the
/// barriers' constant addresses keep this short, as it delays the first copy.
///
/// # Safety
/// One thread, before any use of the barriers.
#[inline(always)]
pub(super) unsafe fn init_loading<K: Kernel>(params: &ForwardParams, shared: &Shared, maps: Maps) {
    let n_loaders = match params.documents.mask {
        _ if K::Element::SPLITS => SPLITTING_WARPS,
        // The mask comes with r.
        _ if K::FINDS_NORMS => 1,
        0 => 1,
        _ => 2,
    };
    // Each lane arrives when its scales have.
    let n_loaders = match K::Element::HAS_SCALES && !K::FINDS_NORMS {
        true => n_loaders + 32,
        false => n_loaders,
    };
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
            if K::FINDS_NORMS {
                barrier_init(shared.normed(slot), NORM_WARPS);
            }
            slot += 1;
        }
        slot = 0;
        while slot < UNIT_SLOTS as u32 {
            barrier_init(shared.unit_full(slot), 1);
            barrier_init(shared.unit_empty(slot), ReceivedUnits::n_warps::<K>(params));
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
