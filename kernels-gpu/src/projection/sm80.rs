//! Projects rows of hidden states: u = W · h + b, and tokens u · r, rounded once.
//!
//! Tiling: a CTA has 128 rows and 128 outputs at a time, each of its eight warps 32 rows and 64
//! outputs. Where tokens are normalised and have more outputs, they are computed twice: once for
//! r, once for the tokens.
//!
//! Pipeline:
//!  1. All threads copy slabs of the rows and of W into a ring, two ahead of the products.
//!  2. One barrier per slab: it has landed for all threads, and the one before is free.
//!  3. Each warp multiplies its rows with its outputs.
//!  4. Epilogue: bias, sums of squares over the lanes of a row and the two warps that share it, r,
//!     and stores from registers.
//!
//! Budget: 64 accumulators of 128 registers, 97 KB of shared memory; two CTAs share a
//! multiprocessor of Hopper.
//!
//! Known loss: W comes from the second-level cache for every 128 rows, as many bytes as the rows;
//! stores are of 16 bytes.

use crate::abi::layout::{CHUNK_BYTES, SLAB_BYTES, chunk_offset, slabs};
use crate::abi::params::projection::*;
use crate::primitives::row_vector::load_element;
use crate::primitives::unroll::unroll;
use crate::projection::{Projected, SQUARED_SCALE, first_output, scale_of, steps};
use crate::ptx::copy::{copy_async_16, copy_commit, copy_wait};
use crate::ptx::element::F32;
use crate::ptx::global::opaque;
use crate::ptx::math::fma;
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use crate::ptx::warp::{broadcast, shuffle_xor_f32};
use crate::sm80::element::{SlabElement, Slabs};

/// Chunks of a slab row: so many neighbouring threads copy neighbouring chunks.
const CHUNKS: u32 = (SLAB_BYTES / CHUNK_BYTES) as u32;
/// Rows of a warp, and outputs.
const WARP_ROWS: u32 = (ROWS / WARPS[0]) as u32;
const WARP_OUTPUTS: u32 = (OUTPUTS / WARPS[1]) as u32;
/// Groups of 16 rows of a warp, and accumulators of each that a thread has.
const FRAGMENTS: usize = 2;
const N: usize = OUTPUTS / WARPS[1] / 2;

/// Sums of a warp: of each fragment and its rows. The upper two are not used.
type Sums = [[f32; N]; 4];

/// Position of a thread.
struct Place<'a> {
    params: &'a ProjectionParams,
    thread: u32,
    lane: u32,
    /// The warp along the rows, and along the outputs.
    warp: [u32; 2],
    /// The CTA's first row.
    row: u32,
    /// Window address of the ring.
    ring: u32,
}

/// Projects the CTA's rows.
///
/// # Safety
/// `params` must describe matrices as [`ProjectionParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn project<E: Projected + SlabElement>(params: &ProjectionParams) {
    let thread = thread_idx_x();
    // SAFETY: every lane is here. By the broadcast the assembler knows that the number is the same
    // in all lanes.
    let warp = unsafe { broadcast(thread / 32) };
    let place = Place {
        params,
        thread,
        lane: thread % 32,
        warp: [warp % WARPS[0] as u32, warp / WARPS[0] as u32],
        row: block_idx_x() * ROWS as u32,
        ring: dynamic_shared(),
    };
    let [n_tiles, n_steps] = steps(params);
    let mut step = 0;
    // SAFETY: branches are uniform over the block.
    unsafe {
        while step < n_steps {
            let first = first_output(step, n_tiles);
            let mut sums = place.products::<E>(first);
            place.add_bias::<E>(&mut sums, first);
            if params.normalize != 0 && step < n_tiles {
                place.add_squares(&sums, step > 0);
            }
            if step + n_tiles >= n_steps {
                match params.tokens_are_f32 {
                    0 => place.store::<E>(&sums, first),
                    _ => place.store::<F32>(&sums, first),
                }
            }
            step += 1;
        }
    }
}

impl Place<'_> {
    /// The output of the thread's first column of eight, from `first` on.
    #[inline(always)]
    fn column(&self, first: u32) -> u32 {
        first + self.warp[1] * WARP_OUTPUTS + 2 * (self.lane % 4)
    }

    /// Row of the CTA that fragment and half `at` are of.
    #[inline(always)]
    fn row_of(&self, at: usize) -> u32 {
        self.warp[0] * WARP_ROWS + 8 * at as u32 + self.lane / 4
    }

    /// Multiplies the CTA's rows with the outputs from `first` on.
    ///
    /// # Safety
    /// All threads of the block together.
    #[inline(always)]
    unsafe fn products<E: Projected + SlabElement>(&self, first: u32) -> Sums {
        let n_slabs = slabs(self.params.n_hidden as usize, E::BYTES) as u32;
        // SAFETY: all-zero bytes are floats (a literal would become a loop in memory); all threads
        // are here, and a slot is free behind the barrier after its last use.
        unsafe {
            let mut sums: Sums = core::mem::zeroed();
            sync_threads();
            let mut slab = 0;
            while slab < STAGES as u32 - 1 {
                self.load::<E>(slab, first, slab);
                slab += 1;
            }
            let (mut slot, mut next) = (0, STAGES as u32 - 1);
            slab = 0;
            while slab < n_slabs {
                copy_wait::<{ STAGES as u32 - 2 }>();
                sync_threads();
                self.load::<E>(next, first, slab + STAGES as u32 - 1);
                next = if next == STAGES as u32 - 1 { 0 } else { next + 1 };
                let stage = self.ring + slot * STAGE_BYTES as u32;
                let rows = self.warp[0] * WARP_ROWS * SLAB_BYTES as u32;
                let outputs = self.warp[1] * WARP_OUTPUTS + ROWS as u32;
                let slabs = Slabs {
                    queries: stage + rows,
                    documents: stage + outputs * SLAB_BYTES as u32,
                    n_columns: WARP_OUTPUTS,
                    lane: self.lane,
                };
                E::multiply_slab::<N>(&mut sums, FRAGMENTS, slabs);
                slot = if slot == STAGES as u32 - 1 { 0 } else { slot + 1 };
                slab += 1;
            }
            // What lies behind the last slab is filled with zeros, before slots are used again.
            copy_wait::<0>();
            sums
        }
    }

    /// Starts the copy of a slab of the rows, and of W from output `first` on, to a slot of the
    /// ring. What is not there becomes zeros. Closes a group in any case, so that groups count
    /// slabs.
    ///
    /// # Safety
    /// All threads of the block; the slot must be free.
    #[inline(always)]
    #[expect(unused_assignments, reason = "the last step is written like the others")]
    unsafe fn load<E: Projected + SlabElement>(&self, slot: u32, first: u32, slab: u32) {
        let params = self.params;
        let (chunk, row) = (self.thread % CHUNKS, self.thread / CHUNKS);
        let offset = slab * SLAB_BYTES as u32 + chunk * CHUNK_BYTES as u32;
        let row_bytes = params.n_hidden * E::BYTES as u32;
        let n_bytes = row_bytes.saturating_sub(offset).min(CHUNK_BYTES as u32);
        // A step of rows is a multiple of eight: the swizzle is the same.
        const STEP: u32 = THREADS as u32 / CHUNKS;
        const { assert!(STEP.is_multiple_of(8) && ROWS as u32 == 4 * STEP && ROWS == OUTPUTS) };
        let mut to = self.ring + slot * STAGE_BYTES as u32 + chunk_offset(row, chunk);
        let mut side = 0;
        while side < 2 {
            // Opaque: addresses that stay would take registers that sums need.
            let (base, pitch, row, n_rows) = match side {
                0 => (params.hidden, params.hidden_pitch, self.row + row, params.n_rows),
                _ => (params.weight, params.weight_pitch, first + row, params.dim),
            };
            let pitch = opaque(pitch);
            let mut from = opaque(base) + u64::from(row) * pitch + u64::from(offset);
            let left = n_rows.saturating_sub(row);
            unroll!(I in 0..4 => {
                let n_bytes = if left > I as u32 * STEP { n_bytes } else { 0 };
                // SAFETY: the bytes belong to the row; nothing is read of one that is not there.
                unsafe { copy_async_16(to + (I as u32 * STEP) * SLAB_BYTES as u32, from, n_bytes) };
                from += u64::from(STEP) * pitch;
            });
            to += 4 * STEP * SLAB_BYTES as u32;
            side += 1;
        }
        copy_commit();
    }

    /// Adds the bias; columns behind the last output become 0, whatever the rows hold.
    ///
    /// # Safety
    /// The bias, where there is one, has all outputs.
    #[inline(always)]
    unsafe fn add_bias<E: Projected + SlabElement>(&self, sums: &mut Sums, first: u32) {
        let column = self.column(first);
        unroll!(I in 0..8 => {
            unroll!(B in 0..2 => {
                let output = column + (8 * I + B) as u32;
                let is_there = output < self.params.dim;
                let mut bias = 0.0;
                if is_there && self.params.bias != 0 {
                    // SAFETY: the caller's promise.
                    bias = unsafe { load_element::<E>(self.params.bias, output) };
                }
                unroll!(R in 0..4 => {
                    let sum = &mut sums[R / 2][4 * I + 2 * (R % 2) + B];
                    *sum = if is_there { *sum + bias } else { 0.0 };
                });
            });
        });
    }

    /// Adds the squares of the warp's columns to the sums of its rows, or begins these.
    ///
    /// # Safety
    /// The whole warp together.
    #[inline(always)]
    unsafe fn add_squares(&self, sums: &Sums, adds: bool) {
        let mut squares = [0.0; 4];
        unroll!(I in 0..8 => {
            unroll!(B in 0..2 => {
                unroll!(R in 0..4 => {
                    let u = sums[R / 2][4 * I + 2 * (R % 2) + B] * SQUARED_SCALE;
                    squares[R] = fma(u, u, squares[R]);
                });
            });
        });
        // SAFETY: all lanes are here; a sum is that of this warp alone.
        unsafe {
            unroll!(R in 0..4 => {
                squares[R] += shuffle_xor_f32::<1>(squares[R]);
                squares[R] += shuffle_xor_f32::<2>(squares[R]);
                if self.lane.is_multiple_of(4) {
                    let sum = self.squares(R) + 4 * self.warp[1];
                    let before = if adds { load_shared_f32(sum) } else { 0.0 };
                    store_shared_f32(sum, before + squares[R]);
                }
            });
        }
    }

    /// Window address of the sums of squares of a row, one for each warp that has it.
    #[inline(always)]
    fn squares(&self, at: usize) -> u32 {
        self.ring + SQUARES_OFFSET as u32 + 4 * WARPS[1] as u32 * self.row_of(at)
    }

    /// r of the thread's rows.
    ///
    /// # Safety
    /// All threads of the block together.
    #[inline(always)]
    unsafe fn scales(&self) -> [f32; 4] {
        let mut scales = [1.0; 4];
        if self.params.normalize != 0 {
            // SAFETY: all threads are here: the sums are complete behind the barrier.
            unsafe {
                sync_threads();
                unroll!(R in 0..4 => {
                    let row = self.squares(R);
                    let square = load_shared_f32(row) + load_shared_f32(row + 4);
                    scales[R] = scale_of(square);
                });
            }
        }
        scales
    }

    /// Stores the thread's columns of its rows, times their r, and zeros behind the last output.
    ///
    /// # Safety
    /// All threads of the block together; the tokens have these rows, for this block to write.
    #[inline(always)]
    unsafe fn store<E: Projected + SlabElement>(&self, sums: &Sums, first: u32) {
        let params = self.params;
        // SAFETY: the caller's promise.
        let scales = unsafe { self.scales() };
        let column = self.column(first);
        let n_columns = params.tokens_pitch as u32 / E::BYTES as u32;
        unroll!(R in 0..4 => {
            let row = self.row + self.row_of(R);
            let to = params.tokens + u64::from(row) * params.tokens_pitch;
            unroll!(I in 0..8 => {
                let output = column + (8 * I) as u32;
                if row < params.n_rows && output < n_columns {
                    let at = 4 * I + 2 * (R % 2);
                    let pair = [sums[R / 2][at], sums[R / 2][at + 1]].map(|u| u * scales[R]);
                    // SAFETY: the caller's promise.
                    unsafe { E::store_pair(to + u64::from(output) * E::BYTES as u64, pair) };
                }
            });
        });
    }
}
