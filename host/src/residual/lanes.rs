//! The steps of decoding that are done for 16 elements at once.

use maxsim_kernels::abi::residual::{BitOrder, bucket, per_byte};
#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};
#[cfg(target_arch = "x86_64")]
use pulp::{Simd, cast, f32x4, f32x8, f64x4, f64x8};

use super::codec::ResidualCodec;
use crate::tokens::element::{LANES, Lanes};

/// A codec's weights, as each [`Look`] reads them.
#[derive(Debug)]
// Other CPUs look weights up byte by byte.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Tables {
    /// Weights of the elements of every byte, `[256, elements of a byte]`: at most 8 KB, so that
    /// they stay in the first-level cache.
    pub by_byte: Vec<f32>,
    /// Weights of up to 4 bits as they lie in a byte, over and over.
    pub by_bits: Lanes,
    /// The lowest bit of each element of 16 in its word of two; one word, twice, where that is
    /// enough.
    pub shifts: [u32; LANES],
}

impl Tables {
    /// The tables of a codec whose buckets lie in this order.
    pub fn new(codec: &ResidualCodec<'_>, order: BitOrder) -> Tables {
        let (nbits, weights) = (codec.nbits(), codec.bucket_weights());
        let per_byte = per_byte(nbits);
        let weight = |byte, i| weights[usize::from(bucket(byte, i, nbits, order))];
        let by_byte = (0..=u8::MAX).flat_map(|byte| (0..per_byte).map(move |i| weight(byte, i)));
        // The lowest bit of a byte's elements, each in its byte.
        let lowest = |i: u32| match order {
            BitOrder::LittleEndian => i * nbits,
            BitOrder::Colbert => u8::BITS - (i + 1) * nbits,
        };
        let bits = |i: usize| (i % (1 << nbits)) as u8;
        let shift = |i: u32| (i / per_byte * u8::BITS + lowest(i % per_byte)) % u32::BITS;
        Tables {
            by_byte: by_byte.collect(),
            by_bits: std::array::from_fn(|i| weight(bits(i) << lowest(0), 0)),
            shifts: std::array::from_fn(|i| shift(i as u32)),
        }
    }
}

/// What is done in a CPU's own way.
pub(super) trait Look: Copy {
    /// Sums of squares in f64, in registers: left to itself, the compiler splits them.
    type Sums: Copy;

    /// Weights of 16 elements, of which a byte has `N`: those of `bytes`, which are `16 / N`.
    fn weights<const N: usize>(self, tables: &Tables, bytes: &[u8]) -> Lanes;

    /// No sum so far.
    fn no_squares(self) -> Self::Sums;

    /// Adds the squares of 16 elements. They are exact in f64, whether additions are fused or not.
    fn add_squares(self, sums: &mut Self::Sums, x: &Lanes);

    /// The sum of all sums, in any order.
    fn total(self, sums: Self::Sums) -> f64;
}

/// Byte by byte, on any CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByByte;

impl Look for ByByte {
    type Sums = [f64; LANES];

    #[inline(always)]
    fn weights<const N: usize>(self, tables: &Tables, bytes: &[u8]) -> Lanes {
        let mut weights = [0.0; LANES];
        let (by_byte, _) = tables.by_byte.as_chunks::<N>();
        if let Some(by_byte) = by_byte.first_chunk::<256>() {
            let (parts, _) = weights.as_chunks_mut::<N>();
            parts
                .iter_mut()
                .zip(bytes)
                .for_each(|(part, &byte)| *part = by_byte[usize::from(byte)]);
        }
        weights
    }

    #[inline(always)]
    fn no_squares(self) -> [f64; LANES] {
        [0.0; LANES]
    }

    #[inline(always)]
    fn add_squares(self, sums: &mut [f64; LANES], x: &Lanes) {
        sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
    }

    #[inline(always)]
    fn total(self, sums: [f64; LANES]) -> f64 {
        sums.iter().sum()
    }
}

/// All weights in a register, which the elements' bits choose from; those of 8 bits byte by byte.
#[cfg(target_arch = "x86_64")]
impl Look for V4 {
    type Sums = [f64x8; 2];

    #[inline(always)]
    fn weights<const N: usize>(self, tables: &Tables, bytes: &[u8]) -> Lanes {
        if N == 1 {
            return ByByte.weights::<N>(tables, bytes);
        }
        let bits = cast(bits::<N>(&tables.shifts, bytes));
        cast(self.avx512f._mm512_permutexvar_ps(bits, cast(tables.by_bits)))
    }

    #[inline(always)]
    fn no_squares(self) -> [f64x8; 2] {
        [self.splat_f64x8(0.0); 2]
    }

    #[inline(always)]
    fn add_squares(self, sums: &mut [f64x8; 2], x: &Lanes) {
        let parts: [f32x8; 2] = cast(*x);
        for (sum, part) in sums.iter_mut().zip(parts) {
            let part = self.convert_f32x8_to_f64x8(part);
            *sum = self.mul_add_f64x8(part, part, *sum);
        }
    }

    #[inline(always)]
    fn total(self, [a, b]: [f64x8; 2]) -> f64 {
        self.reduce_sum_f64s(self.add_f64s(a, b))
    }
}

/// Likewise, in two registers.
#[cfg(target_arch = "x86_64")]
impl Look for V3 {
    type Sums = [f64x4; 4];

    #[inline(always)]
    fn weights<const N: usize>(self, tables: &Tables, bytes: &[u8]) -> Lanes {
        if N == 1 {
            return ByByte.weights::<N>(tables, bytes);
        }
        let [low, high]: [[f32; 8]; 2] = cast(tables.by_bits);
        let (low, high) = (cast(low), cast(high));
        let mut halves = [[0.0f32; 8]; 2];
        let bits: [[u32; 8]; 2] = cast(bits::<N>(&tables.shifts, bytes));
        for (half, bits) in halves.iter_mut().zip(bits) {
            let bits = cast(bits);
            let mut weights = self.avx2._mm256_permutevar8x32_ps(low, bits);
            // Of fewer bits both registers have the same.
            if N == 2 {
                let high = self.avx2._mm256_permutevar8x32_ps(high, bits);
                let is_high = cast(self.avx2._mm256_slli_epi32::<28>(bits));
                weights = self.avx._mm256_blendv_ps(weights, high, is_high);
            }
            *half = cast(weights);
        }
        cast(halves)
    }

    #[inline(always)]
    fn no_squares(self) -> [f64x4; 4] {
        [self.splat_f64x4(0.0); 4]
    }

    #[inline(always)]
    fn add_squares(self, sums: &mut [f64x4; 4], x: &Lanes) {
        let parts: [f32x4; 4] = cast(*x);
        for (sum, part) in sums.iter_mut().zip(parts) {
            let part = self.convert_f32x4_to_f64x4(part);
            *sum = self.mul_add_f64x4(part, part, *sum);
        }
    }

    #[inline(always)]
    fn total(self, [a, b, c, d]: [f64x4; 4]) -> f64 {
        self.reduce_sum_f64s(self.add_f64s(self.add_f64s(a, b), self.add_f64s(c, d)))
    }
}

/// The bits of 16 elements, with others above the fourth.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn bits<const N: usize>(shifts: &[u32; LANES], bytes: &[u8]) -> [u32; LANES] {
    let mut words = [0; 8];
    words[..LANES / N].copy_from_slice(&bytes[..LANES / N]);
    let [low, mut high]: [[u8; 4]; 2] = cast(words);
    if N > 2 {
        high = low;
    }
    let mut bits = *shifts;
    let (front, back) = bits.split_at_mut(LANES / 2);
    front.iter_mut().for_each(|bits| *bits = u32::from_le_bytes(low) >> *bits);
    back.iter_mut().for_each(|bits| *bits = u32::from_le_bytes(high) >> *bits);
    bits
}
