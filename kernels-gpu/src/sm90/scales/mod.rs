//! The producer warp of column masks and column scales: one tile ahead of the products.
//!
//! Where INT8 accumulators are reduced as they are ([`crate::sm90::bitwise_max`]), the scales are
//! turned into factors here. Where rows are normalised, scales are found ([`norms`]).

mod f16;
pub(super) mod norms;

use crate::abi::params::ForwardParams;
use crate::primitives::accumulator::valid_columns;
use crate::primitives::row_scales::{RowScales, shared_place};
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::copy::{copies_arrive, copy_async_4, copy_commit, copy_wait};
use crate::ptx::shared::{load_shared_f32, store_shared_f32, store_shared_u32x4};
use crate::ptx::warp::ballot;
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::bitwise_max::{factor, is_factor};
use crate::sm90::kernel::{Kernel, n_slabs};
use crate::sm90::scales::f16::Halves;
use crate::sm90::scales::norms::find_norms;
use crate::sm90::scheduler::for_each_received_tile;
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
    row_scales: RowScales,
    lane: u32,
) {
    if K::READS_F16_SCALES && row_scales.are_f16() {
        // SAFETY: the caller's promise.
        return unsafe { load_factors::<K, _>(params, shared, row_scales, Halves::NONE, lane) };
    }
    if K::SKIPS_CONVERSION {
        // SAFETY: the caller's promise.
        return unsafe { load_factors::<K, _>(params, shared, row_scales, Words, lane) };
    }
    if K::FINDS_NORMS {
        // SAFETY: the caller's promise.
        return unsafe { find_norms::<K>(params, shared, lane) };
    }
    if K::Element::HAS_SCALES {
        // SAFETY: the caller's promise.
        return unsafe { load_scales::<K>(params, shared, row_scales, lane) };
    }
    if params.documents.mask == 0 {
        return;
    }
    let n_slabs = n_slabs::<K>(params);
    let mut ring = Ring::START;
    // SAFETY: as for the slabs; the whole warp is here.
    unsafe {
        for_each_received_tile!(params, shared, lane, |start, left| {
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
unsafe fn load_scales<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    row_scales: RowScales,
    lane: u32,
) {
    let n_slabs = n_slabs::<K>(params);
    let is_masked = params.documents.mask != 0;
    let mut ring = Ring::START;
    // SAFETY: as for the slabs; the whole warp is here.
    unsafe {
        for_each_received_tile!(params, shared, lane, |start, left| {
            let words = mask_words(params, start, left, lane);
            let from = row_scales.of_documents(start + lane);
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

/// Tiles whose scales are in flight while those before are made factors. Busy memory answers late:
/// as many have to be requested as slabs are, and one stage is the consumers'.
const SCALES_AHEAD: u32 = 4;

/// How the scales of a tile's columns are stored, and what a lane knows of its own of the tiles
/// that are in flight.
pub(super) trait StoredScales {
    /// Bytes from a word of the lane's to that of the column 32 further on.
    const STEP: u64;
    /// A word that stands for scales of 1.
    const ONE: f32;

    /// Address of the word with the scale of a document row, the lane's first of the next tile.
    fn word_of(&mut self, row_scales: &RowScales, row: u32) -> u64;

    /// The lane's scale in a word of the tile that `n_later` tiles follow.
    fn scale(&self, word: f32, n_later: u32) -> f32;
}

/// Scales that are f32.
struct Words;

impl StoredScales for Words {
    const STEP: u64 = 128;
    const ONE: f32 = 1.0;

    #[inline(always)]
    fn word_of(&mut self, row_scales: &RowScales, row: u32) -> u64 {
        row_scales.of_documents(row)
    }

    #[inline(always)]
    fn scale(&self, word: f32, _: u32) -> f32 {
        word
    }
}

/// Loads scales as [`load_scales`] does, and replaces them by their [`factor`]s: of all columns of
/// a tile, or NaN where that is one's.
///
/// # Safety
/// As there; a tile has one slab, and the launch has scales stored so.
#[inline(always)]
unsafe fn load_factors<K: Kernel, S: StoredScales>(
    params: &ForwardParams,
    shared: &Shared,
    row_scales: RowScales,
    mut stored: S,
    lane: u32,
) {
    const { assert!(!K::SKIPS_CONVERSION || K::STAGES as u32 > SCALES_AHEAD + 1) };
    let is_masked = params.documents.mask != 0;
    let (mut ring, mut landed) = (Ring::START, Ring::START);
    let mut n_ahead = 0;
    // SAFETY: as for the slabs; the whole warp is here. Tiles that are ahead are fewer than stages,
    // and units are published without them, so that waiting for a stage or a unit ends.
    unsafe {
        for_each_received_tile!(params, shared, lane, |start, left| {
            let words = mask_words(params, start, left, lane);
            let from = stored.word_of(&row_scales, start + lane);
            barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
            let to = shared.scales(ring.slot) + shared_place(lane);
            unroll!(I in 0..4 => {
                // Values behind a document's end are unspecified.
                match left > lane + 32 * I as u32 {
                    true => copy_async_4(to + 128 * I as u32, from + S::STEP * I as u64),
                    false => store_shared_f32(to + 128 * I as u32, S::ONE),
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
                make_factors(params, shared, &mut landed, lane, &stored, SCALES_AHEAD);
            }
        });
        copy_wait::<0>();
        while n_ahead > 0 {
            n_ahead -= 1;
            make_factors(params, shared, &mut landed, lane, &stored, n_ahead);
        }
    }
}

/// Makes factors of the lane's scales in the stage of a tile that `n_later` tiles follow, and
/// arrives for them.
///
/// # Safety
/// One whole warp, of which each lane's scales have arrived.
#[inline(always)]
unsafe fn make_factors(
    params: &ForwardParams,
    shared: &Shared,
    ring: &mut Ring,
    lane: u32,
    stored: &impl StoredScales,
    n_later: u32,
) {
    let place = shared.scales(ring.slot) + shared_place(lane);
    let full = shared.full(ring.slot);
    let mut factors = [0.0; 4];
    let mut has_all = true;
    // SAFETY: the caller's promise; each lane reads and writes what it has copied.
    unsafe {
        unroll!(I in 0..4 => {
            factors[I] = factor(stored.scale(load_shared_f32(place + 128 * I as u32), n_later));
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
