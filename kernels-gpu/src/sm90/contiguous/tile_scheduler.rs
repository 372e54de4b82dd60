//! The dynamic scheduler: a warp that takes tickets from a counter and publishes units.
//!
//! CTAs do not get equal shares of the memory's rate: those that get less of it take fewer units,
//! and all end together. A unit's scores are the same whichever CTA has it.
//!
//! It is a warp of its own, since it waits for the counter, and for lists in memory; the others
//! have no time for that.

use crate::abi::layout::contiguous::UNIT_SLOTS;
use crate::abi::params::ContiguousParams;
use crate::ptx::atomic::count_up;
use crate::ptx::barrier::{barrier_arrive_if, barrier_fence, barrier_init, barrier_wait};
use crate::ptx::shared::store_shared_u32x4;
use crate::ptx::thread::{arrive_threads, grid_dim_x};
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::units::Run;
use crate::sm90::contiguous::{END, Kernel, Shared};
use crate::sm90::smem::Ring;

/// Takes tickets until there are no more units, and publishes each unit.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward`].
#[inline(always)]
pub(super) unsafe fn schedule<K: Kernel>(all: &ContiguousParams, shared: Shared<K>, lane: u32) {
    let tickets = all.forward.tickets;
    // SAFETY: a slot is written when every warp that multiplies has read its last unit; the counter
    // is this launch's.
    unsafe {
        if tickets != 0 && lane == 0 {
            let mut slot = 0;
            while slot < UNIT_SLOTS as u32 {
                barrier_init(shared.unit_full(slot), 1);
                barrier_init(shared.unit_empty(slot), K::WARPS as u32);
                slot += 1;
            }
            barrier_fence();
        }
        sync_warp();
        arrive_threads(K::THREADS);
        if tickets == 0 || lane != 0 {
            return;
        }
        let mut ring = Ring::START;
        loop {
            // No ticket is taken before there is room for its unit: a ticket that is taken early is
            // a share that no other CTA can have any more.
            barrier_wait(shared.unit_empty(ring.slot), ring.parity ^ 1);
            // All units, less the blocks' first ones, and one ticket in vain for each block: as
            // many tickets as units, after which the counter is 0 again.
            let unit = grid_dim_x() + count_up(tickets, all.n_units - 1);
            let is_unit = unit < all.n_units;
            let run = if is_unit { Run::of_ticket(all, unit) } else { Run::NONE };
            let words = [run.entry, run.entry_end, run.start, run.end];
            store_shared_u32x4(shared.unit(ring.slot), words);
            barrier_arrive_if(shared.unit_full(ring.slot), 1);
            if !is_unit {
                return;
            }
            ring = ring.next(UNIT_SLOTS as u32);
        }
    }
}

impl Run {
    /// Stands for a unit where there are no more.
    const NONE: Run = Run { entry: END, entry_end: END, start: 0, end: 0 };
}
