//! FP8 codes with one scale for all rows, see [`crate::abi::quantize`]: `maxsim_quantize_largest_*`
//! reads the rows for the largest magnitude, of which the host makes the scale, and
//! `maxsim_quantize_tensor_*` reads them once more for the codes.
//!
//! A warp of the first one takes every so many rows and publishes in the end the largest of all of
//! them. A maximum of bits is the same in any order, so warps may publish theirs whenever they are
//! done.

use crate::abi::params::backward::WARPS;
use crate::abi::params::quantize::{LargestParams, QuantizeParams};
use crate::abi::quantize::{fp8_code, is_finite, magnitude_bits};
use crate::primitives::row_vector::{Columns, VectorElement};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::max_u32_if;
use crate::ptx::global::load_u8_if;
use crate::ptx::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::ptx::warp::{lane_idx, max_lanes};
use crate::quantize::rows::{elements, own_row, store};
use core::hint::assert_unchecked;

/// Finds the largest finite magnitude of the rows that count.
///
/// # Safety
/// `params` must describe rows as [`LargestParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn largest<T: VectorElement>(params: &LargestParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.rows.aligned {
            0 => largest_of::<T, false>(params),
            _ => largest_of::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`largest`]; `ALIGNED` is that of the rows.
#[inline(always)]
unsafe fn largest_of<T: VectorElement, const ALIGNED: bool>(params: &LargestParams) {
    let n_at_once = 32 >> params.rows.lanes_log2;
    let slot = Columns::new::<T>(&params.rows, 0).slot;
    let mut first = (block_idx_x() * WARPS + thread_idx_x() / 32) * n_at_once;
    let mut largest = 0;
    // SAFETY: the whole warp takes every turn; rows that are read are there.
    unsafe {
        assert_unchecked(params.rows.n_columns != 0);
        while first < params.n_rows {
            let row = first + slot;
            let is_there = u32::from(row < params.n_rows);
            let counts = has(params.used, row, has(params.mask, row, is_there));
            let mut column = 0;
            while column < params.rows.n_columns {
                let (_, values) = elements::<T, ALIGNED>(&params.rows, column, row, counts);
                unroll!(E in 0..8 => {
                    let magnitude = magnitude_bits(values[E]);
                    if E < T::N && is_finite(magnitude) {
                        largest = magnitude.max(largest);
                    }
                });
                column += 1;
            }
            first += grid_dim_x() * WARPS * n_at_once;
        }
        let largest = max_lanes(largest);
        max_u32_if(params.largest, largest, u32::from(lane_idx() == 0));
    }
}

/// 1 where the row's byte is not 0, or there are no bytes; 0 where `condition` is.
///
/// # Safety
/// Where `condition` is not 0, there must be a byte of the row from `bytes` on, or no bytes.
#[inline(always)]
unsafe fn has(bytes: u64, row: u32, condition: u32) -> u32 {
    match bytes {
        0 => condition,
        // SAFETY: the caller's promise.
        _ => u32::from(unsafe { load_u8_if(bytes + u64::from(row), condition) } != 0),
    }
}

/// Stores codes and the scale of this warp's rows, and copies their mask.
///
/// # Safety
/// `params` must describe rows and room as [`QuantizeParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn quantize<T: VectorElement>(params: &QuantizeParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.rows.aligned {
            0 => of_rows::<T, false>(params),
            _ => of_rows::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`quantize`]; `ALIGNED` is that of the rows.
#[inline(always)]
unsafe fn of_rows<T: VectorElement, const ALIGNED: bool>(params: &QuantizeParams) {
    let (row, is_there) = own_row::<T>(params, 1 << params.rows.lanes_log2);
    let scale = params.scale;
    // SAFETY: the host launches warps for all rows; the whole warp is here.
    unsafe {
        store::<T, ALIGNED>(params, row, is_there, scale.to_bits(), |x, _| {
            u32::from(fp8_code(x, scale))
        });
    }
}
