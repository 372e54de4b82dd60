//! The unit of a CTA under Stream-K, and its parts.

use crate::abi::params::{ForwardParams, Segment, divide};
use crate::primitives::documents::Documents;
use crate::primitives::work_tile::{Work, unit_start};
use crate::ptx::thread::block_idx_x;

/// A block's unit.
pub(in crate::sm90) struct Unit<'a> {
    /// Index of the unit among those of its tile.
    pub index: u32,
    pub tile: u32,
    entry: u32,
    entry_end: u32,
    /// Rows of the document that continues in the next unit, and of the one that comes from the
    /// unit before and ends in this one; none where documents are whole.
    partials: [Segment; 2],
    whole: Documents<'a>,
}

/// Part of an entry's document that a CTA has.
pub(in crate::sm90) struct Part {
    pub entry: u32,
    pub rows: Segment,
    pub kind: Kind,
}

/// Position of a part in its document.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::sm90) enum Kind {
    /// All of it.
    Whole,
    /// Rows without the end of the document.
    Continues,
    /// The end alone.
    Ends,
}

impl<'a> Unit<'a> {
    /// The unit of this block.
    ///
    /// # Safety
    /// The launch must have starts of units, one for each block of a tile and one behind them.
    #[inline(always)]
    pub(in crate::sm90) unsafe fn new(params: &'a ForwardParams) -> Self {
        let mut partials = [Segment { start: 0, len: 0 }; 2];
        let index = divide(block_idx_x(), params.n_tiles, params.n_tiles_inverse);
        let tile = params.tile_base + block_idx_x() - index * params.n_tiles;
        // SAFETY: the caller's promise.
        unsafe {
            let [entry, start, len, before] = unit_start(params, index);
            let [next, next_start, _, end] = unit_start(params, index + 1);
            let (mut first, mut n_before) = (Some(Segment { start, len }), 0);
            if end != 0 {
                // Neither end of the document may be in the unit.
                let begin = if next == entry { before } else { 0 };
                partials[0] = Segment { start: next_start + begin, len: end - begin };
            }
            if before != 0 {
                (first, n_before) = (None, 1);
                if next != entry {
                    partials[1] = Segment { start: start + before, len: len - before };
                }
            }
            let work =
                Work { unit: block_idx_x(), tile, entry: entry + n_before, entry_end: next, first };
            let whole = Documents::new(params, &work);
            Unit { index, tile, entry, entry_end: next, partials, whole }
        }
    }

    /// The entry that the block's unit begins with. What [`Unit::new`] loads is requested with it,
    /// and is near when it does.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(in crate::sm90) unsafe fn first_entry(params: &ForwardParams) -> u32 {
        let index = divide(block_idx_x(), params.n_tiles, params.n_tiles_inverse);
        // SAFETY: the caller's promise.
        unsafe {
            let [entry, ..] = unit_start(params, index);
            unit_start(params, index + 1);
            entry
        }
    }

    /// The next part.
    ///
    /// # Safety
    /// As [`Unit::new`].
    #[inline(always)]
    pub(in crate::sm90) unsafe fn next(&mut self) -> Option<Part> {
        let [continues, ends] = self.partials;
        if continues.len > 0 {
            self.partials[0].len = 0;
            return Some(Part { entry: self.entry_end, rows: continues, kind: Kind::Continues });
        }
        if ends.len > 0 {
            self.partials[1].len = 0;
            return Some(Part { entry: self.entry, rows: ends, kind: Kind::Ends });
        }
        // SAFETY: the caller's promise.
        let (entry, rows) = unsafe { self.whole.next() }?;
        Some(Part { entry, rows, kind: Kind::Whole })
    }

    /// Documents that end in the unit.
    #[inline(always)]
    pub(in crate::sm90) fn n_ends(&self) -> u32 {
        self.entry_end - self.entry
    }

    /// Whether a part is all of the unit's last document.
    #[inline(always)]
    pub(in crate::sm90) fn is_last(&self, part: &Part) -> bool {
        part.kind == Kind::Whole && part.entry + 1 == self.entry_end
    }

    /// The unit, with every document that ends in it.
    #[inline(always)]
    pub(in crate::sm90) fn work(&self) -> Work {
        let Unit { tile, entry, entry_end, .. } = *self;
        Work { unit: block_idx_x(), tile, entry, entry_end, first: None }
    }
}
