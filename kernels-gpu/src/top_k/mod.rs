//! The best k of each row of scores, or of keys: an exact selection.
//!
//! ```text
//! key        score and id as one integer, see `abi::params::top_k`; a ranking is falling keys, and
//!            the upper word of a key is its score
//! survey     numbers, NaN and empty entries are counted; the largest of each thread and group
//! bound      the k-th largest of these is a bound that k entries reach, and hardly more: a
//!            histogram of 2048 bins says in which of them that is
//! narrow     where too many reach the bound: a histogram of all words; the bin that has the k-th
//!            is the next range, until it can be sorted; equal words are then narrowed by their
//!            lower ones
//! gather     the keys that reach the bound, in shared memory
//! sort       those keys, bitonically; the first k are the result
//! ```
//!
//! A CTA of 512 has a chunk of a row. Entries are read again by each step, from L1 or L2: twice for
//! k up to 256, else three times. Instructions and latency bound it: so scores that lie in order
//! are loaded eight at a time and taken as numbers, and words and ids are made of the few that are
//! gathered. All others take a loop whose code is there once.
//!
//! Rows of plain scores have ways of their own, which end here where they find no bound: short
//! ones with few k stay in registers (`short`), and of long ones the groups are searched first
//! (`groups`).
//!
//! Shared memory: what warps found, then the histogram, later the keys in its place: 9 KB for k up
//! to 512, 65 KB for 4096. Loss: one CTA waits for its own steps.

mod entries;
mod find;
pub mod groups;
mod search;
pub mod short;
mod sort;

use crate::abi::params::top_k::{
    BINS, FOUND_OFFSET, K_OF_THREADS, KEYS_OFFSET, NO_WORD, NUMBER_MIN, THREADS, TopKParams,
    WordRange, bound, is_number, key_of_word, upper_word, word,
};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::{add_shared_if, add_u64, fetch_add_shared_if};
use crate::ptx::global::{load_written_u64, store_u32x2};
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x2, load_shared_u32x4, store_shared_u32,
    store_shared_u32x2_if, store_shared_u32x4,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{ballot, broadcast, lane_idx};
use entries::{Entries, Place};
use find::{Survey, largest};
use search::{All, Search, Step};

/// Selects the best k of the block's chunk.
///
/// # Safety
/// `params` must describe memory as [`TopKParams`] says, which nothing else writes meanwhile; all
/// threads of the block.
#[inline(always)]
pub unsafe fn top_k(params: &TopKParams) {
    // SAFETY: the caller's promise; all threads take every step together.
    unsafe {
        let Some(entries) = Entries::of_block(params) else { return };
        let (most, survey) = survey(params, &entries);
        if thread_idx_x() == 0 {
            count(params, entries.row(params), &survey);
        }
        let ((mut search, all), mut n_sorted) = (Search::new(params, &survey), 0);
        // Kept where it takes no register.
        let kept = dynamic_shared() + FOUND_OFFSET + 32;
        if thread_idx_x() == 0 {
            store_shared_u32x4(kept, [all.n, all.range.low, all.range.high, all.wanted]);
        }
        // No key has place 0.
        #[expect(clippy::while_immutable_condition, reason = "of none there is nothing to do")]
        while all.wanted > 0 {
            clear(!search.gathers());
            pass(params, &entries, &search, most);
            sync_threads();
            if search.gathers() {
                n_sorted = load_shared_u32(dynamic_shared() + FOUND_OFFSET);
                if n_sorted <= params.capacity {
                    break;
                }
                // Too many reach the bound.
                let [n, low, high, wanted] = load_shared_u32x4(kept);
                search.narrow(params, All { n, range: WordRange { low, high }, wanted });
            } else {
                let wanted = load_shared_u32(kept + 12);
                search.advance(params, find::bin(wanted - search.n_above));
            }
        }
        store(params, &search, n_sorted, kept + 12);
    }
}

/// Counts the entries: the thread's largest word, and what the block has found.
///
/// # Safety
/// As [`top_k`].
#[inline(always)]
unsafe fn survey(params: &TopKParams, entries: &Entries) -> (u32, Survey) {
    let (mut own, mut most) = (Survey::NONE, NO_WORD);
    // SAFETY: the caller's promise.
    unsafe {
        let start = match entries.are_plain(params) {
            true => entries.each_eight(params, |scores, _| own.add_eight(scores)),
            false => 0,
        };
        entries.each(params, start, |word, place, is_last| {
            own.add(word, place.is_own());
            most = most.max(word);
            if is_last {
                own.add_group(most);
                most = NO_WORD;
            }
        });
        (own.most, own.of_block())
    }
}

/// Clears what a step counts in.
///
/// # Safety
/// All threads of the block must call it together.
#[inline(always)]
unsafe fn clear(clears_bins: bool) {
    // SAFETY: the block has the counters and the bins.
    unsafe {
        // What was found by the step before has been read.
        sync_threads();
        if thread_idx_x() == 0 {
            store_shared_u32x4(dynamic_shared() + FOUND_OFFSET, [0; 4]);
        }
        if clears_bins {
            let mut bin = thread_idx_x();
            while bin < BINS {
                store_shared_u32(dynamic_shared() + KEYS_OFFSET + bin * 4, 0);
                bin += THREADS as u32;
            }
        }
        sync_threads();
    }
}

/// Takes a step with the entries, or with the thread's largest one: counts or copies them.
///
/// # Safety
/// As [`top_k`].
#[inline(always)]
unsafe fn pass(params: &TopKParams, entries: &Entries, search: &Search, most: u32) {
    let step = search.step;
    // SAFETY: the caller's promise; whole warps come here.
    unsafe {
        if step == Step::BoundOfThreads {
            tally(search.range, most, most != NO_WORD);
            return;
        }
        let start = match entries.are_plain(params) {
            true => pass_plain(params, entries, search),
            false => 0,
        };
        let mut most = NO_WORD;
        entries.each(params, start, |word, place, is_last| {
            most = most.max(word);
            match step {
                Step::Gather | Step::GatherAbove => {
                    gather(params, entries, search, word, &place);
                }
                Step::Narrow => narrow(params, entries, search, word, &place),
                _ if is_last => {
                    tally(search.range, most, most != NO_WORD);
                    most = NO_WORD;
                }
                _ => {}
            }
        });
    }
}

/// Takes a step with the entries of a plain chunk, eight of each thread at a time, as many as there
/// are so; returns where the others begin.
///
/// # Safety
/// As [`top_k`].
#[inline(always)]
unsafe fn pass_plain(params: &TopKParams, entries: &Entries, search: &Search) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match search.step {
            Step::BoundOfGroups => entries.each_eight(params, |scores, _| {
                tally(search.range, word(largest(scores), false), true);
            }),
            _ if search.gathers() && search.least_word() >= NUMBER_MIN => {
                let bound = bound(search.least_word());
                entries.each_eight(params, |scores, place| {
                    // First of all eight, which the assembler loads together for it: for eight
                    // comparisons it would load one after the other.
                    if ballot((largest(scores) >= bound) as u32) == 0 {
                        return;
                    }
                    let mut left = 0u32;
                    unroll!(K in 0..8 => { left |= u32::from(scores[K] >= bound) << K; });
                    // Hardly ever more than one of a lane.
                    while ballot(left) != 0 {
                        let place = place.behind(left.trailing_zeros() % 8);
                        let word = if left == 0 { NO_WORD } else { place.plain_word() };
                        gather(params, entries, search, word, &place);
                        left &= left.wrapping_sub(1);
                    }
                })
            }
            _ => 0,
        }
    }
}

/// Stores or adds the numbers of NaN and of empty entries.
///
/// # Safety
/// One thread; as [`top_k`].
#[inline(always)]
unsafe fn count(params: &TopKParams, row: u32, survey: &Survey) {
    if params.counts == 0 {
        return;
    }
    let offset = u64::from(row) * 16;
    let address = params.counts + offset;
    // SAFETY: two numbers per row; where a row has several chunks all of them add.
    unsafe {
        let [n_nan, n_empty] = match params.key_counts {
            0 => survey.counted.map(u64::from),
            counts => [0, 8].map(|number| load_written_u64(counts + offset + number)),
        };
        match params.adds_counts {
            0 => {
                // Of entries, which are fewer than 2³².
                store_u32x2(address, [n_nan as u32, 0]);
                store_u32x2(address + 8, [n_empty as u32, 0]);
            }
            _ => {
                add_u64(address, n_nan);
                add_u64(address + 8, n_empty);
            }
        }
    }
}

/// Counts a word in the histogram of its range.
///
/// # Safety
/// Whole warps, of a block that has the bins.
#[inline(always)]
unsafe fn tally(range: WordRange, word: u32, is_counted: bool) {
    let bins = dynamic_shared() + KEYS_OFFSET;
    let is_inside = is_counted & range.contains(word);
    let bin = if is_inside { word.wrapping_sub(range.low) >> range.shift() } else { BINS };
    // SAFETY: the caller's promise.
    unsafe {
        let first = broadcast(bin);
        let same = ballot((bin == first) as u32);
        let is_counted = is_inside & ((bin != first) | (lane_idx() == 0));
        let n = if bin == first { same.count_ones() } else { 1 };
        add_shared_if(bins + bin * 4, n, is_counted as u32);
    }
}

/// Counts a word of an entry in the histogram of its range, the upper or the lower one of its key.
///
/// # Safety
/// As [`top_k`], by whole warps.
#[inline(always)]
unsafe fn narrow(
    params: &TopKParams,
    entries: &Entries,
    search: &Search,
    word: u32,
    place: &Place,
) {
    let is_lower = search.word != NO_WORD;
    let is_counted = word != NO_WORD && (!is_lower || word == search.word);
    // SAFETY: the caller's promise.
    unsafe {
        let word = match is_lower && is_counted {
            true => entries.lower_word(params, place),
            false => word,
        };
        tally(search.range, word, is_counted);
    }
}

/// Copies a key that is to be sorted to shared memory, if there is room.
///
/// # Safety
/// As [`top_k`], by whole warps.
#[inline(always)]
unsafe fn gather(
    params: &TopKParams,
    entries: &Entries,
    search: &Search,
    word: u32,
    place: &Place,
) {
    let is_candidate = word != NO_WORD && word >= search.least_word();
    // SAFETY: the caller's promise; each key has a place of its own.
    unsafe {
        if ballot(is_candidate as u32) == 0 {
            return;
        }
        let lower = if is_candidate { entries.lower_word(params, place) } else { 0 };
        let is_gathered = is_candidate && key_of_word(word, !lower) >= search.least();
        let at = self::place(dynamic_shared() + FOUND_OFFSET, is_gathered);
        let has_room = is_gathered && at < params.capacity;
        let address = dynamic_shared() + KEYS_OFFSET + at * 8;
        store_shared_u32x2_if(address, [lower, word], has_room as u32);
    }
}

/// The place of each lane's key, behind those of keys before.
///
/// # Safety
/// Whole warps, with the address of a counter in shared memory.
#[inline(always)]
unsafe fn place(counter: u32, is_one: bool) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        let lane = lane_idx();
        let all = ballot(is_one as u32);
        let is_first = (all != 0) & (lane == 0);
        let first = broadcast(fetch_add_shared_if(counter, all.count_ones(), is_first as u32));
        first + (all & ((1 << lane) - 1)).count_ones()
    }
}

/// Sorts what was gathered and stores the block's best keys, and zeros behind them.
///
/// # Safety
/// As [`top_k`]; `n_sorted` keys were gathered, and how many are wanted is in shared memory.
#[inline(always)]
unsafe fn store(params: &TopKParams, search: &Search, n_sorted: u32, wanted: u32) {
    let keys = dynamic_shared() + KEYS_OFFSET;
    let out = params.out + u64::from(block_idx_x()) * u64::from(params.k) * 8;
    // SAFETY: there is room for the keys up to a power of two; the host sized those written.
    unsafe {
        // What is sorted has zeros behind it, up to a power of two.
        let mut place = n_sorted + thread_idx_x();
        while place < n_sorted.next_power_of_two() {
            store_shared_u32x2_if(keys + place * 8, [0; 2], 1);
            place += THREADS as u32;
        }
        sync_threads();
        sort::sort(keys, n_sorted);
        let wanted = load_shared_u32(wanted);
        let mut place = thread_idx_x();
        while place < params.k {
            // Keys that are all equal come behind those that are sorted.
            let key = match (place < wanted, place < n_sorted) {
                (false, _) => [0; 2],
                (true, true) => load_shared_u32x2(keys + place * 8),
                (true, false) => [search.low() as u32, upper_word(search.low())],
            };
            store_u32x2(out + u64::from(place) * 8, key);
            place += THREADS as u32;
        }
    }
}
