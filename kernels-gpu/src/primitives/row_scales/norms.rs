//! Finds r = 1 / √max(‖x‖², 10⁻¹²) of each row, times its weight where rows have any.
//!
//! As many lanes as a row has chunks of 16 bytes, up to 32, add its squares; a warp
//! has as many rows at once as fit. The order of the sum depends on dim alone, so that equal rows
//! have equal r wherever they lie. Where the sum is beyond f32, a second pass adds the squares of
//! elements times 2⁻¹⁰⁰.

use core::hint::assert_unchecked;

use crate::abi::params::SQUARE_MIN;
use crate::abi::params::backward::{RowNormsParams, WARPS};
use crate::primitives::row_scales::SMALL;
use crate::primitives::row_vector::{Columns, VectorElement, load_element};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::load_weight;
use crate::ptx::global::store_u32;
use crate::ptx::math::{fma, max_nan, sqrt};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::ballot;
use crate::ptx::warp::shuffle_xor_by;

/// Stores r of this warp's rows.
///
/// # Safety
/// `params` must describe rows as [`RowNormsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn row_norms<T: VectorElement>(params: &RowNormsParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.rows.aligned {
            0 => of_rows::<T, false>(params),
            _ => of_rows::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`row_norms`]; `ALIGNED` is that of the rows.
#[inline(always)]
unsafe fn of_rows<T: VectorElement, const ALIGNED: bool>(params: &RowNormsParams) {
    let lanes = 1 << params.rows.lanes_log2;
    let unit = block_idx_x() * WARPS + thread_idx_x() / 32;
    // SAFETY: the host launches warps for all rows; the whole warp takes every turn.
    unsafe {
        assert_unchecked(params.rows.n_columns != 0);
        let first = Columns::new::<T>(&params.rows, 0);
        let row = unit * (32 / lanes) + first.slot;
        let is_there = u32::from(row < params.n_rows);
        let mut sum = 0.0;
        let mut column = 0;
        while column < params.rows.n_columns {
            let columns = Columns::new::<T>(&params.rows, column);
            let has_elements = is_there & u32::from(columns.n_elements > 0);
            let values = T::widen(columns.load::<T, ALIGNED>(row, has_elements));
            unroll!(E in 0..8 => {
                if E < T::N {
                    // Elements behind the row have unspecified values.
                    let x = if (E as u32) < columns.n_elements { values[E] } else { 0.0 };
                    sum = fma(x, x, sum);
                }
            });
            column += 1;
        }
        let sum = add_lanes(sum, lanes);
        let mut norm = 1.0 / sqrt(max_nan(sum, SQUARE_MIN));
        if T::SQUARES_OVERFLOW && ballot(u32::from(sum == f32::INFINITY)) != 0 {
            let small = add_lanes(small_square::<T>(params, row, sum == f32::INFINITY), lanes);
            norm = if sum == f32::INFINITY { SMALL / sqrt(small) } else { norm };
        }
        if is_there != 0 && first.element == 0 {
            let norm = norm * load_weight(params.weights, row);
            store_u32(params.norms + u64::from(row) * 4, norm.to_bits());
        }
    }
}

/// The squares of a lane's elements of a row that it `has`, times [`SMALL`], one element after
/// the other: rows so long are rare, and registers are not.
///
/// # Safety
/// `params` must have the row where the lane has it.
#[inline(always)]
unsafe fn small_square<T: VectorElement>(params: &RowNormsParams, row: u32, has: bool) -> f32 {
    let source = params.rows.base + u64::from(row) * params.rows.pitch_bytes;
    let lanes = 1 << params.rows.lanes_log2;
    let mut element = thread_idx_x() % lanes;
    let end = if has { params.rows.dim } else { 0 };
    let mut sum = 0.0;
    while element < end {
        // SAFETY: the row has the element.
        let x = SMALL * unsafe { load_element::<T>(source, element) };
        sum = fma(x, x, sum);
        element += lanes;
    }
    sum
}

/// The sum of what a row's lanes have, in each of them.
///
/// # Safety
/// The whole warp.
#[inline(always)]
unsafe fn add_lanes(mut sum: f32, lanes: u32) -> f32 {
    let mut mask = lanes / 2;
    while mask > 0 {
        // SAFETY: the caller's promise.
        sum += unsafe { shuffle_xor_by(sum, mask) };
        mask /= 2;
    }
    sum
}
