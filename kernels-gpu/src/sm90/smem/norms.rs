//! r of a row of a tile in shared memory.
//!
//! A lane takes a whole row, of which no two of eight lanes read from the same banks. It adds
//! squares in the order of `maxsim_row_norms`: those of 16 bytes one after the other, then chunks
//! of 16 bytes that are eight apart, four, two and one. So r has the same bits whichever kernel
//! finds it.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::params::SQUARE_MIN;
use crate::primitives::row_scales::SMALL;
use crate::primitives::row_vector::{LANE_ELEMENTS, VectorElement};
use crate::primitives::unroll::unroll;
use crate::ptx::element::{Bf16, F16};
use crate::ptx::math::{fma, max_nan, sqrt};
use crate::ptx::shared::{load_shared_u32, load_shared_u32x4};
use crate::ptx::wgmma::{Operands, WgmmaElement};

/// Warps that find r of a tile's rows.
pub(in crate::sm90) const NORM_WARPS: u32 = 2;

/// r of row `row` of a tile of two slabs in shared memory, whose rows have `dim` elements and zeros
/// behind them.
///
/// # Safety
/// The slabs must be there, with 128-byte swizzle.
#[inline(always)]
pub(in crate::sm90) unsafe fn row_norm<E: WgmmaElement>(
    slabs: [u32; 2],
    row: u32,
    dim: u32,
) -> f32 {
    let [low, high] = slabs.map(|slab| slab + row * SLAB_BYTES as u32);
    let swizzle = row % 8 * 16;
    let (mut even, mut sum) = (0.0, 0.0);
    // SAFETY: the caller's promise.
    unsafe {
        // A loop: there are registers for some chunks at a time.
        let mut i = 0;
        while i < 4 {
            // Chunks 0, 2, 1 and 3, each with that four further on.
            let at = (i % 2 * 32 + i / 2 * 16) ^ swizzle;
            let four = square::<E>(load_shared_u32x4(low + at))
                + square::<E>(load_shared_u32x4(high + at));
            let at = at ^ 64;
            let four = four
                + (square::<E>(load_shared_u32x4(low + at))
                    + square::<E>(load_shared_u32x4(high + at)));
            sum = if i % 2 == 0 { four } else { sum + four };
            even = if i == 1 { sum } else { even };
            i += 1;
        }
        let sum = even + sum;
        match matches!(E::OPERANDS, Operands::Bf16) && sum == f32::INFINITY {
            true => SMALL / sqrt(small_square::<E>([low, high], swizzle, dim)),
            false => 1.0 / sqrt(max_nan(sum, SQUARE_MIN)),
        }
    }
}

/// The elements of 16 bytes.
#[inline(always)]
fn widen<E: WgmmaElement>(chunk: [u32; 4]) -> [f32; LANE_ELEMENTS] {
    match E::OPERANDS {
        Operands::Bf16 => <Bf16 as VectorElement>::widen(chunk),
        _ => <F16 as VectorElement>::widen(chunk),
    }
}

/// Sum of the squares of the elements of 16 bytes.
#[inline(always)]
fn square<E: WgmmaElement>(chunk: [u32; 4]) -> f32 {
    let values = widen::<E>(chunk);
    let mut sum = 0.0;
    unroll!(I in 0..8 => {
        sum = fma(values[I], values[I], sum);
    });
    sum
}

/// Sum of the squares of a row's elements times [`SMALL`], in the order in which `maxsim_row_norms`
/// adds these: as many lanes as the row has chunks of 16 bytes take every so many elements, and
/// exchange their sums. Here they come in the order of reversed bits, so that neighbours are added.
///
/// # Safety
/// As [`row_norm`]; the row must start at the addresses.
#[inline(always)]
unsafe fn small_square<E: WgmmaElement>(row: [u32; 2], swizzle: u32, dim: u32) -> f32 {
    let n_lanes_log2 = (dim.div_ceil(LANE_ELEMENTS as u32) - 1).leading_zeros();
    let n_lanes = 1 << (32 - n_lanes_log2);
    let (mut pairs, mut sum) = ([0.0; 4], 0.0);
    let mut i: u32 = 0;
    while i < n_lanes {
        sum = 0.0;
        let mut element = (i.reverse_bits() >> 1) >> (n_lanes_log2 - 1);
        while element < 128 {
            let half = if element < 64 { row[0] } else { row[1] };
            let place = half + ((element % 64 / 8 * 16) ^ swizzle) + element % 8 / 2 * 4;
            // SAFETY: the caller's promise.
            let word = unsafe { load_shared_u32(place) };
            let [even, odd, ..] = widen::<E>([word, 0, 0, 0]);
            let x = SMALL * if element & 1 == 0 { even } else { odd };
            sum = fma(x, x, sum);
            element += n_lanes;
        }
        let mut is_odd = true;
        unroll!(BIT in 0..4 => {
            let before = pairs[BIT];
            pairs[BIT] = if is_odd && i & 1 << BIT == 0 { sum } else { before };
            is_odd &= i & 1 << BIT != 0;
            sum = if is_odd { before + sum } else { sum };
        });
        i += 1;
    }
    sum
}
