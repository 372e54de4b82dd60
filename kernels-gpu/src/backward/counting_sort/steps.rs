//! The winners of a sort's task, in steps of up to 32 tokens of one pair.

use crate::abi::params::backward::{FirstPair, NO_ROW, Pairs, SortTask, Source, THREADS};
use crate::backward::pairs::{Pair, pair, winner_if};
use crate::primitives::row_vector::unroll;
use crate::ptx::global::{load_u16_if, load_u32_if, load_u32x4, store_u32x2};
use crate::ptx::warp::{ballot, lane_idx};

/// Steps whose winners are loaded at once: those of one `unroll!`.
const UNROLL: usize = 4;

/// Task `task` of a list.
///
/// # Safety
/// The list must have it.
#[inline(always)]
pub unsafe fn sort_task(tasks: u64, task: u32) -> SortTask {
    let address = tasks + u64::from(task) * size_of::<SortTask>() as u64;
    // SAFETY: 64 bytes per task.
    unsafe {
        let [row, n_rows, query, document] = load_u32x4(address);
        let [score, n_pairs, token_begin, token_end] = load_u32x4(address + 16);
        let [n_warps, chunk, n_chunks, counts] = load_u32x4(address + 32);
        let [destination, list, share, n_sources] = load_u32x4(address + 48);
        SortTask {
            row,
            n_rows,
            first: FirstPair { query, document, score },
            n_pairs,
            token_begin,
            token_end,
            n_warps,
            chunk,
            n_chunks,
            counts,
            destination,
            list,
            share,
            n_sources,
        }
    }
}

/// Writes zeros to a task's share of the list, side by side, which sources are or-ed into. They
/// meet whole sectors in the L2 cache then, where they would have to wait for them from memory.
///
/// # Safety
/// All threads of the task's block, before any of the window's tasks places its sources.
#[inline(always)]
pub unsafe fn clear_share(list: u64, task: &SortTask, thread: u32) {
    let mut i = thread;
    while i < task.n_sources {
        let address = list + u64::from(task.share + i) * size_of::<Source>() as u64;
        // SAFETY: the list has the share, which is this block's.
        unsafe { store_u32x2(address, [0; 2]) };
        i += THREADS as u32;
    }
}

/// A step: what this lane's token chose.
#[derive(Clone, Copy)]
pub struct Step {
    /// Bucket of the task; [`NO_ROW`] where the lane has no token.
    pub bucket: u32,
    /// Row of the token.
    pub row: u32,
    /// Gradient of the pair's score.
    pub factor: u32,
}

impl Step {
    /// The step of a pair's token with its winner, or of no token.
    #[inline(always)]
    fn new(task: &SortTask, pair: &Pair, token: u32, winner: u32, is_there: bool) -> Step {
        let bucket = task.bucket(pair.document_start, pair.document_len, winner);
        Step {
            bucket: if is_there { bucket } else { NO_ROW },
            row: pair.query_start + token,
            factor: pair.factor.to_bits(),
        }
    }
}

/// Calls `visit` with every step of a warp, in the order of pairs and tokens.
///
/// # Safety
/// A whole warp; `params` and `task` must be of the same call.
#[inline(always)]
pub unsafe fn for_each(pairs: &Pairs, task: &SortTask, warp: u32, mut visit: impl FnMut(Step)) {
    let lane = lane_idx();
    // SAFETY: the pairs of a task exist, and have a winner for each of their query's rows; control
    // flow depends on what all lanes have alike.
    unsafe {
        // The length of a single pair's query.
        let len = match task.n_pairs {
            1 => pair(pairs, &task.first, 0).query_len,
            _ => u32::MAX,
        };
        let (mut k, token_begin) = task.warp_start(warp, len);
        let (end, last_token) = task.warp_start(warp + 1, len);
        // A single pair is shared by its tokens.
        let (end, token_end) = match task.n_pairs {
            1 => (1, last_token.min(task.token_end)),
            _ => (end, task.token_end),
        };
        while k < end {
            let n = (end - k).min(32);
            let own = match k + lane < end {
                true => pair(pairs, &task.first, k + lane),
                false => Pair::NONE,
            };
            let is_long = own.query_len.min(token_end) > token_begin + 32;
            if ballot(u32::from(is_long)) == 0 {
                short_pairs(pairs, task, &own, token_begin, token_end, n, &mut visit);
            } else {
                let mut j = 0;
                while j < n {
                    long_pair(pairs, task, own.of_lane(j), token_begin, token_end, &mut visit);
                    j += 1;
                }
            }
            k += n;
        }
    }
}

/// The steps of the first `n` lanes' pairs, of one step each.
///
/// # Safety
/// As [`for_each`].
#[inline(always)]
unsafe fn short_pairs(
    pairs: &Pairs,
    task: &SortTask,
    own: &Pair,
    token_begin: u32,
    token_end: u32,
    n: u32,
    visit: &mut impl FnMut(Step),
) {
    let token = token_begin + lane_idx();
    let mut j = 0;
    while j < n {
        let mut others = [Pair::NONE; UNROLL];
        let mut winners = [NO_ROW; UNROLL];
        unroll!(u in four => {
            // Lanes behind the last pair hold none.
            // SAFETY: the caller's promise.
            unsafe {
                others[u] = own.of_lane(j + u as u32);
                let is_there = (j + (u as u32) < n) & (token < others[u].query_len.min(token_end));
                others[u].query_len = u32::from(is_there);
                let index = others[u].token_base + u64::from(token);
                winners[u] = winner_if(pairs, index, u32::from(is_there));
            }
        });
        unroll!(u in four => {
            let is_there = others[u].query_len != 0;
            visit(Step::new(task, &others[u], token, winners[u], is_there));
        });
        j += UNROLL as u32;
    }
}

/// The steps of one pair, the next ones' winners loaded while these are looked at.
///
/// # Safety
/// As [`for_each`]; `pair` must be the same in all lanes.
#[inline(always)]
unsafe fn long_pair(
    pairs: &Pairs,
    task: &SortTask,
    pair: Pair,
    token_begin: u32,
    token_end: u32,
    visit: &mut impl FnMut(Step),
) {
    let len = pair.query_len.min(token_end);
    let lane = lane_idx();
    let load = |token: u32| {
        let token = token + lane;
        // SAFETY: the pair has the tokens that are left.
        unsafe { winners(pairs, pair.token_base + u64::from(token), len.saturating_sub(token)) }
    };
    let mut first = token_begin;
    let mut ahead = load(first);
    while first < len {
        let winners = ahead;
        ahead = load(first + 32 * UNROLL as u32);
        unroll!(u in four => {
            let token = first + 32 * u as u32;
            if token < len {
                let is_there = token + lane < len;
                visit(Step::new(task, &pair, token + lane, winners[u], is_there));
            }
        });
        first += 32 * UNROLL as u32;
    }
}

/// The winners at an index of the pair-major outputs and every 32nd behind it, of `n_left`.
///
/// # Safety
/// The outputs must have so many.
#[inline(always)]
unsafe fn winners(pairs: &Pairs, index: u64, n_left: u32) -> [u32; UNROLL] {
    let mut winners = [NO_ROW; UNROLL];
    let is_there = |u: usize| u32::from(n_left > 32 * u as u32);
    // One branch for all of them.
    match pairs.winner_bytes {
        2 => {
            unroll!(u in four => {
                let address = pairs.winners + index * 2 + 64 * u as u64;
                // SAFETY: the caller's promise.
                winners[u] = unsafe { load_u16_if(address, is_there(u)) };
            });
        }
        _ => {
            unroll!(u in four => {
                let address = pairs.winners + index * 4 + 128 * u as u64;
                // SAFETY: the caller's promise.
                winners[u] = unsafe { load_u32_if(address, is_there(u)) };
            });
        }
    }
    winners
}
