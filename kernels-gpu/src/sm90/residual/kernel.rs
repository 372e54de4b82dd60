//! The kernel: the roles of its warps, its barriers.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Residuals};
use crate::primitives::documents::Documents;
use crate::primitives::row_scales::{RowScales, shared_place};
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_fence, barrier_init, barrier_wait};
use crate::ptx::copy::{copies_arrive, copy_async_4, prefetch_map};
use crate::ptx::shared::{store_shared_f32, store_shared_u32x4};
use crate::ptx::thread::*;
use crate::ptx::warp::broadcast;
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::consumer::consume;
use crate::sm90::epilogue::store_sums;
use crate::sm90::kernel::{CONSUMER_WARPS, Kernel, Maps, n_slabs};
use crate::sm90::producers::{QueryTile, load_groups, load_queries};
use crate::sm90::residual::consumer::Decoded;
use crate::sm90::residual::decoder::{Residual, decode};
use crate::sm90::scales::mask_words;
use crate::sm90::scheduler::{Units, for_each_received_tile, for_each_tile};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// Warps of the warpgroups that decode.
pub(super) const DECODER_WARPS: u32 = 4 * DECODERS as u32;

/// Registers of a thread of the producer warpgroup, of the consumer, and of a decoder: 4 × 64 in
/// all. With winners, and with sums of a whole tile where slabs stream, decoders have fewer.
pub const fn registers<K: Kernel>() -> [u32; 3] {
    match (K::WINNERS, K::SLABS) {
        (_, 0) => [40, 120, 48],
        (true, _) => [40, 104, 56],
        (false, _) => [40, 88, 64],
    }
}

/// The forward kernel of one line of the variant table. `PRODUCER`, `CONSUMER` and `DECODER` are
/// its [`registers`].
///
/// # Safety
/// As [`crate::sm90::persistent::forward`]; `tokens` as [`Residuals`] says.
#[inline(always)]
pub unsafe fn forward<K: Kernel, const PRODUCER: u32, const CONSUMER: u32, const DECODER: u32>(
    params: &ForwardParams,
    maps: Maps,
    tokens: &Residuals,
) where
    K::Element: Residual,
{
    const { assert!(K::CONSUMERS == 1 && K::FRAGMENTS == 1) };
    let shared = Shared::new::<K>();
    let thread = thread_idx_x();
    // SAFETY: every warp is whole here, and branches are uniform per warp, where they change
    // registers per warpgroup; each warp has one role. Barriers are initialised before anyone
    // passes the block-wide barrier.
    unsafe {
        let warp = broadcast(thread / 32);
        let lane = thread % 32;
        if thread == 0 {
            init::<K>(params, &shared, maps);
        }
        let mut queries = QueryTile::NONE;
        if warp == 3 && K::SLABS > 0 {
            queries = QueryTile::first::<K>(params, lane);
        }
        sync_threads();
        if warp >= 8 {
            if DECODER < 64 {
                release_registers::<DECODER>();
            }
            let warp = warp - 8;
            return match tokens.nbits {
                1 => decode::<K, 1>(params, &shared, tokens, warp, lane),
                2 => decode::<K, 2>(params, &shared, tokens, warp, lane),
                4 => decode::<K, 4>(params, &shared, tokens, warp, lane),
                _ => decode::<K, 8>(params, &shared, tokens, warp, lane),
            };
        }
        if warp >= 4 {
            claim_registers::<CONSUMER>();
            return consume::<K, _>(params, &shared, RowScales::NONE, Decoded, thread - 128);
        }
        release_registers::<PRODUCER>();
        match warp {
            1 => store_sums::<K>(params, &shared, lane),
            2 => load_norms::<K>(params, &shared, tokens.norms, lane),
            3 => load_queries::<K>(params, &shared, maps, queries, lane),
            _ => distribute::<K>(params, &shared, maps, lane),
        }
    }
}

/// Initialises all barriers.
///
/// # Safety
/// One thread, before any use of the barriers.
#[inline(always)]
unsafe fn init<K: Kernel>(params: &ForwardParams, shared: &Shared, maps: Maps) {
    let is_masked = (params.documents.mask != 0) as u32;
    // Decoders, each lane that copies norms, who prepares masks, and who copies query slabs.
    let n_loaders = DECODER_WARPS + 32 + is_masked + (K::SLABS == 0) as u32;
    // Consumers, decoders, who stores, who copies norms, and who loads query tiles.
    let n_receivers = CONSUMER_WARPS + DECODER_WARPS + 2 + (K::SLABS > 0) as u32;
    // SAFETY: the caller's promise.
    unsafe {
        prefetch_map(maps.queries);
        let mut slot = 0;
        while slot < K::STAGES as u32 {
            barrier_init(shared.full(slot), n_loaders);
            barrier_init(shared.empty(slot), CONSUMER_WARPS);
            slot += 1;
        }
        slot = 0;
        while slot < UNIT_SLOTS as u32 {
            barrier_init(shared.unit_full(slot), 1);
            barrier_init(shared.unit_empty(slot), n_receivers);
            slot += 1;
        }
        crate::sm90::prologue::init_storing::<K>(shared);
        barrier_fence();
    }
}

/// Publishes the CTA's units to the other warps, and copies their query slabs where they stream.
///
/// # Safety
/// One whole warp per block; shared memory and barriers as [`forward`] sets them up.
#[inline(always)]
unsafe fn distribute<K: Kernel>(params: &ForwardParams, shared: &Shared, maps: Maps, lane: u32) {
    let n_slabs = n_slabs::<K>(params);
    let mut ring = Ring::START;
    let mut queries = QueryTile::NONE;
    let mut units = Units::new(params);
    // SAFETY: stages are overwritten after the consumers' arrivals.
    unsafe {
        while let Some(work) = units.next::<K>(shared, lane) {
            let mut documents = Documents::new(params, &work);
            units.publish(shared, &work, documents.first(), lane);
            if K::SLABS > 0 {
                continue;
            }
            if work.tile != queries.tile {
                queries = QueryTile::new::<K>(params, work.tile, lane);
            }
            for_each_tile!(documents, |document, row| {
                let mut slab = 0;
                while slab < n_slabs {
                    let column = slab * K::Element::SLAB_ELEMENTS;
                    let place = shared.stage_queries(ring.slot);
                    let full = shared.full(ring.slot);
                    barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                    load_groups(place, maps, column, &queries, lane, full);
                    ring = ring.next(shared.stages);
                    slab += 1;
                }
            });
        }
    }
}

/// Copies r of each tile's columns, or 1 where there is none, and turns the documents' mask, where
/// there is one, into bits.
///
/// # Safety
/// As [`distribute`]; at `norms`, if it is not 0, there is a number for every row, and behind the
/// last one for as many as a tile has.
#[inline(always)]
unsafe fn load_norms<K: Kernel>(params: &ForwardParams, shared: &Shared, norms: u64, lane: u32) {
    let n_slabs = n_slabs::<K>(params);
    let is_masked = params.documents.mask != 0;
    // Consumers read the norms last.
    let last = if K::SLABS == 0 { n_slabs - 1 } else { 0 };
    let mut ring = Ring::START;
    // SAFETY: as for the slabs; the whole warp is here.
    unsafe {
        for_each_received_tile!(params, shared, lane, |start, left| {
            let words = mask_words(params, start, left, lane);
            let from = norms + u64::from(start + lane) * 4;
            let mut slab = 0;
            while slab < n_slabs {
                let full = shared.full(ring.slot);
                barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                let to = shared.scales(ring.slot) + shared_place(lane);
                if slab == 0 && lane == 0 && is_masked {
                    store_shared_u32x4(shared.mask(ring.slot), words);
                }
                if slab == last && norms != 0 {
                    unroll!(I in 0..4 => {
                        copy_async_4(to + 128 * I as u32, from + 128 * I as u64);
                    });
                    copies_arrive(full);
                } else {
                    if slab == last {
                        unroll!(I in 0..4 => { store_shared_f32(to + 128 * I as u32, 1.0); });
                    }
                    barrier_arrive_if(full, 1);
                }
                if is_masked {
                    barrier_arrive_if(full, (lane == 0) as u32);
                }
                ring = ring.next(shared.stages);
                slab += 1;
            }
        });
    }
}
