//! `maxsim_quantize_affine_*`: the codes of every row from its least element on, its scale and its
//! minimum, see [`crate::abi::quantize`].
//!
//! A row is read twice, as in [`crate::quantize::rows`]. The lanes find its least and its largest
//! element, in any order: of zeros it may be either, which makes no difference to scale and
//! minimum. They do not show whether there is a NaN; for that there is the largest magnitude.

use crate::abi::params::quantize::QuantizeParams;
use crate::abi::quantize::{
    F16_NAN, affine_code, affine_min, affine_scale, clamped_to_f16, is_finite, magnitude_bits,
};
use crate::primitives::row_vector::VectorElement;
use crate::primitives::unroll::unroll;
use crate::ptx::convert::{narrow_f16, widen_f16};
use crate::ptx::warp::{lane_idx, shuffle};
use crate::quantize::rows::{elements, own_row, store};
use core::hint::assert_unchecked;

/// Range of some elements of a row.
#[derive(Clone, Copy)]
struct Range {
    min: f32,
    max: f32,
    /// The bits of the largest magnitude.
    largest: u32,
}

impl Range {
    /// The range of no element.
    const NONE: Range = Range { min: f32::INFINITY, max: f32::NEG_INFINITY, largest: 0 };

    /// The range of both ranges' elements.
    #[inline(always)]
    fn and(self, other: Range) -> Range {
        Range {
            min: if other.min < self.min { other.min } else { self.min },
            max: if other.max > self.max { other.max } else { self.max },
            largest: self.largest.max(other.largest),
        }
    }

    /// The range of this lane's elements and of those of lane `lane`.
    ///
    /// # Safety
    /// All 32 lanes of the warp must execute it together.
    #[inline(always)]
    unsafe fn and_of(self, lane: u32) -> Range {
        // SAFETY: the caller's promise.
        let other = unsafe {
            Range {
                min: f32::from_bits(shuffle(self.min.to_bits(), lane)),
                max: f32::from_bits(shuffle(self.max.to_bits(), lane)),
                largest: shuffle(self.largest, lane),
            }
        };
        self.and(other)
    }
}

/// Stores codes, scales and minima of this warp's rows, and copies their mask.
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
    // SAFETY: the host launches warps for all rows; the whole warp takes every turn.
    unsafe {
        assert_unchecked(params.rows.n_columns != 0);
        let lanes = 1 << params.rows.lanes_log2;
        let (row, is_there) = own_row::<T>(params, lanes);
        let mut range = Range::NONE;
        let mut column = 0;
        while column < params.rows.n_columns {
            let (columns, values) = elements::<T, ALIGNED>(&params.rows, column, row, is_there);
            unroll!(E in 0..8 => {
                // Values behind the row are no elements of it.
                if E < T::N && (E as u32) < columns.n_elements {
                    let (min, max) = (values[E], values[E]);
                    range = range.and(Range { min, max, largest: magnitude_bits(min) });
                }
            });
            column += 1;
        }
        let mut mask = lanes / 2;
        while mask > 0 {
            range = range.and_of(lane_idx() ^ mask);
            mask /= 2;
        }
        let Range { min, max, largest } = range;
        let scale = clamped_to_f16(affine_scale(min, max, largest));
        let halves = narrow_f16(scale, affine_min(min, largest));
        let [scale, min] = widen_f16(halves);
        // The conversion has a NaN of its own.
        let word = if is_finite(largest) { halves } else { F16_NAN };
        store::<T, ALIGNED>(params, row, is_there, word, |x, is_element| {
            // The minimum's code is 0. (A branch would be one for every element.)
            let x = if is_element { x } else { min };
            u32::from(affine_code(x, scale, min))
        });
    }
}
