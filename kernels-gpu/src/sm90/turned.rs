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
//! tell each other, and the storing warp does the rest ([`store_maxima`]).
//!
//! Maxima are those of floats until each query row has one in the warp that is not negative, mostly after a
//! document's first tile; then those of bits, which takes half the instructions ([`super::fold`] says why
//! that is right): what negative ones become stays below. Sums of INT8 are folded as they are, and their
//! maxima kept in that form. A tile whose rows are not all document tokens is folded as floats.

use super::consumer::multiply_steps;
use super::first::QueryTile;
use super::fold::{SIMILARITY, ZERO, have_factors, to_factor};
use super::units::Told;
use super::{Kernel, Ring, Shared};
use crate::layout::SLAB_BYTES;
use crate::layout::sm90::*;
use crate::norms::{Norms, times};
use crate::params::{ForwardParams, Group, Segment};
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::math::{max_nan, mul};
use crate::ptx::memory::{
    load_shared_f32, load_shared_f32x4, load_shared_u32x4, store_shared_f32, store_shared_u32x4,
    store_u32,
};
use crate::ptx::thread::thread_idx_x;
use crate::ptx::warp::{ballot, broadcast, shuffle_xor, shuffle_xor_f32, sync_warp};
use crate::ptx::wgmma::{self, Accumulators, Element};
use crate::reduce::{TileGroups, unroll};
use crate::rows::sum_eight;
use crate::work::{self, Documents, TokenPlace, row_is_valid};

/// Query rows of a warpgroup.
const COLUMNS: u32 = 128;
/// A thread's maxima: two of every eight columns.
type Maxima = [f32; 32];

/// Where a consumer thread is.
struct Consumer<'a> {
    params: &'a ForwardParams,
    shared: &'a Shared,
    /// Of the consumers' warps. Warpgroups 0 and 1 have the first query rows, 0 and 2 the first half of
    /// a document tile.
    warp: u32,
    lane: u32,
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
    // SAFETY: every warp is whole here. The exchange with itself keeps the lane's number in a register: the
    // assembler would read it anew for every tile, behind the products.
    let (warp, lane) = unsafe { (broadcast(thread / 32), shuffle_xor::<0>(thread % 32)) };
    let (ring, sums) = (Ring::START, Ring::START);
    let mut consumer = Consumer { params, shared, warp, lane, ring, sums };
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
    /// Half of the query tile that the warp has.
    #[inline(always)]
    fn half(&self) -> u32 {
        self.warp / 8
    }

    /// The warpgroup's first row of a document tile.
    #[inline(always)]
    fn first_row(&self) -> u32 {
        FRAGMENT_ROWS as u32 * (self.warp / 4 % 2)
    }

    /// The thread's first row of a document tile; the second is 8 further on.
    #[inline(always)]
    fn row(&self) -> u32 {
        self.first_row() + Group::ROWS as u32 * (self.warp % 4) + self.lane / 4
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
                let valid = words[I] >> (2 * (self.lane % 4));
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
                while is_sure & ((start as i32) < whole_end) {
                    let (c, scales) = self.product::<K>();
                    start += DOCUMENT_TILE as u32;
                    if K::FOLDS_SUMS && ballot(!have_factors(scales) as u32) != 0 {
                        into_floats::<K>(&mut best);
                        fold_floats::<K>(&mut best, &c, scales, [true; 2]);
                        (is_sure, may_be_sure) = (false, false);
                    } else {
                        fold_bits::<K>(&mut best, &c, scales);
                    }
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
            let place = self.shared.scales(0) + 4 * self.row() + slot * SCALES_BYTES as u32;
            let scales = [load_shared_f32(place), load_shared_f32(place + 32)];
            let c = c.wait::<0>();
            self.release();
            (c, scales)
        }
    }

    /// Starts the product of the warpgroup's rows of the tile at the head of the ring with its query rows.
    #[inline(always)]
    unsafe fn multiply<K: Kernel>(&self) -> [f32; 64] {
        let rows = self.shared.stage(self.ring.slot) + self.first_row() * SLAB_BYTES as u32;
        let columns = self.shared.query_slab(0) + self.half() * COLUMNS * SLAB_BYTES as u32;
        let (a, b) = (wgmma::descriptor(rows), wgmma::descriptor(columns));
        // SAFETY: the caller's promise; the fence orders the last reads of the accumulators before they are
        // written again, and the first step starts the sum.
        unsafe {
            wgmma::fence();
            let c = <[f32; 64]>::start::<K::Element>(a, b);
            let c = multiply_steps::<K::Element, 64, 1>(c, a, b, SLAB_STEPS);
            wgmma::commit();
            c
        }
    }

    /// Gives the stage at the head of the ring back to the producer.
    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: this warp has waited for every product that reads the stage.
        unsafe { barrier_arrive_if(self.shared.empty(self.ring.slot), (self.lane == 0) as u32) };
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
                sixteen[I] = larger::<16, BITS>(self.lane, best[I], best[16 + I]);
            });
            unroll!(I in 0..8 => {
                eight[I] = larger::<8, BITS>(self.lane, sixteen[I], sixteen[8 + I]);
            });
            unroll!(I in 0..4 => {
                four[I] = larger::<4, BITS>(self.lane, eight[I], eight[4 + I]);
            });
        }
        four
    }

    /// Leaves [`Consumer::most_of_lanes`] of a document to the storing warp.
    #[inline(always)]
    unsafe fn hand_over(&mut self, most: [f32; 4], has_tokens: bool) {
        let (slot, lane) = (self.sums.slot, self.lane);
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
        self.sums = self.sums.next(sum_slots(2 * COLUMNS as usize) as u32);
    }
}

/// Leaves to the consumers which rows of a query tile are query tokens.
///
/// # Safety
/// One whole warp, before it says that the tile is on its way; consumers must have let go of the last one.
#[inline(always)]
pub(super) unsafe fn leave_rows<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    tile: u32,
    lane: u32,
) {
    let mut words = [0; 8];
    unroll!(I in 0..8 => {
        // SAFETY: the tile has the group; only rows of it are looked up; the whole warp is here.
        words[I] = unsafe {
            let first = tile * K::GROUPS + 2 * I as u32;
            let group = work::group(params, first + lane / Group::ROWS as u32);
            let row = lane % Group::ROWS as u32;
            let is_there = row < group.n_rows();
            ballot((is_there && row_is_valid(&params.queries, group.start + row)) as u32)
        };
    });
    if lane == 0 {
        let [a, b, c, d, e, f, g, h] = words;
        // SAFETY: the caller's promise.
        unsafe {
            store_shared_u32x4(shared.valid_rows(), [a, b, c, d]);
            store_shared_u32x4(shared.valid_rows() + 16, [e, f, g, h]);
        }
    }
}

/// The upper bits of a thread's maxima, the first in the uppermost.
#[inline(always)]
fn signs(best: &Maxima) -> u32 {
    let mut signs = 0;
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => { signs = signs << 1 | best[2 * I + J].to_bits() >> 31; });
    });
    signs
}

/// [`signs`] of the larger one of a column's two whole numbers.
#[inline(always)]
fn larger_signs(c: &[f32; 64]) -> u32 {
    let mut signs = 0;
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let both = c[4 * I + J].to_bits() & c[4 * I + 2 + J].to_bits();
            signs = signs << 1 | both >> 31;
        });
    });
    signs
}

/// Gives one of two maxima to the lane whose number differs by `MASK`, which is another row's, and
/// finds the larger of the other and what that lane gives.
///
/// # Safety
/// All 32 lanes must call it together.
#[inline(always)]
unsafe fn larger<const MASK: u32, const BITS: bool>(lane: u32, low: f32, high: f32) -> f32 {
    let (keep, give) = if lane & MASK != 0 { (high, low) } else { (low, high) };
    // SAFETY: the caller's promise.
    let other = unsafe { shuffle_xor_f32::<MASK>(give) };
    if BITS { f32::from_bits(keep.to_bits().max(other.to_bits())) } else { max_nan(keep, other) }
}

/// Takes a product into account, as floats; -∞ in rows that are no document tokens.
#[inline(always)]
fn fold_floats<K: Kernel>(best: &mut Maxima, c: &[f32; 64], scales: [f32; 2], valid: [bool; 2]) {
    let similarity = |i: usize, row: usize| {
        let sum = match K::FOLDS_SUMS {
            true => c[i].to_bits() as i32 as f32,
            false => c[i],
        };
        if valid[row] { times(sum, scales[row]) } else { f32::NEG_INFINITY }
    };
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let most = max_nan(similarity(4 * I + J, 0), similarity(4 * I + 2 + J, 1));
            best[2 * I + J] = max_nan(best[2 * I + J], most);
        });
    });
}

/// The maxima of a first product, as bits. Where sums are folded as they are, a negative one's is any.
#[inline(always)]
fn first_bits<K: Kernel>(best: &mut Maxima, c: &[f32; 64], scales: [f32; 2]) {
    let scales = if K::FOLDS_SUMS { scales.map(to_factor) } else { scales };
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let [a, b] = [mul(c[4 * I + J], scales[0]), mul(c[4 * I + 2 + J], scales[1])];
            best[2 * I + J] = match K::FOLDS_SUMS {
                true => f32::from_bits(a.to_bits().max(b.to_bits())),
                false => max_nan(a, b),
            };
        });
    });
}

/// Takes a product of document tokens into account, as bits.
#[inline(always)]
fn fold_bits<K: Kernel>(best: &mut Maxima, c: &[f32; 64], scales: [f32; 2]) {
    let scales = if K::FOLDS_SUMS { scales.map(to_factor) } else { scales };
    unroll!(I in 0..16 => {
        unroll!(J in 0..2 => {
            let [a, b] = [mul(c[4 * I + J], scales[0]), mul(c[4 * I + 2 + J], scales[1])];
            let (a, b, most) = (a.to_bits(), b.to_bits(), best[2 * I + J].to_bits());
            best[2 * I + J] = f32::from_bits(match K::FOLDS_SUMS {
                true => most.max(a).max(b),
                false => (most as i32).max(a as i32).max(b as i32) as u32,
            });
        });
    });
}

/// Makes floats of maxima of bits, of which each column has one in some lane that is not negative: 0 of those
/// that are.
#[inline(always)]
fn into_floats<K: Kernel>(best: &mut Maxima) {
    if K::FOLDS_SUMS {
        unroll!(I in 0..16 => {
            unroll!(J in 0..2 => { best[2 * I + J] = sum_into_float(best[2 * I + J]); });
        });
    }
}

/// That of one maximum.
#[inline(always)]
fn sum_into_float(most: f32) -> f32 {
    mul(f32::from_bits(most.to_bits().max(ZERO)), SIMILARITY)
}

/// Makes maxima of bits of floats: of sums' products with factors, where sums are folded as they are.
#[inline(always)]
fn into_bits<K: Kernel>(best: &mut Maxima) {
    if K::FOLDS_SUMS {
        unroll!(I in 0..16 => {
            unroll!(J in 0..2 => { best[2 * I + J] = mul(best[2 * I + J], 1.0 / SIMILARITY); });
        });
    }
}

/// Finds the maxima of each document's query rows in what its warps have left, adds the groups' sums by
/// query and stores scores or partial sums, and token scores.
///
/// A lane has four rows of each half of a tile: those from [`first_row`] on of group `8 half + lane / 4`.
///
/// # Safety
/// As [`super::first::load`].
#[inline(always)]
pub(super) unsafe fn store_maxima<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    lane: u32,
) {
    let mut ring = Ring::START;
    let mut tile = u32::MAX;
    let mut units = Told::START;
    // SAFETY: consumers fill one slot per entry, in this order; the whole warp is here.
    unsafe {
        let mut groups = TileGroups::new(Group::NONE, lane);
        let mut valid = 0;
        while let Some(work) = units.next(shared, lane) {
            if work.tile != tile {
                tile = work.tile;
                let queries = QueryTile::new::<K>(params, tile, lane);
                groups = TileGroups::new(queries.group, lane);
                valid = take_rows::<K>(params, shared, norms, tile, lane);
            }
            let mut entry = work.entry;
            while entry < work.entry_end {
                barrier_wait(shared.sum_full(ring.slot), ring.parity);
                let sums = shared.sums(ring.slot, 0);
                let has_tokens = load_shared_f32(sums + HAS_TOKENS) != 0.0;
                let mut half = 0;
                while half < 2 {
                    let mut most = most_of_warps(shared, ring.slot, half, lane);
                    let scales = load_shared_f32x4(shared.row_scales(half) + 16 * lane);
                    unroll!(I in 0..4 => {
                        let is_row = valid >> (4 * half + I as u32) & 1 != 0;
                        most[I] = if is_row { most[I] * scales[I] } else { 0.0 };
                    });
                    if has_tokens && params.token_scores != 0 {
                        let group = work::group(params, own_group::<K>(tile, half, lane));
                        store_tokens(params, group, entry, valid >> (4 * half), most, lane);
                    }
                    // Rows 8 apart, then neighbours: the order of all kernels ([`crate::rows`]).
                    unroll!(I in 0..4 => { most[I] += shuffle_xor_f32::<2>(most[I]); });
                    let mut other = most;
                    unroll!(I in 0..4 => { other[I] = shuffle_xor_f32::<1>(most[I]); });
                    if lane.is_multiple_of(4) {
                        store_shared_f32(sums + 4 * (8 * half + lane / 4), sum_eight(most, other));
                    }
                    half += 1;
                }
                sync_warp();
                let sum = load_shared_f32(sums + 4 * (lane % K::GROUPS));
                sync_warp();
                barrier_arrive_if(shared.sum_empty(ring.slot), (lane == 0) as u32);
                groups.store(params, entry, if has_tokens { sum } else { 0.0 });
                ring = ring.next(sum_slots(K::QUERY_TILE) as u32);
                entry += 1;
            }
            if params.counters != 0 {
                work::count_part(params, &work, groups.first_query(), lane);
            }
        }
    }
}

/// In a slot of sums, behind those of 16 groups: whether the document has tokens.
const HAS_TOKENS: u32 = 64;

/// The lane's first row of its groups.
#[inline(always)]
fn first_row(lane: u32) -> u32 {
    4 * (lane % 4)
}

/// The lane's group of a half of a tile.
#[inline(always)]
fn own_group<K: Kernel>(tile: u32, half: u32, lane: u32) -> u32 {
    tile * K::GROUPS + 8 * half + lane / 4
}

/// Keeps the scales of the lane's rows of a new tile, and says which of the rows are query tokens, four
/// bits for each half.
///
/// # Safety
/// The tile must be of this launch.
#[inline(always)]
unsafe fn take_rows<K: Kernel>(
    params: &ForwardParams,
    shared: &Shared,
    norms: Norms,
    tile: u32,
    lane: u32,
) -> u32 {
    let mut valid = 0;
    let mut half = 0;
    while half < 2 {
        // SAFETY: the tile has the group; only rows of it are looked up.
        unsafe {
            let group = work::group(params, own_group::<K>(tile, half, lane));
            unroll!(I in 0..4 => {
                let row = first_row(lane) + I as u32;
                if row < group.n_rows() {
                    let is_row = row_is_valid(&params.queries, group.start + row);
                    valid |= u32::from(is_row) << (4 * half + I as u32);
                    let place = shared.row_scales(half) + 16 * lane + 4 * I as u32;
                    store_shared_f32(place, norms.query(group, row));
                }
            });
        }
        half += 1;
    }
    valid
}

/// The largest that the eight warps of a half have left of each of the lane's rows.
///
/// # Safety
/// They must have left them.
#[inline(always)]
unsafe fn most_of_warps(shared: &Shared, slot: u32, half: u32, lane: u32) -> [f32; 4] {
    let place = shared.maxima(slot, 8 * half) + 16 * lane;
    // SAFETY: the caller's promise.
    let of_warp = |warp: usize| unsafe { load_shared_f32x4(place + (warp * MAXIMA_BYTES) as u32) };
    let mut most = of_warp(0);
    unroll!(WARP in 0..8 => {
        if WARP != 0 {
            let other = of_warp(WARP);
            unroll!(I in 0..4 => { most[I] = max_nan(most[I], other[I]); });
        }
    });
    most
}

/// Stores token scores of the lane's rows of a group, those that are query tokens.
///
/// # Safety
/// The entry must belong to the group's query; token scores must be asked for.
#[inline(always)]
unsafe fn store_tokens(
    params: &ForwardParams,
    group: Group,
    entry: u32,
    valid: u32,
    scores: [f32; 4],
    lane: u32,
) {
    if valid & 15 == 0 {
        return;
    }
    // SAFETY: the caller's promise; each row has one owner.
    unsafe {
        let index = TokenPlace::new(params, group).index(params, entry);
        let place = params.token_scores + (index + u64::from(first_row(lane))) * 4;
        unroll!(I in 0..4 => {
            if valid >> I & 1 != 0 {
                store_u32(place + 4 * I as u64, scores[I].to_bits());
            }
        });
    }
}
