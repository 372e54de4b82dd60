//! Exchange between the 32 threads of a warp. All need the whole warp.

use crate::ptx::thread::thread_idx_x;
use core::arch::asm;

/// Functions of what the lanes of a warp have in registers: one instruction each.
macro_rules! exchanges {
    ($(
        $(#[$meta:meta])*
        $name:ident($($x:ident: $type:ty),*) -> $result:ty = $text:literal;
    )*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub unsafe fn $name($($x: $type),*) -> $result {
            let result;
            // SAFETY: registers only; the caller brings the whole warp.
            unsafe {
                asm!($text, out(reg32) result, $(in(reg32) $x,)* options(nomem, nostack));
            }
            result
        }
    )*};
}

exchanges! {
    /// `value` of the lane `delta` above; the lane's own where there is none.
    ///
    /// # Safety
    /// All 32 lanes must execute it together, with the same `delta`.
    shuffle_down(value: u32, delta: u32) -> u32 =
        "shfl.sync.down.b32 {0}, {1}, {2}, 31, 0xffffffff;";
    /// `value` of lane 0.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    broadcast(value: u32) -> u32 = "shfl.sync.idx.b32 {0}, {1}, 0, 31, 0xffffffff;";
    /// The values of all lanes, or-ed together.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    or_lanes(value: u32) -> u32 = "redux.sync.or.b32 {0}, {1}, 0xffffffff;";
    /// The largest of the values of all lanes.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    max_lanes(value: u32) -> u32 = "redux.sync.max.u32 {0}, {1}, 0xffffffff;";
    /// The smallest of the values of all lanes.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    #[cfg(maxsim_arch = "sm_80")]
    min_lanes(value: u32) -> u32 = "redux.sync.min.u32 {0}, {1}, 0xffffffff;";
    /// The sum of the values of all lanes.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    #[cfg(maxsim_arch = "sm_80")]
    add_lanes(value: u32) -> u32 = "redux.sync.add.u32 {0}, {1}, 0xffffffff;";
    /// `value` of lane `lane` (its low five bits).
    ///
    /// # Safety
    /// All 32 lanes of the warp must execute it together.
    shuffle(value: u32, lane: u32) -> u32 = "shfl.sync.idx.b32 {0}, {1}, {2}, 31, 0xffffffff;";
    /// `value` of the lane whose index differs by the bits of `mask`.
    ///
    /// # Safety
    /// All 32 lanes of the warp must execute it together, with the same `mask`.
    shuffle_xor_by(value: f32, mask: u32) -> f32 =
        "shfl.sync.bfly.b32 {0}, {1}, {2}, 31, 0xffffffff;";
}

/// `value` of the lane whose index differs by the bits of `MASK`.
///
/// # Safety
/// All 32 lanes must execute it together.
#[inline(always)]
pub unsafe fn shuffle_xor<const MASK: u32>(value: u32) -> u32 {
    let result;
    // SAFETY: registers only; the caller brings the whole warp.
    unsafe {
        asm!(
            "shfl.sync.bfly.b32 {0}, {1}, {m}, 31, 0xffffffff;",
            out(reg32) result,
            in(reg32) value,
            m = const MASK,
            options(nomem, nostack),
        );
    }
    result
}

/// [`shuffle_xor`] of a float.
///
/// # Safety
/// As [`shuffle_xor`].
#[inline(always)]
pub unsafe fn shuffle_xor_f32<const MASK: u32>(value: f32) -> f32 {
    // SAFETY: the caller's promise.
    f32::from_bits(unsafe { shuffle_xor::<MASK>(value.to_bits()) })
}

/// Orders the memory accesses of the warp's lanes before those that follow.
///
/// # Safety
/// All 32 lanes must execute it together.
#[inline(always)]
pub unsafe fn sync_warp() {
    // SAFETY: the caller's promise.
    unsafe { asm!("bar.warp.sync 0xffffffff;", options(nostack)) }
}

/// Bit `l` of the result says whether lane `l` passed a non-zero value.
///
/// # Safety
/// All 32 lanes must execute it together.
#[inline(always)]
pub unsafe fn ballot(value: u32) -> u32 {
    let result;
    // SAFETY: registers only; the caller brings the whole warp.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {1}, 0;",
            "vote.sync.ballot.b32 {0}, p, 0xffffffff;",
            "}}",
            out(reg32) result,
            in(reg32) value,
            options(nomem, nostack),
        );
    }
    result
}

/// Index of the thread in its warp.
#[inline(always)]
pub fn lane_idx() -> u32 {
    thread_idx_x() % 32
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

/// The sum of the values of the lanes up to this one.
///
/// # Safety
/// All 32 lanes must execute it together.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn sum_up_to_lane(value: u32) -> u32 {
    let mut sum = value;
    // SAFETY: the caller's promise.
    unsafe {
        sum += shuffle_up_or_zero(sum, 1);
        sum += shuffle_up_or_zero(sum, 2);
        sum += shuffle_up_or_zero(sum, 4);
        sum += shuffle_up_or_zero(sum, 8);
        sum += shuffle_up_or_zero(sum, 16);
    }
    sum
}
