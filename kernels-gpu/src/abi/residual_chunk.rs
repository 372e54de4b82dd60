//! Residual-compressed tokens as GPUs decode them: a *chunk* of 8 elements, 16 bytes, at a time.
//!
//! ```text
//! x̂[k] = T(T(centroids[code][k]) + T(bucket_weights[bucket[k]]))     T: f16 or bf16
//! ```
//!
//! A chunk's buckets are `nbits` bytes, in an order of their own ([`place`]): one mask isolates the
//! buckets of four elements in a word's nibbles, which is how the byte permutation takes its
//! selectors. Weights are two tables of bytes, lower and upper halves. Of 8 bits they are an array
//! in memory.

use crate::abi::residual::{BitOrder, bucket, per_byte};

/// Elements of a chunk.
pub const CHUNK_LEN: usize = 8;

/// Words of [`planes`].
pub const PLANES: usize = 8;

/// Weights of [`planes`].
const PLANE_WEIGHTS: usize = 16;

/// Most bits of buckets that kernels take which read the scores of centroids.
pub const BY_CENTROID_NBITS_MAX: u32 = 2;

/// Threads per CTA of the kernels that compute the scores of centroids.
pub const CENTROID_SCORES_THREADS: usize = 128;

/// Lanes that share a token in `maxsim_residual_norms_*`.
pub const NORMS_LANES: u32 = 8;

/// Chunks that each of four lanes has of a *block* of a row, 128 elements. They lie together, so
/// that a lane reads them at once.
pub const LANE_CHUNKS: usize = 4;

/// Chunks of a block.
const BLOCK_CHUNKS: usize = 4 * LANE_CHUNKS;

/// Slot of the buckets of chunk `chunk` of a row, in chunks: chunk 4 i + t of a block is the i-th
/// of lane t.
pub const fn slot(chunk: usize) -> usize {
    let (block, chunk) = (chunk / BLOCK_CHUNKS, chunk % BLOCK_CHUNKS);
    block * BLOCK_CHUNKS + chunk % 4 * LANE_CHUNKS + chunk / 4
}

/// Chunks of a row of `dim` elements: whole blocks.
pub const fn n_slots(dim: usize) -> usize {
    dim.div_ceil(CHUNK_LEN).next_multiple_of(BLOCK_CHUNKS)
}

/// Bytes of a row's buckets.
pub const fn row_bytes(dim: usize, nbits: u32) -> usize {
    n_slots(dim) * nbits as usize
}

/// Bytes of a centroid of elements of two bytes: whole slabs, and no fewer than kernels of one
/// block read.
pub const fn centroid_bytes(dim: usize) -> usize {
    let slabs = crate::abi::layout::slabs(dim, 2);
    (if slabs < 2 { 2 } else { slabs }) * crate::abi::layout::SLAB_BYTES
}

/// Lowest bit of bucket `i` of a chunk.
pub const fn place(nbits: u32, i: u32) -> u32 {
    match nbits {
        // Every fourth bit of two copies, one of them 7 bits up.
        1 => 4 * (i % 2) + i / 2 % 2 + 2 * (i / 4),
        2 => 4 * (i % 4) + 2 * (i / 4),
        nbits => nbits * i,
    }
}

/// Tabulates for each value of byte `at` of a chunk, in `order`, the bits that it puts into the
/// chunk as GPUs decode it.
pub fn arranged(nbits: u32, order: BitOrder, at: u32) -> [u64; 256] {
    core::array::from_fn(|byte| {
        (0..per_byte(nbits)).fold(0, |chunk, i| {
            let bucket = u64::from(bucket(byte as u8, i, nbits, order));
            chunk | bucket << place(nbits, at * per_byte(nbits) + i)
        })
    })
}

/// The tables of up to 16 weights, given the bits of each: byte `k` of the first four words is the
/// lower half of weight `k`, of the others its upper half.
pub fn planes(weights: &[u16]) -> [u32; PLANES] {
    let mut planes = [0; PLANES];
    for (k, &weight) in weights.iter().take(PLANE_WEIGHTS).enumerate() {
        let [low, high] = weight.to_le_bytes().map(|byte| u32::from(byte) << (8 * (k % 4)));
        planes[k / 4] |= low;
        planes[4 + k / 4] |= high;
    }
    planes
}

/// The weights of a chunk's elements, two a word, of up to 4 bits. `permute(a, b, selector)` gives
/// four of the eight bytes of `a` and `b`, as the selector's lowest four nibbles say, of which the
/// topmost bits are 0.
#[inline(always)]
pub fn weights<const NBITS: u32>(
    planes: &[u32; PLANES],
    chunk: u32,
    permute: impl Fn(u32, u32, u32) -> u32,
) -> [u32; 4] {
    let four = |group: u32| {
        let [low, high] = match NBITS {
            1 | 2 => {
                let (spread, mask) = match NBITS {
                    1 => (chunk | chunk << 7, 0x1111),
                    _ => (chunk, 0x3333),
                };
                let selector = (spread >> (2 * group)) & mask;
                [permute(planes[0], 0, selector), permute(planes[4], 0, selector)]
            }
            _ => {
                let buckets = chunk >> (16 * group);
                let selector = buckets & 0x7777;
                // All bits of a byte whose bucket is 8 or more.
                let upper = permute(0xFF00, 0, (buckets >> 3) & 0x1111);
                let of = |first: usize| {
                    let below = permute(planes[first], planes[first + 1], selector);
                    let above = permute(planes[first + 2], planes[first + 3], selector);
                    below & !upper | above & upper
                };
                [of(0), of(4)]
            }
        };
        [permute(low, high, 0x5140), permute(low, high, 0x7362)]
    };
    let [[a, b], [c, d]] = [four(0), four(1)];
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::residual::{NBITS, with_bucket};

    fn permute(a: u32, b: u32, selector: u32) -> u32 {
        let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        u32::from_le_bytes([0, 4, 8, 12].map(|at| {
            let nibble = (selector >> at) & 0xF;
            assert!(nibble < 8, "{selector:x}");
            bytes[nibble as usize]
        }))
    }

    /// 8 buckets out of a number, in an order of bits, and as GPUs decode them.
    fn chunk(nbits: u32, order: BitOrder, number: u64) -> ([u8; 8], u64) {
        let buckets: [u8; 8] =
            core::array::from_fn(|i| (number >> (8 * i)) as u8 & (u8::MAX >> (8 - nbits)));
        let n = per_byte(nbits);
        let arranged = (0..nbits).fold(0, |chunk, at| {
            let byte = (0..n).fold(0, |byte, i| {
                with_bucket(byte, i, buckets[(at * n + i) as usize], nbits, order)
            });
            chunk | arranged(nbits, order, at)[usize::from(byte)]
        });
        (buckets, arranged)
    }

    fn numbers() -> impl Iterator<Item = u64> {
        let mut x = 1u64;
        (0..2000).map(move |_| {
            x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            x ^ x >> 31
        })
    }

    #[test]
    fn every_bucket_has_a_place_of_its_own() {
        for nbits in NBITS {
            let bits = (0..8).fold(0u64, |all, i| {
                let bits = (1 << nbits) - 1;
                let bits = (bits as u64) << place(nbits, i);
                assert_eq!(all & bits, 0, "{nbits} {i}");
                all | bits
            });
            assert_eq!(bits.count_ones(), 8 * nbits);
            assert_eq!(bits.leading_zeros(), 64 - 8 * nbits);
        }
    }

    #[test]
    fn weights_of_both_orders_are_those_of_the_buckets() {
        let table: [u16; 16] = core::array::from_fn(|k| 0x3C00 ^ (k as u16 * 0x0357));
        for order in BitOrder::ALL {
            for number in numbers() {
                for nbits in [1, 2, 4] {
                    let (buckets, chunk) = chunk(nbits, order, number);
                    let planes = planes(&table[..1 << nbits]);
                    let words = match nbits {
                        1 => weights::<1>(&planes, chunk as u32, permute),
                        2 => weights::<2>(&planes, chunk as u32, permute),
                        _ => weights::<4>(&planes, chunk as u32, permute),
                    };
                    for (i, &bucket) in buckets.iter().enumerate() {
                        let found = (words[i / 2] >> (16 * (i % 2))) as u16;
                        assert_eq!(found, table[usize::from(bucket)], "{nbits} {i} {buckets:?}");
                    }
                }
                let (buckets, chunk) = chunk(8, order, number);
                assert_eq!(buckets, chunk.to_le_bytes());
            }
        }
    }

    #[test]
    fn every_chunk_has_a_slot_of_its_own() {
        for dim in [1, 9, 64, 65, 96, 128, 129, 300, 4096] {
            let mut is_taken = [false; 512];
            for chunk in 0..n_slots(dim) {
                let slot = slot(chunk);
                assert!(slot < n_slots(dim) && !is_taken[slot], "{dim} {chunk}");
                is_taken[slot] = true;
            }
            assert!(n_slots(dim) * CHUNK_LEN >= dim);
        }
        assert_eq!((row_bytes(128, 2), row_bytes(129, 2), row_bytes(9, 1)), (32, 64, 16));
        assert_eq!((slot(1), slot(4), slot(17)), (4, 1, 20));
        assert_eq!([1, 64, 65, 128, 129].map(centroid_bytes), [256, 256, 256, 256, 384]);
    }
}
