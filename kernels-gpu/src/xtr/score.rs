//! Scores of pairs, from maxima and thresholds: a thread for each.
//!
//! ```text
//! training   Σ_s [max ≥ τ_s] max ÷ Z                   winners that were not retrieved become none
//! searches   Σ_s (max where max ≥ τ_s, else τ_s)       and whether anything was retrieved
//! ```
//!
//! Sums are in f64, in the order of query tokens, as on the CPU. A thread's maxima lie behind each
//! other: a line of the cache serves many steps.

use super::has_winner;
use crate::abi::params::xtr::{QueryPlace, SCORE_THREADS, ScoreParams, divisor};
use crate::ptx::global::{load_u8, load_u32, load_u32x4, read_f32, store_u16, store_u32};
use crate::ptx::thread::{block_idx_x, thread_idx_x};

/// A pair's query, and its first entry among maxima and winners.
#[derive(Clone, Copy)]
struct Pair {
    query: QueryPlace,
    first_entry: u64,
}

/// Scores this thread's pair.
///
/// # Safety
/// `params` must describe memory as [`ScoreParams`] says, of earlier kernels of the same stream.
#[inline(always)]
pub unsafe fn score(params: &ScoreParams) {
    let number = block_idx_x() * SCORE_THREADS as u32 + thread_idx_x();
    if number >= params.n_pairs {
        return;
    }
    // SAFETY: the pair is there, and so are its query's tokens.
    unsafe {
        let Pair { query, first_entry } = pair(params, number);
        let (mut sum, mut n_retrieved, mut n_valid, mut token) = (0.0f64, 0u32, 0u32, 0u32);
        while token < query.len {
            let (entry, of_query) = (first_entry + u64::from(token), query.first_token + token);
            let maximum = read_f32(params.maxima + entry * 4);
            let threshold = read_f32(params.thresholds + u64::from(of_query) * 4);
            // Of −∞ there is no winner, and of what has no token there is 0.
            let has_token = maximum == f32::NEG_INFINITY
                || has_winner(params.winners, params.winner_bytes, entry);
            // NaN is below nothing: it shows.
            let is_below = maximum < threshold;
            let is_retrieved = has_token & !is_below;
            if is_retrieved {
                sum += f64::from(maximum);
                n_retrieved += 1;
            } else if has_token & (params.divisor == divisor::IMPUTED) {
                sum += f64::from(threshold);
            } else if has_token {
                remove_winner(params, entry);
            }
            if params.divisor == divisor::QUERY_TOKENS {
                n_valid += u32::from(is_valid(params, of_query));
            }
            token += 1;
        }
        let at_least_one = |n: u32| if n == 0 { 1 } else { n };
        let n = match params.divisor {
            divisor::RETRIEVED => at_least_one(n_retrieved),
            divisor::QUERY_TOKENS => at_least_one(n_valid),
            _ => 1,
        };
        let value = (sum / f64::from(n)) as f32;
        let is_any = if n_retrieved == 0 { 0 } else { 1 };
        let divided_by = if params.divisor == divisor::IMPUTED { is_any } else { n };
        store_u32(params.scores + u64::from(number) * 4, value.to_bits());
        store_u32(params.divisors + u64::from(number) * 4, (divided_by as f32).to_bits());
    }
}

/// A pair, by its number.
///
/// # Safety
/// There must be such a pair.
#[inline(always)]
unsafe fn pair(params: &ScoreParams, number: u32) -> Pair {
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    // SAFETY: 16 bytes per query, and per listed pair.
    unsafe {
        let place = |query: u32| {
            let [low, high, first_token, len] = load_u32x4(params.queries + u64::from(query) * 16);
            QueryPlace { first_entry: join(low, high), first_token, len }
        };
        if params.pairs != 0 {
            let [low, high, query, _] = load_u32x4(params.pairs + u64::from(number) * 16);
            return Pair { query: place(query), first_entry: join(low, high) };
        }
        // There is a pair, so this is no change; the compiler has to see it.
        let row_len = if params.row_len == 0 { 1 } else { params.row_len };
        let query = place(number / row_len);
        let before = u64::from(number % row_len) * u64::from(query.len);
        Pair { query, first_entry: query.first_entry + before }
    }
}

/// Makes an entry one without a winner.
///
/// # Safety
/// The entry must be this thread's.
#[inline(always)]
unsafe fn remove_winner(params: &ScoreParams, entry: u64) {
    let (at, none) = (params.winners + entry * u64::from(params.winner_bytes), u32::MAX);
    // SAFETY: the caller's promise.
    unsafe {
        match params.winner_bytes {
            2 => store_u16(at, none),
            _ => store_u32(at, none),
        }
    }
}

/// Whether a query token is valid by the mask, where there is one.
///
/// # Safety
/// There must be such a token.
#[inline(always)]
unsafe fn is_valid(params: &ScoreParams, of_query: u32) -> bool {
    if params.mask == 0 {
        return true;
    }
    // SAFETY: every token has a row, and every row a byte.
    unsafe {
        let row = load_u32(params.rows + u64::from(of_query) * 4);
        load_u8(params.mask + u64::from(row)) != 0
    }
}
