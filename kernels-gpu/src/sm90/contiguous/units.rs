//! The units of a CTA: runs of rows of contiguous documents, and where the documents end.

use crate::abi::params::{ContiguousParams, ContiguousUnit, Segment};
use crate::ptx::global::{load_u32, load_u32x2_if, load_u32x4};
use crate::ptx::warp::{broadcast, shuffle};

/// The documents of a unit.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// First entry.
    pub(super) entry: u32,
    /// One past the last entry.
    pub(super) entry_end: u32,
    /// First row.
    pub(super) start: u32,
    /// One past the last row.
    pub(super) end: u32,
}

impl Run {
    /// Computes the rows of a unit. Few instructions: those before the first copy come out of
    /// memory, too.
    ///
    /// # Safety
    /// The unit must be of this launch; one whole warp.
    #[inline(always)]
    pub(super) unsafe fn new(all: &ContiguousParams, unit: u32) -> Run {
        if all.units != 0 {
            // SAFETY: the caller's promise.
            return unsafe {
                let run = Run::listed(all, unit);
                Run { start: broadcast(run.start), end: broadcast(run.end), ..run }
            };
        }
        let chunk = chunk(all, unit);
        let n_longer = chunk.min(all.n_longer_units);
        let is_longer = u32::from(chunk < all.n_longer_units);
        let tile = unit - chunk * all.n_tiles;
        let entry = tile * all.entry_stride + chunk * all.entries_per_unit + n_longer;
        let entry_end = entry + all.entries_per_unit + is_longer;
        let rows = all.item_len;
        Run { entry, entry_end, start: entry * rows, end: entry_end * rows }
    }

    /// Computes the rows of a unit of the dynamic scheduler.
    ///
    /// # Safety
    /// The unit must be of this launch, and not a block's first one.
    #[inline(always)]
    pub(super) unsafe fn of_ticket(all: &ContiguousParams, unit: u32) -> Run {
        if all.units != 0 {
            // SAFETY: the caller's promise.
            return unsafe { Run::listed(all, unit) };
        }
        let params = &all.forward;
        let entry = unit * params.entries_per_unit + params.n_longer_units * params.longer_by;
        let entry_end = (entry + params.entries_per_unit).min(params.entry_end);
        let rows = all.item_len;
        Run { entry, entry_end, start: entry * rows, end: entry_end * rows }
    }

    /// Reads the rows of a unit from the list of units.
    ///
    /// # Safety
    /// The unit must be of this launch.
    #[inline(always)]
    unsafe fn listed(all: &ContiguousParams, unit: u32) -> Run {
        let address = all.units + u64::from(unit) * size_of::<ContiguousUnit>() as u64;
        // SAFETY: the caller's promise.
        unsafe {
            let [_, entry, entry_end, start] = load_u32x4(address);
            Run { entry, entry_end, start, end: load_u32(address + 16) }
        }
    }
}

/// Query tile of a unit.
///
/// # Safety
/// The unit must be of this launch.
#[inline(always)]
pub(super) unsafe fn tile_of(all: &ContiguousParams, unit: u32) -> u32 {
    match (all.n_tiles, all.units) {
        (1, _) => all.first_tile,
        (n_tiles, 0) => unit - chunk(all, unit) * n_tiles,
        // SAFETY: the caller's promise.
        (_, units) => unsafe {
            load_u32(units + u64::from(unit) * size_of::<ContiguousUnit>() as u64)
        },
    }
}

/// Index of a computed unit among its tile's units.
#[inline(always)]
fn chunk(all: &ContiguousParams, unit: u32) -> u32 {
    match all.n_tiles {
        1 => unit,
        _ => ((u64::from(unit) * u64::from(all.n_tiles_inverse)) >> 32) as u32,
    }
}

/// Ends of documents: of 32 entries, one in each lane.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    params: &'a ContiguousParams,
    entry_end: u32,
    first: u32,
    own: Segment,
    lane: u32,
}

impl<'a> Ends<'a> {
    /// Requests the ends of a run, and does not wait for them.
    ///
    /// # Safety
    /// The run must be of this launch.
    #[inline(always)]
    pub(super) unsafe fn new(params: &'a ContiguousParams, run: Run, lane: u32) -> Self {
        let Run { entry: first, entry_end, .. } = run;
        let mut ends = Ends { params, entry_end, first, own: Segment { start: 0, len: 0 }, lane };
        // SAFETY: the caller's promise.
        unsafe { ends.load() };
        ends
    }

    #[inline(always)]
    unsafe fn load(&mut self) {
        let entry = self.first + self.lane;
        if self.params.segments == 0 {
            let len = self.params.item_len;
            self.own = Segment { start: entry * len, len };
            return;
        }
        let address = self.params.segments + u64::from(entry) * 8;
        // SAFETY: the launch has the entries of the run.
        let [start, len] = unsafe { load_u32x2_if(address, (entry < self.entry_end) as u32) };
        self.own = Segment { start, len };
    }

    /// The row behind the last of an entry, which follows the one given before, or is the run's
    /// first.
    ///
    /// # Safety
    /// One whole warp together.
    #[inline(always)]
    pub(super) unsafe fn of(&mut self, entry: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            if entry - self.first == 32 {
                self.first = entry;
                self.load();
            }
            shuffle(self.own.start + self.own.len, entry - self.first)
        }
    }
}
