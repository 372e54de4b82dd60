//! Projects rows of hidden states by TMA and wgmma.
//!
//! Tiling: a CTA has 256 rows and 128 outputs at a time, each of its two consumers 128 rows. CTAs
//! stay, and take every tile of rows that is theirs by number. Where tokens are normalised and have
//! more outputs, they are computed twice: once for r, once for the tokens.
//!
//! Pipeline:
//!  1. A producer warp copies slabs of the rows and of W into a ring, as far ahead as it is deep:
//!     the next tile's arrive during an epilogue.
//!  2. Each consumer multiplies its two fragments with the outputs, a slab at a time.
//!  3. Epilogue: bias, sums of squares over the four lanes that share a row, r; the lanes exchange
//!     elements, so that each stores 16 bytes that lie together.
//!
//! Budget: 128 accumulators of 224 registers, 192 KB of shared memory, one CTA a multiprocessor.
//!
//! Known loss: W comes from the second-level cache for every 256 rows, half as many bytes as the
//! rows. CTAs in pairs that read it once for both are slower: each waits for the other's ring.

use crate::abi::layout::sm90::{DOCUMENT_SLAB_BYTES, DOCUMENT_TILE, FRAGMENT_ROWS, SLAB_STEPS};
use crate::abi::params::projection::sm90::*;
use crate::abi::params::projection::{MappedParams, OUTPUTS, ProjectionParams};
use crate::primitives::row_vector::load_element;
use crate::primitives::unroll::unroll;
use crate::projection::{Narrow, SQUARED_SCALE, first_output, scale_of, steps};
use crate::ptx::barrier::{barrier_arrive_if, barrier_fence, barrier_init, barrier_wait};
use crate::ptx::copy::{copy_tile_once, expect_tile, prefetch_map};
use crate::ptx::global::store_u32x4;
use crate::ptx::math::fma;
use crate::ptx::shared::dynamic_shared;
use crate::ptx::thread::*;
use crate::ptx::warp::{broadcast, shuffle_xor, shuffle_xor_f32, sync_warp};
use crate::ptx::wgmma;
use crate::ptx::wgmma::{Accumulators, WgmmaElement};
use crate::sm90::compute::{FRAGMENT_BYTES, multiply_steps};
use crate::sm90::kernel::CONSUMER_WARPS;
use crate::sm90::smem::Ring;

/// Registers of a thread of the producer's warpgroup, and of a consumer.
const REGISTERS: [u32; 2] = [56, 224];
/// Accumulators of a fragment that a thread has.
const N: usize = OUTPUTS / 2;

/// Sums of a warp's rows, by fragment.
type Sums = [[f32; N]; FRAGMENTS];
/// A number for each row of a thread: by fragment, and of the upper and the lower eight.
type OfRows = [[f32; 2]; FRAGMENTS];

/// Projects the CTA's tiles of rows.
///
/// # Safety
/// `params` must describe matrices as [`MappedParams`] says, `maps` be the generic addresses of its
/// tensor maps; all threads of the block.
#[inline(always)]
pub unsafe fn project<E: Narrow + WgmmaElement>(params: &MappedParams, maps: [u64; 2]) {
    const { assert!(FRAGMENTS == 2 && CONSUMERS == 2 && E::BYTES == 2) };
    let thread = thread_idx_x();
    let ring = dynamic_shared();
    // SAFETY: branches are uniform per warp, where they change registers per warpgroup; barriers
    // are initialised before others pass the block-wide barrier.
    unsafe {
        let warp = broadcast(thread / 32);
        if warp >= CONSUMER_WARPS {
            wait_threads(THREADS as u32);
            claim_registers::<{ REGISTERS[1] }>();
            let params = &params.projection;
            let (warp, lane) = (warp - CONSUMER_WARPS, thread % 32);
            return Consumer { params, ring, warp, lane, next: Ring::START }.consume::<E>();
        }
        if warp == 0 {
            if thread == 0 {
                prefetch_map(maps[0]);
                prefetch_map(maps[1]);
                let mut slot = 0;
                while slot < STAGES as u32 {
                    barrier_init(full(ring, slot), 1);
                    barrier_init(empty(ring, slot), CONSUMER_WARPS * CONSUMERS as u32);
                    slot += 1;
                }
                barrier_fence();
            }
            sync_warp();
            arrive_threads(THREADS as u32);
        } else {
            wait_threads(THREADS as u32);
        }
        release_registers::<{ REGISTERS[0] }>();
        if warp == 0 {
            load::<E>(params, maps, ring);
        }
    }
}

/// Barrier that completes when a stage holds its slabs.
#[inline(always)]
fn full(ring: u32, slot: u32) -> u32 {
    ring + BARRIERS_OFFSET as u32 + 8 * slot
}

/// Barrier that completes when every consumer warp is done with a stage.
#[inline(always)]
fn empty(ring: u32, slot: u32) -> u32 {
    full(ring, slot + STAGES as u32)
}

/// Slabs of a row of hidden states.
#[inline(always)]
fn n_slabs<E: WgmmaElement>(params: &ProjectionParams) -> u32 {
    params.n_hidden.div_ceil(E::SLAB_ELEMENTS)
}

/// Loads slabs of the rows and of W in the order in which consumers multiply them.
///
/// # Safety
/// One whole warp; barriers as [`project`] sets them up.
#[inline(always)]
unsafe fn load<E: WgmmaElement>(params: &MappedParams, maps: [u64; 2], ring: u32) {
    let MappedParams { projection, first_row, .. } = params;
    let ([n_tiles, n_steps], n_slabs) = (steps(projection), n_slabs::<E>(projection));
    let mut next = Ring::START;
    let mut row = block_idx_x() * ROWS as u32;
    // SAFETY: a stage is overwritten when all consumers have given it back; boxes reach outside the
    // matrices where these end, and bring zeros.
    unsafe {
        while row < projection.n_rows {
            let mut step = 0;
            while step < n_steps {
                let output = first_output(step, n_tiles);
                let mut slab = 0;
                while slab < n_slabs {
                    let (stage, column) =
                        (ring + next.slot * STAGE_BYTES as u32, slab * E::SLAB_ELEMENTS);
                    let full = full(ring, next.slot);
                    barrier_wait(empty(ring, next.slot), next.parity ^ 1);
                    let from = first_row + row;
                    let of_weight = stage + ROWS_BYTES as u32;
                    expect_tile(of_weight, maps[1], column, output, full, STAGE_BYTES as u32);
                    let mut part = 0;
                    while part < ROWS as u32 / DOCUMENT_TILE as u32 {
                        let to = stage + part * DOCUMENT_SLAB_BYTES as u32;
                        let from = from + part * DOCUMENT_TILE as u32;
                        copy_tile_once(to, maps[0], column, from, full);
                        part += 1;
                    }
                    next = next.next(STAGES as u32);
                    slab += 1;
                }
                step += 1;
            }
            row += grid_dim_x() * ROWS as u32;
        }
    }
}

/// A consumer's warp.
struct Consumer<'a> {
    params: &'a ProjectionParams,
    /// Window address of the ring.
    ring: u32,
    /// Number among the consumers' warps.
    warp: u32,
    lane: u32,
    /// The stage that is multiplied next.
    next: Ring,
}

impl Consumer<'_> {
    /// Works through the block's tiles.
    ///
    /// # Safety
    /// All consumers' warps; the producer loads what is waited for.
    #[inline(always)]
    unsafe fn consume<E: Narrow + WgmmaElement>(mut self) {
        let [n_tiles, n_steps] = steps(self.params);
        let mut row = block_idx_x() * ROWS as u32;
        // SAFETY: the caller's promise; branches are uniform over the block.
        unsafe {
            while row < self.params.n_rows {
                let mut squares = [[0.0; 2]; FRAGMENTS];
                let mut step = 0;
                while step < n_steps {
                    let first = first_output(step, n_tiles);
                    let mut sums = self.products::<E>();
                    self.add_bias::<E>(&mut sums, first);
                    if self.params.normalize != 0 && step < n_tiles {
                        add_squares(&mut squares, &sums);
                    }
                    if step + n_tiles >= n_steps {
                        self.store::<E>(&sums, self.scales(squares), row, first);
                    }
                    step += 1;
                }
                row += grid_dim_x() * ROWS as u32;
            }
        }
    }

    /// Multiplies the next slabs of the ring, as many as a row has.
    ///
    /// # Safety
    /// As [`Consumer::consume`].
    #[inline(always)]
    unsafe fn products<E: WgmmaElement>(&mut self) -> Sums {
        let offset = self.warp / CONSUMER_WARPS * FRAGMENTS as u32 * FRAGMENT_BYTES;
        let n_slabs = n_slabs::<E>(self.params);
        // SAFETY: all-zero bytes are floats (a literal would become a loop in memory); the producer
        // fills one stage for each slab, and gets it back behind its products.
        unsafe {
            let [mut c0, mut c1]: Sums = core::mem::zeroed();
            let mut slab = 0;
            while slab < n_slabs {
                let Ring { slot, parity } = self.next;
                let stage = self.ring + slot * STAGE_BYTES as u32;
                let a = wgmma::descriptor(stage + offset);
                let b = wgmma::descriptor(stage + ROWS_BYTES as u32);
                barrier_wait(full(self.ring, slot), parity);
                wgmma::fence();
                c0 = multiply_steps::<E, N, 0>(c0, a, b, SLAB_STEPS);
                let second = a + wgmma::descriptor_step(FRAGMENT_BYTES);
                c1 = multiply_steps::<E, N, 0>(c1, second, b, SLAB_STEPS);
                wgmma::commit();
                c0 = c0.wait::<0>();
                c1 = c1.wait::<0>();
                barrier_arrive_if(empty(self.ring, slot), u32::from(self.lane == 0));
                self.next = self.next.next(STAGES as u32);
                slab += 1;
            }
            [c0, c1]
        }
    }

    /// The output of the thread's first column of eight, from `first` on.
    #[inline(always)]
    fn column(&self, first: u32) -> u32 {
        first + 2 * (self.lane % 4)
    }

    /// Adds the bias; columns behind the last output become 0, whatever the rows hold.
    ///
    /// # Safety
    /// The bias, where there is one, has all outputs.
    #[inline(always)]
    unsafe fn add_bias<E: Narrow>(&self, sums: &mut Sums, first: u32) {
        let (column, params) = (self.column(first), self.params);
        if params.bias == 0 && first + OUTPUTS as u32 <= params.dim {
            return;
        }
        unroll!(I in 0..16 => {
            unroll!(B in 0..2 => {
                let output = column + (8 * I + B) as u32;
                let is_there = output < params.dim;
                let mut bias = 0.0;
                if is_there && params.bias != 0 {
                    // SAFETY: the caller's promise.
                    bias = unsafe { load_element::<E>(params.bias, output) };
                }
                unroll!(F in 0..2 => {
                    unroll!(H in 0..2 => {
                        let sum = &mut sums[F][4 * I + 2 * H + B];
                        *sum = if is_there { *sum + bias } else { 0.0 };
                    });
                });
            });
        });
    }

    /// r of the thread's rows, of the sums of squares of all lanes.
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    unsafe fn scales(&self, mut squares: OfRows) -> OfRows {
        if self.params.normalize == 0 {
            return [[1.0; 2]; FRAGMENTS];
        }
        unroll!(F in 0..2 => {
            unroll!(H in 0..2 => {
                let square = &mut squares[F][H];
                // SAFETY: the caller's promise.
                unsafe {
                    *square += shuffle_xor_f32::<1>(*square);
                    *square += shuffle_xor_f32::<2>(*square);
                }
                *square = scale_of(*square);
            });
        });
        squares
    }

    /// Stores the thread's columns of its rows, times their r, and zeros behind the last output.
    ///
    /// # Safety
    /// The whole warp together; the tokens have these rows, for this block to write.
    #[inline(always)]
    unsafe fn store<E: Narrow>(&self, sums: &Sums, scales: OfRows, row: u32, first: u32) {
        let params = self.params;
        // Behind the exchange a lane has eight columns of every 32.
        let column = first + 8 * (self.lane % 4);
        let n_columns = params.tokens_pitch as u32 / E::BYTES as u32;
        let of_consumer = self.warp / CONSUMER_WARPS * (FRAGMENTS * FRAGMENT_ROWS) as u32;
        let row = row + of_consumer + self.warp % CONSUMER_WARPS * 16 + self.lane / 4;
        unroll!(F in 0..2 => {
            unroll!(H in 0..2 => {
                let row = row + (F * FRAGMENT_ROWS + 8 * H) as u32;
                let to = params.tokens + u64::from(row) * params.tokens_pitch;
                unroll!(I in 0..4 => {
                    let word = |group: usize| {
                        let at = 4 * (4 * I + group) + 2 * H;
                        E::narrow([sums[F][at], sums[F][at + 1]].map(|u| u * scales[F][H]))
                    };
                    let words = [word(0), word(1), word(2), word(3)];
                    // SAFETY: the caller's promise.
                    unsafe {
                        let words = exchange(words, self.lane);
                        let output = column + 32 * I as u32;
                        if row < params.n_rows && output < n_columns {
                            store_u32x4(to + u64::from(output) * E::BYTES as u64, words);
                        }
                    }
                });
            });
        });
    }
}

/// Transposes four words of each of four neighbouring lanes: of lane l, word w becomes word l of
/// lane w.
///
/// # Safety
/// The whole warp together.
#[inline(always)]
unsafe fn exchange(mut words: [u32; 4], lane: u32) -> [u32; 4] {
    macro_rules! swap {
        ($bit:literal $a:literal $b:literal) => {
            let is_upper = lane & $bit != 0;
            let sent = if is_upper { words[$a] } else { words[$b] };
            // SAFETY: the caller's promise.
            let got = unsafe { shuffle_xor::<$bit>(sent) };
            if is_upper {
                words[$a] = got;
            } else {
                words[$b] = got;
            }
        };
    }
    swap!(1 0 1);
    swap!(1 2 3);
    swap!(2 0 2);
    swap!(2 1 3);
    words
}

/// Adds the squares of a thread's columns to the sums of its rows.
#[inline(always)]
fn add_squares(squares: &mut OfRows, sums: &Sums) {
    unroll!(I in 0..16 => {
        unroll!(B in 0..2 => {
            unroll!(F in 0..2 => {
                unroll!(H in 0..2 => {
                    let u = sums[F][4 * I + 2 * H + B] * SQUARED_SCALE;
                    squares[F][H] = fma(u, u, squares[F][H]);
                });
            });
        });
    });
}
