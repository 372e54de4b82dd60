//! What rows hold.

use crate::abi::params::Group;
use crate::primitives::row_scales::Norms;
use crate::ptx::mma::Half;
use crate::sm90::contiguous::int8::Scales;
use crate::sm90::contiguous::mma_loop::Sums;

/// What `mma.sync` multiplies of rows, 32 bytes of 16 and of 8 rows at a time.
pub trait Element {
    /// Bytes of one.
    const BYTES: usize;
    /// Whether similarities are sums of products times a scale of each row.
    const HAS_SCALES: bool;

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
    /// The group must be of the launch whose norms these are.
    unsafe fn query_scale(norms: Norms, group: Group, row: u32) -> f32;
}

impl<E: Half> Element for E {
    const BYTES: usize = 2;
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
    unsafe fn query_scale(_: Norms, _: Group, _: u32) -> f32 {
        1.0
    }
}
