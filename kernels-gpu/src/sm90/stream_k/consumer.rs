//! A consumer warpgroup under Stream-K: as in the base kernel, but for partial documents.

use crate::abi::layout::chunk_offset;
use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group};
use crate::primitives::accumulator::Best;
use crate::primitives::row_scales::RowScales;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::barrier_wait;
use crate::ptx::mma::load_matrix_x4;
use crate::ptx::thread::*;
use crate::ptx::warp::broadcast;
use crate::ptx::wgmma;
use crate::ptx::wgmma::Accumulators;
use crate::sm90::compute::{Columns, Stored};
use crate::sm90::consumer::{Consumer, Product, RowTerms, tile_clocks};
use crate::sm90::kernel::Kernel;
use crate::sm90::query_rows::WarpRows;
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;
use crate::sm90::units::{Kind, Part, Unit};

/// The step of a product behind which the other consumer may begin: what is left keeps the tensor
/// cores busy until its first step.
const PASSED_ON: usize = 5;
/// The barrier at which the first consumer waits for its turn; the other's follows.
const FIRST_TURN: u32 = 2;

/// Works through the block's units, as [`crate::sm90::consumer::consume`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn consume<K: Kernel>(params: &ForwardParams, shared: &Shared, thread: u32) {
    // SAFETY: every warp is whole here; as there.
    let warp = unsafe { broadcast(thread / 32) };
    let mut consumer = Consumer {
        params,
        shared,
        warp,
        lane: thread % 32,
        n_slabs: K::SLABS as u32,
        ring: Ring::START,
        sums: Ring::START,
        rows: WarpRows::NONE,
        row_scales: RowScales::NONE,
        row_terms: RowTerms::NONE,
    };
    // SAFETY: the producer loads what is waited for, in this order; there is one query tile.
    unsafe {
        let mut unit = Unit::new(params);
        consumer.load_rows::<K>(unit.tile);
        barrier_wait(shared.query_full(), 0);
        let mut held = [[0; 4]; 2 * SLAB_STEPS];
        if holds_rows::<K>() {
            // The first turn is the first warpgroup's.
            if warp >= 4 {
                pass_turn(FIRST_TURN);
            }
            held = consumer.hold_rows();
        } else if warp >= 4 {
            // As in `crate::sm90::consumer::consume`.
            pause(tile_clocks::<K>());
        }
        while let Some(Part { rows, kind, .. }) = unit.next() {
            consumer.part::<K>(&held, rows.len, kind);
        }
    }
}

/// Whether consumers have their query rows in registers, and take turns.
const fn holds_rows<K: Kernel>() -> bool {
    K::FRAGMENTS == 1
}

/// A warp's query rows in registers, in steps of 32 bytes.
type Rows = [[u32; 4]; 2 * SLAB_STEPS];

/// Tiles against query rows in registers, where consumers have them.
#[derive(Clone, Copy)]
struct Held<'a>(&'a Rows);

impl Product for Held<'_> {
    #[inline(always)]
    unsafe fn tile<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        consumer: &mut Consumer<'_>,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) -> u32
    where
        [f32; N]: Accumulators,
    {
        // SAFETY: the caller's promise.
        unsafe {
            match holds_rows::<K>() {
                true => consumer.tile_in_turn::<K, N, KIND>(self.0, best, row, left),
                false => _ = Stored.tile::<K, N, KIND>(consumer, best, row, left),
            }
        }
        0
    }
}

impl Consumer<'_> {
    /// Loads the warp's query rows.
    ///
    /// # Safety
    /// The whole warp; the query tile must be there.
    #[inline(always)]
    unsafe fn hold_rows(&self) -> Rows {
        // Lane l gives a row of matrix l / 8: rows 0 to 7 and 8 to 15 of a step's first chunk, then
        // of the other.
        let row = Group::ROWS as u32 * self.warp + self.lane % 16;
        let first = chunk_offset(row, self.lane / 16);
        let mut held = [[0; 4]; 2 * SLAB_STEPS];
        unroll!(STEP in 0..8 => {
            let slab = self.shared.query_slab((STEP / SLAB_STEPS) as u32);
            let address = slab + (first ^ (STEP_BYTES * (STEP % SLAB_STEPS)) as u32);
            // SAFETY: the caller's promise.
            held[STEP] = unsafe { load_matrix_x4(address) };
        });
        held
    }

    /// A document, or part of one.
    #[inline(always)]
    unsafe fn part<K: Kernel>(&mut self, held: &Rows, len: u32, kind: Kind) {
        let mut best = self.rows.start();
        // The same in all lanes, as the assembler has to know.
        // SAFETY: every warp is whole here; the producer loads these tiles in this order.
        unsafe {
            let len = broadcast(len);
            self.tiles::<K, _>(&mut Held(held), &mut best, len);
            let [first, second] = self.rows.halves::<K>(&best, self.lane);
            let weights = self.rows.weights::<K>();
            if kind == Kind::Whole {
                let sum = first * weights[0] + second * weights[1];
                self.publish_sum::<K>(if len > 0 { sum } else { 0.0 });
            } else {
                self.publish_sum::<K>(first);
                self.publish_sum::<K>(second);
                if kind == Kind::Ends && self.params.query_weights != 0 {
                    self.publish_sum::<K>(weights[0]);
                    self.publish_sum::<K>(weights[1]);
                }
            }
        }
    }

    /// One tile of up to 2 · `N` document tokens against the warpgroup's rows, when it is its turn.
    #[inline(always)]
    unsafe fn tile_in_turn<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        held: &Rows,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) where
        [f32; N]: Accumulators,
    {
        let columns = Columns::new(row, left, self.lane);
        let group = self.warp / 4;
        // SAFETY: the producer fills the ring's next stages with this tile; both warpgroups meet
        // the same tiles, so that each turn that is waited for is passed on.
        unsafe {
            let before = *best;
            self.wait_for_tile::<K>();
            take_turn(FIRST_TURN + group);
            let next = self.ring.next(self.shared.stages);
            let b = [self.ring, next].map(|ring| wgmma::descriptor(self.shared.stage(ring.slot)));
            wgmma::fence();
            let mut c = <[f32; N]>::start_held::<K::Element>(held[0], b[0]);
            unroll!(STEP in 0..8 => {
                if STEP != 0 {
                    let b = b[STEP / SLAB_STEPS] + (STEP % SLAB_STEPS) as u32 * wgmma::K_STEP;
                    c = c.add_held::<K::Element>(held[STEP], b);
                }
                if STEP == PASSED_ON {
                    wgmma::commit();
                }
            });
            wgmma::commit();
            let c = c.wait::<1>();
            pass_turn(FIRST_TURN + (1 - group));
            let c = c.wait::<0>();
            self.release(K::SLABS as u32);
            columns.fold::<K, N, KIND>(&mut best[0], &c);
            columns.refold_as_float::<K, N, KIND>(best, before, [&c; 2]);
        }
    }
}
