//! Combines document splits (split-KV): per query token the maximum over the splits, its winner,
//! and the sum over the tokens.
//!
//! A block per score, a thread per query token. Tokens are added in the order in which the forward
//! kernels add them (`reduce`: within a group, over the groups of a tile, over tiles), so that a
//! score has the same bits whether documents are split or not.

use crate::abi::angular::angular;
use crate::abi::params::{
    COMBINE_SPLITS_THREADS, CombineSplitsParams, Group, NO_TOKEN_SCORE, ScoreTokens,
};
use crate::primitives::work_tile::{load_weight, row_is_valid};
use crate::ptx::global::{load_f32, load_u32, load_u32x4, store_u16, store_u32};
use crate::ptx::math::max_nan;
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{shuffle_down, shuffle_xor_f32};
use core::hint::assert_unchecked;

/// Rows of a group.
const ROWS: u32 = Group::ROWS as u32;

/// Groups that the block adds at once: whole tiles.
const SLOTS: u32 = COMBINE_SPLITS_THREADS as u32 / ROWS;

/// Loads in flight per thread: one after the other, 32 splits would be as many latencies.
const UNROLL: usize = 8;

/// The split of a query token that no split has a maximum for.
const NO_SPLIT: u32 = u32::MAX;

/// Combines the splits of the block's score.
///
/// # Safety
/// `params` must describe what earlier kernels of the same stream stored for every split; all
/// threads of the block.
#[inline(always)]
pub unsafe fn combine_splits(params: &CombineSplitsParams) {
    let (score, thread) = (block_idx_x(), thread_idx_x());
    // SAFETY: the host listed every score, and sized the outputs for its query tokens; all
    // threads take every round.
    unsafe {
        let address = params.score_tokens + u64::from(score) * size_of::<ScoreTokens>() as u64;
        let [query_start, query_len, first, first_group] = load_u32x4(address);
        let tokens = ScoreTokens { query_start, query_len, first, first_group };
        // Groups from the start of the query's first tile on.
        let n_slots = first_group + query_len.div_ceil(ROWS);
        let mut total = 0.0;
        let mut round = 0;
        while round < n_slots {
            let slot = round + thread / ROWS;
            let mut value = 0.0;
            if slot >= first_group {
                let row = (slot - first_group) * ROWS + thread % ROWS;
                if row < query_len && row_is_valid(&params.queries, query_start + row) {
                    value = combine_token(params, &tokens, row);
                }
            }
            total = add_round(params, &tokens, total, value, round, thread);
            round += SLOTS;
        }
        if thread == 0 {
            store_u32(params.scores + u64::from(score) * 4, total.to_bits());
        }
    }
}

/// Stores a query token's winner and token score, where they are wanted, and gives the latter times
/// the token's weight: 0, and nothing to store, where no split has a valid document token.
///
/// # Safety
/// The query must have the row.
#[inline(always)]
unsafe fn combine_token(params: &CombineSplitsParams, tokens: &ScoreTokens, row: u32) -> f32 {
    // SAFETY: the host sized what is read for every split, and the outputs for every token.
    unsafe {
        let (mut value, split) = best_split(params, tokens, row);
        if split == NO_SPLIT {
            return 0.0;
        }
        // Not before: of cosines that differ, the distances may be the same.
        if params.maxima_are_cosines != 0 {
            value = angular(value);
        }
        let index = u64::from(tokens.first + row);
        if params.token_scores != 0 {
            store_u32(params.token_scores + index * 4, value.to_bits());
        }
        if params.winners != 0 {
            let within = load_u32(params.split_winners + place(params, tokens, row, split) * 4);
            let winner = split * params.split_len + within;
            match params.winner_bytes {
                2 => store_u16(params.winners + index * 2, winner),
                _ => store_u32(params.winners + index * 4, winner),
            }
        }
        value * load_weight(params.query_weights, tokens.query_start + row)
    }
}

/// The maximum over the splits and the first split that has it; for a NaN maximum, a split whose
/// own is NaN.
///
/// # Safety
/// As [`combine_token`].
#[inline(always)]
unsafe fn best_split(params: &CombineSplitsParams, tokens: &ScoreTokens, row: u32) -> (f32, u32) {
    let (mut best, mut found) = (f32::NEG_INFINITY, NO_SPLIT);
    let mut first = 0;
    while first < params.n_splits {
        let mut values = [0.0f32; UNROLL];
        let mut k = 0;
        while k < UNROLL {
            // Behind the last split it is looked at again, which changes nothing.
            let split = (first + k as u32).min(params.n_splits - 1);
            // SAFETY: the split exists.
            values[k] = unsafe {
                load_f32(params.split_token_scores + place(params, tokens, row, split) * 4)
            };
            k += 1;
        }
        k = 0;
        while k < UNROLL {
            let value = values[k];
            if value.to_bits() != NO_TOKEN_SCORE {
                let most = max_nan(best, value);
                // NaN differs from anything.
                let is_better = (found == NO_SPLIT) | (!best.is_nan() & (most != best));
                found = if is_better { first + k as u32 } else { found };
                best = most;
            }
            k += 1;
        }
        first += UNROLL as u32;
    }
    (best, found)
}

/// Index of a query token among the splits' token scores and winners.
#[inline(always)]
fn place(params: &CombineSplitsParams, tokens: &ScoreTokens, row: u32, split: u32) -> u64 {
    u64::from(tokens.first * params.n_splits + split * tokens.query_len + row)
}

/// Adds the round's values, one per thread, to what thread 0 has as the total.
///
/// # Safety
/// All threads of the block must call it together.
#[inline(always)]
unsafe fn add_round(
    params: &CombineSplitsParams,
    tokens: &ScoreTokens,
    mut total: f32,
    mut value: f32,
    round: u32,
    thread: u32,
) -> f32 {
    let sums = dynamic_shared();
    // SAFETY: the caller's promise; the block has a word of shared memory for each group.
    unsafe {
        value += shuffle_xor_f32::<8>(value);
        value += shuffle_xor_f32::<1>(value);
        value += shuffle_xor_f32::<2>(value);
        value += shuffle_xor_f32::<4>(value);
        // The last round's sums have been read.
        sync_threads();
        if thread.is_multiple_of(ROWS) {
            store_shared_f32(sums + thread / ROWS * 4, value);
        }
        sync_threads();
        if thread >= 32 {
            return total;
        }
        assert_unchecked(params.groups_per_tile != 0);
        let n_slots = tokens.first_group + tokens.query_len.div_ceil(ROWS);
        // From this group on, those of the query that are in the same tile.
        let in_tile = params.groups_per_tile - thread % params.groups_per_tile;
        let n_same = in_tile.min(n_slots.saturating_sub(round + thread));
        let mut sum = if thread < SLOTS { load_shared_f32(sums + thread * 4) } else { 0.0 };
        let mut step = 1;
        while step < SLOTS {
            let other = f32::from_bits(shuffle_down(sum.to_bits(), step));
            sum += if step < n_same { other } else { 0.0 };
            step *= 2;
        }
        let mut slot = if round == 0 { tokens.first_group } else { 0 };
        while slot < SLOTS && round + slot < n_slots {
            // Lane 0 gets the sum over the tile.
            total += f32::from_bits(shuffle_down(sum.to_bits(), slot));
            slot = (slot / params.groups_per_tile + 1) * params.groups_per_tile;
        }
        total
    }
}
