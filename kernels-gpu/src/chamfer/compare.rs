//! Compares points of any dim: a CTA of 128 threads has 64 points, and tiles of 128 of the other
//! cloud, one after the other.
//!
//! ```text
//! slice    16 dims of both sides, as f32, dim by dim in shared memory
//! sums     each thread has 8 × 8 distances in registers: a subtraction and a fused multiply-add
//!          for each pair and dim, four loads of 16 bytes for 64 pairs
//! key      behind a tile's last slice: the largest key of each own point
//! ```
//!
//! Distances are added dim after dim, as the CPU adds them. Loss: a CTA computes nothing while it
//! loads a slice; four share a multiprocessor.

use super::points::{Cloud, add, cloud_pair, element_if};
use crate::abi::params::chamfer::{
    NO_KEY, NearestParams, NearestTask, THREADS, WIDE_OWN, WIDE_SLICE, WIDE_TILE, key,
};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::max_u64_if;
use crate::ptx::global::{load_u32x4, opaque};
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32x4, load_shared_u32x4, store_shared_f32, store_shared_u32,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle_u64};

/// Numbers from one dim of a slice to the next: four more than points, so that threads that write
/// several dims of a point meet in few banks.
const OWN_PITCH: u32 = WIDE_OWN + 4;
const TILE_PITCH: u32 = WIDE_TILE + 4;

/// Offsets in shared memory: own points, the tile, and a word for each point of it.
const TILE_OFFSET: u32 = WIDE_SLICE * OWN_PITCH * 4;
const VALID_OFFSET: u32 = TILE_OFFSET + WIDE_SLICE * TILE_PITCH * 4;

const _: () = assert!(
    crate::abi::params::chamfer::WIDE_SHARED_BYTES == (VALID_OFFSET + WIDE_TILE * 4) as usize
);
const _: () = assert!(WIDE_TILE as usize == THREADS && WIDE_OWN == 8 * (THREADS as u32 / 16));

/// Lanes that have the same own points.
const LANES: u32 = 16;

/// Distances of a thread's own points to its points of a tile.
type Sums = [[f32; 8]; 8];

/// Compares this CTA's points.
///
/// # Safety
/// `params` must describe memory as [`NearestParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn compare(params: &NearestParams) {
    // SAFETY: the caller's promise.
    unsafe {
        match params.clouds.is_l1 {
            0 => tiles::<false>(params),
            _ => tiles::<true>(params),
        }
    }
}

/// # Safety
/// As [`compare`].
#[inline(always)]
unsafe fn tiles<const L1: bool>(params: &NearestParams) {
    let address = params.tasks + u64::from(block_idx_x()) * size_of::<NearestTask>() as u64;
    // SAFETY: the host has made a task for each CTA; threads come to barriers together.
    unsafe {
        let [pair_and_side, first, first_other, n_others] = load_u32x4(address);
        let pair = cloud_pair(params.clouds.pairs, pair_and_side / 2);
        let own = Cloud::of(&params.clouds, &pair, pair_and_side % 2);
        let other = Cloud::of(&params.clouds, &pair, 1 - pair_and_side % 2);
        let mut best = [NO_KEY; 8];
        let mut at = 0;
        while at < n_others {
            let tile = first_other + at;
            let sums = sums::<L1>(params, (&own, first), (&other, tile));
            nearer(&mut best, &sums, tile);
            at += WIDE_TILE;
        }
        let group = thread_idx_x() / LANES;
        unroll!(I in 0..8 => {
            let mut distance = LANES / 2;
            while distance > 0 {
                let theirs = shuffle_u64(best[I], lane_idx() ^ distance);
                best[I] = if theirs > best[I] { theirs } else { best[I] };
                distance /= 2;
            }
            let point = first + place(group, I, WIDE_OWN);
            let is_mine = thread_idx_x() % LANES == I as u32;
            if is_mine && own.is_valid(point) {
                let place = u64::from(own.place) + u64::from(point);
                max_u64_if(params.keys + place * 8, best[I], u32::from(best[I] != NO_KEY));
            }
        });
    }
}

/// The place of a thread's `i`-th point among `len` ones: four lie together in either half, so that
/// neighbouring threads load neighbouring 16 bytes.
#[inline(always)]
const fn place(thread: u32, i: usize, len: u32) -> u32 {
    4 * thread + (i as u32 % 4) + (i as u32 / 4) * (len / 2)
}

/// Distances of own points to those of a tile, whose words say which of them are there.
///
/// # Safety
/// As [`compare`], all threads.
#[inline(always)]
unsafe fn sums<const L1: bool>(
    params: &NearestParams,
    (own, first): (&Cloud, u32),
    (other, tile): (&Cloud, u32),
) -> Sums {
    let shared = dynamic_shared();
    let mut sums = [[0.0; 8]; 8];
    let dim = params.clouds.dim;
    // SAFETY: the slices and words have their places; threads come to barriers together.
    unsafe {
        let mut k = 0;
        while k < dim {
            // Everyone has read what lies there.
            sync_threads();
            if k == 0 {
                let is_valid = u32::from(other.is_valid(tile + thread_idx_x()));
                store_shared_u32(shared + VALID_OFFSET + 4 * thread_idx_x(), is_valid);
            }
            fill::<8>(params, own, first, k, (shared, OWN_PITCH));
            fill::<16>(params, other, tile, k, (shared + TILE_OFFSET, TILE_PITCH));
            sync_threads();
            let own_at = shared + 16 * (thread_idx_x() / LANES);
            let tile_at = shared + TILE_OFFSET + 16 * (thread_idx_x() % LANES);
            let mut of_slice = 0;
            while of_slice < WIDE_SLICE {
                let a = eight(own_at + of_slice * OWN_PITCH * 4, WIDE_OWN * 2);
                let b = eight(tile_at + of_slice * TILE_PITCH * 4, WIDE_TILE * 2);
                unroll!(I in 0..8 => {
                    unroll!(J in 0..8 => { sums[I][J] = add::<L1>(sums[I][J], b[J] - a[I]); });
                });
                of_slice += 1;
            }
            k += WIDE_SLICE;
        }
    }
    sums
}

/// Four numbers, and four `apart` bytes behind.
///
/// # Safety
/// Both must be in shared memory, aligned to 16 bytes.
#[inline(always)]
unsafe fn eight(address: u32, apart: u32) -> [f32; 8] {
    // SAFETY: the caller's promise.
    let ([a, b, c, d], [e, f, g, h]) =
        unsafe { (load_shared_f32x4(address), load_shared_f32x4(address + apart)) };
    [a, b, c, d, e, f, g, h]
}

/// Writes a slice of `8 · N` points from dim `k` on: zeros behind the last point and the last dim,
/// which add nothing.
///
/// # Safety
/// As [`compare`]; the slice must have its place in shared memory.
#[inline(always)]
#[allow(unused_assignments)] // behind the last point there is a row, too
unsafe fn fill<const N: usize>(
    params: &NearestParams,
    cloud: &Cloud,
    first: u32,
    k: u32,
    (address, pitch): (u32, u32),
) {
    let of_slice = thread_idx_x() % WIDE_SLICE;
    let (point, k) = (thread_idx_x() / WIDE_SLICE, k + of_slice);
    let mut values = [0.0; N];
    let per_load = THREADS as u32 / WIDE_SLICE;
    // The addresses of all rows would be kept in registers from slice to slice.
    let first = opaque(u64::from(first + point)) as u32;
    let (mut row, step) = (cloud.row(first), u64::from(per_load) * cloud.points.pitch_bytes);
    // SAFETY: coordinates are loaded where there are some; the caller's promise.
    unsafe {
        // All loads before what is loaded is written.
        unroll!(I in 0..16 => { if I < N {
            let is_there = (first + I as u32 * per_load < cloud.len) & (k < params.clouds.dim);
            values[I] = element_if(&params.clouds, row, k, is_there);
            row += step;
        }});
        unroll!(I in 0..16 => { if I < N {
            let at = point + I as u32 * per_load;
            store_shared_f32(address + 4 * (of_slice * pitch + at), values[I]);
        }});
    }
}

/// Takes the keys of a tile's points where they are larger.
///
/// # Safety
/// The tile's words must be written.
#[inline(always)]
unsafe fn nearer(best: &mut [u64; 8], sums: &Sums, tile: u32) {
    let thread = thread_idx_x() % LANES;
    let words = dynamic_shared() + VALID_OFFSET + 16 * thread;
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (load_shared_u32x4(words), load_shared_u32x4(words + WIDE_TILE * 2)) };
    let is_valid = [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]];
    unroll!(I in 0..8 => {
        unroll!(J in 0..8 => {
            let own = key(sums[I][J], tile + place(thread, J, WIDE_TILE));
            best[I] = if (is_valid[J] != 0) & (own > best[I]) { own } else { best[I] };
        });
    });
}
