//! A consumer warpgroup: multiply, fold, sum.

use super::{Half, Ring, Shared};
use crate::layout::SLAB_BYTES;
use crate::layout::sm90::*;
use crate::params::{ForwardParams, Segment};
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::memory::store_shared_f32;
use crate::ptx::thread::{block_idx_x, grid_dim_x};
use crate::ptx::warp::broadcast;
use crate::ptx::wgmma::{self, Accumulators};
use crate::reduce::{Best, QueryRows, combine_quad, fold, sum_quads, unroll, valid_columns};
use crate::work::{self, Work};

/// Bytes of a fragment's rows in a slab.
const FRAGMENT_BYTES: u32 = (FRAGMENT_ROWS * SLAB_BYTES) as u32;
/// Words of a tile's column mask.
const WORDS: usize = DOCUMENT_TILE / 32;

/// Where a consumer thread is, and the registers that live across documents.
struct Consumer<'a> {
    params: &'a ForwardParams,
    shared: &'a Shared,
    /// Warp of the two consumer warpgroups: warpgroup 0 owns the first half of the tile.
    warp: u32,
    lane: u32,
    ring: Ring,
    sums: Ring,
}

/// Works through the block's units.
///
/// # Safety
/// All 256 consumer threads; shared memory and barriers as [`super::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn consume<
    E: Half,
    const FRAGMENTS: usize,
    const SLABS: usize,
    const WINNERS: bool,
>(
    params: &ForwardParams,
    shared: &Shared,
    thread: u32,
) {
    // SAFETY: every warp is whole here. The broadcast tells the assembler that the number is
    // the same in all lanes, so that descriptors live in uniform registers.
    let warp = unsafe { broadcast(thread / 32) };
    let mut consumer =
        Consumer { params, shared, warp, lane: thread % 32, ring: Ring::START, sums: Ring::START };
    // First row of the warp in its first fragment.
    let first_row = (warp / 4 * FRAGMENTS as u32) * FRAGMENT_ROWS as u32 + warp % 4 * 16;
    let mut tile = u32::MAX;
    let mut query_parity = 0;
    let mut unit = block_idx_x();
    while unit < params.n_units {
        // SAFETY: the unit exists; the producer loads what is waited for, in this order.
        unsafe {
            let work = work::unit(params, unit);
            if work.entry < work.entry_end {
                if work.tile != tile {
                    // The first tile needs no release: the producer's first wait passes.
                    barrier_arrive_if(
                        shared.query_empty(),
                        (tile != u32::MAX && consumer.lane == 0) as u32,
                    );
                    tile = work.tile;
                    barrier_wait(shared.query_full(), query_parity);
                    query_parity ^= 1;
                }
                let mut rows = [QueryRows::NONE; FRAGMENTS];
                unroll!(I in 0..2 => {
                    if I < FRAGMENTS {
                        let row = first_row + (I * FRAGMENT_ROWS) as u32;
                        rows[I] = QueryRows::new(params, &work, row, consumer.lane);
                    }
                });
                let mut entry = work.entry;
                let mut document = work::document(params, work.query, entry);
                while entry < work.entry_end {
                    let next = if entry + 1 < work.entry_end {
                        work::document(params, work.query, entry + 1)
                    } else {
                        document
                    };
                    consumer
                        .document::<E, FRAGMENTS, SLABS, WINNERS>(&work, &rows, entry, document);
                    document = next;
                    entry += 1;
                }
            }
        }
        unit += grid_dim_x();
    }
}

impl Consumer<'_> {
    /// One document against the resident query tile.
    #[inline(always)]
    unsafe fn document<E: Half, const FRAGMENTS: usize, const SLABS: usize, const WINNERS: bool>(
        &mut self,
        work: &Work,
        rows: &[QueryRows; FRAGMENTS],
        entry: u32,
        document: Segment,
    ) {
        let mut best = [Best::NONE; FRAGMENTS];
        // Tiles whose 128 columns are all valid need no mask. Two loops rather than a
        // branch: the accumulators' pipeline must not meet a branch.
        let whole = match self.params.documents.mask {
            0 => document.len & !(DOCUMENT_TILE as u32 - 1),
            _ => 0,
        };
        let mut has_tokens = whole > 0;
        let mut row = 0;
        // SAFETY: the caller's promise; the producer loads these tiles in this order.
        unsafe {
            while row < whole {
                self.tile::<E, FRAGMENTS, SLABS, false, WINNERS>(&mut best, &[0; WORDS], row);
                row += DOCUMENT_TILE as u32;
            }
            while row < document.len {
                let mut valid = valid_columns::<WORDS>(
                    &self.params.documents,
                    document.start + row,
                    document.len - row,
                    self.lane,
                );
                has_tokens |= valid[0] | valid[1] | valid[2] | valid[3] != 0;
                let mut i = 0;
                while i < WORDS {
                    valid[i] >>= 2 * (self.lane % 4);
                    i += 1;
                }
                self.tile::<E, FRAGMENTS, SLABS, true, WINNERS>(&mut best, &valid, row);
                row += DOCUMENT_TILE as u32;
            }
            let store = has_tokens
                && self.lane.is_multiple_of(4)
                && self.params.winners | self.params.token_scores != 0;
            let mut sum = 0.0;
            unroll!(I in 0..2 => {
                if I < FRAGMENTS {
                    combine_quad::<WINNERS>(&mut best[I]);
                    sum += rows[I].sum(&best[I]);
                    if store {
                        rows[I].store(self.params, work, entry, &best[I]);
                    }
                }
            });
            let sum = sum_quads(sum);
            self.hand_over(if has_tokens { sum } else { 0.0 });
        }
    }

    /// Puts the warp's sum into the next slot.
    #[inline(always)]
    unsafe fn hand_over(&mut self, sum: f32) {
        let (slot, parity) = (self.sums.slot, self.sums.parity);
        // SAFETY: the storing thread empties the slots in this order.
        unsafe {
            barrier_wait(self.shared.sum_empty(slot), parity ^ 1);
            if self.lane == 0 {
                store_shared_f32(self.shared.sum(slot, self.warp), sum);
            }
            barrier_arrive_if(self.shared.sum_full(slot), (self.lane == 0) as u32);
        }
        self.sums = self.sums.next(SUM_SLOTS as u32);
    }

    /// One tile of 128 document tokens against the warpgroup's fragments.
    #[inline(always)]
    unsafe fn tile<
        E: Half,
        const FRAGMENTS: usize,
        const SLABS: usize,
        const MASKED: bool,
        const WINNERS: bool,
    >(
        &mut self,
        best: &mut [Best; FRAGMENTS],
        valid: &[u32; WORDS],
        row: u32,
    ) {
        const { assert!(FRAGMENTS == 1 || FRAGMENTS == 2) };
        let column = (row + 2 * (self.lane % 4)) as i32;
        // SAFETY: the producer fills the ring's next SLABS stages with this tile; the fence
        // orders the last reads of the accumulators before they are written again.
        unsafe {
            let offset = self.warp / 4 * FRAGMENTS as u32 * FRAGMENT_BYTES;
            self.wait_for_tile::<SLABS>();
            wgmma::fence();
            let c0 = self.multiply::<E, SLABS>(offset);
            wgmma::commit();
            if FRAGMENTS == 1 {
                let c0 = wgmma::wait::<0>(c0);
                self.release::<SLABS>();
                fold::<64, WORDS, MASKED, WINNERS>(&mut best[0], &c0, valid, column);
                return;
            }
            let c1 = self.multiply::<E, SLABS>(offset + FRAGMENT_BYTES);
            wgmma::commit();
            if MASKED || WINNERS {
                // A longer fold: the other warpgroup keeps the tensor cores busy.
                let c0 = wgmma::wait::<0>(c0);
                let c1 = wgmma::wait::<0>(c1);
                self.release::<SLABS>();
                fold::<64, WORDS, MASKED, WINNERS>(&mut best[0], &c0, valid, column);
                fold::<64, WORDS, MASKED, WINNERS>(&mut best[FRAGMENTS - 1], &c1, valid, column);
            } else {
                let c0 = wgmma::wait::<1>(c0);
                fold::<64, WORDS, false, false>(&mut best[0], &c0, valid, column);
                let c1 = wgmma::wait::<0>(c1);
                self.release::<SLABS>();
                fold::<64, WORDS, false, false>(&mut best[FRAGMENTS - 1], &c1, valid, column);
            }
        }
    }

    /// Waits for the tile's slabs. All of them before the first product: a wait is a loop,
    /// and the assembler breaks the accumulators' pipeline at every loop.
    #[inline(always)]
    unsafe fn wait_for_tile<const SLABS: usize>(&self) {
        let mut ring = self.ring;
        let mut slab = 0;
        while slab < SLABS {
            // SAFETY: the producer fills these stages.
            unsafe { barrier_wait(self.shared.full(ring.slot), ring.parity) };
            ring = ring.next(self.shared.stages);
            slab += 1;
        }
    }

    /// Starts the product of the fragment `offset` bytes into the query slabs with the tile at
    /// the head of the ring.
    #[inline(always)]
    unsafe fn multiply<E: Half, const SLABS: usize>(&self, offset: u32) -> Accumulators {
        const { assert!(SLABS >= 1 && SLABS <= 4) };
        let mut ring = self.ring;
        let mut descriptors = |slab: u32| {
            let a = wgmma::descriptor(self.shared.query_slab(slab) + offset);
            let b = wgmma::descriptor(self.shared.stage(ring.slot));
            ring = ring.next(self.shared.stages);
            (a, b)
        };
        // SAFETY: the caller's promise; the first step starts the sum.
        unsafe {
            let (a, b) = descriptors(0);
            let c = E::multiply(a, b);
            let mut c = multiply_steps::<E, 1>(c, a, b);
            macro_rules! slab {
                ($slab:literal) => {
                    if $slab < SLABS {
                        let (a, b) = descriptors($slab);
                        c = multiply_steps::<E, 0>(c, a, b);
                    }
                };
            }
            slab!(1);
            slab!(2);
            slab!(3);
            c
        }
    }

    /// Gives the tile's stages back to the producer.
    #[inline(always)]
    unsafe fn release<const SLABS: usize>(&mut self) {
        let mut slab = 0;
        while slab < SLABS {
            // SAFETY: this warp has waited for every product that reads the stage.
            unsafe {
                barrier_arrive_if(self.shared.empty(self.ring.slot), (self.lane == 0) as u32)
            };
            self.ring = self.ring.next(self.shared.stages);
            slab += 1;
        }
    }
}

/// Adds the products of a slab's four steps of 16 elements, from step `FIRST` on.
#[inline(always)]
unsafe fn multiply_steps<E: Half, const FIRST: u32>(
    mut c: Accumulators,
    a: u32,
    b: u32,
) -> Accumulators {
    // SAFETY: the caller's promise.
    unsafe {
        if FIRST == 0 {
            c = E::multiply_add(c, a, b);
        }
        c = E::multiply_add(c, a + wgmma::K_STEP, b + wgmma::K_STEP);
        c = E::multiply_add(c, a + 2 * wgmma::K_STEP, b + 2 * wgmma::K_STEP);
        E::multiply_add(c, a + 3 * wgmma::K_STEP, b + 3 * wgmma::K_STEP)
    }
}
