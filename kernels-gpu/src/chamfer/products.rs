//! Half the squared distances of all pairs of points of two clouds, by wgmma, and the least of each
//! row and each column of a tile: one pass serves both directions.
//!
//! Tiling: a CTA has 256 rows in shared memory, each of its two consumers 128, while tiles of 128
//! columns stream past. CTAs stay, and share all tiles evenly: the last tile of rows of one may be
//! the first of the next.
//!
//! Pipeline:
//!  1. A producer warp copies tiles of rows, and slabs of columns into a ring.
//!  2. Each consumer multiplies its two fragments of 64 rows with the columns, and takes minima of
//!     the first while the second is multiplied. Two numbers are cut off to a word of two f16, of
//!     which one instruction takes both minima. Those of a row lie in four lanes, those of a column
//!     in eight lanes of each warp.
//!  3. The storing warp takes the minima of columns that the warps of a consumer have left in a
//!     slot, and writes them, so that consumers never wait for each other.
//!
//! Budget: 128 accumulators of 224 registers, 216 KB of shared memory, one CTA a multiprocessor.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::layout::sm90::{DOCUMENT_SLAB_BYTES, FRAGMENT_ROWS, SLAB_STEPS};
use crate::abi::params::chamfer::products::*;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_fence, barrier_init, barrier_wait};
use crate::ptx::convert::cut_f16_from_zero;
use crate::ptx::copy::{copy_tile_once, expect_tile, prefetch_map};
use crate::ptx::element::F16;
use crate::ptx::global::{store_u32_if, store_u32x2};
use crate::ptx::math::min_u16x2;
use crate::ptx::shared::{dynamic_shared, load_shared_u32x2, store_shared_u32};
use crate::ptx::thread::*;
use crate::ptx::warp::{broadcast, shuffle_xor, sync_warp};
use crate::ptx::wgmma;
use crate::ptx::wgmma::Accumulators;
use crate::sm90::compute::{FRAGMENT_BYTES, multiply_steps};
use crate::sm90::kernel::CONSUMER_WARPS;
use crate::sm90::smem::Ring;

/// Registers of a thread of the producer's warpgroup, and of a consumer.
const REGISTERS: [u32; 2] = [56, 224];

/// Accumulators of a fragment that a thread has.
const N: usize = COLUMNS / 2;

/// Words of two columns that a thread has.
const WORDS: usize = COLUMNS / 8;

/// No number is above these two.
const MOST: u32 = u32::MAX;

/// Clocks that the tensor cores take for a consumer's part of a tile.
const TILE_CLOCKS: u32 = (64 * STEPS * FRAGMENTS) as u32;

/// Finds the minima of the CTA's tiles.
///
/// # Safety
/// `params` must describe memory as [`ProductParams`] says, `map` be the generic address of its
/// tensor map; all threads of the block.
#[inline(always)]
pub unsafe fn products(params: &ProductParams, map: u64) {
    const { assert!(FRAGMENTS == 2 && CONSUMERS == 2 && SLABS == 3) };
    let thread = thread_idx_x();
    let shared = Shared { base: dynamic_shared() };
    // SAFETY: branches are uniform per warp, where they change registers per warpgroup; barriers
    // are initialised before others pass the block-wide barrier.
    unsafe {
        let warp = broadcast(thread / 32);
        if warp >= CONSUMER_WARPS {
            wait_threads(THREADS as u32);
            claim_registers::<{ REGISTERS[1] }>();
            let (warp, lane) = (warp - CONSUMER_WARPS, thread % 32);
            let (ring, slots) = (Ring::START, Ring::START);
            return Consumer { params, shared, warp, lane, ring, slots }.consume();
        }
        if warp == 0 {
            if thread == 0 {
                prefetch_map(map);
                shared.init();
            }
            sync_warp();
            arrive_threads(THREADS as u32);
        } else {
            wait_threads(THREADS as u32);
        }
        release_registers::<{ REGISTERS[0] }>();
        match warp {
            0 => load(params, shared, map),
            1 => store(params, shared, thread % 32),
            _ => {}
        }
    }
}

/// The CTA's shared memory.
#[derive(Clone, Copy)]
struct Shared {
    base: u32,
}

impl Shared {
    #[inline(always)]
    fn rows(self, slab: u32) -> u32 {
        self.base + slab * ROWS_SLAB_BYTES as u32
    }

    #[inline(always)]
    fn stage(self, slot: u32) -> u32 {
        self.base + RING_OFFSET as u32 + slot * STAGE_BYTES as u32
    }

    /// Minima of columns by a consumers' warp.
    #[inline(always)]
    fn minima(self, slot: u32, warp: u32) -> u32 {
        let offset = SLOTS_OFFSET as u32 + slot * SLOT_BYTES as u32;
        self.base + offset + warp * WARP_MINIMA_BYTES as u32
    }

    #[inline(always)]
    fn barrier(self, number: u32) -> u32 {
        self.base + BARRIERS_OFFSET as u32 + 8 * number
    }

    /// Completes when a stage holds its slab.
    #[inline(always)]
    fn full(self, slot: u32) -> u32 {
        self.barrier(slot)
    }

    /// Completes when every consumer warp is done with a stage.
    #[inline(always)]
    fn empty(self, slot: u32) -> u32 {
        self.barrier(STAGES as u32 + slot)
    }

    /// Completes when the tile of rows is there.
    #[inline(always)]
    fn rows_full(self) -> u32 {
        self.barrier(2 * STAGES as u32)
    }

    /// Completes when every consumer warp is done with it.
    #[inline(always)]
    fn rows_empty(self) -> u32 {
        self.barrier(2 * STAGES as u32 + 1)
    }

    /// Completes when every consumer warp has left its minima in a slot.
    #[inline(always)]
    fn slot_full(self, slot: u32) -> u32 {
        self.barrier(2 * STAGES as u32 + 2 + slot)
    }

    /// Completes when a slot has been read.
    #[inline(always)]
    fn slot_empty(self, slot: u32) -> u32 {
        self.barrier((2 * STAGES + 2 + SLOTS) as u32 + slot)
    }

    /// # Safety
    /// One thread, before any use of the barriers.
    #[inline(always)]
    unsafe fn init(self) {
        let n_warps = CONSUMER_WARPS * CONSUMERS as u32;
        // SAFETY: the caller's promise.
        unsafe {
            let mut slot = 0;
            while slot < STAGES as u32 {
                barrier_init(self.full(slot), 1);
                barrier_init(self.empty(slot), n_warps);
                slot += 1;
            }
            barrier_init(self.rows_full(), 1);
            barrier_init(self.rows_empty(), n_warps);
            slot = 0;
            while slot < SLOTS as u32 {
                barrier_init(self.slot_full(slot), n_warps);
                barrier_init(self.slot_empty(slot), 1);
                slot += 1;
            }
        }
        barrier_fence();
    }
}

/// The CTA's share of all tiles, which go column by column, and then to the next rows: of so many
/// tiles, those from `at` to before `end`.
struct Share {
    at: u32,
    end: u32,
    n_columns: u32,
}

impl Share {
    #[inline(always)]
    fn new(params: &ProductParams) -> Share {
        // There are both; the compiler cannot know.
        let n_columns = params.n_column_tiles.max(1);
        let n_blocks = u64::from(grid_dim_x().max(1));
        let n_tiles = u64::from(params.n_row_tiles) * u64::from(n_columns);
        let bound = |block: u32| (n_tiles * u64::from(block) / n_blocks) as u32;
        Share { at: bound(block_idx_x()), end: bound(block_idx_x() + 1), n_columns }
    }

    /// The next tile of rows, and its first and last tile of columns.
    #[inline(always)]
    fn next(&mut self) -> Option<[u32; 3]> {
        if self.at >= self.end {
            return None;
        }
        let rows = self.at / self.n_columns;
        let column = self.at - rows * self.n_columns;
        let n_left = self.end - self.at;
        let n = if n_left < self.n_columns - column { n_left } else { self.n_columns - column };
        self.at += n;
        Some([rows, column, column + n])
    }
}

/// Loads tiles of rows, and slabs of columns in the order in which consumers multiply them.
///
/// # Safety
/// One whole warp; barriers as [`Shared::init`] sets them up.
#[inline(always)]
unsafe fn load(params: &ProductParams, shared: Shared, map: u64) {
    const BOX: u32 = DOCUMENT_SLAB_BYTES as u32;
    let (mut ring, mut parity) = (Ring::START, 1);
    let mut share = Share::new(params);
    // SAFETY: rows and stages are overwritten when all consumers have given them back.
    unsafe {
        while let Some([rows, first, end]) = share.next() {
            let row = params.first_row + rows * ROWS as u32;
            barrier_wait(shared.rows_empty(), parity);
            parity ^= 1;
            let n_bytes = RING_OFFSET as u32;
            let full = shared.rows_full();
            expect_tile(shared.rows(0), map, 0, row, full, n_bytes);
            copy_tile_once(shared.rows(0) + BOX, map, 0, row + 128, full);
            let mut slab = 1;
            while slab < SLABS as u32 {
                copy_tile_once(shared.rows(slab), map, 64 * slab, row, full);
                copy_tile_once(shared.rows(slab) + BOX, map, 64 * slab, row + 128, full);
                slab += 1;
            }
            let mut column = first;
            while column < end {
                let from = params.first_column + column * COLUMNS as u32;
                let mut slab = 0;
                while slab < SLABS as u32 {
                    let full = shared.full(ring.slot);
                    barrier_wait(shared.empty(ring.slot), ring.parity ^ 1);
                    expect_tile(shared.stage(ring.slot), map, 64 * slab, from, full, BOX);
                    ring = ring.next(STAGES as u32);
                    slab += 1;
                }
                column += 1;
            }
        }
    }
}

/// Writes the minima of columns.
///
/// # Safety
/// One whole warp; barriers as [`Shared::init`] sets them up.
#[inline(always)]
unsafe fn store(params: &ProductParams, shared: Shared, lane: u32) {
    let mut slots = Ring::START;
    let mut share = Share::new(params);
    let pitch = u64::from(params.n_column_tiles) * WARP_MINIMA_BYTES as u64;
    // SAFETY: consumers fill the slots in this order; each lane has four columns of both blocks.
    unsafe {
        while let Some([rows, first, end]) = share.next() {
            let block = u64::from(rows) * CONSUMERS as u64;
            let mut to = params.column_minima + block * pitch + u64::from(lane) * 8;
            to += u64::from(first) * WARP_MINIMA_BYTES as u64;
            let mut n = end - first;
            while n > 0 {
                barrier_wait(shared.slot_full(slots.slot), slots.parity);
                let from = shared.minima(slots.slot, 0) + lane * 8;
                unroll!(C in 0..2 => {
                    let mut least = [MOST; 2];
                    unroll!(W in 0..4 => {
                        let warp = C as u32 * CONSUMER_WARPS + W as u32;
                        let [a, b] = load_shared_u32x2(from + warp * WARP_MINIMA_BYTES as u32);
                        least = [min_u16x2(least[0], a), min_u16x2(least[1], b)];
                    });
                    store_u32x2(to + C as u64 * pitch, least);
                });
                sync_warp();
                barrier_arrive_if(shared.slot_empty(slots.slot), u32::from(lane == 0));
                slots = slots.next(SLOTS as u32);
                to += WARP_MINIMA_BYTES as u64;
                n -= 1;
            }
        }
    }
}

/// A consumer's warp.
struct Consumer<'a> {
    params: &'a ProductParams,
    shared: Shared,
    /// Number among the consumers' warps.
    warp: u32,
    lane: u32,
    /// The stage that is multiplied next, and the slot.
    ring: Ring,
    slots: Ring,
}

/// Minima that a thread has of a tile: of its rows, and of its columns, two to a word.
struct Minima {
    /// By fragment, and of the upper and the lower eight.
    rows: [[u32; 2]; FRAGMENTS],
    columns: [u32; WORDS],
}

impl Minima {
    /// Takes the numbers of a fragment.
    #[inline(always)]
    fn take<const FRAGMENT: usize>(&mut self, c: &[f32; N]) {
        // Chains of their own for even and odd words: the one waits for no other.
        let mut least = [[MOST; 2]; 2];
        unroll!(I in 0..16 => {
            let upper = cut_f16_from_zero(c[4 * I], c[4 * I + 1]);
            let lower = cut_f16_from_zero(c[4 * I + 2], c[4 * I + 3]);
            least[I % 2][0] = min_u16x2(least[I % 2][0], upper);
            least[I % 2][1] = min_u16x2(least[I % 2][1], lower);
            self.columns[I] = min_u16x2(self.columns[I], min_u16x2(upper, lower));
        });
        self.rows[FRAGMENT] =
            [min_u16x2(least[0][0], least[1][0]), min_u16x2(least[0][1], least[1][1])];
    }
}

impl Consumer<'_> {
    /// Works through the CTA's tiles.
    ///
    /// # Safety
    /// All consumers' warps; the producer loads what is waited for.
    #[inline(always)]
    unsafe fn consume(mut self) {
        let mut share = Share::new(self.params);
        let pitch = u64::from(self.params.n_row_tiles) * 2 * ROWS as u64;
        let mut parity = 0;
        // SAFETY: the caller's promise; branches are uniform over the block.
        unsafe {
            while let Some([rows, first, end]) = share.next() {
                barrier_wait(self.shared.rows_full(), parity);
                parity ^= 1;
                // Both consumers start here at once. In step, both would take minima at the same
                // time and the tensor cores would be idle: the second lets the first go ahead.
                if self.warp >= CONSUMER_WARPS {
                    pause(TILE_CLOCKS);
                }
                let place = self.warp * 64 + self.lane % 2 * 32 + self.lane / 4 * 4;
                let mut to = self.params.row_minima + u64::from(first) * pitch;
                to += u64::from(rows) * 2 * ROWS as u64 + u64::from(place);
                let mut n = end - first;
                while n > 0 {
                    self.tile(to);
                    to += pitch;
                    n -= 1;
                }
                barrier_arrive_if(self.shared.rows_empty(), u32::from(self.lane == 0));
            }
        }
    }

    /// The next tile of columns; the minima of rows go to an address.
    ///
    /// # Safety
    /// As [`Consumer::consume`].
    #[inline(always)]
    unsafe fn tile(&mut self, to: u64) {
        let offset = self.warp / CONSUMER_WARPS * FRAGMENTS as u32 * FRAGMENT_BYTES;
        let mut minima = Minima { rows: [[MOST; 2]; FRAGMENTS], columns: [MOST; WORDS] };
        // SAFETY: the producer fills the ring's next stages with this tile; the fence orders the
        // last reads of the accumulators before they are written again.
        unsafe {
            let mut ring = self.ring;
            let mut slab = 0;
            while slab < SLABS {
                barrier_wait(self.shared.full(ring.slot), ring.parity);
                ring = ring.next(STAGES as u32);
                slab += 1;
            }
            wgmma::fence();
            let c0 = self.multiply(offset);
            wgmma::commit();
            let c1 = self.multiply(offset + FRAGMENT_BYTES);
            wgmma::commit();
            let c0 = c0.wait::<1>();
            minima.take::<0>(&c0);
            let c1 = c1.wait::<0>();
            while slab > 0 {
                let empty = self.shared.empty(self.ring.slot);
                barrier_arrive_if(empty, u32::from(self.lane == 0));
                self.ring = self.ring.next(STAGES as u32);
                slab -= 1;
            }
            minima.take::<1>(&c1);
            self.store_rows(&minima.rows, to);
            self.publish_columns(minima.columns);
        }
    }

    /// Starts the product of the fragment `offset` bytes into the rows' slabs with the tile at the
    /// head of the ring.
    ///
    /// # Safety
    /// As [`Consumer::tile`].
    #[inline(always)]
    unsafe fn multiply(&self, offset: u32) -> [f32; N] {
        let mut ring = self.ring;
        let mut descriptors = |slab: u32| {
            let a = wgmma::descriptor(self.shared.rows(slab) + offset);
            let b = wgmma::descriptor(self.shared.stage(ring.slot));
            ring = ring.next(STAGES as u32);
            (a, b)
        };
        // SAFETY: the caller's promise; the first step starts the sum.
        unsafe {
            let (a, b) = descriptors(0);
            let c = <[f32; N]>::start::<F16>(a, b);
            let c = multiply_steps::<F16, N, 1>(c, a, b, SLAB_STEPS);
            let (a, b) = descriptors(1);
            let c = multiply_steps::<F16, N, 0>(c, a, b, SLAB_STEPS);
            let (a, b) = descriptors(2);
            multiply_steps::<F16, N, 0>(c, a, b, STEPS - 2 * SLAB_STEPS)
        }
    }

    /// Writes the minima of the warp's rows.
    ///
    /// # Safety
    /// The whole warp together; there must be these rows, for this warp to write.
    #[inline(always)]
    unsafe fn store_rows(&self, rows: &[[u32; 2]; FRAGMENTS], to: u64) {
        // Both columns of a word: the upper row's in the lower half of one.
        let halves = rows.map(|[a, b]| {
            let (low, high) = (a & 0xFFFF | b << 16, a >> 16 | b & 0xFFFF_0000);
            min_u16x2(low, high)
        });
        let is_second = self.lane & 1 != 0;
        let (kept, sent) = if is_second { (halves[1], halves[0]) } else { (halves[0], halves[1]) };
        // SAFETY: the caller's promise.
        unsafe {
            let least = min_u16x2(kept, shuffle_xor::<1>(sent));
            let least = min_u16x2(least, shuffle_xor::<2>(least));
            store_u32_if(to, least, u32::from(self.lane & 2 == 0));
        }
    }

    /// Puts the minima of the columns of the warp's rows into the next slot, for the storing warp.
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    unsafe fn publish_columns(&mut self, mut words: [u32; WORDS]) {
        // Lanes whose numbers differ by 16, 8 and 4 have the same columns: each keeps half of them.
        macro_rules! halve {
            ($bit:literal $n:literal) => {
                let is_upper = self.lane & $bit != 0;
                unroll!(I in 0..8 => {
                    if I < $n {
                        let (a, b) = (words[I], words[I + $n]);
                        let (kept, sent) = if is_upper { (b, a) } else { (a, b) };
                        // SAFETY: the caller's promise.
                        let got = unsafe { shuffle_xor::<$bit>(sent) };
                        words[I] = min_u16x2(kept, got);
                    }
                });
            };
        }
        halve!(16 8);
        halve!(8 4);
        halve!(4 2);
        let Ring { slot, parity } = self.slots;
        // SAFETY: the storing warp empties the slots in this order; one lane arrives when all have
        // stored.
        unsafe {
            barrier_wait(self.shared.slot_empty(slot), parity ^ 1);
            let place =
                self.shared.minima(slot, self.warp) + self.lane / 4 * 32 + self.lane % 4 * 4;
            store_shared_u32(place, words[0]);
            store_shared_u32(place + 16, words[1]);
            sync_warp();
            barrier_arrive_if(self.shared.slot_full(slot), u32::from(self.lane == 0));
        }
        self.slots = self.slots.next(SLOTS as u32);
    }
}

const _: () = assert!(FRAGMENT_BYTES as usize == FRAGMENT_ROWS * SLAB_BYTES);
