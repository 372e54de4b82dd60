//! mbarriers: phases of arrivals and of copied bytes (sm_90).
#![cfg(maxsim_arch = "sm_90a")]

use core::arch::asm;

/// Makes the 8 bytes at `barrier` a barrier of `count` arrivals per phase.
///
/// # Safety
/// `barrier` must be aligned to 8, in shared memory, and not be used before [`barrier_fence`] and a
/// block-wide barrier.
#[inline(always)]
pub unsafe fn barrier_init(barrier: u32, count: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "mbarrier.init.shared::cta.b64 [{0}], {1};",
            in(reg32) barrier,
            in(reg32) count,
            options(nostack),
        );
    }
}

/// Makes initialised barriers visible to the copy engine.
#[inline(always)]
pub fn barrier_fence() {
    // SAFETY: a fence.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}

/// Arrives, and lets this phase wait for `n_bytes` more.
///
/// # Safety
/// `barrier` must be initialised; `n_bytes` must arrive.
#[inline(always)]
pub unsafe fn barrier_expect(barrier: u32, n_bytes: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};",
            in(reg32) barrier,
            in(reg32) n_bytes,
            options(nostack),
        );
    }
}

/// Arrives when `condition` is non-zero; earlier accesses of this thread are released.
///
/// # Safety
/// `barrier` must be initialised.
#[inline(always)]
pub unsafe fn barrier_arrive_if(barrier: u32, condition: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "setp.ne.b32 p, {1}, 0;",
            "@p mbarrier.arrive.shared::cta.b64 _, [{0}];",
            "}}",
            in(reg32) barrier,
            in(reg32) condition,
            options(nostack),
        );
    }
}

/// Waits until the phase of parity `parity` is complete.
///
/// # Safety
/// `barrier` must be initialised, and the phase must complete.
#[inline(always)]
pub unsafe fn barrier_wait(barrier: u32, parity: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            "WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [{0}], {1};",
            "@!p bra WAIT;",
            "}}",
            in(reg32) barrier,
            in(reg32) parity,
            options(nostack),
        );
    }
}
