//! Arithmetic that Rust has no operator for.

use core::arch::asm;

/// Functions of numbers in registers: one instruction each.
macro_rules! arithmetic {
    ($(
        $(#[$meta:meta])*
        $name:ident($($x:ident: $type:ty),*) -> $result:ty = $text:literal;
    )*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub fn $name($($x: $type),*) -> $result {
            let result;
            // SAFETY: registers only.
            unsafe {
                asm!(
                    $text,
                    out(reg32) result,
                    $(in(reg32) $x,)*
                    options(pure, nomem, nostack),
                );
            }
            result
        }
    )*};
}

arithmetic! {
    /// The larger value; NaN when either is NaN.
    max_nan(a: f32, b: f32) -> f32 = "max.NaN.f32 {0}, {1}, {2};";
    /// `a * b`, of numbers below the normal ones, too, and of bits that are none.
    #[cfg(maxsim_arch = "sm_90a")]
    mul(a: f32, b: f32) -> f32 = "mul.rn.f32 {0}, {1}, {2};";
    /// `a * b + c` with one rounding.
    fma(a: f32, b: f32, c: f32) -> f32 = "fma.rn.f32 {0}, {1}, {2}, {3};";
    /// The square root, rounded to nearest.
    sqrt(x: f32) -> f32 = "sqrt.rn.f32 {0}, {1};";
    /// 2 to the power of `a`, within 2⁻²² of itself, and 0 below 2⁻¹²⁶. 0 for −∞.
    #[cfg(maxsim_arch = "sm_80")]
    exp2(a: f32) -> f32 = "ex2.approx.ftz.f32 {0}, {1};";
    /// The logarithm of `a` to the base 2, within 2⁻²² of itself, and of 1 where it is smaller.
    #[cfg(maxsim_arch = "sm_80")]
    log2(a: f32) -> f32 = "lg2.approx.f32 {0}, {1};";
    /// Four of the eight bytes of `a` and `b`, as the selector's lowest four nibbles say, whose
    /// topmost bits are 0.
    permute(a: u32, b: u32, selector: u32) -> u32 = "prmt.b32 {0}, {1}, {2}, {3};";
    /// The sums of two pairs of binary16 numbers, each rounded to nearest.
    add_f16x2(a: u32, b: u32) -> u32 = "add.rn.f16x2 {0}, {1}, {2};";
    /// The smaller of each of two pairs of whole numbers of 16 bits, from 0 on.
    #[cfg(maxsim_arch = "sm_90a")]
    min_u16x2(a: u32, b: u32) -> u32 = "min.u16x2 {0}, {1}, {2};";
    /// `a * b + c` of two bfloat16 numbers each, with one rounding.
    #[cfg(maxsim_arch = "sm_80")]
    fma_bf16x2(a: u32, b: u32, c: u32) -> u32 = "fma.rn.bf16x2 {0}, {1}, {2}, {3};";
    /// The sums of two pairs of bfloat16 numbers, each rounded to nearest.
    #[cfg(maxsim_arch = "sm_90a")]
    add_bf16x2(a: u32, b: u32) -> u32 = "add.rn.bf16x2 {0}, {1}, {2};";
}

/// `a`, and `B` more unless `skip`: one instruction under a predicate, where the assembler would
/// select the number to add.
#[inline(always)]
pub fn add_unless<const B: i32>(mut a: i32, skip: bool) -> i32 {
    // SAFETY: registers only.
    unsafe {
        asm!(
            "{{",
            ".reg .pred skip;",
            "setp.ne.u32 skip, {1}, 0;",
            "@!skip add.s32 {0}, {0}, {2};",
            "}}",
            inout(reg32) a,
            in(reg32) skip as u32,
            const B,
            options(pure, nomem, nostack),
        );
    }
    a
}

/// The sums of two pairs of bfloat16 numbers, each rounded to nearest: a · 1 + b, since sm_80 has
/// no addition of its own.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub fn add_bf16x2(a: u32, b: u32) -> u32 {
    fma_bf16x2(a, 0x3F80_3F80, b)
}
