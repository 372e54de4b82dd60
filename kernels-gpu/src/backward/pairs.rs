//! The pairs of a call, as the device finds them.

use crate::abi::params::backward::{FirstPair, PairSlot, Pairs};
use crate::primitives::work_tile::segment;
use crate::ptx::global::{load_u16_if, load_u32, load_u32_if, load_u32x4, load_u64};
use crate::ptx::warp::{shuffle, shuffle_u64};

/// A pair of a query and a document.
#[derive(Clone, Copy)]
pub struct Pair {
    /// Index of the pair's winners.
    pub token_base: u64,
    /// Gradient of its score.
    pub factor: f32,
    /// First row of the query.
    pub query_start: u32,
    /// Rows of the query.
    pub query_len: u32,
    /// First row of the document.
    pub document_start: u32,
    /// Rows of the document.
    pub document_len: u32,
}

impl Pair {
    /// A pair without tokens.
    pub const NONE: Pair = Pair {
        token_base: 0,
        factor: 0.0,
        query_start: 0,
        query_len: 0,
        document_start: 0,
        document_len: 0,
    };

    /// The pair that lane `lane` holds.
    ///
    /// # Safety
    /// The whole warp, with the same `lane`.
    #[inline(always)]
    pub unsafe fn of_lane(&self, lane: u32) -> Pair {
        // SAFETY: the caller's promise.
        unsafe {
            Pair {
                token_base: shuffle_u64(self.token_base, lane),
                factor: f32::from_bits(shuffle(self.factor.to_bits(), lane)),
                query_start: shuffle(self.query_start, lane),
                query_len: shuffle(self.query_len, lane),
                document_start: shuffle(self.document_start, lane),
                document_len: shuffle(self.document_len, lane),
            }
        }
    }
}

/// Pair `k` from `first` on.
///
/// # Safety
/// The call must have the pair.
#[inline(always)]
pub unsafe fn pair(pairs: &Pairs, first: &FirstPair, k: u32) -> Pair {
    // SAFETY: the caller's promise.
    unsafe { pair_behind(pairs, first, k, || ()) }
}

/// Looks up a pair as [`pair`] does, and calls `wait` between the host's lists and what kernels
/// have written, the gradient.
///
/// # Safety
/// As [`pair`].
#[inline(always)]
pub unsafe fn pair_behind(pairs: &Pairs, first: &FirstPair, k: u32, wait: impl FnOnce()) -> Pair {
    // SAFETY: the host's lists cover every pair, query and document of the call.
    unsafe {
        if pairs.slots != 0 {
            let place = first.score + k;
            let index = match pairs.order {
                0 => place,
                order => load_u32(order + u64::from(place) * 4),
            };
            let address = pairs.slots + u64::from(index) * size_of::<PairSlot>() as u64;
            let [low, high, score, query_start] = load_u32x4(address);
            let [query_len, document_start, document_len, _] = load_u32x4(address + 16);
            let token_base = u64::from(low) | u64::from(high) << 32;
            wait();
            let factor = factor(pairs, score);
            return Pair {
                token_base,
                factor,
                query_start,
                query_len,
                document_start,
                document_len,
            };
        }
        let query = first.query + k * pairs.query_step;
        let document = first.document + k * pairs.document_step;
        let score = first.score + k * pairs.score_step;
        let query_rows = segment(&pairs.queries, query);
        let document_rows = segment(&pairs.documents, document);
        let len = u64::from(query_rows.len);
        let token_base = match pairs.query_token_base {
            0 => u64::from(score) * len,
            list => {
                let column = score - query * pairs.row_len;
                load_u64(list + u64::from(query) * 8) + u64::from(column) * len
            }
        };
        wait();
        Pair {
            token_base,
            factor: factor(pairs, score),
            query_start: query_rows.start,
            query_len: query_rows.len,
            document_start: document_rows.start,
            document_len: document_rows.len,
        }
    }
}

/// # Safety
/// The call must have the score.
#[inline(always)]
unsafe fn factor(pairs: &Pairs, score: u32) -> f32 {
    // SAFETY: four bytes per score.
    f32::from_bits(unsafe { load_u32(pairs.grad_scores + u64::from(score) * 4) })
}

/// The winner at an index of the pair-major outputs, where `condition` is not 0; where there is
/// none, a number that no document has as many tokens as: 0xFFFF of two bytes is one, too, since
/// winners have four where a document has 65 535. The value is not examined here, so that no warp
/// waits for it before it is used.
///
/// # Safety
/// Where `condition` is not 0, the outputs must have the index.
#[inline(always)]
pub unsafe fn winner_if(pairs: &Pairs, index: u64, condition: u32) -> u32 {
    // SAFETY: so many bytes per winner.
    unsafe {
        match pairs.winner_bytes {
            2 => load_u16_if(pairs.winners + index * 2, condition),
            _ => load_u32_if(pairs.winners + index * 4, condition),
        }
    }
}
