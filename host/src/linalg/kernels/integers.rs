//! Whole numbers in pairs of 16 bits, in plain Rust.
#![allow(unsafe_code)]

use super::Tile;
use super::multiply::{Lanes, multiply};

/// Lanes that a compiler has a register for.
const N: usize = 4;

/// Registers of pairs.
#[derive(Clone, Copy)]
struct Words;

/// The two numbers of a group.
#[inline(always)]
fn pair(group: u32) -> [i32; 2] {
    [i32::from(group as i16), i32::from((group >> 16) as i16)]
}

// SAFETY: registers are arrays of numbers.
unsafe impl Lanes for Words {
    type Register = [u32; N];

    #[inline(always)]
    fn splat(self, group: u32) -> [u32; N] {
        [group; N]
    }

    #[inline(always)]
    fn multiply_add(self, columns: [u32; N], row: [u32; N], sums: [u32; N]) -> [u32; N] {
        std::array::from_fn(|i| {
            let ([a, b], [x, y]) = (pair(columns[i]), pair(row[i]));
            sums[i].wrapping_add((a * x + b * y) as u32)
        })
    }

    #[inline(always)]
    fn add(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
}

/// Without instructions that only some CPUs have.
pub(super) fn portable<const V: usize, const R: usize>(tile: Tile<'_>) {
    // SAFETY: only what `Kernel::multiply` has checked gets here.
    unsafe { multiply::<_, V, R>(Words, tile) }
}
