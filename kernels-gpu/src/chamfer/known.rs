//! What is known of a point whose neighbour is looked for among copies.

use super::points::Cloud;
use crate::abi::params::chamfer::select::{RefineParams, SelectedPoint, extent, scale};
use crate::ptx::global::{read_f32, read_u32};

/// Reads what is known of a point of a cloud of the pair, and of the other cloud.
///
/// # Safety
/// `params` must describe memory as [`RefineParams`] says; there must be the point.
#[inline(always)]
pub unsafe fn known_of(params: &RefineParams, own: &Cloud, point: u32) -> SelectedPoint {
    let copies = &params.copies;
    let (pair, side) = (u64::from(params.pair_and_side / 2), params.pair_and_side % 2);
    let place = u64::from(own.place) + u64::from(point);
    let word = |word: u32| {
        let index = pair * u64::from(extent::LEN) + u64::from(word);
        // SAFETY: words of the pair.
        unsafe { read_u32(copies.extents + index * 4) }
    };
    // SAFETY: a number per place.
    let (norm, error) =
        unsafe { (read_f32(copies.norms + place * 4), read_f32(copies.errors + place * 4)) };
    SelectedPoint {
        norm,
        error,
        other_norm: f32::from_bits(word(extent::NORMS + 1 - side)),
        other_error: f32::from_bits(word(extent::ERRORS + 1 - side)),
        scale: scale(word(extent::MOST)),
        dims: copies.copied_dim as f32,
    }
}
