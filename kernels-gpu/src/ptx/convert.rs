//! Conversions between f32 and half-precision numbers.

use core::arch::asm;

/// Both halves of a word as f32, the low one first.
#[inline(always)]
pub fn widen_f16(pair: u32) -> [f32; 2] {
    let (low, high);
    // SAFETY: registers only.
    unsafe {
        asm!(
            "{{",
            ".reg .b16 l, h;",
            "mov.b32 {{l, h}}, {2};",
            "cvt.f32.f16 {0}, l;",
            "cvt.f32.f16 {1}, h;",
            "}}",
            out(reg32) low,
            out(reg32) high,
            in(reg32) pair,
            options(pure, nomem, nostack),
        );
    }
    [low, high]
}

/// Two f32 rounded to f16, the first one in the low half.
#[inline(always)]
pub fn narrow_f16(low: f32, high: f32) -> u32 {
    let pair;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "cvt.rn.f16x2.f32 {0}, {2}, {1};",
            out(reg32) pair,
            in(reg32) low,
            in(reg32) high,
            options(pure, nomem, nostack),
        );
    }
    pair
}

/// Two f32 rounded to bf16, the first one in the low half.
#[inline(always)]
pub fn narrow_bf16(low: f32, high: f32) -> u32 {
    let pair;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "cvt.rn.bf16x2.f32 {0}, {2}, {1};",
            out(reg32) pair,
            in(reg32) low,
            in(reg32) high,
            options(pure, nomem, nostack),
        );
    }
    pair
}

/// Two f32 cut off to f16, the first one in the low half: 0 for what is below 0, the largest f16
/// for what is above it.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn cut_f16_from_zero(low: f32, high: f32) -> u32 {
    let pair;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "cvt.rz.relu.f16x2.f32 {0}, {2}, {1};",
            out(reg32) pair,
            in(reg32) low,
            in(reg32) high,
            options(pure, nomem, nostack),
        );
    }
    pair
}
