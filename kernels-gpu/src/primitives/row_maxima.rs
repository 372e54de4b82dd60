//! Per-document epilogue: distributes row maxima of a quad across its lanes, and adds them.
//!
//! During the online max a quad's four lanes have maxima of the same rows, two of each fragment
//! (see [`crate::primitives::accumulator`]). At a document's end each lane gets whole rows of its
//! own, which takes half the exchanges of giving them to all four lanes, and sums over rows take
//! one pass for all fragments. Sums have one order everywhere: rows `g` and `g + 8`, then
//! neighbours of those eight sums, and so on.

use crate::abi::angular::angular;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::accumulator::{Best, NO_WINNER};
use crate::primitives::documents::{TokenPlace, store_token};
use crate::primitives::row_scales::RowScales;
use crate::primitives::row_vector::{LANE_ELEMENTS, VectorElement};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::{query_weight, row_is_valid};
use crate::ptx::global::{load_u8, load_u16, load_u32x2, load_u32x4};
use crate::ptx::math::max_nan;
use crate::ptx::warp::{shuffle_xor, shuffle_xor_f32};

/// Best similarity of one row, and the document token that has it.
#[derive(Clone, Copy)]
pub struct RowBest {
    value: f32,
    winner: i32,
}

impl RowBest {
    /// The winner. Where all similarities are -∞ none was kept: the first valid token of the
    /// document, which starts at row `start` of the matrix.
    ///
    /// # Safety
    /// The document must have a valid token.
    #[inline(always)]
    unsafe fn token(&self, params: &ForwardParams, start: u32) -> i32 {
        let mut token = self.winner;
        if token == NO_WINNER && params.winners != 0 {
            token = 0;
            // SAFETY: the document has the rows up to the first valid one.
            while !unsafe { row_is_valid(&params.documents, start + token as u32) } {
                token += 1;
            }
        }
        token
    }
}

/// The rows that a lane gets, of a warp with so many fragments: with four, both of its quad's rows
/// of fragment `lane % 4`; with two, one of fragment `lane % 2`; with one, one, which the lane two
/// further gets, too.
#[derive(Clone, Copy)]
pub struct LaneRows {
    /// The fragment.
    pub fragment: u32,
    /// 0 for row `lane / 4` of the fragment, 1 for that plus 8; with four fragments, of the first.
    half: u32,
    n_rows: u32,
    /// Whether the lane stores its rows.
    stores: bool,
}

impl LaneRows {
    /// The rows of a lane.
    #[inline(always)]
    pub fn new(n_fragments: usize, lane: u32) -> LaneRows {
        let (fragment, half, stores) = match n_fragments {
            4 => (lane % 4, 0, true),
            2 => (lane % 2, lane / 2 % 2, true),
            _ => (0, lane % 2, lane % 4 < 2),
        };
        LaneRows { fragment, half, n_rows: if n_fragments == 4 { 2 } else { 1 }, stores }
    }

    /// The lane's first row of the fragment.
    #[inline(always)]
    pub fn first_row(&self, lane: u32) -> u32 {
        lane / 4 + 8 * self.half
    }

    /// The lane's values times their weights, 0 for rows that are no query tokens: bit `h` of
    /// `valid` says whether row `lane / 4 + 8 h` of the fragment is one.
    #[inline(always)]
    pub fn values(&self, rows: &[RowBest; 2], weights: [f32; 2], valid: u32) -> [f32; 2] {
        let value = |i: u32| match self.is_valid(valid, i) {
            true => rows[i as usize].value * weights[i as usize],
            false => 0.0,
        };
        [value(0), value(1)]
    }

    /// Loads the weights of the lane's rows of a group.
    ///
    /// # Safety
    /// As [`query_weight`].
    #[inline(always)]
    pub unsafe fn weights(&self, params: &ForwardParams, group: Group, lane: u32) -> [f32; 2] {
        let row = self.first_row(lane);
        // SAFETY: the caller's promise.
        unsafe {
            let first = query_weight(params, group, row);
            [first, if self.n_rows == 2 { query_weight(params, group, row + 8) } else { 1.0 }]
        }
    }

    /// Loads r of the lane's rows of a group.
    ///
    /// # Safety
    /// As [`RowScales::query`].
    #[inline(always)]
    pub unsafe fn scales(&self, norms: RowScales, group: Group, lane: u32) -> [f32; 2] {
        let row = self.first_row(lane);
        // SAFETY: the caller's promise.
        unsafe {
            let first = norms.query(group, row);
            [first, if self.n_rows == 2 { norms.query(group, row + 8) } else { first }]
        }
    }

    #[inline(always)]
    fn is_valid(&self, valid: u32, i: u32) -> bool {
        i < self.n_rows && valid >> (self.half + i) & 1 != 0
    }

    /// Stores winners and token scores of the lane's rows, for an entry whose document starts at
    /// row `start` of the matrix; `valid` as for [`LaneRows::values`].
    ///
    /// # Safety
    /// `place` must be that of the rows' group, the entry must belong to the group's query and
    /// have a valid document token.
    #[inline(always)]
    pub unsafe fn store(
        &self,
        params: &ForwardParams,
        place: TokenPlace,
        (entry, start): (u32, u32),
        rows: &[RowBest; 2],
        valid: u32,
        lane: u32,
    ) {
        let (first, second) = (self.is_valid(valid, 0), self.is_valid(valid, 1));
        if !self.stores | !(first | second) {
            return;
        }
        // SAFETY: there are pair-major outputs, and each row has one owner.
        unsafe {
            let index = place.index(params, entry) + u64::from(lane / 4 + 8 * self.half);
            if first {
                store_token(params, index, rows[0].token(params, start), rows[0].value);
            }
            if second {
                store_token(params, index + 8, rows[1].token(params, start), rows[1].value);
            }
        }
    }
}

/// Gives each lane the bests of its [`LaneRows`]. `winners` (a constant to the caller, as
/// `n_fragments` is) says whether winners come along.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
pub unsafe fn distribute<const N: usize>(
    best: &[Best; N],
    n_fragments: usize,
    lane: u32,
    winners: bool,
) -> [RowBest; 2] {
    let row = |i: usize, half: usize| {
        let best = &best[i % N];
        RowBest { value: best.value[half], winner: best.winner[half] }
    };
    // SAFETY: the caller's promise.
    let one = |a, b| unsafe { exchange::<1>(pick(lane & 1 != 0, a, b), winners) };
    // SAFETY: as above.
    let two = |a, b| unsafe { exchange::<2>(pick(lane & 2 != 0, a, b), winners) };
    match n_fragments {
        4 => [
            two(one(row(0, 0), row(1, 0)), one(row(2, 0), row(3, 0))),
            two(one(row(0, 1), row(1, 1)), one(row(2, 1), row(3, 1))),
        ],
        2 => [two(one(row(0, 0), row(1, 0)), one(row(0, 1), row(1, 1))); 2],
        _ => {
            let both = one(row(0, 0), row(0, 1));
            [two(both, both); 2]
        }
    }
}

/// The lane's rows, normalised; what they are multiplied by is positive, so that winners stay.
#[inline(always)]
pub fn normalized([first, second]: [RowBest; 2], norms: [f32; 2]) -> [RowBest; 2] {
    let times = |row: RowBest, norm: f32| RowBest { value: row.value * norm, ..row };
    [times(first, norms[0]), times(second, norms[1])]
}

/// The lane's rows as terms of angular scores: what they have are cosines.
#[inline(always)]
pub fn angular_scores(rows: [RowBest; 2]) -> [RowBest; 2] {
    rows.map(|row| RowBest { value: angular(row.value), ..row })
}

/// Chooses which of two bests a lane keeps, and which it gives.
#[inline(always)]
fn pick(second: bool, a: RowBest, b: RowBest) -> (RowBest, RowBest) {
    if second { (b, a) } else { (a, b) }
}

/// Gives one best to the lane whose index differs by `MASK`, and takes what that lane gives into
/// account for the one that is kept.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
unsafe fn exchange<const MASK: u32>((keep, give): (RowBest, RowBest), winners: bool) -> RowBest {
    // SAFETY: the caller's promise: all lanes are here.
    let value = unsafe { shuffle_xor_f32::<MASK>(give.value) };
    if !winners {
        return RowBest { value: max_nan(keep.value, value), ..keep };
    }
    // SAFETY: as above.
    let winner = unsafe { shuffle_xor::<MASK>(give.winner as u32) } as i32;
    match (winner >= 0) & beats(value, winner, keep.value, keep.winner) {
        true => RowBest { value, winner },
        false => keep,
    }
}

/// Whether similarity `value` at token `winner` replaces the best so far: it is larger, or
/// the first, or NaN where the best is not, or equal at a lower token.
#[inline(always)]
fn beats(value: f32, winner: i32, best: f32, best_winner: i32) -> bool {
    // Branches would cost more than the comparisons.
    (best_winner < 0)
        | (value > best)
        | (value.is_nan() & !best.is_nan())
        | ((value == best) & (winner < best_winner))
}

/// Adds rows `g` and `g + 8` of a fragment, of which the lanes have their [`LaneRows`]' values.
/// Lane `4 g + f` gets the sum of fragment `f`.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
pub unsafe fn sum_halves(n_fragments: usize, values: [f32; 2]) -> f32 {
    // SAFETY: the caller's promise.
    let other = unsafe {
        match n_fragments {
            4 => values[1],
            2 => shuffle_xor_f32::<2>(values[0]),
            _ => shuffle_xor_f32::<1>(values[0]),
        }
    };
    values[0] + other
}

/// Adds the eight [`sum_halves`] of each fragment, in the order of [`sum_eight`]: lane `f` gets the
/// sum of fragment `f`.
///
/// # Safety
/// All 32 lanes must call it together.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn sum_quads(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let value = value + shuffle_xor_f32::<4>(value);
        let value = value + shuffle_xor_f32::<8>(value);
        value + shuffle_xor_f32::<16>(value)
    }
}

/// Adds the eight [`sum_halves`] of a fragment.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn sum_eight(a: [f32; 4], b: [f32; 4]) -> f32 {
    sum_four(a) + sum_four(b)
}

/// Half of a [`sum_eight`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn sum_four(x: [f32; 4]) -> f32 {
    (x[0] + x[1]) + (x[2] + x[3])
}

/// Finds which of the two rows that a thread multiplies of a group's fragment are valid query
/// tokens: bit 0 for row `lane / 4`, bit 1 for that plus 8.
///
/// # Safety
/// The group must be of this launch.
#[inline(always)]
pub unsafe fn valid_rows(params: &ForwardParams, group: Group, lane: u32) -> u32 {
    let valid = |row: u32| {
        // SAFETY: only rows of the group are looked up.
        row < group.n_rows() && unsafe { row_is_valid(&params.queries, group.start + row) }
    };
    u32::from(valid(lane / 4)) | u32::from(valid(lane / 4 + 8)) << 1
}

/// Sums of the elements of rows `lane / 4` and that plus 8 of a group, 0 for those that are no
/// query tokens. A quad's lanes have chunks of a row in turns. (Sums of codes are exact.)
///
/// # Safety
/// The whole warp together; the group must be of this launch, and its rows lie on 16-byte
/// boundaries if they are `aligned`.
#[inline(always)]
pub unsafe fn row_sums<T: VectorElement>(
    params: &ForwardParams,
    group: Group,
    aligned: bool,
    lane: u32,
) -> [f32; 2] {
    const { assert!(T::N == LANE_ELEMENTS) };
    // SAFETY: the caller's promise.
    let valid = unsafe { valid_rows(params, group, lane) };
    let n_bytes = params.dim * T::BYTES as u32;
    let piece_bytes = (LANE_ELEMENTS * T::BYTES) as u32;
    // Bytes behind the row must not be read.
    let whole = if aligned { n_bytes & !(piece_bytes - 1) } else { 0 };
    let mut sums = [0.0; 2];
    unroll!(HALF in 0..2 => {
        let mut sum = 0.0;
        let row = group.start + lane / 4 + 8 * HALF as u32;
        if valid >> HALF & 1 != 0 {
            let address = params.queries.base + u64::from(row) * params.queries.pitch_bytes;
            let mut at = piece_bytes * (lane % 4);
            while at < whole {
                let from = address + u64::from(at);
                // SAFETY: the row has these bytes.
                let values = T::widen(unsafe {
                    match T::BYTES {
                        1 => {
                            let [low, high] = load_u32x2(from);
                            [low, high, 0, 0]
                        }
                        _ => load_u32x4(from),
                    }
                });
                unroll!(E in 0..8 => { sum += values[E]; });
                at += 4 * piece_bytes;
            }
            at = whole + T::BYTES as u32 * (lane % 4);
            while at < n_bytes {
                let from = address + u64::from(at);
                // SAFETY: as above.
                let word = unsafe {
                    match T::BYTES {
                        1 => load_u8(from),
                        _ => load_u16(from),
                    }
                };
                sum += T::widen([word, 0, 0, 0])[0];
                at += 4 * T::BYTES as u32;
            }
        }
        // SAFETY: the whole warp is here.
        unsafe {
            sum += shuffle_xor_f32::<1>(sum);
            sum += shuffle_xor_f32::<2>(sum);
        }
        sums[HALF] = sum;
    });
    sums
}
