//! Projects hidden states: u = W · h + b, and tokens u · r, rounded once. Here are the element
//! types, and how squares of tokens are scaled.

#[cfg(maxsim_arch = "sm_80")]
pub mod choose;
#[cfg(maxsim_arch = "sm_80")]
pub mod gradient;
#[cfg(maxsim_arch = "sm_80")]
pub mod sm80;
#[cfg(maxsim_arch = "sm_90a")]
pub mod sm90;

use crate::abi::params::SQUARE_MIN;
use crate::abi::params::projection::{OUTPUTS, ProjectionParams};
use crate::primitives::row_vector::VectorElement;
use crate::ptx::convert::{narrow_bf16, narrow_f16};
use crate::ptx::element::{Bf16, F16, F32};
use crate::ptx::global::{store_u16, store_u32, store_u32x2};
use crate::ptx::math::{max_nan, sqrt};

/// What elements of u are multiplied by before they are squared, and what r is then: so that no
/// square of an element below 2⁹⁵ is infinite.
pub const SQUARED_SCALE: f32 = 1.0 / (1u64 << 32) as f32;

/// How a CTA goes through the outputs: tiles of them, and steps of a tile. Where tokens are
/// normalised and have several tiles, the first of two passes finds r.
#[inline(always)]
pub fn steps(params: &ProjectionParams) -> [u32; 2] {
    let n_tiles = params.dim.div_ceil(OUTPUTS as u32);
    let is_twice = params.normalize != 0 && n_tiles > 1;
    [n_tiles, if is_twice { 2 * n_tiles } else { n_tiles }]
}

/// First output of a step.
#[inline(always)]
pub fn first_output(step: u32, n_tiles: u32) -> u32 {
    (if step >= n_tiles { step - n_tiles } else { step }) * OUTPUTS as u32
}

/// r of a token, by the sum of the squares of its scaled elements.
#[inline(always)]
pub fn scale_of(square: f32) -> f32 {
    let least = SQUARE_MIN * SQUARED_SCALE * SQUARED_SCALE;
    SQUARED_SCALE / sqrt(max_nan(square, least))
}

/// An element type of hidden states.
pub trait Projected: VectorElement {
    /// Stores two elements of a token.
    ///
    /// # Safety
    /// The token must have them, for this thread to write, aligned to both.
    unsafe fn store_pair(address: u64, pair: [f32; 2]);

    /// Stores an element.
    ///
    /// # Safety
    /// `address` must be that of an element, for this thread to write.
    unsafe fn store_one(address: u64, x: f32);
}

/// An element type of two bytes.
#[cfg(maxsim_arch = "sm_90a")]
pub trait Narrow: Projected {
    /// Two elements, the first in the lower half, rounded to nearest.
    fn narrow(pair: [f32; 2]) -> u32;
}

#[cfg(maxsim_arch = "sm_90a")]
impl Narrow for F16 {
    #[inline(always)]
    fn narrow([a, b]: [f32; 2]) -> u32 {
        narrow_f16(a, b)
    }
}

#[cfg(maxsim_arch = "sm_90a")]
impl Narrow for Bf16 {
    #[inline(always)]
    fn narrow([a, b]: [f32; 2]) -> u32 {
        narrow_bf16(a, b)
    }
}

macro_rules! projected {
    ($($name:ident $store:ident |$a:ident, $b:ident| $words:expr,
        $store_one:ident |$x:ident| $word:expr;)*) => {$(
        impl Projected for $name {
            #[inline(always)]
            unsafe fn store_pair(address: u64, [$a, $b]: [f32; 2]) {
                // SAFETY: the caller's promise.
                unsafe { $store(address, $words) }
            }

            #[inline(always)]
            unsafe fn store_one(address: u64, $x: f32) {
                // SAFETY: the caller's promise.
                unsafe { $store_one(address, $word) }
            }
        }
    )*};
}

projected! {
    F16 store_u32 |a, b| narrow_f16(a, b), store_u16 |x| narrow_f16(x, 0.0);
    Bf16 store_u32 |a, b| narrow_bf16(a, b), store_u16 |x| narrow_bf16(x, 0.0);
    F32 store_u32x2 |a, b| [a.to_bits(), b.to_bits()], store_u32 |x| x.to_bits();
}
