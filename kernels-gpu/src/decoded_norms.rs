//! Row scales of decoded tokens: r = 1 / √max(‖x̂‖², 10⁻¹²), see
//! [`crate::abi::residual_chunk`].
//!
//! Eight lanes have a token, each one chunk of eight. The order of the sum depends on dim alone:
//! equal rows have equal r.

use crate::abi::params::backward::WARPS;
use crate::abi::params::{ResidualNormsParams, SQUARE_MIN};
use crate::abi::residual_chunk::{CHUNK_LEN, NORMS_LANES as LANES, slot};
use crate::primitives::residual_chunk::{Decoded, Weights};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_u8, load_u16, load_u32, load_u32x2, load_u32x4, store_u32};
use crate::ptx::math::{fma, max_nan, sqrt};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::shuffle_xor_by;

/// Stores r of this warp's rows.
///
/// # Safety
/// `params` must describe rows as [`ResidualNormsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn decoded_norms<T: Decoded>(params: &ResidualNormsParams) {
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
/// As [`decoded_norms`]; `NBITS` is that of the rows.
#[inline(always)]
unsafe fn of_bits<T: Decoded, const NBITS: u32>(params: &ResidualNormsParams) {
    let tokens = &params.tokens;
    let lane = thread_idx_x() % 32;
    let first = (block_idx_x() * WARPS + thread_idx_x() / 32) * (32 / LANES);
    if first >= params.n_rows {
        return;
    }
    let row = first + lane / LANES;
    // SAFETY: the host launches warps for all rows, and the last one's padding is there; the whole
    // warp takes every turn.
    unsafe {
        let weights = Weights::new::<NBITS>(tokens);
        let code = load_u32(tokens.codes + u64::from(row) * 4);
        let centroid = tokens.centroids + u64::from(code) * u64::from(tokens.pitch_bytes);
        let residual = tokens.residuals + u64::from(row) * u64::from(tokens.row_bytes);
        let mut sum = 0.0;
        let mut chunk = lane % LANES;
        while (chunk - lane % LANES) * (CHUNK_LEN as u32) < params.dim {
            let words = load_u32x4(centroid + u64::from(chunk) * 16);
            let slot = slot(chunk as usize) as u32;
            let address = residual + u64::from(slot * NBITS);
            let buckets = match NBITS {
                1 => [load_u8(address), 0],
                2 => [load_u16(address), 0],
                4 => [load_u32(address), 0],
                _ => load_u32x2(address),
            };
            let values = T::widen(weights.add::<T, NBITS>(words, buckets));
            unroll!(E in 0..8 => {
                // Bytes behind the row have unspecified values.
                let is_there = chunk * (CHUNK_LEN as u32) + (E as u32) < params.dim;
                let x = if is_there { values[E] } else { 0.0 };
                sum = fma(x, x, sum);
            });
            chunk += LANES;
        }
        sum += shuffle_xor_by(sum, 1);
        sum += shuffle_xor_by(sum, 2);
        sum += shuffle_xor_by(sum, 4);
        if lane.is_multiple_of(LANES) && row < params.n_rows {
            let norm = 1.0 / sqrt(max_nan(sum, SQUARE_MIN));
            store_u32(tokens.norms + u64::from(row) * 4, norm.to_bits());
        }
    }
}
