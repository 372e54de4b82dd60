//! The running maximum, in registers.
//!
//! A thread holds, of each 16-row fragment, two rows (`g = lane / 4` and `g + 8`) and in
//! every 8 columns two (`2 (lane % 4)` and the next): element `4 n + 2 r + b` of the
//! accumulators is row `g + 8 r`, column `8 n + 2 (lane % 4) + b`. The four lanes of a
//! quad share their rows. `mma.sync` and `wgmma` agree on this, so this code serves both.

use crate::params::{ForwardParams, Matrix};
use crate::ptx::math::max_nan;
use crate::ptx::warp::{ballot, shuffle_xor, shuffle_xor_f32};
use crate::work::{Work, row_is_valid, store_token, token_base};

/// Index of a query token's winner when it has none.
pub const NO_WINNER: i32 = -1;

/// Best similarity so far of the thread's two rows, and the document token that has it.
#[derive(Clone, Copy)]
pub struct Best {
    value: [f32; 2],
    winner: [i32; 2],
}

impl Best {
    /// Nothing seen yet.
    pub const NONE: Best = Best { value: [f32::NEG_INFINITY; 2], winner: [NO_WINNER; 2] };
}

/// Straight-line repetition: `$body` sees `$i` as a constant from 0 to the given 1 or 15. A
/// loop would leave register arrays in memory.
macro_rules! unroll {
    ($i:ident in 0..2 => $body:block) => {
        unroll!($i => $body; 0 1)
    };
    ($i:ident in 0..16 => $body:block) => {
        unroll!($i => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($i:ident => $body:block; $($value:literal)*) => {
        $({
            const $i: usize = $value;
            $body
        })*
    };
}
pub(crate) use unroll;

/// Which columns of a tile are valid document tokens: bit `c % 32` of word `c / 32`.
/// `row` is the matrix row of column 0, `limit` the number of columns before the document's end.
///
/// # Safety
/// All 32 lanes must call it together; the matrix must have the rows below the limit.
#[inline(always)]
pub unsafe fn valid_columns<const WORDS: usize>(
    matrix: &Matrix,
    row: u32,
    limit: u32,
    lane: u32,
) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    let mut i = 0;
    while i < WORDS {
        let column = 32 * i as u32 + lane;
        // SAFETY: only rows below the limit are read; every lane reaches the ballot.
        words[i] = unsafe {
            let valid = column < limit && row_is_valid(matrix, row + column);
            ballot(valid as u32)
        };
        i += 1;
    }
    words
}

/// Takes a tile of similarities into account. `valid` holds the valid columns, already
/// shifted right by `2 (lane % 4)`, and counts only when `MASKED`; `column` is the
/// document token of this thread's first column.
#[inline(always)]
pub fn fold<const N: usize, const WORDS: usize, const MASKED: bool, const WINNERS: bool>(
    best: &mut Best,
    c: &[f32; N],
    valid: &[u32; WORDS],
    column: i32,
) {
    // Four independent chains: two rows × two columns.
    let mut most = [f32::NEG_INFINITY; 4];
    unroll!(I in 0..16 => {
        if 4 * I < N {
            let [left, right] = valid_pair::<WORDS, MASKED>(valid, I);
            let select = |keep: bool, v: f32| if keep { v } else { f32::NEG_INFINITY };
            most[0] = max_nan(most[0], select(left, c[4 * I]));
            most[1] = max_nan(most[1], select(right, c[4 * I + 1]));
            most[2] = max_nan(most[2], select(left, c[4 * I + 2]));
            most[3] = max_nan(most[3], select(right, c[4 * I + 3]));
        }
    });
    fold_row::<N, WORDS, MASKED, WINNERS, 0>(best, c, valid, column, max_nan(most[0], most[1]));
    fold_row::<N, WORDS, MASKED, WINNERS, 1>(best, c, valid, column, max_nan(most[2], most[3]));
}

#[inline(always)]
fn fold_row<
    const N: usize,
    const WORDS: usize,
    const MASKED: bool,
    const WINNERS: bool,
    const ROW: usize,
>(
    best: &mut Best,
    c: &[f32; N],
    valid: &[u32; WORDS],
    column: i32,
    most: f32,
) {
    if !WINNERS {
        best.value[ROW] = max_nan(best.value[ROW], most);
        return;
    }
    // The lowest column that attains the tile's maximum; for a NaN maximum, a NaN column.
    let found = if most.is_nan() {
        lowest_column::<N, WORDS, MASKED, ROW>(c, valid, |v| v.is_nan())
    } else {
        lowest_column::<N, WORDS, MASKED, ROW>(c, valid, |v| v == most)
    };
    if found >= 0 && beats(most, found + column, best.value[ROW], best.winner[ROW]) {
        best.value[ROW] = most;
        best.winner[ROW] = found + column;
    }
}

/// Lowest valid column of a row (relative to the thread's first) that satisfies `hit`, or -1.
#[inline(always)]
fn lowest_column<const N: usize, const WORDS: usize, const MASKED: bool, const ROW: usize>(
    c: &[f32; N],
    valid: &[u32; WORDS],
    hit: impl Fn(f32) -> bool,
) -> i32 {
    let mut found = -1;
    // From the last column to the first, so that the lowest hit stays.
    unroll!(I in 0..16 => {
        const LAST: usize = 15 - I;
        if 4 * LAST < N {
            let [left, right] = valid_pair::<WORDS, MASKED>(valid, LAST);
            if right & hit(c[4 * LAST + 2 * ROW + 1]) {
                found = 8 * LAST as i32 + 1;
            }
            if left & hit(c[4 * LAST + 2 * ROW]) {
                found = 8 * LAST as i32;
            }
        }
    });
    found
}

/// Validity of the thread's two columns in 8-column group `group`.
#[inline(always)]
fn valid_pair<const WORDS: usize, const MASKED: bool>(
    valid: &[u32; WORDS],
    group: usize,
) -> [bool; 2] {
    if !MASKED {
        return [true; 2];
    }
    let bits = valid[group / 4] >> (8 * (group % 4));
    [bits & 1 != 0, bits & 2 != 0]
}

/// Whether similarity `value` at token `winner` replaces the best so far: it is larger, or
/// the first, or NaN where the best is not, or equal at a lower token.
#[inline(always)]
fn beats(value: f32, winner: i32, best: f32, best_winner: i32) -> bool {
    best_winner < 0
        || value > best
        || (value.is_nan() && !best.is_nan())
        || (value == best && winner < best_winner)
}

/// Brings the bests of the four lanes of a quad together; all four then hold the rows' maxima.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
pub unsafe fn combine_quad<const WINNERS: bool>(best: &mut Best) {
    // SAFETY: the caller's promise.
    unsafe {
        combine_lanes::<1, WINNERS>(best);
        combine_lanes::<2, WINNERS>(best);
    }
}

#[inline(always)]
unsafe fn combine_lanes<const MASK: u32, const WINNERS: bool>(best: &mut Best) {
    let mut row = 0;
    while row < 2 {
        // SAFETY: the caller's promise: all lanes are here.
        let value = unsafe { shuffle_xor_f32::<MASK>(best.value[row]) };
        if WINNERS {
            // SAFETY: as above.
            let winner = unsafe { shuffle_xor::<MASK>(best.winner[row] as u32) } as i32;
            if winner >= 0 && beats(value, winner, best.value[row], best.winner[row]) {
                best.value[row] = value;
                best.winner[row] = winner;
            }
        } else {
            best.value[row] = max_nan(best.value[row], value);
        }
        row += 1;
    }
}

/// Rows of a fragment that are valid query tokens, for one thread.
#[derive(Clone, Copy)]
pub struct QueryRows {
    /// Index within the query of the thread's first row; the second is 8 below it.
    row: u32,
    valid: [bool; 2],
}

impl QueryRows {
    /// No valid row.
    #[cfg(maxsim_arch = "sm_90a")]
    pub const NONE: QueryRows = QueryRows { row: 0, valid: [false; 2] };

    /// The thread's rows of the fragment whose first row is `fragment_row` of the tile.
    ///
    /// # Safety
    /// The work must be of this launch.
    #[inline(always)]
    pub unsafe fn new(params: &ForwardParams, work: &Work, fragment_row: u32, lane: u32) -> Self {
        let row = work.tile_row + fragment_row + lane / 4;
        let valid = |row: u32| {
            // SAFETY: only rows of the query are looked up.
            row < work.rows.len && unsafe { row_is_valid(&params.queries, work.rows.start + row) }
        };
        QueryRows { row, valid: [valid(row), valid(row + 8)] }
    }

    /// The thread's share of the row sum; invalid rows add nothing.
    #[inline(always)]
    pub fn sum(&self, best: &Best) -> f32 {
        let part = |row: usize| if self.valid[row] { best.value[row] } else { 0.0 };
        part(0) + part(1)
    }

    /// Stores winners and token scores of the thread's valid rows.
    ///
    /// # Safety
    /// The entry must belong to the work and have a valid document token; one lane of
    /// each quad may call it.
    #[inline(always)]
    pub unsafe fn store(&self, params: &ForwardParams, work: &Work, entry: u32, best: &Best) {
        // SAFETY: pair-major outputs are asked for, and each row has one owner.
        unsafe {
            let base = token_base(params, work, entry);
            let mut i = 0;
            while i < 2 {
                if self.valid[i] {
                    let index = base + u64::from(self.row + 8 * i as u32);
                    store_token(params, index, best.winner[i], best.value[i]);
                }
                i += 1;
            }
        }
    }
}

/// Adds one value per quad over the warp, in a fixed order; every lane gets the sum.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
pub unsafe fn sum_quads(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let value = value + shuffle_xor_f32::<4>(value);
        let value = value + shuffle_xor_f32::<8>(value);
        value + shuffle_xor_f32::<16>(value)
    }
}
