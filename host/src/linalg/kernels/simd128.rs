//! WebAssembly's registers of 128 bits, for what a compiler would not make of plain Rust.
#![allow(unsafe_code)]

use core::arch::wasm32::{i32x4_add, i32x4_dot_i16x8, u32x4_splat, v128};

use super::Tile;
use super::multiply::{Lanes, multiply};

/// Registers of four pairs.
#[derive(Clone, Copy)]
struct Words;

// SAFETY: registers are any bits.
unsafe impl Lanes for Words {
    type Register = v128;

    #[inline(always)]
    fn splat(self, group: u32) -> v128 {
        u32x4_splat(group)
    }

    #[inline(always)]
    fn multiply_add(self, columns: v128, row: v128, sums: v128) -> v128 {
        self.add(sums, i32x4_dot_i16x8(columns, row))
    }

    #[inline(always)]
    fn add(self, a: v128, b: v128) -> v128 {
        i32x4_add(a, b)
    }
}

/// Pairs of 16 bits.
pub(super) fn words<const V: usize, const R: usize>(tile: Tile<'_>) {
    // SAFETY: only what `Kernel::multiply` has checked gets here.
    unsafe { multiply::<_, V, R>(Words, tile) }
}

/// f32 by multiply-adds that the engine may round once or twice: WebAssembly's relaxed registers.
#[cfg(target_feature = "relaxed-simd")]
#[derive(Clone, Copy)]
struct RelaxedFloats;

#[cfg(target_feature = "relaxed-simd")]
// SAFETY: registers are any bits.
unsafe impl Lanes for RelaxedFloats {
    type Register = v128;

    #[inline(always)]
    fn splat(self, group: u32) -> v128 {
        u32x4_splat(group)
    }

    #[inline(always)]
    fn multiply_add(self, columns: v128, row: v128, sums: v128) -> v128 {
        core::arch::wasm32::f32x4_relaxed_madd(columns, row, sums)
    }

    #[inline(always)]
    fn add(self, a: v128, b: v128) -> v128 {
        core::arch::wasm32::f32x4_add(a, b)
    }
}

/// f32 in relaxed registers.
#[cfg(target_feature = "relaxed-simd")]
pub(super) fn relaxed_floats<const V: usize, const R: usize>(tile: Tile<'_>) {
    // SAFETY: only what `Kernel::multiply` has checked gets here.
    unsafe { multiply::<_, V, R>(RelaxedFloats, tile) }
}
