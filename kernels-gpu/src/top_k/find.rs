//! What the threads of a block find together.

use super::{BINS, FOUND_OFFSET, KEYS_OFFSET, NO_KEY, THREADS, is_empty, is_nan, is_number};
use crate::abi::params::top_k::{SLOT_BYTES, WARPS};
use crate::primitives::unroll::unroll;
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x4, store_shared_u32, store_shared_u32x4,
};
use crate::ptx::thread::{sync_threads, thread_idx_x};
use crate::ptx::warp::{add_lanes, lane_idx, max_lanes, shuffle_up_or_zero};

/// Numbers of keys of each kind, and the range of keys.
#[derive(Clone, Copy)]
pub struct Survey {
    pub n_numbers: u32,
    pub n_nan: u32,
    pub n_empty: u32,
    /// Those of NaN and of empty entries that are counted for the caller.
    pub counted: [u32; 2],
    /// The largest key.
    pub most: u64,
    /// The smallest key of a number; all ones where there is none.
    pub least: u64,
}

impl Survey {
    /// That of no key.
    pub const NONE: Survey = Survey {
        n_numbers: 0,
        n_nan: 0,
        n_empty: 0,
        counted: [0; 2],
        most: NO_KEY,
        least: u64::MAX,
    };

    /// Takes a key into account.
    #[inline(always)]
    pub fn add(&mut self, key: u64) {
        self.n_numbers += is_number(key) as u32;
        self.n_nan += is_nan(key) as u32;
        self.n_empty += is_empty(key) as u32;
        self.most = self.most.max(key);
        self.least = self.least.min(if is_number(key) { key } else { u64::MAX });
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
                n_numbers: add_lanes(self.n_numbers),
                n_nan: add_lanes(self.n_nan),
                n_empty: add_lanes(self.n_empty),
                counted: [add_lanes(self.counted[0]), add_lanes(self.counted[1])],
                most: most_of_warp(self.most),
                least: !most_of_warp(!self.least),
            }
        }
    }

    /// That of the whole block.
    ///
    /// # Safety
    /// All threads of the block must call it together.
    #[inline(always)]
    pub unsafe fn of_block(self) -> Survey {
        let (thread, slots) = (thread_idx_x(), dynamic_shared());
        let lane = lane_idx();
        // SAFETY: each warp has a slot; whole warps come here.
        unsafe {
            let own = self.of_warp();
            if lane == 0 {
                own.store(slots + thread / 32 * SLOT_BYTES);
            }
            sync_threads();
            // Lanes beyond the last warp look at that of the first 16 again, and count none.
            let mut all = Survey::load(slots + lane % WARPS * SLOT_BYTES);
            if lane >= WARPS {
                all = Survey { n_numbers: 0, n_nan: 0, n_empty: 0, counted: [0; 2], ..all };
            }
            all.of_warp()
        }
    }

    /// # Safety
    /// The address must have room for it in shared memory, aligned to 16.
    #[inline(always)]
    unsafe fn store(&self, address: u32) {
        let words = |key: u64| [key as u32, (key >> 32) as u32];
        let ([a, b], [c, d]) = (words(self.most), words(self.least));
        let [n_nan, n_empty] = self.counted;
        // SAFETY: the caller's promise.
        unsafe {
            store_shared_u32x4(address, [self.n_numbers, self.n_nan, self.n_empty, 0]);
            store_shared_u32x4(address + 16, [a, b, c, d]);
            store_shared_u32x4(address + 32, [n_nan, n_empty, 0, 0]);
        }
    }

    /// # Safety
    /// There must be one at the address.
    #[inline(always)]
    unsafe fn load(address: u32) -> Survey {
        let key = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        // SAFETY: the caller's promise.
        unsafe {
            let [n_numbers, n_nan, n_empty, _] = load_shared_u32x4(address);
            let [a, b, c, d] = load_shared_u32x4(address + 16);
            let [nan, empty, _, _] = load_shared_u32x4(address + 32);
            let (counted, most, least) = ([nan, empty], key(a, b), key(c, d));
            Survey { n_numbers, n_nan, n_empty, counted, most, least }
        }
    }
}

/// The largest key of a warp.
///
/// # Safety
/// All 32 lanes must execute it together.
#[inline(always)]
unsafe fn most_of_warp(key: u64) -> u64 {
    let (low, high) = (key as u32, (key >> 32) as u32);
    // SAFETY: the caller's promise.
    unsafe {
        let most = max_lanes(high);
        let low = max_lanes(if high == most { low } else { 0 });
        u64::from(low) | u64::from(most) << 32
    }
}

/// Bins of a thread.
const OWN_BINS: u32 = BINS / THREADS as u32;

/// The bin of the histogram that has the key of place `wanted`, counted from 1 and from the largest
/// key on; and how many keys are above the bin, and in it.
///
/// # Safety
/// All threads of the block must call it together, with the histogram of at least `wanted` keys.
#[inline(always)]
pub unsafe fn bin(wanted: u32) -> (u32, u32, u32) {
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
        let mut up_to = sum;
        up_to += shuffle_up_or_zero(up_to, 1);
        up_to += shuffle_up_or_zero(up_to, 2);
        up_to += shuffle_up_or_zero(up_to, 4);
        up_to += shuffle_up_or_zero(up_to, 8);
        up_to += shuffle_up_or_zero(up_to, 16);
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
        (bin, before, inside)
    }
}

const _: () = assert!(OWN_BINS == 4);
