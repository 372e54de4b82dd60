//! Makes distances, neighbours and the values of pairs of the keys that were found: a CTA of 512
//! per pair.
//!
//! A thread has every 512th point of a cloud, eight keys in flight. Sums are in f64, in the order
//! of threads, lanes and warps, whatever else runs.

use super::points::cloud_pair;
use crate::abi::params::chamfer::{
    CloudStats, NO_KEY, REDUCE_SLOT_BYTES, REDUCE_THREADS, ReduceParams, neighbour, reduction,
};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_written_u64, store_u32, store_u32x2, store_u32x4};
use crate::ptx::shared::{dynamic_shared, load_shared_u32x4, store_shared_u32x4};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle, shuffle_u64};

/// Keys that a thread loads together: those of one `unroll!`.
const LOADS: usize = 8;

/// Sum and extremes of some points.
#[derive(Clone, Copy)]
struct Found {
    sum: f64,
    /// The [`farthest_key`] of the farthest point.
    farthest: u64,
    n: u32,
    /// Bits of the largest finite distance.
    most_finite: u32,
}

impl Found {
    const NONE: Found = Found { sum: 0.0, farthest: 0, n: 0, most_finite: 0 };

    #[inline(always)]
    fn add(&mut self, distance: f32, point: u32) {
        self.sum += f64::from(distance);
        self.n += 1;
        let own = farthest_key(distance, point);
        self.farthest = if own > self.farthest { own } else { self.farthest };
        let bits = if distance < f32::INFINITY { distance.to_bits() } else { 0 };
        self.most_finite = if bits > self.most_finite { bits } else { self.most_finite };
    }

    #[inline(always)]
    fn and(self, other: Found) -> Found {
        Found {
            sum: self.sum + other.sum,
            farthest: if other.farthest > self.farthest { other.farthest } else { self.farthest },
            n: self.n + other.n,
            most_finite: if other.most_finite > self.most_finite {
                other.most_finite
            } else {
                self.most_finite
            },
        }
    }

    /// The results of the lanes of a warp together.
    ///
    /// # Safety
    /// All lanes together.
    #[inline(always)]
    unsafe fn of_warp(mut self) -> Found {
        let mut distance = 16;
        while distance > 0 {
            let lane = lane_idx() ^ distance;
            // SAFETY: the caller's promise.
            let other = unsafe {
                Found {
                    sum: f64::from_bits(shuffle_u64(self.sum.to_bits(), lane)),
                    farthest: shuffle_u64(self.farthest, lane),
                    n: shuffle(self.n, lane),
                    most_finite: shuffle(self.most_finite, lane),
                }
            };
            self = self.and(other);
            distance /= 2;
        }
        self
    }

    #[inline(always)]
    fn words(&self) -> [[u32; 4]; 2] {
        let (sum, farthest) = (self.sum.to_bits(), self.farthest);
        [
            [sum as u32, (sum >> 32) as u32, farthest as u32, (farthest >> 32) as u32],
            [self.n, self.most_finite, 0, 0],
        ]
    }

    #[inline(always)]
    fn of_words([[a, b, c, d], [n, most_finite, ..]]: [[u32; 4]; 2]) -> Found {
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Found { sum: f64::from_bits(join(a, b)), farthest: join(c, d), n, most_finite }
    }
}

/// A number that is larger for a farther point, and of equally far ones for the first.
#[inline(always)]
fn farthest_key(distance: f32, point: u32) -> u64 {
    let word = if distance.is_nan() { u32::MAX } else { distance.to_bits() + 1 };
    u64::from(word) << 32 | u64::from(!point)
}

/// Reduces this CTA's pair.
///
/// # Safety
/// `params` must describe memory as [`ReduceParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn reduce(params: &ReduceParams) {
    // SAFETY: the caller's promise; all threads take every step together.
    unsafe {
        let pair = cloud_pair(params.pairs, block_idx_x());
        let x = side(params, 0, pair.places[0], pair.lens[0], 1);
        let has_neighbours = 1 - params.single_direction;
        let y = side(params, 1, pair.places[1], pair.lens[1], has_neighbours);
        if thread_idx_x() == 0 {
            let value = (x + y) * f64::from(pair.weight);
            let address = params.values + u64::from(block_idx_x()) * 4;
            store_u32(address, (value as f32).to_bits());
        }
    }
}

/// Reduces a cloud; its value, in thread 0.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn side(params: &ReduceParams, side: u32, place: u32, len: u32, is_wanted: u32) -> f64 {
    let (mut found, place) = (Found::NONE, u64::from(place));
    let mut point = thread_idx_x();
    // SAFETY: there are keys, distances and indices by place.
    unsafe {
        while point < len {
            let mut keys = [NO_KEY; LOADS];
            // All loads before what is loaded is looked at.
            unroll!(I in 0..8 => {
                let own = point + (I * REDUCE_THREADS) as u32;
                if (own < len) & (is_wanted != 0) {
                    keys[I] = load_written_u64(params.keys + (place + u64::from(own)) * 8);
                }
            });
            unroll!(I in 0..8 => {
                let own = point + (I * REDUCE_THREADS) as u32;
                if own < len {
                    store_point(params, place + u64::from(own), keys[I]);
                    if keys[I] != NO_KEY {
                        found.add(neighbour(keys[I]).0, own);
                    }
                }
            });
            point += (LOADS * REDUCE_THREADS) as u32;
        }
        let found = of_cta(found.of_warp());
        if thread_idx_x() == 0 { store(params, side, &found) } else { 0.0 }
    }
}

/// Writes a point's distance and neighbour, and clears its key.
///
/// # Safety
/// As [`reduce`]; there must be the place.
#[inline(always)]
unsafe fn store_point(params: &ReduceParams, place: u64, key: u64) {
    // SAFETY: there are keys, distances and indices by place.
    unsafe {
        let (distance, index) = if key == NO_KEY { (0.0, u32::MAX) } else { neighbour(key) };
        if key != NO_KEY {
            store_u32x2(params.keys + place * 8, [0; 2]);
        }
        store_u32(params.distances + place * 4, distance.to_bits());
        store_u32(params.indices + place * 4, index);
    }
}

/// The results of the warps together, in thread 0.
///
/// # Safety
/// All threads together.
#[inline(always)]
unsafe fn of_cta(own: Found) -> Found {
    let slots = dynamic_shared();
    let mut found = Found::NONE;
    // SAFETY: a slot for each warp.
    unsafe {
        // What was found before has been read.
        sync_threads();
        if lane_idx() == 0 {
            let slot = slots + thread_idx_x() / 32 * REDUCE_SLOT_BYTES;
            let [a, b] = own.words();
            store_shared_u32x4(slot, a);
            store_shared_u32x4(slot + 16, b);
        }
        sync_threads();
        if thread_idx_x() < 32 {
            if thread_idx_x() < REDUCE_THREADS as u32 / 32 {
                let slot = slots + thread_idx_x() * REDUCE_SLOT_BYTES;
                let words = [load_shared_u32x4(slot), load_shared_u32x4(slot + 16)];
                found = Found::of_words(words);
            }
            found = found.of_warp();
        }
    }
    found
}

/// Stores the result of a cloud; its value.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn store(params: &ReduceParams, side: u32, found: &Found) -> f64 {
    let most = match (found.farthest >> 32) as u32 {
        0 => 0.0,
        u32::MAX => f32::NAN,
        word => f32::from_bits(word - 1),
    };
    let sum = found.sum.to_bits();
    let index = u64::from(2 * block_idx_x() + side);
    let address = params.stats + index * size_of::<CloudStats>() as u64;
    // SAFETY: two for each pair.
    unsafe {
        let farthest = !(found.farthest as u32);
        store_u32x4(address, [sum as u32, (sum >> 32) as u32, found.n, farthest]);
        store_u32x4(address + 16, [most.to_bits(), found.most_finite, 0, 0]);
    }
    match params.reduction {
        reduction::MEAN if found.n > 0 => found.sum / f64::from(found.n),
        reduction::SUM => found.sum,
        reduction::MAX => most.into(),
        _ => 0.0,
    }
}
