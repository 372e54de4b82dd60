//! Parameters of the kernel that finds the rows of items from offsets, lengths and ids in device
//! memory.

use crate::abi::params::Segment;

/// Threads per CTA of the kernel; each has an item, or a byte of the mask.
pub const SEGMENTS_THREADS: usize = 256;

/// Parameters of `maxsim_segments`.
///
/// Item `i` is the source item `ids[i]`. What a source item is says [`SegmentsParams::starts`].
/// An item that is not within the matrix, is longer than `max_len`, or whose id is none, is
/// *invalid*: it becomes an empty one, and is marked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SegmentsParams {
    /// Address of the source items' first rows; 0 = source item `i` starts at row `i * stride`.
    pub starts: u64,
    /// Address of their lengths in rows. 0 = where there are starts, an item ends where the next
    /// one starts, and there is one start more than items; else every item has `max_len` rows.
    pub lengths: u64,
    /// Address of a source item per item; 0 = itself.
    pub ids: u64,
    /// Address of the [`Segment`]s that are written, or 0.
    pub segments: u64,
    /// Address of a byte per item that is written: 1 where it is invalid, else 0.
    pub invalid: u64,
    /// Address of a mask `[n_items, max_len]` that is written: 1 where an item has a row, else 0;
    /// 0 = none.
    pub mask: u64,
    /// Address of a mask of the same shape, a byte per row that is 0 where the row is none; 0 =
    /// none.
    pub mask_in: u64,
    /// Number of items.
    pub n_items: u32,
    /// Number of source items.
    pub n_sources: u32,
    /// Rows of the matrix.
    pub n_rows: u32,
    /// Rows of the longest item, or more.
    pub max_len: u32,
    /// See `starts`.
    pub stride: u32,
    /// 1 where starts and lengths have 64 bits, 0 where they have 32.
    pub is_wide: u32,
    /// 1 where ids have 64 bits, 0 where they have 32.
    pub has_wide_ids: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

impl SegmentsParams {
    /// The rows of an item that starts at a row and ends before another; `None` where that is
    /// invalid.
    #[inline(always)]
    pub const fn rows(&self, start: i64, end: i64) -> Option<Segment> {
        // Neither difference overflows where the conditions before it hold.
        let is_within = start >= 0 && end >= start && end <= self.n_rows as i64;
        if !is_within || end - start > self.max_len as i64 {
            return None;
        }
        Some(Segment { start: start as u32, len: (end - start) as u32 })
    }

    /// The rows of an item of a start and a length; `None` where that is invalid.
    #[inline(always)]
    pub const fn rows_of_len(&self, start: i64, len: i64) -> Option<Segment> {
        if start < 0 || start > self.n_rows as i64 || len < 0 || len > self.max_len as i64 {
            return None;
        }
        self.rows(start, start + len)
    }

    /// Bytes that the mask has of an item: threads that have something to do for it.
    #[inline(always)]
    pub const fn width(&self) -> u32 {
        if self.mask == 0 || self.max_len == 0 { 1 } else { self.max_len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: SegmentsParams = SegmentsParams {
        starts: 0,
        lengths: 0,
        ids: 0,
        segments: 0,
        invalid: 0,
        mask: 0,
        mask_in: 0,
        n_items: 1,
        n_sources: 1,
        n_rows: 10,
        max_len: 4,
        stride: 0,
        is_wide: 0,
        has_wide_ids: 0,
        reserved: 0,
    };

    #[test]
    fn rows_are_within_the_matrix_and_no_more_than_the_longest() {
        let found = |start: i64, len: i64| {
            let rows = PARAMS.rows_of_len(start, len);
            // Where they overflow, ends are not asked for.
            if let Some(end) = start.checked_add(len) {
                assert_eq!(PARAMS.rows(start, end), rows, "{start}, {len}");
            }
            rows.map(|rows| (rows.start, rows.len))
        };
        for (start, len) in [(0, 0), (0, 4), (6, 4), (7, 3), (10, 0)] {
            assert_eq!(found(start, len), Some((start as u32, len as u32)));
        }
        for (start, len) in [(-1, 1), (0, 5), (7, 4), (10, 1), (11, 0), (3, -1), (-4, 4)] {
            assert_eq!(found(start, len), None, "{start}, {len}");
        }
        for extreme in [i64::MIN, i64::MAX] {
            assert_eq!([found(extreme, 1), found(1, extreme), found(extreme, extreme)], [None; 3]);
            assert_eq!(PARAMS.rows(extreme, 1), None);
            assert_eq!(PARAMS.rows(1, extreme), None);
        }
    }
}
