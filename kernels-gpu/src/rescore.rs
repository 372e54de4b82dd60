//! `scores[p] = Σ_s ⟨Q[q, s], D[d, winner(p, s)]⟩`: some warps of a CTA per pair, each with every
//! k-th chunk of 32 query tokens.
//!
//! ```text
//! lane l looks up the winner of the chunk's token l
//! per 4 loads: 4 · slots document rows, all in flight before the first is used
//!              the query's rows of the same tokens, which the first-level cache has
//!              4 sums over the lanes of a row, distributed over them: 3 exchanges and up to 3 more
//! lane l takes the similarity of token l, stores it, and adds up the chunk's
//! per pair: the sums of chunks c, c + 8, … for each c < 8, from shared memory, as a tree
//! ```
//!
//! A row is read by as many lanes as it has chunks of 16 bytes, from 4 to 32; `slots` rows at once.
//! Chunks are added to one of eight sums by their number, so that a score has the same bits
//! whatever the number of warps.
//!
//! Registers: 16 of document rows, 16 of query rows, 80 in all (64 spill, and so do 8 loads: the
//! assembler starts the query's loads with the documents'). Three CTAs have 24 warps · 4 · 512
//! bytes = 48 KB in flight per multiprocessor; 4.45 TB/s need 34 KB at a latency of 1 µs. Shared
//! memory: 256 bytes. Known loss: rows that are not whole chunks of 16 bytes are read element by
//! element, and added in another order; a query of less than 32 tokens does not use all lanes and
//! loads.

use crate::abi::params::backward::{NO_ROW, PairSlot, Rows};
use crate::abi::params::rescore::{CHUNK_LEN, RescoreParams, SUMS, WARPS_LOG2};
use crate::primitives::row_vector::{Columns, VectorElement};
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile::segment;
use crate::ptx::global::{load_u16_if, load_u32_if, load_u32x4, load_u64, store_u32};
use crate::ptx::math::fma;
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_u32_if};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle, shuffle_xor_f32};
use core::hint::assert_unchecked;

/// Loads in flight per lane: those of one `unroll!`.
const LOADS: usize = 4;

/// A pair of a query and a document.
#[derive(Clone, Copy)]
struct Pair {
    /// Index of the query's winners in the pair-major outputs.
    token_base: u64,
    query_start: u32,
    query_len: u32,
    document_start: u32,
    document_len: u32,
}

/// Scores this warp's share of its pair.
///
/// # Safety
/// `params` must describe a call as [`RescoreParams`] says; all threads of the block, with its
/// shared memory.
#[inline(always)]
pub unsafe fn rescore<T: VectorElement>(params: &RescoreParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.whole {
            0 => of_block::<T, false>(params),
            _ => of_block::<T, true>(params),
        }
    }
}

/// # Safety
/// As [`rescore`]; `WHOLE` is that of the call.
#[inline(always)]
unsafe fn of_block<T: VectorElement, const WHOLE: bool>(params: &RescoreParams) {
    let (warp, lane) = (thread_idx_x() / 32, thread_idx_x() % 32);
    let n_warps = 1 << params.warps_log2;
    let (place, share) = (warp >> params.warps_log2, warp & (n_warps - 1));
    let score = (block_idx_x() << (WARPS_LOG2 - params.warps_log2)) + place;
    // Lane c has the sum of this warp's chunks c, c + 8, ...
    let mut sum = 0.0;
    // SAFETY: the host launches warps for all pairs; the whole warp goes either way, and the whole
    // block comes to the barrier.
    unsafe {
        if score < params.n_pairs {
            let pair = pair(params, score);
            let mut chunk = share;
            while chunk * CHUNK_LEN < pair.query_len {
                let value = chunk_sum::<T, WHOLE>(params, &pair, chunk * CHUNK_LEN, lane);
                sum += if lane == chunk % SUMS { value } else { 0.0 };
                chunk += n_warps;
            }
        }
        let sums = dynamic_shared() + place * (SUMS * 4);
        let is_own = (lane < SUMS) & (lane & (n_warps - 1) == share);
        store_shared_u32_if(sums + lane * 4, sum.to_bits(), u32::from(is_own));
        sync_threads();
        if (share == 0) & (score < params.n_pairs) {
            let mut total = load_shared_f32(sums + lane % SUMS * 4);
            total += shuffle_xor_f32::<1>(total);
            total += shuffle_xor_f32::<2>(total);
            total += shuffle_xor_f32::<4>(total);
            if lane == 0 {
                store_u32(params.scores + u64::from(score) * 4, total.to_bits());
            }
        }
    }
}

/// The pair of a score.
///
/// # Safety
/// The call must have the score.
#[inline(always)]
unsafe fn pair(params: &RescoreParams, score: u32) -> Pair {
    // SAFETY: the host's lists cover every pair, query and document of the call; computed pairs
    // have some scores per query.
    unsafe {
        if params.slots != 0 {
            let address = params.slots + u64::from(score) * size_of::<PairSlot>() as u64;
            let [low, high, _, query_start] = load_u32x4(address);
            let [query_len, document_start, document_len, _] = load_u32x4(address + 16);
            let token_base = u64::from(low) | u64::from(high) << 32;
            return Pair { token_base, query_start, query_len, document_start, document_len };
        }
        assert_unchecked(params.row_len != 0);
        let (query, column) = (score / params.row_len, score % params.row_len);
        let document = if params.own_documents != 0 { score } else { column };
        let query_rows = segment(&params.queries, query);
        let document_rows = segment(&params.documents, document);
        let len = u64::from(query_rows.len);
        let token_base = match params.query_token_base {
            0 => u64::from(score) * len,
            list => load_u64(list + u64::from(query) * 8) + u64::from(column) * len,
        };
        Pair {
            token_base,
            query_start: query_rows.start,
            query_len: query_rows.len,
            document_start: document_rows.start,
            document_len: document_rows.len,
        }
    }
}

/// The sum over a pair's query tokens from `token` on, up to 32 of them; stores what each has,
/// where that is wanted. A token without a winner has 0.
///
/// # Safety
/// The whole warp, with a pair of the call; `WHOLE` is that of the call.
#[inline(always)]
unsafe fn chunk_sum<T: VectorElement, const WHOLE: bool>(
    params: &RescoreParams,
    pair: &Pair,
    token: u32,
    lane: u32,
) -> f32 {
    let lanes_log2 = params.document_rows.lanes_log2;
    let slots = 32 >> lanes_log2;
    let is_token = token + lane < pair.query_len;
    let index = pair.token_base + u64::from(token + lane);
    // SAFETY: the outputs have an entry for each of the query's tokens; a winner is a row of its
    // document; control flow depends on what all lanes have alike.
    unsafe {
        let winner = winner_if(params, index, u32::from(is_token));
        // No document has as many tokens as the number that stands for none.
        let has_winner = is_token & (winner < pair.document_len);
        let row = if has_winner { pair.document_start + winner } else { NO_ROW };
        let mut own = 0.0;
        let mut first = 0;
        while (first < CHUNK_LEN) & (token + first < pair.query_len) {
            let dots = match WHOLE {
                true => of_chunks::<T>(params, pair.query_start + token, row, first),
                false => of_elements::<T>(params, pair.query_start + token, row, first),
            };
            let mut dot = distribute(dots, lane);
            if lanes_log2 > 2 {
                dot += shuffle_xor_f32::<4>(dot);
            }
            if lanes_log2 > 3 {
                dot += shuffle_xor_f32::<8>(dot);
            }
            if lanes_log2 > 4 {
                dot += shuffle_xor_f32::<16>(dot);
            }
            // Load `u` of slot `s` was of token `first + s * LOADS + u`.
            let i = lane.wrapping_sub(first);
            let (load, slot) = (i % LOADS as u32, i / LOADS as u32);
            let value = f32::from_bits(shuffle(dot.to_bits(), slot << lanes_log2 | reversed(load)));
            own = if slot < slots { value } else { own };
            first += LOADS as u32 * slots;
        }
        if (params.token_scores != 0) & is_token {
            store_u32(params.token_scores + index * 4, own.to_bits());
        }
        own += shuffle_xor_f32::<1>(own);
        own += shuffle_xor_f32::<2>(own);
        own += shuffle_xor_f32::<4>(own);
        own += shuffle_xor_f32::<8>(own);
        own + shuffle_xor_f32::<16>(own)
    }
}

/// The lane's parts of four similarities: of the chunk's tokens from `first` on, four for each slot
/// of rows that are read at once. 0 where a token has no winner.
///
/// # Safety
/// As [`chunk_sum`], for rows that are whole chunks of 16 bytes; `row` must be the row that the
/// chunk's token of the lane's number has chosen, and the chunk's queries be the rows from
/// `query_row` on.
#[inline(always)]
unsafe fn of_chunks<T: VectorElement>(
    params: &RescoreParams,
    query_row: u32,
    row: u32,
    first: u32,
) -> [f32; LOADS] {
    let mut dots = [0.0f32; LOADS];
    let mut column = 0;
    while column < params.document_rows.n_columns {
        let documents = Columns::new::<T>(&params.document_rows, column);
        let queries = Columns::new::<T>(&params.query_rows, column);
        let first = first + documents.slot * LOADS as u32;
        let mut words = [[0u32; 4]; LOADS];
        // Bit u: whether load u is of a row.
        let mut there = 0;
        unroll!(U in 0..4 => {
            // SAFETY: the whole warp is here; a winner is a row.
            unsafe {
                let row = shuffle(row, first + U as u32);
                let is_there = u32::from((row != NO_ROW) & (documents.n_elements > 0));
                words[U] = documents.load::<T, true>(row, is_there);
                there |= is_there << U;
            }
        });
        unroll!(U in 0..4 => {
            let row = query_row + first + U as u32;
            // SAFETY: what has a winner is a token of the query.
            let query = unsafe { queries.load::<T, true>(row, there >> U & 1) };
            dots[U] = add_products::<T>(query, words[U], dots[U]);
        });
        column += 1;
    }
    dots
}

/// The lane's part of a product of any rows: a lane has every 32nd element.
///
/// # Safety
/// As [`of_chunks`], for rows of whatever size and place.
#[inline(always)]
unsafe fn of_elements<T: VectorElement>(
    params: &RescoreParams,
    query_row: u32,
    row: u32,
    first: u32,
) -> [f32; LOADS] {
    let (queries, documents) = (&params.query_rows, &params.document_rows);
    let lanes = 1 << documents.lanes_log2;
    let first = first + (lane_idx() >> documents.lanes_log2) * LOADS as u32;
    let mut element = lane_idx() & (lanes - 1);
    let mut dots = [0.0f32; LOADS];
    let mut column = 0;
    // So many times for all lanes: they exchange rows.
    while column < documents.dim {
        unroll!(U in 0..4 => {
            // SAFETY: the whole warp is here; a winner is a row, and what has one a token of the
            // query; elements are those of rows.
            unsafe {
                let row = shuffle(row, first + U as u32);
                let is_there = u32::from((row != NO_ROW) & (element < documents.dim));
                let document = load_element::<T>(documents, row, element, is_there);
                let row = query_row + first + U as u32;
                let query = load_element::<T>(queries, row, element, is_there);
                dots[U] = fma(query, document, dots[U]);
            }
        });
        column += lanes;
        element += lanes;
    }
    dots
}

/// An element of a row where `condition` is not 0, and 0 otherwise.
///
/// # Safety
/// Where `condition` is not 0, the matrix must have the element.
#[inline(always)]
unsafe fn load_element<T: VectorElement>(
    rows: &Rows,
    row: u32,
    element: u32,
    condition: u32,
) -> f32 {
    let size = 16 / T::N as u64;
    let address = rows.base + u64::from(row) * rows.pitch_bytes + u64::from(element) * size;
    // SAFETY: the caller's promise.
    let bits = unsafe {
        match T::N {
            4 => load_u32_if(address, condition),
            _ => load_u16_if(address, condition),
        }
    };
    let [value, ..] = T::widen([bits, 0, 0, 0]);
    value
}

/// The products of 16 bytes' elements, added one after the other.
#[inline(always)]
fn add_products<T: VectorElement>(query: [u32; 4], document: [u32; 4], mut sum: f32) -> f32 {
    let (query, document) = (T::widen(query), T::widen(document));
    unroll!(E in 0..8 => {
        if E < T::N {
            sum = fma(query[E], document[E], sum);
        }
    });
    sum
}

/// Adds four numbers over each four lanes: lane `l` gets the sum of number `reversed(l % 4)`.
///
/// # Safety
/// The whole warp.
#[inline(always)]
unsafe fn distribute([a, b, c, d]: [f32; LOADS], lane: u32) -> f32 {
    let pick = |second: bool, a: f32, b: f32| if second { (b, a) } else { (a, b) };
    // SAFETY: the caller's promise.
    unsafe {
        let one = |a, b| {
            let (keep, give) = pick(lane & 1 != 0, a, b);
            keep + shuffle_xor_f32::<1>(give)
        };
        let (keep, give) = pick(lane & 2 != 0, one(a, c), one(b, d));
        keep + shuffle_xor_f32::<2>(give)
    }
}

/// The lowest two bits in the reverse order.
#[inline(always)]
const fn reversed(bits: u32) -> u32 {
    (bits & 1) << 1 | (bits >> 1 & 1)
}

/// The winner at an index of the pair-major outputs, where `condition` is not 0.
///
/// # Safety
/// Where `condition` is not 0, the outputs must have the index.
#[inline(always)]
unsafe fn winner_if(params: &RescoreParams, index: u64, condition: u32) -> u32 {
    // SAFETY: so many bytes per winner.
    unsafe {
        match params.winner_bytes {
            2 => load_u16_if(params.winners + index * 2, condition),
            _ => load_u32_if(params.winners + index * 4, condition),
        }
    }
}
