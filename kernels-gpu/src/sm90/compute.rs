//! The main loop of a consumer warpgroup: the products of a tile by wgmma, and the online max over
//! its columns.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::layout::sm90::*;
use crate::primitives::accumulator::{Best, NO_WINNER, fold, mask_tail, valid_only};
use crate::primitives::row_scales::{ColumnScales, load_columns, scale};
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::load_shared_u32x4;
use crate::ptx::warp::ballot;
use crate::ptx::wgmma;
use crate::ptx::wgmma::{Accumulators, WgmmaElement};
use crate::sm90::bitwise_max::{fold_bits, is_positive};
use crate::sm90::consumer::{Consumer, MASKED, Product, TAIL};
use crate::sm90::kernel::Kernel;

/// Tiles as they lie in the ring, of elements or of codes.
#[derive(Clone, Copy)]
pub(super) struct Stored;

impl Product for Stored {
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
        if K::Element::HAS_SCALES {
            // SAFETY: the caller's promise.
            return unsafe { consumer.tile_of_codes::<K, N, KIND>(best, row, left) };
        }
        let mut columns = Columns::new(row, left, consumer.lane);
        // SAFETY: the producer fills the ring's next stages with this tile; the fence orders
        // the last reads of the accumulators before they are written again.
        unsafe {
            if K::LOADS_SCALES {
                let address = consumer.row_terms.address() + u64::from(row) * 4;
                columns.scales = load_columns::<N>(address, consumer.lane);
            }
            let before = *best;
            if K::Element::SPLITS {
                let c = consumer.split_products::<K, N, KIND>(&mut columns);
                columns.fold::<K, N, KIND>(&mut best[0], &c);
                columns.refold_as_float::<K, N, KIND>(best, before, [&c; 2]);
                return columns.any();
            }
            if K::SLABS == 0 {
                let (c0, c1) = consumer.streamed::<K, N, KIND>(&mut columns);
                columns.fold::<K, N, KIND>(&mut best[0], &c0);
                if K::FRAGMENTS == 2 {
                    columns.fold::<K, N, KIND>(&mut best[1], &c1);
                }
                columns.refold_as_float::<K, N, KIND>(best, before, [&c0, &c1]);
                return columns.any();
            }
            if K::FRAGMENTS == 2 && K::STEPS == 4 * SLAB_STEPS {
                let offset = consumer.warp / 4 * K::FRAGMENTS as u32 * FRAGMENT_BYTES;
                consumer.wait_for_mask::<KIND>(&mut columns);
                let (c0, c1) = consumer.multiply_by_slabs::<K, N>(offset);
                columns.fold::<K, N, KIND>(&mut best[0], &c0);
                columns.fold::<K, N, KIND>(&mut best[1], &c1);
                columns.refold_as_float::<K, N, KIND>(best, before, [&c0, &c1]);
                return columns.any();
            }
            consumer.wait_for_tile::<K>();
            if KIND == MASKED {
                columns.valid = load_shared_u32x4(consumer.shared.mask(consumer.ring.slot));
            }
            let offset = consumer.warp / 4 * K::FRAGMENTS as u32 * FRAGMENT_BYTES;
            wgmma::fence();
            let c0 = consumer.multiply::<K, N>(offset);
            wgmma::commit();
            if K::FRAGMENTS == 1 {
                let c0 = c0.wait::<0>();
                consumer.release(K::SLABS as u32);
                columns.fold::<K, N, KIND>(&mut best[0], &c0);
                columns.refold_as_float::<K, N, KIND>(best, before, [&c0; 2]);
                return columns.any();
            }
            let c1 = consumer.multiply::<K, N>(offset + FRAGMENT_BYTES);
            wgmma::commit();
            let c0 = c0.wait::<1>();
            columns.fold::<K, N, KIND>(&mut best[0], &c0);
            consumer.finish_search::<K>(&best[0]);
            let c1 = c1.wait::<0>();
            consumer.release(K::SLABS as u32);
            columns.fold::<K, N, KIND>(&mut best[1], &c1);
            columns.refold_as_float::<K, N, KIND>(best, before, [&c0, &c1]);
            columns.any()
        }
    }
}

impl Consumer<'_> {
    /// Keeps the search for one fragment's winners before the wait for the next fragment's
    /// products, where it is in the source. The assembler would move all of it behind, and the
    /// tensor cores would be idle during both searches; it does not move an arrival at a barrier,
    /// even one that never happens.
    ///
    /// # Safety
    /// As [`Product::tile`].
    #[inline(always)]
    pub(super) unsafe fn finish_search<K: Kernel>(&self, best: &Best) {
        if K::WINNERS {
            let [a, b] = best.winner;
            let never = a.min(b) < NO_WINNER;
            // SAFETY: winners are tokens or `NO_WINNER`: no thread arrives.
            unsafe { barrier_arrive_if(self.shared.query_full(), never as u32) };
        }
    }

    /// Products of a tile whose query slabs come with the documents', one stage at a time.
    #[inline(always)]
    unsafe fn streamed<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        columns: &mut Columns,
    ) -> ([f32; N], [f32; N])
    where
        [f32; N]: Accumulators,
    {
        let offset = self.warp / 4 * K::FRAGMENTS as u32 * FRAGMENT_BYTES;
        // SAFETY: all-zero bytes are floats (a literal would become a loop in memory); the
        // producer fills one stage per slab.
        unsafe {
            let mut c0: [f32; N] = core::mem::zeroed();
            let mut c1: [f32; N] = core::mem::zeroed();
            self.wait_for_mask::<KIND>(columns);
            let mut slab = 0;
            while slab < self.n_slabs {
                let (a, b) = self.wait_for_slabs(offset);
                wgmma::fence();
                c0 = multiply_steps::<K::Element, N, 0>(c0, a, b, SLAB_STEPS);
                if K::FRAGMENTS == 2 {
                    let a = a + FRAGMENT_BYTES / 16;
                    c1 = multiply_steps::<K::Element, N, 0>(c1, a, b, SLAB_STEPS);
                }
                wgmma::commit();
                c0 = c0.wait::<0>();
                if K::FRAGMENTS == 2 {
                    c1 = c1.wait::<0>();
                }
                self.release(1);
                slab += 1;
            }
            (c0, c1)
        }
    }

    /// Waits for the first slab of a streamed tile, where a mask comes with it.
    ///
    /// # Safety
    /// As [`Product::tile`].
    #[inline(always)]
    pub(super) unsafe fn wait_for_mask<const KIND: u32>(&self, columns: &mut Columns) {
        if KIND == MASKED {
            // SAFETY: the producer fills this stage, the mask before it arrives.
            unsafe {
                barrier_wait(self.shared.full(self.ring.slot), self.ring.parity);
                columns.valid = load_shared_u32x4(self.shared.mask(self.ring.slot));
            }
        }
    }

    /// Waits for the next stage of a streamed tile; descriptors of the fragment `offset` bytes into
    /// its query slab, and of its document slab.
    ///
    /// # Safety
    /// As [`Product::tile`].
    #[inline(always)]
    pub(super) unsafe fn wait_for_slabs(&self, offset: u32) -> (u32, u32) {
        let slot = self.ring.slot;
        // SAFETY: the producer fills this stage.
        unsafe { barrier_wait(self.shared.full(slot), self.ring.parity) };
        let queries = self.shared.stage_queries(slot) + offset;
        (wgmma::descriptor(queries), wgmma::descriptor(self.shared.stage(slot)))
    }

    /// Waits for the tile's slabs. All of them before the first product: a wait is a loop,
    /// and the assembler breaks the accumulators' pipeline at every loop.
    #[inline(always)]
    pub(super) unsafe fn wait_for_tile<K: Kernel>(&self) {
        let mut ring = self.ring;
        let mut slab = 0;
        while slab < K::SLABS {
            // SAFETY: the producer fills these stages.
            unsafe { barrier_wait(self.shared.full(ring.slot), ring.parity) };
            ring = ring.next(self.shared.stages);
            slab += 1;
        }
    }

    /// Starts the product of the fragment `offset` bytes into the query slabs with the tile at
    /// the head of the ring.
    #[inline(always)]
    pub(super) unsafe fn multiply<K: Kernel, const N: usize>(&self, offset: u32) -> [f32; N]
    where
        [f32; N]: Accumulators,
    {
        const { assert!(K::SLABS <= 4) };
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
            let c = <[f32; N]>::start::<K::Element>(a, b);
            let mut c = multiply_steps::<K::Element, N, 1>(c, a, b, steps::<K>(0));
            macro_rules! slab {
                ($slab:literal) => {
                    if $slab < K::SLABS {
                        let (a, b) = descriptors($slab);
                        c = multiply_steps::<K::Element, N, 0>(c, a, b, steps::<K>($slab));
                    }
                };
            }
            slab!(1);
            slab!(2);
            slab!(3);
            c
        }
    }

    /// Products of both fragments with a tile of four slabs, of which the ring holds one and a
    /// half: a slab is given back as soon as both fragments have met it.
    #[inline(always)]
    unsafe fn multiply_by_slabs<K: Kernel, const N: usize>(
        &mut self,
        offset: u32,
    ) -> ([f32; N], [f32; N])
    where
        [f32; N]: Accumulators,
    {
        let mut ring = self.ring;
        let mut descriptors = |slab: u32| {
            // SAFETY: the producer fills this stage.
            unsafe {
                barrier_wait(self.shared.full(ring.slot), ring.parity);
                wgmma::fence();
            }
            let a = wgmma::descriptor(self.shared.query_slab(slab) + offset);
            let b = wgmma::descriptor(self.shared.stage(ring.slot));
            ring = ring.next(self.shared.stages);
            (a, b)
        };
        let second = FRAGMENT_BYTES / 16;
        // SAFETY: the caller's promise; the first step starts the sums.
        unsafe {
            let (a, b) = descriptors(0);
            let c0 = <[f32; N]>::start::<K::Element>(a, b);
            let mut c0 = multiply_steps::<K::Element, N, 1>(c0, a, b, SLAB_STEPS);
            let c1 = <[f32; N]>::start::<K::Element>(a + second, b);
            let mut c1 = multiply_steps::<K::Element, N, 1>(c1, a + second, b, SLAB_STEPS);
            wgmma::commit();
            unroll!(SLAB in 0..4 => {
                if SLAB != 0 {
                    let (a, b) = descriptors(SLAB as u32);
                    c0 = multiply_steps::<K::Element, N, 0>(c0, a, b, SLAB_STEPS);
                    c1 = multiply_steps::<K::Element, N, 0>(c1, a + second, b, SLAB_STEPS);
                    wgmma::commit();
                }
            });
            let c0 = c0.wait::<3>();
            self.release(1);
            let c0 = c0.wait::<2>();
            self.release(1);
            let c0 = c0.wait::<1>();
            self.release(1);
            let c0 = c0.wait::<0>();
            let c1 = c1.wait::<0>();
            self.release(1);
            (c0, c1)
        }
    }

    /// Gives stages back to the producer.
    #[inline(always)]
    pub(super) unsafe fn release(&mut self, n_stages: u32) {
        let mut slab = 0;
        while slab < n_stages {
            // SAFETY: this warp has waited for every product that reads the stage.
            unsafe {
                barrier_arrive_if(self.shared.empty(self.ring.slot), (self.lane == 0) as u32)
            };
            self.ring = self.ring.next(self.shared.stages);
            slab += 1;
        }
    }
}

/// Bytes of a fragment's rows in a slab.
pub(crate) const FRAGMENT_BYTES: u32 = (FRAGMENT_ROWS * SLAB_BYTES) as u32;

/// Steps of a resident slab: the last one may have fewer.
const fn steps<K: Kernel>(slab: usize) -> usize {
    let left = K::STEPS - slab * SLAB_STEPS;
    if left < SLAB_STEPS { left } else { SLAB_STEPS }
}

/// Adds the products of a slab's steps of 32 bytes, from step `FIRST` to before step `END`.
#[inline(always)]
pub(crate) unsafe fn multiply_steps<E: WgmmaElement, const N: usize, const FIRST: usize>(
    mut c: [f32; N],
    a: u32,
    b: u32,
    end: usize,
) -> [f32; N]
where
    [f32; N]: Accumulators,
{
    unroll!(STEP in 0..4 => {
        let step: usize = STEP;
        if step >= FIRST && step < end {
            let offset = STEP as u32 * wgmma::K_STEP;
            // SAFETY: the caller's promise.
            c = unsafe { c.add::<E>(a + offset, b + offset) };
        }
    });
    c
}

/// The valid columns of a tile.
pub(super) struct Columns {
    /// Bits of a masked tile's columns: bit `c % 32` of word `c / 32`.
    pub(super) valid: [u32; 4],
    /// Tokens of a document's last tile.
    pub(super) left: u32,
    /// Document token of the thread's first column.
    pub(super) column: i32,
    pub(super) lane: u32,
    /// Scales of the columns, where rows are normalised, codes or decoded.
    pub(super) scales: ColumnScales,
}

impl Columns {
    /// Columns of a tile from row `row` of its document on, of which a [`TAIL`] has `left`: without
    /// a mask or scales.
    #[inline(always)]
    pub(super) fn new(row: u32, left: u32, lane: u32) -> Columns {
        let column = (row + 2 * (lane % 4)) as i32;
        // SAFETY: all-zero bytes are floats.
        Columns { valid: [0; 4], left, column, lane, scales: unsafe { core::mem::zeroed() } }
    }

    /// Takes a fragment's similarities into account; without winners, as bits.
    #[inline(always)]
    pub(super) fn fold<K: Kernel, const N: usize, const KIND: u32>(
        &self,
        best: &mut Best,
        c: &[f32; N],
    ) {
        match K::WINNERS {
            true => self.fold_floats::<K, N, KIND>(best, c),
            false => fold_bits(best, &self.valid_only::<K, N, KIND>(c)),
        }
    }

    /// Folds a tile again, as floats, after which some maximum of bits is not positive.
    ///
    /// # Safety
    /// The whole warp must be here.
    #[inline(always)]
    pub(super) unsafe fn refold_as_float<K: Kernel, const N: usize, const KIND: u32>(
        &self,
        best: &mut [Best; 2],
        before: [Best; 2],
        c: [&[f32; N]; 2],
    ) {
        if K::WINNERS {
            return;
        }
        let is_exact = is_positive(&best[0]) && (K::FRAGMENTS == 1 || is_positive(&best[1]));
        // SAFETY: the caller's promise.
        if unsafe { ballot(!is_exact as u32) } == 0 {
            return;
        }
        *best = before;
        unroll!(I in 0..2 => {
            if I < K::FRAGMENTS {
                self.fold_floats::<K, N, KIND>(&mut best[I], c[I]);
            }
        });
    }

    #[inline(always)]
    pub(super) fn fold_floats<K: Kernel, const N: usize, const KIND: u32>(
        &self,
        best: &mut Best,
        c: &[f32; N],
    ) {
        let c = if K::NORMALIZES { scale(*c, &self.scales) } else { *c };
        let c = self.valid_only::<K, N, KIND>(&c);
        fold(best, &c, self.column, K::WINNERS);
    }

    /// -∞ in columns that are no document tokens.
    #[inline(always)]
    pub(super) fn valid_only<K: Kernel, const N: usize, const KIND: u32>(
        &self,
        c: &[f32; N],
    ) -> [f32; N] {
        match KIND {
            TAIL => mask_tail(*c, narrower::<K>(2 * N), self.left, self.lane),
            MASKED => valid_only(*c, &self.valid.map(|word| word >> (2 * (self.lane % 4)))),
            _ => *c,
        }
    }

    /// Non-zero when a masked tile has a valid column.
    #[inline(always)]
    pub(super) fn any(&self) -> u32 {
        self.valid[0] | self.valid[1] | self.valid[2] | self.valid[3]
    }
}

/// The next narrower width of a kernel's last tiles, or 0.
pub(super) const fn narrower<K: Kernel>(width: usize) -> usize {
    let mut narrower = width - 16;
    while narrower > 0 && !has_width(K::TAIL_STEP, K::WINNERS, narrower) {
        narrower -= 16;
    }
    narrower
}
