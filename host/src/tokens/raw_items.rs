//! Where the items of a token matrix are, in lists that the device has. Numbers and addresses; no
//! memory.

use super::layout::check_count;
use crate::error::{Error, Result};

/// Address of a list of integers in device memory, aligned to their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawIndices {
    /// Of i32.
    I32(u64),
    /// Of i64.
    I64(u64),
}

impl RawIndices {
    /// The address, and whether the integers have 64 bits.
    pub(crate) fn parts(self) -> (u64, bool) {
        match self {
            RawIndices::I32(address) => (address, false),
            RawIndices::I64(address) => (address, true),
        }
    }
}

/// The rows of items, in lists on the device that the host never reads:
/// [`Stream::write_segments`](crate::stream::Stream::write_segments) makes
/// [segments](crate::format::RawRows::segments) and a mask of them.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RawItems {
    pub(crate) n_sources: usize,
    pub(crate) rows: usize,
    pub(crate) max_len: usize,
    pub(crate) stride: usize,
    pub(crate) starts: Option<RawIndices>,
    pub(crate) lengths: Option<RawIndices>,
    pub(crate) ids: Option<(usize, RawIndices)>,
}

impl RawItems {
    /// Items of up to `len` rows each, which begin at the multiples of `stride` rows of a matrix of
    /// so many `rows`: as in `[n, len, dim]` where `stride` is `len`.
    pub fn padded(n: usize, len: usize, stride: usize, rows: usize) -> RawItems {
        let (starts, lengths, ids) = (None, None, None);
        RawItems { n_sources: n, rows, max_len: len, stride, starts, lengths, ids }
    }

    /// Items one behind the other in a matrix of so many rows: item `i` is the rows `offsets[i]`
    /// to `offsets[i + 1]`, at most `max_len`. There is one offset more than items.
    pub fn packed(n: usize, offsets: RawIndices, rows: usize, max_len: usize) -> RawItems {
        RawItems { starts: Some(offsets), ..RawItems::padded(n, max_len, 0, rows) }
    }

    /// Items anywhere in a matrix of so many rows: item `i` is the `lengths[i]` rows from
    /// `starts[i]`, at most `max_len`. Both lists are of one type.
    pub fn scattered(
        n: usize,
        [starts, lengths]: [RawIndices; 2],
        rows: usize,
        max_len: usize,
    ) -> RawItems {
        let items = RawItems::padded(n, max_len, 0, rows);
        RawItems { starts: Some(starts), lengths: Some(lengths), ..items }
    }

    /// Shortens padded items to their first `lengths[i]` rows.
    pub fn with_lengths(self, lengths: RawIndices) -> RawItems {
        RawItems { lengths: Some(lengths), ..self }
    }

    /// Takes `n` of the items, in any order, and any of them several times: item `i` is the item
    /// `ids[i]` of these.
    pub fn with_ids(self, n: usize, ids: RawIndices) -> RawItems {
        RawItems { ids: Some((n, ids)), ..self }
    }

    /// Number of items.
    pub fn n_items(&self) -> usize {
        self.ids.map_or(self.n_sources, |(n, _)| n)
    }

    /// Refuses lists of two types, misaligned ones, and what cannot be counted.
    pub(crate) fn check(&self, out: RawItemsOut) -> Result<()> {
        out.check()?;
        if out.mask != 0 {
            check_count("rows of a mask", self.n_items().saturating_mul(self.max_len))?;
        }
        check_count("rows of a token matrix", self.rows)?;
        check_count("number of items", self.n_sources)?;
        check_count("number of items", self.n_items())?;
        check_count("rows between items", self.stride)?;
        if let (Some(starts), Some(lengths)) = (self.starts, self.lengths)
            && starts.parts().1 != lengths.parts().1
        {
            return Err(Error::Shape {
                argument: "lengths",
                expected: "integers of the starts' type".into(),
                found: format!("{lengths:?} beside {starts:?}"),
            });
        }
        let ids = self.ids.map(|(_, ids)| ids);
        for (address, is_wide) in
            [self.starts, self.lengths, ids].into_iter().flatten().map(RawIndices::parts)
        {
            check_aligned(address, if is_wide { 8 } else { 4 })?;
        }
        Ok(())
    }
}

/// Addresses that items are written to.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct RawItemsOut {
    pub(crate) invalid: u64,
    pub(crate) segments: u64,
    pub(crate) mask: u64,
    pub(crate) mask_in: u64,
}

impl RawItemsOut {
    /// To one byte per item: 1 where an item is *invalid*, else 0. Such an item's rows are not
    /// within the matrix, or are more than the longest may have, or its id is none; it becomes an
    /// empty item.
    pub fn new(invalid: u64) -> RawItemsOut {
        RawItemsOut { invalid, ..RawItemsOut::default() }
    }

    /// And to two u32 per item: its first row and its number of rows. Aligned to 8.
    pub fn segments(self, segments: u64) -> RawItemsOut {
        RawItemsOut { segments, ..self }
    }

    /// And to a mask `[n_items, max_len]` of bytes: 1 for the rows that an item has, else 0; where
    /// there is another mask of that shape, also 0 where that one is.
    pub fn mask(self, mask: u64, mask_in: Option<u64>) -> RawItemsOut {
        RawItemsOut { mask, mask_in: mask_in.unwrap_or(0), ..self }
    }

    /// Refuses no address where there must be one, and a misaligned one.
    fn check(&self) -> Result<()> {
        if self.invalid == 0 {
            let why = "there must be a byte per item".into();
            return Err(Error::ForeignPointer { address: 0, why });
        }
        check_aligned(self.segments, 8)
    }
}

fn check_aligned(address: u64, align_bytes: u64) -> Result<()> {
    match address.is_multiple_of(align_bytes) {
        true => Ok(()),
        false => {
            let why = format!("it is not aligned to {align_bytes} bytes");
            Err(Error::ForeignPointer { address, why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_two_types_and_misaligned_ones_are_errors() {
        let (narrow, wide) = (RawIndices::I32(8), RawIndices::I64(16));
        let out = RawItemsOut::new(1);
        let scattered =
            |starts, lengths| RawItems::scattered(3, [starts, lengths], 10, 4).check(out);
        assert!(scattered(narrow, narrow).is_ok() && scattered(wide, wide).is_ok());
        assert!(matches!(scattered(narrow, wide), Err(Error::Shape { .. })));
        let misaligned = RawItems::packed(3, RawIndices::I64(12), 10, 4);
        assert!(matches!(misaligned.check(out), Err(Error::ForeignPointer { address: 12, .. })));
        let misaligned = RawItems::padded(3, 4, 4, 12).with_ids(2, RawIndices::I32(2));
        assert!(matches!(misaligned.check(out), Err(Error::ForeignPointer { address: 2, .. })));
        // As many as that have no mask, but may be found.
        let many = RawItems::padded(1 << 16, 1 << 16, 1, 1 << 20);
        assert!(many.check(out).is_ok());
        assert!(matches!(many.check(out.mask(1, None)), Err(Error::TooLarge { .. })));
        assert_eq!(many.with_ids(7, wide).n_items(), 7);
        assert!(RawItemsOut::new(1).mask(3, Some(5)).check().is_ok());
        for out in [RawItemsOut::new(0), RawItemsOut::new(1).segments(4)] {
            assert!(matches!(out.check(), Err(Error::ForeignPointer { .. })));
        }
    }
}
