//! The consumer warpgroups: multiply, online max, publish the maxima.

use crate::abi::layout::SLAB_BYTES;
use crate::abi::layout::sm90::*;
use crate::abi::params::ForwardParams;
use crate::primitives::unroll::unroll;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::{load_shared_f32, load_shared_u32x4, store_shared_f32};
use crate::ptx::thread::*;
use crate::ptx::warp::{ballot, broadcast, shuffle_xor, sync_warp};
use crate::ptx::wgmma;
use crate::ptx::wgmma::Accumulators;
use crate::sm90::bitwise_max::have_factors;
use crate::sm90::kernel::Kernel;
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;
use crate::sm90::swap_ab::kernel::{COLUMNS, HAS_TOKENS, NO_LEN, ROWS, SAME_TILE, pair, row};
use crate::sm90::swap_ab::maxima::{
    Maxima, NONE, first_bits, fold_bits, fold_floats, into_bits, into_floats, larger_signs,
    most_of_halves, most_of_lanes, signs, sum_into_float,
};

/// Result of a document's first product.
struct First {
    best: Maxima,
    /// Whether maxima are those of bits, and whether they may be: with scales without factors,
    /// sums' products might not be normal.
    is_exact: bool,
    may_be_exact: bool,
}

impl First {
    /// There is none.
    const NONE: First = First { best: NONE, is_exact: false, may_be_exact: true };
}

/// A consumer thread.
pub(super) struct Consumer<'a> {
    pub(super) params: &'a ForwardParams,
    pub(super) shared: &'a Shared,
    /// Index among the consumers' warps. Warpgroups 0 and 1 have the first query rows, 0 and 2 are
    /// the first pair.
    pub(super) warp: u32,
    /// Address of the scale of the thread's first row of a product, in the pair's first stage.
    pub(super) scales: u32,
    /// Ring of the pair's stages.
    pub(super) ring: Ring,
    /// Ring of the pair's slots.
    pub(super) sums: Ring,
}

impl Consumer<'_> {
    /// Read anew where it is needed: in the loop over tiles it would take a register.
    #[inline(always)]
    fn lane(&self) -> u32 {
        thread_idx_x() % 32
    }

    /// Half of the query tile that the warp has.
    #[inline(always)]
    fn half(&self) -> u32 {
        self.warp / 8
    }

    /// The warpgroup's pair.
    #[inline(always)]
    fn pair(&self) -> u32 {
        pair(self.warp)
    }

    /// The stage at the head of the pair's ring.
    #[inline(always)]
    pub(super) fn stage(&self) -> u32 {
        self.pair() * self.shared.stages + self.ring.slot
    }

    /// As [`row`], where there are no registers to keep it.
    #[inline(always)]
    fn row(&self) -> u32 {
        row(self.warp, lane_here())
    }

    /// Address of the bits of the thread's columns that are no query tokens, the first in the
    /// uppermost bit: there is no register for them.
    #[inline(always)]
    fn no_rows(&self) -> u32 {
        self.shared.no_rows() + 4 * (thread_idx_x() - 128)
    }

    /// Keeps which columns are query tokens.
    ///
    /// # Safety
    /// The query tile must be there.
    #[inline(always)]
    pub(super) unsafe fn load_valid_rows(&self) {
        let mut columns = 0;
        // SAFETY: the warp that loads the tile has stored the words; the thread's word is its own.
        unsafe {
            let words = load_shared_u32x4(self.shared.valid_rows() + 16 * self.half());
            unroll!(I in 0..4 => {
                let valid = words[I] >> (2 * (self.lane() % 4));
                unroll!(J in 0..4 => {
                    columns |= (valid >> (8 * J) & 3) << (8 * I + 2 * J);
                });
            });
            store_shared_f32(self.no_rows(), f32::from_bits(!columns.reverse_bits()));
        }
    }

    /// A document of `len` tokens, whose first rows are there, and those that follow it of the same
    /// query tile.
    ///
    /// A document's last maxima are exchanged while the next one's first product is under way. That
    /// stays within the loop's body: the assembler serialises products that are under way when a
    /// loop pairs.
    #[inline(always)]
    pub(super) unsafe fn documents<K: Kernel>(&mut self, mut len: u32) {
        let is_masked = self.params.documents.mask != 0;
        // SAFETY: every warp is whole here; the producer fills the pair's stages with these rows,
        // in this order.
        unsafe {
            let mut first = First::NONE;
            if !is_masked && len >= ROWS {
                let (c, scales) = self.product::<K>();
                first = self.fold_first::<K>(&c, scales);
            }
            loop {
                let (best, has_tokens) = self.document::<K>(len, first);
                self.wait();
                let [next, tile, ..] = load_shared_u32x4(self.shared.words(self.stage()));
                let (next, tile) = (broadcast(next), broadcast(tile));
                let is_whole = next != NO_LEN && next >= ROWS;
                if is_masked || tile != SAME_TILE || !is_whole {
                    self.publish_maxima(most_of_lanes(&best, lane_here()), has_tokens);
                    return;
                }
                let c = self.multiply::<K>();
                sync_warp();
                // The stage's mask, which is 0: the assembler would put the exchange before the
                // product, unless it depends on what is loaded behind it.
                let zero = load_shared_f32(self.shared.words(self.stage()) + 8).to_bits();
                self.publish_maxima(most_of_lanes(&best, lane_here() | zero), has_tokens);
                let (c, scales) = self.finish::<K>(c);
                first = self.fold_first::<K>(&c, scales);
                len = next;
            }
        }
    }

    /// The maxima of a document's first product, of which all rows are document tokens.
    ///
    /// # Safety
    /// All lanes of the warp together, behind [`Consumer::load_valid_rows`].
    #[inline(always)]
    unsafe fn fold_first<K: Kernel>(&self, c: &[f32; 64], scales: [f32; 2]) -> First {
        let (mut is_exact, mut may_be_exact) = (false, true);
        // SAFETY: the caller's promise.
        unsafe {
            if K::SKIPS_CONVERSION {
                may_be_exact = ballot(!have_factors(scales) as u32) == 0;
                // Before the fold, in which sums end: for both there are no registers.
                is_exact = may_be_exact && self.are_exact(larger_signs(c));
            }
            let best = match !K::SKIPS_CONVERSION | is_exact {
                true => first_bits::<K>(c, scales),
                false => {
                    let mut best = NONE;
                    fold_floats::<K>(&mut best, c, scales, [true; 2]);
                    best
                }
            };
            if !K::SKIPS_CONVERSION {
                is_exact = self.are_exact(signs(&best));
            }
            First { best, is_exact, may_be_exact }
        }
    }

    /// The rest of a document of `len` tokens: the maxima of half of each warp's lanes, and whether
    /// it has tokens.
    #[inline(always)]
    unsafe fn document<K: Kernel>(&mut self, len: u32, first: First) -> ([f32; 16], bool) {
        let is_masked = self.params.documents.mask != 0;
        // SAFETY: as in `documents`.
        unsafe {
            // Products that start before this have only document tokens.
            let whole_end = if is_masked { 0 } else { len / ROWS * ROWS };
            let mut has_tokens = !is_masked && len > 0;
            let First { mut best, mut is_exact, mut may_be_exact } = first;
            let mut start = whole_end.min(ROWS);
            while start < len {
                // A loop of its own for what most products are: they have no instructions to spare.
                let mut n_whole = if is_exact { (whole_end - start) / ROWS } else { 0 };
                start += ROWS * n_whole;
                while n_whole > 0 {
                    let (c, scales) = self.product::<K>();
                    n_whole -= 1;
                    if K::SKIPS_CONVERSION && ballot(!have_factors(scales) as u32) != 0 {
                        into_floats::<K>(&mut best);
                        fold_floats::<K>(&mut best, &c, scales, [true; 2]);
                        (is_exact, may_be_exact) = (false, false);
                        start -= ROWS * n_whole;
                        break;
                    }
                    fold_bits::<K>(&mut best, &c, scales);
                }
                if start >= len {
                    break;
                }
                if is_exact {
                    into_floats::<K>(&mut best);
                    is_exact = false;
                }
                let left = len - start;
                let row = self.row();
                let mut valid = [row < left, row + 8 < left];
                if is_masked {
                    self.wait();
                    let [_, _, low, high] = load_shared_u32x4(self.shared.words(self.stage()));
                    let own = if row < 32 { low } else { high } >> (row % 32);
                    valid = [own & 1 != 0, own >> 8 & 1 != 0];
                    has_tokens |= low | high != 0;
                }
                start += ROWS;
                let (c, scales) = self.product::<K>();
                fold_floats::<K>(&mut best, &c, scales, valid);
                if K::SKIPS_CONVERSION {
                    may_be_exact &= ballot(!have_factors(scales) as u32) == 0;
                }
                if may_be_exact && start < whole_end && self.are_exact(signs(&best)) {
                    is_exact = true;
                    into_bits::<K>(&mut best);
                }
            }
            if len == 0 {
                self.release();
            }
            let lane = self.lane();
            let most = match K::SKIPS_CONVERSION & is_exact {
                true => most_of_halves::<true>(&best, lane).map(sum_into_float),
                false => most_of_halves::<false>(&best, lane),
            };
            (most, has_tokens)
        }
    }

    /// Waits for the rows at the head of the pair's ring.
    #[inline(always)]
    pub(super) unsafe fn wait(&self) {
        // SAFETY: the producer fills the stage.
        unsafe { barrier_wait(self.shared.pair_full(self.stage()), self.ring.parity) };
    }

    /// The product of the rows at the head of the pair's ring with the warpgroup's query rows, and
    /// the scales of the thread's two rows. Gives the stage back.
    #[inline(always)]
    unsafe fn product<K: Kernel>(&mut self) -> ([f32; 64], [f32; 2]) {
        // SAFETY: the producer fills the stage.
        unsafe {
            self.wait();
            let c = self.multiply::<K>();
            self.finish::<K>(c)
        }
    }

    /// Waits for a product that has been started, and gives its stage back.
    #[inline(always)]
    unsafe fn finish<K: Kernel>(&mut self, c: [f32; 64]) -> ([f32; 64], [f32; 2]) {
        // SAFETY: the producer has filled the stage.
        unsafe {
            let place = self.scales + self.ring.slot * PAIR_SCALES_BYTES as u32;
            let scales = [load_shared_f32(place), load_shared_f32(place + 32)];
            let c = c.wait::<0>();
            self.release();
            (c, scales)
        }
    }

    /// Starts the product of the rows at the head of the pair's ring with the warpgroup's query
    /// rows.
    #[inline(always)]
    unsafe fn multiply<K: Kernel>(&self) -> [f32; 64] {
        let columns = self.shared.query_slab(0) + self.half() * COLUMNS * SLAB_BYTES as u32;
        // A step to the stage is less to do than its descriptor.
        let stage = self.stage() * wgmma::descriptor_step(PAIR_STAGE_BYTES as u32);
        let a = wgmma::descriptor(self.shared.rows(0)) + stage;
        let b = wgmma::descriptor(columns);
        let high = [self.params.documents.descriptor_high, self.params.queries.descriptor_high];
        // SAFETY: the caller's promise; the fence orders the last reads of the accumulators before
        // they are written again.
        unsafe {
            wgmma::fence();
            let c = <[f32; 64]>::slab::<K::Element>(a, b, high);
            wgmma::commit();
            c
        }
    }

    /// Gives the stage at the head of the pair's ring back to the producer.
    #[inline(always)]
    pub(super) unsafe fn release(&mut self) {
        let empty = self.shared.pair_empty(self.stage());
        // SAFETY: this warp has waited for every product that reads the stage.
        unsafe { barrier_arrive_if(empty, (self.lane() == 0) as u32) };
        self.ring = self.ring.next(self.shared.stages);
    }

    /// Whether some lane's maximum of every query row is not negative, so that the others' do not
    /// count: the maxima may continue as bits.
    ///
    /// # Safety
    /// All lanes of the warp together, behind [`Consumer::load_valid_rows`].
    #[inline(always)]
    unsafe fn are_exact(&self, signs: u32) -> bool {
        let mut sure = !signs;
        // SAFETY: the caller's promise.
        unsafe {
            sure |= shuffle_xor::<4>(sure);
            sure |= shuffle_xor::<8>(sure);
            sure |= shuffle_xor::<16>(sure);
            sure |= load_shared_f32(self.no_rows()).to_bits();
            ballot((sure != u32::MAX) as u32) == 0
        }
    }

    /// Stores [`most_of_lanes`] of a document for the storing warp.
    #[inline(always)]
    unsafe fn publish_maxima(&mut self, most: [f32; 4], has_tokens: bool) {
        let (slot, lane) = (self.pair() * PAIR_SLOTS as u32 + self.sums.slot, self.lane());
        // SAFETY: all lanes are here; the storing warp empties the slots in this order; one lane
        // arrives when all have stored.
        unsafe {
            barrier_wait(self.shared.maxima_empty(slot), self.sums.parity ^ 1);
            let lane_here = lane_here();
            let column = 64 * (lane_here / 16)
                + 32 * (lane_here / 8 % 2)
                + 16 * (lane_here / 4 % 2)
                + 2 * (lane_here % 4);
            let place = self.shared.maxima(slot, 4 * self.half() + self.warp % 4) + 4 * column;
            unroll!(I in 0..4 => {
                store_shared_f32(place + 4 * (8 * (I as u32 / 2) + I as u32 % 2), most[I]);
            });
            if self.warp % 4 + self.half() + lane == 0 {
                let place = self.shared.pair_sums(slot) + HAS_TOKENS;
                store_shared_f32(place, if has_tokens { 1.0 } else { 0.0 });
            }
            sync_warp();
            barrier_arrive_if(self.shared.maxima_full(slot), (lane == 0) as u32);
        }
        self.sums = self.sums.next(PAIR_SLOTS as u32);
    }
}
