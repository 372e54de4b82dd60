//! What a search that the device drives finds between its scores, in two launches of one CTA.
//!
//! ```text
//! candidates   keys of a selection → segments, for the kernel that scores them in full precision
//! reaching     the k-th of these scores gives a threshold; documents behind the candidates whose
//!              score and bound reach it are a bit each, which a sum over words puts in order
//! ```
//!
//! Reading is what it waits for: 16 bytes a document, 20 000 of them in five rounds of sixteen
//! loads a thread. Loss: one CTA reads with one multiprocessor, some 5 µs for 320 KB; several would
//! need another launch to bring what they find in order.

use crate::abi::params::search::{
    CANDIDATES_MAX, LEAST_OFFSET, NO_DOCUMENT, ROW_BYTES, SUMS_OFFSET, SearchParams, THREADS,
    WORDS_OFFSET, item_of, threshold,
};
use crate::abi::params::top_k::{NO_KEY, NO_WORD, bound, entry, is_number, key_of_word, word};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{
    load_f32, load_u32, load_u32_if, load_u32x2, load_u64, store_u32x2, store_u32x4,
};
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32, load_shared_u32, load_shared_u32x2, store_shared_f32,
    store_shared_u32,
};
use crate::ptx::thread::{sync_threads, thread_idx_x};
use crate::ptx::warp::{add_lanes, ballot, lane_idx, shuffle_xor, sum_up_to_lane};

/// Words of 32 documents that a warp looks at together.
const AT_ONCE: u32 = 4;

/// Warps of the block.
const WARPS: u32 = THREADS as u32 / 32;

/// Makes items of the candidates, and none yet of what is found later.
///
/// # Safety
/// `params` must describe memory as [`SearchParams`] says, which nothing else uses meanwhile; all
/// threads of one block of [`THREADS`].
#[inline(always)]
pub unsafe fn candidates(params: &SearchParams) {
    // SAFETY: there are as many keys and items; documents are checked to be there.
    unsafe {
        let mut item = thread_idx_x();
        while item < params.n_candidate_items {
            let rows = match params.document(key(params, item)) {
                Some(id) => segment(params, id),
                None => [0; 2],
            };
            store_u32x2(params.candidate_items + u64::from(item) * 8, rows);
            item += THREADS as u32;
        }
        let n_found_items = if params.found_items == 0 { 0 } else { params.room };
        let mut item = thread_idx_x();
        while item < n_found_items {
            store_u32x2(params.found_items + u64::from(item) * 8, [0; 2]);
            item += THREADS as u32;
        }
    }
}

/// Finds the documents behind the candidates that may change the ranking.
///
/// # Safety
/// As [`candidates`], whose items have been scored.
#[inline(always)]
pub unsafe fn reaching(params: &SearchParams) {
    let thread = thread_idx_x();
    let n_words = params.n_documents.div_ceil(32);
    // SAFETY: the caller's promise; all threads take every step together.
    unsafe {
        let least = least(params);
        let last = key(params, params.n_candidates.wrapping_sub(1));
        mark(params, least, last);
        sync_threads();
        // Words that nothing was written to are none.
        let [a, b] = load_shared_u32x2(dynamic_shared() + thread * 8);
        let words = [
            if 2 * thread < n_words { a } else { 0 },
            if 2 * thread + 1 < n_words { b } else { 0 },
        ];
        let n_own = words[0].count_ones() + words[1].count_ones();
        let [place, n_found] = places(n_own);
        if thread == 0 {
            let count = |i: u64| load_u32(params.counts + i * 8);
            store_u32x4(params.rows, [n_found, count(0), count(1), 0]);
        }
        if n_found > params.room {
            return;
        }
        store(params, words, place, n_found);
    }
}

/// The key of a candidate; none behind the last.
///
/// # Safety
/// As [`candidates`].
#[inline(always)]
unsafe fn key(params: &SearchParams, candidate: u32) -> u64 {
    match candidate < params.n_candidates {
        // SAFETY: there is the key.
        true => unsafe { load_u64(params.keys + u64::from(candidate) * 8) },
        false => NO_KEY,
    }
}

/// The rows of a document.
///
/// # Safety
/// As [`candidates`]; there must be the document.
#[inline(always)]
unsafe fn segment(params: &SearchParams, id: u32) -> [u32; 2] {
    match params.segments {
        0 => [id * params.item_len, params.item_len],
        // SAFETY: the caller's promise.
        segments => unsafe { load_u32x2(segments + u64::from(id) * 8) },
    }
}

/// The bound of a document.
///
/// # Safety
/// As [`segment`].
#[inline(always)]
unsafe fn bound_of(params: &SearchParams, id: u32) -> f32 {
    let offset = u64::from(id) * 4;
    let [l2, u2, magnitude] = params.terms;
    // SAFETY: the caller's promise.
    let terms =
        unsafe { [load_u32(l2 + offset), load_u32(u2 + offset), load_u32(magnitude + offset)] };
    let [l2, u2, magnitude] = terms.map(f32::from_bits);
    params.factors.bound(l2, u2, magnitude)
}

/// What score and bound must reach, by the k-th of the candidates' scores; all do where that is no
/// number. Writes the candidates' rows.
///
/// # Safety
/// As [`reaching`].
#[inline(always)]
unsafe fn least(params: &SearchParams) -> f32 {
    let (thread, n) = (thread_idx_x(), params.n_candidates);
    let shared = dynamic_shared();
    // SAFETY: the caller's promise; each candidate has a row, a score and four threads, and the
    // block has the words.
    unsafe {
        if thread < CANDIDATES_MAX {
            let mut own = NO_WORD;
            if thread < n {
                let key = key(params, thread);
                let mut row = [NO_DOCUMENT, 0, 0, 0];
                if let Some(id) = params.document(key) {
                    let exact = load_f32(params.candidate_scores + u64::from(thread) * 4);
                    let bound = bound_of(params, id);
                    row = [id, entry(key).score.to_bits(), bound.to_bits(), exact.to_bits()];
                    own = word(exact, false);
                }
                store_u32x4(params.rows + u64::from(1 + thread) * ROW_BYTES, row);
            }
            store_shared_u32(shared + WORDS_OFFSET + thread * 4, own);
        }
        if thread == 0 {
            store_shared_f32(shared + LEAST_OFFSET, f32::NEG_INFINITY);
        }
        sync_threads();
        let (candidate, part) = (thread / 4, thread % 4);
        let own = load_shared_u32(shared + WORDS_OFFSET + candidate * 4);
        let (mut place, mut other) = (0, part);
        while other < n {
            let word = load_shared_u32(shared + WORDS_OFFSET + other * 4);
            // Of equal ones the first comes first: each has a place of its own.
            place += u32::from(word > own || (word == own && other < candidate));
            other += 4;
        }
        place += shuffle_xor::<1>(place);
        place += shuffle_xor::<2>(place);
        if candidate < n && part == 0 && place + 1 == params.k && is_number(own) {
            let least = threshold(bound(own), params.largest) as f32;
            store_shared_f32(shared + LEAST_OFFSET, least);
        }
        sync_threads();
        load_shared_f32(shared + LEAST_OFFSET)
    }
}

/// Writes a bit for each document to shared memory: 1 where it comes behind the key `last`, and its
/// score and bound reach `least`.
///
/// # Safety
/// As [`reaching`].
#[inline(always)]
unsafe fn mark(params: &SearchParams, least: f32, last: u64) {
    let lane = lane_idx();
    let n_words = params.n_documents.div_ceil(32);
    let mut first = thread_idx_x() / 32 * AT_ONCE;
    // SAFETY: whole warps come here; what is read are numbers of documents that there are, and the
    // block has a bit for each.
    unsafe {
        while first < n_words {
            let mut numbers = [[0u32; 4]; AT_ONCE as usize];
            unroll!(K in 0..4 => {
                let id = (first + K as u32) * 32 + lane;
                let (offset, is_there) = (u64::from(id) * 4, u32::from(id < params.n_documents));
                let [l2, u2, magnitude] = params.terms;
                numbers[K] = [
                    load_u32_if(params.scores + offset, is_there),
                    load_u32_if(l2 + offset, is_there),
                    load_u32_if(u2 + offset, is_there),
                    load_u32_if(magnitude + offset, is_there),
                ];
            });
            unroll!(K in 0..4 => {
                let id = (first + K as u32) * 32 + lane;
                let [score, l2, u2, magnitude] = numbers[K].map(f32::from_bits);
                let reaches = score + params.factors.bound(l2, u2, magnitude) >= least;
                let is_behind = key_of_word(word(score, false), id) < last;
                let is_found = id < params.n_documents && reaches && is_behind;
                let bits = ballot(u32::from(is_found));
                if lane == 0 && first + (K as u32) < n_words {
                    store_shared_u32(dynamic_shared() + (first + K as u32) * 4, bits);
                }
            });
            first += WARPS * AT_ONCE;
        }
    }
}

/// The number of documents that threads before this one have found, and that of all.
///
/// # Safety
/// All threads of the block must call it together.
#[inline(always)]
unsafe fn places(n_own: u32) -> [u32; 2] {
    let (warp, lane) = (thread_idx_x() / 32, lane_idx());
    let sums = dynamic_shared() + SUMS_OFFSET;
    // SAFETY: the caller's promise; each warp has a sum.
    unsafe {
        let up_to = sum_up_to_lane(n_own);
        if lane == 31 {
            store_shared_u32(sums + warp * 4, up_to);
        }
        sync_threads();
        let of_warp = load_shared_u32(sums + lane * 4);
        let before = add_lanes(if lane < warp { of_warp } else { 0 });
        [before + up_to - n_own, add_lanes(of_warp)]
    }
}

/// Writes the rows and items of the documents whose bits are in the thread's words, from a place
/// on.
///
/// # Safety
/// As [`reaching`]; there must be room for all that were found.
#[inline(always)]
unsafe fn store(params: &SearchParams, [mut low, mut high]: [u32; 2], mut place: u32, n: u32) {
    let first = thread_idx_x() * 64;
    let rows = params.rows + u64::from(1 + params.n_candidates) * ROW_BYTES;
    // SAFETY: the caller's promise; each document has a row and an item of its own.
    unsafe {
        while low | high != 0 {
            let bit = if low != 0 { low.trailing_zeros() } else { 32 + high.trailing_zeros() };
            match low {
                0 => high &= high.wrapping_sub(1),
                _ => low &= low.wrapping_sub(1),
            }
            let id = first + bit;
            let score = load_u32(params.scores + u64::from(id) * 4);
            let bound = bound_of(params, id);
            store_u32x4(rows + u64::from(place) * ROW_BYTES, [id, score, bound.to_bits(), 0]);
            if params.found_items != 0 {
                let item = item_of(place, n, params.room);
                store_u32x2(params.found_items + u64::from(item) * 8, segment(params, id));
            }
            place += 1;
        }
    }
}

const _: () = assert!(AT_ONCE == 4 && CANDIDATES_MAX * 4 == THREADS as u32 && WARPS == 32);
