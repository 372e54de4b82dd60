//! The loop of all kernels: rows against columns, a tile of products in registers.
//!
//! It reads through pointers: with slices, the checks and the many bases of rows take more
//! instructions than the arithmetic. [`Kernel::multiply`](super::Kernel::multiply) has compared all
//! lengths before.
#![allow(unsafe_code)]

use super::{Plus, Tile};
use crate::runtime::fetch::CACHE_LINE;

/// Registers of 32-bit lanes, as an instruction set has them.
///
/// # Safety
/// Every bit pattern is a register: registers are read from and written to memory as they are.
pub(super) unsafe trait Lanes: Copy {
    type Register: Copy;

    /// Lanes of a register.
    const LANES: usize = size_of::<Self::Register>() / size_of::<u32>();

    /// Groups that are multiplied between two looks at what is to be fetched.
    const STEPS: usize = 2;

    /// A register with one group in all lanes.
    fn splat(self, group: u32) -> Self::Register;

    /// Adds products of the elements of columns' groups with those of a row's group.
    fn multiply_add(
        self,
        columns: Self::Register,
        row: Self::Register,
        sums: Self::Register,
    ) -> Self::Register;

    /// Adds sums.
    fn add(self, a: Self::Register, b: Self::Register) -> Self::Register;
}

/// Multiplies a tile, `V` registers of columns and `R` rows at a time.
///
/// # Safety
/// The lengths of the tile's slices agree as [`Kernel::multiply`](super::Kernel::multiply) checks,
/// and its width is a multiple of `LANES`.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, const V: usize, const R: usize>(
    lanes: L,
    mut tile: Tile<'_>,
) {
    let n_rows = tile.rows.len() / tile.groups;
    let n_strips = tile.width.div_ceil(V * L::LANES);
    let mut ahead = Ahead::new(tile.ahead, n_strips * n_rows.div_ceil(R));
    let mut column = 0;
    while column < tile.width {
        // SAFETY: as the caller promises; the columns are within the width.
        unsafe {
            if column + V * L::LANES <= tile.width {
                strip::<L, V, R>(lanes, &mut tile, column, &mut ahead);
                column += V * L::LANES;
            } else {
                strip::<L, 1, R>(lanes, &mut tile, column, &mut ahead);
                column += L::LANES;
            }
        }
    }
}

/// What is fetched while blocks of rows are multiplied, a part with each.
struct Ahead<'a> {
    rest: &'a [u8],
    part: usize,
}

impl<'a> Ahead<'a> {
    fn new(rest: &'a [u8], n_blocks: usize) -> Ahead<'a> {
        let part = rest.len().div_ceil(n_blocks.max(1));
        Ahead { rest, part: part.next_multiple_of(CACHE_LINE) }
    }

    #[inline(always)]
    fn next(&mut self) -> &'a [u8] {
        let (part, rest) = self.rest.split_at(self.part.min(self.rest.len()));
        self.rest = rest;
        part
    }
}

/// All rows against `V` registers of columns from `column` on.
///
/// # Safety
/// As [`multiply`]'s, and those columns are within the width.
#[inline(always)]
unsafe fn strip<L: Lanes, const V: usize, const R: usize>(
    lanes: L,
    tile: &mut Tile<'_>,
    column: usize,
    ahead: &mut Ahead<'_>,
) {
    let n_rows = tile.rows.len() / tile.groups;
    let mut row = 0;
    while row < n_rows {
        // SAFETY: blocks end with the last row; one that would pass it begins earlier, and does
        // not store the rows before it once more.
        unsafe {
            if n_rows < R {
                block::<L, V, 1>(lanes, tile, column, row, 0, ahead.next());
                row += 1;
            } else {
                let first = row.min(n_rows - R);
                block::<L, V, R>(lanes, tile, column, first, row - first, ahead.next());
                row = first + R;
            }
        }
    }
}

/// `R` rows from `first` on against `V` registers of columns; the products of the rows from `skip`
/// on are stored.
///
/// # Safety
/// As [`strip`]'s, and there are these rows.
#[inline(always)]
unsafe fn block<L: Lanes, const V: usize, const R: usize>(
    lanes: L,
    tile: &mut Tile<'_>,
    column: usize,
    first: usize,
    skip: usize,
    ahead: &[u8],
) {
    let Tile { width, groups, ref block, plus, .. } = *tile;
    // SAFETY: a panel has `groups` lines of `width` groups, of which these are from the block's
    // first one and `column` on; rows have `groups` each, and products `width`.
    unsafe {
        let panel = tile.panel.as_ptr().add(block.start * width + column);
        let rows = tile.rows.as_ptr().add(first * groups + block.start);
        let sums = sums::<L, V, R>(lanes, (panel, width), (rows, groups), block.len(), ahead);
        let products = tile.products.as_mut_ptr().add(first * width + column);
        for (r, sums) in sums.into_iter().enumerate().skip(skip) {
            for (v, sum) in sums.into_iter().enumerate() {
                let at = products.add(r * width + v * L::LANES).cast::<L::Register>();
                let sum = match plus {
                    Plus::Nothing => sum,
                    Plus::Columns(plus) => {
                        let plus = plus.as_ptr().add(column + v * L::LANES);
                        lanes.add(plus.cast::<L::Register>().read_unaligned(), sum)
                    }
                    Plus::Products => lanes.add(at.read_unaligned(), sum),
                };
                at.write_unaligned(sum);
            }
        }
    }
}

/// The sums of `R` rows and `V` registers of columns, over `depth` groups.
///
/// # Safety
/// Of the panel, `depth` lines that are so many groups apart have `V` registers each; the rows,
/// which are so many groups apart, have `depth` groups.
#[inline(always)]
unsafe fn sums<L: Lanes, const V: usize, const R: usize>(
    lanes: L,
    (mut panel, width): (*const u32, usize),
    (mut rows, stride): (*const u32, usize),
    depth: usize,
    ahead: &[u8],
) -> [[L::Register; V]; R] {
    let mut sums = [[lanes.splat(0); V]; R];
    let mut line = ahead.as_ptr();
    let mut n_lines = ahead.len().div_ceil(CACHE_LINE);
    // SAFETY: each step reads one line of the panel and one group of each row, `depth` times, and
    // pointers advance by what was read.
    unsafe {
        for _ in 0..depth / L::STEPS {
            // One line in two steps: seldom enough that fetching does not hold up multiplying.
            if n_lines > 0 {
                for _ in 0..L::STEPS / 2 {
                    fetch(line);
                    line = line.wrapping_add(CACHE_LINE);
                }
                n_lines = n_lines.saturating_sub(L::STEPS / 2);
            }
            for i in 0..L::STEPS {
                step(lanes, panel.add(i * width), (rows.add(i), stride), &mut sums);
            }
            panel = panel.wrapping_add(L::STEPS * width);
            rows = rows.wrapping_add(L::STEPS);
        }
        for _ in 0..depth % L::STEPS {
            step(lanes, panel, (rows, stride), &mut sums);
            panel = panel.wrapping_add(width);
            rows = rows.wrapping_add(1);
        }
    }
    sums
}

/// One group of each row against `V` registers of columns. A function with plain loops: what is not
/// inlined is compiled without the instructions, which are calls then.
///
/// # Safety
/// The panel has `V` registers here, and each row a group.
#[inline(always)]
unsafe fn step<L: Lanes, const V: usize, const R: usize>(
    lanes: L,
    panel: *const u32,
    (rows, stride): (*const u32, usize),
    sums: &mut [[L::Register; V]; R],
) {
    let mut columns = [lanes.splat(0); V];
    for (v, columns) in columns.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        *columns = unsafe { panel.add(v * L::LANES).cast::<L::Register>().read_unaligned() };
    }
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        let row = lanes.splat(unsafe { *rows.add(r * stride) });
        for v in 0..V {
            sums[v] = lanes.multiply_add(columns[v], row, sums[v]);
        }
    }
}

/// Has a line of memory brought into the nearest cache.
#[inline(always)]
fn fetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching reads nothing, whatever the address; the instruction is part of SSE,
    // which every x86-64 has.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
