//! A chunk of a row, where the row is there.

use crate::abi::residual_chunk::CHUNK_LEN;
use crate::primitives::residual_chunk::{Decoded, Weights};
use crate::ptx::global::{load_u8_if, load_u16_if, load_u32_if, load_u32x2_if, load_u32x4_if};

/// The buckets of a chunk where `condition` is not 0, and zeros otherwise.
///
/// # Safety
/// Where `condition` is not 0, the chunk's buckets must lie at `address`.
#[inline(always)]
pub unsafe fn load_buckets<const NBITS: u32>(address: u64, condition: u32) -> [u32; 2] {
    // SAFETY: the caller's promise: so many bytes.
    unsafe {
        match NBITS {
            1 => [load_u8_if(address, condition), 0],
            2 => [load_u16_if(address, condition), 0],
            4 => [load_u32_if(address, condition), 0],
            _ => load_u32x2_if(address, condition),
        }
    }
}

/// A chunk's elements where `condition` is not 0, and some numbers otherwise. Which number of bits
/// rows have is decided here: all else is compiled once.
///
/// # Safety
/// Where `condition` is not 0, the chunk of the centroid and its buckets must lie at these
/// addresses. `weights` must be those of rows of `nbits` bits.
#[inline(always)]
pub unsafe fn decode<T: Decoded>(
    weights: &Weights,
    nbits: u32,
    centroid: u64,
    buckets: u64,
    condition: u32,
) -> [f32; CHUNK_LEN] {
    // SAFETY: the caller's promise.
    unsafe {
        let words = load_u32x4_if(centroid, condition);
        let words = match nbits {
            1 => weights.add::<T, 1>(words, load_buckets::<1>(buckets, condition)),
            2 => weights.add::<T, 2>(words, load_buckets::<2>(buckets, condition)),
            4 => weights.add::<T, 4>(words, load_buckets::<4>(buckets, condition)),
            _ => weights.add::<T, 8>(words, load_buckets::<8>(buckets, condition)),
        };
        T::widen(words)
    }
}
