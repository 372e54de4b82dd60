//! The tile scheduler: the producer warp finds units and publishes them to the other warps through
//! a small ring. One warp finds them, so that the code for it is there once: a block starts with
//! cold instruction caches.

use crate::abi::layout::sm90::UNIT_SLOTS;
use crate::abi::params::{ForwardParams, Segment};
use crate::primitives::work_tile;
use crate::primitives::work_tile::Work;
use crate::ptx::atomic::count_up;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::{load_shared_u32x4, store_shared_u32x4};
use crate::ptx::thread::{block_idx_x, grid_dim_x};
use crate::ptx::warp::{broadcast, sync_warp};
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::kernel::{CONSUMER_WARPS, Kernel, SPLITTING_WARPS};
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// In place of a unit's number: there are no more.
const END: u32 = u32::MAX;

/// The units of this CTA, for the producer warp: the first has the CTA's number, the others come
/// from the counter (dynamic) or follow at the distance of the grid (static).
///
/// A CTA whose documents arrive late takes fewer tickets, so that all CTAs end together. The next
/// ticket is taken while one unit is worked on, so that no warp waits for the counter.
pub(super) struct Units<'a> {
    params: &'a ForwardParams,
    is_first: bool,
    /// The next unit, or in lane 0 the ticket that says which it is.
    next: u32,
    ring: Ring,
}

impl<'a> Units<'a> {
    #[inline(always)]
    pub(super) fn new(params: &'a ForwardParams) -> Self {
        Units { params, is_first: true, next: block_idx_x(), ring: Ring::START }
    }

    /// The next unit, to be published; publishes the end itself.
    ///
    /// # Safety
    /// One whole warp of the block; `params` must describe the launch.
    #[inline(always)]
    pub(super) unsafe fn next<K: Kernel>(&mut self, shared: &Shared, lane: u32) -> Option<Work> {
        let params = self.params;
        // SAFETY: the caller's promise.
        unsafe {
            let mut unit = self.next;
            if params.tickets != 0 && !self.is_first {
                unit = grid_dim_x() + broadcast(self.next);
            }
            if unit >= params.n_units {
                self.store_words(shared, [END; 4], [0; 4], lane);
                return None;
            }
            self.is_first = false;
            self.next = unit + grid_dim_x();
            if params.tickets != 0 && lane == 0 {
                self.take_ticket();
            }
            Some(work_tile::unit(params, unit, K::GROUPS))
        }
    }

    /// Takes a ticket.
    ///
    /// # Safety
    /// As [`Units::next`], in one lane; there must be counters.
    #[inline(always)]
    unsafe fn take_ticket(&mut self) {
        let params = self.params;
        // All units, less the CTAs' first ones, and one ticket in vain for each CTA: as many
        // tickets as units, after which the counter is 0 again.
        // SAFETY: nothing else touches the counter during the launch.
        self.next = unsafe { count_up(params.tickets, params.n_units - 1) };
    }

    /// Publishes a unit, whose first document has the rows `first`, to the other warps.
    ///
    /// # Safety
    /// As [`Units::next`], once for each of its units, in their order.
    #[inline(always)]
    pub(super) unsafe fn publish(
        &mut self,
        shared: &Shared,
        work: &Work,
        first: Segment,
        lane: u32,
    ) {
        let words = [work.unit, work.tile, work.entry, work.entry_end];
        // SAFETY: the caller's promise.
        unsafe { self.store_words(shared, words, [first.start, first.len, 0, 0], lane) };
    }

    #[inline(always)]
    unsafe fn store_words(
        &mut self,
        shared: &Shared,
        first: [u32; 4],
        second: [u32; 4],
        lane: u32,
    ) {
        let (slot, parity) = (self.ring.slot, self.ring.parity);
        // SAFETY: a slot is written after every reader has let go of it.
        unsafe {
            barrier_wait(shared.unit_empty(slot), parity ^ 1);
            if lane == 0 {
                store_shared_u32x4(shared.unit(slot), first);
                store_shared_u32x4(shared.unit(slot) + 16, second);
            }
            barrier_arrive_if(shared.unit_full(slot), (lane == 0) as u32);
        }
        self.ring = self.ring.next(UNIT_SLOTS as u32);
    }
}

/// The units of this CTA, for a warp that receives them.
pub(super) struct ReceivedUnits {
    ring: Ring,
}

impl ReceivedUnits {
    pub(super) const START: ReceivedUnits = ReceivedUnits { ring: Ring::START };

    /// Warps that receive units.
    #[inline(always)]
    pub(super) fn n_warps<K: Kernel>(params: &ForwardParams) -> u32 {
        // One stores; the last two of the first warpgroup split, or prepare masks and load queries.
        let others = match params.documents.mask {
            _ if K::Element::SPLITS => SPLITTING_WARPS,
            0 if !K::Element::HAS_SCALES => (K::SLABS > 0) as u32,
            _ => (K::SLABS > 0) as u32 + 1,
        };
        CONSUMER_WARPS * K::CONSUMERS as u32 + 1 + others
    }

    /// The next unit.
    ///
    /// # Safety
    /// One whole warp of [`ReceivedUnits::n_warps`].
    #[inline(always)]
    pub(super) unsafe fn next(&mut self, shared: &Shared, lane: u32) -> Option<Work> {
        let (slot, parity) = (self.ring.slot, self.ring.parity);
        // SAFETY: the producer warp fills the slots in this order. The words are the same in all
        // lanes, which the assembler knows by the broadcasts: branches are cheaper then.
        unsafe {
            barrier_wait(shared.unit_full(slot), parity);
            let address = shared.unit(slot);
            let [unit, tile, entry, entry_end] = load_shared_u32x4(address);
            let [start, len, ..] = load_shared_u32x4(address + 16);
            sync_warp();
            barrier_arrive_if(shared.unit_empty(slot), (lane == 0) as u32);
            self.ring = self.ring.next(UNIT_SLOTS as u32);
            let unit = broadcast(unit);
            if unit == END {
                return None;
            }
            Some(Work {
                unit,
                tile: broadcast(tile),
                entry: broadcast(entry),
                entry_end: broadcast(entry_end),
                first: Some(Segment { start, len }),
            })
        }
    }
}

/// Runs the body for each document tile of some documents, in the order in which all warps go
/// through them: `$row` is the document's row that the tile starts with. A macro, so that the
/// warps' registers stay registers.
macro_rules! for_each_tile {
    ($documents:expr, |$document:ident, $row:ident| $body:block) => {
        while let Some((_, $document)) = $documents.next() {
            let mut $row = 0;
            while $row < $document.len {
                $body
                $row += $crate::abi::layout::sm90::DOCUMENT_TILE as u32;
            }
        }
    };
}
pub(super) use for_each_tile;

/// Runs the body for each document tile of the CTA, in a warp that receives units: `$start` is the
/// tile's first row in the documents' matrix, `$left` how many rows its document has from there on.
macro_rules! for_each_received_tile {
    ($params:expr, $shared:expr, $lane:expr, |$start:ident, $left:ident| $body:block) => {
        let mut units = $crate::sm90::scheduler::ReceivedUnits::START;
        while let Some(work) = units.next($shared, $lane) {
            let mut documents = $crate::primitives::documents::Documents::new($params, &work);
            $crate::sm90::scheduler::for_each_tile!(documents, |document, row| {
                let ($start, $left) = (document.start + row, document.len - row);
                $body
            });
        }
    };
}
pub(super) use for_each_received_tile;
