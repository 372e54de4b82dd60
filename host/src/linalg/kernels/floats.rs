//! f32 by `pulp`: one chain of multiply-adds for each product, fused where the CPU can.
#![allow(unsafe_code)]

use pulp::{Simd, WithSimd};

use super::Tile;
use super::multiply::{Lanes, multiply};

/// The registers of f32 that `pulp` has for an instruction set.
#[derive(Clone, Copy)]
struct Floats<S>(S);

// SAFETY: registers of f32 are any bits.
unsafe impl<S: Simd> Lanes for Floats<S> {
    type Register = S::f32s;

    /// Where another thread has a share of what the core decodes, counting and comparing more often
    /// holds up multiplying: on a CPU with AVX2 these take 5 % less time than two.
    const STEPS: usize = 4;

    #[inline(always)]
    fn splat(self, group: u32) -> S::f32s {
        self.0.splat_f32s(f32::from_bits(group))
    }

    #[inline(always)]
    fn multiply_add(self, columns: S::f32s, row: S::f32s, sums: S::f32s) -> S::f32s {
        self.0.mul_add_e_f32s(columns, row, sums)
    }

    #[inline(always)]
    fn add(self, a: S::f32s, b: S::f32s) -> S::f32s {
        self.0.add_f32s(a, b)
    }
}

/// A tile for [`Simd::vectorize`].
struct Multiply<'a, const V: usize, const R: usize>(Tile<'a>);

impl<const V: usize, const R: usize> WithSimd for Multiply<'_, V, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: only what `Kernel::multiply` has checked gets here.
        unsafe { multiply::<_, V, R>(Floats(simd), self.0) }
    }
}

/// Without instructions that only some CPUs have.
pub(super) fn portable<const V: usize, const R: usize>(tile: Tile<'_>) {
    #[cfg(target_arch = "x86_64")]
    pulp::Scalar.vectorize(Multiply::<V, R>(tile));
    // What these targets always have.
    #[cfg(not(target_arch = "x86_64"))]
    super::dispatch(pulp::Arch::new(), Multiply::<V, R>(tile));
}

/// AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
pub(super) fn avx2<const V: usize, const R: usize>(tile: Tile<'_>) {
    let simd = pulp::x86::V3::try_new().expect(super::table::ABSENT);
    Simd::vectorize(simd, Multiply::<V, R>(tile));
}

/// AVX-512.
#[cfg(target_arch = "x86_64")]
pub(super) fn avx512<const V: usize, const R: usize>(tile: Tile<'_>) {
    let simd = pulp::x86::V4::try_new().expect(super::table::ABSENT);
    Simd::vectorize(simd, Multiply::<V, R>(tile));
}
