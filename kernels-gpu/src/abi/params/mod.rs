//! Parameter structs of the kernels, one per PTX entry point, and what they are made of.
//!
//! Addresses are plain `u64` device addresses (0 = absent), so that the same bytes mean the same
//! thing on both sides. Nothing here is a Rust pointer.

pub mod backward;
mod bandwidth;
pub mod chamfer;
pub mod chamfer_search;
mod contiguous;
mod document_splits;
mod forward;
pub mod loss;
pub mod projection;
pub mod quantize;
pub mod rescore;
mod residual;
pub mod search;
mod segments;
mod tokens;
pub mod top_k;
pub mod xtr;

pub use crate::abi::params::bandwidth::{BANDWIDTH_THREADS, BandwidthParams};
pub use crate::abi::params::contiguous::{
    ContiguousParams, ContiguousStreamKParams, ContiguousUnit, NormalizedContiguousParams,
    NormalizedContiguousStreamKParams, ScaledContiguousParams,
};
pub use crate::abi::params::document_splits::{
    COMBINE_SPLITS_SHARED_BYTES, COMBINE_SPLITS_THREADS, CombineSplitsParams, NO_TOKEN_SCORE,
    ScoreTokens,
};
pub use crate::abi::params::forward::{
    ForwardParams, N_COUNTERS, N_PARTIAL_ROWS, NormalizedParams, SUM_PARTIALS_THREADS,
    SumPartialsParams, Unit, UnitStart,
};
pub use crate::abi::params::residual::{
    ByCentroidParams, CENTROID_SCORES_BYTES, CentroidScoresParams, DecodedRowsParams,
    ResidualNormsParams, ResidualParams, Residuals,
};
pub use crate::abi::params::segments::{SEGMENTS_THREADS, SegmentsParams};
pub use crate::abi::params::tokens::{Group, Matrix, Segment, TensorMap};

/// Numbers behind those of the rows that may be read, and are not used.
pub const NORMS_PADDING: usize = crate::abi::layout::sm90::DOCUMENT_TILE;

/// Squared lengths of rows below this count as this where rows are normalised.
pub const SQUARE_MIN: f32 = 1e-12;

/// `n / d`, as a rule without a division, which would delay a block's first copy. `inverse` is
/// that of `d` ([`inverse`]); `d` is not 0.
#[inline(always)]
pub const fn divide(n: u32, d: u32, inverse: u32) -> u32 {
    match (d, inverse) {
        (1, _) => n,
        (_, 0) => match n.checked_div(d) {
            Some(quotient) => quotient,
            None => 0,
        },
        (_, inverse) => ((n as u64 * inverse as u64) >> 32) as u32,
    }
}

/// For [`divide`] of numbers up to `most`: `1 / d` in units of 2⁻³², rounded up, or 0 where the
/// quotient would not be exact (`most * d` is 2³² or more).
pub const fn inverse(d: u32, most: u32) -> u32 {
    match (d, d as u64 * most as u64) {
        (0 | 1, _) | (_, 0x1_0000_0000..) => 0,
        _ => u32::MAX / d + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_keeps_its_rows_and_its_part() {
        for (n_rows, part) in [(0, 0), (1, 5), (16, 0), (16, Group::PARTS_MAX - 1)] {
            let group = Group::new(7, 100, 32, n_rows, part);
            assert_eq!((group.n_rows(), group.part()), (n_rows, part));
        }
        assert_eq!(Group::NONE.n_rows(), 0);
    }

    #[test]
    fn quotients_are_exact() {
        for d in [1, 2, 3, 5, 7, 33, 64, 1000, 65_535, 65_537, 1 << 20, u32::MAX] {
            for most in [0, 1, 2, 1000, 65_535, 65_536, 4_000_000_000 / d, i32::MAX as u32] {
                for n in [0, 1, most / 2, most.saturating_sub(1), most, most / d * d] {
                    assert_eq!(divide(n, d, inverse(d, most)), n / d, "{n} / {d}, up to {most}");
                }
            }
        }
    }

    #[test]
    fn structs_have_no_padding_that_nobody_named() {
        assert_eq!(size_of::<Unit>(), 20);
        assert_eq!(size_of::<UnitStart>(), 16);
        assert_eq!(size_of::<Group>(), 16);
        assert_eq!(size_of::<Matrix>(), 40);
        assert_eq!(size_of::<ScoreTokens>(), 16);
        assert_eq!(size_of::<CombineSplitsParams>(), 40 + 7 * 8 + 6 * 4);
        // Three maps, two matrices, 14 addresses, 22 words.
        assert_eq!(size_of::<ForwardParams>(), 3 * 128 + 2 * 40 + 14 * 8 + 22 * 4);
        assert_eq!(size_of::<NormalizedParams>(), size_of::<ForwardParams>() + 2 * 8 + 2 * 4);
    }
}
