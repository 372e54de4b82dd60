//! Stream-K schedule: each CTA owns an equal share of the document tokens; a document may span
//! CTAs.
//!
//! It is for few query tiles against documents that are few for each CTA: one whole document more
//! is then much of a CTA's time. Units, one for each CTA, start and end between any two tiles of
//! documents. The partial documents that a unit shares with other units come first. The CTA with a
//! document's last tile reduces the partial row maxima that the others publish in device memory as
//! packed (flag, value) words, one for each query row. No fence is needed, which would keep a
//! multiprocessor's copies waiting, and the words have long arrived when they are received. Units
//! that follow each other in the documents are as far apart in number as there are tiles of
//! queries.
//!
//! A unit waits for CTAs with smaller numbers alone. Those begin before it, so that all end also
//! where CTAs do not all run at once (the look-back scans of CUB rely on it, too).
//!
//! With one fragment each, the consumers hold it in registers, and take turns at the tensor cores,
//! each half a product behind the other: in step, as documents that arrive late would bring them,
//! both would reduce at the same time. With two, one is multiplied while the other is reduced, as
//! elsewhere.

mod consumer;

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Segment};
use crate::primitives::accumulator::TileGroups;
use crate::primitives::row_maxima::sum_four;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::count_part;
use crate::ptx::barrier::{barrier_arrive_if, barrier_expect, barrier_wait};
use crate::ptx::copy::copy_tile;
use crate::ptx::shared::load_shared_f32x4;
use crate::ptx::thread::*;
use crate::ptx::warp::{shuffle, shuffle_xor_f32, sync_warp};
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::kernel::{Kernel, Maps, n_threads};
use crate::sm90::producers;
use crate::sm90::producers::{QueryTile, load_rows};
use crate::sm90::prologue::{begin, first_queries, init_loading, init_storing};
use crate::sm90::reduction::{collect, publish};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;
use crate::sm90::stream_k::consumer::consume;
use crate::sm90::units::{Kind, Part, Unit};

/// Rows that a copy brings of a whole tile's slab.
const BOX_ROWS: u32 = STREAM_K_BOX_ROWS as u32;

/// The forward kernel of a line of the variant table, as [`crate::sm90::persistent::forward`].
///
/// # Safety
/// As there; there must be starts of units, and places of partials behind the tickets.
#[inline(always)]
pub unsafe fn forward<K: Kernel, const PRODUCER: u32, const CONSUMER: u32>(
    params: &ForwardParams,
    maps: Maps,
) {
    const { assert!(K::CONSUMERS == 2 && K::STEPS == 2 * SLAB_STEPS) };
    const { assert!(!K::WINNERS && !K::NORMALIZES && !K::Element::SPLITS) };
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
        begin!(
            K PRODUCER [warp, lane],
            init_loading::<K>(params, &shared, maps),
            init_storing::<K>(&shared),
            {
                queries = first_queries::<K>(params, maps, lane);
            }
        );
        // Loading last, as there.
        if warp == 3 {
            return producers::load_query::<K>(&shared, maps, queries, lane);
        }
        if warp == 1 {
            return epilogue::<K>(params, &shared, lane);
        }
        if warp == 0 {
            load::<K>(params, &shared, maps, lane);
        }
    }
}

/// Loads document slabs, as [`crate::sm90::producers::load`].
///
/// # Safety
/// As there; the launch must have starts of units.
#[inline(always)]
unsafe fn load<K: Kernel>(params: &ForwardParams, shared: &Shared, maps: Maps, lane: u32) {
    let mut ring = Ring::START;
    // SAFETY: as there.
    unsafe {
        let mut unit = Unit::new(params);
        while let Some(Part { rows: Segment { start, len }, .. }) = unit.next() {
            let mut row = 0;
            while row < len {
                match len - row >= DOCUMENT_TILE as u32 {
                    true => load_boxes::<K>(shared, maps, &mut ring, start + row, lane),
                    false => load_rows::<K>(shared, maps, &mut ring, start + row, len - row, lane),
                }
                row += DOCUMENT_TILE as u32;
            }
        }
    }
}

/// Loads the rows of a whole tile, with fewer copies than [`load_rows`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn load_boxes<K: Kernel>(
    shared: &Shared,
    maps: Maps,
    ring: &mut Ring,
    start: u32,
    lane: u32,
) {
    let (slab, part) = (lane % 2, lane / 2);
    // SAFETY: as there.
    unsafe {
        let mut own = 0;
        let mut i = 0;
        while i < 2 {
            barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
            if lane == 0 {
                barrier_expect(shared.full(ring.slot), DOCUMENT_SLAB_BYTES as u32);
            }
            own = if i == slab { ring.slot } else { own };
            *ring = ring.next(shared.stages);
            i += 1;
        }
        if part < DOCUMENT_TILE as u32 / BOX_ROWS {
            copy_tile(
                shared.stage(own) + part * BOX_ROWS * crate::abi::layout::SLAB_BYTES as u32,
                maps.documents,
                slab * K::Element::SLAB_ELEMENTS,
                start + part * BOX_ROWS,
                shared.full(own),
            );
        }
    }
}

/// Stores scores, as [`crate::sm90::epilogue::store_sums`], and publishes and
/// receives partial maxima. Here two lanes have a group.
///
/// # Safety
/// As there; there must be places of partials behind the tickets.
#[inline(always)]
pub(super) unsafe fn epilogue<K: Kernel>(params: &ForwardParams, shared: &Shared, lane: u32) {
    let mut ring = Ring::START;
    // SAFETY: consumers fill a slot per document, two per partial and two more with weights where
    // one ends, in this order; the whole warp is here.
    unsafe {
        let mut unit = Unit::new(params);
        let queries = QueryTile::new::<K>(params, unit.tile, lane);
        let groups = TileGroups::new(queries.group, lane);
        while let Some(Part { entry, kind, .. }) = unit.next() {
            let mut sums = read_slot::<K>(shared, &mut ring, lane);
            if kind != Kind::Whole {
                let others = read_slot::<K>(shared, &mut ring, lane);
                if kind == Kind::Continues {
                    publish::<K, 2>(params, unit.index, unit.tile, 0, [sums, others], lane);
                    continue;
                }
                let mut maxima = collect::<K, 2>(params, &unit, entry, 0, [sums, others], lane);
                if params.query_weights != 0 {
                    unroll!(HALF in 0..2 => {
                        let weights = read_slot::<K>(shared, &mut ring, lane);
                        unroll!(I in 0..4 => { maxima[HALF][I] *= weights[I]; });
                    });
                }
                unroll!(I in 0..4 => {
                    sums[I] = maxima[0][I] + maxima[1][I];
                });
            }
            // As `sum_eight`; the group's lane gets it.
            let sum = sum_four(sums);
            let sum = sum + shuffle_xor_f32::<1>(sum);
            groups.store(params, entry, f32::from_bits(shuffle(sum.to_bits(), 2 * lane)));
        }
        if params.counters != 0 {
            count_part(params, &unit.work(), groups.first_query(), lane);
        }
    }
}

/// Reads a lane's values of the next slot.
///
/// # Safety
/// As [`epilogue`].
#[inline(always)]
unsafe fn read_slot<K: Kernel>(shared: &Shared, ring: &mut Ring, lane: u32) -> [f32; 4] {
    let mut values = [0.0; 4];
    // SAFETY: the caller's promise.
    unsafe {
        barrier_wait(shared.sum_full(ring.slot), ring.parity);
        if lane < 2 * K::GROUPS {
            values = load_shared_f32x4(shared.sums(ring.slot, lane / 2) + 16 * (lane % 2));
        }
        sync_warp();
        barrier_arrive_if(shared.sum_empty(ring.slot), (lane == 0) as u32);
    }
    *ring = ring.next(sum_slots(K::QUERY_TILE) as u32);
    values
}
