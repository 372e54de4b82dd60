//! Residual-compressed tokens (PLAID, ColBERTv2): what one element of a token decodes to.
//!
//! A token is the id of a centroid and, per element, a bucket of `nbits` bits:
//!
//! ```text
//! x[k]  = centroids[code][k] + bucket_weights[bucket[k]]          one f32 addition, rounded once
//! token = x, or x · r with r = 1 / √max(‖x‖², 10⁻¹²)              where tokens are normalised
//! ```
//!
//! after K. Santhanam et al., "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late
//! Interaction", NAACL 2022, section 3.3, and "PLAID: An Efficient Engine for Late Interaction
//! Retrieval", CIKM 2022. Buckets lie in bytes in one of two [`BitOrder`]s, from the byte's first
//! element on, so that `8 / nbits` of them share a byte; the last byte of a row is filled with
//! zeros.

/// Numbers of bits that a bucket may have.
pub const NBITS: [u32; 4] = [1, 2, 4, 8];

/// Order of the bits of buckets in their byte.
///
/// The two orders differ by the reversal of each byte's 8 bits, and nothing in the bytes says which
/// one they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BitOrder {
    /// Descending: bit `b` of the byte's `i`-th bucket is bit `7 - (i · nbits + b)` of the byte.
    /// ColBERT, fast-plaid and next-plaid write it.
    Colbert,
    /// Ascending: it is bit `i · nbits + b`. What late-interaction-kernels reads.
    LittleEndian,
}

impl BitOrder {
    /// Both orders.
    pub const ALL: [BitOrder; 2] = [BitOrder::Colbert, BitOrder::LittleEndian];

    /// The name used in file formats and messages.
    pub const fn name(self) -> &'static str {
        match self {
            BitOrder::Colbert => "colbert",
            BitOrder::LittleEndian => "little-endian",
        }
    }

    /// A byte of this order with its bits ascending, and the other way round.
    #[inline(always)]
    pub const fn ascending(self, byte: u8) -> u8 {
        match self {
            BitOrder::Colbert => byte.reverse_bits(),
            BitOrder::LittleEndian => byte,
        }
    }
}

/// Bytes of a token's buckets: `dim · nbits` bits.
pub const fn row_bytes(dim: usize, nbits: u32) -> usize {
    (dim * nbits as usize).div_ceil(8)
}

/// Buckets in a byte.
#[inline(always)]
pub const fn per_byte(nbits: u32) -> u32 {
    8 / nbits
}

/// The `i`-th bucket of a byte.
#[inline(always)]
pub const fn bucket(byte: u8, i: u32, nbits: u32, order: BitOrder) -> u8 {
    (order.ascending(byte) >> (i * nbits)) & (u8::MAX >> (8 - nbits))
}

/// A byte with `bucket` put into its `i`-th place, which must be 0.
#[inline(always)]
pub const fn with_bucket(byte: u8, i: u32, bucket: u8, nbits: u32, order: BitOrder) -> u8 {
    byte | order.ascending(bucket << (i * nbits))
}

/// The bucket of a residual: how many of the cutoffs, which rise, lie below it. A NaN is in the
/// first.
#[inline(always)]
pub fn bucket_of(residual: f32, cutoffs: &[f32]) -> u8 {
    cutoffs.partition_point(|&cutoff| cutoff < residual) as u8
}

/// An element before it is normalised.
#[inline(always)]
pub fn element(centroid: f32, weight: f32) -> f32 {
    centroid + weight
}

/// r of ‖x‖², given √: `1 / √max(square, 10⁻¹²)` with both operations rounded; NaN of NaN.
#[inline(always)]
pub fn norm(square: f32, sqrt: impl Fn(f32) -> f32) -> f32 {
    // `max` would make a number of a NaN.
    1.0 / sqrt(if square <= SQUARE_MIN { SQUARE_MIN } else { square })
}

/// Squared lengths below this count as this, so that r is never more than 10⁶, and is constant
/// where gradients are taken.
pub use crate::abi::params::SQUARE_MIN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_both_orders_lie_where_their_formulas_say() {
        for nbits in NBITS {
            for byte in 0..=u8::MAX {
                for i in 0..per_byte(nbits) {
                    let bits = |place: &dyn Fn(u32) -> u32| {
                        (0..nbits).map(|b| ((byte >> place(i * nbits + b)) & 1) << b).sum::<u8>()
                    };
                    let colbert = bucket(byte, i, nbits, BitOrder::Colbert);
                    assert_eq!(colbert, bits(&|at| 7 - at), "{byte:08b} {i} {nbits}");
                    let little = bucket(byte, i, nbits, BitOrder::LittleEndian);
                    assert_eq!(little, bits(&|at| at), "{byte:08b} {i} {nbits}");
                }
            }
        }
    }

    #[test]
    fn bytes_are_made_of_their_buckets() {
        for nbits in NBITS {
            for order in BitOrder::ALL {
                for byte in 0..=u8::MAX {
                    let made = (0..per_byte(nbits)).fold(0, |made, i| {
                        with_bucket(made, i, bucket(byte, i, nbits, order), nbits, order)
                    });
                    assert_eq!(made, byte);
                }
            }
        }
    }

    #[test]
    fn rows_end_with_a_whole_byte() {
        assert_eq!(row_bytes(128, 2), 32);
        assert_eq!(row_bytes(1, 1), 1);
        assert_eq!(row_bytes(9, 1), 2);
        assert_eq!(row_bytes(3, 4), 2);
        assert_eq!(row_bytes(4096, 8), 4096);
    }

    #[test]
    fn a_residual_at_a_cutoff_is_in_the_bucket_below() {
        let cutoffs = [-1.0, 0.0, 0.0, 2.0];
        let found = [-2.0, -1.0, -0.5, 0.0, 0.5, 2.0, 2.5, f32::INFINITY];
        let found = found.map(|residual| bucket_of(residual, &cutoffs));
        assert_eq!(found, [0, 0, 1, 1, 3, 3, 4, 4]);
        assert_eq!(bucket_of(f32::NAN, &cutoffs), 0);
        assert_eq!(bucket_of(1.0, &[]), 0);
    }

    #[test]
    fn r_is_bounded_and_keeps_nan() {
        // Newton's steps, from above: core has no square root.
        let sqrt = |x: f32| (0..60).fold(x.max(1.0), |root, _| (root + x / root) / 2.0);
        assert!((norm(4.0, sqrt) - 0.5).abs() < 1e-6);
        assert!((norm(0.0, sqrt) * 1e-6 - 1.0).abs() < 1e-3);
        assert_eq!(norm(0.0, sqrt), norm(1e-12, sqrt));
        assert!(norm(f32::NAN, |x| x).is_nan());
        assert_eq!(norm(f32::INFINITY, |x| x), 0.0);
    }
}
