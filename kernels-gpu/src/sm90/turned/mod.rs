//! Consumers of long queries of codes: documents are the rows of products, queries their columns.
//!
//! Products of one byte take half the time of those of two, and what follows them as long. Two
//! consumers are too few to hide it: each waits for its product, then folds while the other waits. Here
//! are four, of 64 document tokens × 128 query rows, a quarter of a tile each. Their threads have 64
//! sums and 32 maxima in 104 registers, which works because a thread's columns are query rows: it needs
//! two scales of a tile, its document tokens', where the other way round it needs 32, and shared memory
//! has no time to read those for four.
//!
//! The price is a document's end: maxima of a query row are with 8 lanes of 8 warps. Lanes of a warp
//! tell each other, and the storing warp does the rest ([`store`]).
//!
//! Maxima are those of floats until each query row has one in the warp that is not negative, mostly after a
//! document's first tile; then those of bits, which takes half the instructions ([`super::fold`] says why
//! that is right): what negative ones become stays below. Sums of INT8 are folded as they are, and their
//! maxima kept in that form. A tile whose rows are not all document tokens is folded as floats.

mod maxima;
mod store;

use self::maxima::{
    Maxima, first_bits, fold_bits, fold_floats, into_bits, into_floats, larger, larger_signs,
    signs, sum_into_float,
};
pub(super) use self::store::{leave_rows, store_maxima};
use super::fold::have_factors;
use super::units::Told;
use super::{Kernel, Ring, Shared};
use crate::layout::SLAB_BYTES;
use crate::layout::sm90::*;
use crate::params::{ForwardParams, Group, Segment};
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::memory::{load_shared_f32, load_shared_u32x4, store_shared_f32};
use crate::ptx::thread::thread_idx_x;
use crate::ptx::warp::{ballot, broadcast, shuffle_xor, sync_warp};
use crate::ptx::wgmma::{self, Accumulators, Element};
use crate::reduce::unroll;
use crate::work::Documents;

/// Query rows of a warpgroup.
const COLUMNS: u32 = 128;
/// In a slot of sums, behind those of 16 groups: whether the document has tokens.
const HAS_TOKENS: u32 = 64;

/// A warpgroup's first row of a document tile, of one of its warps.
#[inline(always)]
fn first_row(warp: u32) -> u32 {
    FRAGMENT_ROWS as u32 * (warp / 4 % 2)
}

/// A thread's first row of a document tile; the second is 8 further on.
#[inline(always)]
fn row(warp: u32, lane: u32) -> u32 {
    first_row(warp) + Group::ROWS as u32 * (warp % 4) + lane / 4
}

/// Where a consumer thread is.
struct Consumer<'a> {
    params: &'a ForwardParams,
    shared: &'a Shared,
    /// Of the consumers' warps. Warpgroups 0 and 1 have the first query rows, 0 and 2 the first half of
    /// a document tile.
    warp: u32,
    /// Where the scale of the thread's first row of a tile is, in the first stage.
    scales: u32,
    ring: Ring,
    sums: Ring,
}

/// Works through the block's units.
///
/// # Safety
/// All consumer threads; shared memory and barriers as [`super::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn consume<K: Kernel>(params: &ForwardParams, shared: &Shared, thread: u32) {
    const { assert!(!K::IS_TURNED || K::SLABS == 1 && K::FRAGMENTS == 1 && !K::WINNERS) };
    const { assert!(!K::IS_TURNED || K::Element::HAS_SCALES && !K::Element::HAS_MINS) };
    // SAFETY: every warp is whole here.
    let warp = unsafe { broadcast(thread / 32) };
    let lane = thread % 32;
    // The exchange with itself keeps the address in a register: the assembler would form it anew for every
    // tile, behind the products.
    // SAFETY: as above.
    let scales = unsafe { shuffle_xor::<0>(shared.scales(0) + 4 * row(warp, lane)) };
    let (ring, sums) = (Ring::START, Ring::START);
    let mut consumer = Consumer { params, shared, warp, scales, ring, sums };
    let mut tile = u32::MAX;
    let mut query_parity = 0;
    let mut units = Told::START;
    // SAFETY: the producer loads what is waited for, in this order.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            if work.tile != tile {
                let releases = tile != u32::MAX && lane == 0;
                barrier_arrive_if(shared.query_empty(), releases as u32);
                tile = work.tile;
                barrier_wait(shared.query_full(), query_parity);
                query_parity ^= 1;
                consumer.take_rows();
            }
            let mut documents = Documents::new(params, &work);
            while let Some((_, document)) = documents.next() {
                consumer.document::<K>(document);
            }
        }
    }
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

    /// The warpgroup's first row of a document tile.
    #[inline(always)]
    fn first_row(&self) -> u32 {
        first_row(self.warp)
    }

    /// As [`row`].
    #[inline(always)]
    fn row(&self) -> u32 {
        row(self.warp, self.lane())
    }

    /// Where it is kept which of the thread's columns are no query tokens, the first in the uppermost bit: there
    /// is no register for it.
    #[inline(always)]
    fn no_rows(&self) -> u32 {
        self.shared.no_rows() + 4 * (thread_idx_x() - 128)
    }

    /// Keeps which columns are query tokens.
    ///
    /// # Safety
    /// The query tile must be there.
    #[inline(always)]
    unsafe fn take_rows(&self) {
        let mut columns = 0;
        // SAFETY: the warp that loads the tile has left the words; the thread's word is its own.
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

    /// One document against the resident query tile.
    #[inline(always)]
    unsafe fn document<K: Kernel>(&mut self, document: Segment) {
        let is_masked = self.params.documents.mask != 0;
        // SAFETY: every warp is whole here; the producer fills the ring's stages with these tiles, in this
        // order.
        unsafe {
            let len = broadcast(document.len);
            // The tiles that start before this have only document tokens for the warpgroup.
            let whole_end = match is_masked {
                true => 0,
                false => (len + 1) as i32 - (self.first_row() + FRAGMENT_ROWS as u32) as i32,
            };
            let mut best: Maxima = [f32::NEG_INFINITY; 32];
            let mut has_tokens = !is_masked && len > 0;
            // Whether maxima are those of bits, and whether they may be: with scales without factors, sums'
            // products might not be normal.
            let (mut is_sure, mut may_be_sure) = (false, true);
            let mut start = 0;
            if whole_end > 0 {
                let (c, scales) = self.product::<K>();
                start = DOCUMENT_TILE as u32;
                if K::FOLDS_SUMS {
                    may_be_sure = ballot(!have_factors(scales) as u32) == 0;
                    // Before the fold, in which sums end: for both there are no registers.
                    is_sure = may_be_sure && self.are_sure(larger_signs(&c));
                }
                match !K::FOLDS_SUMS | is_sure {
                    true => first_bits::<K>(&mut best, &c, scales),
                    false => fold_floats::<K>(&mut best, &c, scales, [true; 2]),
                }
                if !K::FOLDS_SUMS {
                    is_sure = self.are_sure(signs(&best));
                }
            }
            while start < len {
                // A loop of its own for what most tiles are: they have no instructions to spare.
                let left = (whole_end - start as i32).max(0) as u32;
                let mut n_whole = if is_sure { left.div_ceil(DOCUMENT_TILE as u32) } else { 0 };
                start += DOCUMENT_TILE as u32 * n_whole;
                while n_whole > 0 {
                    let (c, scales) = self.product::<K>();
                    n_whole -= 1;
                    if K::FOLDS_SUMS && ballot(!have_factors(scales) as u32) != 0 {
                        into_floats::<K>(&mut best);
                        fold_floats::<K>(&mut best, &c, scales, [true; 2]);
                        (is_sure, may_be_sure) = (false, false);
                        start -= DOCUMENT_TILE as u32 * n_whole;
                        break;
                    }
                    fold_bits::<K>(&mut best, &c, scales);
                }
                if start >= len {
                    break;
                }
                if is_sure {
                    into_floats::<K>(&mut best);
                    is_sure = false;
                }
                let left = len - start;
                let mut valid = [self.row() < left, self.row() + 8 < left];
                if is_masked {
                    let slot = self.ring.slot;
                    barrier_wait(self.shared.full(slot), self.ring.parity);
                    let mask = self.shared.mask(slot);
                    let words = load_shared_u32x4(mask);
                    let own = load_shared_f32(mask + 4 * (self.row() / 32)).to_bits()
                        >> (self.row() % 32);
                    valid = [own & 1 != 0, own >> 8 & 1 != 0];
                    has_tokens |= words[0] | words[1] | words[2] | words[3] != 0;
                }
                start += DOCUMENT_TILE as u32;
                if left <= self.first_row() {
                    barrier_wait(self.shared.full(self.ring.slot), self.ring.parity);
                    self.release();
                    continue;
                }
                let (c, scales) = self.product::<K>();
                fold_floats::<K>(&mut best, &c, scales, valid);
                if K::FOLDS_SUMS {
                    may_be_sure &= ballot(!have_factors(scales) as u32) == 0;
                }
                if may_be_sure && (start as i32) < whole_end && self.are_sure(signs(&best)) {
                    is_sure = true;
                    into_bits::<K>(&mut best);
                }
            }
            let most = match K::FOLDS_SUMS & is_sure {
                true => self.most_of_lanes::<true>(&best).map(sum_into_float),
                false => self.most_of_lanes::<false>(&best),
            };
            self.hand_over(most, has_tokens);
        }
    }

    /// The product of the warpgroup's rows of the tile at the head of the ring with its query rows, and the
    /// scales of the thread's two rows. Gives the stage back.
    #[inline(always)]
    unsafe fn product<K: Kernel>(&mut self) -> ([f32; 64], [f32; 2]) {
        let slot = self.ring.slot;
        // SAFETY: the producer fills the stage.
        unsafe {
            barrier_wait(self.shared.full(slot), self.ring.parity);
            let c = self.multiply::<K>();
            let place = self.scales + slot * SCALES_BYTES as u32;
            let scales = [load_shared_f32(place), load_shared_f32(place + 32)];
            let c = c.wait::<0>();
            self.release();
            (c, scales)
        }
    }

    /// Starts the product of the warpgroup's rows of the tile at the head of the ring with its query rows.
    #[inline(always)]
    unsafe fn multiply<K: Kernel>(&self) -> [f32; 64] {
        let rows = self.shared.stage(0) + self.first_row() * SLAB_BYTES as u32;
        let columns = self.shared.query_slab(0) + self.half() * COLUMNS * SLAB_BYTES as u32;
        // A step to the stage is less to do than its descriptor.
        let stage = self.ring.slot * wgmma::descriptor_step(DOCUMENT_SLAB_BYTES as u32);
        let (a, b) = (wgmma::descriptor(rows) + stage, wgmma::descriptor(columns));
        let high = [self.params.documents.descriptor_high, self.params.queries.descriptor_high];
        // SAFETY: the caller's promise; the fence orders the last reads of the accumulators before they are
        // written again.
        unsafe {
            wgmma::fence();
            let c = <[f32; 64]>::slab::<K::Element>(a, b, high);
            wgmma::commit();
            c
        }
    }

    /// Gives the stage at the head of the ring back to the producer.
    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: this warp has waited for every product that reads the stage.
        unsafe { barrier_arrive_if(self.shared.empty(self.ring.slot), (self.lane() == 0) as u32) };
        self.ring = self.ring.next(self.shared.stages);
    }

    /// Whether some lane's maximum of every query row is not negative, so that the others' do not count: the
    /// maxima may go on as bits.
    ///
    /// # Safety
    /// All lanes of the warp together, behind [`Consumer::take_rows`].
    #[inline(always)]
    unsafe fn are_sure(&self, signs: u32) -> bool {
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

    /// The largest of the lanes with the same columns: each gets four of the columns. `BITS`: maxima of sums, as
    /// bits.
    ///
    /// # Safety
    /// All lanes of the warp together.
    #[inline(always)]
    unsafe fn most_of_lanes<const BITS: bool>(&self, best: &Maxima) -> [f32; 4] {
        let (mut sixteen, mut eight, mut four) = ([0.0; 16], [0.0; 8], [0.0; 4]);
        // SAFETY: the caller's promise.
        unsafe {
            unroll!(I in 0..16 => {
                sixteen[I] = larger::<16, BITS>(self.lane(), best[I], best[16 + I]);
            });
            unroll!(I in 0..8 => {
                eight[I] = larger::<8, BITS>(self.lane(), sixteen[I], sixteen[8 + I]);
            });
            unroll!(I in 0..4 => {
                four[I] = larger::<4, BITS>(self.lane(), eight[I], eight[4 + I]);
            });
        }
        four
    }

    /// Leaves [`Consumer::most_of_lanes`] of a document to the storing warp.
    #[inline(always)]
    unsafe fn hand_over(&mut self, most: [f32; 4], has_tokens: bool) {
        let (slot, lane) = (self.sums.slot, self.lane());
        // SAFETY: all lanes are here; the storing warp empties the slots in this order; one lane arrives
        // when all have stored.
        unsafe {
            barrier_wait(self.shared.sum_empty(slot), self.sums.parity ^ 1);
            let column =
                64 * (lane / 16) + 32 * (lane / 8 % 2) + 16 * (lane / 4 % 2) + 2 * (lane % 4);
            let place = self.shared.maxima(slot, self.warp) + 4 * column;
            unroll!(I in 0..4 => {
                store_shared_f32(place + 4 * (8 * (I as u32 / 2) + I as u32 % 2), most[I]);
            });
            if self.warp == 0 && lane == 0 {
                store_shared_f32(
                    self.shared.sums(slot, 0) + HAS_TOKENS,
                    if has_tokens { 1.0 } else { 0.0 },
                );
            }
            sync_warp();
            barrier_arrive_if(self.shared.sum_full(slot), (lane == 0) as u32);
        }
        self.sums = self.sums.next(self.shared.sum_slots);
    }
}
