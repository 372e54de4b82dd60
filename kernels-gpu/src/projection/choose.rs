//! Rows of hidden states that some query token chose: put in slots, and taken out again where they
//! have no gradient; zeros for all others, and sums of parts.
//!
//! Later kernels multiply slots, of which there are few: a document has as many as it has winners,
//! or as it has rows where those are fewer. How many rows are chosen is never read by the host.
//!
//! Pipeline of `choose`, a block for each document, of which all warps take pairs in turn:
//!  1. Each winner sets the bit of its row in shared memory.
//!  2. A scan counts the bits before each word: a row's slot.
//!  3. Chosen rows are listed, slots behind them have none, and winners are written as slots.
//!
//! Where each row has its slot winners stay what they are, and there is nothing to count.

use crate::abi::params::projection::gradient::*;
use crate::backward::counting_sort::sort::scan;
use crate::backward::output::store_element;
use crate::ptx::atomic::or_shared_if;
use crate::ptx::global::{
    load_f32, load_u16, load_u32, load_u32x4, read_f32, read_u32, store_u16, store_u32, store_u32x4,
};
use crate::ptx::shared::{dynamic_shared, load_shared_u32, store_shared_u32};
use crate::ptx::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::ptx::warp::ballot;
use core::hint::assert_unchecked;

const WARPS: u32 = (THREADS / 32) as u32;

/// Puts the chosen rows of this block's document in its slots.
///
/// # Safety
/// `params` must describe documents and pairs as [`ChooseParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn choose(params: &ChooseParams) {
    let thread = thread_idx_x();
    let bits = dynamic_shared();
    let place = Place {
        params,
        thread,
        bits,
        before: bits + params.n_words * 4,
        // SAFETY: there is a document for each block.
        document: unsafe { document(params) },
    };
    // SAFETY: the caller's promise. Branches that pass barriers are uniform over the block.
    unsafe {
        if place.document.n_slots < place.document.n_rows {
            place.count();
            place.for_each(|winner| place.slot_of(winner));
        } else {
            let mut row = thread;
            while row < place.document.n_rows {
                let slot = params.rows + u64::from(place.document.slot + row) * 4;
                store_u32(slot, place.document.first_row + row);
                row += THREADS as u32;
            }
            place.for_each(|winner| winner);
        }
    }
}

/// The block's document.
///
/// # Safety
/// As [`choose`].
#[inline(always)]
unsafe fn document(params: &ChooseParams) -> ChosenDocument {
    let at = params.documents + u64::from(block_idx_x()) * size_of::<ChosenDocument>() as u64;
    // SAFETY: the caller's promise.
    unsafe {
        ChosenDocument {
            first_row: load_u32(at),
            n_rows: load_u32(at + 4),
            slot: load_u32(at + 8),
            n_slots: load_u32(at + 12),
            first_pair: load_u32(at + 16),
            n_pairs: load_u32(at + 20),
        }
    }
}

/// Position of a thread.
struct Place<'a> {
    params: &'a ChooseParams,
    thread: u32,
    /// Window addresses of a bit for each row, and of the number of bits before each word.
    bits: u32,
    before: u32,
    document: ChosenDocument,
}

impl Place<'_> {
    /// Finds and lists the document's chosen rows.
    ///
    /// # Safety
    /// As [`choose`], of a document whose rows are listed; all threads of the block.
    #[inline(always)]
    unsafe fn count(&self) {
        let ChosenDocument { n_rows, slot, n_slots, first_row, .. } = self.document;
        let n_words = words(n_rows);
        // SAFETY: the caller's promise: shared memory has a word for 32 rows each.
        unsafe {
            let mut word = self.thread;
            while word < n_words {
                store_shared_u32(self.bits + word * 4, 0);
                word += THREADS as u32;
            }
            sync_threads();
            self.for_each_winner(|_, _, winner| {
                let is_row = u32::from(winner < n_rows);
                or_shared_if(self.bits + winner / 32 * 4, 1 << (winner % 32), is_row);
            });
            sync_threads();
            let sums = self.before + self.params.n_words * 4;
            let (mut done, mut first) = (0, 0);
            while first < n_words {
                let word = first + self.thread;
                let mut left = match word < n_words {
                    true => load_shared_u32(self.bits + word * 4),
                    false => 0,
                };
                let (before, all) = scan(sums, self.thread, left.count_ones());
                let mut place = done + before;
                if word < n_words {
                    store_shared_u32(self.before + word * 4, place);
                }
                while left != 0 {
                    let row = word * 32 + left.trailing_zeros();
                    store_u32(self.params.rows + u64::from(slot + place) * 4, first_row + row);
                    place += 1;
                    left &= left - 1;
                }
                done += all;
                first += THREADS as u32;
            }
            let mut empty = done + self.thread;
            while empty < n_slots {
                store_u32(self.params.rows + u64::from(slot + empty) * 4, NO_ROW);
                empty += THREADS as u32;
            }
            sync_threads();
        }
    }

    /// The slot of a chosen row among the document's.
    ///
    /// # Safety
    /// Rows have been counted, and this one was.
    #[inline(always)]
    unsafe fn slot_of(&self, row: u32) -> u32 {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = load_shared_u32(self.bits + row / 32 * 4);
            let below = bits & ((1 << (row % 32)) - 1);
            load_shared_u32(self.before + row / 32 * 4) + below.count_ones()
        }
    }

    /// Calls a function with each pair of the warp, and the number and value of each of its winners
    /// that the lane has.
    ///
    /// # Safety
    /// As [`choose`].
    #[inline(always)]
    unsafe fn for_each_winner(&self, mut each: impl FnMut(&ChosenPair, u32, u32)) {
        let ChosenDocument { first_pair, n_pairs, .. } = self.document;
        let (lane, mut i) = (self.thread % 32, self.thread / 32);
        while i < n_pairs {
            let index = u64::from(first_pair + i);
            // SAFETY: the document has the pair, whose winners are there.
            unsafe {
                let pair = pair(self.params.pairs + index * size_of::<ChosenPair>() as u64);
                let mut token = lane;
                while token < pair.n_tokens {
                    let winner = match pair.winner_bytes {
                        2 => load_u16(pair.winners + u64::from(token) * 2),
                        _ => load_u32(pair.winners + u64::from(token) * 4),
                    };
                    each(&pair, token, winner);
                    token += 32;
                }
                // Of pairs without tokens, too.
                if lane == 0 {
                    each(&pair, NO_ROW, NO_ROW);
                }
            }
            i += WARPS;
        }
    }

    /// Writes the winners and gradients of all pairs: `to` says what becomes of a row that won.
    ///
    /// # Safety
    /// As [`choose`]; `to` may be called for all that did.
    #[inline(always)]
    unsafe fn for_each(&self, to: impl Fn(u32) -> u32) {
        let (params, n_rows) = (self.params, self.document.n_rows);
        // SAFETY: the caller's promise: there is room for all winners and gradients.
        unsafe {
            self.for_each_winner(|pair, token, winner| {
                if token == NO_ROW {
                    let of_score = load_f32(params.grad_scores + u64::from(pair.score) * 4);
                    let to = params.to_grad_scores + u64::from(pair.to_score) * 4;
                    return store_u32(to, of_score.to_bits());
                }
                // None is all ones.
                let found = if winner < n_rows { to(winner) } else { NO_ROW };
                let at = pair.to + u64::from(token);
                match params.winner_bytes {
                    2 => store_u16(params.to_winners + at * 2, found),
                    _ => store_u32(params.to_winners + at * 4, found),
                }
            });
        }
    }
}

/// Reads a pair.
///
/// # Safety
/// `at` must be the address of one.
#[inline(always)]
unsafe fn pair(at: u64) -> ChosenPair {
    const { assert!(size_of::<ChosenPair>() == 32) };
    // SAFETY: the caller's promise; pairs are aligned to 16.
    unsafe {
        let [a, b, c, d] = load_u32x4(at);
        let [score, to_score, n_tokens, winner_bytes] = load_u32x4(at + 16);
        let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        ChosenPair { winners: both(a, b), to: both(c, d), score, to_score, n_tokens, winner_bytes }
    }
}

/// Takes the row out of this warp's slot where its token's gradient is 0 throughout.
///
/// # Safety
/// `params` must describe slots as [`ActiveParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn active(params: &ActiveParams) {
    let (thread, lane) = (thread_idx_x(), thread_idx_x() % 32);
    let slot = block_idx_x() * WARPS + thread / 32;
    if slot >= params.n_slots {
        return;
    }
    let gradient = params.gradients + u64::from(slot) * u64::from(params.dim) * 4;
    // SAFETY: the caller's promise; branches are uniform over the warp.
    unsafe {
        // A NaN is a gradient, and so is a number below the normal ones; −0 is none.
        let (mut i, mut found) = (lane, 0);
        while i < params.dim {
            found |= read_u32(gradient + u64::from(i) * 4) & 0x7FFF_FFFF;
            i += 32;
        }
        if ballot(u32::from(found != 0)) != 0 {
            return;
        }
        let n_chunks = (params.states_pitch / 16) as u32;
        let states = params.states + u64::from(slot) * params.states_pitch;
        let mut chunk = lane;
        while chunk < n_chunks {
            store_u32x4(states + u64::from(chunk) * 16, [0; 4]);
            chunk += 32;
        }
        if lane == 0 {
            store_u32(params.rows + u64::from(slot) * 4, NO_ROW);
        }
    }
}

/// Adds the numbers of all parts for this thread's result.
///
/// # Safety
/// `params` must describe parts as [`SumPartsParams`] says.
#[inline(always)]
pub unsafe fn sum(params: &SumPartsParams) {
    let index = u64::from(block_idx_x()) * THREADS as u64 + u64::from(thread_idx_x());
    if index >= params.n {
        return;
    }
    // SAFETY: the caller's promise; there is a part.
    unsafe {
        assert_unchecked(params.n_parts != 0);
        let (mut sum, mut part) = (0.0, 0);
        let mut address = params.parts + index * 4;
        while part < params.n_parts {
            sum += read_f32(address);
            address += params.n * 4;
            part += 1;
        }
        store_element(&params.out, index, sum);
    }
}

/// Writes this thread's zeros. The grid is small: other kernels run beside it.
///
/// # Safety
/// `params` must describe memory as [`ZerosParams`] says, for this kernel alone to write.
#[inline(always)]
pub unsafe fn zeros(params: &ZerosParams) {
    let step = u64::from(grid_dim_x()) * THREADS as u64;
    let mut chunk = u64::from(block_idx_x()) * THREADS as u64 + u64::from(thread_idx_x());
    // SAFETY: the caller's promise.
    unsafe {
        while chunk < params.n_chunks {
            store_u32x4(params.to + chunk * 16, [0; 4]);
            chunk += step;
        }
    }
}
