//! Arithmetic that Rust has no operator for.

use core::arch::asm;

/// The larger value; NaN when either is NaN.
#[inline(always)]
pub fn max_nan(a: f32, b: f32) -> f32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "max.NaN.f32 {0}, {1}, {2};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// `a * b`, of numbers below the normal ones, too, and of bits that are none.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn mul(a: f32, b: f32) -> f32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "mul.rn.f32 {0}, {1}, {2};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// `a * b + c` with one rounding.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "fma.rn.f32 {0}, {1}, {2}, {3};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) b,
            in(reg32) c,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// The square root, rounded to nearest.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "sqrt.rn.f32 {0}, {1};",
            out(reg32) result,
            in(reg32) x,
            options(pure, nomem, nostack),
        );
    }
    result
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

/// 2 to the power of `a`, within 2⁻²² of itself, and 0 below 2⁻¹²⁶. 0 for −∞.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub fn exp2(a: f32) -> f32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "ex2.approx.ftz.f32 {0}, {1};",
            out(reg32) result,
            in(reg32) a,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// The logarithm of `a` to the base 2, within 2⁻²² of itself, and of 1 where it is smaller.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub fn log2(a: f32) -> f32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "lg2.approx.f32 {0}, {1};",
            out(reg32) result,
            in(reg32) a,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// Four of the eight bytes of `a` and `b`, as the selector's lowest four nibbles say, whose topmost
/// bits are 0.
#[inline(always)]
pub fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "prmt.b32 {0}, {1}, {2}, {3};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) b,
            in(reg32) selector,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// The sums of two pairs of binary16 numbers, each rounded to nearest.
#[inline(always)]
pub fn add_f16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "add.rn.f16x2 {0}, {1}, {2};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// The sums of two pairs of bfloat16 numbers, each rounded to nearest.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub fn add_bf16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: registers only. a · 1 + b: sm_80 has no addition of its own.
    unsafe {
        asm!(
            "fma.rn.bf16x2 {0}, {1}, {2}, {3};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) 0x3F80_3F80u32,
            in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// The sums of two pairs of bfloat16 numbers, each rounded to nearest.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn add_bf16x2(a: u32, b: u32) -> u32 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "add.rn.bf16x2 {0}, {1}, {2};",
            out(reg32) result,
            in(reg32) a,
            in(reg32) b,
            options(pure, nomem, nostack),
        );
    }
    result
}
