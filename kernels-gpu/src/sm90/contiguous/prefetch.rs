//! The next unit, as a warp that multiplies knows it, for prefetching under the dynamic scheduler.

use crate::abi::layout::contiguous::UNIT_SLOTS;
use crate::abi::params::ContiguousParams;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::load_shared_u32x4;
use crate::ptx::warp::{broadcast, sync_warp};
use crate::sm90::contiguous::chunks::{Chunks, Rows, UnitChunks};
use crate::sm90::contiguous::units::{Ends, Run};
use crate::sm90::contiguous::{END, Kernel, Shared, is_dynamic};
use crate::sm90::smem::Ring;

/// The chunks that a warp requests, up to a unit ahead of what it multiplies: for that it needs
/// registers that kernels of 2-byte elements do not have.
pub(super) struct Prefetch<'a, K> {
    params: &'a ContiguousParams,
    shared: Shared<K>,
    /// The next chunk's first row, and one past the last row of its unit.
    row: u32,
    end: u32,
    /// The stage that it goes to.
    slot: u32,
    /// Stages that are free.
    n_free: u32,
    /// Whether another unit may be received, of which nothing is known.
    may_receive: bool,
    /// The unit that chunks are of, unless it is the one that is multiplied: its first row is the
    /// warp's.
    next: (Run, Ends<'a>),
    has_next: bool,
    units: Ring,
    /// The warp's number less that of all chunks before the next unit: chunks are distributed from
    /// unit to unit, so that all warps get as many.
    turn: u32,
}

impl<K: Kernel> Chunks<K> for Prefetch<'_, K> {
    #[inline(always)]
    unsafe fn request(&mut self, documents: &Rows, _: u32, lane: u32) {
        self.n_free += 1;
        // SAFETY: the caller's promise.
        unsafe { self.begin(documents, lane) };
    }
}

impl<'a, K: Kernel> UnitChunks<'a, K> for Prefetch<'a, K> {
    #[inline(always)]
    fn behind(
        params: &'a ContiguousParams,
        shared: Shared<K>,
        unit: (Run, Ends<'a>),
        row: u32,
        [slot, n_free]: [u32; 2],
    ) -> Self {
        let turn = shared.warp.wrapping_sub(n_chunks::<K>(unit.0));
        Prefetch {
            params,
            shared,
            row,
            end: unit.0.end,
            slot,
            n_free,
            may_receive: is_dynamic::<K>(params),
            next: unit,
            has_next: false,
            units: Ring::START,
            turn,
        }
    }

    /// Requests chunks while stages are free, of the next unit behind this one.
    #[inline(always)]
    unsafe fn begin(&mut self, documents: &Rows, lane: u32) {
        while self.n_free > 0 {
            if self.row >= self.end {
                if !self.may_receive {
                    return;
                }
                // SAFETY: the caller's promise.
                unsafe { self.receive(lane) };
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe { documents.copy_chunk(&self.shared, self.slot, self.row, self.end, lane) };
            self.row += K::STRIDE;
            self.slot = Ring { slot: self.slot, parity: 0 }.next(K::STAGES as u32).slot;
            self.n_free -= 1;
        }
    }

    #[inline(always)]
    fn has_next(&self) -> bool {
        self.has_next
    }

    #[inline(always)]
    fn next(&mut self) -> (Run, Ends<'a>) {
        (self.may_receive, self.has_next) = (true, false);
        self.next
    }
}

impl<K: Kernel> Prefetch<'_, K> {
    /// Waits until the next unit is known.
    ///
    /// # Safety
    /// One whole warp; the unit must not be behind the last one.
    #[inline(always)]
    unsafe fn receive(&mut self, lane: u32) {
        let Ring { slot, parity } = self.units;
        let shared = self.shared;
        self.may_receive = false;
        // SAFETY: the scheduler warp publishes units until there are no more.
        unsafe {
            barrier_wait(shared.unit_full(slot), parity);
            let words = load_shared_u32x4(shared.unit(slot));
            sync_warp();
            barrier_arrive_if(shared.unit_empty(slot), (lane == 0) as u32);
            self.units = self.units.next(UNIT_SLOTS as u32);
            let entry = broadcast(words[0]);
            if entry == END {
                return;
            }
            let [entry_end, start, end] = [1, 2, 3].map(|i| broadcast(words[i]));
            let mut run = Run { entry, entry_end, start, end };
            let ends = Ends::new(self.params, run, lane);
            let first = self.turn % K::WARPS as u32;
            self.turn = self.turn.wrapping_sub(n_chunks::<K>(run));
            run.start += first * K::ROWS;
            (self.row, self.end) = (run.start, end);
            (self.next, self.has_next) = ((run, ends), true);
        }
    }
}

/// Chunks of a run.
#[inline(always)]
fn n_chunks<K: Kernel>(run: Run) -> u32 {
    (run.end - run.start).div_ceil(K::ROWS)
}
