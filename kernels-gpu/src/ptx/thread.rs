//! Thread and block indices, and the block-wide barrier.

use core::arch::{asm, nvptx};

/// Index of the thread in its block.
#[inline(always)]
pub fn thread_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_x() as u32 }
}

/// Index of the block in the grid.
#[inline(always)]
pub fn block_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_x() as u32 }
}

/// Number of blocks in the grid.
#[inline(always)]
pub fn grid_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_x() as u32 }
}

/// Index of the thread in its warp, read wherever it is needed: it, and what depends on it,
/// takes no register elsewhere.
#[inline(always)]
pub fn lane_here() -> u32 {
    let lane;
    // SAFETY: reads a special register. (Not `pure`, or it could be read elsewhere.)
    unsafe { asm!("mov.u32 {0}, %laneid;", out(reg32) lane, options(nomem, nostack)) };
    lane
}

/// [`block_idx_x`], as [`lane_here`].
#[inline(always)]
pub fn block_idx_here() -> u32 {
    let block;
    // SAFETY: as there.
    unsafe { asm!("mov.u32 {0}, %ctaid.x;", out(reg32) block, options(nomem, nostack)) };
    block
}

/// [`grid_dim_x`], as [`lane_here`].
#[inline(always)]
pub fn grid_dim_here() -> u32 {
    let n_blocks;
    // SAFETY: as there.
    unsafe { asm!("mov.u32 {0}, %nctaid.x;", out(reg32) n_blocks, options(nomem, nostack)) };
    n_blocks
}

/// Waits for all threads of the block; their earlier shared-memory accesses are visible after.
///
/// # Safety
/// Every thread of the block must reach it.
#[inline(always)]
pub unsafe fn sync_threads() {
    // SAFETY: the caller's promise.
    unsafe { asm!("bar.sync 0;", options(nostack)) }
}

/// Waits until the grid before this one in its stream has ended and what it wrote can be seen,
/// where the launch lets this grid begin before that: at once otherwise.
#[inline(always)]
pub fn wait_for_previous_grid() {
    // Other targets do not have it, and no launch begins early there.
    #[cfg(maxsim_arch = "sm_90a")]
    // SAFETY: waits, and keeps accesses to memory on their side of it.
    unsafe {
        asm!("griddepcontrol.wait;", options(nostack));
    }
}

/// Lets the next grid of the stream begin where blocks of this one have ended, if its launch allows
/// it.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn let_next_grid_begin() {
    // SAFETY: the next grid waits before it touches memory.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nomem, nostack)) }
}

/// Waits until all `n_threads` threads of the block have come here or to [`arrive_threads`].
///
/// # Safety
/// Each thread of the block must reach one of the two, whole warps at a time.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn wait_threads(n_threads: u32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("barrier.cta.sync 1, {0};", in(reg32) n_threads, options(nostack)) }
}

/// Arrives at the barrier of [`wait_threads`] without waiting.
///
/// # Safety
/// As [`wait_threads`].
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn arrive_threads(n_threads: u32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("barrier.cta.arrive 1, {0};", in(reg32) n_threads, options(nostack)) }
}

/// Waits for the turn that is taken at a barrier, which one warpgroup passes to another.
///
/// # Safety
/// All threads of a warpgroup must come here, and all of one other to [`pass_turn`], as often.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn take_turn(barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("barrier.cta.sync {0}, 256;", in(reg32) barrier, options(nostack)) }
}

/// Passes a turn on; see [`take_turn`].
///
/// # Safety
/// As there.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn pass_turn(barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("barrier.cta.arrive {0}, 256;", in(reg32) barrier, options(nostack)) }
}

/// Does nothing for about `clocks` clocks of the multiprocessor.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub fn pause(clocks: u32) {
    // SAFETY: reads a clock until it has advanced.
    unsafe {
        asm!(
            "{{",
            ".reg .pred p;",
            ".reg .b32 start, now;",
            "mov.u32 start, %clock;",
            "PAUSE: mov.u32 now, %clock;",
            "sub.u32 now, now, start;",
            "setp.lt.u32 p, now, {0};",
            "@p bra PAUSE;",
            "}}",
            in(reg32) clocks,
            options(nostack),
        );
    }
}

/// Changes the register limit of this warpgroup to `N`, downwards.
///
/// # Safety
/// All warps of the warpgroup must execute it; no register above `N` may be live.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn release_registers<const N: u32>() {
    // SAFETY: the caller's promise; the assembler checks liveness.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const N, options(nostack)) }
}

/// Changes the register limit of this warpgroup to `N`, upwards; waits until they are free.
///
/// # Safety
/// All warps of the warpgroup must execute it, and enough registers must be released.
#[cfg(maxsim_arch = "sm_90a")]
#[inline(always)]
pub unsafe fn claim_registers<const N: u32>() {
    // SAFETY: the caller's promise.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const N, options(nostack)) }
}
