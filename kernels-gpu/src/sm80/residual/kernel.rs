//! The kernel: documents distributed over warps, 16 tokens at a time.

use crate::abi::layout::sm80::RESIDUAL_ROWS;
use crate::abi::params::{ForwardParams, Group, Residuals, Segment};
use crate::primitives::residual_chunk::Decoded;
use crate::primitives::work_tile;
use crate::ptx::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use crate::ptx::warp::broadcast;
use crate::sm80::residual::decoder::Decoder;
use crate::sm80::residual::query_rows::{Best, Queries};

/// Groups of a query tile.
pub(super) const GROUPS: u32 = (RESIDUAL_ROWS / Group::ROWS) as u32;
/// Fragments of 8 query rows.
pub(super) const FRAGMENTS: usize = RESIDUAL_ROWS / 8;
/// Tokens of a step.
pub(super) const STEP: u32 = 16;
/// Warps per block.
pub(super) const WARPS: u32 = 4;

/// The forward kernel of one line of the variant table.
///
/// # Safety
/// Launched with `32 * WARPS` threads; `params` as [`ForwardParams`] says, query rows on 16-byte
/// boundaries; `tokens` as [`Residuals`] says.
#[inline(always)]
pub unsafe fn forward<E: Decoded>(params: &ForwardParams, tokens: &Residuals) {
    // SAFETY: the caller's promise.
    unsafe {
        match tokens.nbits {
            1 => run::<E, 1>(params, tokens),
            2 => run::<E, 2>(params, tokens),
            4 => run::<E, 4>(params, tokens),
            _ => run::<E, 8>(params, tokens),
        }
    }
}

/// Works through the block's units, buckets of `NBITS`.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
unsafe fn run<E: Decoded, const NBITS: u32>(params: &ForwardParams, tokens: &Residuals) {
    let lane = thread_idx_x() % 32;
    // SAFETY: every warp is whole here. By the broadcast the assembler knows that the number is the
    // same in all lanes.
    unsafe {
        let warp = broadcast(thread_idx_x() / 32);
        let decoder = Decoder::<NBITS>::new(tokens, lane);
        let mut queries = Queries::none(lane);
        let mut unit = block_idx_x();
        while unit < params.n_units {
            let work = work_tile::unit(params, unit, GROUPS);
            unit += grid_dim_x();
            if work.tile != queries.tile {
                queries = Queries::load(params, work.tile, lane);
            }
            let mut now = Walk::new(params, work.entry + warp, work.entry_end);
            let mut fetched = now;
            let mut centroids = decoder.gather(decoder.codes(fetched.row));
            let mut small = decoder.read(fetched.row);
            fetched.step(params);
            let mut codes = decoder.codes(fetched.row);
            let mut best = Best::NONE;
            while now.entry < now.entry_end {
                let addresses = decoder.addresses(codes);
                let ahead = decoder.read(fetched.row);
                fetched.step(params);
                codes = decoder.codes(fetched.row);
                let c = decoder.multiply::<E>(&queries, now.row, &mut centroids, addresses, &small);
                best.take(params, now, c, small.norms, lane / 4);
                if now.left <= STEP {
                    best.finish(params, &queries, now.entry, lane);
                    best = Best::NONE;
                }
                now.step(params);
                small = ahead;
            }
        }
    }
}

/// A warp's way through its documents, every [`WARPS`]-th entry, in steps of 16 tokens. An empty
/// document has one.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub(super) entry: u32,
    pub(super) entry_end: u32,
    /// Row of the step's first token; any row where there is no entry left.
    pub(super) row: u32,
    /// The document's tokens from there on.
    pub(super) left: u32,
    /// Rows of the next document.
    ahead: Segment,
}

impl Walk {
    #[inline(always)]
    pub(super) unsafe fn new(params: &ForwardParams, entry: u32, entry_end: u32) -> Self {
        let none = Segment { start: 0, len: 0 };
        let mut walk = Walk { entry, entry_end, row: 0, left: 0, ahead: none };
        // SAFETY: entries before the end exist.
        unsafe {
            if entry < entry_end {
                let document = work_tile::document(params, entry);
                (walk.row, walk.left) = (document.start, document.len);
            }
            walk.look_ahead(params);
        }
        walk
    }

    #[inline(always)]
    unsafe fn look_ahead(&mut self, params: &ForwardParams) {
        if self.entry + WARPS < self.entry_end {
            // SAFETY: the entry exists.
            self.ahead = unsafe { work_tile::document(params, self.entry + WARPS) };
        }
    }

    /// Advances to the next step.
    ///
    /// # Safety
    /// `params` must be those that it began with.
    #[inline(always)]
    pub(super) unsafe fn step(&mut self, params: &ForwardParams) {
        if self.left > STEP {
            self.row += STEP;
            self.left -= STEP;
            return;
        }
        self.entry += WARPS;
        (self.row, self.left) = (self.ahead.start, self.ahead.len);
        // SAFETY: the caller's promise.
        unsafe { self.look_ahead(params) };
    }
}

/// The group, and the row of it, that a lane ends with: see [`Best::finish`].
#[inline(always)]
pub(super) fn lane_row(lane: u32) -> (u32, u32) {
    (lane / 16, 8 * (lane / 8 % 2) + 2 * (lane % 4) + lane / 4 % 2)
}
