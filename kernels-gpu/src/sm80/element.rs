//! What differs between element types: a chunk's loads, and the product of a slab.

use super::N_ACCUMULATORS;
use crate::layout::chunk_offset;
use crate::ptx::math::fma;
use crate::ptx::matrix::{load_matrix_x4, mma_bf16, mma_f16};
use crate::ptx::memory::{load_shared_f32x4, load_u16, load_u32};
use crate::reduce::unroll;

/// Accumulators of a warp's 16 × 64 tile, in the layout of [`crate::reduce`].
pub type Accumulators = [f32; N_ACCUMULATORS];

/// An element type of the sm_80 kernels.
pub trait Element {
    /// Bytes of an element.
    const BYTES: usize;

    /// Sums of nothing.
    #[inline(always)]
    fn zero() -> Accumulators {
        // SAFETY: all-zero bytes are floats. (A literal would become a loop in memory.)
        unsafe { core::mem::zeroed() }
    }

    /// Adds the products of a slab: 16 query rows at `queries`, 64 document tokens at
    /// `documents`, 128 bytes each.
    ///
    /// # Safety
    /// All 32 lanes together; both slabs must be complete.
    unsafe fn multiply_add(
        c: Accumulators,
        queries: u32,
        documents: u32,
        lane: u32,
    ) -> Accumulators;

    /// Reads the first `n_bytes` of a chunk whose address need not be aligned to 16; the
    /// rest are zeros.
    ///
    /// # Safety
    /// `address` must be aligned to the element and readable for `n_bytes`.
    unsafe fn load_chunk(address: u64, n_bytes: u32) -> [u32; 4];
}

/// IEEE 754 binary16.
pub struct F16;
/// bfloat16.
pub struct Bf16;
/// IEEE 754 binary32, multiplied and added in exactly that.
pub struct F32;

macro_rules! half {
    ($name:ident, $mma:ident) => {
        impl Element for $name {
            const BYTES: usize = 2;

            #[inline(always)]
            unsafe fn multiply_add(
                mut c: Accumulators,
                queries: u32,
                documents: u32,
                lane: u32,
            ) -> Accumulators {
                // Lane addresses of ldmatrix: A as (rows 0-7, 8-15) × (k 0-7, 8-15), B as two
                // groups of 8 tokens × (k 0-7, 8-15).
                let (a_row, a_chunk) = (lane % 16, lane / 16);
                let (b_row, b_chunk) = (lane % 8 + lane / 16 * 8, lane / 8 % 2);
                let mut k = 0;
                while k < 4 {
                    // SAFETY: the caller's promise; addresses stay within the slabs.
                    unsafe {
                        let a = load_matrix_x4(queries + chunk_offset(a_row, 2 * k + a_chunk));
                        unroll!(I in 0..16 => {
                            if I < 4 {
                                let b = load_matrix_x4(
                                    documents + chunk_offset(16 * I as u32 + b_row, 2 * k + b_chunk),
                                );
                                let (left, right) = (8 * I % N_ACCUMULATORS, (8 * I + 4) % N_ACCUMULATORS);
                                let sum = [c[left], c[left + 1], c[left + 2], c[left + 3]];
                                let sum = $mma(sum, a, [b[0], b[1]]);
                                [c[left], c[left + 1], c[left + 2], c[left + 3]] = sum;
                                let sum = [c[right], c[right + 1], c[right + 2], c[right + 3]];
                                let sum = $mma(sum, a, [b[2], b[3]]);
                                [c[right], c[right + 1], c[right + 2], c[right + 3]] = sum;
                            }
                        });
                    }
                    k += 1;
                }
                c
            }

            #[inline(always)]
            unsafe fn load_chunk(address: u64, n_bytes: u32) -> [u32; 4] {
                let half = |i: u32| match 2 * i < n_bytes {
                    // SAFETY: the caller's promise.
                    true => unsafe { load_u16(address + 2 * u64::from(i)) },
                    false => 0,
                };
                let word = |i: u32| half(2 * i) | half(2 * i + 1) << 16;
                [word(0), word(1), word(2), word(3)]
            }
        }
    };
}

half!(F16, mma_f16);
half!(Bf16, mma_bf16);

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn multiply_add(
        mut c: Accumulators,
        queries: u32,
        documents: u32,
        lane: u32,
    ) -> Accumulators {
        let (row, token) = (lane / 4, 2 * (lane % 4));
        let mut chunk = 0;
        while chunk < 8 {
            // SAFETY: the caller's promise; addresses stay within the slabs.
            unsafe {
                let top = load_shared_f32x4(queries + chunk_offset(row, chunk));
                let bottom = load_shared_f32x4(queries + chunk_offset(row + 8, chunk));
                unroll!(I in 0..16 => {
                    if 4 * I < N_ACCUMULATORS {
                        const C: usize = 4 * I % N_ACCUMULATORS;
                        let token = 8 * I as u32 + token;
                        let left = load_shared_f32x4(documents + chunk_offset(token, chunk));
                        let right = load_shared_f32x4(documents + chunk_offset(token + 1, chunk));
                        c[C] = dot(top, left, c[C]);
                        c[C + 1] = dot(top, right, c[C + 1]);
                        c[C + 2] = dot(bottom, left, c[C + 2]);
                        c[C + 3] = dot(bottom, right, c[C + 3]);
                    }
                });
            }
            chunk += 1;
        }
        c
    }

    #[inline(always)]
    unsafe fn load_chunk(address: u64, n_bytes: u32) -> [u32; 4] {
        let word = |i: u32| match 4 * i < n_bytes {
            // SAFETY: the caller's promise.
            true => unsafe { load_u32(address + 4 * u64::from(i)) },
            false => 0,
        };
        [word(0), word(1), word(2), word(3)]
    }
}

/// `c + ⟨a, b⟩`, in the order of the elements.
#[inline(always)]
fn dot(a: [f32; 4], b: [f32; 4], c: f32) -> f32 {
    let c = fma(a[0], b[0], c);
    let c = fma(a[1], b[1], c);
    let c = fma(a[2], b[2], c);
    fma(a[3], b[3], c)
}
