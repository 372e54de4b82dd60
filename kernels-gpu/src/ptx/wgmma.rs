//! Warpgroup matrix multiply-adds: m64n128k16, operands in shared memory (sm_90a).
//!
//! Accumulators are arrays of 64 floats that live in registers: thread `t` of the
//! warpgroup holds in element `i` row `16 (t / 32) + (t % 32) / 4 + 8 ((i / 2) % 2)`,
//! column `8 (i / 4) + 2 (t % 4) + i % 2`. Between the first multiply-add of a group
//! and the wait for it, no other code may touch them; the wait takes and returns
//! them, so that nothing that reads them can move above it.

use core::arch::asm;

/// Accumulators of one 64 × 128 tile.
pub type Accumulators = [f32; 64];

/// Low word of the descriptor of a K-major tile with 128-byte swizzle. Add [`K_STEP`] for
/// the next 16 elements of the slab.
///
/// The high word is the same for all: rows of 128 bytes, groups of 8 rows 1024 bytes apart
/// (64 units of 16 bytes in bits 32 to 45), swizzle mode 1 in bits 62 and 63.
#[inline(always)]
pub fn descriptor(address: u32) -> u32 {
    (address & 0x3_FFFF) >> 4 | 1 << 16
}

/// Step of a descriptor along the slab: 16 elements of 2 bytes, in units of 16 bytes.
pub const K_STEP: u32 = 2;

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

macro_rules! instructions {
    ([$($i:literal)*]) => {
        /// Waits until at most `N` groups are under way; `c` belongs to a finished one.
        ///
        /// # Safety
        /// All threads of the warpgroup must execute it together.
        #[inline(always)]
        pub unsafe fn wait<const N: u32>(mut c: Accumulators) -> Accumulators {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "wgmma.wait_group.sync.aligned {n};",
                    "// {0} {1} {2} {3} {4} {5} {6} {7} {8} {9} {10} {11} {12} {13} {14} {15} {16} {17} {18} {19} {20} {21} {22} {23} {24} {25} {26} {27} {28} {29} {30} {31} {32} {33} {34} {35} {36} {37} {38} {39} {40} {41} {42} {43} {44} {45} {46} {47} {48} {49} {50} {51} {52} {53} {54} {55} {56} {57} {58} {59} {60} {61} {62} {63}",
                    $(inout(reg32) c[$i],)*
                    n = const N,
                    options(nostack),
                );
            }
            c
        }

        macro_rules! multiply {
            ($first:ident, $add:ident, $types:literal) => {
                /// Starts `a · b` of a 64×16 and a 128×16 tile.
                ///
                /// # Safety
                /// All threads of the warpgroup must execute it together after [`fence`]; the
                /// descriptors must name tiles that stay unchanged until the group is waited for.
                #[inline(always)]
                pub unsafe fn $first(a: u32, b: u32) -> Accumulators {
                    let mut c = core::mem::MaybeUninit::<Accumulators>::uninit();
                    // SAFETY: the caller's promise; every element is written.
                    unsafe {
                        let out = &mut *c.as_mut_ptr();
                        asm!(
                            "{{",
                            ".reg .b64 a, b;",
                            "mov.b64 a, {{{64}, 0x40000040}};",
                            "mov.b64 b, {{{65}, 0x40000040}};",
                            concat!("wgmma.mma_async.sync.aligned.m64n128k16.f32.", $types, " {{"),
                            "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15},", "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31},", "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47},", "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}",
                            "}}, a, b, 0, 1, 1, 0, 0;",
                            "}}",
                            $(out(reg32) out[$i],)*
                            in(reg32) a,
                            in(reg32) b,
                            options(nostack),
                        );
                        c.assume_init()
                    }
                }

                /// Starts `c + a · b` of a 64×16 and a 128×16 tile.
                ///
                /// # Safety
                /// As the instruction that starts a sum; `c` must be its result.
                #[inline(always)]
                pub unsafe fn $add(mut c: Accumulators, a: u32, b: u32) -> Accumulators {
                    // SAFETY: the caller's promise.
                    unsafe {
                        asm!(
                            "{{",
                            ".reg .b64 a, b;",
                            "mov.b64 a, {{{64}, 0x40000040}};",
                            "mov.b64 b, {{{65}, 0x40000040}};",
                            concat!("wgmma.mma_async.sync.aligned.m64n128k16.f32.", $types, " {{"),
                            "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15},", "{16}, {17}, {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31},", "{32}, {33}, {34}, {35}, {36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47},", "{48}, {49}, {50}, {51}, {52}, {53}, {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}",
                            "}}, a, b, 1, 1, 1, 0, 0;",
                            "}}",
                            $(inout(reg32) c[$i],)*
                            in(reg32) a,
                            in(reg32) b,
                            options(nostack),
                        );
                    }
                    c
                }
            };
        }
        multiply!(mma_f16, mma_add_f16, "f16.f16");
        multiply!(mma_bf16, mma_add_bf16, "bf16.bf16");
    };
}

instructions!([
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
]);
