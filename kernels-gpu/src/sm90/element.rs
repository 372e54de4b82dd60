//! Element types that wgmma multiplies with 16 elements per step.

use crate::ptx::wgmma::{self, Accumulators};

/// A 16-bit element type.
pub trait Half {
    /// Starts a product.
    ///
    /// # Safety
    /// As [`wgmma::mma_f16`].
    unsafe fn multiply(a: u32, b: u32) -> Accumulators;

    /// Adds a product.
    ///
    /// # Safety
    /// As [`wgmma::mma_add_f16`].
    unsafe fn multiply_add(c: Accumulators, a: u32, b: u32) -> Accumulators;
}

macro_rules! half {
    ($(#[$doc:meta])* $name:ident, $first:ident, $add:ident) => {
        $(#[$doc])*
        pub struct $name;

        impl Half for $name {
            #[inline(always)]
            unsafe fn multiply(a: u32, b: u32) -> Accumulators {
                // SAFETY: the caller's promise.
                unsafe { wgmma::$first(a, b) }
            }

            #[inline(always)]
            unsafe fn multiply_add(c: Accumulators, a: u32, b: u32) -> Accumulators {
                // SAFETY: the caller's promise.
                unsafe { wgmma::$add(c, a, b) }
            }
        }
    };
}

half!(
    /// IEEE 754 binary16.
    F16, mma_f16, mma_add_f16
);
half!(
    /// bfloat16.
    Bf16, mma_bf16, mma_add_bf16
);
