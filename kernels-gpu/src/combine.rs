//! Puts the pieces of cut documents together: per query token the maximum over the pieces, its
//! winner, and the sum over the tokens.
//!
//! A block per score: threads take query tokens, and every sum has a fixed order.

use crate::params::{CombinePiecesParams, NO_TOKEN_SCORE, ScoreTokens};
use crate::ptx::math::max_nan;
use crate::ptx::memory::{
    dynamic_shared, load_f32, load_shared_f32, load_u32, load_u32x4, store_shared_f32, store_u16,
    store_u32,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::shuffle_xor_f32;
use crate::variants::COMBINE_PIECES_THREADS;
use crate::work::row_is_valid;

/// Loads in flight per thread: one after the other, 32 pieces would be as many latencies.
const UNROLL: usize = 8;

/// The piece of a query token that no piece has a maximum for.
const NO_PIECE: u32 = u32::MAX;

/// Combines the pieces of the block's score.
///
/// # Safety
/// `params` must describe what earlier kernels of the same stream left of every piece; all threads
/// of the block.
#[inline(always)]
pub unsafe fn combine_pieces(params: &CombinePiecesParams) {
    let (score, thread) = (block_idx_x(), thread_idx_x());
    // SAFETY: the host listed every score, and sized the outputs for its query tokens.
    unsafe {
        let address = params.score_tokens + u64::from(score) * size_of::<ScoreTokens>() as u64;
        let [query_start, query_len, first, _] = load_u32x4(address);
        let tokens = ScoreTokens { query_start, query_len, first, reserved: 0 };
        let mut sum = 0.0;
        let mut row = thread;
        while row < tokens.query_len {
            if row_is_valid(&params.queries, tokens.query_start + row) {
                sum += combine_token(params, &tokens, row);
            }
            row += COMBINE_PIECES_THREADS as u32;
        }
        let sum = add_threads(sum, thread);
        if thread == 0 {
            store_u32(params.scores + u64::from(score) * 4, sum.to_bits());
        }
    }
}

/// Stores a query token's winner and token score, where they are asked for, and gives the latter:
/// 0, and nothing to store, where no piece has a valid document token.
///
/// # Safety
/// The query must have the row.
#[inline(always)]
unsafe fn combine_token(params: &CombinePiecesParams, tokens: &ScoreTokens, row: u32) -> f32 {
    // SAFETY: the host sized what is read for every piece, and the outputs for every token.
    unsafe {
        let (value, piece) = best_piece(params, tokens, row);
        if piece == NO_PIECE {
            return 0.0;
        }
        let index = u64::from(tokens.first + row);
        if params.token_scores != 0 {
            store_u32(params.token_scores + index * 4, value.to_bits());
        }
        if params.winners != 0 {
            let within = load_u32(params.piece_winners + place(params, tokens, row, piece) * 4);
            let winner = piece * params.piece_len + within;
            match params.winner_bytes {
                2 => store_u16(params.winners + index * 2, winner),
                _ => store_u32(params.winners + index * 4, winner),
            }
        }
        value
    }
}

/// The maximum over the pieces and the first piece that has it; for a NaN maximum, a piece whose
/// own is NaN.
///
/// # Safety
/// As [`combine_token`].
#[inline(always)]
unsafe fn best_piece(params: &CombinePiecesParams, tokens: &ScoreTokens, row: u32) -> (f32, u32) {
    let (mut best, mut found) = (f32::NEG_INFINITY, NO_PIECE);
    let mut first = 0;
    while first < params.n_pieces {
        let mut values = [0.0f32; UNROLL];
        let mut k = 0;
        while k < UNROLL {
            // Behind the last piece it is looked at again, which changes nothing.
            let piece = (first + k as u32).min(params.n_pieces - 1);
            // SAFETY: the piece exists.
            values[k] = unsafe {
                load_f32(params.piece_token_scores + place(params, tokens, row, piece) * 4)
            };
            k += 1;
        }
        k = 0;
        while k < UNROLL {
            let value = values[k];
            if value.to_bits() != NO_TOKEN_SCORE {
                let most = max_nan(best, value);
                // NaN differs from anything.
                let is_better = (found == NO_PIECE) | (!best.is_nan() & (most != best));
                found = if is_better { first + k as u32 } else { found };
                best = most;
            }
            k += 1;
        }
        first += UNROLL as u32;
    }
    (best, found)
}

/// Index of a query token among the pieces' token scores and winners.
#[inline(always)]
fn place(params: &CombinePiecesParams, tokens: &ScoreTokens, row: u32, piece: u32) -> u64 {
    u64::from(tokens.first * params.n_pieces + piece * tokens.query_len + row)
}

/// The sum over the block, in the same order every time; thread 0 gets it.
///
/// # Safety
/// All threads of the block must call it together.
#[inline(always)]
unsafe fn add_threads(mut sum: f32, thread: u32) -> f32 {
    // SAFETY: the caller's promise; the block has a word of shared memory for each warp.
    unsafe {
        sum += shuffle_xor_f32::<16>(sum);
        sum += shuffle_xor_f32::<8>(sum);
        sum += shuffle_xor_f32::<4>(sum);
        sum += shuffle_xor_f32::<2>(sum);
        sum += shuffle_xor_f32::<1>(sum);
        let sums = dynamic_shared();
        if thread.is_multiple_of(32) {
            store_shared_f32(sums + thread / 32 * 4, sum);
        }
        sync_threads();
        let mut total = 0.0;
        let mut warp = 0;
        while warp < COMBINE_PIECES_THREADS as u32 / 32 {
            total += load_shared_f32(sums + warp * 4);
            warp += 1;
        }
        total
    }
}
