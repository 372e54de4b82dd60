//! The consumer: multiplies decoded tiles, scales columns by r, and updates the online max.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::layout::sm90::*;
use crate::primitives::accumulator::{Best, fold, mask_tail, valid_only};
use crate::primitives::row_scales::times;
use crate::primitives::unroll::unroll;
use crate::ptx::shared::{load_shared_f32x4_at, load_shared_u32x4};
use crate::ptx::warp::ballot;
use crate::ptx::wgmma;
use crate::ptx::wgmma::Accumulators;
use crate::sm90::bitwise_max::{fold_bits, is_positive};
use crate::sm90::compute::{Columns, multiply_steps, narrower};
use crate::sm90::consumer::{Consumer, MASKED, Product, TAIL, WHOLE};
use crate::sm90::kernel::Kernel;

/// Columns of half a tile.
const HALF: u32 = DOCUMENT_TILE as u32 / 2;

/// Tiles that decoders write to the ring.
#[derive(Clone, Copy)]
pub(super) struct Decoded;

impl Product for Decoded {
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
        let best = &mut best[0];
        let mut columns = Columns::new(row, left, consumer.lane);
        let norms = consumer.shared.scales(consumer.ring.slot);
        // SAFETY: the decoders fill the ring's next stages with this tile.
        unsafe {
            if K::SLABS == 0 {
                return consumer.streamed_residuals::<K, N, KIND>(best, &mut columns);
            }
            consumer.wait_for_tile::<K>();
            if KIND == MASKED {
                columns.valid = load_shared_u32x4(consumer.shared.mask(consumer.ring.slot));
            }
            let any = columns.any();
            // Wider ones in two halves; a last tile's first half has tokens only.
            match N {
                64 | 48 => {
                    let c = consumer.half::<K, 32>(0);
                    let kind = if KIND == TAIL { WHOLE } else { KIND };
                    take::<K, 32>(best, c, &columns, norms, kind, 0);
                    let norms = norms + SCALES_BYTES as u32 / 2;
                    columns = second_half(&columns);
                    if N == 64 {
                        let c = consumer.half::<K, 32>(1);
                        // A narrower tile would have had them.
                        let safe = narrower::<K>(2 * N) - HALF as usize;
                        take::<K, 32>(best, c, &columns, norms, KIND, safe);
                    } else {
                        let c = consumer.half::<K, 16>(1);
                        take::<K, 16>(best, c, &columns, norms, KIND, 0);
                    }
                }
                _ => {
                    let c = consumer.half::<K, N>(0);
                    take::<K, N>(best, c, &columns, norms, KIND, narrower::<K>(2 * N));
                }
            }
            consumer.release(K::SLABS as u32);
            any
        }
    }
}

impl Consumer<'_> {
    /// The similarities of the first `2 * N` columns of half a tile.
    ///
    /// # Safety
    /// As [`Product::tile`], behind the wait for the tile.
    #[inline(always)]
    unsafe fn half<K: Kernel, const N: usize>(&self, half: u32) -> [f32; N]
    where
        [f32; N]: Accumulators,
    {
        let rows = wgmma::descriptor_step(half * HALF * SLAB_BYTES as u32);
        let a = wgmma::descriptor(self.shared.query_slab(0));
        let b = wgmma::descriptor(self.shared.stage(self.ring.slot)) + rows;
        // SAFETY: the caller's promise; the first step starts the sum.
        unsafe {
            wgmma::fence();
            let c = <[f32; N]>::start::<K::Element>(a, b);
            let mut c = multiply_steps::<K::Element, N, 1>(c, a, b, SLAB_STEPS);
            if K::SLABS == 2 {
                let next = self.ring.next(self.shared.stages);
                let a = wgmma::descriptor(self.shared.query_slab(1));
                let b = wgmma::descriptor(self.shared.stage(next.slot)) + rows;
                c = multiply_steps::<K::Element, N, 0>(c, a, b, SLAB_STEPS);
            }
            wgmma::commit();
            c.wait::<0>()
        }
    }

    /// A tile whose query slabs come with the documents', one stage at a time. The norms come with
    /// the last one.
    ///
    /// # Safety
    /// As [`Product::tile`].
    #[inline(always)]
    unsafe fn streamed_residuals<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        best: &mut Best,
        columns: &mut Columns,
    ) -> u32 {
        const { assert!(K::SLABS > 0 || K::TAIL_STEP == 64) };
        let rows = wgmma::descriptor_step(HALF * SLAB_BYTES as u32);
        // SAFETY: all-zero bytes are floats; the decoders fill one stage per slab.
        unsafe {
            let mut c: [f32; 32] = core::mem::zeroed();
            let mut d: [f32; 32] = core::mem::zeroed();
            self.wait_for_mask::<KIND>(columns);
            let mut slab = 1;
            loop {
                let (a, b) = self.wait_for_slabs(0);
                wgmma::fence();
                c = multiply_steps::<K::Element, 32, 0>(c, a, b, SLAB_STEPS);
                if N == 64 {
                    d = multiply_steps::<K::Element, 32, 0>(d, a, b + rows, SLAB_STEPS);
                }
                wgmma::commit();
                c = c.wait::<0>();
                if N == 64 {
                    d = d.wait::<0>();
                }
                if slab == self.n_slabs {
                    break;
                }
                self.release(1);
                slab += 1;
            }
            let norms = self.shared.scales(self.ring.slot);
            let (kind, any) = (if KIND == TAIL && N == 64 { WHOLE } else { KIND }, columns.any());
            take::<K, 32>(best, c, columns, norms, kind, 0);
            if N == 64 {
                let norms = norms + SCALES_BYTES as u32 / 2;
                take::<K, 32>(best, d, &second_half(columns), norms, KIND, 0);
            }
            self.release(1);
            any
        }
    }
}

/// The columns of a tile's second half.
#[inline(always)]
fn second_half(columns: &Columns) -> Columns {
    let [_, _, a, b] = columns.valid;
    Columns {
        valid: [a, b, 0, 0],
        left: columns.left.wrapping_sub(HALF),
        column: columns.column + HALF as i32,
        lane: columns.lane,
        scales: columns.scales,
    }
}

/// Updates the online max with similarities, times the norms from a window address on: without
/// winners as bits, and again as floats where a maximum is then not positive.
///
/// # Safety
/// The whole warp together; the norms must be there, `safe` columns must be document tokens.
#[inline(always)]
unsafe fn take<K: Kernel, const N: usize>(
    best: &mut Best,
    mut c: [f32; N],
    columns: &Columns,
    norms: u32,
    kind: u32,
    safe: usize,
) {
    let norms = norms + 16 * (columns.lane % 4);
    unroll!(I in 0..8 => {
        if 8 * I < N {
            // SAFETY: the caller's promise. Four at a time: there are no registers for all.
            let four = unsafe { load_shared_f32x4_at::<{ 64 * I as u32 }>(norms) };
            unroll!(J in 0..8 => {
                if 8 * I + J < N {
                    c[8 * I + J] = times(c[8 * I + J], four[J / 4 * 2 + J % 2]);
                }
            });
        }
    });
    let c = match kind {
        TAIL => mask_tail(c, safe, columns.left, columns.lane),
        MASKED => valid_only(c, &columns.valid.map(|word| word >> (2 * (columns.lane % 4)))),
        _ => c,
    };
    if K::WINNERS {
        return fold(best, &c, columns.column, true);
    }
    let before = *best;
    fold_bits(best, &c);
    // SAFETY: the caller's promise.
    if unsafe { ballot(!is_positive(best) as u32) } != 0 {
        *best = before;
        fold(best, &c, columns.column, false);
    }
}
