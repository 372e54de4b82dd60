//! Whole numbers on 64-bit ARM: dot products of bytes, and products of small matrices of them.
//!
//! Stable Rust has no intrinsics for either, so each is one instruction of `asm!`. Values that
//! stand for them ([`Dots`], [`Squares`]) are made by kernels alone, which ask whether the CPU has
//! them. All else is what every CPU of the architecture has.
#![allow(unsafe_code)]

use core::arch::aarch64::{
    int32x2_t, int32x4_t, vaddq_s32, vcombine_s32, vdup_n_s32, vdupq_n_s32, vget_high_s32,
    vget_low_s32, vld1_s32, vld1q_s32, vset_lane_s32, vst1q_s32, vzip1q_s32, vzip2q_s32,
};
use core::arch::asm;

use super::multiply::{Lanes, multiply};
use super::table::ABSENT;
use super::{InstructionSet, Plus, Tile};

/// One instruction that adds products of bytes of `rows` and `columns` to `sums`, of a CPU's
/// extension.
macro_rules! instruction {
    ($extension:literal, $name:literal, $sums:ident, $rows:ident, $columns:ident) => {
        asm!(
            concat!(".arch_extension ", $extension),
            concat!($name, " {sums:v}.4s, {rows:v}.16b, {columns:v}.16b"),
            sums = inout(vreg) $sums,
            rows = in(vreg) $rows,
            columns = in(vreg) $columns,
            options(pure, nomem, nostack, preserves_flags),
        )
    };
}

/// Registers of four groups of bytes, on a CPU with the extension dotprod.
#[derive(Clone, Copy)]
struct Dots(());

// SAFETY: registers are any bits.
unsafe impl Lanes for Dots {
    type Register = int32x4_t;

    #[inline(always)]
    fn splat(self, group: u32) -> int32x4_t {
        // SAFETY: every CPU of the architecture has it.
        unsafe { vdupq_n_s32(group as i32) }
    }

    #[inline(always)]
    fn multiply_add(self, columns: int32x4_t, row: int32x4_t, mut sums: int32x4_t) -> int32x4_t {
        // SAFETY: who made `self` has asked for the instruction, which touches registers alone.
        unsafe { instruction!("dotprod", "sdot", sums, row, columns) };
        sums
    }

    #[inline(always)]
    fn add(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: every CPU of the architecture has it.
        unsafe { vaddq_s32(a, b) }
    }
}

/// Four bytes with a sign of both sides.
pub(super) fn dots<const V: usize, const R: usize>(tile: Tile<'_>) {
    assert!(InstructionSet::DotProd.is_available(), "{ABSENT}");
    // SAFETY: only what `Kernel::multiply` has checked gets here.
    unsafe { multiply::<_, V, R>(Dots(()), tile) }
}

/// Two rows of eight bytes against two columns of eight, on a CPU with the extension i8mm.
///
/// A register of rows is two groups of one and two of the next; a register of products is what the
/// first has with both columns, and then the second.
trait Squares: Copy {
    fn multiply_add(self, columns: int32x4_t, rows: int32x4_t, sums: int32x4_t) -> int32x4_t;
}

/// A kernel of an instruction of the extension.
macro_rules! kernel {
    ($(#[$doc:meta])* $kernel:ident, $squares:ident, $name:literal) => {
        #[derive(Clone, Copy)]
        struct $squares(());

        impl Squares for $squares {
            #[inline(always)]
            fn multiply_add(
                self,
                columns: int32x4_t,
                rows: int32x4_t,
                mut sums: int32x4_t,
            ) -> int32x4_t {
                // SAFETY: who made `self` has asked for the instruction, which touches registers
                // alone.
                unsafe { instruction!("i8mm", $name, sums, rows, columns) };
                sums
            }
        }

        $(#[$doc])*
        pub(super) fn $kernel(tile: Tile<'_>) {
            assert!(InstructionSet::I8mm.is_available(), "{ABSENT}");
            // SAFETY: only what `Kernel::multiply` has checked gets here.
            unsafe { multiply_squares($squares(()), tile) }
        }
    };
}

kernel!(
    /// Bytes with a sign of both sides.
    signed_squares,
    SignedSquares,
    "smmla"
);
kernel!(
    /// Bytes without a sign of rows, with one of panels.
    mixed_squares,
    MixedSquares,
    "usmmla"
);

/// Pairs of rows of a block, and columns: 16 of 32 registers have products.
const PAIRS: usize = 4;
const COLUMNS: usize = 8;

/// Multiplies a tile, four pairs of rows (or one) and eight columns at a time.
///
/// # Safety
/// The lengths of the tile's slices agree as [`Kernel::multiply`](super::Kernel::multiply) checks.
unsafe fn multiply_squares<S: Squares>(squares: S, mut tile: Tile<'_>) {
    let n_rows = tile.rows.len() / tile.groups;
    for column in (0..tile.width).step_by(COLUMNS) {
        let mut first = 0;
        while first < n_rows {
            // SAFETY: as the caller promises; there is a row `first` and a column `column`, and
            // widths are multiples of 16.
            unsafe {
                if n_rows - first > 2 {
                    block::<S, PAIRS>(squares, &mut tile, column, first);
                    first += 2 * PAIRS;
                } else {
                    block::<S, 1>(squares, &mut tile, column, first);
                    first += 2;
                }
            }
        }
    }
}

/// `P` pairs of rows from `first` on against [`COLUMNS`] columns. In place of rows that the tile
/// does not have, the last one is read, and nothing stored.
///
/// # Safety
/// As [`multiply_squares`]'s; there are a row `first` and the columns.
#[inline(always)]
unsafe fn block<S: Squares, const P: usize>(
    squares: S,
    tile: &mut Tile<'_>,
    column: usize,
    first: usize,
) {
    let Tile { width, groups, ref block, plus, .. } = *tile;
    let n_rows = tile.rows.len() / groups;
    // SAFETY: every CPU of the architecture has it.
    let zero = unsafe { vdupq_n_s32(0) };
    let mut sums = [[zero; COLUMNS / 2]; P];
    let row = |i: usize| (first + i).min(n_rows - 1);
    let rows: [[&[u32]; 2]; P] = std::array::from_fn(|p| {
        [2 * p, 2 * p + 1].map(|i| &tile.rows[row(i) * groups..][..groups])
    });
    let mut k = block.start;
    while k < block.end {
        let is_pair = k + 1 < block.end;
        // SAFETY: lines of the panel and rows have these groups: two from `k` on, or the last one.
        unsafe {
            let line = tile.panel.as_ptr().add(k * width + column).cast::<i32>();
            let next = line.wrapping_add(width);
            let [mut low, mut high] = [zero; 2];
            if is_pair {
                (low, high) = (vld1q_s32(next), vld1q_s32(next.add(4)));
            }
            let (a, b) = (vld1q_s32(line), vld1q_s32(line.add(4)));
            let columns =
                [vzip1q_s32(a, low), vzip2q_s32(a, low), vzip1q_s32(b, high), vzip2q_s32(b, high)];
            for (sums, rows) in sums.iter_mut().zip(&rows) {
                let [one, other] = [pair(rows[0], k, is_pair), pair(rows[1], k, is_pair)];
                let rows = vcombine_s32(one, other);
                for (sum, columns) in sums.iter_mut().zip(columns) {
                    *sum = squares.multiply_add(columns, rows, *sum);
                }
            }
        }
        k += 2;
    }
    for (i, sums) in (0..2 * P).map(|i| (i, &sums[i / 2])).take(n_rows - first) {
        for (v, sums) in sums.chunks_exact(2).enumerate() {
            let column = column + 4 * v;
            // SAFETY: products have these rows, and they and numbers for columns these columns;
            // every CPU of the architecture has the rest.
            unsafe {
                let mut sum = match i % 2 {
                    0 => vcombine_s32(vget_low_s32(sums[0]), vget_low_s32(sums[1])),
                    _ => vcombine_s32(vget_high_s32(sums[0]), vget_high_s32(sums[1])),
                };
                let at = tile.products.as_mut_ptr().add((first + i) * width + column).cast();
                match plus {
                    Plus::Nothing => {}
                    Plus::Columns(plus) => {
                        sum = vaddq_s32(vld1q_s32(plus.as_ptr().add(column).cast()), sum);
                    }
                    Plus::Products => sum = vaddq_s32(vld1q_s32(at), sum),
                }
                vst1q_s32(at, sum);
            }
        }
    }
}

/// Two groups of a row from `k` on; or one and zeros.
///
/// # Safety
/// The row has them.
#[inline(always)]
unsafe fn pair(row: &[u32], k: usize, is_pair: bool) -> int32x2_t {
    // SAFETY: as the caller promises.
    unsafe {
        let at = row.as_ptr().add(k).cast::<i32>();
        if is_pair { vld1_s32(at) } else { vset_lane_s32::<0>(*at, vdup_n_s32(0)) }
    }
}
