//! Atomic operations and fences, on global and on shared memory.

use super::access::conditional_stores;
#[cfg(maxsim_arch = "sm_90a")]
use super::access::fetches;
use core::arch::asm;

/// Orders this thread's accesses to global memory before those that follow, for the whole device.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn fence_device() {
    // SAFETY: a fence.
    unsafe { asm!("fence.acq_rel.gpu;", options(nostack)) }
}

/// Sets bits of eight bytes of global memory: of zeros, it makes them what `value` says. Other
/// blocks may do so too.
///
/// # Safety
/// `address` must be writable for 8 bytes, aligned to 8, and only be accessed this way by others.
#[inline(always)]
pub unsafe fn or_u32x2(address: u64, [a, b]: [u32; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .b64 bits;",
            "mov.b64 bits, {{{1}, {2}}};",
            "red.global.or.b64 [{0}], bits;",
            "}}",
            in(reg64) address,
            in(reg32) a,
            in(reg32) b,
            options(nostack),
        );
    }
}

/// Counts one in four bytes of shared memory where `condition` is not 0. Other threads may do so
/// too.
///
/// # Safety
/// Where `condition` is not 0, `address` must lie in the block's shared memory, aligned to 4, and
/// only be accessed this way by others.
#[inline(always)]
pub unsafe fn count_shared_if(address: u32, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {1}, 0;",
            "@p red.shared.add.u32 [{0}], 1;",
            "}}",
            in(reg32) address,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Adds to four bytes of shared memory where `condition` is not 0; the value before, or 0. Other
/// threads may do so too.
///
/// # Safety
/// As [`count_shared_if`].
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn fetch_add_shared_if(address: u32, value: u32, condition: u32) -> u32 {
    let before;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {3}, 0;",
            "mov.b32 {0}, 0;",
            "@p atom.shared.add.u32 {0}, [{1}], {2};",
            "}}",
            out(reg32) before,
            in(reg32) address,
            in(reg32) value,
            in(reg32) condition,
            options(nostack),
        );
    }
    before
}

/// Adds to four bytes of global memory where `condition` is not 0; the value before, or 0. Other
/// blocks may do so too.
///
/// # Safety
/// Where `condition` is not 0, `address` must be writable for 4 bytes, aligned to 4, and only be
/// accessed this way by others.
#[inline(always)]
pub unsafe fn fetch_add_if(address: u64, value: u32, condition: u32) -> u32 {
    let before;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {3}, 0;",
            "mov.b32 {0}, 0;",
            "@p atom.global.add.u32 {0}, [{1}], {2};",
            "}}",
            out(reg32) before,
            in(reg64) address,
            in(reg32) value,
            in(reg32) condition,
            options(nostack),
        );
    }
    before
}

/// Adds to eight bytes of global memory. Other blocks may do so too.
///
/// # Safety
/// `address` must be writable for 8 bytes, aligned to 8, and only be accessed this way by others.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn add_u64(address: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "red.global.add.u64 [{0}], {1};",
            in(reg64) address,
            in(reg64) value,
            options(nostack),
        );
    }
}

/// Makes a u64 of global memory `value` where that is larger and `condition` is not 0. Other blocks
/// may do so too.
///
/// # Safety
/// Where `condition` is not 0, `address` must be writable for 8 bytes, aligned to 8, and only be
/// accessed this way by others.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn max_u64_if(address: u64, value: u64, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {2}, 0;",
            "@p red.global.max.u64 [{0}], {1};",
            "}}",
            in(reg64) address,
            in(reg64) value,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Adds to four consecutive numbers, where `condition` is not 0.
///
/// # Safety
/// As [`add_f32_if`], for 16 bytes, aligned to 16.
#[inline(always)]
pub unsafe fn add_f32x4_if(address: u64, values: [f32; 4], condition: u32) {
    macro_rules! add {
        ($($line:literal)*) => {
            asm!(
                "{{",
                ".reg .pred p;",
                "setp.ne.b32 p, {5}, 0;",
                $($line,)*
                "}}",
                in(reg64) address,
                in(reg32) values[0],
                in(reg32) values[1],
                in(reg32) values[2],
                in(reg32) values[3],
                in(reg32) condition,
                options(nostack),
            )
        };
    }
    // SAFETY: the caller's promise. Only sm_90 adds four in one instruction, each by itself.
    unsafe {
        #[cfg(maxsim_arch = "sm_90a")]
        add!("@p red.global.add.v4.f32 [{0}], {{{1}, {2}, {3}, {4}}};");
        #[cfg(maxsim_arch = "sm_80")]
        add!(
            "@p red.global.add.f32 [{0}], {1};"
            "@p red.global.add.f32 [{0}+4], {2};"
            "@p red.global.add.f32 [{0}+8], {3};"
            "@p red.global.add.f32 [{0}+12], {4};"
        );
    }
}

#[cfg(maxsim_arch = "sm_90a")]
fetches! {
    /// Counts up in four bytes of global memory, from `last` back to 0; the value before. Other
    /// blocks may do so too.
    ///
    /// # Safety
    /// As [`add_u32`].
    count_up(last) = "atom.global.inc.u32";
    /// Adds to four bytes of global memory; the value before. Other blocks may do so too.
    ///
    /// # Safety
    /// `address` must be writable for 4 bytes, aligned to 4, and only be accessed this way
    /// by others.
    add_u32(value) = "atom.global.add.u32";
    /// Adds to a number as [`add_u32`] does, with acquire and release semantics: behind all that
    /// this thread has done before, and that others have done before and it has seen, and before
    /// all that it does next.
    ///
    /// # Safety
    /// As [`add_u32`].
    add_u32_in_order(value) = "atom.acq_rel.gpu.global.add.u32";
}

conditional_stores! { reg64 u64;
    /// Makes a u32 of global memory `value` where that is larger and `condition` is not 0. Other
    /// blocks may do so too.
    ///
    /// # Safety
    /// Where `condition` is not 0, `address` must be writable for 4 bytes, aligned to 4,
    /// and only be accessed this way by others.
    max_u32_if(value: u32) = "red.global.max.u32";
    /// Adds to an f32 of global memory where `condition` is not 0. Other blocks may do so too, in
    /// any order. The memory rounds to nearest, and takes subnormal numbers for zeros.
    ///
    /// # Safety
    /// Where `condition` is not 0, `address` must be writable for 4 bytes, aligned to 4,
    /// and only be accessed this way by others.
    add_f32_if(value: f32) = "red.global.add.f32";
}

conditional_stores! { reg32 u32;
    /// Sets bits of four bytes of shared memory where `condition` is not 0. Other threads may do so
    /// too.
    ///
    /// # Safety
    /// As [`count_shared_if`].
    or_shared_if(bits: u32) = "red.shared.or.b32";
    /// Adds to four bytes of shared memory where `condition` is not 0. Other threads may do so too.
    ///
    /// # Safety
    /// As [`count_shared_if`].
    #[cfg(maxsim_arch = "sm_80")]
    add_shared_if(value: u32) = "red.shared.add.u32";
}
