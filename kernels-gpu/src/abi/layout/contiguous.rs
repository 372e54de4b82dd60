//! Shared-memory geometry of the contiguous kernels: some warps, each with a ring of chunks, and
//! one that stores.

use crate::abi::params::Group;

/// The only dim: rows lie together.
pub const DIM: usize = 128;
/// Query rows of a tile, which every warp has in registers.
pub const QUERY_ROWS: usize = 2 * Group::ROWS;
/// Rows that a warp multiplies at a time.
pub const PRODUCT_ROWS: usize = 16;
/// Documents whose maxima may wait for the warp that stores.
pub const SLOTS: usize = 4;
/// Bytes of the maxima that a warp has found of a document, one per query row.
pub const MAXIMA_BYTES: usize = QUERY_ROWS * 4;
/// Alignment of the addresses and lengths of copies.
pub const COPY_ALIGN: usize = 16;

/// Units that a CTA has taken from the scheduler and not begun to copy; with so many the scheduler
/// waits.
pub const UNIT_SLOTS: usize = 2;
/// Bytes of a published unit.
pub const UNIT_BYTES: usize = 16;

/// Threads of a CTA: warps that multiply, one that stores, and, with a dynamic scheduler, one that
/// takes tickets.
pub const fn threads(warps: usize, has_scheduler: bool) -> usize {
    32 * (warps + 1 + has_scheduler as usize)
}

/// Bytes of the scales that come with a chunk of so many rows, of `1 << shift` bytes each: whatever
/// row it begins with, all that any [`COPY_ALIGN`] bytes have of them.
pub const fn scales_bytes(chunk_rows: usize, shift: u32) -> usize {
    (chunk_rows << shift) + COPY_ALIGN
}

/// Bytes of other rows' scales that come before those of a chunk that begins with row `row`.
pub const fn scales_before(row: u32, shift: u32) -> u32 {
    (row << shift) % COPY_ALIGN as u32
}

/// The layout of one kernel.
#[derive(Clone, Copy)]
pub struct Geometry {
    /// Warps that multiply.
    pub warps: usize,
    /// Chunks of a warp's ring.
    pub stages: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows of a chunk: what one instruction copies. A multiple of [`PRODUCT_ROWS`].
    pub chunk_rows: usize,
    /// Whether every row has a scale, which comes with its chunk.
    pub has_scales: bool,
    /// Whether launches may use the dynamic scheduler.
    pub has_scheduler: bool,
}

impl Geometry {
    /// Bytes of a chunk.
    pub const fn chunk_bytes(&self) -> usize {
        self.chunk_rows * self.row_bytes
    }

    /// Room for a chunk's scales.
    pub const fn scales_bytes(&self) -> usize {
        if self.has_scales { scales_bytes(self.chunk_rows, 2) } else { 0 }
    }

    /// Offset of the query tile, behind the rings. Rows behind those of a chunk are read, not used.
    pub const fn queries_offset(&self) -> usize {
        self.warps * self.stages * self.chunk_bytes()
    }

    /// Offset of the chunks' scales, a set per chunk. Those behind a set are read, not used.
    pub const fn scales_offset(&self) -> usize {
        self.queries_offset() + QUERY_ROWS * self.row_bytes
    }

    /// Offset of the maxima, a set per slot.
    pub const fn maxima_offset(&self) -> usize {
        self.scales_offset() + self.warps * self.stages * self.scales_bytes()
    }

    /// Slots of published units.
    const fn unit_slots(&self) -> usize {
        if self.has_scheduler { UNIT_SLOTS } else { 0 }
    }

    /// Offset of the published units, and behind them of the entry whose maxima a slot has.
    pub const fn units_offset(&self) -> usize {
        self.maxima_offset() + SLOTS * self.warps * MAXIMA_BYTES
    }

    /// Offset of the barriers: one per stage, two of the query tile, two per slot.
    pub const fn barriers_offset(&self) -> usize {
        let entries = if self.has_scheduler { 4 * SLOTS } else { 0 };
        self.units_offset() + self.unit_slots() * UNIT_BYTES + entries
    }

    /// Dynamic shared memory.
    pub const fn shared_bytes(&self) -> usize {
        let slots = SLOTS + self.unit_slots();
        self.barriers_offset() + (self.warps * self.stages + 2 + 2 * slots) * 8
    }
}
