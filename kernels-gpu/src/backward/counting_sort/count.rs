//! Counts the sources of a task per bucket, and clears the places that they will have.
//!
//! Only for windows of several tasks, whose blocks must know where each other's sources end. The
//! counts of each warp are kept, too, so that the sort need not look at the winners twice.
//!
//! CTAs behind the last task do the fixup of the group before: a launch less.

use crate::abi::params::backward::{CountParams, NO_ROW, SortParams, THREADS, WARPS};
use crate::backward::counting_sort::steps::{clear_share, for_each, sort_task};
use crate::backward::fixup::fixup_block;
use crate::ptx::atomic::count_shared_if;
use crate::ptx::global::{store_u16, store_u32};
use crate::ptx::shared::{dynamic_shared, load_shared_u32, store_shared_u32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};

/// Counts the sources of this block's task, or fixes up rows.
///
/// # Safety
/// `params` must describe a call as [`CountParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn count(params: &CountParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match block_idx_x().checked_sub(params.n_tasks) {
            Some(block) => fixup_block(&params.fixup, block),
            None => count_task(&params.sort),
        }
    }
}

/// # Safety
/// As [`count`], for a block that has a task.
#[inline(always)]
unsafe fn count_task(params: &SortParams) {
    let (thread, shared) = (thread_idx_x(), dynamic_shared());
    // SAFETY: the host launches a block per task, with shared memory for its counts; all threads
    // take the same way around the barriers.
    unsafe {
        let task = sort_task(params.tasks, block_idx_x());
        if task.n_chunks == 1 {
            return;
        }
        clear_share(params.list, &task, thread);
        let (n_buckets, n_warps) = (task.n_buckets(), task.n_warps.min(WARPS));
        let mut i = thread;
        while i < n_buckets * n_warps {
            store_shared_u32(shared + i * 4, 0);
            i += THREADS as u32;
        }
        sync_threads();
        let warp = thread / 32;
        if warp < n_warps {
            let own = shared + warp * n_buckets * 4;
            for_each(&params.pairs, &task, warp, |step| {
                count_shared_if(own + step.bucket * 4, u32::from(step.bucket != NO_ROW));
            });
        }
        sync_threads();
        let counts = params.counts + task.first_count() * 4;
        let warp_counts = params.warp_counts + task.first_warp_count() * 2;
        let mut bucket = thread;
        while bucket < n_buckets {
            let mut all = 0;
            let mut warp = 0;
            while warp < n_warps {
                let index = warp * n_buckets + bucket;
                let count = load_shared_u32(shared + index * 4);
                store_u16(warp_counts + u64::from(index) * 2, count);
                all += count;
                warp += 1;
            }
            store_u32(counts + u64::from(bucket) * 4, all);
            bucket += THREADS as u32;
        }
    }
}
