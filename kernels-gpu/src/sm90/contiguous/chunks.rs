//! The chunks of a warp: their copies, and which of them comes next.

use crate::abi::params::ContiguousParams;
use crate::ptx::barrier::barrier_expect;
use crate::ptx::copy::copy_run;
use crate::sm90::contiguous::element::ChunkElement;
use crate::sm90::contiguous::int8::ScaleRows;
use crate::sm90::contiguous::units::{Ends, Run};
use crate::sm90::contiguous::{Kernel, Shared};

/// Order in which a warp requests the chunks behind the first ones, which fill its ring.
pub(super) trait Chunks<K: Kernel> {
    /// Requests what stage `slot` has room for, which is free.
    ///
    /// # Safety
    /// One whole warp, which has multiplied what the stage held.
    unsafe fn request(&mut self, documents: &Rows, slot: u32, lane: u32);
}

/// Chunks of the units of a CTA, one unit after the other.
pub(super) trait UnitChunks<'a, K: Kernel>: Chunks<K> {
    /// Behind the first chunks of a unit, of which the next one would begin with `row`, for the
    /// stage `free[0]`; `free[1]` stages are free.
    fn behind(
        params: &'a ContiguousParams,
        shared: Shared<K>,
        unit: (Run, Ends<'a>),
        row: u32,
        free: [u32; 2],
    ) -> Self;

    /// Requests what may be requested before anything of a unit is multiplied.
    ///
    /// # Safety
    /// One whole warp; free stages may be overwritten.
    unsafe fn begin(&mut self, documents: &Rows, lane: u32);

    /// Whether chunks of a next unit are requested, when the warp has no more to multiply of this
    /// one.
    fn has_next(&self) -> bool;

    /// Moves to that unit, which must exist.
    fn next(&mut self) -> (Run, Ends<'a>);
}

/// Chunks of one unit alone: statically scheduled units do not prefetch across their boundary.
pub(super) struct OfUnit<'a, K> {
    unit: (Run, Ends<'a>),
    shared: Shared<K>,
    /// The next chunk's first row, and one past the last row of the unit.
    row: u32,
    end: u32,
}

impl<K: Kernel> Chunks<K> for OfUnit<'_, K> {
    #[inline(always)]
    unsafe fn request(&mut self, documents: &Rows, slot: u32, lane: u32) {
        if self.row < self.end {
            // SAFETY: the caller's promise.
            unsafe { documents.copy_chunk(&self.shared, slot, self.row, self.end, lane) };
            self.row += K::STRIDE;
        }
    }
}

impl<'a, K: Kernel> UnitChunks<'a, K> for OfUnit<'a, K> {
    #[inline(always)]
    fn behind(
        _: &'a ContiguousParams,
        shared: Shared<K>,
        unit: (Run, Ends<'a>),
        row: u32,
        _: [u32; 2],
    ) -> Self {
        OfUnit { unit, shared, row, end: unit.0.end }
    }

    #[inline(always)]
    unsafe fn begin(&mut self, _: &Rows, _: u32) {}

    #[inline(always)]
    fn has_next(&self) -> bool {
        false
    }

    #[inline(always)]
    fn next(&mut self) -> (Run, Ends<'a>) {
        self.unit
    }
}

/// Addresses of the documents' rows and of their scales.
pub(super) struct Rows {
    pub(super) address: u64,
    pub(super) scales: ScaleRows,
}

impl Rows {
    /// Asks for the warp's chunk of rows from `row` on, of a run up to `end`.
    ///
    /// # Safety
    /// One whole warp; the stage must be free to be overwritten.
    #[inline(always)]
    pub(super) unsafe fn copy_chunk<K: Kernel>(
        &self,
        shared: &Shared<K>,
        slot: u32,
        row: u32,
        end: u32,
        lane: u32,
    ) {
        let n_bytes = (end - row).min(K::ROWS) * K::BYTES;
        let address = self.address + u64::from(row) * u64::from(K::BYTES);
        // SAFETY: the caller's promise; the run has the rows.
        unsafe {
            if lane == 0 {
                if K::Element::HAS_SCALES {
                    // Before the rows, which take longer.
                    let n_all = n_bytes + self.scales.n_bytes(K::CHUNK_ROWS);
                    barrier_expect(shared.full(slot), n_all);
                    let room = shared.scales(slot);
                    self.scales.copy(room, row, K::CHUNK_ROWS, shared.full(slot));
                } else {
                    barrier_expect(shared.full(slot), n_bytes);
                }
                copy_run(shared.stage(slot), address, n_bytes, shared.full(slot));
            }
        }
    }
}
