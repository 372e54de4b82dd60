//! Warpgroup matrix multiply-adds, operands in shared memory (sm_90a).
//!
//! One instruction multiplies 64 rows with N columns, 32 bytes deep: 16 elements of 2 bytes or 8 of
//! 4, 32 of 1. Accumulators are arrays of N / 2 floats that live in registers: thread `t` of the
//! warpgroup holds in element `i` row `16 (t / 32) + (t % 32) / 4 + 8 ((i / 2) % 2)`, column `8 (i
//! / 4) + 2 (t % 4) + i % 2`. Between the first multiply-add of a group and the wait for it, no
//! other code may touch them; the wait takes and returns them, so that nothing that reads them can
//! move above it.

use crate::ptx::element::{
    Bf16, E4m3, Element, F16, F32, I8, I8Affine, NormalizedBf16, NormalizedF16, ResidualBf16,
    ResidualF16, Tf32,
};
use core::arch::asm;

/// Low word of the descriptor of a K-major tile with 128-byte swizzle. Add [`K_STEP`] for
/// the next 32 bytes of the slab.
///
/// The high word is the same for all: [`crate::abi::layout::sm90::DESCRIPTOR_HIGH`].
#[inline(always)]
pub fn descriptor(address: u32) -> u32 {
    (address & 0x3_FFFF) >> 4 | 1 << 16
}

/// Step of a descriptor to a tile `n_bytes` further on.
#[inline(always)]
pub const fn descriptor_step(n_bytes: u32) -> u32 {
    n_bytes / 16
}

/// Step of a descriptor along the slab: 32 bytes.
pub const K_STEP: u32 = descriptor_step(32);

/// Orders earlier register accesses before the following multiply-adds.
///
/// # Safety
/// All threads of the warpgroup must execute it together.
#[inline(always)]
pub unsafe fn fence() {
    // SAFETY: the caller's promise.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// Closes a group of multiply-adds.
///
/// # Safety
/// All threads of the warpgroup must execute it together.
#[inline(always)]
pub unsafe fn commit() {
    // SAFETY: the caller's promise.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// Operands of the instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// The upper 19 bits of an IEEE 754 binary32.
    Tf32,
    /// Signed whole numbers of one byte: accumulators are the bits of an i32.
    I8,
    /// Signed whole numbers of one byte times such from 0 on.
    I8Affine,
    /// Floating point numbers of one byte, 3 fraction bits.
    E4m3,
}

/// Elements that the instruction multiplies.
pub trait WgmmaElement: Element {
    /// Operands of the instruction.
    const OPERANDS: Operands;
    /// Elements of a slab row of 128 bytes.
    const SLAB_ELEMENTS: u32 = 128 / Self::BYTES as u32;
    /// Whether elements are split in two ([`crate::abi::tf32`]).
    const SPLITS: bool = false;
    /// Whether rows are codes with a scale each.
    const IS_CODE: bool =
        matches!(Self::OPERANDS, Operands::I8 | Operands::I8Affine | Operands::E4m3);
    /// Whether documents' rows have a scale each.
    const HAS_SCALES: bool = Self::IS_CODE;
    /// Whether scales are r of elements that are normalised, which the kernel finds itself, and
    /// which queries' rows have, too.
    const IS_NORMALIZED: bool = false;
    /// Whether documents' rows have a minimum, too, which code 0 stands for.
    const HAS_MINS: bool = matches!(Self::OPERANDS, Operands::I8Affine);
    /// Whether sums are promoted to f32 after a slab: the tensor cores add with fewer bits.
    const PROMOTES: bool = matches!(Self::OPERANDS, Operands::E4m3);
}

macro_rules! wgmma_elements {
    ($($name:ident)*) => {$(
        impl WgmmaElement for $name {
            const OPERANDS: Operands = Operands::$name;
        }
    )*};
}
wgmma_elements!(F16 Bf16 Tf32 I8 I8Affine E4m3);

/// Split in two.
impl WgmmaElement for F32 {
    const OPERANDS: Operands = Operands::Tf32;
    const SPLITS: bool = true;
}

macro_rules! decoded_elements {
    ($($name:ident $operands:ident)*) => {$(
        /// Documents alone have scales.
        impl WgmmaElement for $name {
            const OPERANDS: Operands = Operands::$operands;
            const HAS_SCALES: bool = true;
        }
    )*};
}
decoded_elements!(ResidualF16 F16 ResidualBf16 Bf16);

macro_rules! normalized_elements {
    ($($name:ident $operands:ident)*) => {$(
        /// Scales come with the tile, as those of codes.
        impl WgmmaElement for $name {
            const OPERANDS: Operands = Operands::$operands;
            const HAS_SCALES: bool = true;
            const IS_NORMALIZED: bool = true;
        }
    )*};
}
normalized_elements!(NormalizedF16 F16 NormalizedBf16 Bf16);

/// Accumulators of a product.
pub trait Accumulators: Copy {
    /// Starts `a · b`.
    ///
    /// # Safety
    /// All threads of the warpgroup must execute it together after [`fence`]; the descriptors
    /// must name tiles that stay unchanged until the group is waited for.
    unsafe fn start<E: WgmmaElement>(a: u32, b: u32) -> Self;

    /// Adds `a · b`.
    ///
    /// # Safety
    /// As [`Accumulators::start`].
    unsafe fn add<E: WgmmaElement>(self, a: u32, b: u32) -> Self;

    /// Begins with `a · b`, `a` in registers: of 64 rows, 16 for each warp, the thread's part of
    /// 32 bytes, as `ldmatrix` brings it.
    ///
    /// # Safety
    /// As [`Accumulators::start`].
    unsafe fn start_held<E: WgmmaElement>(a: [u32; 4], b: u32) -> Self;

    /// Adds `a · b`, `a` in registers as [`Accumulators::start_held`] takes it.
    ///
    /// # Safety
    /// As [`Accumulators::start`].
    unsafe fn add_held<E: WgmmaElement>(self, a: [u32; 4], b: u32) -> Self;

    /// `a · b` of whole slabs, in four steps. The descriptors' high words are not constants here,
    /// so that they stay where they are from step to step.
    ///
    /// # Safety
    /// As [`Accumulators::start`]; both slabs must be aligned to 1024 bytes, `high` be the high
    /// word.
    unsafe fn slab<E: WgmmaElement>(a: u32, b: u32, high: [u32; 2]) -> Self;

    /// Waits until at most `N` groups are in flight; `self` belongs to a finished one.
    ///
    /// # Safety
    /// All threads of the warpgroup must execute it together.
    unsafe fn wait<const N: u32>(self) -> Self;
}

/// Calls `$m!(n: 0 1 .. n - 1)` for every number of accumulators.
macro_rules! each_width {
    ($m:ident) => {
        each_width! { $m []
            8: 0 1 2 3 4 5 6 7;
            16: 8 9 10 11 12 13 14 15;
            24: 16 17 18 19 20 21 22 23;
            32: 24 25 26 27 28 29 30 31;
            40: 32 33 34 35 36 37 38 39;
            48: 40 41 42 43 44 45 46 47;
            56: 48 49 50 51 52 53 54 55;
            64: 56 57 58 59 60 61 62 63;
        }
    };
    ($m:ident [$($narrower:literal)*] $n:tt: $($i:literal)*; $($wider:tt)*) => {
        $m!($n: $($narrower)* $($i)*);
        each_width! { $m [$($narrower)* $($i)*] $($wider)* }
    };
    ($m:ident [$($all:literal)*]) => {};
}

/// Calls `$m!(types scales order ..)` with an element's operands: what the instruction is called,
/// the factors of both sides, and that a side in shared memory is K-major, where it could be
/// otherwise.
macro_rules! each_operands {
    ($element:ident $m:ident $($rest:tt)*) => {
        match $element::OPERANDS {
            Operands::F16 => $m!("k16.f32.f16.f16" ", 1, 1" ", 0" $($rest)*),
            Operands::Bf16 => $m!("k16.f32.bf16.bf16" ", 1, 1" ", 0" $($rest)*),
            Operands::Tf32 => $m!("k8.f32.tf32.tf32" ", 1, 1" "" $($rest)*),
            Operands::I8 => $m!("k32.s32.s8.s8" "" "" $($rest)*),
            Operands::I8Affine => $m!("k32.s32.s8.u8" "" "" $($rest)*),
            Operands::E4m3 => $m!("k32.f32.e4m3.e4m3" ", 1, 1" "" $($rest)*),
        }
    };
}

/// The operands `{0}` to `{n - 1}` as a template, without spaces: they are most of a PTX file.
macro_rules! registers {
    (8) => {
        "{0},{1},{2},{3},{4},{5},{6},{7}"
    };
    (16) => {
        concat!(registers!(8), ",{8},{9},{10},{11},{12},{13},{14},{15}")
    };
    (24) => {
        concat!(registers!(16), ",{16},{17},{18},{19},{20},{21},{22},{23}")
    };
    (32) => {
        concat!(registers!(24), ",{24},{25},{26},{27},{28},{29},{30},{31}")
    };
    (40) => {
        concat!(registers!(32), ",{32},{33},{34},{35},{36},{37},{38},{39}")
    };
    (48) => {
        concat!(registers!(40), ",{40},{41},{42},{43},{44},{45},{46},{47}")
    };
    (56) => {
        concat!(registers!(48), ",{48},{49},{50},{51},{52},{53},{54},{55}")
    };
    (64) => {
        concat!(registers!(56), ",{56},{57},{58},{59},{60},{61},{62},{63}")
    };
}

/// Columns of `n` accumulators.
macro_rules! columns {
    (8) => {
        "16"
    };
    (16) => {
        "32"
    };
    (24) => {
        "48"
    };
    (32) => {
        "64"
    };
    (40) => {
        "80"
    };
    (48) => {
        "96"
    };
    (56) => {
        "112"
    };
    (64) => {
        "128"
    };
}

/// The instruction on accumulators `{0}` to `{n - 1}`; `$keep` is whether their sums are kept, not
/// overwritten. `$line` is a line's end or nothing: the compiler estimates code by its lines.
macro_rules! mma {
    ($n:tt $types:literal $line:literal $a:literal $keep:literal $($end:literal)*) => {
        concat!(
            "wgmma.mma_async.sync.aligned.m64n",
            columns!($n),
            $types,
            " {{",
            $line,
            registers!($n),
            $line,
            "}}, ",
            $a,
            ", b, ",
            $keep,
            $($end,)*
            ";"
        )
    };
}

/// One product of 32 bytes of both sides' rows, both in shared memory.
macro_rules! multiply {
    ($types:literal $scales:literal $order:literal $n:tt $keep:literal
     $c:ident $a:ident $b:ident $way:ident $($i:literal)*) => {
        asm!(
            "{{",
            ".reg .b64 a, b;",
            "mov.b64 a, {{{a}, 0x40000040}};",
            "mov.b64 b, {{{b}, 0x40000040}};",
            mma!($n $types "\n" "a" $keep $scales $order $order),
            "}}",
            $($way(reg32) $c[$i],)*
            a = in(reg32) $a,
            b = in(reg32) $b,
            options(nostack),
        )
    };
}

/// Wraps the instruction with the left side in registers.
macro_rules! multiply_held {
    ($types:literal $scales:literal $order:literal $n:tt $keep:literal
     $c:ident $a:ident $b:ident $way:ident $($i:literal)*) => {
        asm!(
            "{{",
            ".reg .b64 b;",
            "mov.b64 b, {{{b}, 0x40000040}};",
            mma!($n $types "\n" "{{{a0},{a1},{a2},{a3}}}" $keep $scales $order),
            "}}",
            $($way(reg32) $c[$i],)*
            a0 = in(reg32) $a[0],
            a1 = in(reg32) $a[1],
            a2 = in(reg32) $a[2],
            a3 = in(reg32) $a[3],
            b = in(reg32) $b,
            options(nostack),
        )
    };
}

/// The steps are 2, 4 and 6 in bits of the descriptors that are 0 for aligned slabs.
macro_rules! multiply_slab {
    ($types:literal $scales:literal $order:literal $n:tt
     $c:ident $a:ident $b:ident $high:ident $($i:literal)*) => {
        asm!(
            "{{",
            ".reg .b64 a, b;",
            "mov.b64 a, {{{a}, {a_high}}};",
            "mov.b64 b, {{{b}, {b_high}}};",
            mma!($n $types "" "a" "0" $scales $order $order),
            "xor.b64 a, a, 2;",
            "xor.b64 b, b, 2;",
            mma!($n $types "" "a" "1" $scales $order $order),
            "xor.b64 a, a, 6;",
            "xor.b64 b, b, 6;",
            mma!($n $types "" "a" "1" $scales $order $order),
            "xor.b64 a, a, 2;",
            "xor.b64 b, b, 2;",
            mma!($n $types "" "a" "1" $scales $order $order),
            "}}",
            $(out(reg32) $c[$i],)*
            a = in(reg32) $a,
            b = in(reg32) $b,
            a_high = in(reg32) $high[0],
            b_high = in(reg32) $high[1],
            options(nostack),
        )
    };
}

/// Lets a macro write all accumulators of a new array `c`.
macro_rules! written {
    ($c:ident $element:ident $m:ident $($rest:tt)*) => {{
        let mut c = core::mem::MaybeUninit::<Self>::uninit();
        // SAFETY: the caller's promise; every element is written.
        unsafe {
            let $c = &mut *c.as_mut_ptr();
            each_operands!($element $m $($rest)*);
            c.assume_init()
        }
    }};
}

macro_rules! accumulators {
    ($n:tt: $($i:literal)*) => {
        impl Accumulators for [f32; $n] {
            #[inline(always)]
            unsafe fn start<E: WgmmaElement>(a: u32, b: u32) -> Self {
                written!(c E multiply $n "0" c a b out $($i)*)
            }

            #[inline(always)]
            unsafe fn add<E: WgmmaElement>(self, a: u32, b: u32) -> Self {
                let mut c = self;
                // SAFETY: the caller's promise.
                unsafe { each_operands!(E multiply $n "1" c a b inout $($i)*) };
                c
            }

            #[inline(always)]
            unsafe fn start_held<E: WgmmaElement>(a: [u32; 4], b: u32) -> Self {
                written!(c E multiply_held $n "0" c a b out $($i)*)
            }

            #[inline(always)]
            unsafe fn add_held<E: WgmmaElement>(self, a: [u32; 4], b: u32) -> Self {
                let mut c = self;
                // SAFETY: the caller's promise.
                unsafe { each_operands!(E multiply_held $n "1" c a b inout $($i)*) };
                c
            }

            #[inline(always)]
            unsafe fn slab<E: WgmmaElement>(a: u32, b: u32, high: [u32; 2]) -> Self {
                written!(c E multiply_slab $n c a b high $($i)*)
            }

            #[inline(always)]
            unsafe fn wait<const N: u32>(self) -> Self {
                let mut c = self;
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        "wgmma.wait_group.sync.aligned {n};",
                        concat!("// ", registers!($n)),
                        $(inout(reg32) c[$i],)*
                        n = const N,
                        options(nostack),
                    );
                }
                c
            }
        }
    };
}
each_width!(accumulators);
