//! Asynchronous copies from global to shared memory.

use core::arch::asm;

/// Starts a copy of 16 bytes, of which the first `n_bytes` are read and the rest are zeros.
///
/// # Safety
/// `shared` must be aligned to 16 and free to be overwritten; `global` must be aligned to
/// 16 and readable for `n_bytes` (0 to 16).
#[inline(always)]
pub unsafe fn copy_async_16(shared: u32, global: u64, n_bytes: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.cg.shared.global [{0}], [{1}], 16, {2};",
            in(reg32) shared,
            in(reg64) global,
            in(reg32) n_bytes,
            options(nostack),
        );
    }
}

/// Starts a copy of 16 bytes, unless `condition` is 0.
///
/// # Safety
/// As [`copy_async_16`], where it is not.
#[cfg(maxsim_arch = "sm_80")]
#[inline(always)]
pub unsafe fn copy_async_16_if(shared: u32, global: u64, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.u32 p, {2}, 0;",
            "@p cp.async.cg.shared.global [{0}], [{1}], 16;",
            "}}",
            in(reg32) shared,
            in(reg64) global,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Starts a copy of 16 bytes, `OFFSET` bytes behind both addresses.
///
/// # Safety
/// As [`copy_async_16`] of 16 bytes.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn copy_16_at<const OFFSET: u32>(shared: u32, global: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.cg.shared.global [{0} + {offset}], [{1} + {offset}], 16;",
            in(reg32) shared,
            in(reg64) global,
            offset = const OFFSET,
            options(nostack),
        );
    }
}

/// Starts a copy of 4 bytes.
///
/// # Safety
/// As [`copy_async_16`], aligned to 4.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn copy_async_4(shared: u32, global: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.ca.shared.global [{0}], [{1}], 4;",
            in(reg32) shared,
            in(reg64) global,
            options(nostack),
        );
    }
}

/// Arrives at a barrier when all copies have completed that this thread has started, without
/// waiting.
///
/// # Safety
/// The barrier must be initialised, and expect this thread's arrival.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn copies_arrive(barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "cp.async.mbarrier.arrive.noinc.shared.b64 [{0}];",
            in(reg32) barrier,
            options(nostack),
        );
    }
}

/// Closes a group of the copies that this thread has started.
#[inline(always)]
pub fn copy_commit() {
    // SAFETY: orders this thread's own copies.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// Waits until at most `N` of this thread's groups are in flight.
#[inline(always)]
pub fn copy_wait<const N: u32>() {
    // SAFETY: waits for this thread's own copies.
    unsafe { asm!("cp.async.wait_group {n};", n = const N, options(nostack)) }
}

/// Starts a copy of `n_bytes` that lie together; they complete on `barrier`.
///
/// # Safety
/// `shared` must be aligned to 16 and free to be overwritten for `n_bytes`, a multiple of 16;
/// `global` must be aligned to 16 and readable for them; `barrier` must expect them.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn copy_run(shared: u32, global: u64, n_bytes: u32, barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            concat!(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ",
                "[{0}], [{1}], {2}, [{3}];"
            ),
            in(reg32) shared,
            in(reg64) global,
            in(reg32) n_bytes,
            in(reg32) barrier,
            options(nostack),
        );
    }
}

/// The instruction that copies a box of a 2-D tensor map.
#[cfg(maxsim_arch = "sm_90a")]
macro_rules! copy_tile {
    () => {
        concat!(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes ",
            "[{0}], [{1}, {{{2}, {3}}}], [{4}];"
        )
    };
}

/// Starts a copy of a box of a 2-D tensor map; its bytes complete on `barrier`.
///
/// # Safety
/// `map` must be the generic address of a tensor map; `shared` must be 1024-byte aligned
/// (128-byte swizzle), hold the whole box and be free to be overwritten; `barrier` must
/// expect the box's bytes.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn copy_tile(shared: u32, map: u64, column: u32, row: u32, barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            copy_tile!(),
            in(reg32) shared,
            in(reg64) map,
            in(reg32) column,
            in(reg32) row,
            in(reg32) barrier,
            options(nostack),
        );
    }
}

/// One lane, whichever, arrives at `barrier`, lets this phase wait for `n_bytes` more, and starts
/// the copy of a box as [`copy_tile`]. (Where a lane's number decides who copies, the assembler
/// makes a loop over lanes.)
///
/// # Safety
/// As there, by one whole warp; `n_bytes` must arrive.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn expect_tile(
    shared: u32,
    map: u64,
    column: u32,
    row: u32,
    barrier: u32,
    n_bytes: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "elect.sync _|p, 0xffffffff;",
            "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [{4}], {5};",
            concat!("@p ", copy_tile!()),
            "}}",
            in(reg32) shared,
            in(reg64) map,
            in(reg32) column,
            in(reg32) row,
            in(reg32) barrier,
            in(reg32) n_bytes,
            options(nostack),
        );
    }
}

/// Starts [`copy_tile`] in one lane, whichever.
///
/// # Safety
/// As there, by one whole warp.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn copy_tile_once(shared: u32, map: u64, column: u32, row: u32, barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "elect.sync _|p, 0xffffffff;",
            concat!("@p ", copy_tile!()),
            "}}",
            in(reg32) shared,
            in(reg64) map,
            in(reg32) column,
            in(reg32) row,
            in(reg32) barrier,
            options(nostack),
        );
    }
}

/// Prefetches a tensor map ahead of its first use.
///
/// # Safety
/// `map` must be the generic address of a tensor map.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn prefetch_map(map: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("prefetch.tensormap [{0}];", in(reg64) map, options(nostack)) }
}

/// Orders this thread's accesses to shared memory before those of the copy engine and the tensor
/// cores that follow.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn fence_async() {
    // SAFETY: a fence.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}
