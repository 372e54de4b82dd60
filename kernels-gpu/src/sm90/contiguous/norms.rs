//! r of rows that are normalised, found from the elements that products read anyway: rows come out
//! of memory once.
//!
//! A lane has every fourth 16-byte chunk of a row. It adds squares in the order of
//! `maxsim_row_norms`: those of a chunk one after the other, then chunks that are eight apart,
//! four, two and one. So r of a row has the same bits whichever kernel finds it.

use crate::abi::params::{Group, SQUARE_MIN};
use crate::primitives::row_scales::{RowScales, SMALL, times};
use crate::primitives::row_vector::VectorElement;
use crate::primitives::unroll::unroll;
use crate::ptx::element::{Bf16, F16, NormalizedBf16, NormalizedF16};
use crate::ptx::math::{fma, max_nan, sqrt};
use crate::ptx::mma::Half;
use crate::ptx::shared::{load_shared_u32, load_shared_u32x4};
use crate::ptx::warp::{ballot, shuffle, shuffle_xor_f32};
use crate::sm90::contiguous::Kernel;
use crate::sm90::contiguous::element::ChunkElement;
use crate::sm90::contiguous::int8::Scales;
use crate::sm90::contiguous::products::Sums;

macro_rules! normalized {
    ($($name:ident $half:ident)*) => {$(
        impl ChunkElement for $name {
            const HAS_SCALES: bool = false;
            const NORMALIZES: bool = true;
            const SQUARES_OVERFLOW: bool = <$half as VectorElement>::SQUARES_OVERFLOW;

            #[inline(always)]
            fn widen(chunk: [u32; 4]) -> [f32; 8] {
                <$half as VectorElement>::widen(chunk)
            }

            #[inline(always)]
            unsafe fn multiply_add(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
                // SAFETY: the caller's promise.
                unsafe { <$half as Half>::multiply_add(c, a, b) }
            }

            #[inline(always)]
            fn similarities(sums: Sums, scales: &Scales) -> Sums {
                scaled(sums, scales)
            }

            #[inline(always)]
            unsafe fn query_scale(_: RowScales, _: Group, _: u32) -> f32 {
                1.0
            }
        }
    )*};
}
normalized!(NormalizedF16 F16 NormalizedBf16 Bf16);

/// Sums of products times r of their tokens.
#[inline(always)]
fn scaled(mut sums: Sums, scales: &Scales) -> Sums {
    let scales = scales.widen();
    unroll!(G in 0..2 => {
        unroll!(N in 0..2 => {
            unroll!(R in 0..2 => {
                unroll!(J in 0..2 => {
                    sums[G][N][2 * R + J] = times(sums[G][N][2 * R + J], scales[N][J]);
                });
            });
        });
    });
    sums
}

/// Sums of the squares of a lane's chunks of two rows of 16, row `lane / 4` and the one eight
/// further on: those of its even chunks, and of its odd ones.
#[derive(Clone, Copy)]
pub(super) struct Squares([[f32; 2]; 2]);

impl Squares {
    pub(super) const NONE: Squares = Squares([[0.0; 2]; 2]);

    /// Takes the lane's chunk `i` of its row `n`; a row's chunks come in order.
    #[inline(always)]
    pub(super) fn add<E: ChunkElement>(&mut self, n: usize, i: usize, chunk: [u32; 4]) {
        let values = E::widen(chunk);
        let mut sum = 0.0;
        unroll!(J in 0..8 => {
            sum = fma(values[J], values[J], sum);
        });
        let before = self.0[n][i % 2];
        self.0[n][i % 2] = if i < 2 { sum } else { before + sum };
    }

    /// r of one of the 16 rows, which start at `rows` in shared memory: of row `lane / 4`, in odd
    /// lanes of the one eight further on.
    ///
    /// # Safety
    /// One whole warp, whose lanes have taken all chunks of these rows.
    #[inline(always)]
    unsafe fn norm<E: ChunkElement>(&self, rows: u32, lane: u32) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let [a, b] = self.0.map(|[even, odd]| even + odd);
            let (a, b) = (a + shuffle_xor_f32::<2>(a), b + shuffle_xor_f32::<2>(b));
            let (own, other) = if lane & 1 != 0 { (b, a) } else { (a, b) };
            let sum = own + shuffle_xor_f32::<1>(other);
            let mut norm = 1.0 / sqrt(max_nan(sum, SQUARE_MIN));
            if E::SQUARES_OVERFLOW && ballot((sum == f32::INFINITY) as u32) != 0 {
                let small = small_square::<E>(rows, lane);
                norm = if sum == f32::INFINITY { SMALL / sqrt(small) } else { norm };
            }
            norm
        }
    }

    /// r of the tokens whose sums of products a lane has: see [`Squares::norm`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn columns<E: ChunkElement>(&self, rows: u32, lane: u32) -> Scales {
        // SAFETY: the caller's promise.
        unsafe {
            let norm = self.norm::<E>(rows, lane).to_bits();
            let mut columns = [[0.0; 2]; 2];
            unroll!(N in 0..2 => {
                unroll!(J in 0..2 => {
                    let row = 2 * (lane % 4) + J as u32;
                    columns[N][J] = f32::from_bits(shuffle(norm, 4 * row + N as u32));
                });
            });
            Scales::of(columns)
        }
    }
}

/// r of the query row that a lane ends with ([`crate::sm90::contiguous::lane_row`]), of the tile at
/// `queries` in shared memory.
///
/// # Safety
/// One whole warp; the tile must be there. Rows behind the query's have any r.
#[inline(always)]
pub(super) unsafe fn query_norm<K: Kernel>(queries: u32, lane: u32) -> f32 {
    let mut norms = [0.0; 2];
    unroll!(G in 0..2 => {
        let rows = queries + 16 * G as u32 * K::BYTES;
        let own = rows + lane / 4 * K::BYTES + lane % 4 * 16;
        let mut squares = Squares::NONE;
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(I in 0..4 => {
                unroll!(N in 0..2 => {
                    let place = own + 8 * N as u32 * K::BYTES + 64 * I as u32;
                    squares.add::<K::Element>(N, I, load_shared_u32x4(place));
                });
            });
            norms[G] = squares.norm::<K::Element>(rows, lane);
        }
    });
    if (lane / 2).is_multiple_of(2) { norms[0] } else { norms[1] }
}

/// The squares of the elements, times [`SMALL`], of the row that [`Squares::norm`] gives a lane; in
/// the order in which `maxsim_row_norms` adds these: a row's lanes have every sixteenth element.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn small_square<E: ChunkElement>(rows: u32, lane: u32) -> f32 {
    const ROW_BYTES: u32 = 256;
    let own = lane / 4 + 8 * (lane % 2);
    let (mut found, mut row) = (0.0, 0);
    // SAFETY: the caller's promise.
    unsafe {
        while row < 16 {
            let mut place = rows + (row + lane / 16) * ROW_BYTES + lane % 16 / 2 * 4;
            let (mut sum, end) = (0.0, place + ROW_BYTES);
            while place < end {
                let [even, odd, ..] = E::widen([load_shared_u32(place), 0, 0, 0]);
                let x = SMALL * if lane.is_multiple_of(2) { even } else { odd };
                sum = fma(x, x, sum);
                place += 32;
            }
            sum += shuffle_xor_f32::<8>(sum);
            sum += shuffle_xor_f32::<4>(sum);
            sum += shuffle_xor_f32::<2>(sum);
            sum += shuffle_xor_f32::<1>(sum);
            let sum = f32::from_bits(shuffle(sum.to_bits(), 16 * (own % 2)));
            found = if own / 2 == row / 2 { sum } else { found };
            row += 2;
        }
    }
    found
}
