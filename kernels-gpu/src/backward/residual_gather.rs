//! `∂Q[q, s] = Σ_k g[q, d_k] · y[d_k, winner(q, d_k, s)]`: as [`crate::backward::gather`], but rows
//! are decoded where that reads them.
//!
//! A lane looks up the code of its pair's winner together with the winner. Then each lane reads its
//! 16 bytes of the centroid and its chunk of the buckets, as the lanes of a matrix read 16 bytes of
//! a row: the lane has the same 8 elements of every row. r of a row is part of its factor.

use crate::abi::params::Residuals;
use crate::abi::params::backward::residual::ResidualGatherParams;
use crate::abi::params::backward::{NO_ROW, Output};
use crate::abi::residual_chunk::{CHUNK_LEN, slot};
use crate::backward::gather::{Ahead, RowPart};
use crate::backward::output::store;
use crate::backward::residual_decoded::load_buckets;
use crate::primitives::residual_chunk::{Decoded, Weights};
use crate::primitives::row_vector::sum::add_slots;
use crate::primitives::row_vector::{Columns, F16, Sums};
use crate::primitives::unroll::unroll;
use crate::ptx::global::{load_u32_if, load_u32x4_if};
use crate::ptx::math::fma;
use crate::ptx::thread::block_idx_x;
use crate::ptx::warp::shuffle;

/// Sources that a lane loads chunks of before it decodes any: those of one `unroll!`.
const LOADS: usize = 2;

/// Sums the sources of this warp's row.
///
/// # Safety
/// `params` must describe a call as [`ResidualGatherParams`] says; all threads of the block.
#[inline(always)]
pub unsafe fn gather<T: Decoded>(params: &ResidualGatherParams) {
    let sums_of = &params.sums;
    // SAFETY: the host launches a block per task, column and chunk; what it lists exists.
    unsafe {
        let part = RowPart::of_warp(sums_of, block_idx_x());
        if part.has_no_row() {
            return;
        }
        let (row, begin, end) = (part.row(), part.begin(sums_of), part.end(sums_of));
        // A chunk is as many elements as a lane reads of a row of f16.
        let columns = Columns::new::<F16>(&sums_of.source, part.column);
        let nbits = params.documents.nbits;
        let chunks = Chunks::new(&params.documents, &columns);
        let mut sums: Sums = core::mem::zeroed();
        let mut k = begin;
        if begin < end {
            let mut next = Ahead::load(sums_of, &part.task.first, row, k, end);
            while k < end {
                let [row_of, factor] = next.source(&sums_of.pairs);
                let address = params.documents.codes + u64::from(row_of) * 4;
                let code = load_u32_if(address, u32::from(row_of != NO_ROW));
                let count = (end - k).min(32);
                k += 32;
                next = Ahead::load(sums_of, &part.task.first, row, k, end);
                let sources = [row_of, code, factor];
                match nbits {
                    1 => chunks.add::<T, 1>(&columns, sources, count, &mut sums),
                    2 => chunks.add::<T, 2>(&columns, sources, count, &mut sums),
                    4 => chunks.add::<T, 4>(&columns, sources, count, &mut sums),
                    _ => chunks.add::<T, 8>(&columns, sources, count, &mut sums),
                }
            }
        }
        add_slots::<F16>(&columns, &mut sums);
        // The gradient is f32, and overwritten.
        let out = Output { element: Output::F32, adds: 0, ..sums_of.out };
        store::<F16>(&out, &columns, part.index(sums_of), &sums);
    }
}

/// A lane's chunk of every row.
#[derive(Clone, Copy)]
struct Chunks<'a> {
    tokens: &'a Residuals,
    /// Address of the lane's chunk of centroid 0.
    centroids: u64,
    /// Address of the lane's buckets of row 0.
    buckets: u64,
}

impl<'a> Chunks<'a> {
    #[inline(always)]
    fn new(tokens: &'a Residuals, columns: &Columns) -> Chunks<'a> {
        let chunk = columns.element / CHUNK_LEN as u32;
        Chunks {
            tokens,
            centroids: tokens.centroids + u64::from(chunk) * 16,
            buckets: tokens.residuals + u64::from(slot(chunk as usize) as u32 * tokens.nbits),
        }
    }

    /// Adds the first `count` of the sources that the lanes hold: row, code and factor.
    ///
    /// # Safety
    /// A whole warp, with the same `count`; `NBITS` is that of the rows. Those other than
    /// [`NO_ROW`] must exist and have that code.
    #[inline(always)]
    unsafe fn add<T: Decoded, const NBITS: u32>(
        &self,
        columns: &Columns,
        source: [u32; 3],
        count: u32,
        sums: &mut Sums,
    ) {
        // For every 32 sources: looking up pairs needs the registers.
        // SAFETY: the caller's promise.
        let weights = unsafe { Weights::new::<NBITS>(self.tokens) };
        let slots = 32 >> columns.lanes_log2;
        let mut done = 0;
        while done < count {
            let mut loaded = [([0u32; 4], [0u32; 2], 0.0f32); LOADS];
            unroll!(U in 0..2 => {
                // SAFETY: the caller's promise.
                loaded[U] = unsafe {
                    self.load::<NBITS>(columns, source, done + U as u32 * slots, count)
                };
            });
            unroll!(U in 0..2 => {
                let (centroid, buckets, factor) = loaded[U];
                // SAFETY: the caller's promise. Of a row that is not there: some weight, times 0.
                let words = unsafe { weights.add::<T, NBITS>(centroid, buckets) };
                let values = T::widen(words);
                unroll!(E in 0..8 => { sums[E] = fma(factor, values[E], sums[E]); });
            });
            done += LOADS as u32 * slots;
        }
    }

    /// The lane's chunk of one source, of those from `done` on, and its factor.
    ///
    /// # Safety
    /// As [`Chunks::add`].
    #[inline(always)]
    unsafe fn load<const NBITS: u32>(
        &self,
        columns: &Columns,
        [row, code, factor]: [u32; 3],
        done: u32,
        count: u32,
    ) -> ([u32; 4], [u32; 2], f32) {
        let i = done + columns.slot;
        // SAFETY: the whole warp is here; the caller's promise for the rows.
        unsafe {
            let row = shuffle(row, i);
            let code = shuffle(code, i);
            let factor = f32::from_bits(shuffle(factor, i));
            let is_there = (i < count) & (row != NO_ROW) & (columns.n_elements > 0);
            let condition = u32::from(is_there);
            let centroid = self.centroids + u64::from(code) * u64::from(self.tokens.pitch_bytes);
            let buckets = self.buckets + u64::from(row) * u64::from(self.tokens.row_bytes);
            (
                load_u32x4_if(centroid, condition),
                load_buckets::<NBITS>(buckets, condition),
                if is_there { factor } else { 0.0 },
            )
        }
    }
}
