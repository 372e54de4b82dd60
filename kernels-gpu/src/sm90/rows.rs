//! A consumer warp's query rows: what a document starts from and what it leaves.

use super::Kernel;
use crate::params::{ForwardParams, Group};
use crate::ptx::math::max_nan;
use crate::ptx::warp::{shuffle_xor, shuffle_xor_f32};
use crate::reduce::{Best, NO_WINNER, beats, is_valid, sum_quads, unroll};
use crate::work::{TokenPlace, store_token};

/// The rows of a warp's fragments, for one thread.
#[derive(Clone, Copy)]
pub(super) struct WarpRows {
    /// Whether the two rows that the thread multiplies of each fragment are query tokens.
    valid: [[bool; 2]; 2],
    /// Whether the row is one that the thread has at a document's end.
    own_is_valid: bool,
    /// Of that row.
    place: TokenPlace,
}

impl WarpRows {
    /// No valid row.
    pub(super) const NONE: WarpRows =
        WarpRows { valid: [[false; 2]; 2], own_is_valid: false, place: TokenPlace::NONE };

    /// The rows of the warp's groups, one per fragment.
    ///
    /// # Safety
    /// The groups must be of this launch.
    #[inline(always)]
    pub(super) unsafe fn new<K: Kernel>(
        params: &ForwardParams,
        groups: [Group; 2],
        lane: u32,
    ) -> Self {
        let mut rows = WarpRows::NONE;
        let (own_fragment, own_half) = own_row::<K>(lane);
        unroll!(I in 0..2 => {
            if I < K::FRAGMENTS {
                let group = groups[I];
                // SAFETY: the caller's promise; a group with tokens, for outputs that are asked for.
                unsafe {
                    rows.valid[I] = [
                        is_valid(params, group, lane / 4),
                        is_valid(params, group, lane / 4 + 8),
                    ];
                    if own_fragment == I as u32 {
                        let [first, second] = rows.valid[I];
                        rows.own_is_valid = if own_half == 0 { first } else { second };
                        if group.n_rows() > 0 && params.winners | params.token_scores != 0 {
                            rows.place = TokenPlace::new(params, group);
                        }
                    }
                }
            }
        });
        rows
    }

    /// Nothing seen yet by valid rows; the others need no maximum, and have the largest, so that
    /// they look sure ([`Best::is_positive`]).
    #[inline(always)]
    pub(super) fn start(&self) -> [Best; 2] {
        let start = |valid: bool| if valid { f32::NEG_INFINITY } else { f32::INFINITY };
        self.valid.map(|[a, b]| Best { value: [start(a), start(b)], winner: [NO_WINNER; 2] })
    }

    /// What a document leaves: stores winners and token scores, if `store`, and gives, to lane
    /// `f`, the sum over the valid rows of fragment `f`.
    ///
    /// # Safety
    /// The whole warp together; the entry must belong to the groups' queries, and have a valid
    /// document token to be stored.
    #[inline(always)]
    pub(super) unsafe fn finish<K: Kernel>(
        &self,
        params: &ForwardParams,
        entry: u32,
        best: &[Best; 2],
        store: bool,
        lane: u32,
    ) -> f32 {
        // SAFETY: the caller's promise; each row has one owner that stores it: with one fragment,
        // lanes two apart have the same.
        unsafe {
            let own = own_best::<K>(best, lane);
            let is_owner = K::FRAGMENTS == 2 || lane & 2 == 0;
            if store && is_owner && self.own_is_valid {
                let (_, half) = own_row::<K>(lane);
                let row = u64::from(lane / 4 + 8 * half);
                let index = self.place.index(params, entry) + row;
                store_token(params, index, own.winner, own.value);
            }
            sum_fragments::<K>(if self.own_is_valid { own.value } else { 0.0 })
        }
    }
}

/// Which of the quad's rows a lane has at a document's end: fragment, and 0 for row `lane / 4` or
/// 1 for that plus 8.
#[inline(always)]
fn own_row<K: Kernel>(lane: u32) -> (u32, u32) {
    match K::FRAGMENTS {
        2 => (lane & 1, lane >> 1 & 1),
        _ => (0, lane & 1),
    }
}

/// Best similarity of one row, and the document token that has it.
#[derive(Clone, Copy)]
struct RowBest {
    value: f32,
    winner: i32,
}

/// Brings the bests of the four lanes of a quad together and deals them out: each lane gets its
/// [`own_row`]'s. That takes half the exchanges of telling all four lanes.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
unsafe fn own_best<K: Kernel>(best: &[Best; 2], lane: u32) -> RowBest {
    let row =
        |i: usize, half: usize| RowBest { value: best[i].value[half], winner: best[i].winner[half] };
    let pick = |upper: bool, a: RowBest, b: RowBest| if upper { (b, a) } else { (a, b) };
    let (odd, high) = (lane & 1 != 0, lane & 2 != 0);
    // SAFETY: the caller's promise.
    unsafe {
        if K::FRAGMENTS == 2 {
            let a = exchange::<K, 1>(pick(odd, row(0, 0), row(1, 0)));
            let b = exchange::<K, 1>(pick(odd, row(0, 1), row(1, 1)));
            return exchange::<K, 2>(pick(high, a, b));
        }
        let both = exchange::<K, 1>(pick(odd, row(0, 0), row(0, 1)));
        exchange::<K, 2>((both, both))
    }
}

/// Gives one best to the lane whose index differs by `MASK`, and takes what that lane gives into
/// account for the one that is kept.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
unsafe fn exchange<K: Kernel, const MASK: u32>((keep, give): (RowBest, RowBest)) -> RowBest {
    // SAFETY: the caller's promise: all lanes are here.
    let value = unsafe { shuffle_xor_f32::<MASK>(give.value) };
    if !K::WINNERS {
        return RowBest { value: max_nan(keep.value, value), ..keep };
    }
    // SAFETY: as above.
    let winner = unsafe { shuffle_xor::<MASK>(give.winner as u32) } as i32;
    match (winner >= 0) & beats(value, winner, keep.value, keep.winner) {
        true => RowBest { value, winner },
        false => keep,
    }
}

/// Adds a fragment's rows, of which each lane has its [`own_row`]'s value, in a fixed order: rows
/// `g` and `g + 8` first, then those sums. Lane `f` gets the sum of fragment `f`.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
unsafe fn sum_fragments<K: Kernel>(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let other = match K::FRAGMENTS {
            2 => shuffle_xor_f32::<2>(value),
            _ => shuffle_xor_f32::<1>(value),
        };
        sum_quads(value + other)
    }
}
