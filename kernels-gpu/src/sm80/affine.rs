//! INT8 affine documents, u8 codes with a scale and a minimum each: of INT8 queries, and of f16 and
//! bf16 ones.
//!
//! ```text
//! ⟨q, c · scale + min⟩ = ⟨q, c⟩ · scale + Σ q · min   see crate::abi::quantize::affine_similarity
//! ```
//!
//! Codes of one byte are exact in f16 and bf16, so that codes that meet elements are widened
//! between memory and shared memory and multiplied as they are. Σ q of a thread's rows stays in
//! registers while their tile does.
//!
//! Known loss: a stage of codes passes through registers, and its threads wait for it.

use crate::abi::params::ForwardParams;
use crate::abi::quantize::affine_similarity;
use crate::primitives::row_maxima::{RowBest, row_sums};
use crate::primitives::row_scales::{Normalized, Normalizer, RowScales};
use crate::primitives::row_vector;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::group;
use crate::ptx::convert::{narrow_f16, widen_f16};
pub use crate::ptx::element::{AffineBf16, AffineF16};
use crate::ptx::math::permute;
use crate::ptx::mma::{mma_bf16, mma_f16};
use crate::sm80::element::{Element, SlabElement, Slabs, Stepped, multiply_unrolled, stepped};
use crate::sm80::pipeline::load_codes;
use core::marker::PhantomData;

macro_rules! widened {
    ($name:ident, $mma:ident, $narrow:expr) => {
        stepped!($name, $mma);

        impl SlabElement for $name {
            const WIDENS: bool = true;

            #[inline(always)]
            unsafe fn multiply_slab<const N: usize>(
                c: &mut [[f32; N]; 4],
                fragments: usize,
                slabs: Slabs,
            ) {
                // SAFETY: the caller's promise.
                unsafe { multiply_unrolled::<Self, N>(c, fragments, slabs) }
            }

            #[inline(always)]
            unsafe fn load_stored(
                address: u64,
                offset: u32,
                n_bytes: u32,
                is_document: bool,
            ) -> [u32; 4] {
                let bytes = Self::BYTES as u32;
                // A row of codes has as many bytes as elements.
                let code = address - u64::from(offset) + u64::from(offset / bytes);
                // SAFETY: the caller's promise.
                unsafe {
                    match is_document {
                        true => Self::widen(load_codes(code, n_bytes / bytes)),
                        false => Self::load_chunk(address, n_bytes),
                    }
                }
            }

            #[inline(always)]
            fn widen([low, high]: [u32; 2]) -> [u32; 4] {
                let narrow: fn(f32, f32) -> u32 = $narrow;
                let two = |word: u32, i: u32| narrow(number(word, i), number(word, i + 1));
                [two(low, 0), two(low, 2), two(high, 0), two(high, 2)]
            }
        }
    };
}

widened!(AffineF16, mma_f16, narrow_f16);
// Eight bits are all that bf16 has.
widened!(AffineBf16, mma_bf16, |low, high| permute(low.to_bits(), high.to_bits(), 0x7632));

/// Byte `i` of a word, as the last bits of 2²³, which is then subtracted: conversions of bytes are
/// slow.
#[inline(always)]
fn number(word: u32, i: u32) -> f32 {
    f32::from_bits(permute(word, 0x4B00_0000, 0x7440 | i)) - 8_388_608.0
}

/// Scales and minima of columns, where queries are `T`.
#[derive(Clone, Copy)]
pub struct Affine<T> {
    scales: Normalized<false>,
    /// Σ q of the thread's two rows of each fragment.
    sums: [[f32; 2]; 4],
    queries: PhantomData<T>,
}

impl<T> Affine<T> {
    /// Starts without query rows.
    #[inline(always)]
    pub fn new(row_scales: RowScales) -> Affine<T> {
        // SAFETY: all-zero bytes are floats.
        let sums = unsafe { core::mem::zeroed() };
        Affine { scales: Normalized::new(row_scales), sums, queries: PhantomData }
    }
}

impl<T: row_vector::VectorElement + Copy> Normalizer for Affine<T> {
    type Column = [f32; 2];

    #[inline(always)]
    unsafe fn take_rows(
        &mut self,
        params: &ForwardParams,
        fragments: usize,
        first: u32,
        lane: u32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(F in 0..4 => {
                if F < fragments {
                    let group = group(params, first + F as u32);
                    self.sums[F] = row_sums::<T>(params, group, params.aligned != 0, lane);
                }
            });
            // Elements have no scale.
            if self.row_scales().has_queries() {
                self.scales.take_rows(params, fragments, first, lane);
            }
        }
    }

    #[inline(always)]
    fn rows(&self, rows: &mut [RowBest; 2]) {
        self.scales.rows(rows);
    }

    #[inline(always)]
    fn row_scales(&self) -> RowScales {
        self.scales.row_scales()
    }

    /// Scale and minimum are the halves of a column's word, the scale first.
    #[inline(always)]
    fn column(word: f32) -> [f32; 2] {
        widen_f16(word.to_bits())
    }

    #[inline(always)]
    fn similarity(&self, sum: f32, fragment: usize, row: usize, [scale, min]: [f32; 2]) -> f32 {
        // Never -0, as for rows that are normalised.
        affine_similarity(sum, scale, self.sums[fragment][row], min) + 0.0
    }
}
