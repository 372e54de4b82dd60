//! Elements of rows.

use crate::abi::params::Group;
use crate::primitives::row_scales::RowScales;
use crate::ptx::element::Element;
use crate::ptx::mma::Half;
use crate::sm90::contiguous::int8::Scales;
use crate::sm90::contiguous::products::Sums;

/// Operand of `mma.sync`, 32 bytes of 16 and of 8 rows at a time.
pub trait ChunkElement: Element {
    /// Whether similarities are sums of products times a scale of each row.
    const HAS_SCALES: bool;
    /// Whether rows are normalised, by r that the kernel finds itself ([`super::norms`]).
    const NORMALIZES: bool = false;
    /// Whether the sum of squares of some row is beyond f32.
    const SQUARES_OVERFLOW: bool = false;

    /// The elements of 16 bytes as numbers, of rows that are normalised.
    #[inline(always)]
    fn widen(_: [u32; 4]) -> [f32; 8] {
        [0.0; 8]
    }

    /// `c + a · b`, as its bits.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    unsafe fn multiply_add(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4];

    /// The similarities that sums of products are, with tokens of these scales.
    fn similarities(sums: Sums, scales: &Scales) -> Sums;

    /// The scale of row `row` of a group of query rows; 1 where it has none.
    ///
    /// # Safety
    /// The group must be of the launch whose row_scales these are.
    unsafe fn query_scale(row_scales: RowScales, group: Group, row: u32) -> f32;
}

impl<E: Half> ChunkElement for E {
    const HAS_SCALES: bool = false;

    #[inline(always)]
    unsafe fn multiply_add(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
        // SAFETY: the caller's promise.
        unsafe { <E as Half>::multiply_add(c, a, b) }
    }

    #[inline(always)]
    fn similarities(sums: Sums, _: &Scales) -> Sums {
        sums
    }

    #[inline(always)]
    unsafe fn query_scale(_: RowScales, _: Group, _: u32) -> f32 {
        1.0
    }
}
