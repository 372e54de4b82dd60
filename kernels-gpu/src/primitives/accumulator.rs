//! The running maximum, in registers.
//!
//! A thread holds, of each 16-row fragment, two rows (`g = lane / 4` and `g + 8`) and in
//! every 8 columns two (`2 (lane % 4)` and the next): element `4 n + 2 r + b` of the
//! accumulators is row `g + 8 r`, column `8 n + 2 (lane % 4) + b`. The four lanes of a
//! quad share their rows. `mma.sync` and `wgmma` agree on this, so this code serves both.

use crate::abi::params::{ForwardParams, Group, Matrix};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::{row_is_valid, store_sum};
use crate::ptx::math::{add_unless, max_nan};
#[cfg(maxsim_arch = "sm_90a")]
use crate::ptx::warp::broadcast;
use crate::ptx::warp::{ballot, shuffle_down, shuffle_xor};

/// Index of a query token's winner when it has none.
pub const NO_WINNER: i32 = -1;

/// Best similarity so far of the thread's two rows, and the document token that has it; none while
/// it is -∞.
#[derive(Clone, Copy)]
pub struct Best {
    /// The similarities.
    pub value: [f32; 2],
    /// The document tokens, or [`NO_WINNER`].
    pub winner: [i32; 2],
}

impl Best {
    /// The best of no columns.
    #[cfg(maxsim_arch = "sm_80")]
    pub const NONE: Best = Best { value: [f32::NEG_INFINITY; 2], winner: [NO_WINNER; 2] };
}

/// Finds the columns of a tile that are valid document tokens: bit `c % 32` of word `c / 32`. `row`
/// is the matrix row of column 0, `limit` the number of columns before the document's end.
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

/// Makes columns from `limit` on lose; those below `safe` are known to be below the limit.
#[inline(always)]
pub fn mask_tail<const N: usize>(mut c: [f32; N], safe: usize, limit: u32, lane: u32) -> [f32; N] {
    let first = 2 * (lane % 4);
    unroll!(I in 0..16 => {
        if 4 * I < N && 8 * I + 8 > safe {
            unroll!(J in 0..4 => {
                let column = first + (8 * I + J % 2) as u32;
                c[4 * I + J] = if column < limit { c[4 * I + J] } else { f32::NEG_INFINITY };
            });
        }
    });
    c
}

/// Takes a tile of similarities into account; `column` is the document token of this
/// thread's first column; `winners` (a constant to the caller) says whether to find them.
#[inline(always)]
pub fn fold<const N: usize>(best: &mut Best, c: &[f32; N], column: i32, winners: bool) {
    if winners {
        unroll!(ROW in 0..2 => {
            let (most, found) = first_most::<N, ROW>(c);
            take_later(best, ROW, most, found + column);
        });
        return;
    }
    // Four independent chains: two rows × two columns.
    let mut most = [c[0], c[1], c[2], c[3]];
    unroll!(I in 0..16 => {
        if I != 0 && 4 * I < N {
            unroll!(J in 0..4 => {
                most[J] = max_nan(most[J], c[4 * I + J]);
            });
        }
    });
    best.value[0] = max_nan(best.value[0], max_nan(most[0], most[1]));
    best.value[1] = max_nan(best.value[1], max_nan(most[2], most[3]));
}

/// Makes columns lose whose bit is not set in `valid`, which is already shifted right by
/// `2 (lane % 4)`.
#[inline(always)]
pub fn valid_only<const N: usize, const WORDS: usize>(
    mut c: [f32; N],
    valid: &[u32; WORDS],
) -> [f32; N] {
    unroll!(I in 0..16 => {
        if 4 * I < N {
            let bits = valid[I / 4] >> (8 * (I % 4));
            unroll!(J in 0..4 => {
                let keep = bits & (1 << (J % 2)) != 0;
                c[4 * I + J] = if keep { c[4 * I + J] } else { f32::NEG_INFINITY };
            });
        }
    });
    c
}

/// Remembers the maximum of columns behind all before: equal ones do not beat the best so far, and
/// -∞, which columns have that are no document tokens, never does.
#[inline(always)]
fn take_later(best: &mut Best, row: usize, value: f32, winner: i32) {
    let before = best.value[row];
    let most = max_nan(before, value);
    // Bits as in `first_most`.
    let is_better = most.to_bits() != before.to_bits();
    best.value[row] = most;
    best.winner[row] = if is_better { winner } else { best.winner[row] };
}

/// Maximum of a row, and the lowest column (relative to the thread's first) that attains it;
/// for a NaN maximum, a NaN column.
///
/// A tree of maxima, then down again: at each level one comparison says whether the left half
/// holds the maximum, and the candidates of the levels below are halved. About one select per
/// column, where following the index upwards takes a comparison and a select each. `N` is 8, 16,
/// 32 or 64.
#[inline(always)]
fn first_most<const N: usize, const ROW: usize>(c: &[f32; N]) -> (f32, i32) {
    // Tree nodes of the lowest level, in the order of columns: N / 2 of them.
    let mut left = [f32::NEG_INFINITY; 16];
    let mut pairs = [f32::NEG_INFINITY; 16];
    unroll!(I in 0..16 => {
        if 4 * I < N {
            left[I] = c[4 * I + 2 * ROW];
            pairs[I] = max_nan(left[I], c[4 * I + 2 * ROW + 1]);
        }
    });
    let mut fours = [f32::NEG_INFINITY; 8];
    unroll!(I in 0..8 => {
        if 8 * I < N {
            fours[I] = max_nan(pairs[2 * I], pairs[2 * I + 1]);
        }
    });
    let mut eights = [f32::NEG_INFINITY; 4];
    unroll!(I in 0..4 => {
        if 16 * I < N {
            eights[I] = match N {
                8 => fours[0],
                _ => max_nan(fours[2 * I], fours[2 * I + 1]),
            };
        }
    });
    let mut halves = [f32::NEG_INFINITY; 2];
    unroll!(I in 0..2 => {
        if 32 * I < N {
            halves[I] = match N {
                8 | 16 => eights[0],
                _ => max_nan(eights[2 * I], eights[2 * I + 1]),
            };
        }
    });
    let most = match N {
        64 => max_nan(halves[0], halves[1]),
        _ => halves[0],
    };
    // Equal floats have equal bits here: products give one NaN and no -0.
    let is_left = |value: f32| value.to_bits() == most.to_bits();
    let pick = |left: bool, a: f32, b: f32| if left { a } else { b };
    let mut found = 0;
    // Each step halves the candidates for the maximum. Nodes 2 n and 2 n + 1 are columns 8 n and 8
    // n + 1.
    if N == 64 {
        let here = is_left(halves[0]);
        found = add_unless::<64>(found, here);
        unroll!(I in 0..2 => { eights[I] = pick(here, eights[I], eights[I + 2]); });
        unroll!(I in 0..4 => { fours[I] = pick(here, fours[I], fours[I + 4]); });
        unroll!(I in 0..8 => {
            pairs[I] = pick(here, pairs[I], pairs[I + 8]);
            left[I] = pick(here, left[I], left[I + 8]);
        });
    }
    if N >= 32 {
        let here = is_left(eights[0]);
        found = add_unless::<32>(found, here);
        unroll!(I in 0..2 => { fours[I] = pick(here, fours[I], fours[I + 2]); });
        unroll!(I in 0..4 => {
            pairs[I] = pick(here, pairs[I], pairs[I + 4]);
            left[I] = pick(here, left[I], left[I + 4]);
        });
    }
    if N >= 16 {
        let here = is_left(fours[0]);
        found = add_unless::<16>(found, here);
        unroll!(I in 0..2 => {
            pairs[I] = pick(here, pairs[I], pairs[I + 2]);
            left[I] = pick(here, left[I], left[I + 2]);
        });
    }
    let here = is_left(pairs[0]);
    found = add_unless::<8>(found, here);
    let leaf = pick(here, left[0], left[1]);
    found = add_unless::<1>(found, is_left(leaf));
    (most, found)
}

/// Lanes whose bit `BIT` is 0 get the larger of both lanes' `a`, the others of `b`.
///
/// # Safety
/// The whole warp together.
#[inline(always)]
pub unsafe fn exchange<const BIT: u32>(a: f32, b: f32, lane: u32) -> f32 {
    let is_upper = lane & BIT != 0;
    let (own, other) = if is_upper { (b, a) } else { (a, b) };
    // SAFETY: the caller's promise.
    let other = unsafe { shuffle_xor::<BIT>(other.to_bits()) };
    max_nan(own, f32::from_bits(other))
}

/// The groups of a tile, one per lane of the warp that stores results.
#[derive(Clone, Copy)]
pub struct TileGroups {
    group: Group,
    /// Lanes from this one on whose groups belong to the same query.
    n_same: u32,
    /// Whether the lane has its query's first group.
    is_first: bool,
}

impl TileGroups {
    /// The groups of a tile; lanes without one get [`Group::NONE`].
    ///
    /// # Safety
    /// All 32 lanes must call it together.
    #[inline(always)]
    pub unsafe fn new(group: Group, lane: u32) -> TileGroups {
        // SAFETY: the caller's promise.
        let next_is_other = unsafe {
            let next = shuffle_down(group.query, 1);
            ballot((lane == 31 || next != group.query) as u32)
        };
        let n_same = 1 + (next_is_other >> lane).trailing_zeros();
        let is_first = lane == 0 || next_is_other >> (lane.wrapping_sub(1) & 31) & 1 != 0;
        TileGroups { group, n_same, is_first }
    }

    /// Query of the tile's first group.
    ///
    /// # Safety
    /// All 32 lanes must call it together.
    #[cfg(maxsim_arch = "sm_90a")]
    #[inline(always)]
    pub unsafe fn first_query(&self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { broadcast(self.group.query) }
    }

    /// Adds the groups' sums by query, in a fixed order, and stores the results of an entry.
    ///
    /// # Safety
    /// All 32 lanes must call it together; the entry must be of this launch.
    #[inline(always)]
    pub unsafe fn store(&self, params: &ForwardParams, entry: u32, mut sum: f32) {
        unroll!(I in 0..4 => {
            const STEP: u32 = 1 << I;
            // SAFETY: the caller's promise.
            let other = f32::from_bits(unsafe { shuffle_down(sum.to_bits(), STEP) });
            sum += if STEP < self.n_same { other } else { 0.0 };
        });
        if self.is_first && self.group.query != Group::NO_QUERY {
            // SAFETY: the first lane alone stores a query's result.
            unsafe { store_sum(params, self.group, entry, sum) };
        }
    }
}
