//! Host/device ABI of the selection of the best k of each row of scores, and the keys that it
//! selects by.
//!
//! A score and its document's id are a *key* of 64 bits, and a ranking is the order of falling
//! keys. So the best k are the k largest keys, and whatever selects them gives the same answer:
//!
//! ```text
//! bits 32 to 63    the score as an integer of the same order; 2 for NaN, 1 for an empty document
//! bits 0 to 31     the complement of the id
//! ```
//!
//! The key 0 is none. Keys of two selections are merged by selecting among both.

pub mod groups;

/// Threads per CTA.
pub const THREADS: usize = 512;

/// Warps per CTA.
pub const WARPS: u32 = THREADS as u32 / 32;

/// Largest k.
pub const K_MAX: usize = 4096;

/// Bins of a histogram of keys.
pub const BINS: u32 = 1 << BINS_LOG2;

const BINS_LOG2: u32 = 11;

/// Bytes of a key.
pub const KEY_BYTES: u64 = 8;

/// Fewest keys that a CTA sorts: a larger number ends the search for the k-th key earlier.
const CAPACITY_MIN: u32 = 512;

/// Largest k that a CTA finds by the largest score of each of its threads. Of scores that differ,
/// in any order, hardly more reach the k-th of 512 such: 111 for k = 100, 355 for this k.
pub const K_OF_THREADS: u32 = 256;

/// Threads per CTA that has a short row, and keeps its scores in registers.
pub const SHORT_THREADS: usize = 1024;

/// Most scores of such a row.
pub const SHORT_ROW_MAX: u32 = SHORT_THREADS as u32 * 32;

/// Largest k of such a row.
pub const SHORT_K_MAX: u32 = K_OF_THREADS;

/// Bytes of a warp's place in shared memory.
pub const SLOT_BYTES: u32 = 48;

/// Offset of the numbers that all threads read.
pub const FOUND_OFFSET: u32 = SLOT_BYTES * WARPS;

/// Offset of the histogram, and of the keys that are sorted.
pub const KEYS_OFFSET: u32 = FOUND_OFFSET.next_multiple_of(128) + 128;

/// Keys that a CTA sorts at most: a power of two, and where it can be no less than 2 k.
pub const fn capacity(k: u32) -> u32 {
    let twice = (2 * k).next_power_of_two();
    if twice < CAPACITY_MIN { CAPACITY_MIN } else { twice }
}

/// Dynamic shared memory of a launch in bytes.
pub const fn shared_bytes(capacity: u32) -> u32 {
    let keys = capacity * KEY_BYTES as u32;
    KEYS_OFFSET + if keys < BINS * 4 { BINS * 4 } else { keys }
}

/// Dynamic shared memory of a launch for short rows, or for the bound of long ones.
pub const SHORT_SHARED_BYTES: usize = shared_bytes(capacity(SHORT_K_MAX)) as usize;

/// Dynamic shared memory of the largest launch.
pub const SHARED_BYTES: usize = shared_bytes(capacity(K_MAX as u32)) as usize;

/// Parameters of `maxsim_top_k`: a CTA selects the best k of a chunk of a row.
///
/// A row has entries, each of which is a score or, where there are no scores, a key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TopKParams {
    /// Address of the f32 scores; 0 = entries are keys.
    pub scores: u64,
    /// Address of the keys `[n_rows, row_len]`, where there are no scores.
    pub keys: u64,
    /// Address of the index of each entry's score, u32; 0 = that of the entry.
    pub positions: u64,
    /// Address of the document of each entry, u32; 0 = documents in order, see
    /// [`TopKParams::first_document`].
    pub documents: u64,
    /// Address of the first entries of rows and the end of the last, u32; 0 = every row has
    /// `row_len` entries.
    pub starts: u64,
    /// Address of a bit per document, 1 where it is empty; 0 = see [`TopKParams::reads_items`].
    pub empty: u64,
    /// Address of the documents' segments, or 0: document `i` is the `item_len` rows from row
    /// `i * item_len` on.
    pub segments: u64,
    /// Address of a byte per row that is 0 where the row is none; 0 = none is.
    pub mask: u64,
    /// Address of keys `[n_rows, k]` that take part, or 0. They may be those that are written,
    /// where a row is one chunk.
    pub best: u64,
    /// Address of the keys that are written, `[n_rows, n_chunks, k]`: falling, with zeros behind
    /// them.
    pub out: u64,
    /// Address of the numbers of NaN and of empty documents `[n_rows, 2]`, u64, which those of the
    /// entries are written to; 0 = neither is counted.
    pub counts: u64,
    /// Address of numbers that are counted instead of the entries, where these are keys of a
    /// selection.
    pub key_counts: u64,
    /// Address of two u32 per row, of which the first says how many keys were found that have the
    /// best k of the row; 0 = none were looked for. Where there was room for them, a row that is
    /// one chunk has these keys as its entries, and chunks of other rows have nothing to do.
    pub found: u64,
    /// Address of these keys, `[n_rows, room]`.
    pub found_keys: u64,
    /// Entries of a row; where there are `starts`, of the longest.
    pub row_len: u32,
    /// Entries of a chunk.
    pub chunk_len: u32,
    /// Chunks of a row.
    pub n_chunks: u32,
    /// Keys of each chunk that are kept.
    pub k: u32,
    /// [`capacity`] of k.
    pub capacity: u32,
    /// The id of document 0.
    pub first_id: u32,
    /// The document of the first entry of the first row.
    pub first_document: u32,
    /// How many documents further that of the next row is.
    pub row_documents: u32,
    /// See `segments`.
    pub item_len: u32,
    /// 1 where segments and mask say which documents are empty. An empty document scores 0, so
    /// those of documents with other scores are not read.
    pub reads_items: u32,
    /// 1 where what was counted is added to the counts, 0 where it replaces them.
    pub adds_counts: u32,
    /// Keys of a row for which there was room.
    pub room: u32,
}

/// The key of no entry.
pub const NO_KEY: u64 = 0;

/// Its upper word.
pub const NO_WORD: u32 = 0;

/// High word of the keys of documents without tokens.
const EMPTY: u32 = 1;

/// High word of the keys of scores that are NaN.
const NAN: u32 = 2;

/// Smallest upper word of the key of a number.
pub const NUMBER_MIN: u32 = NAN + 1;

/// The upper word of the key of a score. 0 is the word of none.
#[inline(always)]
pub const fn word(score: f32, is_empty: bool) -> u32 {
    // Both zeros are one number. Nothing here is a branch: kernels do it for each score.
    let bits = (score + 0.0).to_bits();
    let sign = (bits as i32 >> 31) as u32;
    let number = if score.is_nan() { NAN } else { bits ^ (sign | 0x8000_0000) };
    if is_empty { EMPTY } else { number }
}

/// A score that is no less than any number whose word is below this one, and no more than those of
/// this word or above.
#[inline(always)]
pub const fn bound(word: u32) -> f32 {
    match word {
        0..=0x007F_FFFF => f32::NEG_INFINITY,
        0x8000_0000.. => f32::from_bits(word & 0x7FFF_FFFF),
        _ => f32::from_bits(!word),
    }
}

/// The key of a score, given as its bits.
#[inline(always)]
pub const fn key(score: u32, id: u32, is_empty: bool) -> u64 {
    key_of_word(word(f32::from_bits(score), is_empty), id)
}

/// The key of a document whose key has this upper word.
#[inline(always)]
pub const fn key_of_word(word: u32, id: u32) -> u64 {
    ((word as u64) << 32) | !id as u64
}

/// What a key is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Document id.
    pub id: u32,
    /// The score: NaN has one form, and so has zero.
    pub score: f32,
    /// Whether the document has no token.
    pub is_empty: bool,
}

/// What a key that is not [`NO_KEY`] is of.
pub const fn entry(key: u64) -> Entry {
    let (high, id) = ((key >> 32) as u32, !(key as u32));
    let score = match high {
        0 | EMPTY => 0.0,
        NAN => f32::NAN,
        0x8000_0000.. => f32::from_bits(high & 0x7FFF_FFFF),
        _ => f32::from_bits(!high),
    };
    Entry { id, score, is_empty: high <= EMPTY }
}

/// The upper word of a key.
#[inline(always)]
pub const fn upper_word(key: u64) -> u32 {
    (key >> 32) as u32
}

/// Whether the upper word of a key is that of NaN.
#[inline(always)]
pub const fn is_nan(word: u32) -> bool {
    word == NAN
}

/// Whether the upper word of a key is that of a document without tokens.
#[inline(always)]
pub const fn is_empty(word: u32) -> bool {
    word == EMPTY
}

/// Whether the upper word of a key is that of a number.
#[inline(always)]
pub const fn is_number(word: u32) -> bool {
    word >= NUMBER_MIN
}

/// Words of keys, upper or lower ones, among which that of the k-th is looked for, in bins of equal
/// width: a histogram says which of the bins has it, and that bin is the next range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordRange {
    /// The smallest word of the range.
    pub low: u32,
    /// The largest.
    pub high: u32,
}

impl WordRange {
    /// Logarithm of a bin's width.
    #[inline(always)]
    pub const fn shift(&self) -> u32 {
        (32 - (self.high - self.low).leading_zeros()).saturating_sub(BINS_LOG2)
    }

    /// Whether the range is one word.
    #[inline(always)]
    pub const fn is_one(&self) -> bool {
        self.low == self.high
    }

    /// Whether the range has the word.
    #[inline(always)]
    pub const fn contains(&self, word: u32) -> bool {
        word >= self.low && word <= self.high
    }

    /// The range of a bin.
    #[inline(always)]
    pub const fn of_bin(&self, bin: u32) -> WordRange {
        let shift = self.shift();
        let low = self.low + (bin << shift);
        let last = (1 << shift) - 1;
        let high = if self.high - low < last { self.high } else { low + last };
        WordRange { low, high }
    }
}

/// The places of four keys that a step of a bitonic sort compares, of distances `half` and twice
/// that, a power of two.
#[inline(always)]
pub const fn sort_places(four: u32, half: u32) -> [u32; 4] {
    let first = 4 * four - 3 * (four & (half - 1));
    [first, first + half, first + 2 * half, first + 3 * half]
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f32 = f32::INFINITY;

    fn key_of(score: f32, id: u32) -> u64 {
        key(score.to_bits(), id, false)
    }

    #[test]
    fn keys_fall_as_rankings_do() {
        let scores = [INF, f32::MAX, 2.0, 1.0, f32::MIN_POSITIVE, 1e-45, 0.0, -1e-45, -1.0];
        let mut least = u64::MAX;
        let mut next = |key: u64| {
            assert!(key < least);
            least = key;
        };
        for score in scores.into_iter().chain([f32::MIN, -INF]) {
            for id in [3, 4, u32::MAX] {
                next(key_of(score, id));
            }
        }
        for key in [0, 7, u32::MAX].map(|id| key_of(f32::NAN, id)) {
            next(key);
        }
        for key in [0, 7, u32::MAX].map(|id| key(0, id, true)) {
            next(key);
        }
        next(NO_KEY);
    }

    #[test]
    fn keys_say_what_they_are_of() {
        for score in [INF, -INF, 1.5, -1.5, 0.0, 1e-45, -1e-45, f32::MAX, f32::MIN] {
            for id in [0, 1, u32::MAX] {
                let found = entry(key_of(score, id));
                assert_eq!((found.score.to_bits(), found.id), (score.to_bits(), id));
                assert!(!found.is_empty && is_number(upper_word(key_of(score, id))));
            }
        }
        assert_eq!(key_of(-0.0, 5), key_of(0.0, 5));
        for bits in [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0001, 0xFFFF_FFFF] {
            let nan = key(bits, 9, false);
            assert!(
                is_nan(upper_word(nan))
                    && !is_number(upper_word(nan))
                    && !is_empty(upper_word(nan))
            );
            assert!(entry(nan).score.is_nan() && entry(nan).id == 9);
        }
        // Whatever its score.
        for bits in [0, 0x7FC0_0000, 0x3F80_0000] {
            let empty = key(bits, 2, true);
            assert!(
                is_empty(upper_word(empty))
                    && !is_nan(upper_word(empty))
                    && !is_number(upper_word(empty))
            );
            assert_eq!(entry(empty), Entry { id: 2, score: 0.0, is_empty: true });
        }
    }

    /// The bin of a word of a range.
    fn bin_of(range: WordRange, word: u32) -> u32 {
        assert!(range.contains(word));
        (word - range.low) >> range.shift()
    }

    /// Bins lie beside each other, have the range's words and no other, and end with one word.
    #[test]
    fn ranges_are_narrowed_to_one_word() {
        let ordered = |score: f32| word(score, false);
        for (low, high, word) in [
            (0, u32::MAX, 0),
            (0, u32::MAX, u32::MAX),
            (1, u32::MAX - 1, 0x1234_5678),
            (5, 5, 5),
            (7, 2054, 2054),
            (7, 2055, 2055),
            (ordered(-1.0), ordered(1.0), ordered(0.5)),
        ] {
            let mut range = WordRange { low, high };
            let mut n = 0;
            while !range.is_one() {
                let bin = bin_of(range, word);
                assert!(bin_of(range, range.high) < BINS && bin_of(range, range.low) == 0);
                let next = range.of_bin(bin);
                assert!(next.contains(word) && next.high <= range.high);
                assert_eq!((bin_of(range, next.low), bin_of(range, next.high)), (bin, bin));
                if next.low > range.low {
                    assert_eq!(bin_of(range, next.low - 1), bin - 1);
                }
                assert!(next.high - next.low < range.high - range.low);
                (range, n) = (next, n + 1);
            }
            assert!(range.low == word && n <= 3, "{n} rounds");
            assert!(!range.contains(word.wrapping_add(1)) && !range.contains(word.wrapping_sub(1)));
        }
    }

    #[test]
    fn a_step_of_a_sort_meets_every_place_once() {
        let mut half = 1;
        while half <= 64 {
            let mut met = [false; 512];
            for four in 0..128 {
                let places = sort_places(four, half);
                for place in places {
                    assert!(!met[place as usize], "{half}: {place}");
                    met[place as usize] = true;
                    // Warps keep to their keys.
                    assert!(half > 32 || place / 128 == four / 32);
                }
                // The other of a pair differs in one bit.
                assert_eq!(places.map(|place| place ^ places[0]), [0, half, 2 * half, 3 * half]);
            }
            half *= 2;
        }
    }

    #[test]
    fn bounds_are_reached_by_the_words_above() {
        let numbers = [-INF, f32::MIN, -1.0, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, INF];
        for score in numbers {
            let own = word(score, false);
            for least in [own - 1, own, own + 1, NUMBER_MIN, 0x7FFF_FFFF, 0x8000_0000] {
                let is_above = own >= least;
                assert_eq!(score >= bound(least), is_above, "{score} {least:x}");
            }
        }
        assert_eq!(word(-0.0, false), word(0.0, false));
        assert!(-0.0 >= bound(0x8000_0000) && -0.0 >= bound(0x7FFF_FFFF));
    }

    #[test]
    fn as_many_keys_are_sorted_as_there_is_room_for() {
        for k in 0..=K_MAX as u32 {
            let n = capacity(k);
            assert!(n.is_power_of_two() && n >= 2 * k && n >= CAPACITY_MIN);
            assert!(shared_bytes(n) as usize <= SHARED_BYTES);
        }
        assert_eq!([capacity(0), capacity(256), capacity(257)], [512, 512, 1024]);
        // With 1 KB of the driver's own, two CTAs of the smallest device but for the largest k.
        assert!(2 * (shared_bytes(capacity(2048)) + 1024) <= 100 << 10);
        assert!(KEYS_OFFSET.is_multiple_of(128) && K_OF_THREADS <= THREADS as u32);
    }
}
