//! Chunks of residual-compressed tokens, in registers: see [`crate::abi::residual_chunk`].

use crate::abi::params::Residuals;
use crate::abi::residual_chunk::{CHUNK_LEN, PLANES, weights};
use crate::primitives::row_vector::VectorElement;
pub use crate::ptx::element::{Bf16, F16};
use crate::ptx::global::{load_u8, load_u16, load_u32, load_u32x2, load_u32x4};
use crate::ptx::math::{add_bf16x2, add_f16x2, permute};
use crate::ptx::mma::Half;
#[cfg(maxsim_arch = "sm_80")]
use crate::ptx::warp::shuffle;

/// Element that tokens are decoded to.
pub trait Decoded: Half {
    /// The sums of two pairs of elements, each rounded to nearest.
    fn add(a: u32, b: u32) -> u32;

    /// The elements of a chunk.
    fn widen(words: [u32; 4]) -> [f32; CHUNK_LEN];
}

macro_rules! decoded {
    ($($name:ident $add:ident;)*) => {$(
        impl Decoded for $name {
            #[inline(always)]
            fn add(a: u32, b: u32) -> u32 {
                $add(a, b)
            }

            #[inline(always)]
            fn widen(words: [u32; 4]) -> [f32; CHUNK_LEN] {
                <$name as VectorElement>::widen(words)
            }
        }
    )*};
}

decoded! {
    F16 add_f16x2;
    Bf16 add_bf16x2;
}

/// The buckets of the chunk at an address.
///
/// # Safety
/// The row must have the chunk, or padding up to whole blocks.
#[inline(always)]
pub unsafe fn load_buckets<const NBITS: u32>(address: u64) -> [u32; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        match NBITS {
            1 => [load_u8(address), 0],
            2 => [load_u16(address), 0],
            4 => [load_u32(address), 0],
            _ => load_u32x2(address),
        }
    }
}

/// The weights' tables, of buckets of up to 4 bits in registers.
#[derive(Clone, Copy)]
pub struct Weights {
    planes: [u32; PLANES],
    address: u64,
}

impl Weights {
    /// Loads the weights of a launch.
    ///
    /// # Safety
    /// As [`Residuals`] says.
    #[inline(always)]
    pub unsafe fn new<const NBITS: u32>(tokens: &Residuals) -> Weights {
        let mut planes = [0; PLANES];
        if NBITS <= 4 {
            // SAFETY: the tables are there.
            unsafe {
                let [a, b, c, d] = load_u32x4(tokens.weights);
                let [e, f, g, h] = load_u32x4(tokens.weights + 16);
                planes = [a, b, c, d, e, f, g, h];
            }
        }
        Weights { planes, address: tokens.weights + Residuals::PLANES_BYTES }
    }

    /// Gives each lane registers of its own for the weights of few bits: the byte permutation takes
    /// none that a warp shares, and shared ones are copied again and again.
    ///
    /// # Safety
    /// All 32 lanes together, `lane` the lane's own.
    #[cfg(maxsim_arch = "sm_80")]
    #[inline(always)]
    pub unsafe fn per_lane<const NBITS: u32>(mut self, lane: u32) -> Weights {
        if NBITS <= 2 {
            // SAFETY: the caller's promise.
            unsafe {
                self.planes[0] = shuffle(self.planes[0], lane);
                self.planes[4] = shuffle(self.planes[4], lane);
            }
        }
        self
    }

    /// A chunk's weights, two a word.
    ///
    /// # Safety
    /// As [`Weights::new`].
    #[inline(always)]
    pub unsafe fn of<const NBITS: u32>(&self, buckets: [u32; 2]) -> [u32; 4] {
        match NBITS {
            8 => {
                let [low, high] = buckets;
                // SAFETY: the caller's promise.
                unsafe {
                    [self.pair(low), self.pair(low >> 16), self.pair(high), self.pair(high >> 16)]
                }
            }
            _ => weights::<NBITS>(&self.planes, buckets[0], permute),
        }
    }

    /// A chunk's elements, two a word.
    ///
    /// # Safety
    /// As [`Weights::new`].
    #[inline(always)]
    pub unsafe fn add<T: Decoded, const NBITS: u32>(
        &self,
        centroid: [u32; 4],
        buckets: [u32; 2],
    ) -> [u32; 4] {
        let [a, b, c, d] = centroid;
        // SAFETY: the caller's promise.
        let [e, f, g, h] = unsafe { self.of::<NBITS>(buckets) };
        [T::add(a, e), T::add(b, f), T::add(c, g), T::add(d, h)]
    }

    /// The weights of two buckets of 8 bits.
    ///
    /// # Safety
    /// As [`Weights::new`].
    #[inline(always)]
    unsafe fn pair(&self, buckets: u32) -> u32 {
        // SAFETY: 256 weights of 2 bytes.
        let weight = |bucket: u32| unsafe { load_u16(self.address + u64::from(bucket) * 2) };
        weight(buckets & 0xFF) | weight(buckets >> 8 & 0xFF) << 16
    }
}
