//! MaxSim of up to 32 query rows with documents that lie one behind the other.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: queries on M, documents on N of `mma.sync`. The documents of a unit are one run of rows,
//! dealt out to the warps in chunks of 16, whatever documents they belong to. A warp has all 32 query
//! rows in registers.
//!
//! Pipeline:
//!  1. Each warp asks for its own chunks, as many ahead as its ring has stages, by one copy each: rows
//!     of 256 bytes lie together, so that there is no tensor map, and nobody to wait for.
//!  2. It multiplies what a chunk has of a document with the query rows and keeps the maxima per lane.
//!     Which element is which k of a product is nobody's business as long as both sides agree: lane
//!     (g, t) takes the 16-byte chunks t, 4 + t, 8 + t and 12 + t of its rows, as they lie.
//!  3. At a document's end lanes exchange maxima, and each of the 32 leaves that of one query row to
//!     the storing warp, in a small ring.
//!  4. The storing warp takes the maxima of all warps, adds the rows, and stores the score. It loads
//!     the query tiles, too.
//!
//! Budget: 64 registers of queries, 16 of sums, 16 of documents; a few chunks a warp on their way.
//! More of them make the first of every block, and the code itself, wait longer behind those of others.
//!
//! Known loss: eight lanes that read 64 bytes of two rows at a time meet half of the banks; that is
//! a third of what the products leave. Between two units of a block nothing is on its way.

mod multiply;
mod store;
mod units;

use self::multiply::multiply;
use self::store::store;
use crate::layout::runs::*;
use crate::params::{Group, RunParams};
use crate::ptx::matrix::Half;
use crate::ptx::memory::dynamic_shared;
use crate::ptx::thread::thread_idx_x;
use crate::ptx::warp::broadcast;

/// Groups of a query tile.
const GROUPS: u32 = (QUERY_ROWS / Group::ROWS) as u32;
/// Rows of a chunk.
const ROWS: u32 = CHUNK_ROWS as u32;
/// Bytes of a row.
const BYTES: u32 = ROW_BYTES as u32;

/// Window addresses of the block's shared memory.
#[derive(Clone, Copy)]
struct Shared<const WARPS: usize, const STAGES: usize> {
    base: u32,
    warp: u32,
}

impl<const WARPS: usize, const STAGES: usize> Shared<WARPS, STAGES> {
    /// A chunk of the warp's ring.
    #[inline(always)]
    fn stage(&self, slot: u32) -> u32 {
        self.base + (self.warp * STAGES as u32 + slot) * CHUNK_BYTES as u32
    }

    /// The query tile.
    #[inline(always)]
    fn queries(&self) -> u32 {
        self.base + queries_offset(WARPS, STAGES) as u32
    }

    /// What a warp has found of a document, in a slot.
    #[inline(always)]
    fn maxima(&self, slot: u32, warp: u32) -> u32 {
        let first = self.base + maxima_offset(WARPS, STAGES) as u32;
        first + (slot * WARPS as u32 + warp) * MAXIMA_BYTES as u32
    }

    #[inline(always)]
    fn barriers(&self) -> u32 {
        self.base + barriers_offset(WARPS, STAGES) as u32
    }

    /// Completes when a stage of the warp's holds a chunk.
    #[inline(always)]
    fn full(&self, slot: u32) -> u32 {
        self.barriers() + 8 * (self.warp * STAGES as u32 + slot)
    }

    /// Completes when the query tile is there.
    #[inline(always)]
    fn query_full(&self) -> u32 {
        self.barriers() + 8 * (WARPS * STAGES) as u32
    }

    /// Completes when every warp has the query tile in registers.
    #[inline(always)]
    fn query_empty(&self) -> u32 {
        self.query_full() + 8
    }

    /// Completes when every warp has left its maxima in a slot.
    #[inline(always)]
    fn maxima_full(&self, slot: u32) -> u32 {
        self.query_full() + 8 * (2 + slot)
    }

    /// Completes when the maxima of a slot are read.
    #[inline(always)]
    fn maxima_empty(&self, slot: u32) -> u32 {
        self.maxima_full(SLOTS as u32) + 8 * slot
    }
}

/// The forward kernel of one row of the variant table.
///
/// # Safety
/// Launched with the row's threads and dynamic shared memory; `params` as [`RunParams`] says.
#[inline(always)]
pub unsafe fn forward<E: Half, const WARPS: usize, const STAGES: usize>(params: &RunParams) {
    let lane = thread_idx_x() % 32;
    // SAFETY: every warp is whole, and has one role; it sets up the barriers that it waits for first.
    // The broadcast tells the assembler that the number is the same in all lanes.
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let shared = Shared::<WARPS, STAGES> { base: dynamic_shared(), warp };
        if warp == WARPS as u32 {
            return store(params, shared, lane);
        }
        multiply::<E, WARPS, STAGES>(params, shared, lane);
    }
}

/// The group, and the row of it, that a lane ends with.
#[inline(always)]
fn own_row(lane: u32) -> (u32, u32) {
    (lane / 2 % 2, lane % 2 * 8 + lane / 4)
}
