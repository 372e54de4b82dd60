//! `∂x = r · (∂y - y · ⟨y, ∂y⟩)` with y = r · x̂, or `r · ∂y` where ‖x̂‖² was too small for r to
//! depend on it: eight lanes per row of a window, each one chunk of eight, as
//! [`crate::decoded_rows`] reads rows. The row is decoded twice; its gradient is read twice and
//! written where it is.

use crate::abi::params::SQUARE_MIN;
use crate::abi::params::backward::WARPS;
use crate::abi::params::backward::residual::{PROJECT_LANES as LANES, ResidualProjectParams};
use crate::abi::residual_chunk::{CHUNK_LEN, slot};
use crate::backward::residual_decoded::decode;
use crate::primitives::residual_chunk::{Decoded, Weights};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_f32, load_u32, read_u32x4, store_u32, store_u32x4};
use crate::ptx::math::{fma, sqrt};
use crate::ptx::thread::{block_idx_x, thread_idx_x};
use crate::ptx::warp::{ballot, shuffle_xor_by};

/// Makes gradients with respect to normalised rows those of rows.
///
/// # Safety
/// `params` must describe sums of earlier kernels of the same stream as [`ResidualProjectParams`]
/// says; all threads of the block.
#[inline(always)]
pub unsafe fn project<T: Decoded>(params: &ResidualProjectParams) {
    let (tokens, window) = (&params.tokens, &params.window);
    let lane = thread_idx_x() % 32;
    let first = (block_idx_x() * WARPS + thread_idx_x() / 32) * (32 / LANES);
    if first >= window.n_rows {
        return;
    }
    let is_row = first + lane / LANES < window.n_rows;
    // Lanes behind the last row look at it, and neither add nor write anything.
    let index = (first + lane / LANES).min(window.n_rows - 1);
    let row = window.first_row + index;
    let n_elements = |chunk: u32| match is_row {
        true => window.dim.saturating_sub(chunk * CHUNK_LEN as u32).min(CHUNK_LEN as u32),
        false => 0,
    };
    // SAFETY: the window's rows exist; the whole warp takes every turn; each lane reads its
    // elements of the window before it writes them, and no other thread does either.
    unsafe {
        let weights = Weights::new::<4>(tokens);
        let norm = f32::from_bits(load_u32(tokens.norms + u64::from(row) * 4));
        let code = load_u32(tokens.codes + u64::from(row) * 4);
        let centroid = tokens.centroids + u64::from(code) * u64::from(tokens.pitch_bytes);
        let residual = tokens.residuals + u64::from(row) * u64::from(tokens.row_bytes);
        let unit = |chunk: u32, n: u32| {
            let centroid = centroid + u64::from(chunk) * 16;
            let buckets = residual + u64::from(slot(chunk as usize) as u32 * tokens.nbits);
            let there = u32::from(n > 0);
            let mut values = decode::<T>(&weights, tokens.nbits, centroid, buckets, there);
            unroll!(E in 0..8 => { values[E] *= norm; });
            values
        };
        let mut product = 0.0;
        let mut is_there = false;
        let mut turn = 0;
        while turn * (CHUNK_LEN as u32) < window.dim {
            let chunk = turn + lane % LANES;
            let n = n_elements(chunk);
            let y = unit(chunk, n);
            let sums = load(window.address(index, chunk * CHUNK_LEN as u32), n);
            unroll!(E in 0..8 => {
                // Bytes behind the row have unspecified values.
                if (E as u32) < n {
                    product = fma(y[E], sums[E], product);
                    is_there |= sums[E] != 0.0;
                }
            });
            turn += LANES;
        }
        // No token chose the row, or its gradients are 0: zeros, whatever it holds.
        let of_row = ballot(u32::from(is_there)) >> (lane / LANES * LANES) & ((1 << LANES) - 1);
        product += shuffle_xor_by(product, 1);
        product += shuffle_xor_by(product, 2);
        product += shuffle_xor_by(product, 4);
        if of_row == 0 {
            return;
        }
        let is_constant = norm == 1.0 / sqrt(SQUARE_MIN);
        turn = 0;
        while turn * (CHUNK_LEN as u32) < window.dim {
            let chunk = turn + lane % LANES;
            let n = n_elements(chunk);
            let y = unit(chunk, n);
            let address = window.address(index, chunk * CHUNK_LEN as u32);
            let mut sums = load(address, n);
            unroll!(E in 0..8 => {
                let along = if is_constant { 0.0 } else { y[E] * product };
                sums[E] = norm * (sums[E] - along);
            });
            store(address, n, sums);
            turn += LANES;
        }
    }
}

/// Up to `n` of a lane's sums, and zeros behind them.
///
/// # Safety
/// They must be at `address`, this lane's to write.
#[inline(always)]
unsafe fn load(address: u64, n: u32) -> [f32; CHUNK_LEN] {
    let mut sums = [0.0f32; CHUNK_LEN];
    // SAFETY: the caller's promise.
    unsafe {
        if n == CHUNK_LEN as u32 && address.is_multiple_of(16) {
            let [a, b, c, d] = read_u32x4(address).map(f32::from_bits);
            let [e, f, g, h] = read_u32x4(address + 16).map(f32::from_bits);
            return [a, b, c, d, e, f, g, h];
        }
        unroll!(E in 0..8 => {
            if (E as u32) < n {
                sums[E] = load_f32(address + E as u64 * 4);
            }
        });
    }
    sums
}

/// Writes the first `n` of a lane's sums.
///
/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn store(address: u64, n: u32, sums: [f32; CHUNK_LEN]) {
    // SAFETY: the caller's promise.
    unsafe {
        if n == CHUNK_LEN as u32 && address.is_multiple_of(16) {
            let [a, b, c, d, e, f, g, h] = sums.map(f32::to_bits);
            store_u32x4(address, [a, b, c, d]);
            store_u32x4(address + 16, [e, f, g, h]);
            return;
        }
        unroll!(E in 0..8 => {
            if (E as u32) < n {
                store_u32(address + E as u64 * 4, sums[E].to_bits());
            }
        });
    }
}
