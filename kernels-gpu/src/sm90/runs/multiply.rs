//! The warps that multiply.

use super::units::{Ends, Run, tile_of};
use super::{BYTES, GROUPS, ROWS, Shared};
use crate::layout::runs::*;
use crate::params::RunParams;
use crate::ptx::barrier::{
    barrier_arrive_if, barrier_expect, barrier_fence, barrier_init, barrier_wait,
};
use crate::ptx::copy::copy_run;
use crate::ptx::math::max_nan;
use crate::ptx::matrix::Half;
use crate::ptx::memory::{load_shared_u32x4, store_shared_f32};
use crate::ptx::thread::*;
use crate::ptx::warp::sync_warp;
use crate::reduce::{exchange, unroll};
use crate::sm90::Ring;

/// A warp that multiplies.
///
/// # Safety
/// As [`super::forward`].
#[inline(always)]
pub(super) unsafe fn multiply<E: Half, const WARPS: usize, const STAGES: usize>(
    all: &RunParams,
    shared: Shared<WARPS, STAGES>,
    lane: u32,
) {
    // Rows from one chunk of the warp's to the next one.
    let stride = ROWS * WARPS as u32;
    // SAFETY: a stage is overwritten when all lanes have multiplied what it holds; each wait is for a
    // copy that has been started, or for arrivals that the storing warp owes.
    unsafe {
        let mut unit = block_idx_x();
        if shared.warp == 0 && all.query_len != 0 {
            // Before anything else: behind the documents of all blocks it would come late, and nothing is
            // multiplied until it is there.
            let n_bytes = all.query_len * BYTES;
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
                if I < STAGES {
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
            let mut row = run.start + shared.warp * ROWS;
            let mut ahead = row;
            let mut slot = ring.slot;
            let mut i = 0;
            while i < STAGES as u32 && ahead < run.end {
                copy_chunk(all.documents, &shared, slot, ahead, run.end, lane);
                ahead += stride;
                slot = Ring { slot, parity: 0 }.next(STAGES as u32).slot;
                i += 1;
            }
            ahead = row + stride * STAGES as u32;
            if unit == block_idx_x() {
                // The storing warp has set up the other barriers.
                wait_threads(threads(WARPS) as u32);
            }
            let queries = Queries::load(&shared, parity, all.zero, lane);
            parity ^= 1;
            let mut chunk_end = (row + ROWS).min(run.end);
            let mut is_there = false;
            let mut entry = run.entry;
            while entry < run.entry_end {
                let document_end = ends.of(entry);
                let mut best = Best::NONE;
                while row < document_end {
                    let stop = document_end.min(chunk_end);
                    if !is_there {
                        barrier_wait(shared.full(ring.slot), ring.parity);
                        is_there = true;
                    }
                    let first = (row - run.start) % ROWS;
                    let c = queries.multiply::<E>(shared.stage(ring.slot) + first * BYTES, lane);
                    best.take(c, stop - row, lane);
                    row = stop;
                    if row == chunk_end {
                        sync_warp();
                        if ahead < run.end {
                            copy_chunk(all.documents, &shared, ring.slot, ahead, run.end, lane);
                            ahead += stride;
                        }
                        ring = ring.next(STAGES as u32);
                        is_there = false;
                        // Behind a short chunk, the run's last one, there is none.
                        row = if chunk_end == run.end { run.end } else { row + stride - ROWS };
                        chunk_end = (row + ROWS).min(run.end);
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

/// Asks for the warp's chunk of rows from `row` on, of a run up to `end`.
///
/// # Safety
/// One whole warp; the stage must be free to be overwritten.
#[inline(always)]
unsafe fn copy_chunk<const WARPS: usize, const STAGES: usize>(
    documents: u64,
    shared: &Shared<WARPS, STAGES>,
    slot: u32,
    row: u32,
    end: u32,
    lane: u32,
) {
    let n_bytes = (end - row).min(ROWS) * BYTES;
    let address = documents + u64::from(row) * u64::from(BYTES);
    // SAFETY: the caller's promise; the run has the rows.
    unsafe {
        if lane == 0 {
            barrier_expect(shared.full(slot), n_bytes);
            copy_run(shared.stage(slot), address, n_bytes, shared.full(slot));
        }
    }
}

/// A query tile, as a warp multiplies it: of each group and product of 16 elements the lane's
/// registers.
struct Queries([[[u32; 4]; 8]; GROUPS as usize]);

impl Queries {
    /// Waits for a unit's tile. What is loaded is not what is multiplied, but for a sum with `zero`: the
    /// assembler would else leave rows as they are loaded, and put a fragment's registers side by
    /// side anew for every product.
    ///
    /// # Safety
    /// One whole warp; the storing warp loads the tile of each unit.
    #[inline(always)]
    unsafe fn load<const WARPS: usize, const STAGES: usize>(
        shared: &Shared<WARPS, STAGES>,
        parity: u32,
        zero: u32,
        lane: u32,
    ) -> Queries {
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut fragments: [[[u32; 4]; 8]; 2] = core::mem::zeroed();
            let mut seen = 0;
            barrier_wait(shared.query_full(), parity);
            let own = shared.queries() + lane / 4 * BYTES + lane % 4 * 16;
            unroll!(G in 0..2 => {
                unroll!(I in 0..4 => {
                    let upper = own + 16 * G as u32 * BYTES + 64 * I as u32;
                    let [a, b, c, d] = load_shared_u32x4(upper);
                    let [e, f, g, h] = load_shared_u32x4(upper + 8 * BYTES);
                    fragments[G][2 * I] = [a, e, b, f].map(|word| word + zero);
                    fragments[G][2 * I + 1] = [c, g, d, h].map(|word| word + zero);
                    seen |= a | e;
                });
            });
            sync_warp();
            // What overwrites the tile is a copy, which nothing keeps behind loads that are under way:
            // an arrival that does not depend on them let it overtake some of eight warps' (measured).
            let arrives = (lane == 0) as u32 | seen & zero;
            barrier_arrive_if(shared.query_empty(), arrives);
            Queries(fragments)
        }
    }

    /// The similarities of the 16 tokens whose rows start at `rows` in shared memory: of group `g`
    /// and tokens `8 n` and following, laid out as in [`crate::reduce`].
    ///
    /// # Safety
    /// One whole warp.
    #[inline(always)]
    unsafe fn multiply<E: Half>(&self, rows: u32, lane: u32) -> Sums {
        let own = rows + lane / 4 * BYTES + lane % 4 * 16;
        // SAFETY: all-zero bytes are numbers; the caller's promise.
        unsafe {
            let mut c: Sums = core::mem::zeroed();
            unroll!(I in 0..4 => {
                unroll!(N in 0..2 => {
                    let [x, y, z, w] =
                        load_shared_u32x4(own + 8 * N as u32 * BYTES + 64 * I as u32);
                    unroll!(G in 0..2 => {
                        let q = &self.0[G];
                        c[G][N] = E::multiply_add(c[G][N], q[2 * I], [x, y]);
                        c[G][N] = E::multiply_add(c[G][N], q[2 * I + 1], [z, w]);
                    });
                });
            });
            c
        }
    }
}

/// Similarities of a chunk: see [`Queries::multiply`].
type Sums = [[[f32; 4]; 2]; GROUPS as usize];

/// The maxima over a document so far: of the lane's two rows of each group.
struct Best([[f32; 2]; GROUPS as usize]);

impl Best {
    const NONE: Best = Best([[f32::NEG_INFINITY; 2]; GROUPS as usize]);

    /// Takes the first `n` of a chunk's tokens into account.
    #[inline(always)]
    fn take(&mut self, mut c: Sums, n: u32, lane: u32) {
        if n < ROWS {
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
    /// [`super::own_row`].
    ///
    /// # Safety
    /// One whole warp together.
    #[inline(always)]
    unsafe fn exchange(&self, lane: u32) -> f32 {
        let [[a, b], [c, d]] = self.0;
        // SAFETY: the caller's promise.
        unsafe { exchange::<2>(exchange::<1>(a, b, lane), exchange::<1>(c, d, lane), lane) }
    }
}
