//! Whole numbers and bf16 on x86-64: AVX2, AVX-512, and dot products of bytes and of bf16.
//!
//! AVX2 and AVX-512BW multiply words through `pulp`, whose values prove that the CPU has them. Dot
//! products it does not have: [`Dots256`], [`Dots`] and [`Bf16s`] stand for CPUs that do, and are
//! made in functions that are compiled for these, which only the [`table`](super::table) names.
#![allow(unsafe_code)]

use core::arch::x86_64::{
    __m256i, __m512, __m512bh, __m512i, _mm256_dpbusd_avx_epi32, _mm512_dpbf16_ps,
    _mm512_dpbusd_epi32,
};

use pulp::x86::{V3, V4};

use super::Tile;
use super::multiply::{Lanes, multiply};
use super::table::ABSENT;

/// Registers of eight pairs.
#[derive(Clone, Copy)]
struct Words256(V3);

// SAFETY: registers are any bits.
unsafe impl Lanes for Words256 {
    type Register = __m256i;

    #[inline(always)]
    fn splat(self, group: u32) -> __m256i {
        self.0.avx._mm256_set1_epi32(group as i32)
    }

    #[inline(always)]
    fn multiply_add(self, columns: __m256i, row: __m256i, sums: __m256i) -> __m256i {
        let products = self.0.avx2._mm256_madd_epi16(columns, row);
        self.add(sums, products)
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        self.0.avx2._mm256_add_epi32(a, b)
    }
}

/// Pairs of 16 bits on AVX2.
pub(super) fn words_avx2<const V: usize, const R: usize>(tile: Tile<'_>) {
    let simd = V3::try_new().expect(ABSENT);
    // SAFETY: only what `Kernel::multiply` has checked gets here.
    simd.vectorize(
        #[inline(always)]
        || unsafe { multiply::<_, V, R>(Words256(simd), tile) },
    );
}

/// Registers of eight groups of bytes, on a CPU with AVX-VNNI.
#[derive(Clone, Copy)]
struct Dots256(Words256);

impl Dots256 {
    /// # Safety
    /// The CPU has AVX-VNNI, too.
    #[inline(always)]
    unsafe fn new(simd: V3) -> Dots256 {
        Dots256(Words256(simd))
    }
}

// SAFETY: registers are any bits.
unsafe impl Lanes for Dots256 {
    type Register = __m256i;

    #[inline(always)]
    fn splat(self, group: u32) -> __m256i {
        self.0.splat(group)
    }

    #[inline(always)]
    fn multiply_add(self, columns: __m256i, row: __m256i, sums: __m256i) -> __m256i {
        // SAFETY: who made `self` promises the instruction.
        unsafe { _mm256_dpbusd_avx_epi32(sums, row, columns) }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        self.0.add(a, b)
    }
}

/// Four bytes at once on AVX-VNNI.
pub(super) fn bytes_avx_vnni<const V: usize, const R: usize>(tile: Tile<'_>) {
    #[target_feature(enable = "avx2,fma,avxvnni")]
    fn run<const V: usize, const R: usize>(simd: V3, tile: Tile<'_>) {
        // SAFETY: the function is compiled for these instructions, and only what
        // `Kernel::multiply` has checked gets here.
        unsafe { multiply::<_, V, R>(Dots256::new(simd), tile) }
    }
    assert!(super::InstructionSet::AvxVnni.is_available(), "{ABSENT}");
    // SAFETY: the CPU has the instructions, which was just asked.
    unsafe { run::<V, R>(V3::try_new().expect(ABSENT), tile) }
}

/// Registers of sixteen pairs.
#[derive(Clone, Copy)]
struct Words512(V4);

// SAFETY: registers are any bits.
unsafe impl Lanes for Words512 {
    type Register = __m512i;

    #[inline(always)]
    fn splat(self, group: u32) -> __m512i {
        self.0.avx512f._mm512_set1_epi32(group as i32)
    }

    #[inline(always)]
    fn multiply_add(self, columns: __m512i, row: __m512i, sums: __m512i) -> __m512i {
        let products = self.0.avx512bw._mm512_madd_epi16(columns, row);
        self.add(sums, products)
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        self.0.avx512f._mm512_add_epi32(a, b)
    }
}

/// Pairs of 16 bits on AVX-512.
pub(super) fn words_avx512<const V: usize, const R: usize>(tile: Tile<'_>) {
    let simd = V4::try_new().expect(ABSENT);
    // SAFETY: only what `Kernel::multiply` has checked gets here.
    simd.vectorize(
        #[inline(always)]
        || unsafe { multiply::<_, V, R>(Words512(simd), tile) },
    );
}

/// Registers of sixteen groups of bytes, on a CPU with AVX-512 VNNI.
#[derive(Clone, Copy)]
struct Dots(Words512);

impl Dots {
    /// # Safety
    /// The CPU has VNNI, too.
    #[inline(always)]
    unsafe fn new(simd: V4) -> Dots {
        Dots(Words512(simd))
    }
}

// SAFETY: registers are any bits.
unsafe impl Lanes for Dots {
    type Register = __m512i;

    #[inline(always)]
    fn splat(self, group: u32) -> __m512i {
        self.0.splat(group)
    }

    #[inline(always)]
    fn multiply_add(self, columns: __m512i, row: __m512i, sums: __m512i) -> __m512i {
        // SAFETY: who made `self` promises the instruction.
        unsafe { _mm512_dpbusd_epi32(sums, row, columns) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        self.0.add(a, b)
    }
}

/// Four bytes at once on AVX-512 VNNI.
pub(super) fn bytes_vnni<const V: usize, const R: usize>(tile: Tile<'_>) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    fn run<const V: usize, const R: usize>(simd: V4, tile: Tile<'_>) {
        // SAFETY: the function is compiled for these instructions, and only what
        // `Kernel::multiply` has checked gets here.
        unsafe { multiply::<_, V, R>(Dots::new(simd), tile) }
    }
    assert!(super::InstructionSet::Vnni.is_available(), "{ABSENT}");
    // SAFETY: the CPU has the instructions, which was just asked.
    unsafe { run::<V, R>(V4::try_new().expect(ABSENT), tile) }
}

/// Registers of sixteen pairs of bf16, on a CPU with AVX-512 BF16.
#[derive(Clone, Copy)]
struct Bf16s(V4);

impl Bf16s {
    /// # Safety
    /// The CPU has BF16, too.
    #[inline(always)]
    unsafe fn new(simd: V4) -> Bf16s {
        Bf16s(simd)
    }
}

// SAFETY: registers are any bits.
unsafe impl Lanes for Bf16s {
    type Register = __m512;

    #[inline(always)]
    fn splat(self, group: u32) -> __m512 {
        self.0.avx512f._mm512_set1_ps(f32::from_bits(group))
    }

    #[inline(always)]
    fn multiply_add(self, columns: __m512, row: __m512, sums: __m512) -> __m512 {
        // SAFETY: who made `self` promises the instruction; registers of bf16 are any 512 bits.
        unsafe {
            use core::mem::transmute;
            let (columns, row) =
                (transmute::<__m512, __m512bh>(columns), transmute::<__m512, __m512bh>(row));
            _mm512_dpbf16_ps(sums, columns, row)
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        self.0.avx512f._mm512_add_ps(a, b)
    }
}

/// Pairs of bf16 on AVX-512 BF16. Denormal numbers, of operands and of sums, count as 0.
pub(super) fn bf16<const V: usize, const R: usize>(tile: Tile<'_>) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx2,fma")]
    fn run<const V: usize, const R: usize>(simd: V4, tile: Tile<'_>) {
        // SAFETY: the function is compiled for these instructions, and only what
        // `Kernel::multiply` has checked gets here.
        unsafe { multiply::<_, V, R>(Bf16s::new(simd), tile) }
    }
    assert!(super::InstructionSet::Bf16.is_available(), "{ABSENT}");
    // SAFETY: the CPU has the instructions, which was just asked.
    unsafe { run::<V, R>(V4::try_new().expect(ABSENT), tile) }
}
