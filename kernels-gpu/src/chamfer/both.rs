//! Compares points of two clouds, so that one distance serves the neighbours of both: 128 threads,
//! *rows* of one cloud in registers, *columns* of the other one behind the other.
//!
//! ```text
//! fill      rows and columns, as f32, points behind the end and masked ones at NaN
//! warp      all warps have the same rows, eight to a lane or four of more than 4 dims, each other
//!           columns, 32 at a time
//! pair      a subtraction and a fused multiply-add for each dim; two distances of a row are one
//!           minimum on Hopper, and so are two of a column
//! row       its least distance and the first 16 columns that have it; warps meet in the end, and
//!           the first of the 16 is looked for
//! column    the least of the lanes' and the first lane that has it, whose rows are looked through
//! key       the larger one of the key in memory and this one
//! ```
//!
//! A difference has another sign in the other direction, and the same square and magnitude: both
//! directions have the same distance to the last bit. NaN and infinities are rare: where a point or
//! those that it is compared with have any, or nothing is nearer than infinity, it is compared once
//! more with care.
//!
//! Loss: six instructions for each column of a warp, of which the minimum over lanes takes eight
//! clocks; hence as many rows as registers hold.

use super::nearest::{fill, is_there, look, tile_point, two_points, with_care};
use super::points::{Cloud, Point, cloud_pair, distance, is_odd, least};
use crate::abi::params::chamfer::{
    BothShared, COLUMNS, COLUMNS_BLOCK, NO_KEY, NO_POINT, NearestParams, NearestTask, THREADS, key,
};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::max_u64_if;
use crate::ptx::global::{load_u32x4, opaque};
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32x2, store_shared_u32x2, store_shared_u32x4_if,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{ballot, lane_idx, min_lanes, sync_warp};

/// Warps of a CTA.
const N_WARPS: u32 = THREADS as u32 / 32;

/// Bits of infinity: larger ones are those of NaN.
const INFINITE: u32 = f32::INFINITY.to_bits();

/// What a CTA compares: of rows and of columns the first, the address of its key, and whether one
/// of them is not finite.
struct Both<const W: usize, const R: usize> {
    firsts: [u32; 2],
    keys: [u64; 2],
    have_odd: [bool; 2],
    n_columns: u32,
}

/// Compares this CTA's rows, `R` of each thread, of up to `D` dims and `W` numbers in memory.
///
/// # Safety
/// `params` must describe memory as [`NearestParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn both<const D: usize, const W: usize, const R: usize>(params: &NearestParams) {
    // SAFETY: the caller's promise; all threads take every step together.
    unsafe {
        let both = Both::<W, R>::new(params);
        match params.clouds.is_l1 {
            0 => both.compare::<D, false>(),
            _ => both.compare::<D, true>(),
        }
    }
}

/// The number of the row at a place of shared memory: a lane has consecutive ones, so that the
/// first lane of equally near rows has the first of them.
#[inline(always)]
const fn row_at<const R: usize>(place: u32) -> u32 {
    place % 32 * R as u32 + place / 32
}

impl<const W: usize, const R: usize> Both<W, R> {
    /// Loads the points.
    ///
    /// # Safety
    /// As [`both`].
    #[inline(always)]
    unsafe fn new(params: &NearestParams) -> Both<W, R> {
        let address = params.tasks + u64::from(block_idx_x()) * size_of::<NearestTask>() as u64;
        let shared = dynamic_shared();
        // SAFETY: the host has made a task for each CTA; rows and columns have their places.
        unsafe {
            let [pair_and_side, first_row, first_column, n_columns] = load_u32x4(address);
            if thread_idx_x() == 0 {
                store_shared_u32x2(shared, [0; 2]);
            }
            sync_threads();
            let pair = cloud_pair(params.clouds.pairs, pair_and_side / 2);
            let rows = Cloud::of(&params.clouds, &pair, pair_and_side % 2);
            let columns = Cloud::of(&params.clouds, &pair, 1 - pair_and_side % 2);
            let to = (shared + BothShared::<W>::ROWS, 32 * R as u32);
            fill::<W>(&params.clouds, &rows, to, shared, |i| first_row + row_at::<R>(i));
            let to = (shared + BothShared::<W>::TILE, n_columns.next_multiple_of(COLUMNS));
            fill::<W>(&params.clouds, &columns, to, shared + 4, |i| {
                if i < n_columns { first_column + i } else { NO_POINT }
            });
            sync_threads();
            let [rows_word, columns_word] = load_shared_u32x2(shared);
            let places = [(rows.place, first_row), (columns.place, first_column)];
            Both {
                firsts: [first_row, first_column],
                keys: places
                    .map(|(place, first)| params.keys + (u64::from(place) + u64::from(first)) * 8),
                have_odd: [rows_word != 0, columns_word != 0],
                n_columns,
            }
        }
    }

    /// Address of the row at a place.
    #[inline(always)]
    fn row(place: u32) -> u32 {
        dynamic_shared() + BothShared::<W>::ROWS + place * BothShared::<W>::POINT_BYTES
    }

    /// Address of a column.
    #[inline(always)]
    fn column(column: u32) -> u32 {
        dynamic_shared() + BothShared::<W>::TILE + column * BothShared::<W>::POINT_BYTES
    }

    /// Address of what a warp has found of its rows.
    #[inline(always)]
    fn bests(warp: u32) -> u32 {
        dynamic_shared() + BothShared::<W>::BESTS + warp * BothShared::<W>::BESTS_BYTES
    }

    /// Compares all columns.
    ///
    /// # Safety
    /// As [`both`].
    #[inline(always)]
    unsafe fn compare<const D: usize, const L1: bool>(&self) {
        let (lane, warp) = (lane_idx(), thread_idx_x() / 32);
        let mut rows = [[0.0; W]; R];
        let (mut best, mut blocks) = ([INFINITE; R], [0; R]);
        // SAFETY: rows and whole warps' columns are written; threads come to barriers together.
        unsafe {
            unroll!(I in 0..8 => { if I < R {
                rows[I] = tile_point::<W>(Self::row(I as u32 * 32 + lane));
            }});
            let mut first = warp * COLUMNS;
            while first < self.n_columns {
                let mut to = dynamic_shared() + BothShared::<W>::FOUND;
                to += warp * BothShared::<W>::FOUND_BYTES;
                let (found, mut at) = (to + lane * 8, first);
                while at < first + COLUMNS {
                    let nearest = block::<D, W, R, L1>(&rows, best, Self::column(at), to);
                    unroll!(I in 0..8 => { if I < R {
                        blocks[I] = if nearest[I] < best[I] { at } else { blocks[I] };
                    }});
                    best = nearest;
                    at += COLUMNS_BLOCK;
                    to += COLUMNS_BLOCK * 8;
                }
                sync_warp();
                self.store_column::<D, L1>(first + lane, load_shared_u32x2(found));
                // What was found has been read.
                sync_warp();
                first += N_WARPS * COLUMNS;
            }
            unroll!(I in 0..8 => { if I < R {
                let at = Self::bests(warp) + (I as u32 * 32 + lane) * 8;
                store_shared_u32x2(at, [best[I], blocks[I]]);
            }});
            sync_threads();
            let mut place = thread_idx_x();
            while place < 32 * R as u32 {
                self.store_row::<D, L1>(place);
                place += THREADS as u32;
            }
        }
    }

    /// Stores the key of a column, of which the bits of the least distance were found, and the
    /// lanes that have it.
    ///
    /// # Safety
    /// As [`both`]; the points must be written.
    #[inline(always)]
    unsafe fn store_column<const D: usize, const L1: bool>(
        &self,
        column: u32,
        [bits, lanes]: [u32; 2],
    ) {
        let [first_row, _] = self.firsts;
        // SAFETY: the caller's promise.
        unsafe {
            let point = tile_point::<W>(Self::column(column));
            if !is_there(&point) {
                return;
            }
            let is_plain = !self.have_odd[0] & (bits < INFINITE) & !is_odd(&point);
            let found = if is_plain {
                let lane = lanes.trailing_zeros();
                // One after the other: all of them together would take too many registers.
                let (mut row, last) =
                    (Self::row(lane), Self::row(opaque(32 * R as u64 - 32) as u32));
                while row < last {
                    let other = tile_point::<W>(row);
                    if distance::<D, W, L1>(&other, &point).to_bits() == bits {
                        break;
                    }
                    row += 32 * BothShared::<W>::POINT_BYTES;
                }
                let of_lane = (row - Self::row(lane)) / (32 * BothShared::<W>::POINT_BYTES);
                key(f32::from_bits(bits), first_row + lane * R as u32 + of_lane)
            } else {
                let rows = (Self::row(0), 32 * R as u32);
                with_care::<D, W, L1>(&point, rows, |i| first_row + row_at::<R>(i))
            };
            let address = self.keys[1] + u64::from(column) * 8;
            max_u64_if(address, found, u32::from(found != NO_KEY));
        }
    }

    /// Stores the key of the row at a place.
    ///
    /// # Safety
    /// As [`both`]; all warps must have written what they found.
    #[inline(always)]
    unsafe fn store_row<const D: usize, const L1: bool>(&self, place: u32) {
        let [_, first_column] = self.firsts;
        // SAFETY: the caller's promise.
        unsafe {
            let point = tile_point::<W>(Self::row(place));
            if !is_there(&point) {
                return;
            }
            let mut best = [INFINITE, 0];
            unroll!(WARP in 0..4 => {
                let [bits, at] = load_shared_u32x2(Self::bests(WARP as u32) + place * 8);
                let is_first = (bits < best[0]) | ((bits == best[0]) & (at < best[1]));
                best = if is_first { [bits, at] } else { best };
            });
            let is_plain = !self.have_odd[1] & (best[0] < INFINITE) & !is_odd(&point);
            let nearest = f32::from_bits(best[0]);
            let found = if is_plain {
                let at = Self::column(best[1]);
                let look = look::<D, W, COLUMNS_BLOCK, L1>(&point, nearest, at);
                key(nearest, first_column + best[1] + look)
            } else {
                let tile = (Self::column(0), self.n_columns);
                with_care::<D, W, L1>(&point, tile, |i| first_column + i)
            };
            let address = self.keys[0] + u64::from(row_at::<R>(place)) * 8;
            max_u64_if(address, found, u32::from(found != NO_KEY));
        }
    }
}

/// Compares rows with a block of columns: bits of the least distance of each row, given those of
/// earlier blocks. Those of each column, and the lanes that have it, are written.
///
/// # Safety
/// All lanes together; the columns must be written, and there must be eight bytes for each, which
/// no lane reads.
#[inline(always)]
unsafe fn block<const D: usize, const W: usize, const R: usize, const L1: bool>(
    rows: &[Point<W>; R],
    mut nearest: [u32; R],
    mut columns: u32,
    mut to: u32,
) -> [u32; R] {
    let is_first = u32::from(lane_idx() == 0);
    let end = columns + COLUMNS_BLOCK * 4 * W as u32;
    while columns < end {
        // SAFETY: the caller's promise.
        let [a, b] = unsafe { two_points::<W>(columns) };
        let mut of_columns = [NONE; 2];
        unroll!(I in 0..4 => { if 2 * I < R {
            let [p, q] = [2 * I, 2 * I + 1].map(|row| {
                [&a, &b].map(|column| distance::<D, W, L1>(&rows[row], column).to_bits())
            });
            nearest[2 * I] = least([nearest[2 * I], p[0], p[1]]);
            nearest[2 * I + 1] = least([nearest[2 * I + 1], q[0], q[1]]);
            of_columns[0] = least([of_columns[0], p[0], q[0]]);
            of_columns[1] = least([of_columns[1], p[1], q[1]]);
        }});
        // SAFETY: the caller's promise.
        unsafe {
            let [a, b] = [min_lanes(of_columns[0]), min_lanes(of_columns[1])];
            let lanes =
                [ballot(u32::from(of_columns[0] == a)), ballot(u32::from(of_columns[1] == b))];
            store_shared_u32x4_if(to, [a, lanes[0], b, lanes[1]], is_first);
        }
        columns += 2 * 4 * W as u32;
        to += 2 * 8;
    }
    nearest
}

/// Bits above those of all distances.
const NONE: u32 = u32::MAX;
