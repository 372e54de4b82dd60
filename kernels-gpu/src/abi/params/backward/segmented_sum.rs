//! Parameters of the segmented sum over sorted winners, and of its fixup.

use crate::abi::params::backward::{Output, Rows, THREADS, WARPS};

/// Dynamic shared memory of a CTA that adds the partial sums of rows (fixup).
pub const FIXUP_SHARED_BYTES: usize = (THREADS + 2 * WARPS as usize) * 4;

/// Parameters of `maxsim_gradient_segmented_sum_*` (a warp per segment and column) and
/// `maxsim_gradient_fixup` (a warp per segment).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SegmentedSumParams {
    /// The queries' rows.
    pub source: Rows,
    /// The gradient of the documents.
    pub out: Output,
    /// Address of the [`crate::abi::params::backward::Source`]s.
    pub list: u64,
    /// Address of the [`crate::abi::params::backward::Destination`]s.
    pub destinations: u64,
    /// Address of f32 sums `[segment, dim]`: of a row that an earlier segment starts.
    pub heads: u64,
    /// Address of f32 sums `[segment, dim]`: of a row that this segment starts and another ends.
    pub tails: u64,
    /// Address of a u32 per segment: the destination of its last source.
    pub lasts: u64,
    /// Number of sources.
    pub n_sources: u32,
    /// Number of destinations.
    pub n_destinations: u32,
    /// Sources per segment.
    pub segment_len: u32,
    /// Number of segments.
    pub n_segments: u32,
    /// Subtracted from a destination's row to give the output's.
    pub first_row: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Destination of the sum over a destination row's sources in a segment `begin .. end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The gradient: all sources are in the segment.
    Out,
    /// The partial sums of rows that an earlier segment starts.
    Head,
    /// The first partial sums of rows that span segments.
    Tail,
}

/// The place of the sum of a destination whose sources are `first .. last`.
#[inline(always)]
pub const fn place(first: u32, last: u32, begin: u32, end: u32) -> Place {
    match (first < begin, last > end) {
        (true, _) => Place::Head,
        (false, true) => Place::Tail,
        (false, false) => Place::Out,
    }
}

/// Number of segments behind `segment` into which a destination with sources `first .. last`
/// continues, where it starts in that segment and is its last; 0 otherwise.
#[inline(always)]
pub const fn n_continued(segment: u32, segment_len: u32, first: u32, last: u32) -> u32 {
    let begin = segment * segment_len;
    if first < begin || last <= begin + segment_len {
        return 0;
    }
    match (last - 1).checked_div(segment_len) {
        Some(end) => end - segment,
        None => 0,
    }
}
