//! Conditional and wide accesses, conversions of pairs of elements, and what a sort needs.

use core::arch::asm;

use super::thread::thread_idx_x;

/// Index of the thread in its warp.
#[inline(always)]
pub fn lane_idx() -> u32 {
    thread_idx_x() % 32
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

/// Two bytes of global memory that this thread may write too.
///
/// # Safety
/// `address` must be readable for 2 bytes, aligned to 2, and owned by this thread.
#[inline(always)]
pub unsafe fn read_u16(address: u64) -> u32 {
    let value;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ld.global.u16 {0}, [{1}];", out(reg32) value, in(reg64) address, options(readonly, nostack));
    }
    value
}

/// Sixteen bytes of global memory that this thread may write too.
///
/// # Safety
/// `address` must be readable for 16 bytes, aligned to 16, and owned by this thread.
#[inline(always)]
pub unsafe fn read_u32x4(address: u64) -> [u32; 4] {
    let (a, b, c, d);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.global.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
            out(reg32) a,
            out(reg32) b,
            out(reg32) c,
            out(reg32) d,
            in(reg64) address,
            options(readonly, nostack),
        );
    }
    [a, b, c, d]
}

/// Writes sixteen bytes of global memory.
///
/// # Safety
/// `address` must be writable for 16 bytes, aligned to 16, and owned by this thread.
#[inline(always)]
pub unsafe fn store_u32x4(address: u64, value: [u32; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.global.v4.b32 [{0}], {{{1}, {2}, {3}, {4}}};",
            in(reg64) address,
            in(reg32) value[0],
            in(reg32) value[1],
            in(reg32) value[2],
            in(reg32) value[3],
            options(nostack),
        );
    }
}

/// Writes eight bytes of global memory.
///
/// # Safety
/// `address` must be writable for 8 bytes, aligned to 8, and owned by this thread.
#[inline(always)]
pub unsafe fn store_u32x2(address: u64, value: [u32; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "st.global.v2.b32 [{0}], {{{1}, {2}}};",
            in(reg64) address,
            in(reg32) value[0],
            in(reg32) value[1],
            options(nostack),
        );
    }
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

/// Four bytes of shared memory.
///
/// # Safety
/// As [`super::memory::load_shared_f32`].
#[inline(always)]
pub unsafe fn load_shared_u32(address: u32) -> u32 {
    let value;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ld.shared.b32 {0}, [{1}];", out(reg32) value, in(reg32) address, options(readonly, nostack));
    }
    value
}

/// Writes four bytes of shared memory.
///
/// # Safety
/// As [`super::memory::store_shared_f32`].
#[inline(always)]
pub unsafe fn store_shared_u32(address: u32, value: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("st.shared.b32 [{0}], {1};", in(reg32) address, in(reg32) value, options(nostack));
    }
}

/// Eight bytes of shared memory.
///
/// # Safety
/// As [`super::memory::load_shared_f32`], for 8 bytes, aligned to 8.
#[inline(always)]
pub unsafe fn load_shared_u32x2(address: u32) -> [u32; 2] {
    let (a, b);
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "ld.shared.v2.u32 {{{0}, {1}}}, [{2}];",
            out(reg32) a,
            out(reg32) b,
            in(reg32) address,
            options(readonly, nostack),
        );
    }
    [a, b]
}

/// Writes eight bytes of shared memory.
///
/// # Safety
/// As [`super::memory::store_shared_f32`], for 8 bytes, aligned to 8.
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

/// Writes four bytes of shared memory where `condition` is not 0.
///
/// # Safety
/// As [`super::memory::store_shared_f32`], where `condition` is not 0.
#[inline(always)]
pub unsafe fn store_shared_u32_if(address: u32, value: u32, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {2}, 0;",
            "@p st.shared.b32 [{0}], {1};",
            "}}",
            in(reg32) address,
            in(reg32) value,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Sets bits of four bytes of shared memory where `condition` is not 0. Other threads may do so
/// too.
///
/// # Safety
/// As [`count_shared_if`].
#[inline(always)]
pub unsafe fn or_shared_if(address: u32, bits: u32, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {2}, 0;",
            "@p red.shared.or.b32 [{0}], {1};",
            "}}",
            in(reg32) address,
            in(reg32) bits,
            in(reg32) condition,
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

/// Makes a u32 of global memory `value` where that is larger and `condition` is not 0. Other blocks may
/// do so too.
///
/// # Safety
/// Where `condition` is not 0, `address` must be writable for 4 bytes, aligned to 4, and only be
/// accessed this way by others.
#[inline(always)]
pub unsafe fn max_u32_if(address: u64, value: u32, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {2}, 0;",
            "@p red.global.max.u32 [{0}], {1};",
            "}}",
            in(reg64) address,
            in(reg32) value,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Adds to an f32 of global memory where `condition` is not 0. Other blocks may do so too, in any
/// order. The memory rounds to nearest, and takes subnormal numbers for zeros.
///
/// # Safety
/// Where `condition` is not 0, `address` must be writable for 4 bytes, aligned to 4, and only be
/// accessed this way by others.
#[inline(always)]
pub unsafe fn add_f32_if(address: u64, value: f32, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {2}, 0;",
            "@p red.global.add.f32 [{0}], {1};",
            "}}",
            in(reg64) address,
            in(reg32) value,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// As [`add_f32_if`], to four consecutive numbers.
///
/// # Safety
/// As [`add_f32_if`], for 16 bytes, aligned to 16.
#[inline(always)]
pub unsafe fn add_f32x4_if(address: u64, values: [f32; 4], condition: u32) {
    // SAFETY: the caller's promise. Only sm_90 adds four in one instruction, each by itself.
    unsafe {
        #[cfg(maxsim_arch = "sm_90a")]
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {5}, 0;",
            "@p red.global.add.v4.f32 [{0}], {{{1}, {2}, {3}, {4}}};",
            "}}",
            in(reg64) address,
            in(reg32) values[0],
            in(reg32) values[1],
            in(reg32) values[2],
            in(reg32) values[3],
            in(reg32) condition,
            options(nostack),
        );
        #[cfg(maxsim_arch = "sm_80")]
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {5}, 0;",
            "@p red.global.add.f32 [{0}], {1};",
            "@p red.global.add.f32 [{0}+4], {2};",
            "@p red.global.add.f32 [{0}+8], {3};",
            "@p red.global.add.f32 [{0}+12], {4};",
            "}}",
            in(reg64) address,
            in(reg32) values[0],
            in(reg32) values[1],
            in(reg32) values[2],
            in(reg32) values[3],
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Both halves of a word as f32, the low one first.
#[inline(always)]
pub fn widen_f16(pair: u32) -> [f32; 2] {
    let (low, high);
    // SAFETY: registers only.
    unsafe {
        asm!(
            "{{",
            ".reg .b16 l, h;",
            "mov.b32 {{l, h}}, {2};",
            "cvt.f32.f16 {0}, l;",
            "cvt.f32.f16 {1}, h;",
            "}}",
            out(reg32) low,
            out(reg32) high,
            in(reg32) pair,
            options(pure, nomem, nostack),
        );
    }
    [low, high]
}

/// Two f32 rounded to f16, the first one in the low half.
#[inline(always)]
pub fn narrow_f16(low: f32, high: f32) -> u32 {
    let pair;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "cvt.rn.f16x2.f32 {0}, {2}, {1};",
            out(reg32) pair,
            in(reg32) low,
            in(reg32) high,
            options(pure, nomem, nostack),
        );
    }
    pair
}

/// Two f32 rounded to bf16, the first one in the low half.
#[inline(always)]
pub fn narrow_bf16(low: f32, high: f32) -> u32 {
    let pair;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "cvt.rn.bf16x2.f32 {0}, {2}, {1};",
            out(reg32) pair,
            in(reg32) low,
            in(reg32) high,
            options(pure, nomem, nostack),
        );
    }
    pair
}

/// The values of all lanes, or-ed together.
///
/// # Safety
/// All 32 lanes must execute it together.
#[inline(always)]
pub unsafe fn or_lanes(value: u32) -> u32 {
    let result;
    // SAFETY: registers only; the caller brings the whole warp.
    unsafe {
        asm!(
            "redux.sync.or.b32 {0}, {1}, 0xffffffff;",
            out(reg32) result,
            in(reg32) value,
            options(nomem, nostack),
        );
    }
    result
}

/// The largest of the values of all lanes.
///
/// # Safety
/// All 32 lanes must execute it together.
#[inline(always)]
pub unsafe fn max_lanes(value: u32) -> u32 {
    let result;
    // SAFETY: registers only; the caller brings the whole warp.
    unsafe {
        asm!(
            "redux.sync.max.u32 {0}, {1}, 0xffffffff;",
            out(reg32) result,
            in(reg32) value,
            options(nomem, nostack),
        );
    }
    result
}

/// `value` of lane `lane` (its low five bits).
///
/// # Safety
/// All 32 lanes of the warp must execute it together.
#[inline(always)]
pub unsafe fn shuffle(value: u32, lane: u32) -> u32 {
    let result;
    // SAFETY: registers only; the caller brings the whole warp.
    unsafe {
        asm!(
            "shfl.sync.idx.b32 {0}, {1}, {2}, 31, 0xffffffff;",
            out(reg32) result,
            in(reg32) value,
            in(reg32) lane,
            options(nomem, nostack),
        );
    }
    result
}

/// [`shuffle`] of eight bytes.
///
/// # Safety
/// As [`shuffle`].
#[inline(always)]
pub unsafe fn shuffle_u64(value: u64, lane: u32) -> u64 {
    // SAFETY: the caller's promise.
    let [low, high] = unsafe { [shuffle(value as u32, lane), shuffle((value >> 32) as u32, lane)] };
    u64::from(low) | u64::from(high) << 32
}

/// `value` of the lane `delta` below; 0 where there is none.
///
/// # Safety
/// All 32 lanes of the warp must execute it together, with the same `delta`.
#[inline(always)]
pub unsafe fn shuffle_up_or_zero(value: u32, delta: u32) -> u32 {
    let result;
    // SAFETY: registers only; the caller brings the whole warp.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "shfl.sync.up.b32 {0}|p, {1}, {2}, 0, 0xffffffff;",
            "@!p mov.b32 {0}, 0;",
            "}}",
            out(reg32) result,
            in(reg32) value,
            in(reg32) delta,
            options(nomem, nostack),
        );
    }
    result
}

/// `value` of the lane whose index differs by the bits of `mask`.
///
/// # Safety
/// All 32 lanes of the warp must execute it together, with the same `mask`.
#[inline(always)]
pub unsafe fn shuffle_xor_by(value: f32, mask: u32) -> f32 {
    let result;
    // SAFETY: registers only; the caller brings the whole warp.
    unsafe {
        asm!(
            "shfl.sync.bfly.b32 {0}, {1}, {2}, 31, 0xffffffff;",
            out(reg32) result,
            in(reg32) value,
            in(reg32) mask,
            options(nomem, nostack),
        );
    }
    result
}
