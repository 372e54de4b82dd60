//! Tiles of 8-bit operands, INT8 or e4m3, with a scale for every token; of documents that were
//! decoded before ([`crate::decoded_rows`]), whose scales are r, and whose queries have none; and
//! of elements that are normalised, whose scales are r on both sides
//! ([`crate::sm90::scales::norms`]).
//!
//! A column's scale multiplies its similarities before the maximum, a row's in the epilogue. The
//! warp that prepares masks copies the scales of a tile's columns with its first slab
//! ([`crate::sm90::scales::load_masks`]); consumers read them while the tile is multiplied. Where
//! INT32 accumulators skip the conversion ([`Kernel::SKIPS_CONVERSION`]), it makes factors of them
//! first ([`crate::sm90::bitwise_max::factor`]), and the second reduction takes scales from memory.
//!
//! Without winners maxima are those of bits ([`crate::sm90::bitwise_max`]): every instruction of a
//! consumer besides the products adds to the time of codes, however it is interleaved.

use crate::abi::layout::sm90::SLAB_STEPS;
use crate::primitives::accumulator::{Best, fold};
use crate::primitives::row_scales::{
    affine, are_f16, load_columns, load_f16_columns, load_shared_columns, marked_row, scale,
};
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::barrier_wait;
use crate::ptx::shared::load_shared_u32x4;
use crate::ptx::warp::ballot;
use crate::ptx::wgmma;
use crate::ptx::wgmma::{Accumulators, Operands, WgmmaElement};
use crate::sm90::bitwise_max::{fold_bits, fold_sums, is_factor, is_positive};
use crate::sm90::compute::{Columns, FRAGMENT_BYTES, multiply_steps};
use crate::sm90::consumer::{Consumer, MASKED};
use crate::sm90::kernel::Kernel;

impl Consumer<'_> {
    /// Updates the online max with a tile of codes: [`crate::sm90::consumer::Product::tile`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn tile_of_codes<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) -> u32
    where
        [f32; N]: Accumulators,
    {
        let mut columns = Columns::new(row, left, self.lane);
        // SAFETY: as for a tile of elements.
        unsafe {
            let (before, sums) = (*best, self.row_terms.sums());
            let scales = match K::READS_F16_SCALES {
                true => marked_row(self.row_terms.address(), row),
                false => self.row_terms.address() + u64::from(row) * 4,
            };
            if K::SLABS == 0 {
                let c = self.streamed_codes::<K, N, KIND>(&mut columns);
                columns.fold_codes::<K, N, KIND>(&mut best[0], &c, sums);
                columns.refold_codes_as_float::<K, N, KIND>(best, before, [&c; 2], scales);
                return columns.any();
            }
            self.wait_for_tile::<K>();
            if K::FINDS_NORMS {
                barrier_wait(self.shared.normed(self.ring.slot), self.ring.parity);
            }
            if KIND == MASKED {
                columns.valid = load_shared_u32x4(self.shared.mask(self.ring.slot));
            }
            let offset = self.warp / 4 * K::FRAGMENTS as u32 * FRAGMENT_BYTES;
            wgmma::fence();
            let c0 = self.multiply::<K, N>(offset);
            wgmma::commit();
            if K::FRAGMENTS == 1 {
                self.load_tile_scales::<N>(&mut columns);
                let c0 = c0.wait::<0>();
                self.release(K::SLABS as u32);
                columns.fold_codes::<K, N, KIND>(&mut best[0], &c0, sums);
                columns.refold_codes_as_float::<K, N, KIND>(best, before, [&c0; 2], scales);
                return columns.any();
            }
            let c1 = self.multiply::<K, N>(offset + FRAGMENT_BYTES);
            wgmma::commit();
            self.load_tile_scales::<N>(&mut columns);
            let c0 = c0.wait::<1>();
            columns.fold_codes::<K, N, KIND>(&mut best[0], &c0, sums);
            let c1 = c1.wait::<0>();
            self.release(K::SLABS as u32);
            columns.fold_codes::<K, N, KIND>(&mut best[1], &c1, sums);
            columns.refold_codes_as_float::<K, N, KIND>(best, before, [&c0, &c1], scales);
            columns.any()
        }
    }

    /// Products of a tile whose query slabs come with the documents'. Where the tensor cores add
    /// with fewer bits than f32 has, a slab's sums are promoted to f32.
    ///
    /// # Safety
    /// As [`crate::sm90::consumer::Product::tile`].
    #[inline(always)]
    unsafe fn streamed_codes<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        columns: &mut Columns,
    ) -> [f32; N]
    where
        [f32; N]: Accumulators,
    {
        let offset = self.warp / 4 * FRAGMENT_BYTES;
        // SAFETY: the caller's promise; the producer fills one stage per slab.
        unsafe {
            let mut c: [f32; N] = core::mem::zeroed();
            self.wait_for_mask::<KIND>(columns);
            let mut slab = 0;
            while slab < self.n_slabs {
                let (a, b) = self.wait_for_slabs(offset);
                if slab == 0 {
                    self.load_tile_scales::<N>(columns);
                }
                wgmma::fence();
                if K::Element::PROMOTES {
                    let part = <[f32; N]>::start::<K::Element>(a, b);
                    let part = multiply_steps::<K::Element, N, 1>(part, a, b, SLAB_STEPS);
                    wgmma::commit();
                    add(&mut c, &part.wait::<0>());
                } else {
                    c = multiply_steps::<K::Element, N, 0>(c, a, b, SLAB_STEPS);
                    wgmma::commit();
                    c = c.wait::<0>();
                }
                self.release(1);
                slab += 1;
            }
            c
        }
    }

    /// Reads the scales of a tile's columns.
    ///
    /// # Safety
    /// As [`crate::sm90::consumer::Product::tile`], behind the wait for the first slab, before it
    /// is released.
    #[inline(always)]
    unsafe fn load_tile_scales<const N: usize>(&self, columns: &mut Columns) {
        // SAFETY: the caller's promise.
        columns.scales =
            unsafe { load_shared_columns::<N>(self.shared.scales(self.ring.slot), self.lane) };
    }
}

impl Columns {
    /// Takes a fragment's similarities into account; without winners, as bits. `sums` are those of
    /// the codes of the thread's two query rows, where documents have minima.
    #[inline(always)]
    fn fold_codes<K: Kernel, const N: usize, const KIND: u32>(
        &self,
        best: &mut Best,
        c: &[f32; N],
        sums: [f32; 2],
    ) {
        if K::SKIPS_CONVERSION {
            return fold_sums(best, &self.valid_only::<K, N, KIND>(c), &self.scales);
        }
        let c = numbers::<K, N>(*c);
        if K::Element::HAS_MINS {
            let c = self.valid_only::<K, N, KIND>(&affine(c, &self.scales, sums));
            return fold(best, &c, self.column, true);
        }
        if K::WINNERS {
            return self.fold_floats::<K, N, KIND>(best, &c);
        }
        fold_bits(best, &self.valid_only::<K, N, KIND>(&scale(c, &self.scales)));
    }

    /// Folds a tile again, as floats, after which some maximum of bits is not positive, or
    /// has scales that make no factors.
    ///
    /// # Safety
    /// The whole warp must be here; `scales` must be where the tile's are, where sums are folded.
    #[inline(always)]
    unsafe fn refold_codes_as_float<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        best: &mut [Best; 2],
        before: [Best; 2],
        c: [&[f32; N]; 2],
        scales: u64,
    ) {
        if K::WINNERS {
            return;
        }
        let is_exact = is_positive(&best[0])
            && (K::FRAGMENTS == 1 || is_positive(&best[1]))
            && (!K::SKIPS_CONVERSION || is_factor(self.scales[0]));
        // SAFETY: the caller's promise.
        if unsafe { ballot(!is_exact as u32) } == 0 {
            return;
        }
        *best = before;
        if K::SKIPS_CONVERSION {
            // SAFETY: where the scales of the tile's rows are.
            self.scales = unsafe {
                if K::READS_F16_SCALES && are_f16(scales) {
                    load_f16_columns::<N>(scales, self.lane)
                } else {
                    load_columns::<N>(scales, self.lane)
                }
            };
        }
        unroll!(I in 0..2 => {
            if I < K::FRAGMENTS {
                self.fold_floats::<K, N, KIND>(&mut best[I], &numbers::<K, N>(*c[I]));
            }
        });
    }
}

/// Adds a part of a sum.
#[inline(always)]
fn add<const N: usize>(c: &mut [f32; N], part: &[f32; N]) {
    unroll!(I in 0..16 => {
        if 4 * I < N {
            unroll!(J in 0..4 => { c[4 * I + J] += part[4 * I + J]; });
        }
    });
}

/// Converts accumulators to numbers: they hold integers where integers were multiplied.
#[inline(always)]
fn numbers<K: Kernel, const N: usize>(mut c: [f32; N]) -> [f32; N] {
    if matches!(K::Element::OPERANDS, Operands::I8 | Operands::I8Affine) {
        unroll!(I in 0..16 => {
            if 4 * I < N {
                unroll!(J in 0..4 => { c[4 * I + J] = c[4 * I + J].to_bits() as i32 as f32; });
            }
        });
    }
    c
}
