//! The epilogue: adds the sums of the groups of each query and stores the scores.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::accumulator::TileGroups;
use crate::primitives::row_maxima::sum_eight;
use crate::primitives::work_tile;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::load_shared_f32x4;
use crate::ptx::warp::sync_warp;
use crate::sm90::kernel::Kernel;
use crate::sm90::producers::QueryTile;
use crate::sm90::scheduler::ReceivedUnits;
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// Adds the groups' sums by query and stores scores or partial sums.
///
/// # Safety
/// As [`crate::sm90::producers::load`].
#[inline(always)]
pub(super) unsafe fn store_sums<K: Kernel>(params: &ForwardParams, shared: &Shared, lane: u32) {
    let mut ring = Ring::START;
    let mut tile = u32::MAX;
    let mut units = ReceivedUnits::START;
    // SAFETY: consumers fill one slot per entry, in this order; the whole warp is here.
    unsafe {
        let mut groups = TileGroups::new(Group::NONE, lane);
        while let Some(work) = units.next(shared, lane) {
            if work.tile != tile {
                tile = work.tile;
                let queries = QueryTile::new::<K>(params, tile, lane);
                groups = TileGroups::new(queries.group, lane);
            }
            if !K::ADDS {
                continue;
            }
            let mut entry = work.entry;
            while entry < work.entry_end {
                barrier_wait(shared.sum_full(ring.slot), ring.parity);
                let mut sum = 0.0;
                if lane < K::GROUPS {
                    let sums = shared.sums(ring.slot, lane);
                    sum = sum_eight(load_shared_f32x4(sums), load_shared_f32x4(sums + 16));
                }
                sync_warp();
                barrier_arrive_if(shared.sum_empty(ring.slot), (lane == 0) as u32);
                groups.store(params, entry, sum);
                ring = ring.next(sum_slots(K::QUERY_TILE) as u32);
                entry += 1;
            }
            if params.counters != 0 {
                work_tile::count_part(params, &work, groups.first_query(), lane);
            }
        }
    }
}
