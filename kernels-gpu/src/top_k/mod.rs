//! The best k of each row of scores, or of keys: an exact selection by histograms.
//!
//! ```text
//! key        score and id as one integer, see `abi::params::top_k`; a ranking is falling keys
//! survey     numbers, NaN and empty entries are counted; smallest and largest key
//! narrow     histogram of 2048 bins over the range that has the k-th key; the bin that has it is
//!            the next range, until its keys and all above fit into shared memory
//! sort       those keys, bitonically; the first k are the result
//! ```
//!
//! A CTA of 512 has a chunk of a row. Entries are read again by each pass, from L1 or L2: of scores
//! that differ there are three. Bins are as narrow as the range of keys allows, and lanes that meet
//! the bin of their warp's first lane are counted together, so that equal scores, which share
//! everything but their ids, do not queue for one counter.
//!
//! Shared memory: what warps found, then the histogram, later the keys in its place: 17 KB for k up
//! to 1024, 65 KB for 4096. Loss: passes of one CTA over a row are bound by latency, about 1 µs for
//! 20 000 scores each.

mod entries;
mod find;
mod sort;

use crate::abi::params::top_k::{
    BINS, FOUND_OFFSET, KEYS_OFFSET, KeyRange, NO_KEY, THREADS, TopKParams, is_empty, is_nan,
    is_number,
};
use crate::ptx::atomic::{add_shared_if, add_u64, fetch_add_shared_if};
use crate::ptx::global::{load_written_u64, store_u32x2};
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x2, store_shared_u32, store_shared_u32x2_if,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{ballot, broadcast, lane_idx};
use entries::Entries;
use find::Survey;

/// Selects the best k of the block's chunk.
///
/// # Safety
/// `params` must describe memory as [`TopKParams`] says, which nothing else writes meanwhile; all
/// threads of the block.
#[inline(always)]
pub unsafe fn top_k(params: &TopKParams) {
    // SAFETY: the caller's promise; all threads take every step together.
    unsafe {
        let entries = Entries::of_block(params);
        let survey = survey(params, &entries);
        if thread_idx_x() == 0 {
            count(params, entries.row, &survey);
        }
        let n_all = survey.n_numbers + survey.n_nan + survey.n_empty;
        let wanted = if n_all < params.k { n_all } else { params.k };
        // No key has place 0.
        if wanted > 0 {
            let chosen = narrow(params, &entries, &survey, wanted);
            let n_keys = gather(params, &entries, chosen);
            sort::sort(n_keys);
        }
        store(params, wanted);
    }
}

/// Counts the entries, and finds the range of all keys.
///
/// # Safety
/// As [`top_k`].
#[inline(always)]
unsafe fn survey(params: &TopKParams, entries: &Entries) -> Survey {
    let mut own = Survey::NONE;
    // SAFETY: the caller's promise.
    unsafe {
        entries.each_own(params, |key| own.add(key));
        own.counted = [own.n_nan, own.n_empty];
        entries.each_best(params, |key| own.add(key));
        own.of_block()
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

/// Keys to sort: those from `low` on, and where that is one key that too many entries have, those
/// above it and `n_equal` of it.
#[derive(Clone, Copy)]
struct Chosen {
    low: u64,
    is_above: bool,
    n_equal: u32,
}

/// Narrows the range of keys that has the one of place `wanted`, until no more than the capacity
/// are in it or above.
///
/// # Safety
/// As [`top_k`].
#[inline(always)]
unsafe fn narrow(params: &TopKParams, entries: &Entries, survey: &Survey, wanted: u32) -> Chosen {
    let all = survey.n_numbers + survey.n_nan + survey.n_empty;
    let are_numbers = survey.n_numbers >= wanted;
    let low = if are_numbers { survey.least } else { NO_KEY + 1 };
    let mut range = KeyRange { low, high: survey.most };
    let mut n_inside = if are_numbers { survey.n_numbers } else { all };
    let mut n_above = 0;
    // Keys of the range and above that, `n_above + n_inside` of them, are at least `wanted`.
    while n_above + n_inside > params.capacity && !range.is_one() {
        // SAFETY: the caller's promise; all threads have the same numbers.
        unsafe {
            histogram(params, entries, range);
            let (bin, before, inside) = find::bin(wanted - n_above);
            n_above += before;
            n_inside = inside;
            range = range.of_bin(bin);
        }
    }
    let is_above = n_above + n_inside > params.capacity;
    // `wanted` is at most half of the capacity, so that is in `n_above` and these.
    let n_equal = if is_above { wanted - n_above } else { 0 };
    Chosen { low: range.low, is_above, n_equal }
}

/// Counts the keys of a range by bin.
///
/// # Safety
/// As [`top_k`].
#[inline(always)]
unsafe fn histogram(params: &TopKParams, entries: &Entries, range: KeyRange) {
    let bins = dynamic_shared() + KEYS_OFFSET;
    let shift = range.shift();
    // SAFETY: the block has the bins; whole warps count.
    unsafe {
        // What was found in the last histogram has been read.
        sync_threads();
        let mut bin = thread_idx_x();
        while bin < BINS {
            store_shared_u32(bins + bin * 4, 0);
            bin += THREADS as u32;
        }
        sync_threads();
        entries.each(params, |key| {
            let is_inside = key >= range.low && key <= range.high;
            let bin = if is_inside { ((key - range.low) >> shift) as u32 } else { BINS };
            let first = broadcast(bin);
            let same = ballot((bin == first) as u32);
            let is_counted = is_inside & ((bin != first) | (lane_idx() == 0));
            let n = if bin == first { same.count_ones() } else { 1 };
            add_shared_if(bins + bin * 4, n, is_counted as u32);
        });
        sync_threads();
    }
}

/// Copies the chosen keys to shared memory; the number of them.
///
/// # Safety
/// As [`top_k`]; there must be no more than the capacity.
#[inline(always)]
unsafe fn gather(params: &TopKParams, entries: &Entries, chosen: Chosen) -> u32 {
    let (counter, keys) = (dynamic_shared() + FOUND_OFFSET, dynamic_shared() + KEYS_OFFSET);
    let least = chosen.low + u64::from(chosen.is_above);
    let lane = lane_idx();
    // SAFETY: whole warps; each key has a place of its own, below the capacity.
    unsafe {
        // The histogram, and what was found in it, have been read.
        sync_threads();
        if thread_idx_x() == 0 {
            store_shared_u32(counter, 0);
        }
        sync_threads();
        entries.each(params, |key| {
            let is_chosen = key >= least && key != NO_KEY;
            let chosen = ballot(is_chosen as u32);
            if chosen != 0 {
                let n = chosen.count_ones();
                let first = broadcast(fetch_add_shared_if(counter, n, (lane == 0) as u32));
                let place = first + (chosen & ((1 << lane) - 1)).count_ones();
                let word = [key as u32, (key >> 32) as u32];
                store_shared_u32x2_if(keys + place * 8, word, is_chosen as u32);
            }
        });
        sync_threads();
        let n_keys = load_shared_u32(counter);
        // The keys that are all equal, and zeros up to what is sorted.
        let n_all = n_keys + chosen.n_equal;
        let mut place = n_keys + thread_idx_x();
        while place < n_all.next_power_of_two() {
            let key = if place < n_all { chosen.low } else { NO_KEY };
            let word = [key as u32, (key >> 32) as u32];
            store_shared_u32x2_if(keys + place * 8, word, 1);
            place += THREADS as u32;
        }
        sync_threads();
        n_all
    }
}

/// Stores the block's best keys, and zeros behind them.
///
/// # Safety
/// As [`top_k`]; shared memory has as many sorted keys.
#[inline(always)]
unsafe fn store(params: &TopKParams, n_keys: u32) {
    let keys = dynamic_shared() + KEYS_OFFSET;
    let out = params.out + u64::from(block_idx_x()) * u64::from(params.k) * 8;
    let mut place = thread_idx_x();
    while place < params.k {
        // SAFETY: the host sized the keys that are written.
        unsafe {
            let key = if place < n_keys { load_shared_u32x2(keys + place * 8) } else { [0; 2] };
            store_u32x2(out + u64::from(place) * 8, key);
        }
        place += THREADS as u32;
    }
}
