//! Parameters of the kernels of a search that the device drives, and the arithmetic that it shares
//! with the host, so that both find the same documents.

use crate::abi::params::top_k::{SHORT_K_MAX, is_number, upper_word};

/// Threads of the CTA that each of the kernels is.
pub const THREADS: usize = 1024;

/// Most documents of a search: a bit of shared memory each, two words of a thread.
pub const DOCUMENTS_MAX: u32 = THREADS as u32 * 64;

/// Most candidates: each has four threads.
pub const CANDIDATES_MAX: u32 = THREADS as u32 / 4;

/// The id of no document.
pub const NO_DOCUMENT: u32 = u32::MAX;

/// Bytes of a row of what is found: four words.
pub const ROW_BYTES: u64 = 16;

/// Offset of the sums of warps in shared memory, behind the bits of documents.
pub const SUMS_OFFSET: u32 = DOCUMENTS_MAX / 8;

/// Offset of the words of candidates' scores.
pub const WORDS_OFFSET: u32 = SUMS_OFFSET + THREADS as u32 / 32 * 4;

/// Offset of the threshold.
pub const LEAST_OFFSET: u32 = WORDS_OFFSET + CANDIDATES_MAX * 4;

/// Shared memory of a launch in bytes.
pub const SHARED_BYTES: usize = LEAST_OFFSET as usize + 16;

/// Bounds of one query that are linear in three terms of a document: how far its score may be from
/// that of its codes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinearFactors {
    /// What ‖x̂‖₂ is multiplied by.
    pub l2: f32,
    /// What ‖u‖₂ is multiplied by.
    pub u2: f32,
    /// What the magnitude is multiplied by.
    pub magnitude: f32,
    /// What is added.
    pub rest: f32,
}

impl LinearFactors {
    /// The bound of a document with these terms; NaN where they are, as of documents without
    /// tokens. The factors count with rounding.
    #[inline(always)]
    pub const fn bound(&self, l2: f32, u2: f32, magnitude: f32) -> f32 {
        let bound = self.l2 * l2 + self.u2 * u2;
        bound + (self.magnitude * magnitude + self.rest)
    }
}

/// What the sum of a score and its bound must be for a document to change a ranking whose k-th
/// score is `kth`, with a bound up to `largest`: less than that by more than rounding moves the sum
/// by, which is 16 ulps of the larger of the two.
#[inline(always)]
pub const fn threshold(kth: f32, largest: f32) -> f64 {
    let magnitude = kth.abs() as f64 + largest as f64;
    let slack = 16.0 * f32::EPSILON as f64 * magnitude;
    kth as f64 - slack - f32::MIN_POSITIVE as f64
}

/// The item among `room` of the document of place `place` among `n`, which are no more: the others
/// are empty, and CTAs that have equally many items have equally many documents.
#[inline(always)]
pub const fn item_of(place: u32, n: u32, room: u32) -> u32 {
    match (place * room).checked_div(n) {
        Some(item) => item,
        None => 0,
    }
}

/// Parameters of `maxsim_search_candidates` and `maxsim_search_reaching`, one CTA each: the first
/// makes items of the documents that a selection found, the second finds those that are not among
/// them and reach the k-th of their scores.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SearchParams {
    /// Address of the candidates' keys, `n_candidates`, falling, with zeros behind them.
    pub keys: u64,
    /// Address of the numbers of NaN and of empty documents, u64.
    pub counts: u64,
    /// Address of the f32 scores of all documents' codes.
    pub scores: u64,
    /// Addresses of the terms of all documents' bounds, f32: ‖x̂‖₂, ‖u‖₂ and magnitudes. Those of
    /// documents without tokens are NaN.
    pub terms: [u64; 3],
    /// Address of the documents' segments, or 0: document `i` is the `item_len` rows from row
    /// `i * item_len` on.
    pub segments: u64,
    /// Address of the segments of candidates, which are written, `n_candidate_items`.
    pub candidate_items: u64,
    /// Address of the candidates' scores in full precision, f32, in the order of the keys.
    pub candidate_scores: u64,
    /// Address of the segments of what is found, which are written, `room`; 0 = they are not
    /// wanted. Unused ones are empty.
    pub found_items: u64,
    /// Address of the rows that are written: the numbers of documents found, of NaN and of empty
    /// ones; then for each candidate its id ([`NO_DOCUMENT`] behind the last), its score, bound and
    /// score in full precision; then the same of each document found, without the last, by rising
    /// id: where there are more than `room`, none.
    pub rows: u64,
    /// The query's part of the bounds.
    pub factors: LinearFactors,
    /// What no bound is above.
    pub largest: f32,
    /// Number of documents, up to [`DOCUMENTS_MAX`].
    pub n_documents: u32,
    /// Number of keys, up to [`CANDIDATES_MAX`].
    pub n_candidates: u32,
    /// Items of candidates.
    pub n_candidate_items: u32,
    /// Documents that are searched for, 1 to `n_candidates`.
    pub k: u32,
    /// Documents for which there is room, up to [`ROOM_MAX`].
    pub room: u32,
    /// See `segments`.
    pub item_len: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Most documents for which there may be room.
pub const ROOM_MAX: u32 = 8192;

impl SearchParams {
    /// The document of a candidate's key; `None` where it is none, or one without a score.
    #[inline(always)]
    pub const fn document(&self, key: u64) -> Option<u32> {
        let id = !(key as u32);
        if is_number(upper_word(key)) && id < self.n_documents { Some(id) } else { None }
    }
}

const _: () = assert!(CANDIDATES_MAX <= SHORT_K_MAX);
const _: () = assert!(ROOM_MAX as u64 * ROOM_MAX as u64 <= u32::MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_apart_and_within_the_room() {
        for room in [1, 3, 1024, 1536, ROOM_MAX] {
            for n in [0, 1, 2, room / 3, room / 2 + 1, room - 1, room] {
                let n = n.min(room);
                let items = (0..n).map(|place| item_of(place, n, room));
                assert!(items.clone().is_sorted_by(|a, b| a < b), "{n} of {room}");
                assert!(items.clone().all(|item| item < room));
                // As many in each half.
                let first = items.filter(|&item| item < room / 2).count() as u32;
                assert!(first.abs_diff(n / 2) <= 1, "{n} of {room}: {first}");
            }
        }
        assert_eq!(item_of(0, 0, 7), 0);
    }

    #[test]
    fn thresholds_are_below_the_kth_score() {
        for kth in [0.0f32, -0.0, 1e-42, 1.0, -1.0, 3e9, -1e37, f32::MAX / 8.0] {
            for largest in [0.0f32, 1e-42, 1.0, 1e37] {
                let least = threshold(kth, largest);
                let most = f64::from(kth.abs().max(largest));
                assert!(least <= f64::from(kth) - 15.0 * f64::from(f32::EPSILON) * most);
            }
        }
    }

    #[test]
    fn bounds_of_documents_without_tokens_are_none() {
        let factors = LinearFactors { l2: 0.0, u2: 0.0, magnitude: 0.0, rest: 0.5 };
        assert_eq!(factors.bound(1.0, 2.0, 3.0), 0.5);
        assert!(factors.bound(f32::NAN, f32::NAN, f32::NAN).is_nan());
    }

    #[test]
    fn structs_have_no_padding_that_nobody_named() {
        assert_eq!(size_of::<SearchParams>(), 11 * 8 + 12 * 4);
        assert!(SHARED_BYTES.is_multiple_of(16) && LEAST_OFFSET.is_multiple_of(4));
    }
}
