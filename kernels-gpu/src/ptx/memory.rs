//! Loads and stores: global memory by 64-bit address, shared memory by window address.
//!
//! Addresses come from parameter structs as integers; `ld.global` and `st.global`
//! take them as they are, because the global window is the generic address space.

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

/// `value`, of which the compiler does not know where it comes from. It turns a choice between two
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

macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident: $class:ident $type:ty = $text:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `address` must be a readable address of the type's size and alignment, not
        /// written while the kernel runs.
        #[inline(always)]
        pub unsafe fn $name(address: u64) -> $type {
            let value;
            // SAFETY: the caller's promise.
            unsafe {
                asm!($text, out($class) value, in(reg64) address, options(pure, readonly, nostack));
            }
            value
        }
    )*};
}

loads! {
    /// One byte of read-only global memory.
    load_u8: reg32 u32 = "ld.global.nc.u8 {0}, [{1}];";
    /// Two bytes of read-only global memory.
    load_u16: reg32 u32 = "ld.global.nc.u16 {0}, [{1}];";
    /// Four bytes of read-only global memory.
    load_u32: reg32 u32 = "ld.global.nc.b32 {0}, [{1}];";
    /// Eight bytes of read-only global memory.
    load_u64: reg64 u64 = "ld.global.nc.b64 {0}, [{1}];";
}

/// Two consecutive words of read-only global memory.
///
/// # Safety
/// `address` must be readable for 8 bytes, aligned to 8, and not written while the kernel runs.
#[inline(always)]
pub unsafe fn load_u32x2(address: u64) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.global.nc.v2.b32 {{{0}, {1}}}, [{2}];",
            out(reg32) a,
            out(reg32) b,
            in(reg64) address,
            options(pure, readonly, nostack),
        );
    }
    [a, b]
}

/// Four consecutive words of read-only global memory.
///
/// # Safety
/// `address` must be readable for 16 bytes, aligned to 16, and not written while the kernel runs.
#[inline(always)]
pub unsafe fn load_u32x4(address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            in(reg64) address,
            options(pure, readonly, nostack),
        );
    }
    [a, b, c, d]
}

/// Four bytes of global memory written by an earlier kernel, or by a block that has said so
/// behind a [`fence_device`]. Read from the L2 cache, which all blocks share.
///
/// # Safety
/// `address` must be readable for 4 bytes and aligned to 4.
#[inline(always)]
pub unsafe fn load_f32(address: u64) -> f32 {
    let value;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ld.global.cg.f32 {0}, [{1}];", out(reg32) value, in(reg64) address, options(readonly, nostack));
    }
    value
}

/// Counts up in four bytes of global memory, from `last` back to 0; the value before. Other
/// blocks may do so too.
///
/// # Safety
/// As [`add_u32`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn count_up(address: u64, last: u32) -> u32 {
    let before;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "atom.global.inc.u32 {0}, [{1}], {2};",
            out(reg32) before,
            in(reg64) address,
            in(reg32) last,
            options(nostack),
        );
    }
    before
}

/// Stores a word of eight bytes for another block, in one access.
///
/// # Safety
/// `address` must be writable for 8 bytes, aligned to 8, and be accessed in this way and by [`load_word`] alone.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn store_word(address: u64, word: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("st.relaxed.gpu.global.b64 [{0}], {1};", in(reg64) address, in(reg64) word, options(nostack));
    }
}

/// Loads a word of eight bytes that another block may store, in one access.
///
/// # Safety
/// As [`store_word`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn load_word(address: u64) -> u64 {
    let word;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ld.relaxed.gpu.global.b64 {0}, [{1}];", out(reg64) word, in(reg64) address, options(nostack));
    }
    word
}

/// Adds to four bytes of global memory; the value before. Other blocks may do so too.
///
/// # Safety
/// `address` must be writable for 4 bytes, aligned to 4, and only be accessed this way by others.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn add_u32(address: u64, value: u32) -> u32 {
    let before;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "atom.global.add.u32 {0}, [{1}], {2};",
            out(reg32) before,
            in(reg64) address,
            in(reg32) value,
            options(nostack),
        );
    }
    before
}

/// As [`add_u32`], behind all that this thread has done before, and that others have done before and it has seen, and
/// before all that it does next.
///
/// # Safety
/// As [`add_u32`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn add_u32_in_order(address: u64, value: u32) -> u32 {
    let before;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "atom.acq_rel.gpu.global.add.u32 {0}, [{1}], {2};",
            out(reg32) before,
            in(reg64) address,
            in(reg32) value,
            options(nostack),
        );
    }
    before
}

/// Orders this thread's accesses to global memory before those that follow, for the whole device.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn fence_device() {
    // SAFETY: a fence.
    unsafe { asm!("fence.acq_rel.gpu;", options(nostack)) }
}

/// Orders this thread's accesses to shared memory before those of the copy engine and the tensor
/// cores that follow.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn fence_async() {
    // SAFETY: a fence.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}

/// Writes four bytes of global memory.
///
/// # Safety
/// `address` must be writable for 4 bytes, aligned to 4, and owned by this thread.
#[inline(always)]
pub unsafe fn store_u32(address: u64, value: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("st.global.b32 [{0}], {1};", in(reg64) address, in(reg32) value, options(nostack));
    }
}

/// Writes the low two bytes of `value` to global memory.
///
/// # Safety
/// `address` must be writable for 2 bytes, aligned to 2, and owned by this thread.
#[inline(always)]
pub unsafe fn store_u16(address: u64, value: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("st.global.u16 [{0}], {1};", in(reg64) address, in(reg32) value, options(nostack));
    }
}

/// Writes the low byte of `value` to global memory.
///
/// # Safety
/// `address` must be writable and owned by this thread.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn store_u8(address: u64, value: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("st.global.u8 [{0}], {1};", in(reg64) address, in(reg32) value, options(nostack));
    }
}

/// Four bytes of shared memory.
///
/// # Safety
/// `address` must lie in the block's shared memory, aligned to 4, and its writer must have
/// been synchronised with.
#[inline(always)]
pub unsafe fn load_shared_f32(address: u32) -> f32 {
    let value;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ld.shared.f32 {0}, [{1}];", out(reg32) value, in(reg32) address, options(readonly, nostack));
    }
    value
}

/// Two bytes of shared memory `HALF` bytes behind an address, in the low half of a word, where `is_half` is not 0;
/// four bytes `WORD` bytes behind it elsewhere. Without a branch, which nothing else would be moved across.
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

/// Sixteen bytes of shared memory.
///
/// # Safety
/// As [`load_shared_f32`], aligned to 16.
#[inline(always)]
pub unsafe fn load_shared_f32x4(address: u32) -> [f32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.shared.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            in(reg32) address,
            options(readonly, nostack),
        );
    }
    [a, b, c, d]
}

/// Sixteen bytes of shared memory, `OFFSET` bytes behind an address. The offset is the instruction's own:
/// the compiler would compute an address for each.
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

/// Writes four bytes of shared memory.
///
/// # Safety
/// `address` must lie in the block's shared memory, aligned to 4, with no unsynchronised
/// reader or writer.
#[inline(always)]
pub unsafe fn store_shared_f32(address: u32, value: f32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("st.shared.f32 [{0}], {1};", in(reg32) address, in(reg32) value, options(nostack));
    }
}

/// Writes sixteen bytes of shared memory.
///
/// # Safety
/// As [`store_shared_f32`], aligned to 16.
#[inline(always)]
pub unsafe fn store_shared_u32x4(address: u32, value: [u32; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.shared.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg32) address,
            in(reg32) value[0],
            in(reg32) value[1],
            in(reg32) value[2],
            in(reg32) value[3],
            options(nostack),
        );
    }
}
