//! What the threads of a block find together.

use super::{BINS, FOUND_OFFSET, KEYS_OFFSET, NO_WORD, THREADS};
use crate::abi::params::top_k::{SLOT_BYTES, WARPS, is_empty, is_nan, word};
use crate::primitives::unroll::unroll;
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x4, store_shared_u32, store_shared_u32x4,
};
use crate::ptx::thread::{sync_threads, thread_idx_x};
use crate::ptx::warp::{add_lanes, lane_idx, max_lanes, sum_up_to_lane};

/// Numbers of entries of each kind, and what threads have as their largest words.
#[derive(Clone, Copy)]
pub struct Survey {
    /// Entries of any kind.
    pub n_all: u32,
    pub n_nan: u32,
    pub n_empty: u32,
    /// Those of NaN and of empty entries that are of the chunk.
    pub counted: [u32; 2],
    /// The largest word.
    pub most: u32,
    /// Threads that have an entry.
    pub n_threads: u32,
    /// The smallest of their largest words.
    pub least_most: u32,
    /// Groups of entries, those that a thread takes at a time, that have one.
    pub n_groups: u32,
    /// The smallest of their largest words.
    pub least_of_groups: u32,
}

impl Survey {
    /// That of no entry.
    pub const NONE: Survey = Survey {
        n_all: 0,
        n_nan: 0,
        n_empty: 0,
        counted: [0; 2],
        most: NO_WORD,
        n_threads: 0,
        least_most: u32::MAX,
        n_groups: 0,
        least_of_groups: u32::MAX,
    };

    /// Takes an entry of this thread into account, of the chunk or beside it.
    #[inline(always)]
    pub fn add(&mut self, word: u32, is_own: bool) {
        self.n_all += (word != NO_WORD) as u32;
        let counts = [is_nan(word) as u32, is_empty(word) as u32];
        self.n_nan += counts[0];
        self.n_empty += counts[1];
        self.counted[0] += if is_own { counts[0] } else { 0 };
        self.counted[1] += if is_own { counts[1] } else { 0 };
    }

    /// Takes eight scores of the chunk into account.
    #[inline(always)]
    pub fn add_eight(&mut self, scores: [f32; 8]) {
        self.n_all += 8;
        let mut n_nan = 0;
        unroll!(K in 0..8 => { n_nan += scores[K].is_nan() as u32; });
        self.n_nan += n_nan;
        self.counted[0] += n_nan;
        self.add_group(word(largest(scores), false));
    }

    /// Takes the largest word of a group of entries of this thread into account.
    #[inline(always)]
    pub fn add_group(&mut self, most: u32) {
        self.most = self.most.max(most);
        self.n_groups += (most != NO_WORD) as u32;
        let least = if most == NO_WORD { u32::MAX } else { most };
        self.least_of_groups = self.least_of_groups.min(least);
    }

    /// That of the whole warp.
    ///
    /// # Safety
    /// All 32 lanes must execute it together.
    #[inline(always)]
    unsafe fn of_warp(self) -> Survey {
        // SAFETY: the caller's promise.
        unsafe {
            Survey {
                n_all: add_lanes(self.n_all),
                n_nan: add_lanes(self.n_nan),
                n_empty: add_lanes(self.n_empty),
                counted: [add_lanes(self.counted[0]), add_lanes(self.counted[1])],
                most: max_lanes(self.most),
                n_threads: add_lanes(self.n_threads),
                least_most: !max_lanes(!self.least_most),
                n_groups: add_lanes(self.n_groups),
                least_of_groups: !max_lanes(!self.least_of_groups),
            }
        }
    }

    /// That of the whole block, of those of its threads.
    ///
    /// # Safety
    /// All threads of the block must call it together.
    #[inline(always)]
    pub unsafe fn of_block(mut self) -> Survey {
        let (thread, slots) = (thread_idx_x(), dynamic_shared());
        let lane = lane_idx();
        if self.most != NO_WORD {
            self.n_threads = 1;
            self.least_most = self.most;
        }
        // SAFETY: each warp has a slot; whole warps come here.
        unsafe {
            let own = self.of_warp();
            if lane == 0 {
                own.store(slots + thread / 32 * SLOT_BYTES);
            }
            sync_threads();
            // Lanes beyond the last warp look at that of the first 16 again, and count none.
            let all = Survey::load(slots + lane % WARPS * SLOT_BYTES);
            let Survey { most, least_most, least_of_groups, .. } = all;
            let none = Survey { most, least_most, least_of_groups, ..Survey::NONE };
            (if lane < WARPS { all } else { none }).of_warp()
        }
    }

    /// # Safety
    /// The address must have room for it in shared memory, aligned to 16.
    #[inline(always)]
    unsafe fn store(&self, address: u32) {
        let [nan, empty] = self.counted;
        // SAFETY: the caller's promise.
        unsafe {
            store_shared_u32x4(address, [self.n_all, self.n_nan, self.n_empty, nan]);
            store_shared_u32x4(address + 16, [empty, self.most, self.n_threads, self.least_most]);
            store_shared_u32x4(address + 32, [self.n_groups, self.least_of_groups, 0, 0]);
        }
    }

    /// # Safety
    /// There must be one at the address.
    #[inline(always)]
    unsafe fn load(address: u32) -> Survey {
        // SAFETY: the caller's promise.
        unsafe {
            let [n_all, n_nan, n_empty, nan] = load_shared_u32x4(address);
            let [empty, most, n_threads, least_most] = load_shared_u32x4(address + 16);
            let [n_groups, least_of_groups, _, _] = load_shared_u32x4(address + 32);
            Survey {
                n_all,
                n_nan,
                n_empty,
                counted: [nan, empty],
                most,
                n_threads,
                least_most,
                n_groups,
                least_of_groups,
            }
        }
    }
}

/// The largest of eight scores; NaN where no one is a number.
#[inline(always)]
pub fn largest(scores: [f32; 8]) -> f32 {
    let mut most = scores[0];
    unroll!(K in 0..8 => { most = most.max(scores[K]); });
    most
}

/// Bins of a thread.
const OWN_BINS: u32 = BINS / THREADS as u32;

/// The bin of the histogram that has the word of place `wanted`, counted from 1 and from the
/// largest word on; and how many words are above the bin, and in it.
///
/// # Safety
/// All threads of the block must call it together, with the histogram of at least `wanted` words.
#[inline(always)]
pub unsafe fn bin(wanted: u32) -> [u32; 3] {
    let (thread, lane) = (thread_idx_x(), lane_idx());
    let shared = dynamic_shared();
    let (sums, found) = (shared, shared + FOUND_OFFSET);
    // The first thread has the uppermost bins.
    let last = BINS - 1 - thread * OWN_BINS;
    // SAFETY: the block has the bins, a word per warp, and four words for what is found.
    unsafe {
        let address = shared + KEYS_OFFSET + (last + 1 - OWN_BINS) * 4;
        let own = load_shared_u32x4(address);
        let sum = own[0] + own[1] + own[2] + own[3];
        let mut up_to = sum_up_to_lane(sum);
        if lane == 31 {
            store_shared_u32(sums + thread / 32 * 4, up_to);
        }
        sync_threads();
        let other = load_shared_u32(sums + lane % WARPS * 4);
        let is_before = lane < thread / 32;
        up_to += add_lanes(if is_before { other } else { 0 });
        let mut before = up_to - sum;
        if before < wanted && wanted <= up_to {
            let (mut bin, mut inside) = (last, own[3]);
            // An index that is not known would have the array in memory.
            unroll!(K in 0..4 => {
                if K < 3 && bin + K as u32 == last && before + inside < wanted {
                    before += inside;
                    bin -= 1;
                    inside = own[if K < 3 { 2 - K } else { 0 }];
                }
            });
            store_shared_u32x4(found, [bin, before, inside, 0]);
        }
        sync_threads();
        let [bin, before, inside, _] = load_shared_u32x4(found);
        [bin, before, inside]
    }
}

const _: () = assert!(OWN_BINS == 4);
