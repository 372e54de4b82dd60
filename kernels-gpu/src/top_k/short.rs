//! The best k of a short row of plain scores, for few k: one read of them, which stay in registers.
//!
//! ```text
//! read       32 scores of each of 1024 threads, all loads in flight together
//! bound      the k-th largest of what threads have as their largest, by a histogram of 1024 bins
//! gather     the keys of scores that reach it, in shared memory
//! rank       a key's place is the number of larger ones: every key is compared with every other
//! ```
//!
//! Four barriers instead of some thirty: one CTA waits for its own steps. Rows with NaN or with
//! threads that have −∞ alone, and those of which too many scores reach the bound, are left to half
//! of the threads, which take the steps of `top_k`. Registers: 64, which is all that 1024 threads
//! can have. Shared memory: 9 KB.

use super::find::Survey;
use super::{
    NO_WORD, THREADS, TopKParams, WordRange, bound as score_of, count, key_of_word, place, sort,
    top_k, word,
};
use crate::abi::params::top_k::{FOUND_OFFSET, KEYS_OFFSET, SHORT_THREADS};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::add_shared_if;
use crate::ptx::global::{read_f32, read_f32x8_of, store_u32x2};
use crate::ptx::math::max_nan;
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x2, store_shared_u32, store_shared_u32x2,
    store_shared_u32x2_if,
};
use crate::ptx::thread::{block_idx_here, block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{
    add_lanes, ballot, lane_idx, max_lanes, shuffle, shuffle_xor, sum_up_to_lane,
};

/// Bins of the histogram: one of each thread.
const BINS: u32 = SHORT_THREADS as u32;

/// Offset of the warps' sums of bins.
const SUMS_OFFSET: u32 = 8 * SHORT_THREADS as u32 / 32;

/// Offset of the keys, behind the histogram.
const SHORT_KEYS_OFFSET: u32 = KEYS_OFFSET + BINS * 4;

/// Keys for which there is room.
const ROOM: u32 = 512;

/// Most keys that are compared with each other; more are sorted.
const RANKED_MAX: u32 = 256;

/// Scores of a thread.
type Scores = [[f32; 8]; 4];

/// Selects the best k of the block's row.
///
/// # Safety
/// As [`top_k`], in a block of [`SHORT_THREADS`] per row: of plain scores in order, at most
/// `SHORT_ROW_MAX`, with k up to `SHORT_K_MAX` and without keys beside them.
#[inline(always)]
pub unsafe fn top_k_short(params: &TopKParams) {
    // SAFETY: the caller's promise. A barrier waits for threads that have not left.
    unsafe {
        if select(params) {
            return;
        }
        sync_threads();
        if thread_idx_x() < THREADS as u32 {
            // What such rows do not have, so that its code and registers are left out.
            let params = TopKParams {
                keys: 0,
                positions: 0,
                documents: 0,
                starts: 0,
                empty: 0,
                best: 0,
                key_counts: 0,
                found: 0,
                chunk_len: params.row_len,
                n_chunks: 1,
                reads_items: 0,
                ..*params
            };
            top_k(&params);
        }
    }
}

/// Selects the row's best, if it is a row for that; says whether it is.
///
/// # Safety
/// As [`top_k_short`].
#[inline(always)]
unsafe fn select(params: &TopKParams) -> bool {
    let n = params.row_len;
    let wanted = if n < params.k { n } else { params.k };
    let row = u64::from(block_idx_x());
    let address = params.scores + (row * u64::from(n) + u64::from(thread_idx_x())) * 4;
    let counter = dynamic_shared() + FOUND_OFFSET;
    // SAFETY: the caller's promise; all threads take every step together.
    unsafe {
        let (scores, most) = read(address, n);
        store_shared_u32(dynamic_shared() + KEYS_OFFSET + thread_idx_x() * 4, 0);
        if thread_idx_x() == 0 {
            store_shared_u32(counter, 0);
        }
        let range = range(most, thread_idx_x() < n);
        if range.low <= word(f32::NEG_INFINITY, false) || wanted == 0 {
            return false;
        }
        let bound = score_of(bound(range, word(most, false), thread_idx_x() < n, wanted));
        gather(params, &scores, bound);
        sync_threads();
        let n_found = load_shared_u32(counter);
        if n_found > ROOM {
            return false;
        }
        if thread_idx_x() == 0 {
            count(params, block_idx_x(), &Survey::NONE);
        }
        store(params, n_found, wanted);
    }
    true
}

/// The thread's scores, −∞ behind the last, and the largest of them, or NaN where one is.
///
/// # Safety
/// The address must be that of the thread's first score, of a row of so many.
#[inline(always)]
unsafe fn read(address: u64, n: u32) -> (Scores, f32) {
    let mut scores = [[f32::NEG_INFINITY; 8]; 4];
    let n_own = (n + SHORT_THREADS as u32 - 1 - thread_idx_x()) / SHORT_THREADS as u32;
    unroll!(G in 0..4 => {
        if ((8 * G * SHORT_THREADS) as u32) < n {
            let mut addresses = [0; 8];
            unroll!(K in 0..8 => {
                addresses[K] = address + ((8 * G + K) * SHORT_THREADS * 4) as u64;
            });
            // SAFETY: the caller's promise.
            scores[G] = unsafe { read_f32x8_of(addresses, n_own.saturating_sub(8 * G as u32)) };
        }
    });
    // From the last ones on, or the assembler would wait for the first before it loads others.
    let mut most = f32::NEG_INFINITY;
    unroll!(G in 0..4 => {
        unroll!(K in 0..8 => { most = max_nan(most, scores[3 - G][K]); });
    });
    (scores, most)
}

/// The smallest and the largest of the words of threads' largest scores.
///
/// # Safety
/// All threads of the block must call it together.
#[inline(always)]
unsafe fn range(most: f32, has_score: bool) -> WordRange {
    let own = word(most, false);
    let slots = dynamic_shared();
    // SAFETY: each warp has a slot; whole warps come here.
    unsafe {
        let [low, high] = if has_score { [!own, own] } else { [0; 2] };
        let of_warp = [max_lanes(low), max_lanes(high)];
        if lane_idx() == 0 {
            store_shared_u32x2(slots + thread_idx_x() / 32 * 8, of_warp);
        }
        sync_threads();
        let [low, high] = load_shared_u32x2(slots + lane_idx() * 8);
        WordRange { low: !max_lanes(low), high: max_lanes(high) }
    }
}

/// The smallest word of the bin that has the word of place `wanted` among those of threads.
///
/// # Safety
/// All threads of the block must call it together, with bins that are 0, and `wanted` no more than
/// there are words.
#[inline(always)]
unsafe fn bound(range: WordRange, own: u32, has_score: bool, wanted: u32) -> u32 {
    let (bins, lane) = (dynamic_shared() + KEYS_OFFSET, lane_idx());
    let sums = dynamic_shared() + SUMS_OFFSET;
    // Half as many bins as other ranges have.
    let shift = range.shift() + 1;
    // SAFETY: the block has the bins, and a word per warp; whole warps come here.
    unsafe {
        let bin = own.wrapping_sub(range.low) >> shift;
        add_shared_if(bins + bin * 4, 1, u32::from(has_score));
        sync_threads();
        // The first thread has the uppermost bin.
        let sum = add_lanes(load_shared_u32(bins + (BINS - 1 - thread_idx_x()) * 4));
        if lane == 0 {
            store_shared_u32(sums + thread_idx_x() / 32 * 4, sum);
        }
        sync_threads();
        // Each warp finds the bin for itself: its 32 bins first.
        let (warp, before) = find(load_shared_u32(sums + lane * 4), wanted);
        let last = BINS - 1 - warp * 32;
        let (of_warp, _) = find(load_shared_u32(bins + (last - lane) * 4), wanted - before);
        range.low + ((last - of_warp) << shift)
    }
}

/// The first lane up to which the sum of the lanes' numbers is at least `wanted`, and the sum
/// before it.
///
/// # Safety
/// Whole warps, with the same `wanted`, of which there are as many.
#[inline(always)]
unsafe fn find(n: u32, wanted: u32) -> (u32, u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let up_to = sum_up_to_lane(n);
        let lane = ballot(u32::from(up_to >= wanted)).trailing_zeros();
        (lane, shuffle(up_to - n, lane))
    }
}

/// Copies the keys of the thread's scores that reach the bound to shared memory, where there is
/// room.
///
/// # Safety
/// As [`top_k_short`], by whole warps.
#[inline(always)]
unsafe fn gather(params: &TopKParams, scores: &Scores, bound: f32) {
    let mut left = 0u32;
    unroll!(G in 0..4 => {
        unroll!(K in 0..8 => { left |= u32::from(scores[G][K] >= bound) << (8 * G + K); });
    });
    // From the block's index on anew: what the scores are read by would take registers from them.
    let row = block_idx_here();
    let scores = params.scores + u64::from(row) * u64::from(params.row_len) * 4;
    let first_id = params.first_id.wrapping_add(params.first_document + row * params.row_documents);
    // SAFETY: the row has these scores; each key has a place of its own.
    unsafe {
        // Hardly ever more than one of a lane.
        while ballot(left) != 0 {
            let index = left.trailing_zeros() % 32 * SHORT_THREADS as u32 + thread_idx_x();
            let is_one = left != 0;
            let at = self::place(dynamic_shared() + FOUND_OFFSET, is_one);
            let score = if is_one { read_f32(scores + u64::from(index) * 4) } else { 0.0 };
            let key = key_of_word(word(score, false), first_id.wrapping_add(index));
            let room = dynamic_shared() + SHORT_KEYS_OFFSET + at * 8;
            let has_room = is_one && at < ROOM;
            store_shared_u32x2_if(room, [key as u32, (key >> 32) as u32], u32::from(has_room));
            left &= left.wrapping_sub(1);
        }
    }
}

/// Stores the best of the gathered keys in their order, and zeros behind them.
///
/// # Safety
/// As [`top_k_short`]; so many keys were gathered, behind a barrier.
#[inline(always)]
unsafe fn store(params: &TopKParams, n: u32, wanted: u32) {
    let keys = dynamic_shared() + SHORT_KEYS_OFFSET;
    let out = params.out + u64::from(block_idx_x()) * u64::from(params.k) * 8;
    // SAFETY: there is room for the keys up to a power of two; the host sized those written.
    unsafe {
        let mut place = wanted + thread_idx_x();
        while place < params.k {
            store_u32x2(out + u64::from(place) * 8, [0; 2]);
            place += SHORT_THREADS as u32;
        }
        if n > RANKED_MAX {
            let place = n + thread_idx_x();
            let is_behind = place < n.next_power_of_two();
            store_shared_u32x2_if(keys + place * 8, [NO_WORD; 2], u32::from(is_behind));
            sync_threads();
            sort::sort(keys, n);
            let place = thread_idx_x();
            if place < wanted {
                store_u32x2(out + u64::from(place) * 8, load_shared_u32x2(keys + place * 8));
            }
            return;
        }
        // Each key has four threads, or eight.
        let parts = if n > RANKED_MAX / 2 { 4 } else { 8 };
        let (index, part) = (thread_idx_x() / parts, thread_idx_x() % parts);
        let own = if index < n { load_key(keys, index) } else { 0 };
        let (mut other, mut place) = (part, 0);
        while other < n {
            place += u32::from(load_key(keys, other) > own);
            other += parts;
        }
        place += shuffle_xor::<1>(place);
        place += shuffle_xor::<2>(place);
        let more = shuffle_xor::<4>(place);
        place += if parts == 8 { more } else { 0 };
        if part == 0 && index < n && place < wanted {
            store_u32x2(out + u64::from(place) * 8, [own as u32, (own >> 32) as u32]);
        }
    }
}

/// A key in shared memory.
///
/// # Safety
/// There must be the key.
#[inline(always)]
unsafe fn load_key(keys: u32, index: u32) -> u64 {
    // SAFETY: the caller's promise.
    let [low, high] = unsafe { load_shared_u32x2(keys + index * 8) };
    u64::from(low) | u64::from(high) << 32
}

const _: () = assert!(SUMS_OFFSET + SHORT_THREADS as u32 / 8 <= FOUND_OFFSET);
const _: () = assert!(RANKED_MAX * 4 == SHORT_THREADS as u32 && ROOM <= 4 * THREADS as u32);
