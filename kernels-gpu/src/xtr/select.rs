//! Selects the k-th largest of each query token's similarities: a CTA of 256 for each.
//!
//! ```text
//! of maxima over documents      a first bound: as many similarities reach it; it begins a call
//! of maxima over some of them   a bound that as many reach as is asked for, most likely
//! of a list that has all        the threshold
//! of a list that was too short  a better bound, which as many similarities reach
//! ```
//!
//! A maximum without a winner is none. Of normalised rows maxima have the query row's scale, and
//! what is collected has not: it is taken out again, rounded down by more than either rounding
//! can have added.
//!
//! Numbers are compared by their keys, digit after digit of 8 bits, the first first: a histogram
//! says which digit the k-th largest has. The keys of the first 4096 are kept in shared memory.

use super::has_winner;
use crate::abi::params::xtr::keys::{bits, key};
use crate::abi::params::xtr::{DIGITS, DONE, KEYS_MAX, SELECT_THREADS, SelectParams};
use crate::ptx::atomic::{count_shared_if, fetch_add_if};
use crate::ptx::global::{load_u32, load_u32x4, read_u32, store_u32};
use crate::ptx::shared::{dynamic_shared, load_shared_u32, store_shared_u32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{lane_idx, shuffle_up_or_zero};

/// Numbers of a query token.
#[derive(Clone, Copy)]
struct Numbers {
    /// Address of all tokens' numbers, and this one's first.
    base: u64,
    first: u64,
    stride: u32,
    n: u32,
    /// Address of the winners of as many bytes, without which a number is none; 0 = all are.
    winners: u64,
    winner_bytes: u32,
}

impl Numbers {
    /// The key of number `i`; 0 of none.
    ///
    /// # Safety
    /// There must be such a number.
    #[inline(always)]
    unsafe fn key(&self, i: u32) -> u32 {
        let at = self.first + u64::from(i) * u64::from(self.stride);
        // SAFETY: the caller's promise.
        unsafe {
            if self.winners != 0 && !has_winner(self.winners, self.winner_bytes, at) {
                return 0;
            }
            key(read_u32(self.base + at * 4))
        }
    }
}

/// Selects for this CTA's query token.
///
/// # Safety
/// `params` must describe memory as [`SelectParams`] says; all threads of the CTA.
#[inline(always)]
pub unsafe fn select(params: &SelectParams) {
    let token = block_idx_x();
    let of_token = u64::from(token) * 4;
    let (collected, leads) = (&params.collected, thread_idx_x() == 0);
    let [count_address, bound_address] = [collected.counts + of_token, collected.bounds + of_token];
    // SAFETY: the token has a count, a bound, a list and a threshold; branches are uniform.
    unsafe {
        if params.maxima != 0 {
            let [low, high, stride, n] = load_u32x4(params.places + u64::from(token) * 16);
            let first = u64::from(low) | u64::from(high) << 32;
            let (winners, winner_bytes) = (params.winners, params.winner_bytes);
            let numbers = Numbers { base: params.maxima, first, stride, n, winners, winner_bytes };
            let bound = match n < params.k {
                true => f32::NEG_INFINITY.to_bits(),
                false => kth_largest(numbers, params.k),
            };
            if leads {
                let bound = without_scale(f32::from_bits(bound), scale(params, token));
                store_u32(bound_address, bound.to_bits());
                store_u32(count_address, 0);
                store_u32(params.thresholds + of_token, f32::NEG_INFINITY.to_bits());
                if token == 0 {
                    store_u32(params.n_open, 0);
                }
            }
            return;
        }
        let count = read_u32(count_address);
        if count == DONE {
            return;
        }
        let is_whole = count <= collected.capacity;
        let n = if is_whole { count } else { collected.capacity };
        let first = u64::from(token) * u64::from(collected.capacity);
        let (base, winners, winner_bytes) = (collected.lists, 0, 0);
        let numbers = Numbers { base, first, stride: 1, n, winners, winner_bytes };
        let bound = f32::from_bits(read_u32(bound_address));
        let mut found = match n < params.k {
            true => f32::NEG_INFINITY,
            false => f32::from_bits(kth_largest(numbers, params.k)),
        };
        let lowest = f32::NEG_INFINITY;
        // With fewer above it, the bound is the threshold: as many similarities reach it, or it is
        // -∞; or it was too high.
        let is_too_high = (found <= bound) & (bound > lowest) & (params.bounds_are_likely != 0);
        if found <= bound {
            found = if is_too_high { lowest } else { bound };
        }
        let is_whole = is_whole & !is_too_high;
        let found = found.to_bits();
        // Every thread has read count and bound.
        sync_threads();
        if leads && is_whole {
            let threshold = f32::from_bits(found) * scale(params, token);
            // A normalised row with an infinity has no similarity that is a number.
            let is_none = found == f32::NEG_INFINITY.to_bits() || threshold.is_nan();
            let threshold = if is_none { f32::NEG_INFINITY } else { threshold };
            store_u32(params.thresholds + of_token, threshold.to_bits());
            store_u32(bound_address, f32::INFINITY.to_bits());
            store_u32(count_address, DONE);
        } else if leads {
            store_u32(bound_address, found);
            store_u32(count_address, 0);
            fetch_add_if(params.n_open, 1, 1);
        }
    }
}

/// The scale of a query token's row; 1 where rows have none.
///
/// # Safety
/// There must be such a token.
#[inline(always)]
unsafe fn scale(params: &SelectParams, token: u32) -> f32 {
    if params.scales == 0 {
        return 1.0;
    }
    // SAFETY: every token has a row, and every row a scale.
    unsafe {
        let row = load_u32(params.rows + u64::from(token) * 4);
        f32::from_bits(load_u32(params.scales + u64::from(row) * 4))
    }
}

/// A number that is below all whose products with a scale are at least `scaled`; -∞ where products
/// may have lost more than their last bits.
#[inline(always)]
fn without_scale(scaled: f32, scale: f32) -> f32 {
    if scale == 1.0 {
        return scaled;
    }
    let number = scaled / scale;
    let is_normal = |x: f32| (x.abs() > 1e-30) & (x.abs() < 1e30);
    match is_normal(scaled) & is_normal(number) {
        true => number - number.abs() * 1e-6,
        false => f32::NEG_INFINITY,
    }
}

/// Bits of the `k`-th largest of numbers, of which there are as many; −∞ where NaN are among them.
///
/// # Safety
/// All threads of the CTA together, with the same numbers, which must be there.
#[inline(always)]
unsafe fn kth_largest(numbers: Numbers, k: u32) -> u32 {
    let (shared, thread) = (dynamic_shared(), thread_idx_x());
    let found = shared + DIGITS as u32 * 4;
    let kept = found + 16;
    let (mut prefix, mut left, mut shift) = (0, k, 32);
    const { assert!(DIGITS == SELECT_THREADS) };
    while shift > 0 {
        shift -= 8;
        // SAFETY: the CTA has these bytes; every thread takes every step.
        unsafe {
            store_shared_u32(shared + thread * 4, 0);
            sync_threads();
            let mut i = thread;
            while i < numbers.n {
                let is_kept = i < KEYS_MAX as u32;
                let key = match is_kept && shift < 24 {
                    true => load_shared_u32(kept + i * 4),
                    false => numbers.key(i),
                };
                if is_kept && shift == 24 {
                    // For this thread alone.
                    store_shared_u32(kept + i * 4, key);
                }
                // (Of the first digit there is nothing before it.)
                let is_candidate = shift == 24 || key >> (shift + 8) == prefix;
                let digit = key >> shift & (DIGITS as u32 - 1);
                count_shared_if(shared + digit * 4, u32::from(is_candidate));
                i += SELECT_THREADS as u32;
            }
            sync_threads();
            if thread < 32 {
                find_digit(shared, found, left);
            }
            sync_threads();
            prefix = prefix << 8 | load_shared_u32(found);
            left = load_shared_u32(found + 4);
        }
    }
    bits(prefix)
}

/// Finds the digit of the number that `left` − 1 others are before, the largest first, and how many
/// of the numbers with that digit are up to it.
///
/// # Safety
/// A whole warp; the histogram must be complete.
#[inline(always)]
unsafe fn find_digit(histogram: u32, found: u32, left: u32) {
    const BINS: u32 = DIGITS as u32 / 32;
    let lane = lane_idx();
    // Lane 0 has the largest digits.
    let first = DIGITS as u32 - 1 - lane * BINS;
    // SAFETY: the histogram has these bins; all lanes are here.
    unsafe {
        let mut own = 0;
        let mut i = 0;
        while i < BINS {
            own += load_shared_u32(histogram + (first - i) * 4);
            i += 1;
        }
        let mut up_to = own;
        let mut delta = 1;
        while delta < 32 {
            up_to += shuffle_up_or_zero(up_to, delta);
            delta *= 2;
        }
        let before = up_to - own;
        if before < left && left <= up_to {
            let mut before = before;
            let mut i = 0;
            while i < BINS {
                let n = load_shared_u32(histogram + (first - i) * 4);
                if left <= before + n {
                    store_shared_u32(found, first - i);
                    store_shared_u32(found + 4, left - before);
                    break;
                }
                before += n;
                i += 1;
            }
        }
    }
}
