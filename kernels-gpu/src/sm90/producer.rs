//! The two single threads of the first warpgroup: one loads, one stores.

use super::{Ring, Shared};
use crate::layout::SLAB_BYTES;
use crate::layout::sm90::*;
use crate::params::ForwardParams;
use crate::ptx::barrier::{barrier_arrive_if, barrier_expect, barrier_wait};
use crate::ptx::copy::copy_tile;
use crate::ptx::memory::load_shared_f32;
use crate::ptx::thread::{block_idx_x, grid_dim_x};
use crate::work;

/// Loads query tiles and document slabs, in the order in which consumers use them.
///
/// # Safety
/// One thread per block; shared memory and barriers as [`super::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn load<const SLABS: usize>(
    params: &ForwardParams,
    shared: &Shared,
    query_map: u64,
    document_map: u64,
) {
    let mut ring = Ring::START;
    let mut tile = u32::MAX;
    let mut query_parity = 1;
    let mut unit = block_idx_x();
    while unit < params.n_units {
        // SAFETY: the unit exists; each wait is for arrivals that the consumers owe.
        unsafe {
            let work = work::unit(params, unit);
            if work.entry < work.entry_end {
                if work.tile != tile {
                    tile = work.tile;
                    barrier_wait(shared.query_empty(), query_parity);
                    query_parity ^= 1;
                    let tile_bytes = SLABS * query_slab_bytes(shared.query_tile as usize);
                    barrier_expect(shared.query_full(), tile_bytes as u32);
                    let mut slab = 0;
                    while slab < SLABS as u32 {
                        let mut row = 0;
                        while row < shared.query_tile {
                            copy_tile(
                                shared.query_slab(slab) + row * SLAB_BYTES as u32,
                                query_map,
                                slab * BOX_ELEMENTS as u32,
                                work.rows.start + work.tile_row + row,
                                shared.query_full(),
                            );
                            row += BOX_ROWS as u32;
                        }
                        slab += 1;
                    }
                }
                let mut entry = work.entry;
                let mut document = work::document(params, work.query, entry);
                while entry < work.entry_end {
                    // The next document's rows are fetched while this one streams.
                    let next = if entry + 1 < work.entry_end {
                        work::document(params, work.query, entry + 1)
                    } else {
                        document
                    };
                    let mut row = 0;
                    while row < document.len {
                        let mut slab = 0;
                        while slab < SLABS as u32 {
                            barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                            barrier_expect(shared.full(ring.slot), STAGE_BYTES as u32);
                            copy_tile(
                                shared.stage(ring.slot),
                                document_map,
                                slab * BOX_ELEMENTS as u32,
                                document.start + row,
                                shared.full(ring.slot),
                            );
                            ring = ring.next(shared.stages);
                            slab += 1;
                        }
                        row += DOCUMENT_TILE as u32;
                    }
                    document = next;
                    entry += 1;
                }
            }
        }
        unit += grid_dim_x();
    }
}

/// Adds the consumer warps' sums in order and stores scores or partial sums.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(super) unsafe fn store_sums(params: &ForwardParams, shared: &Shared) {
    let mut ring = Ring::START;
    let mut unit = block_idx_x();
    while unit < params.n_units {
        // SAFETY: the unit exists; consumers fill one slot per entry, in this order.
        unsafe {
            let work = work::unit(params, unit);
            let mut entry = work.entry;
            while entry < work.entry_end {
                barrier_wait(shared.sum_full(ring.slot), ring.parity);
                let mut sum = 0.0;
                let mut warp = 0;
                while warp < CONSUMER_WARPS as u32 {
                    sum += load_shared_f32(shared.sum(ring.slot, warp));
                    warp += 1;
                }
                barrier_arrive_if(shared.sum_empty(ring.slot), 1);
                work::store_sum(params, shared.query_tile, &work, entry, sum);
                ring = ring.next(SUM_SLOTS as u32);
                entry += 1;
            }
        }
        unit += grid_dim_x();
    }
}
