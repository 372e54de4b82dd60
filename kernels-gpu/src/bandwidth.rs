//! Reads a range of memory once, and does nothing with it.
//!
//! Its time is the limit that benchmarks compare with where arithmetic is not the limit: a kernel
//! that must read these bytes cannot beat it by much. The grid walks through the range together,
//! so that every thread gets as much as any other; each keeps eight loads of 16 bytes in
//! flight, 64 KB per block, where 25 KB per multiprocessor cover the latency of 4.8 TB/s.

use crate::abi::params::{BANDWIDTH_THREADS, BandwidthParams};
use crate::ptx::global::{load_u32x4, store_u32};
use crate::ptx::thread::{block_idx_x, grid_dim_x, thread_idx_x};

/// Loads in flight per thread.
const UNROLL: usize = 8;

/// Reads this thread's share.
///
/// # Safety
/// `params` must describe readable memory that is not written while the kernel runs, and a
/// sink of four writable bytes.
#[inline(always)]
pub unsafe fn bandwidth(params: &BandwidthParams) {
    let threads = BANDWIDTH_THREADS as u64;
    let stride = u64::from(grid_dim_x()) * threads;
    let mut i = u64::from(block_idx_x()) * threads + u64::from(thread_idx_x());
    let mut folded = [0u32; 4];
    // SAFETY: every vector has an index below `n_vectors`; the sink is the host's promise.
    unsafe {
        while i + (UNROLL as u64 - 1) * stride < params.n_vectors {
            folded = xor(folded, fold(params.base, i, stride, u64::MAX));
            i += UNROLL as u64 * stride;
        }
        // The rest in one go too. Past the end the last vector is read again, out of the
        // cache: loads one after the other would make short ranges look slow.
        if i < params.n_vectors {
            folded = xor(folded, fold(params.base, i, stride, params.n_vectors - 1));
        }
        // Has to look possible to the compiler, so that the loads stay; it is one chance in
        // 2^128, and harmless.
        if folded == [0x9e37_79b9, 0x7f4a_7c15, 0xf39c_c060, 0x5ced_c834] {
            store_u32(params.sink, folded[0]);
        }
    }
}

/// Reads vectors `first`, `first + stride`, ..., none beyond `last`, all at once.
///
/// # Safety
/// The vectors must be readable.
#[inline(always)]
unsafe fn fold(base: u64, first: u64, stride: u64, last: u64) -> [u32; 4] {
    let mut vectors = [[0u32; 4]; UNROLL];
    let mut k = 0;
    while k < UNROLL {
        let i = (first + k as u64 * stride).min(last);
        // SAFETY: the caller's promise.
        vectors[k] = unsafe { load_u32x4(base + i * 16) };
        k += 1;
    }
    let mut folded = [0u32; 4];
    k = 0;
    while k < UNROLL {
        folded = xor(folded, vectors[k]);
        k += 1;
    }
    folded
}

#[inline(always)]
fn xor(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
    [a[0] ^ b[0], a[1] ^ b[1], a[2] ^ b[2], a[3] ^ b[3]]
}
