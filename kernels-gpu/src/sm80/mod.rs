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
use crate::params::{ForwardParams, Group, Segment};
use crate::ptx::copy::{copy_commit, copy_wait};
use crate::ptx::memory::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::*;
use crate::reduce::{
    Best, QueryRows, TileGroups, combine_quad, fold, fold_masked, sum_quads, valid_columns,
};
use crate::work::{self, Documents, Units};

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
    let mut units = Units::new(params);
    // SAFETY: every branch below is uniform over the block.
    unsafe {
        let mut groups = TileGroups::new(Group::NONE, block.lane);
        let mut rows = QueryRows::new(params, Group::NONE, block.lane);
        while let Some(work) = units.next(WARPS as u32) {
            if work.tile != tile && work.entry < work.entry_end {
                tile = work.tile;
                let group = |warp: u32| work::group(params, tile * WARPS as u32 + warp);
                block.load_queries::<E, WARPS>(tile);
                rows = QueryRows::new(params, group(block.warp), block.lane);
                let own = if block.lane < WARPS as u32 { group(block.lane) } else { Group::NONE };
                groups = TileGroups::new(own, block.lane);
            }
            let mut documents = Documents::new(params, &work);
            while let Some((entry, document)) = documents.next() {
                block.document::<E, WARPS, STAGES, WINNERS>(&groups, &rows, entry, document);
            }
        }
    }
}

impl Block<'_> {
    /// Copies a query tile; it is complete after the next barrier of the ring.
    #[inline(always)]
    unsafe fn load_queries<E: Element, const WARPS: usize>(&self, tile: u32) {
        let n_rows = (WARPS * QUERY_ROWS_PER_WARP) as u32;
        let mut slab = 0;
        // SAFETY: nobody reads the old tile any more: each document ends with a barrier.
        unsafe {
            while slab < self.n_slabs {
                let shared = self.queries + slab * n_rows * SLAB_BYTES as u32;
                self.load_slab::<E, WARPS>(&self.params.queries, n_rows, slab, shared, |row| {
                    let group = work::group(
                        self.params,
                        tile * WARPS as u32 + row / QUERY_ROWS_PER_WARP as u32,
                    );
                    let row = row % QUERY_ROWS_PER_WARP as u32;
                    (row < group.n_rows()).then_some(group.start + row)
                });
                slab += 1;
            }
        }
        copy_commit();
    }

    /// One document against the resident query tile.
    #[inline(always)]
    unsafe fn document<E: Element, const WARPS: usize, const STAGES: usize, const WINNERS: bool>(
        &self,
        groups: &TileGroups,
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
                    fold(&mut best, &c, column, WINNERS);
                } else {
                    let documents = &self.params.documents;
                    let valid =
                        valid_columns::<WORDS>(documents, document.start + row, left, self.lane);
                    has_tokens |= valid[0] | valid[1] != 0;
                    let valid = valid.map(|word| word >> (2 * (self.lane % 4)));
                    fold_masked(&mut best, c, &valid, column, WINNERS);
                }
                row += DOCUMENT_TILE as u32;
            }
            combine_quad(&mut best, WINNERS);
            let sum = sum_quads(rows.sum(&best));
            if has_tokens
                && self.lane.is_multiple_of(4)
                && self.params.winners | self.params.token_scores != 0
            {
                rows.store(self.params, entry, &best, self.lane);
            }
            self.store_sums::<WARPS>(groups, entry, if has_tokens { sum } else { 0.0 });
        }
    }

    /// Adds the warps' sums by query. Ends with all shared memory free for the next document.
    #[inline(always)]
    unsafe fn store_sums<const WARPS: usize>(&self, groups: &TileGroups, entry: u32, sum: f32) {
        // SAFETY: every thread of the block is here; warps write different words.
        unsafe {
            if self.lane == 0 {
                store_shared_f32(self.sums + 4 * self.warp, sum);
            }
            sync_threads();
            if self.warp == 0 {
                let mut sum = 0.0;
                if self.lane < WARPS as u32 {
                    sum = load_shared_f32(self.sums + 4 * self.lane);
                }
                groups.store(self.params, entry, sum);
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
