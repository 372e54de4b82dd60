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
//! loads a slice; four share a multiprocessor. What compares points of a list with a tile
//! ([`refine`](super::refine())) has 32 of them, so that a thread has 4 × 8 pairs.

use super::points::{Cloud, add, cloud_pair, element_if};
use crate::abi::params::chamfer::{
    Clouds, NO_KEY, NearestParams, NearestTask, THREADS, WIDE_OWN, WIDE_SLICE, WIDE_TILE, key,
    wide_shared_bytes,
};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::max_u64_if;
use crate::ptx::global::{load_u32x4, opaque};
use crate::ptx::shared::{
    dynamic_shared, load_shared_f32x4, load_shared_u32, load_shared_u32x4, store_shared_f32,
    store_shared_u32,
};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle_u64};

/// Numbers from one dim of a slice to the next: four more than points, so that threads that write
/// several dims of a point meet in few banks.
const TILE_PITCH: u32 = WIDE_TILE + 4;

/// Lanes that have the same own points.
const LANES: u32 = 16;

/// Threads that have different own points.
const GROUPS: u32 = THREADS as u32 / LANES;

const _: () = assert!(WIDE_TILE as usize == THREADS && WIDE_OWN == 8 * GROUPS);

/// Distances of a thread's own points to its points of a tile.
pub type Sums<const N: usize> = [[f32; 8]; N];

/// A CTA's tile beside its own points, of which a thread has `N`: four or eight.
///
/// In shared memory lie slices of own points and of the tile, and a word for each point of it.
pub struct Tile<'a, const N: usize> {
    pub clouds: &'a Clouds,
    /// The other cloud, and the first point of the tile.
    pub other: &'a Cloud,
    pub first: u32,
}

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
            let tile = Tile::<8> { clouds: &params.clouds, other: &other, first: first_other + at };
            let sums = tile.sums::<L1>(|k| {
                fill::<8>(&params.clouds, &own, first, k, (dynamic_shared(), Tile::<8>::OWN_PITCH));
            });
            tile.nearer(&mut best, &sums);
            at += WIDE_TILE;
        }
        share_best(&mut best);
        unroll!(I in 0..8 => {
            let point = first + own_place::<8>(I);
            if is_writer(I) && own.is_valid(point) {
                let place = u64::from(own.place) + u64::from(point);
                max_u64_if(params.keys + place * 8, best[I], u32::from(best[I] != NO_KEY));
            }
        });
    }
}

/// The place of this thread's `i`-th own point of `N` among those of the CTA.
#[inline(always)]
pub fn own_place<const N: usize>(i: usize) -> u32 {
    place(thread_idx_x() / LANES, i, N as u32 * GROUPS)
}

/// Whether this thread writes what its lanes have found of their `i`-th own point.
#[inline(always)]
pub fn is_writer(i: usize) -> bool {
    thread_idx_x() % LANES == i as u32
}

/// Gives all lanes with the same own points the largest keys.
///
/// # Safety
/// All lanes together.
#[inline(always)]
pub unsafe fn share_best<const N: usize>(best: &mut [u64; N]) {
    unroll!(I in 0..8 => { if I < N {
        let mut distance = LANES / 2;
        while distance > 0 {
            // SAFETY: the caller's promise.
            let theirs = unsafe { shuffle_u64(best[I], lane_idx() ^ distance) };
            best[I] = if theirs > best[I] { theirs } else { best[I] };
            distance /= 2;
        }
    }});
}

/// The place of a thread's `i`-th point among `len` ones: four lie together, of eight in either
/// half, so that neighbouring threads load neighbouring 16 bytes.
#[inline(always)]
const fn place(thread: u32, i: usize, len: u32) -> u32 {
    4 * thread + (i as u32 % 4) + (i as u32 / 4) * (len / 2)
}

impl<const N: usize> Tile<'_, N> {
    /// Numbers from one dim of a slice of own points to the next.
    pub const OWN_PITCH: u32 = N as u32 * GROUPS + 4;

    /// Offsets in shared memory of the tile, and of a word for each point of it.
    const TILE_OFFSET: u32 = WIDE_SLICE * Self::OWN_PITCH * 4;
    const VALID_OFFSET: u32 = Self::TILE_OFFSET + WIDE_SLICE * TILE_PITCH * 4;
    const _END: () = assert!(
        wide_shared_bytes(N as u32 * GROUPS) == (Self::VALID_OFFSET + WIDE_TILE * 4) as usize
    );

    /// Distances of own points to those of the tile, whose words say which of them are there.
    /// `fill_own` writes the slice of own points from a dim on.
    ///
    /// # Safety
    /// The clouds must be as their parameters say; all threads, which have that much shared memory.
    #[inline(always)]
    pub unsafe fn sums<const L1: bool>(&self, fill_own: impl Fn(u32)) -> Sums<N> {
        let () = Self::_END;
        let shared = dynamic_shared();
        let mut sums = [[0.0; 8]; N];
        let dim = self.clouds.dim;
        // SAFETY: the slices and words have their places; threads come to barriers together.
        unsafe {
            let mut k = 0;
            while k < dim {
                // Everyone has read what lies there.
                sync_threads();
                if k == 0 {
                    let is_valid = u32::from(self.other.is_valid(self.first + thread_idx_x()));
                    store_shared_u32(shared + Self::VALID_OFFSET + 4 * thread_idx_x(), is_valid);
                }
                fill_own(k);
                let to = (shared + Self::TILE_OFFSET, TILE_PITCH);
                fill::<16>(self.clouds, self.other, self.first, k, to);
                sync_threads();
                let own_at = shared + 16 * (thread_idx_x() / LANES);
                let tile_at = shared + Self::TILE_OFFSET + 16 * (thread_idx_x() % LANES);
                let mut of_slice = 0;
                while of_slice < WIDE_SLICE {
                    let own_at = own_at + of_slice * Self::OWN_PITCH * 4;
                    let a = match N {
                        4 => four(own_at),
                        _ => eight(own_at, GROUPS * 16),
                    };
                    let b = eight(tile_at + of_slice * TILE_PITCH * 4, WIDE_TILE * 2);
                    unroll!(I in 0..8 => { if I < N {
                        unroll!(J in 0..8 => { sums[I][J] = add::<L1>(sums[I][J], b[J] - a[I]); });
                    }});
                    of_slice += 1;
                }
                k += WIDE_SLICE;
            }
        }
        sums
    }

    /// Takes the keys of the tile's points where they are larger.
    ///
    /// # Safety
    /// The tile's words must be written.
    #[inline(always)]
    pub unsafe fn nearer(&self, best: &mut [u64; N], sums: &Sums<N>) {
        let thread = thread_idx_x() % LANES;
        let words = dynamic_shared() + Self::VALID_OFFSET + 16 * thread;
        // SAFETY: the caller's promise.
        let (a, b) =
            unsafe { (load_shared_u32x4(words), load_shared_u32x4(words + WIDE_TILE * 2)) };
        let is_valid = [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]];
        unroll!(I in 0..8 => { if I < N {
            unroll!(J in 0..8 => {
                let own = key(sums[I][J], self.first + place(thread, J, WIDE_TILE));
                best[I] = if (is_valid[J] != 0) & (own > best[I]) { own } else { best[I] };
            });
        }});
    }
}

/// Four numbers, and zeros.
///
/// # Safety
/// They must be in shared memory, aligned to 16 bytes.
#[inline(always)]
unsafe fn four(address: u32) -> [f32; 8] {
    // SAFETY: the caller's promise.
    let [a, b, c, d] = unsafe { load_shared_f32x4(address) };
    [a, b, c, d, 0.0, 0.0, 0.0, 0.0]
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
    clouds: &Clouds,
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
            let is_there = (first + I as u32 * per_load < cloud.len) & (k < clouds.dim);
            values[I] = element_if(clouds, row, k, is_there);
            row += step;
        }});
        unroll!(I in 0..16 => { if I < N {
            let at = point + I as u32 * per_load;
            store_shared_f32(address + 4 * (of_slice * pitch + at), values[I]);
        }});
    }
}

/// Writes a slice of 32 points whose indices lie in shared memory, as [`fill`] does those of
/// consecutive ones: zeros for an index that is not below the cloud's length.
///
/// # Safety
/// As [`fill`]; the indices must be written.
#[inline(always)]
pub unsafe fn fill_listed(clouds: &Clouds, cloud: &Cloud, list: u32, k: u32) {
    let of_slice = thread_idx_x() % WIDE_SLICE;
    let (point, k) = (thread_idx_x() / WIDE_SLICE, k + of_slice);
    let mut values = [0.0; 4];
    let per_load = THREADS as u32 / WIDE_SLICE;
    // SAFETY: coordinates are loaded where there are some; the caller's promise.
    unsafe {
        unroll!(I in 0..4 => {
            let index = load_shared_u32(list + 4 * (point + I as u32 * per_load));
            let is_there = (index < cloud.len) & (k < clouds.dim);
            values[I] = element_if(clouds, cloud.row(index), k, is_there);
        });
        unroll!(I in 0..4 => {
            let at = of_slice * Tile::<4>::OWN_PITCH + point + I as u32 * per_load;
            store_shared_f32(dynamic_shared() + 4 * at, values[I]);
        });
    }
}
