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
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// The key of no entry.
pub const NO_KEY: u64 = 0;

/// High word of the keys of documents without tokens.
const EMPTY: u32 = 1;

/// High word of the keys of scores that are NaN.
const NAN: u32 = 2;

/// The key of a score, given as its bits.
#[inline(always)]
pub const fn key(score: u32, id: u32, is_empty: bool) -> u64 {
    let high = match (is_empty, score & 0x7FFF_FFFF) {
        (true, _) => EMPTY,
        // Both zeros are one number.
        (false, 0) => 0x8000_0000,
        (false, 0x7F80_0001..) => NAN,
        (false, _) if score >> 31 == 0 => score | 0x8000_0000,
        (false, _) => !score,
    };
    ((high as u64) << 32) | !id as u64
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

/// Whether a key is of a score that is NaN.
#[inline(always)]
pub const fn is_nan(key: u64) -> bool {
    (key >> 32) as u32 == NAN
}

/// Whether a key is of a document without tokens.
#[inline(always)]
pub const fn is_empty(key: u64) -> bool {
    (key >> 32) as u32 == EMPTY
}

/// Whether a key is of a number.
#[inline(always)]
pub const fn is_number(key: u64) -> bool {
    (key >> 32) as u32 > NAN
}

/// Keys among which the k-th is looked for, in bins of equal width: a histogram says which of the
/// bins has it, and that bin is the next range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The smallest key of the range.
    pub low: u64,
    /// The largest.
    pub high: u64,
}

impl KeyRange {
    /// Logarithm of a bin's width.
    #[inline(always)]
    pub const fn shift(&self) -> u32 {
        (64 - (self.high - self.low).leading_zeros()).saturating_sub(BINS_LOG2)
    }

    /// Whether the range has one key alone: more of it are equal.
    #[inline(always)]
    pub const fn is_one(&self) -> bool {
        self.low == self.high
    }

    /// The bin of a key; [`BINS`] and more where that is outside of the range.
    #[inline(always)]
    pub const fn bin(&self, key: u64) -> u32 {
        if key < self.low || key > self.high {
            return BINS;
        }
        ((key - self.low) >> self.shift()) as u32
    }

    /// The range of a bin.
    #[inline(always)]
    pub const fn of_bin(&self, bin: u32) -> KeyRange {
        let shift = self.shift();
        let low = self.low + ((bin as u64) << shift);
        let last = (1u64 << shift) - 1;
        let high = if self.high - low < last { self.high } else { low + last };
        KeyRange { low, high }
    }
}

/// The places of a pair that a step of a bitonic sort compares, of distance `stride`, a power of
/// two.
#[inline(always)]
pub const fn sort_pair(pair: u32, stride: u32) -> [u32; 2] {
    let first = 2 * pair - (pair & (stride - 1));
    [first, first + stride]
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
                assert!(!found.is_empty && is_number(key_of(score, id)));
            }
        }
        assert_eq!(key_of(-0.0, 5), key_of(0.0, 5));
        for bits in [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0001, 0xFFFF_FFFF] {
            let nan = key(bits, 9, false);
            assert!(is_nan(nan) && !is_number(nan) && !is_empty(nan));
            assert!(entry(nan).score.is_nan() && entry(nan).id == 9);
        }
        // Whatever its score.
        for bits in [0, 0x7FC0_0000, 0x3F80_0000] {
            let empty = key(bits, 2, true);
            assert!(is_empty(empty) && !is_nan(empty) && !is_number(empty));
            assert_eq!(entry(empty), Entry { id: 2, score: 0.0, is_empty: true });
        }
    }

    /// Bins lie beside each other, have the range's keys and no other, and end with one key.
    #[test]
    fn ranges_are_narrowed_to_one_key() {
        for (low, high, key) in [
            (0, u64::MAX, 0),
            (0, u64::MAX, u64::MAX),
            (1, u64::MAX - 1, 0x1234_5678_9ABC_DEF0),
            (5, 5, 5),
            (7, 2054, 2054),
            (7, 2055, 2055),
            (key_of(-1.0, 100_000), key_of(1.0, 0), key_of(0.5, 77)),
        ] {
            let mut range = KeyRange { low, high };
            let mut n = 0;
            while !range.is_one() {
                let bin = range.bin(key);
                assert!(bin < BINS && range.bin(range.high) < BINS && range.bin(range.low) == 0);
                let next = range.of_bin(bin);
                assert!(next.low <= key && key <= next.high && next.high <= range.high);
                assert_eq!((range.bin(next.low), range.bin(next.high)), (bin, bin));
                if next.low > range.low {
                    assert_eq!(range.bin(next.low - 1), bin - 1);
                }
                assert!(next.high - next.low < range.high - range.low);
                (range, n) = (next, n + 1);
            }
            assert!(range.low == key && n <= 6, "{n} rounds");
            assert_eq!(range.bin(key.wrapping_add(1)), BINS);
        }
    }

    #[test]
    fn a_step_of_a_sort_meets_every_place_once() {
        let mut stride = 1;
        while stride <= 32 {
            let mut met = [false; 128];
            for pair in 0..64 {
                for place in sort_pair(pair, stride) {
                    assert!(!met[place as usize], "{stride}: {place}");
                    met[place as usize] = true;
                    // Warps keep to their keys.
                    assert_eq!(place / 64, pair / 32);
                }
            }
            stride *= 2;
        }
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
        assert_eq!(KEYS_OFFSET % 128, 0);
    }
}
