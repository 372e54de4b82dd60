//! Gradients through a projection, of rows that have one: products of ∂u with W and with the rows,
//! and the rows themselves, one behind the other.
//!
//! Both products are C[m, n] = Σ_k A[m, k] · B[k, n], with A = ∂u in f32 and B in the element type:
//! ∂H = ∂u · W, and ∂W = ∂uᵀ · H, whose sums over rows are cut into parts. Tensor cores would round
//! f32 to TF32, so a number is two of these, and a product those of its parts: two where B has
//! elements of two bytes, which are TF32 as they are, or else three. Sums are f32.
//!
//! Tiling: a CTA has 128 × 64 results, each of its eight warps 32 × 32.
//!
//! Pipeline:
//!  1. Each thread loads its numbers of the next sixteen k into registers.
//!  2. It stores those to one of two stages of shared memory; one barrier.
//!  3. It multiplies a stage, while loads of the next numbers are in flight.
//!
//! Budget: 32 accumulators of 128 registers, 25 KB of shared memory. With stages of eight k a CTA
//! waits for the second-level cache twice as often.

use crate::abi::params::projection::gradient::*;
use crate::primitives::row_vector::VectorElement;
use crate::primitives::unroll::unroll;
use crate::projection::Projected;
use crate::ptx::element::F32;
use crate::ptx::global::{
    load_f32, load_u16_if, load_u32, load_u32_if, load_u32x4_if, store_u32, store_u32x4,
};
use crate::ptx::mma::mma_tf32;
use crate::ptx::shared::{dynamic_shared, load_shared_u32, store_shared_f32};
use crate::ptx::thread::{block_idx_x, sync_threads, thread_idx_x};
use core::hint::assert_unchecked;

/// Bytes of a chunk of a row.
const CHUNK_BYTES: u32 = 16;

/// Numbers of A and of B that a thread loads for a stage.
const A_LOADS: u32 = (TILE_M * TILE_K / THREADS) as u32;
const B_LOADS: u32 = (TILE_N * TILE_K / THREADS) as u32;

/// Warps along the rows of the tile, and rows and columns of each: two fragments of 16 rows, four
/// of eight columns.
const WARPS_M: u32 = 4;
const WARP_M: u32 = 32;
const WARP_N: u32 = 32;
const _: () = assert!(TILE_M as u32 == WARPS_M * WARP_M);
const _: () = assert!(TILE_N as u32 * WARPS_M == THREADS as u32 / 32 * WARP_N);

/// The sums of a thread: of two fragments of rows, four of columns each.
type Sums = [[f32; 4]; 8];

/// The numbers that a thread brings for a stage.
#[derive(Clone, Copy)]
struct Numbers {
    a: [f32; 8],
    b: [f32; 4],
}

/// Multiplies a tile of one part.
///
/// # Safety
/// `params` must describe matrices as [`ProductParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn product<T: Projected>(params: &ProductParams) {
    const { assert!(A_LOADS == 8 && B_LOADS == 4) };
    let thread = thread_idx_x();
    let tiles_n = params.n.div_ceil(TILE_N as u32);
    let n_tiles = tiles_n * params.m.div_ceil(TILE_M as u32);
    // SAFETY: the host launches no block where there is no tile.
    unsafe { assert_unchecked(tiles_n != 0 && n_tiles != 0) };
    let (tile, part) = (block_idx_x() % n_tiles, block_idx_x() / n_tiles);
    let place = Place {
        params,
        thread,
        m: tile / tiles_n * TILE_M as u32,
        n: tile % tiles_n * TILE_N as u32,
        k_end: (part + 1).saturating_mul(params.k_of_part).min(params.k),
        shared: dynamic_shared(),
    };
    // SAFETY: the caller's promise; all threads take every step.
    unsafe {
        let mut k = part * params.k_of_part;
        let mut stage = 0;
        let mut from = place.from::<T>(k);
        let mut next = place.load::<T>(&mut from, k);
        let mut sums: Sums = core::mem::zeroed();
        while k < place.k_end {
            place.store(stage, next);
            // Behind the barrier the stage is there, and the other one free.
            sync_threads();
            k += TILE_K as u32;
            next = place.load::<T>(&mut from, k);
            place.multiply::<T>(stage, &mut sums);
            stage ^= 1;
        }
        place.finish::<T>(&sums, part);
    }
}

/// Addresses of a thread's first numbers of a stage.
struct From {
    a: u64,
    b: u64,
}

/// Position of a thread.
struct Place<'a> {
    params: &'a ProductParams,
    thread: u32,
    /// First row and column of the tile.
    m: u32,
    n: u32,
    /// One past the part's last k.
    k_end: u32,
    /// Window address of the stages.
    shared: u32,
}

impl Place<'_> {
    /// Row and k of number `i` of A that the thread loads, within the tile: neighbouring threads
    /// have neighbouring numbers.
    #[inline(always)]
    fn of_a(&self, i: u32) -> (u32, u32) {
        const M: u32 = TILE_M as u32;
        const K: u32 = TILE_K as u32;
        match self.params.a_column {
            1 => (self.thread / K + THREADS as u32 / K * i, self.thread % K),
            _ => (self.thread % M, self.thread / M + THREADS as u32 / M * i),
        }
    }

    /// Column and k of number `i` of B.
    #[inline(always)]
    fn of_b(&self, i: u32) -> (u32, u32) {
        const N: u32 = TILE_N as u32;
        (self.thread % N, self.thread / N + THREADS as u32 / N * i)
    }

    /// Where the thread's first numbers of the stage from `k` on are.
    #[inline(always)]
    fn from<T: VectorElement>(&self, k: u32) -> From {
        let params = self.params;
        let (row, of_k) = self.of_a(0);
        let index = u64::from(self.m + row) * u64::from(params.a_row)
            + u64::from(k + of_k) * u64::from(params.a_column);
        let (column, of_k) = self.of_b(0);
        let in_row = u64::from(self.n + column) * T::BYTES as u64;
        From {
            a: params.a + index * 4,
            b: params.b + u64::from(k + of_k) * params.b_pitch + in_row,
        }
    }

    /// Loads the thread's numbers of a stage whose first k is `k`; zeros where there are none. Then
    /// `from` is of the next stage.
    ///
    /// # Safety
    /// As [`product`].
    #[inline(always)]
    #[expect(unused_assignments, reason = "the last step is written like the others")]
    unsafe fn load<T: VectorElement>(&self, from: &mut From, k: u32) -> Numbers {
        let params = self.params;
        let mut numbers = Numbers { a: [0.0; 8], b: [0.0; 4] };
        // The numbers that are there are the first ones.
        let ([row, a_k], [row_step, k_step]) = {
            let ((row, k), (next_row, next_k)) = (self.of_a(0), self.of_a(1));
            ([row, k], [next_row - row, next_k - k])
        };
        let rows = params.m.saturating_sub(self.m + row);
        let left = self.k_end.saturating_sub(k + a_k);
        let n_a = match row_step {
            0 if rows > 0 => left.div_ceil(THREADS as u32 / TILE_M as u32),
            0 => 0,
            _ if left > 0 => rows.div_ceil((THREADS / TILE_K) as u32),
            _ => 0,
        };
        let (column, b_k) = self.of_b(0);
        let left = self.k_end.saturating_sub(k + b_k);
        let is_column = self.n + column < params.n;
        let n_b = if is_column { left.div_ceil((THREADS / TILE_N) as u32) } else { 0 };
        // SAFETY: the caller's promise: what is not there is not read.
        unsafe {
            let step = u64::from(row_step * params.a_row + k_step * params.a_column) * 4;
            let mut at = from.a;
            unroll!(I in 0..8 => {
                numbers.a[I] = f32::from_bits(load_u32_if(at, u32::from(n_a > I as u32)));
                at += step;
            });
            let mut at = from.b;
            unroll!(I in 0..4 => {
                let is_there = u32::from(n_b > I as u32);
                let word = match T::BYTES {
                    4 => load_u32_if(at, is_there),
                    _ => load_u16_if(at, is_there),
                };
                numbers.b[I] = T::widen([word, 0, 0, 0])[0];
                at += (THREADS / TILE_N) as u64 * params.b_pitch;
            });
        }
        from.a += TILE_K as u64 * u64::from(params.a_column) * 4;
        from.b += TILE_K as u64 * params.b_pitch;
        numbers
    }

    /// Window address of number (k, row) of A in a stage.
    #[inline(always)]
    fn a(&self, stage: u32, k: u32, row: u32) -> u32 {
        self.shared + stage * STAGE_BYTES as u32 + 4 * (k * A_PITCH as u32 + row)
    }

    /// Window address of number (k, column) of B in a stage.
    #[inline(always)]
    fn b(&self, stage: u32, k: u32, column: u32) -> u32 {
        self.a(stage, TILE_K as u32, 0) + 4 * (k * B_PITCH as u32 + column)
    }

    /// Stores the thread's numbers of a stage.
    ///
    /// # Safety
    /// Nothing may read the stage.
    #[inline(always)]
    unsafe fn store(&self, stage: u32, numbers: Numbers) {
        // SAFETY: the caller's promise; each number is one thread's.
        unsafe {
            unroll!(I in 0..8 => {
                let (row, k) = self.of_a(I as u32);
                store_shared_f32(self.a(stage, k, row), numbers.a[I]);
            });
            unroll!(I in 0..4 => {
                let (column, k) = self.of_b(I as u32);
                store_shared_f32(self.b(stage, k, column), numbers.b[I]);
            });
        }
    }

    /// First row and column of the warp, in the tile.
    #[inline(always)]
    fn of_warp(&self) -> (u32, u32) {
        let warp = self.thread / 32;
        (warp % WARPS_M * WARP_M, warp / WARPS_M * WARP_N)
    }

    /// Adds the products of a stage, in two steps of eight k. Fragments have these in another
    /// order, the same in A and B: lane l has k = 4 (l % 4) and the next in the first step, and the
    /// two behind them in the second.
    ///
    /// # Safety
    /// The stage must be there for all threads, of whole warps.
    #[inline(always)]
    unsafe fn multiply<T: VectorElement>(&self, stage: u32, sums: &mut Sums) {
        let (row, column) = self.of_warp();
        let lane = self.thread % 32;
        let (k, own) = (4 * (lane % 4), lane / 4);
        let a = self.a(stage, k, row + own);
        let b = self.b(stage, k, column + own);
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(S in 0..2 => {
                let (mut of_b, mut rest_of_b) = ([[0u32; 2]; 4], [[0u32; 2]; 4]);
                unroll!(J in 0..4 => {
                    unroll!(H in 0..2 => {
                        let at = b + 4 * (8 * J + B_PITCH * (2 * S + H)) as u32;
                        let x = load_shared_u32(at);
                        (of_b[J][H], rest_of_b[J][H]) = match T::BYTES {
                            4 => split(x),
                            // Elements of two bytes are TF32 as they are.
                            _ => (x, 0),
                        };
                    });
                });
                unroll!(I in 0..2 => {
                    let (mut first, mut rest) = ([0u32; 4], [0u32; 4]);
                    unroll!(F in 0..4 => {
                        let at = 16 * I + 8 * (F % 2) + A_PITCH * (2 * S + F / 2);
                        (first[F], rest[F]) = split(load_shared_u32(a + 4 * at as u32));
                    });
                    unroll!(J in 0..4 => {
                        let sum = &mut sums[4 * I + J];
                        *sum = mma_tf32(*sum, rest, of_b[J]);
                        if T::BYTES == 4 {
                            *sum = mma_tf32(*sum, first, rest_of_b[J]);
                        }
                        *sum = mma_tf32(*sum, first, of_b[J]);
                    });
                });
            });
        }
    }

    /// Stores the thread's sums of part `part`, or adds them to what is there.
    ///
    /// # Safety
    /// As [`product`].
    #[inline(always)]
    unsafe fn finish<T: Projected>(&self, sums: &Sums, part: u32) {
        let params = self.params;
        let (row, column) = self.of_warp();
        let lane = self.thread % 32;
        let (row, column) = (self.m + row + lane / 4, self.n + column + 2 * (lane % 4));
        unroll!(I in 0..4 => {
            let mut row = row + 8 * I as u32;
            let mut is_there = row < params.m;
            if is_there && params.rows != 0 {
                // SAFETY: there is a number for each row.
                row = unsafe { load_u32(params.rows + u64::from(row) * 4) };
                is_there = row != NO_ROW;
            }
            let first = (u64::from(part) * u64::from(params.m) + u64::from(row))
                * u64::from(params.n);
            unroll!(J in 0..4 => {
                let column = column + 8 * J as u32;
                let of = &sums[4 * (I / 2) + J];
                let pair = [of[2 * (I % 2)], of[2 * (I % 2) + 1]];
                let n_columns = params.n.saturating_sub(column);
                if is_there && n_columns > 0 {
                    // SAFETY: the results have the numbers, which are this thread's.
                    unsafe { self.store_pair::<T>(first + u64::from(column), pair, n_columns) };
                }
            });
        });
    }

    /// Stores two neighbouring sums, or the first alone where `n_columns` is 1.
    ///
    /// # Safety
    /// The results must have them, for this thread to write.
    #[inline(always)]
    unsafe fn store_pair<T: Projected>(&self, index: u64, pair: [f32; 2], n_columns: u32) {
        let params = self.params;
        // Rows of an even number of elements keep pairs aligned, where the first one is.
        let bytes = if params.narrows != 0 { T::BYTES as u64 } else { 4 };
        let to = params.out + index * bytes;
        let is_pair = n_columns > 1 && to.is_multiple_of(2 * bytes);
        // SAFETY: the caller's promise.
        unsafe {
            if params.adds != 0 {
                store_u32(to, (load_f32(to) + pair[0]).to_bits());
                if n_columns > 1 {
                    store_u32(to + 4, (load_f32(to + 4) + pair[1]).to_bits());
                }
            } else if params.narrows == 0 {
                match is_pair {
                    true => F32::store_pair(to, pair),
                    false => store_single::<F32>(to, pair, n_columns),
                }
            } else {
                match is_pair {
                    true => T::store_pair(to, pair),
                    false => store_single::<T>(to, pair, n_columns),
                }
            }
        }
    }
}

/// Stores two elements one by one, or the first alone.
///
/// # Safety
/// The address must be that of as many elements, for this thread to write.
#[inline(always)]
unsafe fn store_single<T: Projected>(to: u64, pair: [f32; 2], n_columns: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        T::store_one(to, pair[0]);
        if n_columns > 1 {
            T::store_one(to + T::BYTES as u64, pair[1]);
        }
    }
}

/// The bits of an f32 as two numbers of TF32, whose sum is within 2⁻²² of it: its first bits, and
/// what is left, rounded. Nothing is left of an infinity.
#[inline(always)]
fn split(x: u32) -> (u32, u32) {
    const MASK: u32 = 0xFFFF_E000;
    let first = x & MASK;
    let rest = f32::from_bits(x) - f32::from_bits(first);
    let rest = if rest.is_nan() { 0 } else { rest.to_bits() };
    (first, (rest + 0x1000) & MASK)
}

/// Copies this thread's chunk of a row.
///
/// # Safety
/// `params` must describe rows as [`GatherRowsParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn gather(params: &GatherRowsParams) {
    let n_chunks = params.row_bytes.div_ceil(CHUNK_BYTES);
    let index = u64::from(block_idx_x()) * THREADS as u64 + u64::from(thread_idx_x());
    // SAFETY: rows are not empty.
    unsafe { assert_unchecked(n_chunks != 0) };
    let (row, chunk) = (index / u64::from(n_chunks), index % u64::from(n_chunks));
    if row >= u64::from(params.n_rows) {
        return;
    }
    let offset = chunk * u64::from(CHUNK_BYTES);
    let left = params.row_bytes - offset as u32;
    // SAFETY: the list has the row, and both matrices have its chunks; what lies behind the row is
    // not read.
    unsafe {
        let source = load_u32(params.rows + row * 4);
        let is_row = u32::from(source != NO_ROW);
        let from = params.from + u64::from(source) * params.from_pitch + offset;
        let to = params.to + row * params.to_pitch + offset;
        if left >= CHUNK_BYTES {
            store_u32x4(to, load_u32x4_if(from, is_row));
            return;
        }
        let mut words = [0; 4];
        unroll!(I in 0..8 => {
            let is_there = is_row & u32::from(2 * (I as u32) < left);
            let half = load_u16_if(from + 2 * I as u64, is_there);
            words[I / 2] |= half << (16 * (I as u32 % 2));
        });
        store_u32x4(to, words);
    }
}
