//! What decoded tokens are normalised by: r = 1 / √max(‖x̂‖², 10⁻¹²).
//!
//! Eight lanes have a token, as where tokens are decoded to be multiplied. The order of the sum depends
//! on dim alone: equal rows have equal r.

use super::decode::{Decoded, Lane, TOKENS};
use crate::decode::CHUNK_LEN;
use crate::gradient::WARPS;
use crate::layout::SLAB_BYTES;
use crate::params::{ResidualNormsParams, SQUARE_MIN};
use crate::ptx::math::{fma, max_nan, sqrt};
use crate::ptx::memory::{load_u32, load_u32x4, store_u32};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::wide::shuffle_xor_by;
use crate::reduce::unroll;

/// Stores r of this warp's rows.
///
/// # Safety
/// `params` must describe rows as [`ResidualNormsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn norms<T: Decoded>(params: &ResidualNormsParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.tokens.nbits {
            1 => of_bits::<T, 1>(params),
            2 => of_bits::<T, 2>(params),
            4 => of_bits::<T, 4>(params),
            _ => of_bits::<T, 8>(params),
        }
    }
}

/// # Safety
/// As [`norms`]; `NBITS` is that of the rows.
#[inline(always)]
unsafe fn of_bits<T: Decoded, const NBITS: u32>(params: &ResidualNormsParams) {
    let tokens = &params.tokens;
    let lane = thread_idx_x() % 32;
    let unit = block_idx_x() * WARPS + thread_idx_x() / 32;
    // SAFETY: the host launches warps for all rows, and the last one's padding is there; the whole
    // warp takes every turn.
    unsafe {
        let own = Lane::new::<NBITS>(tokens, 0, lane);
        let row = unit * TOKENS + own.slot;
        if unit * TOKENS >= params.n_rows {
            return;
        }
        let code = load_u32(tokens.codes + u64::from(row) * 4);
        let centroid = own.centroids + u64::from(code) * u64::from(tokens.pitch_bytes);
        let mut sum = 0.0;
        let mut slab = 0;
        let mut element = lane % 8 * CHUNK_LEN as u32;
        while slab * T::SLAB_ELEMENTS < params.dim {
            let words = load_u32x4(centroid + u64::from(slab) * SLAB_BYTES as u64);
            let words = own.sums::<T, NBITS>(words, own.buckets::<NBITS>(row, slab));
            let values = T::widen(words);
            unroll!(E in 0..8 => {
                // What lies behind the row may be anything.
                let x = if element + (E as u32) < params.dim { values[E] } else { 0.0 };
                sum = fma(x, x, sum);
            });
            element += T::SLAB_ELEMENTS;
            slab += 1;
        }
        sum += shuffle_xor_by(sum, 1);
        sum += shuffle_xor_by(sum, 2);
        sum += shuffle_xor_by(sum, 4);
        if lane % 8 == 0 && row < params.n_rows {
            let norm = 1.0 / sqrt(max_nan(sum, SQUARE_MIN));
            store_u32(tokens.norms + u64::from(row) * 4, norm.to_bits());
        }
    }
}
