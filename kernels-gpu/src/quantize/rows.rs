//! `maxsim_quantize_*`: the codes and the scale of every row, see [`crate::abi::quantize`].
//!
//! A row is read twice, by as many lanes as its codes have chunks, up to 32: once for the largest
//! magnitude, which the lanes find together, and once more, out of the cache, for the codes. The
//! largest of some bits is the same in any order and every formula is the host's, so results are
//! the host's to the bit. A chunk has 16 bytes of a row and becomes 8 (f16, bf16) or 4 (f32) bytes
//! of codes. Bytes behind a row's end, up to the pitch, become zeros.

use crate::abi::params::backward::{Rows, WARPS};
use crate::abi::params::quantize::QuantizeParams;
use crate::abi::quantize::{
    clamped_to_f16, fp8_code, fp8_scale, int8_code, int8_scale, is_finite, magnitude_bits,
};
use crate::primitives::row_vector::{Columns, LANE_ELEMENTS, VectorElement};
use crate::primitives::unroll::unroll;
use crate::ptx::convert::{narrow_f16, widen_f16};
use crate::ptx::global::{load_u8, store_u8, store_u32, store_u32x2};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle};
use core::hint::assert_unchecked;

/// Codes of a format.
trait Codes {
    /// The bits of a magnitude, or 0 where it counts for no scale.
    fn counted(magnitude: u32) -> u32;
    /// The scale of a row by its largest magnitude that counts.
    fn scale(largest: u32) -> f32;
    /// The code of an element, in the low byte.
    fn code(x: f32, scale: f32) -> u32;
}

struct Int8;

impl Codes for Int8 {
    #[inline(always)]
    fn counted(magnitude: u32) -> u32 {
        magnitude
    }

    #[inline(always)]
    fn scale(largest: u32) -> f32 {
        int8_scale(largest)
    }

    #[inline(always)]
    fn code(x: f32, scale: f32) -> u32 {
        u32::from(int8_code(x, scale) as u8)
    }
}

struct Fp8;

impl Codes for Fp8 {
    #[inline(always)]
    fn counted(magnitude: u32) -> u32 {
        if is_finite(magnitude) { magnitude } else { 0 }
    }

    #[inline(always)]
    fn scale(largest: u32) -> f32 {
        fp8_scale(largest)
    }

    #[inline(always)]
    fn code(x: f32, scale: f32) -> u32 {
        u32::from(fp8_code(x, scale))
    }
}

/// Stores codes and scales of this warp's rows, and copies their mask.
///
/// # Safety
/// `params` must describe rows and room as [`QuantizeParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn quantize<T: VectorElement>(params: &QuantizeParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match (params.format, params.rows.aligned) {
            (QuantizeParams::INT8, 0) => of_rows::<T, Int8, false>(params),
            (QuantizeParams::INT8, _) => of_rows::<T, Int8, true>(params),
            (_, 0) => of_rows::<T, Fp8, false>(params),
            (_, _) => of_rows::<T, Fp8, true>(params),
        }
    }
}

/// # Safety
/// As [`quantize`]; `ALIGNED` is that of the rows.
#[inline(always)]
unsafe fn of_rows<T: VectorElement, F: Codes, const ALIGNED: bool>(params: &QuantizeParams) {
    // SAFETY: the host launches warps for all rows; the whole warp takes every turn.
    unsafe {
        assert_unchecked(params.rows.n_columns != 0);
        let lanes = 1 << params.rows.lanes_log2;
        let (row, is_there) = own_row::<T>(params, lanes);
        let mut largest = 0;
        let mut column = 0;
        while column < params.rows.n_columns {
            let (_, values) = elements::<T, ALIGNED>(&params.rows, column, row, is_there);
            unroll!(E in 0..8 => {
                if E < T::N {
                    largest = largest.max(F::counted(magnitude_bits(values[E])));
                }
            });
            column += 1;
        }
        let mut mask = lanes / 2;
        while mask > 0 {
            largest = largest.max(shuffle(largest, lane_idx() ^ mask));
            mask /= 2;
        }
        let scale = stored(F::scale(largest), params.f16_scales != 0);
        let word = scale.to_bits();
        store::<T, ALIGNED>(params, row, is_there, word, |x, _| F::code(x, scale));
    }
}

/// The lane's row, of those that the warp has at once, and whether there is one.
#[inline(always)]
pub(super) fn own_row<T: VectorElement>(params: &QuantizeParams, lanes: u32) -> (u32, u32) {
    let unit = block_idx_x() * WARPS + thread_idx_x() / 32;
    let first = Columns::new::<T>(&params.rows, 0);
    let row = unit * (32 / lanes) + first.slot;
    (row, u32::from(row < params.n_rows))
}

/// Stores the word that a row's codes are read with, and its codes, and copies its mask.
///
/// `code` gives the code of an element, in the low byte. It gets the element and whether it is one:
/// what comes behind the row's end is a zero that is none, and its code must be 0.
///
/// # Safety
/// As [`elements`]; the whole warp.
#[inline(always)]
pub(super) unsafe fn store<T: VectorElement, const ALIGNED: bool>(
    params: &QuantizeParams,
    row: u32,
    is_there: u32,
    word: u32,
    code: impl Fn(f32, bool) -> u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let first = Columns::new::<T>(&params.rows, 0);
        if is_there != 0 && first.element == 0 {
            store_u32(params.scales + u64::from(row) * 4, word);
            if params.mask != 0 {
                store_u8(params.mask_copy + u64::from(row), load_u8(params.mask + u64::from(row)));
            }
        }
        let codes = params.codes + u64::from(row) * params.pitch_bytes;
        let mut column = 0;
        while column < params.rows.n_columns {
            let (columns, values) = elements::<T, ALIGNED>(&params.rows, column, row, is_there);
            // SAFETY: all-zero bytes are numbers. (A literal would become a loop in memory.)
            let mut words: [u32; 2] = core::mem::zeroed();
            unroll!(E in 0..8 => {
                if E < T::N {
                    let is_element = (E as u32) < columns.n_elements;
                    words[E / 4] |= code(values[E], is_element) << (8 * (E % 4));
                }
            });
            if is_there != 0 && u64::from(columns.element) < params.pitch_bytes {
                let address = codes + u64::from(columns.element);
                match T::N {
                    4 => store_u32(address, words[0]),
                    _ => store_u32x2(address, words),
                }
            }
            column += 1;
        }
    }
}

/// The lane's elements of a row's column `column`, with zeros behind the row's end, whose code is 0
/// in every format.
///
/// # Safety
/// Where `is_there` is not 0 the matrix must have the row; `ALIGNED` is that of the rows.
#[inline(always)]
pub(super) unsafe fn elements<T: VectorElement, const ALIGNED: bool>(
    rows: &Rows,
    column: u32,
    row: u32,
    is_there: u32,
) -> (Columns, [f32; LANE_ELEMENTS]) {
    let columns = Columns::new::<T>(rows, column);
    let has_elements = is_there & u32::from(columns.n_elements > 0);
    // SAFETY: the caller's promise.
    let mut values = T::widen(unsafe { columns.load::<T, ALIGNED>(row, has_elements) });
    unroll!(E in 0..8 => {
        // Values behind the row are unspecified.
        if E < T::N && E as u32 >= columns.n_elements {
            values[E] = 0.0;
        }
    });
    (columns, values)
}

/// A scale as it will be read: as f16 has it, or as it is.
#[inline(always)]
fn stored(scale: f32, as_f16: bool) -> f32 {
    // The conversion has a NaN of its own.
    if !as_f16 || scale.is_nan() {
        return scale;
    }
    let scale = clamped_to_f16(scale);
    let [rounded, _] = widen_f16(narrow_f16(scale, scale));
    rounded
}
