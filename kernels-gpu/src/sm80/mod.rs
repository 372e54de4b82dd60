//! MaxSim forward on Ampere and later: cp.async, ldmatrix and mma.sync.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: 16 query rows per warp stay in shared memory while the documents of a unit
//! stream past in tiles of 64 tokens; a row's maximum over a document stays in registers.
//!
//! Pipeline:
//!  1. All threads copy the query tile, then the document's slabs (64 tokens × 128 bytes)
//!     into a ring, `STAGES - 1` slabs ahead. Rows past an end are zeros, never foreign rows.
//!  2. Each warp multiplies its 16 rows with every slab of a tile, then folds the maxima.
//!  3. After the document each warp adds its rows' maxima; thread 0 adds the warps' sums in
//!     order and stores the score.
//!
//! Budget: 32 accumulators per thread; shared memory as `layout::sm80` says.
//!
//! Known loss: the ring drains at the end of each document; other blocks of the
//! multiprocessor fill in.

mod element;
mod load;

pub use element::{Bf16, Element, F16, F32};

use core::hint::assert_unchecked;

use crate::layout::sm80::*;
use crate::layout::{SLAB_BYTES, slabs};
use crate::params::{ForwardParams, Segment};
use crate::ptx::copy::{copy_commit, copy_wait};
use crate::ptx::memory::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::*;
use crate::reduce::{Best, QueryRows, combine_quad, fold, sum_quads, valid_columns};
use crate::work::{self, Work};

/// Accumulators of a warp's 16 × 64 tile, per thread.
const N_ACCUMULATORS: usize = DOCUMENT_TILE / 2;
/// Words of a tile's column mask.
const WORDS: usize = DOCUMENT_TILE / 32;

/// Where a thread is, and the block's shared memory.
struct Block<'a> {
    params: &'a ForwardParams,
    thread: u32,
    lane: u32,
    warp: u32,
    n_slabs: u32,
    /// Window addresses: query tile `[slab][row][128 B]`, ring, one sum per warp.
    queries: u32,
    ring: u32,
    sums: u32,
}

/// The forward kernel of one row of the variant table.
///
/// # Safety
/// Launched with `32 * WARPS` threads and the row's dynamic shared memory; `params` as
/// [`ForwardParams`] says.
#[inline(always)]
pub unsafe fn forward<E: Element, const WARPS: usize, const STAGES: usize, const WINNERS: bool>(
    params: &ForwardParams,
) {
    let thread = thread_idx_x();
    let n_slabs = slabs(params.dim as usize, E::BYTES) as u32;
    // SAFETY: the host refuses dim 0. (Otherwise the divisions by it could panic.)
    unsafe { assert_unchecked(n_slabs != 0) };
    let queries = dynamic_shared();
    let ring = queries + n_slabs * (WARPS * QUERY_ROWS_PER_WARP * SLAB_BYTES) as u32;
    let block = Block {
        params,
        thread,
        lane: thread % 32,
        warp: thread / 32,
        n_slabs,
        queries,
        ring,
        sums: ring + (STAGES * stage_bytes(DOCUMENT_TILE)) as u32,
    };
    let mut tile = u32::MAX;
    let mut unit = block_idx_x();
    while unit < params.n_units {
        // SAFETY: the unit exists; every branch below is uniform over the block.
        unsafe {
            let work = work::unit(params, unit);
            if work.entry < work.entry_end {
                if work.tile != tile {
                    tile = work.tile;
                    block.load_queries::<E, WARPS>(&work);
                }
                let fragment = block.warp * QUERY_ROWS_PER_WARP as u32;
                let rows = QueryRows::new(params, &work, fragment, block.lane);
                let mut entry = work.entry;
                while entry < work.entry_end {
                    let document = work::document(params, work.query, entry);
                    block.document::<E, WARPS, STAGES, WINNERS>(&work, &rows, entry, document);
                    entry += 1;
                }
            }
        }
        unit += grid_dim_x();
    }
}

impl Block<'_> {
    /// Copies the work's query tile; it is complete after the next barrier of the ring.
    #[inline(always)]
    unsafe fn load_queries<E: Element, const WARPS: usize>(&self, work: &Work) {
        let n_rows = (WARPS * QUERY_ROWS_PER_WARP) as u32;
        let rows =
            Segment { start: work.rows.start + work.tile_row, len: work.rows.len - work.tile_row };
        let mut slab = 0;
        // SAFETY: nobody reads the old tile any more: each document ends with a barrier.
        unsafe {
            while slab < self.n_slabs {
                let shared = self.queries + slab * n_rows * SLAB_BYTES as u32;
                self.load_slab::<E, WARPS>(&self.params.queries, rows, n_rows, slab, shared);
                slab += 1;
            }
        }
        copy_commit();
    }

    /// One document against the resident query tile.
    #[inline(always)]
    unsafe fn document<E: Element, const WARPS: usize, const STAGES: usize, const WINNERS: bool>(
        &self,
        work: &Work,
        rows: &QueryRows,
        entry: u32,
        document: Segment,
    ) {
        let n_slabs = self.n_slabs;
        let n_steps = document.len.div_ceil(DOCUMENT_TILE as u32) * n_slabs;
        let mut best = Best::NONE;
        let mut has_tokens = false;
        // SAFETY: every thread of the block takes the same path.
        unsafe {
            let mut step = 0;
            while step < STAGES as u32 - 1 {
                self.load_step::<E, WARPS, STAGES>(document, step, n_steps);
                step += 1;
            }
            let mut step = 0;
            let mut row = 0;
            while row < document.len {
                let mut c = E::zero();
                let mut slab = 0;
                while slab < n_slabs {
                    // The slab of this step is there, and everyone is done with the last one.
                    copy_wait::<2>();
                    const { assert!(STAGES == 4) };
                    sync_threads();
                    self.load_step::<E, WARPS, STAGES>(document, step + STAGES as u32 - 1, n_steps);
                    let rows_bytes = (WARPS * QUERY_ROWS_PER_WARP * SLAB_BYTES) as u32;
                    let queries = self.queries
                        + slab * rows_bytes
                        + self.warp * (QUERY_ROWS_PER_WARP * SLAB_BYTES) as u32;
                    c = E::multiply_add(c, queries, self.stage::<STAGES>(step), self.lane);
                    step += 1;
                    slab += 1;
                }
                let left = document.len - row;
                let column = (row + 2 * (self.lane % 4)) as i32;
                if left >= DOCUMENT_TILE as u32 && self.params.documents.mask == 0 {
                    has_tokens = true;
                    fold::<N_ACCUMULATORS, WORDS, false, WINNERS>(
                        &mut best,
                        &c,
                        &[0; WORDS],
                        column,
                    );
                } else {
                    let documents = &self.params.documents;
                    let mut valid =
                        valid_columns::<WORDS>(documents, document.start + row, left, self.lane);
                    has_tokens |= valid[0] | valid[1] != 0;
                    valid[0] >>= 2 * (self.lane % 4);
                    valid[1] >>= 2 * (self.lane % 4);
                    fold::<N_ACCUMULATORS, WORDS, true, WINNERS>(&mut best, &c, &valid, column);
                }
                row += DOCUMENT_TILE as u32;
            }
            combine_quad::<WINNERS>(&mut best);
            let sum = sum_quads(rows.sum(&best));
            if has_tokens
                && self.lane.is_multiple_of(4)
                && self.params.winners | self.params.token_scores != 0
            {
                rows.store(self.params, work, entry, &best);
            }
            self.store_sum::<WARPS>(work, entry, if has_tokens { sum } else { 0.0 });
        }
    }

    /// Adds the warps' sums in order. Ends with all shared memory free for the next document.
    #[inline(always)]
    unsafe fn store_sum<const WARPS: usize>(&self, work: &Work, entry: u32, sum: f32) {
        // SAFETY: every thread of the block is here; warps write different words.
        unsafe {
            if self.lane == 0 {
                store_shared_f32(self.sums + 4 * self.warp, sum);
            }
            sync_threads();
            if self.thread == 0 {
                let mut total = 0.0;
                let mut warp = 0;
                while warp < WARPS as u32 {
                    total += load_shared_f32(self.sums + 4 * warp);
                    warp += 1;
                }
                work::store_sum(
                    self.params,
                    (WARPS * QUERY_ROWS_PER_WARP) as u32,
                    work,
                    entry,
                    total,
                );
            }
            sync_threads();
        }
    }

    /// Window address of the ring stage of a step.
    #[inline(always)]
    fn stage<const STAGES: usize>(&self, step: u32) -> u32 {
        self.ring + step % STAGES as u32 * stage_bytes(DOCUMENT_TILE) as u32
    }
}
