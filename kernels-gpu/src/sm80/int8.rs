//! 8-bit operands: INT8 codes as they are, e4m3 codes as f16 ([`crate::abi::e4m3`]).
//!
//! The bytes of a row lie in shared memory, and `ldmatrix` loads them, as those of f16 do: a slab
//! has 128 elements. Scales are row scales ([`crate::primitives::row_scales`]): the column's
//! multiplies before the maximum, the row's in the epilogue. Accumulators of INT8 hold the bits of
//! whole numbers, those of e4m3 sums of [`e4m3::halves`]' products.
//!
//! Known loss: every warp widens the e4m3 codes of all tokens, ten instructions for four of them.

use crate::abi::e4m3;
use crate::abi::layout::SLAB_BYTES;
pub use crate::ptx::element::{E4m3, I8, I8Affine};
use crate::ptx::mma::{mma_f16, mma_i8, mma_i8_u8};
use crate::sm80::element::{SlabElement, Slabs, Stepped, first_step, multiply_step, stepped};

// The bytes of 32 numbers lie in registers as those of 16 pairs do.
stepped!(I8, mma_i8);
stepped!(I8Affine, mma_i8_u8);

impl Stepped for E4m3 {
    #[inline(always)]
    unsafe fn multiply_add_step(c: [f32; 8], a: [u32; 4], b: [u32; 4]) -> [f32; 8] {
        let [l0, l1, l2, l3, r0, r1, r2, r3] = c;
        // The compiler widens what several products take once for all of them.
        let a = e4m3::row_fragments(a);
        let b = b.map(e4m3::halves);
        // SAFETY: the caller's promise.
        let ([l0, l1, l2, l3], [r0, r1, r2, r3]) = unsafe {
            let (l, r) =
                (mma_f16([l0, l1, l2, l3], a[0], b[0]), mma_f16([r0, r1, r2, r3], a[0], b[2]));
            (mma_f16(l, a[1], b[1]), mma_f16(r, a[1], b[3]))
        };
        [l0, l1, l2, l3, r0, r1, r2, r3]
    }
}

/// Adds the products of a slab step by step: a loop, since what overlapped loads would save is not
/// worth four times the code here.
///
/// # Safety
/// As [`SlabElement::multiply_slab`].
#[inline(always)]
unsafe fn multiply_looped<E: Stepped, const N: usize>(
    c: &mut [[f32; N]; 4],
    fragments: usize,
    slabs: Slabs,
) {
    let (queries, documents) = first_step(&slabs);
    let mut step = 0;
    while step < SLAB_BYTES as u32 {
        let addresses = (queries ^ step, documents ^ step);
        // SAFETY: the caller's promise; addresses stay within the slabs.
        unsafe {
            match slabs.n_columns > N as u32 {
                true => multiply_step::<E, N>(c, N, fragments, addresses),
                false => multiply_step::<E, N>(c, N / 2, fragments, addresses),
            }
        }
        step += 32;
    }
}

macro_rules! codes {
    ($name:ident, $number:expr) => {
        impl SlabElement for $name {
            #[inline(always)]
            unsafe fn multiply_slab<const N: usize>(
                c: &mut [[f32; N]; 4],
                fragments: usize,
                slabs: Slabs,
            ) {
                // SAFETY: the caller's promise.
                unsafe { multiply_looped::<Self, N>(c, fragments, slabs) }
            }

            #[inline(always)]
            fn number(sum: f32) -> f32 {
                let number: fn(f32) -> f32 = $number;
                number(sum)
            }
        }
    };
}

codes!(I8, |sum| sum.to_bits() as i32 as f32);
codes!(I8Affine, |sum| sum.to_bits() as i32 as f32);
codes!(E4m3, |sum| sum * e4m3::PRODUCT);
