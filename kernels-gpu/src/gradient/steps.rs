//! The winners of a sort's task, in steps of up to 32 tokens of one pair.

use super::FirstPair;
use super::pairs::{Pair, pair, winner_if};
use super::sources::unroll;
use super::{NO_ROW, Pairs, SortTask};
use crate::ptx::memory::load_u32x4;
use crate::ptx::wide::{lane_idx, shuffle};

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
        let [destination, list, _, _] = load_u32x4(address + 48);
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
            reserved: [0; 2],
        }
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
            let (mut j, mut token) = (0, token_begin);
            while j < n {
                let mut steps = [Step { bucket: NO_ROW, row: 0, factor: 0 }; UNROLL];
                let mut winners = [NO_ROW; UNROLL];
                let mut documents = [[0u32; 2]; UNROLL];
                unroll!(u in four => {
                    // Behind the last pair: lanes that hold nothing, or the first one's again.
                    let low = shuffle(own.token_base as u32, j);
                    let high = shuffle((own.token_base >> 32) as u32, j);
                    let len = shuffle(own.query_len, j).min(token_end);
                    let start = shuffle(own.query_start, j);
                    documents[u] = [shuffle(own.document_start, j), shuffle(own.document_len, j)];
                    let is_there = (j < n) & (token + lane < len);
                    steps[u] = Step {
                        bucket: if is_there { 0 } else { NO_ROW },
                        row: start + token + lane,
                        factor: shuffle(own.factor.to_bits(), j),
                    };
                    let base = u64::from(low) | u64::from(high) << 32;
                    let index = base + u64::from(token + lane);
                    winners[u] = winner_if(pairs, index, u32::from(is_there));
                    token += 32;
                    if token >= len {
                        (j, token) = (j + 1, token_begin);
                    }
                });
                unroll!(u in four => {
                    let [start, len] = documents[u];
                    let mut step = steps[u];
                    if step.bucket != NO_ROW {
                        step.bucket = task.bucket(start, len, winners[u]);
                    }
                    visit(step);
                });
            }
            k += n;
        }
    }
}
