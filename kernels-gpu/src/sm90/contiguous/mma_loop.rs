//! Main loop of the warps that multiply: chunks, products, online max.

use crate::abi::layout::contiguous::*;
use crate::abi::params::RunParams;
use crate::primitives::accumulator::exchange;
use crate::primitives::row_scales::Norms;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{
    barrier_arrive_if, barrier_expect, barrier_fence, barrier_init, barrier_wait,
};
use crate::ptx::copy::copy_run;
use crate::ptx::math::max_nan;
use crate::ptx::shared::{load_shared_u32x4, store_shared_f32};
use crate::ptx::thread::*;
use crate::ptx::warp::sync_warp;
use crate::sm90::contiguous::element::Element;
use crate::sm90::contiguous::int8::ScaleRows;
use crate::sm90::contiguous::units::{Ends, Run, tile_of};
use crate::sm90::contiguous::{GROUPS, Kernel, Shared};
use crate::sm90::smem::Ring;

/// Rows that are multiplied at a time.
pub(super) const COLUMNS: u32 = PRODUCT_ROWS as u32;

/// A warp that multiplies, where blocks take turns.
///
/// # Safety
/// As [`crate::sm90::contiguous::forward`].
#[inline(always)]
pub(super) unsafe fn multiply<K: Kernel>(
    all: &RunParams,
    shared: Shared<K>,
    norms: Norms,
    lane: u32,
) {
    // Rows from one chunk of the warp's to the next one.
    let stride = K::ROWS * K::WARPS as u32;
    let documents = Rows { address: all.documents, scales: ScaleRows::new(norms) };
    // SAFETY: a stage is overwritten when all lanes have multiplied what it holds; each wait is for
    // a copy that has been started, or for arrivals that the storing warp owes.
    unsafe {
        let mut unit = block_idx_x();
        if shared.warp == 0 && all.query_len != 0 {
            // Before anything else: behind the documents of all blocks it would come late, and
            // nothing is multiplied until it is there.
            let n_bytes = all.query_len * K::BYTES;
            let address = all.queries + u64::from(tile_of(all, unit)) * u64::from(n_bytes);
            if lane == 0 {
                barrier_init(shared.query_full(), 1);
                barrier_fence();
                barrier_expect(shared.query_full(), n_bytes);
                copy_run(shared.queries(), address, n_bytes, shared.query_full());
            }
        }
        if lane == 0 {
            unroll!(I in 0..16 => {
                if I < K::STAGES {
                    barrier_init(shared.full(I as u32), 1);
                }
            });
            barrier_fence();
        }
        sync_warp();
        let (mut ring, mut slots) = (Ring::START, Ring::START);
        let mut parity = 0;
        // There are no more blocks than units.
        loop {
            let run = Run::new(all, unit);
            let mut ends = Ends::new(all, run, lane);
            let mut row = run.start + shared.warp * K::ROWS;
            let mut ahead = row;
            let mut slot = ring.slot;
            let mut i = 0;
            while i < K::STAGES as u32 && ahead < run.end {
                documents.copy_chunk(&shared, slot, ahead, run.end, lane);
                ahead += stride;
                slot = Ring { slot, parity: 0 }.next(K::STAGES as u32).slot;
                i += 1;
            }
            ahead = row + stride * K::STAGES as u32;
            if unit == block_idx_x() {
                // The storing warp has set up the other barriers.
                wait_threads(K::THREADS);
            }
            let queries = Queries::load(&shared, parity, all.zero, lane);
            parity ^= 1;
            let mut chunk_end = (row + K::ROWS).min(run.end);
            let mut is_there = false;
            let mut entry = run.entry;
            while entry < run.entry_end {
                let document_end = ends.of(entry);
                let mut best = Best::NONE;
                while row < document_end {
                    let mut stop = document_end.min(chunk_end);
                    if K::ROWS > COLUMNS {
                        stop = stop.min(row + COLUMNS);
                    }
                    if !is_there {
                        barrier_wait(shared.full(ring.slot), ring.parity);
                        is_there = true;
                    }
                    let first = (row - run.start) % K::ROWS;
                    let rows = shared.stage(ring.slot) + first * K::BYTES;
                    let c = queries.multiply::<K>(rows, lane);
                    best.take(c, stop - row, lane);
                    row = stop;
                    if row == chunk_end {
                        sync_warp();
                        if ahead < run.end {
                            documents.copy_chunk(&shared, ring.slot, ahead, run.end, lane);
                            ahead += stride;
                        }
                        ring = ring.next(K::STAGES as u32);
                        is_there = false;
                        // Behind a short chunk, the run's last one, there is none.
                        row = if chunk_end == run.end { run.end } else { row + stride - K::ROWS };
                        chunk_end = (row + K::ROWS).min(run.end);
                    }
                }
                let most = best.exchange(lane);
                barrier_wait(shared.maxima_empty(slots.slot), slots.parity ^ 1);
                store_shared_f32(shared.maxima(slots.slot, shared.warp) + lane * 4, most);
                sync_warp();
                barrier_arrive_if(shared.maxima_full(slots.slot), (lane == 0) as u32);
                slots = slots.next(SLOTS as u32);
                entry += 1;
            }
            unit += grid_dim_x();
            if unit >= all.n_units {
                return;
            }
        }
    }
}

/// Where the rows of documents are, and their scales.
pub(super) struct Rows {
    pub(super) address: u64,
    pub(super) scales: ScaleRows,
}

impl Rows {
    /// Asks for the warp's chunk of rows from `row` on, of a run up to `end`.
    ///
    /// # Safety
    /// One whole warp; the stage must be free to be overwritten.
    #[inline(always)]
    pub(super) unsafe fn copy_chunk<K: Kernel>(
        &self,
        shared: &Shared<K>,
        slot: u32,
        row: u32,
        end: u32,
        lane: u32,
    ) {
        let n_bytes = (end - row).min(K::ROWS) * K::BYTES;
        let address = self.address + u64::from(row) * u64::from(K::BYTES);
        // SAFETY: the caller's promise; the run has the rows.
        unsafe {
            if lane == 0 {
                if K::Element::HAS_SCALES {
                    // Before the rows, which take longer.
                    let n_all = n_bytes + self.scales.n_bytes(K::CHUNK_ROWS);
                    barrier_expect(shared.full(slot), n_all);
                    let room = shared.scales(slot);
                    self.scales.copy(room, row, K::CHUNK_ROWS, shared.full(slot));
                } else {
                    barrier_expect(shared.full(slot), n_bytes);
                }
                copy_run(shared.stage(slot), address, n_bytes, shared.full(slot));
            }
        }
    }
}

/// A query tile, as a warp multiplies it: of each group and product of 32 bytes of a row the lane's
/// registers.
pub(super) struct Queries([[[u32; 4]; 8]; GROUPS as usize]);

impl Queries {
    /// Waits for a unit's tile. The loaded registers and the multiplied ones differ by a sum with
    /// `zero`: otherwise the assembler would keep rows as they are loaded, and put a fragment's
    /// registers side by side anew for every product.
    ///
    /// # Safety
    /// One whole warp; the storing warp loads the tile of each unit.
    #[inline(always)]
    pub(super) unsafe fn load<K: Kernel>(
        shared: &Shared<K>,
        parity: u32,
        zero: u32,
        lane: u32,
    ) -> Queries {
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut fragments: [[[u32; 4]; 8]; 2] = core::mem::zeroed();
            let mut seen = 0;
            barrier_wait(shared.query_full(), parity);
            let own = shared.queries() + lane / 4 * K::BYTES + lane % 4 * 16;
            unroll!(G in 0..2 => {
                unroll!(I in 0..4 => {
                    if 64 * (I as u32) < K::BYTES {
                        let upper = own + 16 * G as u32 * K::BYTES + 64 * I as u32;
                        let [a, b, c, d] = load_shared_u32x4(upper);
                        let [e, f, g, h] = load_shared_u32x4(upper + 8 * K::BYTES);
                        fragments[G][2 * I] = [a, e, b, f].map(|word| word + zero);
                        fragments[G][2 * I + 1] = [c, g, d, h].map(|word| word + zero);
                        seen |= a | e;
                    }
                });
            });
            sync_warp();
            // What overwrites the tile is a copy, which nothing keeps behind loads that are under
            // way: an arrival that does not depend on them let it overtake some of eight warps'
            // (measured).
            let arrives = (lane == 0) as u32 | seen & zero;
            barrier_arrive_if(shared.query_empty(), arrives);
            Queries(fragments)
        }
    }

    /// Sums of products with the 16 tokens whose rows start at `rows` in shared memory: of group
    /// `g` and tokens `8 n` and following, laid out as in [`crate::primitives::accumulator`].
    ///
    /// # Safety
    /// One whole warp.
    #[inline(always)]
    pub(super) unsafe fn multiply<K: Kernel>(&self, rows: u32, lane: u32) -> Sums {
        let own = rows + lane / 4 * K::BYTES + lane % 4 * 16;
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut c: Sums = core::mem::zeroed();
            unroll!(I in 0..4 => {
                if 64 * (I as u32) < K::BYTES {
                    unroll!(N in 0..2 => {
                        let [x, y, z, w] =
                            load_shared_u32x4(own + 8 * N as u32 * K::BYTES + 64 * I as u32);
                        unroll!(G in 0..2 => {
                            let q = &self.0[G];
                            c[G][N] = K::Element::multiply_add(c[G][N], q[2 * I], [x, y]);
                            c[G][N] = K::Element::multiply_add(c[G][N], q[2 * I + 1], [z, w]);
                        });
                    });
                }
            });
            c
        }
    }
}

/// Accumulators of the products of 16 tokens: see [`Queries::multiply`].
pub(super) type Sums = [[[f32; 4]; 2]; GROUPS as usize];

/// The maxima over a document so far: of the lane's two rows of each group.
pub(super) struct Best([[f32; 2]; GROUPS as usize]);

impl Best {
    pub(super) const NONE: Best = Best([[f32::NEG_INFINITY; 2]; GROUPS as usize]);

    /// Takes the first `n` of 16 tokens into account.
    #[inline(always)]
    pub(super) fn take(&mut self, mut c: Sums, n: u32, lane: u32) {
        if n < COLUMNS {
            unroll!(N in 0..2 => {
                unroll!(J in 0..2 => {
                    let token = 2 * (lane % 4) + (8 * N + J) as u32;
                    unroll!(G in 0..2 => {
                        unroll!(R in 0..2 => {
                            let x = c[G][N][2 * R + J];
                            c[G][N][2 * R + J] = if token < n { x } else { f32::NEG_INFINITY };
                        });
                    });
                });
            });
        }
        unroll!(G in 0..2 => {
            unroll!(R in 0..2 => {
                let [a, b] = [0, 1].map(|n| max_nan(c[G][n][2 * R], c[G][n][2 * R + 1]));
                self.0[G][R] = max_nan(self.0[G][R], max_nan(a, b));
            });
        });
    }

    /// Exchanges maxima between the lanes that have the same rows, so that each lane ends with one:
    /// [`crate::sm90::contiguous::own_row`].
    ///
    /// # Safety
    /// One whole warp together.
    #[inline(always)]
    pub(super) unsafe fn exchange(&self, lane: u32) -> f32 {
        let [[a, b], [c, d]] = self.0;
        // SAFETY: the caller's promise.
        unsafe { exchange::<2>(exchange::<1>(a, b, lane), exchange::<1>(c, d, lane), lane) }
    }
}
