//! How many sources of a task go to each of its buckets.
//!
//! Only for windows of several tasks, whose blocks must know where each other's sources end.

use super::steps::{for_each, sort_task};
use super::{NO_ROW, SortParams, THREADS, WARPS};
use crate::ptx::memory::{dynamic_shared, store_u32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::wide::{count_shared_if, load_shared_u32, store_shared_u32};

/// Counts the sources of this block's task.
///
/// # Safety
/// `params` must describe a call as [`SortParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn count(params: &SortParams) {
    let (thread, shared) = (thread_idx_x(), dynamic_shared());
    // SAFETY: the host launches a block per task, with shared memory for its counts; all threads
    // take the same way around the barriers.
    unsafe {
        let task = sort_task(params.tasks, block_idx_x());
        if task.n_chunks == 1 {
            return;
        }
        let mut bucket = thread;
        while bucket < task.n_buckets() {
            store_shared_u32(shared + bucket * 4, 0);
            bucket += THREADS as u32;
        }
        sync_threads();
        let warp = thread / 32;
        if warp < task.n_warps.min(WARPS) {
            for_each(&params.pairs, &task, warp, |step| {
                let is_there = u32::from(step.bucket != NO_ROW);
                count_shared_if(shared + step.bucket * 4, is_there);
            });
        }
        sync_threads();
        let first =
            params.counts + (u64::from(task.counts) + u64::from(task.chunk * task.n_buckets())) * 4;
        bucket = thread;
        while bucket < task.n_buckets() {
            store_u32(first + u64::from(bucket) * 4, load_shared_u32(shared + bucket * 4));
            bucket += THREADS as u32;
        }
    }
}
