//! A consumer warpgroup: multiply, online max, sum.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group, Segment};
use crate::primitives::documents::Documents;
use crate::primitives::row_maxima::row_sums;
use crate::primitives::row_scales::Norms;
use crate::primitives::row_vector::I8;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::store_shared_f32;
use crate::ptx::thread::pause;
use crate::ptx::warp::{broadcast, sync_warp};
use crate::ptx::wgmma::Element;
use crate::sm90::compute::{MASKED, WHOLE, tile_clocks};
use crate::sm90::kernel::{Kernel, n_slabs};
use crate::sm90::query_rows::WarpRows;
use crate::sm90::scheduler::Told;
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;

/// Where a consumer thread is, and the registers that live across documents.
pub(super) struct Consumer<'a> {
    pub(super) params: &'a ForwardParams,
    pub(super) shared: &'a Shared,
    /// Warp of the consumer warpgroups: warpgroup 0 owns the tile's first rows.
    pub(super) warp: u32,
    pub(super) lane: u32,
    pub(super) n_slabs: u32,
    pub(super) ring: Ring,
    pub(super) sums: Ring,
    pub(super) rows: WarpRows,
    pub(super) norms: Norms,
    /// Where r is of the document's rows, of rows that are normalised, or their scales, where sums
    /// are folded as they are: marked, where they may be halves. Where documents have minima, the
    /// sums of the codes of the thread's two query rows, an f32 in each half: a field of their own
    /// would change the kernels that have none.
    pub(super) row_factors: u64,
}

/// Works through the block's units.
///
/// # Safety
/// All consumer threads; shared memory and barriers as [`crate::sm90::kernel::forward`] sets them
/// up.
#[inline(always)]
pub(super) unsafe fn consume<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    thread: u32,
) {
    const { assert!(K::FRAGMENTS == 1 || K::FRAGMENTS == 2) };
    const { assert!(!K::NORMALIZES || !K::Element::SPLITS) };
    const { assert!(!K::LOADS_NORMS || K::WINNERS && K::FRAGMENTS == 1) };
    // Both sides' row scales come with the launch; beside promoted sums there is room for one
    // fragment.
    const { assert!(!K::Element::HAS_MINS || K::WINNERS && K::FRAGMENTS == 1) };
    // The largest sum has to be below 2²²: 128 products of numbers up to 127 are.
    const { assert!(!K::FOLDS_SUMS || K::SLABS == 1) };
    const { assert!(!K::Element::HAS_SCALES || K::NORMALIZES && (K::SLABS == 1 || K::FRAGMENTS == 1)) };
    // SAFETY: every warp is whole here. By the broadcast the assembler knows that the number is the
    // same in all lanes, so that descriptors live in uniform registers.
    let warp = unsafe { broadcast(thread / 32) };
    let mut consumer = Consumer {
        params,
        shared,
        warp,
        lane: thread % 32,
        n_slabs: n_slabs::<K>(params),
        ring: Ring::START,
        sums: Ring::START,
        rows: WarpRows::NONE,
        norms,
        row_factors: 0,
    };
    let mut tile = u32::MAX;
    let mut query_parity = 0;
    let mut units = Told::START;
    // SAFETY: the producer loads what is waited for, in this order.
    unsafe {
        while let Some(work) = units.next(shared, consumer.lane) {
            if work.tile != tile {
                if K::SLABS > 0 {
                    // The first tile needs no release: the producer's first wait passes.
                    let is_first = tile == u32::MAX;
                    let releases = !is_first && consumer.lane == 0;
                    barrier_arrive_if(shared.query_empty(), releases as u32);
                }
                tile = work.tile;
                consumer.load_rows::<K>(tile);
                if K::SLABS > 0 {
                    barrier_wait(shared.query_full(), query_parity);
                    query_parity ^= 1;
                }
                // Both warpgroups start here at once. In step, both would reduce at the same time
                // and the tensor cores would be idle: the second one lets the first go ahead.
                if K::CONSUMERS == 2 && warp >= 4 {
                    pause(tile_clocks::<K>());
                }
            }
            let mut documents = Documents::new(params, &work);
            while let Some((entry, document)) = documents.next() {
                consumer.document::<K>(entry, document);
            }
        }
    }
}

impl Consumer<'_> {
    /// The warp's group in its fragment `fragment`.
    #[inline(always)]
    fn group<K: Kernel>(&self, fragment: usize) -> u32 {
        let fragment = self.warp / 4 * K::FRAGMENTS as u32 + fragment as u32;
        4 * fragment + self.warp % 4
    }

    /// Finds out which rows of the tile are valid query tokens.
    #[inline(always)]
    pub(super) unsafe fn load_rows<K: Kernel>(&mut self, tile: u32) {
        let mut groups = [Group::NONE; 2];
        unroll!(I in 0..2 => {
            if I < K::FRAGMENTS {
                let index = tile * K::GROUPS + self.group::<K>(I);
                // SAFETY: a tile has this many groups.
                groups[I] = unsafe { work_tile::group(self.params, index) };
            }
        });
        if K::Element::HAS_MINS {
            // SAFETY: as below; rows that TMA copies are aligned.
            let sums = unsafe { row_sums::<I8>(self.params, groups[0], true, self.lane) };
            let [a, b] = sums.map(f32::to_bits);
            self.row_factors = u64::from(b) << 32 | u64::from(a);
        }
        // SAFETY: groups of this launch.
        self.rows = unsafe { WarpRows::new::<K>(self.params, self.norms, groups, self.lane) };
    }

    /// One document against the resident query tile.
    #[inline(always)]
    unsafe fn document<K: Kernel>(&mut self, entry: u32, document: Segment) {
        let mut best = self.rows.start();
        // The same in all lanes, as the assembler has to know: branches are cheaper then.
        // SAFETY: every warp is whole here.
        let len = unsafe { broadcast(document.len) };
        let mut has_tokens = len > 0;
        let mut row = 0;
        if K::LOADS_NORMS || K::FOLDS_SUMS {
            self.row_factors = match K::HALF_SCALES {
                true => self.norms.of_marked_documents(document.start),
                false => self.norms.of_documents(document.start),
            };
        }
        // Loops of their own for each kind of tile: the accumulators' pipeline must not meet a
        // branch.
        // SAFETY: the caller's promise; the producer loads these tiles in this order.
        unsafe {
            if self.params.documents.mask == 0 {
                let whole = len & !(DOCUMENT_TILE as u32 - 1);
                while row < whole {
                    self.tile::<K, 64, WHOLE>(&mut best, row, 0);
                    row += DOCUMENT_TILE as u32;
                }
                let left = len - row;
                if left > 0 {
                    self.tail::<K>(&mut best, row, left);
                }
            } else {
                let mut any = 0;
                while row < len {
                    any |= self.tile::<K, 64, MASKED>(&mut best, row, 0);
                    row += DOCUMENT_TILE as u32;
                }
                has_tokens = any != 0;
            }
            let store = has_tokens && self.params.winners | self.params.token_scores != 0;
            let place = (entry, document.start);
            let sum = self.rows.finish::<K>(self.params, place, &best, store, self.lane);
            self.hand_over::<K>(if has_tokens { sum } else { 0.0 });
        }
    }

    /// Puts the warp's [`crate::primitives::row_maxima::sum_halves`] into the next slot. Another
    /// warp adds them: at a document's end every exchange between lanes keeps the tensor cores
    /// waiting.
    #[inline(always)]
    pub(super) unsafe fn hand_over<K: Kernel>(&mut self, sum: f32) {
        let (slot, parity) = (self.sums.slot, self.sums.parity);
        let fragment = self.warp / 4 * K::FRAGMENTS as u32 + self.lane % 4;
        let group = 4 * fragment + self.warp % 4;
        // SAFETY: the storing warp empties the slots in this order; one lane arrives when all have
        // stored.
        unsafe {
            barrier_wait(self.shared.sum_empty(slot), parity ^ 1);
            if self.lane % 4 < K::FRAGMENTS as u32 {
                let place = self.shared.sums(slot, group) + 4 * (self.lane / 4);
                store_shared_f32(place, sum);
            }
            sync_warp();
            barrier_arrive_if(self.shared.sum_full(slot), (self.lane == 0) as u32);
        }
        self.sums = self.sums.next(sum_slots(K::QUERY_TILE) as u32);
    }
}
