//! The producer warp of column masks and column scales: one tile ahead of the products.
//!
//! Where INT8 accumulators are reduced as they are ([`crate::sm90::bitwise_max`]), the scales are
//! turned into factors here.

use crate::abi::params::ForwardParams;
use crate::primitives::accumulator::valid_columns;
use crate::primitives::documents::Documents;
use crate::primitives::row_scales::{Norms, shared_place};
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::copy::{copies_arrive, copy_async_4, copy_commit, copy_wait};
use crate::ptx::shared::{load_shared_f32, store_shared_f32, store_shared_u32x4};
use crate::ptx::warp::ballot;
use crate::ptx::wgmma::Element;
use crate::sm90::bitwise_max::{factor, is_factor};
use crate::sm90::kernel::{Kernel, n_slabs};
use crate::sm90::scale_f16;
use crate::sm90::scheduler::{Told, for_each_tile};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// Turns the documents' mask into bits, one word per 32 columns, for each tile.
///
/// # Safety
/// As [`crate::sm90::producers::load`].
#[inline(always)]
pub(super) unsafe fn load_masks<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    lane: u32,
) {
    if K::HALF_SCALES && norms.has_halves() {
        // SAFETY: the caller's promise.
        return unsafe { scale_f16::load_factors::<K>(params, shared, norms, lane) };
    }
    if K::FOLDS_SUMS {
        // SAFETY: the caller's promise.
        return unsafe { load_factors::<K>(params, shared, norms, lane) };
    }
    if K::Element::HAS_SCALES {
        // SAFETY: the caller's promise.
        return unsafe { load_scales::<K>(params, shared, norms, lane) };
    }
    if params.documents.mask == 0 {
        return;
    }
    let n_slabs = n_slabs::<K>(params);
    let mut ring = Ring::START;
    let mut units = Told::START;
    // SAFETY: as for the slabs; the whole warp is here.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let words = valid_columns::<4>(&params.documents, start, left, lane);
                let mut slab = 0;
                while slab < n_slabs {
                    barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                    if lane == 0 && slab == 0 {
                        store_shared_u32x4(shared.mask(ring.slot), words);
                    }
                    barrier_arrive_if(shared.full(ring.slot), (lane == 0) as u32);
                    ring = ring.next(shared.stages);
                    slab += 1;
                }
            });
        }
    }
}

/// The mask of the columns of a tile of rows `start .. start + left` as bits, where documents have
/// one.
///
/// # Safety
/// One whole warp; the rows must be a document's.
#[inline(always)]
pub(super) unsafe fn mask_words(
    params: &ForwardParams,
    start: u32,
    left: u32,
    lane: u32,
) -> [u32; 4] {
    let mut words = [0; 4];
    if params.documents.mask != 0 {
        // SAFETY: the caller's promise.
        words = unsafe { valid_columns::<4>(&params.documents, start, left, lane) };
    }
    words
}

/// Copies the scales of each tile's columns, and turns the documents' mask, where there is one,
/// into bits.
///
/// # Safety
/// As [`crate::sm90::producers::load`]; there is a scale for every row, and behind the last one for
/// as many as a tile has.
#[inline(always)]
unsafe fn load_scales<K: Kernel>(params: &ForwardParams, shared: &Shared, norms: Norms, lane: u32) {
    let n_slabs = n_slabs::<K>(params);
    let is_masked = params.documents.mask != 0;
    let mut ring = Ring::START;
    let mut units = Told::START;
    // SAFETY: as for the slabs; the whole warp is here.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let words = mask_words(params, start, left, lane);
                let from = norms.of_documents(start + lane);
                let mut slab = 0;
                while slab < n_slabs {
                    let full = shared.full(ring.slot);
                    barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                    if slab == 0 {
                        let to = shared.scales(ring.slot) + shared_place(lane);
                        unroll!(I in 0..4 => {
                            copy_async_4(to + 128 * I as u32, from + 128 * I as u64);
                        });
                        if lane == 0 && is_masked {
                            store_shared_u32x4(shared.mask(ring.slot), words);
                        }
                        copies_arrive(full);
                    } else {
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
}

/// Tiles whose scales are in flight while those before are made factors. Busy memory answers late:
/// as many have to be requested as slabs are, and one stage is the consumers'.
pub(super) const SCALES_AHEAD: u32 = 4;

/// As [`load_scales`], but makes of them what [`factor`] says, in place: of all columns of a tile,
/// or NaN where that is one's.
///
/// # Safety
/// As there; a tile has one slab.
#[inline(always)]
unsafe fn load_factors<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    lane: u32,
) {
    const { assert!(!K::FOLDS_SUMS || K::STAGES as u32 > SCALES_AHEAD + 1) };
    let is_masked = params.documents.mask != 0;
    let (mut ring, mut landed) = (Ring::START, Ring::START);
    let mut n_ahead = 0;
    let mut units = Told::START;
    // SAFETY: as for the slabs; the whole warp is here. Tiles that are ahead are fewer than stages,
    // and units are published without them, so that waiting for a stage or a unit ends.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            let mut documents = Documents::new(params, &work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let words = mask_words(params, start, left, lane);
                let from = norms.of_documents(start + lane);
                barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                let to = shared.scales(ring.slot) + shared_place(lane);
                unroll!(I in 0..4 => {
                    // What lies behind a document's end may be anything.
                    match left > lane + 32 * I as u32 {
                        true => copy_async_4(to + 128 * I as u32, from + 128 * I as u64),
                        false => store_shared_f32(to + 128 * I as u32, 1.0),
                    }
                });
                copy_commit();
                if lane == 0 && is_masked {
                    store_shared_u32x4(shared.mask(ring.slot), words);
                }
                ring = ring.next(shared.stages);
                if n_ahead < SCALES_AHEAD {
                    n_ahead += 1;
                } else {
                    copy_wait::<SCALES_AHEAD>();
                    make_factors(params, shared, &mut landed, lane, |scale| scale);
                }
            });
        }
        copy_wait::<0>();
        while n_ahead > 0 {
            make_factors(params, shared, &mut landed, lane, |scale| scale);
            n_ahead -= 1;
        }
    }
}

/// Makes factors of the lane's scales in a stage, which are `scale` of the words there, and says
/// that they are there.
///
/// # Safety
/// One whole warp, of which each lane's scales have arrived.
#[inline(always)]
pub(super) unsafe fn make_factors(
    params: &ForwardParams,
    shared: &Shared,
    ring: &mut Ring,
    lane: u32,
    scale: impl Fn(f32) -> f32,
) {
    let place = shared.scales(ring.slot) + shared_place(lane);
    let full = shared.full(ring.slot);
    let mut factors = [0.0; 4];
    let mut has_all = true;
    // SAFETY: the caller's promise; each lane reads and writes what it has copied.
    unsafe {
        unroll!(I in 0..4 => {
            factors[I] = factor(scale(load_shared_f32(place + 128 * I as u32)));
            has_all &= is_factor(factors[I]);
        });
        has_all = ballot(!has_all as u32) == 0;
        unroll!(I in 0..4 => {
            store_shared_f32(place + 128 * I as u32, if has_all { factors[I] } else { f32::NAN });
        });
        if params.documents.mask != 0 {
            barrier_arrive_if(full, (lane == 0) as u32);
        }
        barrier_arrive_if(full, 1);
    }
    *ring = ring.next(shared.stages);
}
