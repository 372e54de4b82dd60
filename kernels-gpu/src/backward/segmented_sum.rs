//! `∂D[d, t] = Σ g · Q[q, s]` over sorted sources: a warp per segment of them.
//!
//! A warp walks through its segment, destination by destination, and sums each one's sources. It
//! stores the sums of destinations that it has all of; those that go over an end of the segment are
//! partial sums for the fixup. Segments are equally long, so that warps end together whatever was
//! chosen.

use crate::abi::params::backward::{
    Destination, NO_ROW, Output, Place, SegmentedSumParams, Source, WARPS, place,
};
use crate::backward::output::store;
use crate::primitives::row_vector::sum::{add, add_slots};
use crate::primitives::row_vector::{Columns, Sums, VectorElement};
use crate::ptx::global::{load_u32, load_u32x2, opaque, store_u32};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{ballot, lane_idx, shuffle};
use core::hint::assert_unchecked;

/// Loads in flight per lane. More warps with fewer loads each are faster than the other way round:
/// on an H200, 4 blocks of a multiprocessor with 3 loads 75 µs for 2 million sources, 3 with 4 80,
/// 3 with 6 82, 2 with 8 101.
const LOADS: usize = if cfg!(maxsim_arch = "sm_90a") { 3 } else { 4 };

/// Sums the sources of this warp's segment.
///
/// # Safety
/// `params` must describe sorted sources as [`SegmentedSumParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn segmented_sum<T: VectorElement>(params: &SegmentedSumParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.source.aligned {
            0 => sum_segment::<T, false>(params),
            _ => sum_segment::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`segmented_sum`]; `ALIGNED` is that of the source.
#[inline(always)]
unsafe fn sum_segment<T: VectorElement, const ALIGNED: bool>(params: &SegmentedSumParams) {
    // SAFETY: the host launches a warp per segment and column; there is a source, so that there
    // is a destination, and every source has one.
    unsafe {
        assert_unchecked(params.n_segments != 0);
        let unit = block_idx_x() * WARPS + thread_idx_x() / 32;
        let (column, segment) = (unit / params.n_segments, unit % params.n_segments);
        if column >= params.source.n_columns {
            return;
        }
        let begin = segment * params.segment_len;
        let end = (begin + params.segment_len).min(params.n_sources);
        let columns = Columns::new::<T>(&params.source, column);
        // 32 destinations at a time, from the one that the first source goes to.
        let mut window = find(params, begin);
        let mut known = Known::load(params, window);
        let (mut batch, mut pos) = (begin, begin);
        let mut sources = load(params, begin, end);
        let mut ahead = load(params, begin + 32, end);
        while pos < end {
            // The first destination that ends behind `pos`, the one of the source there.
            let behind = ballot(u32::from(known.last > pos));
            if behind == 0 {
                window += 32;
                known = Known::load(params, window);
                continue;
            }
            let which = behind.trailing_zeros();
            let (first, last) = (shuffle(known.first, which), shuffle(known.last, which));
            let row = shuffle(known.row, which);
            let stop = last.min(end);
            if stop == end {
                store_last(params, column, segment, window + which);
            }
            if row == NO_ROW {
                (batch, pos) = (stop, stop);
                sources = load(params, batch, end);
                ahead = load(params, batch + 32, end);
                continue;
            }
            let mut sums: Sums = core::mem::zeroed();
            while pos < stop {
                if pos == batch + 32 {
                    batch += 32;
                    sources = ahead;
                    ahead = load(params, batch + 32, end);
                }
                let count = stop.min(batch + 32) - pos;
                add::<T, ALIGNED, LOADS>(&columns, sources, pos - batch, count, &mut sums);
                pos += count;
            }
            add_slots::<T>(&columns, &mut sums);
            let (base, row) = match place(first, last, begin, end) {
                Place::Out => (params.out.base, row - params.first_row),
                Place::Head => (params.heads, segment),
                Place::Tail => (params.tails, segment),
            };
            let is_part = place(first, last, begin, end) != Place::Out;
            let out = Output {
                base: opaque(base),
                element: if is_part { Output::F32 } else { params.out.element },
                adds: if is_part { 0 } else { params.out.adds },
                ..params.out
            };
            store::<T>(&out, &columns, u64::from(row), &sums);
        }
    }
}

/// Notes the destination of a segment's last source.
///
/// # Safety
/// A whole warp; the segment must exist.
#[inline(always)]
unsafe fn store_last(params: &SegmentedSumParams, column: u32, segment: u32, destination: u32) {
    if column == 0 && lane_idx() == 0 {
        // SAFETY: four bytes per segment.
        unsafe { store_u32(params.lasts + u64::from(segment) * 4, destination) };
    }
}

/// A destination in each lane.
#[derive(Clone, Copy)]
struct Known {
    first: u32,
    /// One past the last source.
    last: u32,
    row: u32,
}

impl Known {
    /// The destinations from `window` on; behind the last one, some without sources that end
    /// behind all of them.
    ///
    /// # Safety
    /// `params` must be as [`SegmentedSumParams`] says.
    #[inline(always)]
    unsafe fn load(params: &SegmentedSumParams, window: u32) -> Known {
        let index = window + lane_idx();
        if index >= params.n_destinations {
            return Known { first: params.n_sources, last: u32::MAX, row: NO_ROW };
        }
        // SAFETY: the destination exists.
        unsafe {
            let address = params.destinations + u64::from(index) * 8;
            let [first, row] = load_u32x2(address);
            let last = match index + 1 < params.n_destinations {
                true => load_u32(address + size_of::<Destination>() as u64),
                false => params.n_sources,
            };
            Known { first, last, row }
        }
    }
}

/// The last destination whose sources start at `pos` or before: the one that the source at `pos`
/// goes to. The warp looks at 32 at a time.
///
/// # Safety
/// A whole warp; the list must have the source.
#[inline(always)]
unsafe fn find(params: &SegmentedSumParams, pos: u32) -> u32 {
    let (mut first, mut len) = (0, params.n_destinations);
    while len > 1 {
        let step = len.div_ceil(32);
        let probe = lane_idx() * step;
        // SAFETY: the probe lies within the range that is left; the whole warp is here.
        let n = unsafe {
            let is_before = probe < len && {
                let index = u64::from(first + probe);
                load_u32(params.destinations + index * 8) <= pos
            };
            ballot(u32::from(is_before)).count_ones()
        };
        // The first one of the range starts there or before.
        let skipped = (n - 1) * step;
        first += skipped;
        len = step.min(len - skipped);
    }
    first
}

/// Row and factor of the source that is as many behind `pos` as the lane says.
///
/// # Safety
/// There must be sources up to `end`.
#[inline(always)]
unsafe fn load(params: &SegmentedSumParams, pos: u32, end: u32) -> [u32; 2] {
    let index = pos + lane_idx();
    if index >= end {
        return [NO_ROW, 0];
    }
    // SAFETY: the source exists.
    unsafe { load_u32x2(params.list + u64::from(index) * size_of::<Source>() as u64) }
}
