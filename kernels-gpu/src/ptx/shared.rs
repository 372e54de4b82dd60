//! Loads and stores of shared memory, by window address.
//!
//! Addresses come from parameter structs as integers; `ld.global` and `st.global`
//! take them as they are, because the global window is the generic address space.

use super::access::{conditional_stores, loads, stores, vector_loads, vector_stores};
use core::arch::{asm, global_asm};

// The block's dynamic shared memory. Aligned as the 128-byte swizzle needs.
global_asm!(".extern .shared .align 1024 .b8 smem_dyn[];");

/// Window address of the block's dynamic shared memory.
#[inline(always)]
pub fn dynamic_shared() -> u32 {
    let address;
    // SAFETY: computes an address.
    unsafe {
        asm!("mov.u32 {0}, smem_dyn;", out(reg32) address, options(pure, nomem, nostack));
    }
    address
}

/// Two bytes of shared memory `HALF` bytes behind an address, in the low half of a word, where
/// `is_half` is not 0; four bytes `WORD` bytes behind it elsewhere. Without a branch, which nothing
/// else would be moved across.
///
/// # Safety
/// As [`load_shared_f32`], aligned to what is loaded.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn load_shared_half_or_word<const HALF: u32, const WORD: u32>(
    address: u32,
    is_half: u32,
) -> u32 {
    let value;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.u32 p, {2}, 0;",
            "@p ld.shared.u16 {0}, [{1}+{3}];",
            "@!p ld.shared.b32 {0}, [{1}+{4}];",
            "}}",
            out(reg32) value,
            in(reg32) address,
            in(reg32) is_half,
            const HALF,
            const WORD,
            options(readonly, nostack),
        );
    }
    value
}

/// Sixteen bytes of shared memory, `OFFSET` bytes behind an address. The offset is the
/// instruction's own: the compiler would compute an address for each.
///
/// # Safety
/// As [`load_shared_f32x4`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn load_shared_f32x4_at<const OFFSET: u32>(address: u32) -> [f32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.shared.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}+{5}];",
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            in(reg32) address,
            const OFFSET,
            options(readonly, nostack),
        );
    }
    [a, b, c, d]
}

/// Four words of shared memory.
///
/// # Safety
/// As [`load_shared_f32x4`].
#[inline(always)]
pub unsafe fn load_shared_u32x4(address: u32) -> [u32; 4] {
    // SAFETY: the caller's promise.
    unsafe { load_shared_f32x4(address) }.map(f32::to_bits)
}

/// Writes eight bytes of shared memory.
///
/// # Safety
/// As [`crate::ptx::shared::store_shared_f32`], for 8 bytes, aligned to 8.
#[inline(always)]
pub unsafe fn store_shared_u32x2(address: u32, value: [u32; 2]) {
    // SAFETY: the caller's promise.
    unsafe { store_shared_u32x2_if(address, value, 1) };
}

/// Writes eight bytes of shared memory where `condition` is not 0.
///
/// # Safety
/// As [`store_shared_u32x2`], where `condition` is not 0.
#[inline(always)]
pub unsafe fn store_shared_u32x2_if(address: u32, [a, b]: [u32; 2], condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {3}, 0;",
            "@p st.shared.v2.u32 [{0}], {{{1}, {2}}};",
            "}}",
            in(reg32) address,
            in(reg32) a,
            in(reg32) b,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Writes sixteen bytes of shared memory where `condition` is not 0.
///
/// # Safety
/// As [`store_shared_u32x4`], where `condition` is not 0.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn store_shared_u32x4_if(address: u32, [a, b, c, d]: [u32; 4], condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {5}, 0;",
            "@p st.shared.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
            "}}",
            in(reg32) address,
            in(reg32) a,
            in(reg32) b,
            in(reg32) c,
            in(reg32) d,
            in(reg32) condition,
            options(nostack),
        );
    }
}

loads! { reg32 u32, (readonly, nostack);
    /// Four bytes of shared memory.
    ///
    /// # Safety
    /// `address` must lie in the block's shared memory, aligned to 4, and its writer must have
    /// been synchronised with.
    load_shared_f32 -> reg32 f32 = "ld.shared.f32";
    /// Four bytes of shared memory.
    ///
    /// # Safety
    /// As [`load_shared_f32`].
    load_shared_u32 -> reg32 u32 = "ld.shared.b32";
}

vector_loads! { reg32 u32, (readonly, nostack);
    /// Eight bytes of shared memory.
    ///
    /// # Safety
    /// As [`load_shared_f32`], for 8 bytes, aligned to 8.
    load_shared_u32x2 -> [u32; 2] = "ld.shared.v2.u32";
    /// Sixteen bytes of shared memory.
    ///
    /// # Safety
    /// As [`load_shared_f32`], aligned to 16.
    load_shared_f32x4 -> [f32; 4] = "ld.shared.v4.f32";
}

stores! { reg32 u32;
    /// Writes four bytes of shared memory.
    ///
    /// # Safety
    /// `address` must lie in the block's shared memory, aligned to 4, with no unsynchronised
    /// reader or writer.
    store_shared_f32(value: reg32 f32) = "st.shared.f32";
    /// Writes four bytes of shared memory.
    ///
    /// # Safety
    /// As [`store_shared_f32`].
    store_shared_u32(value: reg32 u32) = "st.shared.b32";
}

vector_stores! { reg32 u32;
    /// Writes sixteen bytes of shared memory.
    ///
    /// # Safety
    /// As [`store_shared_f32`], aligned to 16.
    store_shared_u32x4(value: [u32; 4]) = "st.shared.v4.b32";
}

conditional_stores! { reg32 u32;
    /// Writes four bytes of shared memory where `condition` is not 0.
    ///
    /// # Safety
    /// As [`store_shared_f32`], where `condition` is not 0.
    store_shared_u32_if(value: u32) = "st.shared.b32";
}

/// Writes eight bytes of shared memory `OFFSET` bytes behind an address where `most` is above
/// `bound`, and gives the address `STEP` bytes on; else the address.
///
/// # Safety
/// As [`store_shared_u32x2`] where it writes.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn push_shared_above<const OFFSET: u32, const STEP: u32>(
    mut address: u32,
    [a, b]: [f32; 2],
    most: f32,
    bound: f32,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.gt.f32 p, {3}, {4};",
            "@p st.shared.v2.f32 [{0}+{5}], {{{1}, {2}}};",
            "@p add.u32 {0}, {0}, {6};",
            "}}",
            inout(reg32) address,
            in(reg32) a,
            in(reg32) b,
            in(reg32) most,
            in(reg32) bound,
            const OFFSET,
            const STEP,
            options(nostack),
        );
    }
    address
}
