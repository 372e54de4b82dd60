//! Sorts the points of both clouds of a pair along a Morton curve, and finds their boxes.
//!
//! ```text
//! bounds    the box of all points, and the first ones with NaN and infinities
//! codes     the place of each point on the curve; counts lowest digits of each chunk of codes
//! sort      moves the codes of a chunk to where they belong by a digit, behind each other as they
//!           are, and counts next digits where they go: four passes
//! boxes     gathers each 1024 points, sorts them along a finer curve in their box, and each 32 of
//!           these by index, and finds their boxes
//! ```
//!
//! Loss: each CTA of a pass adds up the counts of all chunks, which saves a launch.

use super::points::{Cloud, cloud_pair, is_odd};
use crate::abi::params::chamfer_search::{
    BINS, BOX_BYTES, BOXES_BOXES, BOXES_POINTS, CELLS, ENTRY_BYTES, GROUP_CELLS, GROUP_LEN,
    N_PASSES, NO_POINT, NONE_BIT, POINT_BYTES, SIDE_BIT, SearchParams, THREADS, TILE_LEN, cell,
    float, half_width, known, ordered, spread,
};
use crate::primitives::unroll::unroll;
use crate::ptx::atomic::{count_shared_if, fetch_add_if, max_u32_if};
use crate::ptx::global::{load_u32, load_u32x2, store_u32, store_u32x2, store_u32x4};
use crate::ptx::shared::{
    dynamic_shared, load_shared_u32, load_shared_u32x4, store_shared_u32, store_shared_u32_if,
    store_shared_u32x4,
};
use crate::ptx::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{ballot, lane_idx, max_lanes, shuffle, shuffle_up_or_zero, sync_warp};

/// Warps of a CTA that sorts.
const N_WARPS: u32 = THREADS as u32 / 32;

/// The cloud of a side of the launch's pair.
///
/// # Safety
/// There must be the pair.
#[inline(always)]
pub unsafe fn cloud_of(params: &SearchParams, side: u32) -> Cloud {
    // SAFETY: the caller's promise.
    let pair = unsafe { cloud_pair(params.clouds.pairs, params.pair) };
    Cloud::of(&params.clouds, &pair, side)
}

/// Finds the box of all points.
///
/// # Safety
/// `params` must describe memory as [`SearchParams`] says, here and below.
#[inline(always)]
pub unsafe fn bounds(params: &SearchParams) {
    let mut most = [0u32; 6];
    let stride = grid_dim_x() * THREADS as u32;
    // SAFETY: the caller's promise; whole warps.
    unsafe {
        unroll!(SIDE in 0..2 => {
            let cloud = cloud_of(params, SIDE as u32);
            let mut first = [0u32; known::PER_SIDE];
            let mut i = block_idx_x() * THREADS as u32 + thread_idx_x();
            while i < cloud.len {
                let (mut points, mut is_valid) = ([[0.0; 4]; 4], [false; 4]);
                // All loads before what is loaded is looked at.
                unroll!(J in 0..4 => {
                    let at = i + J as u32 * stride;
                    is_valid[J] = cloud.is_valid(at);
                    points[J] = cloud.point::<4>(&params.clouds, at, is_valid[J]);
                });
                unroll!(J in 0..4 => { if is_valid[J] {
                    add(&mut most, &mut first, &points[J], !(i + J as u32 * stride));
                }});
                i += 4 * stride;
            }
            let words = known::SIDES + SIDE * known::PER_SIDE;
            unroll!(K in 0..8 => { raise_known(params, words + K, first[K]); });
        });
        unroll!(K in 0..6 => { raise_known(params, known::BOX + K, most[K]); });
    }
}

/// Adds a point to a box of ordered coordinates, or to the first ones, by its number.
#[inline(always)]
fn add(most: &mut [u32; 6], first: &mut [u32; known::PER_SIDE], point: &[f32; 4], number: u32) {
    raise(&mut first[known::VALID], number);
    if !is_odd(point) {
        unroll!(K in 0..3 => { extend(most, K, point[K]); });
        return;
    }
    unroll!(K in 0..3 => {
        if point[K].is_nan() {
            raise(&mut first[known::NAN], number);
        }
        if point[K] == f32::INFINITY {
            raise(&mut first[known::INFINITE + K], number);
        }
        if point[K] == f32::NEG_INFINITY {
            raise(&mut first[known::INFINITE + 3 + K], number);
        }
    });
}

#[inline(always)]
fn raise(most: &mut u32, value: u32) {
    *most = if value > *most { value } else { *most };
}

/// Adds a coordinate to a box.
#[inline(always)]
fn extend(most: &mut [u32; 6], k: usize, x: f32) {
    raise(&mut most[k], ordered(x));
    raise(&mut most[k + 3], ordered(-x));
}

/// Replaces a word of what is known by the largest of a warp's, where that is larger.
///
/// # Safety
/// All lanes together; there must be the word.
#[inline(always)]
unsafe fn raise_known(params: &SearchParams, word: usize, own: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let all = max_lanes(own);
        let is_first = u32::from((lane_idx() == 0) & (all != 0));
        max_u32_if(params.known + 4 * word as u64, all, is_first);
    }
}

/// Finds the codes of this CTA's chunk, and counts their lowest digits.
///
/// # Safety
/// As [`bounds`]; all threads of the CTA.
#[inline(always)]
pub unsafe fn codes(params: &SearchParams) {
    let (bins, thread) = (dynamic_shared(), thread_idx_x());
    let end = params.padded[0] + params.padded[1];
    // SAFETY: a word for each digit; there are entries by place.
    unsafe {
        store_shared_u32(bins + thread * 4, 0);
        sync_threads();
        let pair = cloud_pair(params.clouds.pairs, params.pair);
        let frame = Frame::of_all(params);
        let first = (block_idx_x() << params.chunk_log2) + thread;
        let mut i = 0;
        while i < 1 << params.chunk_log2 {
            let (mut points, mut is_valid) = ([[0.0; 4]; 4], [false; 4]);
            // All loads before what is loaded is looked at.
            unroll!(J in 0..4 => {
                let (side, point) = point_of(params, first + i + (J * THREADS) as u32);
                let cloud = Cloud::of(&params.clouds, &pair, side);
                is_valid[J] = cloud.is_valid(point);
                points[J] = cloud.point::<4>(&params.clouds, point, is_valid[J]);
            });
            unroll!(J in 0..4 => {
                let place = first + i + (J * THREADS) as u32;
                let (side, point) = point_of(params, place);
                let mut code = NONE_BIT;
                if is_valid[J] & !is_odd(&points[J]) {
                    code = frame.code::<CELLS>(&points[J]);
                }
                code |= if side == 0 { 0 } else { SIDE_BIT };
                if place < end {
                    let index = if is_valid[J] { point } else { NO_POINT };
                    let address = params.entries[0] + u64::from(place) * ENTRY_BYTES;
                    store_u32x2(address, [code, index]);
                    count_shared_if(bins + code % BINS * 4, 1);
                }
            });
            i += 4 * THREADS as u32;
        }
        sync_threads();
        let count = load_shared_u32(bins + thread * 4);
        store_u32(counts(params, 0, block_idx_x(), thread), count);
    }
}

/// Side and number of the point whose code is first at a place.
#[inline(always)]
fn point_of(params: &SearchParams, place: u32) -> (u32, u32) {
    let is_second = place >= params.padded[0];
    (u32::from(is_second), if is_second { place - params.padded[0] } else { place })
}

/// A box that is divided into cells.
pub struct Frame {
    low: [f32; 3],
    half_widths: [f32; 3],
}

impl Frame {
    /// That of all points.
    ///
    /// # Safety
    /// As [`codes`].
    #[inline(always)]
    pub unsafe fn of_all(params: &SearchParams) -> Frame {
        let mut frame = Frame { low: [0.0; 3], half_widths: [0.0; 3] };
        unroll!(K in 0..3 => {
            let address = params.known + 4 * (known::BOX + K) as u64;
            // SAFETY: words of each dim.
            let [high, low] = unsafe { [load_u32(address), load_u32(address + 12)] };
            frame.low[K] = -float(low);
            frame.half_widths[K] = half_width(frame.low[K], float(high));
        });
        frame
    }

    /// That of a box of ordered words, with cells as wide in all dims.
    #[inline(always)]
    fn of_box([[a, b, c, _], [d, e, f, _]]: [[u32; 4]; 2]) -> Frame {
        let low = [d, e, f].map(|x| -float(x));
        let [x, y, z] = low;
        let half_widths =
            [half_width(x, float(a)), half_width(y, float(b)), half_width(z, float(c))];
        let [x, y, z] = half_widths;
        Frame { low, half_widths: [x.max(y).max(z); 3] }
    }

    /// The code of a point, with `N` cells in each dim.
    #[inline(always)]
    pub fn code<const N: u32>(&self, point: &[f32; 4]) -> u32 {
        let mut code = 0;
        unroll!(K in 0..3 => {
            code |= spread(cell(point[K], self.low[K], self.half_widths[K], N)) << K;
        });
        code
    }
}

/// Address of the count of a digit in a chunk.
#[inline(always)]
fn counts(params: &SearchParams, pass: u32, chunk: u32, digit: u32) -> u64 {
    params.counts + u64::from((pass * params.n_chunks + chunk) * BINS + digit) * 4
}

/// Moves the codes of this CTA's chunk to where they belong, by the digit of the pass.
///
/// # Safety
/// As [`codes`].
#[inline(always)]
pub unsafe fn sort(params: &SearchParams) {
    let (warp, lane) = (thread_idx_x() / 32, lane_idx());
    let own = dynamic_shared() + warp * BINS * 4;
    let own_len = (1 << params.chunk_log2) / N_WARPS;
    let first = (block_idx_x() << params.chunk_log2) + warp * own_len;
    let end = params.padded[0] + params.padded[1];
    let shift = 8 * params.pass;
    // SAFETY: words of each warp and digit; every code has a place of its own.
    unsafe {
        let mut bin = lane;
        while bin < BINS {
            store_shared_u32(own + bin * 4, 0);
            bin += 32;
        }
        sync_warp();
        let mut i = 0;
        while i < own_len {
            let place = first + i + lane;
            if place < end {
                let code = load_u32(params.entries[0] + u64::from(place) * ENTRY_BYTES);
                count_shared_if(own + (code >> shift) % BINS * 4, 1);
            }
            i += 32;
        }
        first_places(params);
        i = 0;
        while i < own_len {
            let place = first + i + lane;
            let is_there = place < end;
            let mut entry = [0; 2];
            if is_there {
                entry = load_u32x2(params.entries[0] + u64::from(place) * ENTRY_BYTES);
            }
            let digit = (entry[0] >> shift) % BINS;
            let mut same = ballot(u32::from(is_there));
            unroll!(BIT in 0..8 => {
                let is_set = digit >> BIT & 1;
                let set = ballot(is_set);
                same &= if is_set != 0 { set } else { !set };
            });
            let word = own + digit * 4;
            let start = load_shared_u32(word);
            let to = start + (same & ((1 << lane) - 1)).count_ones();
            sync_warp();
            let is_last = is_there && same >> lane == 1;
            store_shared_u32_if(word, start + same.count_ones(), u32::from(is_last));
            sync_warp();
            if is_there {
                store_u32x2(params.entries[1] + u64::from(to) * ENTRY_BYTES, entry);
                let next = params.pass + 1;
                let digit = (entry[0] >> (8 * next % 32)) % BINS;
                let count = counts(params, next % N_PASSES, to >> params.chunk_log2, digit);
                fetch_add_if(count, 1, u32::from(next < N_PASSES));
            }
            i += 32;
        }
    }
}

/// Makes of the warps' counts of a digit, in shared memory, where its codes go: behind all of lower
/// digits, those of chunks before and those of warps before. A thread has a digit.
///
/// # Safety
/// As [`codes`].
#[inline(always)]
unsafe fn first_places(params: &SearchParams) {
    let (thread, lane) = (thread_idx_x(), lane_idx());
    let sums = dynamic_shared() + N_WARPS * BINS * 4;
    // SAFETY: words of each warp and digit, and of each warp; there are counts of all chunks.
    unsafe {
        let (mut all, mut before, mut chunk) = (0, 0, 0);
        while chunk < params.n_chunks {
            let mut found = [0; 8];
            // All loads before what is loaded is looked at.
            unroll!(J in 0..8 => { if chunk + (J as u32) < params.n_chunks {
                found[J] = load_u32(counts(params, params.pass, chunk + J as u32, thread));
            }});
            unroll!(J in 0..8 => {
                all += found[J];
                before += if chunk + (J as u32) < block_idx_x() { found[J] } else { 0 };
            });
            chunk += 8;
        }
        let (mut inclusive, mut delta) = (all, 1);
        while delta < 32 {
            inclusive += shuffle_up_or_zero(inclusive, delta);
            delta *= 2;
        }
        store_shared_u32_if(sums + thread / 32 * 4, inclusive, u32::from(lane == 31));
        sync_threads();
        let (mut next, mut warp) = (inclusive - all + before, 0);
        while warp < thread / 32 {
            next += load_shared_u32(sums + warp * 4);
            warp += 1;
        }
        warp = 0;
        while warp < N_WARPS {
            let word = dynamic_shared() + (warp * BINS + thread) * 4;
            let n = load_shared_u32(word);
            store_shared_u32(word, next);
            next += n;
            warp += 1;
        }
        sync_threads();
    }
}

/// Gathers and sorts the points of this CTA's group, and finds the boxes of its tiles and its own.
///
/// # Safety
/// As [`codes`]; the codes must be sorted.
#[inline(always)]
pub unsafe fn boxes(params: &SearchParams) {
    let (thread, first) = (thread_idx_x(), block_idx_x() * GROUP_LEN);
    let points = dynamic_shared() + BOXES_POINTS;
    // SAFETY: whole groups of a side; there are entries and points by place, and shared memory for
    // a key and a point of each thread and a box of each warp.
    unsafe {
        let (side, _) = point_of(params, first);
        let cloud = cloud_of(params, side);
        let entry = params.entries[0] + u64::from(first + thread) * ENTRY_BYTES;
        let [code, index] = load_u32x2(entry);
        let is_there = index != NO_POINT;
        let point = cloud.point::<4>(&params.clouds, index, is_there);
        let [x, y, z, _] = if is_there { point } else { [f32::INFINITY; 4] };
        let words = [x.to_bits(), y.to_bits(), z.to_bits(), index];
        store_shared_u32x4(points + thread * POINT_BYTES as u32, words);
        let is_inside = code & NONE_BIT == 0;
        let group = box_of_group(box_of_warp(&point, index, is_inside));
        if thread == 0 {
            store_box(params.groups + u64::from(block_idx_x()) * BOX_BYTES, group);
        }
        let mut key = NOT_INSIDE;
        if is_inside {
            key = Frame::of_box(group).code::<GROUP_CELLS>(&point) * GROUP_LEN;
        }
        let key = sorted(key + thread);
        let words = load_shared_u32x4(points + key % GROUP_LEN * POINT_BYTES as u32);
        let [x, y, z, index] = words;
        let place = first + thread / 32 * 32 + rank(index);
        store_u32x4(params.points + u64::from(place) * POINT_BYTES, words);
        let point = [x, y, z, 0].map(f32::from_bits);
        let tile = box_of_warp(&point, index, key < NOT_INSIDE);
        if lane_idx() == 0 {
            store_box(params.tiles + u64::from(place / TILE_LEN) * BOX_BYTES, tile);
        }
    }
}

/// Set in keys of points of a group that are not looked for.
const NOT_INSIDE: u32 = 1 << 31;

/// The key of this thread's place of all threads' keys, which differ: a bitonic sort.
///
/// # Safety
/// All threads of the CTA together; a key of each in shared memory.
#[inline(always)]
unsafe fn sorted(mut key: u32) -> u32 {
    let (thread, keys) = (thread_idx_x(), dynamic_shared());
    let mut len = 2;
    while len <= GROUP_LEN {
        let mut step = len / 2;
        while step > 0 {
            // SAFETY: the caller's promise; lanes differ in the lowest five bits.
            let other = unsafe {
                if step < 32 {
                    shuffle(key, lane_idx() ^ step)
                } else {
                    store_shared_u32(keys + thread * 4, key);
                    sync_threads();
                    let other = load_shared_u32(keys + (thread ^ step) * 4);
                    sync_threads();
                    other
                }
            };
            let is_lower = (thread & step == 0) == (thread & len == 0);
            key = if (other < key) == is_lower { other } else { key };
            step /= 2;
        }
        len *= 2;
    }
    key
}

/// The box of all warps' boxes, in all threads.
///
/// # Safety
/// All threads of the CTA together; a box of each warp in shared memory.
#[inline(always)]
unsafe fn box_of_group(own: [[u32; 4]; 2]) -> [[u32; 4]; 2] {
    let boxes = dynamic_shared() + BOXES_BOXES;
    // SAFETY: the caller's promise; as many warps as lanes.
    unsafe {
        if lane_idx() == 0 {
            let slot = boxes + thread_idx_x() / 32 * BOX_BYTES as u32;
            store_shared_u32x4(slot, own[0]);
            store_shared_u32x4(slot + 16, own[1]);
        }
        sync_threads();
        let slot = boxes + lane_idx() * BOX_BYTES as u32;
        let [[a, b, c, least], [d, e, f, _]] =
            [load_shared_u32x4(slot), load_shared_u32x4(slot + 16)];
        most_of_warp([a, b, c, d, e, f], least)
    }
}

/// How many lanes have a lower index, or none and are before this one.
///
/// # Safety
/// All lanes together.
#[inline(always)]
unsafe fn rank(index: u32) -> u32 {
    let (mut rank, mut lane) = (0, 0);
    while lane < 32 {
        // SAFETY: the caller's promise.
        let other = unsafe { shuffle(index, lane) };
        let is_before = (other < index) | ((other == index) & (lane < lane_idx()));
        rank += u32::from(is_before);
        lane += 1;
    }
    rank
}

/// The box of a warp's points, as ordered words, and their lowest index.
///
/// # Safety
/// All lanes together.
#[inline(always)]
unsafe fn box_of_warp(point: &[f32; 4], index: u32, is_inside: bool) -> [[u32; 4]; 2] {
    let mut most = [0u32; 6];
    unroll!(K in 0..3 => { if is_inside { extend(&mut most, K, point[K]); }});
    // SAFETY: the caller's promise.
    unsafe { most_of_warp(most, if is_inside { index } else { NO_POINT }) }
}

/// The box of a warp's boxes.
///
/// # Safety
/// All lanes together.
#[inline(always)]
unsafe fn most_of_warp(most: [u32; 6], index: u32) -> [[u32; 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut all = [0u32; 6];
        unroll!(K in 0..6 => { all[K] = max_lanes(most[K]); });
        let [a, b, c, d, e, f] = all;
        [[a, b, c, !max_lanes(!index)], [d, e, f, 0]]
    }
}

/// Writes a box as floats: what is least first.
///
/// # Safety
/// The box must be this thread's.
#[inline(always)]
unsafe fn store_box(address: u64, [[a, b, c, least], [d, e, f, _]]: [[u32; 4]; 2]) {
    let low = [d, e, f].map(|x| (-float(x)).to_bits());
    let high = [a, b, c].map(|x| float(x).to_bits());
    // SAFETY: the caller's promise.
    unsafe {
        store_u32x4(address, [low[0], low[1], low[2], least]);
        store_u32x4(address + 16, [high[0], high[1], high[2], 0]);
    }
}
