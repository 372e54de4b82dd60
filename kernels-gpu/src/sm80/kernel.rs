//! The kernel: its constants, its main loop, its epilogue.

use crate::abi::layout::slabs;
use crate::abi::layout::sm80::*;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::accumulator::{Best, TileGroups};
use crate::primitives::documents::TokenPlace;
use crate::primitives::row_maxima::{LaneRows, distribute, sum_halves, sum_quads, valid_rows};
use crate::primitives::row_scales::Normalizer;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::ptx::copy::copy_wait;
use crate::ptx::shared::{dynamic_shared, load_shared_f32, store_shared_f32};
use crate::ptx::thread::*;
use crate::ptx::warp::broadcast;
pub use crate::sm80::element::{Element, SlabElement};
use crate::sm80::pipeline::{Kind, Loader, Stage, Tile};
use core::marker::PhantomData;

/// A line of the variant table.
pub trait Kernel: Sized {
    /// Element type.
    type Element: SlabElement;
    /// How tiles are multiplied.
    type Product: Product<Self>;
    /// Warps.
    const WARPS: usize;
    /// Groups of query rows per warp, at most 4.
    const FRAGMENTS: usize;
    /// Slabs of a token row; 0 where they stream.
    const SLABS: usize;
    /// Document tokens per tile.
    const TILE: usize;
    /// Depth of the ring.
    const STAGES: usize;
    /// Whether to find the winners.
    const WINNERS: bool;
    /// Operation that normalises rows or scales codes, if any.
    type Normalizer: Normalizer;

    /// Groups of a query tile.
    const GROUPS: u32 = (Self::WARPS * Self::FRAGMENTS) as u32;
    /// Rows of a query tile.
    const QUERY_TILE: usize = query_tile(Self::WARPS, Self::FRAGMENTS);
    /// Stages that bring the query tile.
    const QUERY_STAGES: u32 = query_stages(Self::QUERY_TILE, Self::TILE, Self::SLABS) as u32;
    /// Bytes of a stage.
    const STAGE_BYTES: u32 = stage_bytes(Self::QUERY_TILE, Self::TILE, Self::SLABS) as u32;
    /// Whether rows have scales, by which numbers are multiplied.
    const HAS_SCALES: bool = Self::Normalizer::HAS_SCALES;
    /// Threads.
    const THREADS: u32 = 32 * Self::WARPS as u32;
}

/// How a warp multiplies its query rows with the stages that the ring brings.
pub trait Product<K: Kernel> {
    /// Starts without query rows.
    fn new() -> Self;

    /// Takes part `part` of a new query tile.
    ///
    /// # Safety
    /// All threads of the block together; the part must be at `stage`.
    unsafe fn take_queries(&mut self, pipeline: &Pipeline<'_, K>, part: u32, stage: u32);

    /// Takes a stage of a document tile into account; non-zero when the tile has a valid column.
    ///
    /// # Safety
    /// All threads of the block together; the stage must be at `stage`.
    unsafe fn take_documents(
        &mut self,
        pipeline: &Pipeline<'_, K>,
        best: &mut [Best; 4],
        tile: &Tile,
        stage: u32,
    ) -> u32;
}

/// No entry waits for its sums to be added. Above it: rounds until the ring is full.
const NOTHING: u32 = 1 << 31;

/// Position of a thread, and its values that live across documents.
pub struct Pipeline<'a, K: Kernel> {
    pub(super) params: &'a ForwardParams,
    pub(super) lane: u32,
    pub(super) warp: u32,
    pub(super) n_slabs: u32,
    /// Window address of the ring.
    ring: u32,
    /// The query tile and its groups.
    tile: u32,
    groups: TileGroups,
    /// [`valid_rows`] of each fragment, two bits each.
    valid_rows: u32,
    /// Entry whose sums warp 0 has yet to add; or [`NOTHING`], or, to save a register, the rounds
    /// until then.
    pending: u32,
    pub(super) normalizer: K::Normalizer,
    kernel: PhantomData<K>,
}

/// The forward kernel of one line of the variant table.
///
/// One loop whose every round starts the copy of a stage and, but for the first rounds, uses one:
/// the code of both exists once.
///
/// # Safety
/// Launched with `32 * WARPS` threads and the row's dynamic shared memory; `params` as
/// [`ForwardParams`] says; `normalizer` of this launch.
#[inline(always)]
pub unsafe fn forward<K: Kernel>(params: &ForwardParams, normalizer: K::Normalizer) {
    const { assert!(K::FRAGMENTS <= 4 && K::STAGES >= 2 && K::GROUPS <= 16) };
    let thread = thread_idx_x();
    let n_slabs = slabs(params.dim as usize, K::Element::BYTES) as u32;
    // SAFETY: every branch below is uniform over the block.
    unsafe {
        let mut pipeline = Pipeline::<K>::new(params, normalizer, thread, n_slabs);
        let mut product = K::Product::new();
        let mut best = [Best::NONE; 4];
        let mut has_tokens = 0;
        let mut loader = Loader::<K>::new(params, n_slabs);
        let mut slot = 0;
        loop {
            if pipeline.pending <= NOTHING {
                copy_wait_all_but::<K>();
                sync_threads();
                pipeline.store_pending(slot);
            }
            // Behind the barrier every thread is done with what was in this slot.
            loader.load(pipeline.stage(slot), pipeline.words(slot), thread);
            slot = if slot == K::STAGES as u32 - 1 { 0 } else { slot + 1 };
            if pipeline.pending > NOTHING {
                pipeline.pending -= 1;
                continue;
            }
            match Stage::read(pipeline.words(slot)) {
                Kind::End => {
                    pipeline.normalizer.end();
                    return;
                }
                Kind::Queries { tile, part } => {
                    if part == 0 {
                        pipeline.take_groups(tile);
                    }
                    product.take_queries(&pipeline, part, pipeline.stage(slot));
                }
                Kind::Documents(tile) => {
                    let stage = pipeline.stage(slot);
                    has_tokens |= product.take_documents(&pipeline, &mut best, &tile, stage);
                    pipeline.normalizer.end_tile();
                    if tile.ends_tile && tile.ends_document {
                        pipeline.finish(slot, &tile, best, has_tokens != 0);
                        best = [Best::NONE; 4];
                        has_tokens = 0;
                    }
                }
            }
        }
    }
}

/// Waits until the stage that is used next is complete, as far as this thread copies it.
#[inline(always)]
fn copy_wait_all_but<K: Kernel>() {
    const { assert!(K::STAGES <= 5) };
    match K::STAGES {
        2 => copy_wait::<0>(),
        3 => copy_wait::<1>(),
        4 => copy_wait::<2>(),
        _ => copy_wait::<3>(),
    }
}

impl<'a, K: Kernel> Pipeline<'a, K> {
    /// Starts without query rows.
    ///
    /// # Safety
    /// Every thread of the block.
    #[inline(always)]
    unsafe fn new(
        params: &'a ForwardParams,
        normalizer: K::Normalizer,
        thread: u32,
        n_slabs: u32,
    ) -> Self {
        let lane = thread % 32;
        Pipeline {
            params,
            lane,
            // SAFETY: every lane is here. By the broadcast the assembler knows that the number is
            // the same in all lanes.
            warp: unsafe { broadcast(thread / 32) },
            n_slabs,
            ring: dynamic_shared(),
            tile: 0,
            // SAFETY: every lane is here.
            groups: unsafe { TileGroups::new(Group::NONE, lane) },
            valid_rows: 0,
            pending: NOTHING + K::STAGES as u32 - 1,
            normalizer,
            kernel: PhantomData,
        }
    }

    /// Window address of a slot of the ring.
    #[inline(always)]
    fn stage(&self, slot: u32) -> u32 {
        self.ring + slot * K::STAGE_BYTES
    }

    /// Window address of what a slot holds.
    #[inline(always)]
    fn words(&self, slot: u32) -> u32 {
        let offset = words_offset(K::QUERY_TILE, K::TILE, K::SLABS, K::STAGES) as u32;
        self.ring + offset + slot * WORDS_BYTES as u32
    }

    /// Index of a group of this warp in its tile.
    #[inline(always)]
    pub(super) fn group(&self, fragment: u32) -> u32 {
        self.warp * K::FRAGMENTS as u32 + fragment
    }

    /// Makes similarities of the sums of products with columns, of which the first is row `row` of
    /// the documents' matrix.
    ///
    /// # Safety
    /// The matrix must have the row.
    #[inline(always)]
    pub(super) unsafe fn similarities<const N: usize>(&self, c: &mut [[f32; N]; 4], row: u32) {
        K::Element::numbers(c, K::FRAGMENTS);
        // SAFETY: the caller's promise.
        unsafe { self.normalizer.columns(c, K::FRAGMENTS, row, self.lane) };
    }

    /// Finds out which queries a tile belongs to, and which of the thread's rows are valid
    /// query tokens.
    #[inline(always)]
    unsafe fn take_groups(&mut self, tile: u32) {
        let (params, lane, first) = (self.params, self.lane, tile * K::GROUPS);
        self.tile = tile;
        let mut bits = 0;
        // SAFETY: a tile has this many groups.
        unsafe {
            let own = match lane < K::GROUPS {
                true => work_tile::group(params, first + lane),
                false => Group::NONE,
            };
            self.groups = TileGroups::new(own, lane);
            unroll!(F in 0..4 => {
                if F < K::FRAGMENTS {
                    let group = work_tile::group(params, first + self.group(F as u32));
                    bits |= valid_rows(params, group, lane) << (2 * F);
                }
            });
            self.normalizer.take_rows(params, K::FRAGMENTS, first + self.group(0), lane);
        }
        self.valid_rows = bits;
    }

    /// Ends a document: adds each group's maxima, and stores winners and token scores.
    #[inline(always)]
    unsafe fn finish(&mut self, slot: u32, tile: &Tile, best: [Best; 4], has_tokens: bool) {
        if K::Normalizer::COLLECTS {
            return;
        }
        let (entry, start) = (tile.entry, tile.matrix_row - tile.row);
        let (params, lane) = (self.params, self.lane);
        let first = self.group(0);
        let own = LaneRows::new(K::FRAGMENTS, lane);
        let valid = self.valid_rows >> (2 * own.fragment);
        // SAFETY: all lanes of the warp are here; the slot's last reader has passed a barrier
        // since: the slot's stage has been filled and waited for.
        unsafe {
            let mut rows = distribute(&best, K::FRAGMENTS, lane, K::WINNERS);
            self.normalizer.rows(&mut rows);
            let index = self.tile * K::GROUPS + first + own.fragment;
            let mut weights = [1.0; 2];
            if params.query_weights != 0 {
                weights = own.weights(params, work_tile::group(params, index), lane);
            }
            let sum = sum_quads(sum_halves(K::FRAGMENTS, own.values(&rows, weights, valid)));
            if lane < K::FRAGMENTS as u32 {
                let sum = if has_tokens { sum } else { 0.0 };
                store_shared_f32(self.sums(slot) + 4 * (first + lane), sum);
            }
            if has_tokens && params.winners | params.token_scores != 0 {
                let group = work_tile::group(params, index);
                if group.n_rows() > 0 {
                    let place = TokenPlace::new(params, group);
                    own.store(params, place, (entry, start), &rows, valid, lane);
                }
            }
        }
        self.pending = entry;
    }

    /// Window address of the sums of a document whose last stage is in this slot.
    #[inline(always)]
    fn sums(&self, slot: u32) -> u32 {
        let offset = sums_offset(K::QUERY_TILE, K::TILE, K::SLABS, K::STAGES) as u32;
        self.ring + offset + slot * 4 * K::GROUPS
    }

    /// Adds and stores the sums of a document whose last stage was the one before, in `slot`.
    ///
    /// # Safety
    /// All threads of the block together, behind a barrier.
    #[inline(always)]
    unsafe fn store_pending(&mut self, slot: u32) {
        if self.pending == NOTHING {
            return;
        }
        if self.warp == 0 {
            // SAFETY: the caller's promise; the warp is whole here.
            unsafe {
                let mut sum = 0.0;
                if self.lane < K::GROUPS {
                    sum = load_shared_f32(self.sums(slot) + 4 * self.lane);
                }
                self.groups.store(self.params, self.pending, sum);
            }
        }
        self.pending = NOTHING;
    }
}
