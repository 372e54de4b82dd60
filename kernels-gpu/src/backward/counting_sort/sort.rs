//! Sorts the winners of a task by destination: a stable counting sort.
//!
//! A block per task. Each warp counts its share of the sources, which follow each other, where
//! `count` has not; a scan
//! over buckets, tasks and warps says where the warp's sources of each bucket go; then every warp
//! places its sources, 32 at a time. Lanes with the same bucket find each other in a word of it,
//! where each sets its bit, so that the place of a source depends on its order alone.
//!
//! A source is or-ed into zeros (`clear_share`) rather than stored: eight bytes that come alone
//! cost the L2 cache a read of their sector before it is written, and its atomic units do that
//! faster (64 x 1024 x 1024: 59 µs with stores, 38 with stores into zeros, 30 so; 16 if nothing is
//! written).
//!
//! Shared memory: a count, then a place, and a word of lanes per bucket and warp; 94 KB at most.

use crate::abi::params::backward::{
    Destination, NO_ROW, PLACE_BYTES, SortParams, SortTask, Source, THREADS, WARPS,
};
use crate::backward::counting_sort::steps::{Step, clear_share, for_each, sort_task};
use crate::backward::normalize::scaled;
use crate::ptx::atomic::{count_shared_if, or_shared_if, or_u32x2};
use crate::ptx::global::{load_u16_if, load_u32, store_u32x2};
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x2, store_shared_u32_if, store_shared_u32x2,
    store_shared_u32x2_if,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle_up_or_zero, sync_warp};

/// Counts of other tasks that are loaded at once.
const UNROLL: u32 = 8;

/// Sorts the sources of this block's task.
///
/// # Safety
/// `params` must describe a call as [`SortParams`] says, with the counts of windows that have
/// several tasks; all threads of the block.
#[inline(always)]
pub unsafe fn sort(params: &SortParams) {
    let (thread, shared) = (thread_idx_x(), dynamic_shared());
    // SAFETY: the host launches a block per task, with shared memory for its counts per warp; all
    // threads take the same way around the barriers.
    unsafe {
        let task = sort_task(params.tasks, block_idx_x());
        let n_buckets = task.n_buckets();
        let warp = thread / 32;
        let own = shared + warp * n_buckets * PLACE_BYTES;
        if task.n_chunks > 1 {
            load_counts(params, &task, shared, thread);
        } else {
            clear_share(params.list, &task, thread);
            let mut i = thread;
            while i < n_buckets * task.n_warps {
                store_shared_u32x2(shared + i * PLACE_BYTES, [0; 2]);
                i += THREADS as u32;
            }
            sync_threads();
            if warp < task.n_warps {
                for_each(&params.pairs, &task, warp, |step| {
                    let address = own + step.bucket * PLACE_BYTES;
                    count_shared_if(address, u32::from(step.bucket != NO_ROW));
                });
            }
        }
        sync_threads();
        starts(params, &task, shared, thread);
        if warp < task.n_warps {
            for_each(&params.pairs, &task, warp, |step| place(params, own, step));
        }
    }
}

/// Loads what `count` has counted of each warp.
///
/// # Safety
/// All threads of the block; the task must have counts.
#[inline(always)]
unsafe fn load_counts(params: &SortParams, task: &SortTask, shared: u32, thread: u32) {
    let first = params.warp_counts + task.first_warp_count() * 2;
    let n = task.n_buckets() * task.n_warps;
    let mut i = thread;
    while i < n {
        let mut counts = [0u32; UNROLL as usize];
        let mut u = 0;
        while u < UNROLL {
            let index = i + u * THREADS as u32;
            // SAFETY: the task has so many counts.
            counts[u as usize] =
                unsafe { load_u16_if(first + u64::from(index) * 2, u32::from(index < n)) };
            u += 1;
        }
        u = 0;
        while u < UNROLL {
            let index = i + u * THREADS as u32;
            // SAFETY: the block has a place for each.
            unsafe {
                let address = shared + index * PLACE_BYTES;
                store_shared_u32_if(address, counts[u as usize], u32::from(index < n));
            }
            u += 1;
        }
        i += UNROLL * THREADS as u32;
    }
}

/// Turns the counts per warp into the places of each warp's first sources.
///
/// # Safety
/// All threads of the block, behind a barrier.
#[inline(always)]
unsafe fn starts(params: &SortParams, task: &SortTask, shared: u32, thread: u32) {
    let n_buckets = task.n_buckets();
    let sums = shared + n_buckets * task.n_warps * PLACE_BYTES;
    let mut total = task.list;
    let mut first = 0;
    // SAFETY: the host's promise; all threads take every round.
    unsafe {
        while first < n_buckets {
            let bucket = first + thread;
            let is_there = bucket < n_buckets;
            let mut own = 0;
            if is_there {
                let mut warp = 0;
                while warp < task.n_warps {
                    let index = warp * n_buckets + bucket;
                    own += load_shared_u32(shared + index * PLACE_BYTES);
                    warp += 1;
                }
            }
            let (before, all) = match task.n_chunks {
                1 => (0, own),
                _ if is_there => of_tasks(params, task, bucket),
                _ => (0, 0),
            };
            let (start, round) = scan(sums, thread, all);
            if is_there {
                let start = total + start;
                if task.chunk == 0 {
                    let row = if bucket < task.n_rows { task.row + bucket } else { NO_ROW };
                    let index = u64::from(task.destination + bucket);
                    let address = params.destinations + index * size_of::<Destination>() as u64;
                    store_u32x2(address, [start, row]);
                }
                let mut next = start + before;
                let mut warp = 0;
                while warp < task.n_warps {
                    let address = shared + (warp * n_buckets + bucket) * PLACE_BYTES;
                    let count = load_shared_u32(address);
                    store_shared_u32x2(address, [next, 0]);
                    next += count;
                    warp += 1;
                }
            }
            total += round;
            first += THREADS as u32;
        }
        sync_threads();
    }
}

/// Sources of a bucket in the tasks before this one, and in all.
///
/// # Safety
/// The window must have counts, and the bucket.
#[inline(always)]
unsafe fn of_tasks(params: &SortParams, task: &SortTask, bucket: u32) -> (u32, u32) {
    // Start with the counts of the window's first task.
    let first = params.counts + (u64::from(task.counts) + u64::from(bucket)) * 4;
    let (mut before, mut all) = (0, 0);
    let mut done = 0;
    while done < task.n_chunks {
        let mut counts = [0u32; UNROLL as usize];
        let mut u = 0;
        while u < UNROLL {
            // Behind the last task it is looked at again, and not counted.
            let chunk = (done + u).min(task.n_chunks - 1);
            // SAFETY: the task exists.
            counts[u as usize] =
                unsafe { load_u32(first + u64::from(chunk * task.n_buckets()) * 4) };
            u += 1;
        }
        u = 0;
        while u < UNROLL {
            let count = if done + u < task.n_chunks { counts[u as usize] } else { 0 };
            before += if done + u < task.chunk { count } else { 0 };
            all += count;
            u += 1;
        }
        done += UNROLL;
    }
    (before, all)
}

/// The sum of the values of the block's threads before this one, and of all.
///
/// # Safety
/// All threads of the block; `sums` must be words of shared memory for the warps.
#[inline(always)]
pub unsafe fn scan(sums: u32, thread: u32, value: u32) -> (u32, u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut inclusive = value;
        let mut delta = 1;
        while delta < 32 {
            inclusive += shuffle_up_or_zero(inclusive, delta);
            delta *= 2;
        }
        // The last round's sums have been read.
        sync_threads();
        store_shared_u32_if(sums + thread / 32 * 4, inclusive, u32::from(thread % 32 == 31));
        sync_threads();
        let (mut before, mut all) = (0, 0);
        let mut warp = 0;
        while warp < WARPS {
            let sum = load_shared_u32(sums + warp * 4);
            before += if warp < thread / 32 { sum } else { 0 };
            all += sum;
            warp += 1;
        }
        (before + inclusive - value, all)
    }
}

/// Places a step's sources.
///
/// # Safety
/// A whole warp; `own` must be the warp's places, without lanes.
#[inline(always)]
unsafe fn place(params: &SortParams, own: u32, step: Step) {
    let is_there = step.bucket != NO_ROW;
    let address = own + step.bucket * PLACE_BYTES;
    let lane = lane_idx();
    // SAFETY: the caller's promise; every source was counted, so that the list has its place.
    unsafe {
        or_shared_if(address + 4, 1 << lane, u32::from(is_there));
        sync_warp();
        let mut next = [0; 2];
        if is_there {
            let [start, lanes] = load_shared_u32x2(address);
            let at = start + (lanes & ((1 << lane) - 1)).count_ones();
            let entry = params.list + u64::from(at) * size_of::<Source>() as u64;
            let factor = scaled(&params.pairs, step.row, f32::from_bits(step.factor));
            or_u32x2(entry, [step.row, factor.to_bits()]);
            next = [at + 1, lanes >> lane];
        }
        // All have read where their bucket's places start, and who has it.
        sync_warp();
        let is_last = u32::from(next[1] == 1);
        store_shared_u32x2_if(address, [next[0], 0], is_last);
        sync_warp();
    }
}
