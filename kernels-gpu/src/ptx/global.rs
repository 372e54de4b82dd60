//! Loads and stores of global memory, by 64-bit address.
//!
//! Addresses come from parameter structs as integers; `ld.global` and `st.global`
//! take them as they are, because the global window is the generic address space.

use super::access::{conditional_stores, loads, stores, vector_loads, vector_stores};
use core::arch::asm;

/// `value`, whose origin the compiler does not know. It turns a choice between two
/// fields into a choice between their addresses, and what has an address lives in local memory.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    let result;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "mov.b64 {0}, {1};",
            out(reg64) result,
            in(reg64) value,
            options(pure, nomem, nostack),
        );
    }
    result
}

/// Sixteen bytes of read-only global memory where `condition` is not 0, and zeros otherwise.
///
/// # Safety
/// Where `condition` is not 0, `address` must be readable for 16 bytes, aligned to 16, and not
/// written while the kernel runs.
#[inline(always)]
pub unsafe fn load_u32x4_if(address: u64, condition: u32) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {5}, 0;",
            "mov.b32 {0}, 0;",
            "mov.b32 {1}, 0;",
            "mov.b32 {2}, 0;",
            "mov.b32 {3}, 0;",
            "@p ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            "}}",
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            in(reg64) address,
            in(reg32) condition,
            options(pure, readonly, nostack),
        );
    }
    [a, b, c, d]
}

/// Eight bytes of read-only global memory where `condition` is not 0, and zeros otherwise.
///
/// # Safety
/// Where `condition` is not 0, `address` must be readable for 8 bytes, aligned to 8, and not
/// written while the kernel runs.
#[inline(always)]
pub unsafe fn load_u32x2_if(address: u64, condition: u32) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {3}, 0;",
            "mov.b32 {0}, 0;",
            "mov.b32 {1}, 0;",
            "@p ld.global.nc.v2.b32 {{{0}, {1}}}, [{2}];",
            "}}",
            out(reg32) a,
            out(reg32) b,
            in(reg64) address,
            in(reg32) condition,
            options(pure, readonly, nostack),
        );
    }
    [a, b]
}

macro_rules! conditional_loads {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Where `condition` is not 0, `address` must be a readable address of the size and
        /// alignment, not written while the kernel runs.
        #[inline(always)]
        pub unsafe fn $name(address: u64, condition: u32) -> u32 {
            let value;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "{{",
                    ".reg .pred p;",
                    "setp.ne.b32 p, {2}, 0;",
                    "mov.b32 {0}, 0;",
                    $text,
                    "}}",
                    out(reg32) value,
                    in(reg64) address,
                    in(reg32) condition,
                    options(pure, readonly, nostack),
                );
            }
            value
        }
    )*};
}

conditional_loads! {
    /// A byte of read-only global memory where `condition` is not 0, and 0 otherwise.
    load_u8_if = "@p ld.global.nc.u8 {0}, [{1}];";
    /// Two bytes of read-only global memory where `condition` is not 0, and 0 otherwise.
    load_u16_if = "@p ld.global.nc.u16 {0}, [{1}];";
    /// Four bytes of read-only global memory where `condition` is not 0, and 0 otherwise.
    load_u32_if = "@p ld.global.nc.b32 {0}, [{1}];";
}

loads! { reg64 u64, (pure, readonly, nostack);
    /// One byte of read-only global memory.
    ///
    /// # Safety
    /// `address` must be a readable address of the size and alignment, not written while the kernel
    /// runs.
    load_u8 -> reg32 u32 = "ld.global.nc.u8";
    /// Two bytes of read-only global memory.
    ///
    /// # Safety
    /// `address` must be a readable address of the size and alignment, not written while the kernel
    /// runs.
    load_u16 -> reg32 u32 = "ld.global.nc.u16";
    /// Four bytes of read-only global memory.
    ///
    /// # Safety
    /// `address` must be a readable address of the size and alignment, not written while the kernel
    /// runs.
    load_u32 -> reg32 u32 = "ld.global.nc.b32";
    /// Eight bytes of read-only global memory.
    ///
    /// # Safety
    /// `address` must be a readable address of the size and alignment, not written while the kernel
    /// runs.
    load_u64 -> reg64 u64 = "ld.global.nc.b64";
}

vector_loads! { reg64 u64, (pure, readonly, nostack);
    /// Two consecutive words of read-only global memory.
    ///
    /// # Safety
    /// `address` must be readable for 8 bytes, aligned to 8, and not written while the kernel runs.
    load_u32x2 -> [u32; 2] = "ld.global.nc.v2.b32";
    /// Four consecutive words of read-only global memory.
    ///
    /// # Safety
    /// `address` must be readable for 16 bytes, aligned to 16, and not written while the
    /// kernel runs.
    load_u32x4 -> [u32; 4] = "ld.global.nc.v4.b32";
}

loads! { reg64 u64, (readonly, nostack);
    /// Four bytes of global memory written by an earlier kernel, or by a block that has published
    /// it behind a [`fence_device`]. Read from the L2 cache, which all blocks share.
    ///
    /// # Safety
    /// `address` must be readable for 4 bytes and aligned to 4.
    load_f32 -> reg32 f32 = "ld.global.cg.f32";
    /// Eight bytes of global memory written by an earlier kernel, which this block may write later.
    ///
    /// # Safety
    /// `address` must be readable for 8 bytes and aligned to 8.
    #[cfg(maxsim_arch = "sm_80")]
    load_written_u64 -> reg64 u64 = "ld.global.cg.b64";
    /// Four bytes of global memory written by an earlier kernel, which this block may write later.
    /// Read from the L1 cache.
    ///
    /// # Safety
    /// `address` must be readable for 4 bytes and aligned to 4.
    read_u32 -> reg32 u32 = "ld.global.b32";
    /// As [`read_u32`].
    ///
    /// # Safety
    /// As there.
    read_f32 -> reg32 f32 = "ld.global.f32";
    /// Two bytes of global memory that this thread may write too.
    ///
    /// # Safety
    /// `address` must be readable for 2 bytes, aligned to 2, and owned by this thread.
    read_u16 -> reg32 u32 = "ld.global.u16";
}

/// Eight numbers of global memory, `STEP` bytes from one to the next, written by an earlier kernel.
/// They are loaded together: one by one, the assembler would wait for each before the next.
///
/// # Safety
/// `address` and those behind it must be readable for 4 bytes and aligned to 4.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn read_f32x8_apart<const STEP: usize>(address: u64) -> [f32; 8] {
    let (a, b, c, d, e, f, g, h);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.global.f32 {0}, [{8}];",
            "ld.global.f32 {1}, [{8} + {9}];",
            "ld.global.f32 {2}, [{8} + {10}];",
            "ld.global.f32 {3}, [{8} + {11}];",
            "ld.global.f32 {4}, [{8} + {12}];",
            "ld.global.f32 {5}, [{8} + {13}];",
            "ld.global.f32 {6}, [{8} + {14}];",
            "ld.global.f32 {7}, [{8} + {15}];",
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            out(reg32) e,
            out(reg32) f,
            out(reg32) g,
            out(reg32) h,
            in(reg64) address,
            const STEP,
            const STEP * 2,
            const STEP * 3,
            const STEP * 4,
            const STEP * 5,
            const STEP * 6,
            const STEP * 7,
            options(nostack),
        );
    }
    [a, b, c, d, e, f, g, h]
}

/// Eight numbers of global memory written by an earlier kernel, of which there are the first `n`;
/// −∞ for the others. They are loaded together, as in [`read_f32x8_apart`].
///
/// # Safety
/// The addresses of those that there are must be readable for 4 bytes and aligned to 4.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn read_f32x8_of(addresses: [u64; 8], n: u32) -> [f32; 8] {
    let (a, b, c, d, e, f, g, h);
    macro_rules! load {
        ($($i:literal)*) => {
            asm!(
                "{{",
                ".reg .pred p<8>;",
                $(concat!("setp.gt.u32 p", $i, ", {16}, ", $i, ";"),)*
                $(concat!("mov.b32 {", $i, "}, 0xFF800000;"),)*
                "@p0 ld.global.f32 {0}, [{8}];",
                "@p1 ld.global.f32 {1}, [{9}];",
                "@p2 ld.global.f32 {2}, [{10}];",
                "@p3 ld.global.f32 {3}, [{11}];",
                "@p4 ld.global.f32 {4}, [{12}];",
                "@p5 ld.global.f32 {5}, [{13}];",
                "@p6 ld.global.f32 {6}, [{14}];",
                "@p7 ld.global.f32 {7}, [{15}];",
                "}}",
                out(reg32) a,
                out(reg32) b,
                out(reg32) c,
                out(reg32) d,
                out(reg32) e,
                out(reg32) f,
                out(reg32) g,
                out(reg32) h,
                in(reg64) addresses[0],
                in(reg64) addresses[1],
                in(reg64) addresses[2],
                in(reg64) addresses[3],
                in(reg64) addresses[4],
                in(reg64) addresses[5],
                in(reg64) addresses[6],
                in(reg64) addresses[7],
                in(reg32) n,
                options(nostack),
            )
        };
    }
    // SAFETY: the caller's promise.
    unsafe { load!(0 1 2 3 4 5 6 7) };
    [a, b, c, d, e, f, g, h]
}

vector_loads! { reg64 u64, (readonly, nostack);
    /// Sixteen bytes of global memory that this thread may write too.
    ///
    /// # Safety
    /// `address` must be readable for 16 bytes, aligned to 16, and owned by this thread.
    read_u32x4 -> [u32; 4] = "ld.global.v4.b32";
}

stores! { reg64 u64;
    /// Writes four bytes of global memory.
    ///
    /// # Safety
    /// `address` must be writable for 4 bytes, aligned to 4, and owned by this thread.
    store_u32(value: reg32 u32) = "st.global.b32";
    /// Writes the low two bytes of `value` to global memory.
    ///
    /// # Safety
    /// `address` must be writable for 2 bytes, aligned to 2, and owned by this thread.
    store_u16(value: reg32 u32) = "st.global.u16";
    /// Writes the low byte of `value` to global memory.
    ///
    /// # Safety
    /// `address` must be writable and owned by this thread.
    store_u8(value: reg32 u32) = "st.global.u8";
}

conditional_stores! { reg64 u64;
    /// Writes four bytes of global memory where `condition` is not 0.
    ///
    /// # Safety
    /// As [`store_u32`], where `condition` is not 0.
    store_u32_if(value: u32) = "st.global.b32";
}

vector_stores! { reg64 u64;
    /// Writes eight bytes of global memory.
    ///
    /// # Safety
    /// `address` must be writable for 8 bytes, aligned to 8, and owned by this thread.
    store_u32x2(value: [u32; 2]) = "st.global.v2.b32";
    /// Writes sixteen bytes of global memory.
    ///
    /// # Safety
    /// `address` must be writable for 16 bytes, aligned to 16, and owned by this thread.
    store_u32x4(value: [u32; 4]) = "st.global.v4.b32";
}

loads! { reg64 u64, (nostack);
    /// Loads a word of eight bytes that another block may store, in one access.
    ///
    /// # Safety
    /// As [`store_word`].
    #[cfg(maxsim_arch = "sm_90a")]
    load_word -> reg64 u64 = "ld.relaxed.gpu.global.b64";
}

stores! { reg64 u64;
    /// Stores a word of eight bytes for another block, in one access.
    ///
    /// # Safety
    /// `address` must be writable for 8 bytes, aligned to 8, and be accessed in this way and by
    /// [`load_word`] alone.
    #[cfg(maxsim_arch = "sm_90a")]
    store_word(word: reg64 u64) = "st.relaxed.gpu.global.b64";
}
