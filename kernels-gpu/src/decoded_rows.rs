//! Rows of decoded tokens, x̂, and their scales: r = 1 / √max(‖x̂‖², 10⁻¹²), see
//! [`crate::abi::residual_chunk`].
//!
//! Eight lanes have a token, each one chunk of eight. The order of the sum depends on dim alone:
//! equal rows have equal r, whichever kernel finds it.

use crate::abi::params::backward::WARPS;
use crate::abi::params::{DecodedRowsParams, ResidualNormsParams, Residuals, SQUARE_MIN};
use crate::abi::residual_chunk::{CHUNK_LEN, NORMS_LANES as LANES, slot};
use crate::primitives::residual_chunk::{Decoded, Weights, load_buckets};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_u32, load_u32x4, store_u32, store_u32x4};
use crate::ptx::math::{fma, max_nan, sqrt};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{shuffle, shuffle_xor_by};

/// Tokens that a warp has at once.
const TOKENS: u32 = 32 / LANES;

/// Bytes of a decoded chunk.
const CHUNK_BYTES: u64 = 16;

/// Calls a device function with the number of bits of a bucket as a constant.
macro_rules! with_bits {
    ($nbits:expr, $of_bits:ident::<$element:ident>($params:expr)) => {
        match $nbits {
            1 => $of_bits::<$element, 1>($params),
            2 => $of_bits::<$element, 2>($params),
            4 => $of_bits::<$element, 4>($params),
            _ => $of_bits::<$element, 8>($params),
        }
    };
}

/// Stores r of this warp's rows.
///
/// # Safety
/// `params` must describe rows as [`ResidualNormsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn decoded_norms<T: Decoded>(params: &ResidualNormsParams) {
    // SAFETY: the caller's promise.
    unsafe { with_bits!(params.tokens.nbits, norms_of_bits::<T>(params)) }
}

/// Stores this warp's rows, and r of each.
///
/// # Safety
/// `params` must describe rows as [`DecodedRowsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn decoded_rows<T: Decoded>(params: &DecodedRowsParams) {
    // SAFETY: the caller's promise.
    unsafe { with_bits!(params.tokens.nbits, rows_of_bits::<T>(params)) }
}

/// # Safety
/// As [`decoded_norms`]; `NBITS` is that of the rows.
#[inline(always)]
unsafe fn norms_of_bits<T: Decoded, const NBITS: u32>(params: &ResidualNormsParams) {
    let tokens = &params.tokens;
    let lane = thread_idx_x() % 32;
    let first = (block_idx_x() * WARPS + thread_idx_x() / 32) * TOKENS;
    if first >= params.n_rows {
        return;
    }
    let row = first + lane / LANES;
    // SAFETY: the host launches warps for all rows, and the last one's padding is there; the whole
    // warp is here.
    unsafe {
        let weights = Weights::new::<NBITS>(tokens);
        let code = load_u32(tokens.codes + u64::from(row) * 4);
        let square = decode::<T, NBITS>(tokens, &weights, params.dim, [row, code], lane, |_, _| {});
        if lane.is_multiple_of(LANES) && row < params.n_rows {
            store_u32(tokens.norms + u64::from(row) * 4, norm(square).to_bits());
        }
    }
}

/// # Safety
/// As [`decoded_rows`]; `NBITS` is that of the rows.
#[inline(always)]
unsafe fn rows_of_bits<T: Decoded, const NBITS: u32>(params: &DecodedRowsParams) {
    let tokens = &params.tokens;
    let lane = thread_idx_x() % 32;
    let first = (block_idx_x() * WARPS + thread_idx_x() / 32) * 32;
    // SAFETY: as in `norms_of_bits`; codes of 32 rows are there, or padding. A lane stores its own
    // chunks of rows that there are.
    unsafe {
        let weights = Weights::new::<NBITS>(tokens);
        if first >= params.n_rows {
            return;
        }
        let codes = load_u32(tokens.codes + u64::from(first + lane) * 4);
        let mut step = 0;
        while step < 32 && first + step < params.n_rows {
            let token = step + lane / LANES;
            let row = first + token;
            let is_there = row < params.n_rows;
            let to = params.rows + u64::from(row) * u64::from(params.pitch_bytes);
            let place = [row, shuffle(codes, token)];
            let square =
                decode::<T, NBITS>(tokens, &weights, params.dim, place, lane, |chunk, words| {
                    if is_there && chunk * (CHUNK_LEN as u32) < params.dim {
                        store_u32x4(to + u64::from(chunk) * CHUNK_BYTES, words);
                    }
                });
            if lane.is_multiple_of(LANES) && is_there {
                let scale = if tokens.norms == 0 { 1.0 } else { norm(square) };
                store_u32(params.scales + u64::from(row) * 4, scale.to_bits());
            }
            step += TOKENS;
        }
    }
}

/// r of a row of this squared length.
#[inline(always)]
fn norm(square: f32) -> f32 {
    1.0 / sqrt(max_nan(square, SQUARE_MIN))
}

/// Decodes a row, whose code comes with it, in eight lanes: `take` gets the lane's chunks of
/// eight, by their numbers, and all lanes the row's squared length. Chunks go up to a multiple of
/// as many as lanes.
///
/// # Safety
/// The whole warp together, each eight lanes with a row of `tokens`, or padding, of `dim` elements.
#[inline(always)]
unsafe fn decode<T: Decoded, const NBITS: u32>(
    tokens: &Residuals,
    weights: &Weights,
    dim: u32,
    [row, code]: [u32; 2],
    lane: u32,
    take: impl Fn(u32, [u32; 4]),
) -> f32 {
    let centroid = tokens.centroids + u64::from(code) * u64::from(tokens.pitch_bytes);
    let residual = tokens.residuals + u64::from(row) * u64::from(tokens.row_bytes);
    let mut sum = 0.0;
    let mut first = 0;
    // SAFETY: the caller's promise. Centroids have whole slabs, of as many chunks as lanes.
    unsafe {
        while first * (CHUNK_LEN as u32) < dim {
            // Two at once, where there are two: so that both are in flight.
            let mut centroids = [[0; 4]; 2];
            let mut buckets = [[0; 2]; 2];
            unroll!(I in 0..2 => {
                let chunk = first + LANES * I as u32 + lane % LANES;
                if I == 0 || (first + LANES) * (CHUNK_LEN as u32) < dim {
                    centroids[I] = load_u32x4(centroid + u64::from(chunk) * CHUNK_BYTES);
                    let offset = slot(chunk as usize) as u32 * NBITS;
                    buckets[I] = load_buckets::<NBITS>(residual + u64::from(offset));
                }
            });
            unroll!(I in 0..2 => {
                let chunk = first + LANES * I as u32 + lane % LANES;
                if I == 0 || (first + LANES) * (CHUNK_LEN as u32) < dim {
                    let words = weights.add::<T, NBITS>(centroids[I], buckets[I]);
                    let values = T::widen(words);
                    unroll!(E in 0..8 => {
                        // Bytes behind the row have unspecified values.
                        let is_there = chunk * (CHUNK_LEN as u32) + (E as u32) < dim;
                        let x = if is_there { values[E] } else { 0.0 };
                        sum = fma(x, x, sum);
                    });
                    take(chunk, words);
                }
            });
            first += 2 * LANES;
        }
        sum += shuffle_xor_by(sum, 1);
        sum += shuffle_xor_by(sum, 2);
        sum + shuffle_xor_by(sum, 4)
    }
}
