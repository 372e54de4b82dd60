//! Both gradients in one pass over the winners: a warp per query token, as in `gather`.
//!
//! `∂Q[q, s] = Σ_k g[q, d_k] · D[d_k, winner(q, d_k, s)]` is summed in registers in the order of
//! the query's pairs, and `g · Q[q, s]` is added to the winner's row of ∂D in memory, in whatever
//! order warps come to it: nothing is sorted.
//!
//! Where rows are normalised, g is multiplied by what the winner's row is for ∂Q, and `Q[q, s]` by
//! its own for ∂D.
//!
//! Tokens of a query often choose the same row: of up to [`WINDOW`] neighbours that did, the first
//! adds all of their terms at once, summed in registers. That is fewer additions, and sums of many
//! terms in parts, which round less often: 8192 equal terms one by one are 10⁻⁵ off, as 128 sums 2
//! · 10⁻⁷. Parts of parts, 32 neighbours each, keep the registers' share as small.
//!
//! Each lane has as many additions in flight as loads. Known loss: a row of ∂D that every token
//! chose is added to by one unit of the L2 cache, one after the other; and where the device has no
//! additions of 16 bytes (before sm_90), each element is an addition of its own.

use crate::abi::params::backward::{AtomicParams, NO_ROW, Pairs};
use crate::backward::gather::{Ahead, RowPart};
use crate::backward::output::store;
use crate::backward::pairs::{Pair, pair, winner_if};
use crate::primitives::row_vector::sum::{add_and, add_slots, multiply};
use crate::primitives::row_vector::{Columns, LANE_ELEMENTS, Sums, VectorElement, unroll};
use crate::ptx::atomic::{add_f32_if, add_f32x4_if};
use crate::ptx::global::load_u32;
use crate::ptx::thread::block_idx_x;
use crate::ptx::warp::{ballot, lane_idx, shuffle, shuffle_u64};

/// Words of bits, one per neighbour.
const WORDS: usize = 8;

/// Neighbouring tokens of a query whose terms are added together where they go to the same row.
const WINDOW: u32 = 32 * WORDS as u32;

/// Sums the sources of this warp's row, and adds the row to the gradients of theirs.
///
/// # Safety
/// `params` must describe a call as [`AtomicParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn atomic<T: VectorElement>(params: &AtomicParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.sums.source.aligned & params.queries.aligned {
            0 => sum_and_add::<T, false>(params),
            _ => sum_and_add::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`atomic`]; `ALIGNED` is that of the rows of both sides.
#[inline(always)]
unsafe fn sum_and_add<T: VectorElement, const ALIGNED: bool>(params: &AtomicParams) {
    let AtomicParams { sums: gather, .. } = params;
    // SAFETY: the host launches a block per task, column and chunk; what it lists exists. Queries
    // have as many columns as documents, and a source's row is one of the documents'.
    unsafe {
        let part = RowPart::of_warp(gather, block_idx_x());
        if part.has_no_row() {
            return;
        }
        let (row, mut k, end) = (part.row(), part.begin(gather), part.end(gather));
        let columns = Columns::new::<T>(&gather.source, part.column);
        let own = Columns::new::<T>(&params.queries, part.column);
        let mut sums: Sums = core::mem::zeroed();
        while k < end {
            // A pair that exists: the last one again behind it.
            let of_lane = k + lane_idx();
            let pair = pair(&gather.pairs, &part.task.first, of_lane.min(end - 1));
            let ahead = Ahead::of(gather, &pair, row, [of_lane, end]);
            let (plain, count) = (ahead.factor(), (end - k).min(32));
            let sources = ahead.source(&gather.pairs);
            let window = Window::new(&pair, row);
            let equals = window.equals(&gather.pairs, sources[0], count);
            k += 32;
            add_and::<T, ALIGNED, 4>(&columns, sources, 0, count, &mut sums, |before, factor| {
                let i = before + columns.slot;
                let row = shuffle(sources[0], i);
                let own_rows = shuffle(window.first_row, i);
                let tokens = equals.map(|bits| {
                    let bits = shuffle(bits, i);
                    if (i < count) & (columns.n_elements > 0) { bits } else { 0 }
                });
                // The factor of a row that is normalised has what it is multiplied by.
                let mut factor = factor;
                if gather.pairs.source_norms != 0 {
                    factor = f32::from_bits(shuffle(plain, i));
                }
                let terms = sum_own::<T, ALIGNED>(params, &own, own_rows, tokens, factor);
                add_row::<T>(params, &columns, row, &terms, any(&tokens) != 0);
            });
        }
        add_slots::<T>(&columns, &mut sums);
        store::<T>(&gather.out, &columns, part.index(gather), &sums);
    }
}

/// The neighbours of a query's token, of which it is one.
#[derive(Clone, Copy)]
struct Window {
    /// Index of the first neighbour's winner.
    base: u64,
    /// Row of the first one.
    first_row: u32,
    n_tokens: u32,
    /// Row of the document that winners count from.
    document_start: u32,
    /// Index of the token among the neighbours.
    token: u32,
}

impl Window {
    /// Finds the window of a token row, if it is one of the pair's query: other rows have no
    /// source.
    #[inline(always)]
    fn new(pair: &Pair, row: u32) -> Window {
        let token = row.wrapping_sub(pair.query_start);
        let first = token & !(WINDOW - 1);
        Window {
            base: pair.token_base + u64::from(first),
            first_row: pair.query_start.wrapping_add(first),
            n_tokens: pair.query_len.wrapping_sub(first).min(WINDOW),
            document_start: pair.document_start,
            token: token - first,
        }
    }

    /// The tokens of the window of this lane's pair that chose the row that its token chose, as
    /// bits: none where an earlier token did, which adds for all of them, or the token has no row.
    ///
    /// # Safety
    /// A whole warp, with the same `count`, of which lanes have pairs of the call.
    #[inline(always)]
    unsafe fn equals(&self, pairs: &Pairs, row: u32, count: u32) -> [u32; WORDS] {
        let own = if row == NO_ROW { NO_ROW } else { row - self.document_start };
        let lane = lane_idx();
        let mut equals = [0u32; WORDS];
        for i in 0..count {
            // SAFETY: the whole warp is here; winners of a pair that there is.
            unsafe {
                let base = shuffle_u64(self.base, i) + u64::from(lane);
                let winner = shuffle(own, i);
                let n_tokens = if winner == NO_ROW { 0 } else { shuffle(self.n_tokens, i) };
                let mut found = [0u32; WORDS];
                unroll!(word in eight => {
                    let there = u32::from(lane + 32 * (word as u32) < n_tokens);
                    found[word] = winner_if(pairs, base + 32 * word as u64, there);
                    found[word] |= there.wrapping_sub(1);
                });
                unroll!(word in eight => {
                    let same = ballot(u32::from(found[word] == winner));
                    if lane == i {
                        equals[word] = same;
                    }
                });
            }
        }
        let mut first = WINDOW;
        unroll!(before in eight => {
            let word = WORDS - 1 - before;
            if equals[word] != 0 {
                first = 32 * word as u32 + equals[word].trailing_zeros();
            }
        });
        let adds = (own != NO_ROW) & (first == self.token);
        equals.map(|bits| if adds { bits } else { 0 })
    }
}

/// Bits that are set in one of the words.
#[inline(always)]
fn any(words: &[u32; WORDS]) -> u32 {
    let mut bits = 0;
    unroll!(word in eight => bits |= words[word]);
    bits
}

/// The sum of the lane's elements of some rows of queries, which are bits from `first_row` on, each
/// times a factor and what it is normalised by: those of a word in the order of the rows, then
/// words in theirs.
///
/// # Safety
/// As [`atomic`], for a whole warp; the rows must exist.
#[inline(always)]
unsafe fn sum_own<T: VectorElement, const ALIGNED: bool>(
    params: &AtomicParams,
    own: &Columns,
    mut first_row: u32,
    mut tokens: [u32; WORDS],
    factor: f32,
) -> Sums {
    // SAFETY: all-zero bytes are numbers; the caller's promise, and four bytes per row of what it
    // is normalised by.
    unsafe {
        let mut total: Sums = core::mem::zeroed();
        while ballot(any(&tokens)) != 0 {
            let mut sums: Sums = core::mem::zeroed();
            let mut bits = tokens[0];
            while ballot(bits) != 0 {
                let there = u32::from(bits != 0);
                let row = first_row + bits.trailing_zeros();
                let words = own.load::<T, ALIGNED>(row, there);
                let mut factor = if there != 0 { factor } else { 0.0 };
                if params.query_norms != 0 && there != 0 {
                    factor *= f32::from_bits(load_u32(params.query_norms + u64::from(row) * 4));
                }
                multiply::<T>(words, factor, &mut sums);
                bits &= bits.wrapping_sub(1);
            }
            unroll!(k in eight => total[k] += sums[k]);
            unroll!(word in 0 1 2 3 4 5 6 => tokens[word] = tokens[word + 1]);
            tokens[WORDS - 1] = 0;
            first_row += 32;
        }
        total
    }
}

/// Adds the lane's elements of a sum to a row of the documents' gradient.
///
/// # Safety
/// As [`atomic`]; the row must exist where it says so.
#[inline(always)]
unsafe fn add_row<T: VectorElement>(
    params: &AtomicParams,
    columns: &Columns,
    row: u32,
    sums: &[f32; LANE_ELEMENTS],
    is_there: bool,
) {
    let out = &params.documents;
    let first = u64::from(row) * u64::from(out.dim) + u64::from(columns.element);
    let address = out.base + first * 4;
    // SAFETY: the caller's promise; whole lanes are aligned where the output says so.
    unsafe {
        if out.aligned != 0 && columns.n_elements == T::N as u32 {
            unroll!(k in 0 1 => if k < T::N / 4 {
                let mut four = [0.0f32; 4];
                unroll!(e in four => four[e] = sums[4 * k + e]);
                add_f32x4_if(address + k as u64 * 16, four, u32::from(is_there));
            });
            return;
        }
        unroll!(e in eight => {
            let is_there = is_there & ((e as u32) < columns.n_elements);
            add_f32_if(address + e as u64 * 4, sums[e], u32::from(is_there));
        });
    }
}
