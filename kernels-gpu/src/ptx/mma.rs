//! Warp-wide matrix loads and multiply-adds.

use crate::ptx::element::{Bf16, Element, F16};
use core::arch::asm;

/// Four 8×8 matrices of 16-bit elements: lane `l` gives the address of row `l % 8` of matrix `l /
/// 8`; register `j` of lane `l` gets elements `2 (l % 4)` and `+1` of row `l / 4` of matrix `j`.
///
/// # Safety
/// All 32 lanes must execute it together with 16-byte aligned addresses of 16 readable bytes
/// of shared memory.
#[inline(always)]
pub unsafe fn load_matrix_x4(address: u32) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            in(reg32) address,
            options(nostack),
        );
    }
    [a, b, c, d]
}

macro_rules! mma {
    ($($(#[$doc_or_cfg:meta])* $name:ident = $shape:literal $types:literal;)*) => {$(
        $(#[$doc_or_cfg])*
        ///
        /// # Safety
        /// All 32 lanes must execute it together.
        #[inline(always)]
        pub unsafe fn $name(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
            let [mut c0, mut c1, mut c2, mut c3] = c;
            // SAFETY: registers only; the caller brings the whole warp.
            unsafe {
                asm!(
                    concat!(
                        "mma.sync.aligned.", $shape, ".row.col.", $types,
                        " {{{0}, {1}, {2}, {3}}}, ",
                        "{{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};"
                    ),
                    inout(reg32) c0,
                    inout(reg32) c1,
                    inout(reg32) c2,
                    inout(reg32) c3,
                    in(reg32) a[0],
                    in(reg32) a[1],
                    in(reg32) a[2],
                    in(reg32) a[3],
                    in(reg32) b[0],
                    in(reg32) b[1],
                    options(nomem, nostack),
                );
            }
            [c0, c1, c2, c3]
        }
    )*};
}

mma! {
    /// `c + a · b` of a 16×16 and a 16×8 fragment of f16.
    mma_f16 = "m16n8k16" "f32.f16.f16.f32";
    /// `c + a · b` of a 16×16 and a 16×8 fragment of bf16.
    mma_bf16 = "m16n8k16" "f32.bf16.bf16.f32";
    /// `c + a · b` of a 16×8 and an 8×8 fragment of TF32: f32 whose lowest 13 bits are 0.
    #[cfg(maxsim_arch = "sm_80")]
    mma_tf32 = "m16n8k8" "f32.tf32.tf32.f32";
    /// `c + a · b` of a 16×32 and a 32×8 fragment of whole numbers of one byte. `c` is the bits of
    /// whole numbers, too.
    mma_i8 = "m16n8k32" "s32.s8.s8.s32";
    /// [`mma_i8`] with whole numbers from 0 on in `b`.
    #[cfg(maxsim_arch = "sm_80")]
    mma_i8_u8 = "m16n8k32" "s32.s8.u8.s32";
}

/// Elements of 16 bits that `mma.sync` multiplies.
pub trait Half: Element {
    /// `c + a · b` of a 16×16 and a 16×8 fragment.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    unsafe fn multiply_add(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4];
}

macro_rules! half {
    ($($name:ident $multiply:ident;)*) => {$(
        impl Half for $name {
            #[inline(always)]
            unsafe fn multiply_add(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
                // SAFETY: the caller's promise.
                unsafe { $multiply(c, a, b) }
            }
        }
    )*};
}

half! {
    F16 mma_f16;
    Bf16 mma_bf16;
}
