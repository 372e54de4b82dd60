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

/// `a`, replaced by the larger value (NaN when either is NaN) where `b` counts: elements 0 and 2
/// where bit `BIT` of `bits` is set, 1 and 3 where the next one is.
#[inline(always)]
pub fn max_nan_where<const BIT: u32>(a: [f32; 4], b: [f32; 4], bits: u32) -> [f32; 4] {
    let [mut a0, mut a1, mut a2, mut a3] = a;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "{{",
            ".reg .pred left, right;",
            ".reg .b32 t;",
            "and.b32 t, {bits}, {left_bit};",
            "setp.ne.b32 left, t, 0;",
            "and.b32 t, {bits}, {right_bit};",
            "setp.ne.b32 right, t, 0;",
            "@left max.NaN.f32 {0}, {0}, {4};",
            "@right max.NaN.f32 {1}, {1}, {5};",
            "@left max.NaN.f32 {2}, {2}, {6};",
            "@right max.NaN.f32 {3}, {3}, {7};",
            "}}",
            inout(reg32) a0,
            inout(reg32) a1,
            inout(reg32) a2,
            inout(reg32) a3,
            in(reg32) b[0],
            in(reg32) b[1],
            in(reg32) b[2],
            in(reg32) b[3],
            bits = in(reg32) bits,
            left_bit = const 1u32 << BIT,
            right_bit = const 2u32 << BIT,
            options(pure, nomem, nostack),
        );
    }
    [a0, a1, a2, a3]
}
