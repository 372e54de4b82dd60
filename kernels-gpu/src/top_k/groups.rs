//! The keys that the best k of a long row are among, found with one read of its scores.
//!
//! ```text
//! largest    the largest score of each group, some 30 to 120 scores that lie far from each other
//! bound      the k-th largest of these, or little less: k groups have a score that reaches it
//! gather     the keys of scores that reach it, of the groups that have any
//! ```
//!
//! Of n groups some `k + k²/2n` scores reach the bound, whatever the scores are, unless many are
//! equal: where there is no room for these, `top_k` selects among all scores.

use super::find::{self, Survey};
use super::{NO_WORD, THREADS, WordRange, bound as score_of, clear, key_of_word, tally, word};
use crate::abi::params::top_k::groups::{GROUPS_OF_CTA, SLICES, TopKGroupsParams};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::{add_u64, fetch_add_if};
use crate::ptx::global::{read_f32x8_of, read_u32, store_u32, store_u32x2};
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{add_lanes, ballot, broadcast, lane_idx};
use core::hint::assert_unchecked;

/// The row of a block of a launch that has so many blocks per row, and which of these it is.
#[inline(always)]
fn row_of_block(n_blocks: u32) -> (u32, u32) {
    // SAFETY: rows have groups, and groups have blocks.
    unsafe { assert_unchecked(n_blocks != 0) };
    (block_idx_x() / n_blocks, block_idx_x() % n_blocks)
}

/// How many of the numbers `index`, `index + step` … are below `end`, at most so many that a
/// thread loads them together.
#[inline(always)]
fn n_below(index: u32, step: u32, end: u32) -> u32 {
    let mut n = 0;
    unroll!(K in 0..8 => { n += u32::from(index + K as u32 * step < end); });
    n
}

/// Finds the largest scores of the block's groups, and counts NaN.
///
/// # Safety
/// `params` must describe memory as [`TopKGroupsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn largest(params: &TopKGroupsParams) {
    let (row, block) = row_of_block(params.n_groups.div_ceil(GROUPS_OF_CTA));
    let (thread, first) = (thread_idx_x(), block * GROUPS_OF_CTA);
    let (of_block, slice) = (thread % GROUPS_OF_CTA, thread / GROUPS_OF_CTA);
    let (group, step) = (first + of_block, params.n_groups * SLICES);
    let is_group = group < params.n_groups;
    let scores = params.scores + u64::from(row) * u64::from(params.row_len) * 4;
    let mut index = if is_group { group + slice * params.n_groups } else { params.row_len };
    let (mut most, mut n_nan) = (f32::NEG_INFINITY, 0);
    // SAFETY: the row has these scores, and the block a number per thread.
    unsafe {
        while index < params.row_len {
            let mut addresses = [0; 8];
            unroll!(K in 0..8 => {
                let index = u64::from(index) + u64::from(step) * K as u64;
                addresses[K] = scores + index * 4;
            });
            let own = read_f32x8_of(addresses, n_below(index, step, params.row_len));
            unroll!(K in 0..8 => {
                n_nan += u32::from(own[K].is_nan());
                most = most.max(own[K]);
            });
            index += 8 * step;
        }
        let shared = dynamic_shared();
        store_shared_f32(shared + thread * 4, most);
        let n_nan = add_lanes(n_nan);
        if n_nan != 0 && lane_idx() == 0 {
            add_u64(params.counts + u64::from(row) * 16, u64::from(n_nan));
        }
        sync_threads();
        if slice == 0 && is_group {
            unroll!(K in 0..4 => {
                let place = thread + K as u32 * GROUPS_OF_CTA;
                most = most.max(load_shared_f32(shared + place * 4));
            });
            let group = u64::from(row) * u64::from(params.n_groups) + u64::from(group);
            store_u32(params.largest + group * 4, word(most, false));
        }
    }
}

const _: () = assert!(SLICES == 4);

/// Calls `each` with the words of the largest scores of a row's groups, and with [`NO_WORD`] where
/// lanes of a warp have none. Whole warps call it together.
///
/// # Safety
/// As [`bound`].
#[inline(always)]
unsafe fn each_group(params: &TopKGroupsParams, mut each: impl FnMut(u32)) {
    let n = params.n_groups;
    let words = params.largest + u64::from(block_idx_x()) * u64::from(n) * 4;
    let mut start = 0;
    while start < n {
        let index = start + thread_idx_x();
        let mut addresses = [0; 8];
        unroll!(K in 0..8 => {
            addresses[K] = words + (u64::from(index) + (K * THREADS) as u64) * 4;
        });
        // SAFETY: the row has these words.
        let own = unsafe { read_f32x8_of(addresses, n_below(index, THREADS as u32, n)) };
        unroll!(K in 0..8 => {
            let is_there = index + ((K * THREADS) as u32) < n;
            each(if is_there { own[K].to_bits() } else { NO_WORD });
        });
        start += 8 * THREADS as u32;
    }
}

/// Finds the bound of the block's row, and says that no score was found yet.
///
/// # Safety
/// `params` must describe memory as [`TopKGroupsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn bound(params: &TopKGroupsParams) {
    let mut survey = Survey::NONE;
    // SAFETY: the caller's promise; all threads take every step together.
    unsafe {
        each_group(params, |word| survey.add_group(word));
        let survey = survey.of_block();
        let mut range = WordRange { low: survey.least_of_groups, high: survey.most };
        let mut wanted = params.k;
        let few = if params.k / 16 < 16 { 16 } else { params.k / 16 };
        // There are more groups than keys are wanted.
        loop {
            clear(true);
            each_group(params, |word| tally(range, word, word != NO_WORD));
            sync_threads();
            let [bin, n_before, n_inside] = find::bin(wanted);
            range = range.of_bin(bin);
            wanted -= n_before;
            if n_inside <= few || range.is_one() {
                break;
            }
        }
        if thread_idx_x() == 0 {
            // Groups of NaN alone count as −∞, which they do not have.
            let has_bound = range.low > word(f32::NEG_INFINITY, false);
            let found = if has_bound { [0, range.low] } else { [u32::MAX; 2] };
            store_u32x2(params.found + u64::from(block_idx_x()) * 8, found);
        }
    }
}

/// Groups whose scores a warp looks at together.
const TOGETHER: usize = 4;

/// Gathers the keys of scores that reach the bound, of 32 groups of each warp.
///
/// # Safety
/// `params` must describe memory as [`TopKGroupsParams`] says; whole warps.
#[inline(always)]
pub unsafe fn gather(params: &TopKGroupsParams) {
    let (row, block) = row_of_block(params.n_groups.div_ceil(THREADS as u32));
    let first = block * THREADS as u32 + thread_idx_x() / 32 * 32;
    let (n, lane) = (params.n_groups, lane_idx());
    let found = params.found + u64::from(row) * 8;
    let group = first + lane;
    let address = params.largest + (u64::from(row) * u64::from(n) + u64::from(group)) * 4;
    // SAFETY: the row has these groups; whole warps come here.
    unsafe {
        let least = read_u32(found + 4);
        let own = if group < n { read_u32(address) } else { NO_WORD };
        let mut left = ballot(u32::from(own >= least));
        while left != 0 {
            let mut groups = [n; TOGETHER];
            unroll!(K in 0..4 => {
                if left != 0 {
                    groups[K] = first + left.trailing_zeros();
                    left &= left - 1;
                }
            });
            gather_groups(params, row, groups, least);
        }
    }
}

/// Gathers the keys of scores of some groups that reach the bound; `n_groups` is no group.
///
/// # Safety
/// As [`gather`].
#[inline(always)]
unsafe fn gather_groups(params: &TopKGroupsParams, row: u32, groups: [u32; TOGETHER], least: u32) {
    let (n, row_len, lane) = (params.n_groups, params.row_len, lane_idx());
    let found = params.found + u64::from(row) * 8;
    let scores = params.scores + u64::from(row) * u64::from(row_len) * 4;
    let keys = params.keys + u64::from(row) * u64::from(params.room) * 8;
    let first_id = params.first_id.wrapping_add(row * params.row_documents);
    let bound = score_of(least);
    let mut first = 0;
    while first < row_len {
        let start = first + lane * n;
        let mut own = [f32::NAN; TOGETHER];
        // SAFETY: the row has these scores; places below the room are this lane's own.
        unsafe {
            unroll!(K in 0..4 => {
                let index = start + groups[K];
                if groups[K] < n && index < row_len {
                    own[K] = f32::from_bits(read_u32(scores + u64::from(index) * 4));
                }
            });
            let mut reach = [0; TOGETHER];
            let mut n_reach = 0;
            unroll!(K in 0..4 => {
                reach[K] = ballot(u32::from(own[K] >= bound));
                n_reach += reach[K].count_ones();
            });
            if n_reach != 0 {
                let mut at = broadcast(fetch_add_if(found, n_reach, u32::from(lane == 0)));
                unroll!(K in 0..4 => {
                    let place = at + (reach[K] & ((1 << lane) - 1)).count_ones();
                    if reach[K] >> lane & 1 != 0 && place < params.room {
                        let id = first_id.wrapping_add(start + groups[K]);
                        let key = key_of_word(word(own[K], false), id);
                        let key = [key as u32, (key >> 32) as u32];
                        store_u32x2(keys + u64::from(place) * 8, key);
                    }
                    at += reach[K].count_ones();
                });
            }
        }
        first += 32 * n;
    }
}
