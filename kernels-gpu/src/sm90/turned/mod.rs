//! Consumers of long queries of codes: documents are the rows of products, queries their columns.
//!
//! Products of one byte take half the time of those of two, and what follows them as long. Two
//! consumers are too few to hide it: each waits for its product, then folds while the other waits. Here
//! are four, of 64 document tokens × 128 query rows, two of which are a team and have a document together.
//! Teams have documents, stages and a loading warp of their own: a document's end is met by one, while the other
//! goes on, and by each half as often as if all four had a part of every tile. Threads have 64
//! sums and 32 maxima in 104 registers, which works because a thread's columns are query rows: it needs
//! two scales of a tile, its document tokens', where the other way round it needs 32, and shared memory
//! has no time to read those for four.
//!
//! The price is a document's end: maxima of a query row are with 8 lanes of 4 warps. Lanes of a warp
//! tell each other, and the storing warp does the rest ([`store`]).
//!
//! Maxima are those of floats until each query row has one in the warp that is not negative, mostly after a
//! document's first product; then those of bits, which takes half the instructions ([`super::fold`] says why
//! that is right): what negative ones become stays below. Sums of INT8 are folded as they are, and their
//! maxima kept in that form. A product whose rows are not all document tokens is folded as floats.

mod cut;
mod load;
mod maxima;
mod shared;
mod store;

use self::load::{load, load_told};
use self::maxima::{
    Maxima, NONE, first_bits, fold_bits, fold_floats, into_bits, into_floats, larger_signs,
    most_of_halves, most_of_lanes, signs, sum_into_float,
};
pub(super) use self::store::leave_rows;
use self::store::store_maxima;
use super::cut::units::Unit;
use super::first::{QueryTile, load_queries, load_query};
use super::fold::have_factors;
use super::{Kernel, Maps, Ring, Shared, n_threads};
use crate::layout::SLAB_BYTES;
use crate::layout::sm90::*;
use crate::norms::Norms;
use crate::params::{ForwardParams, Group, Segment};
use crate::ptx::barrier::{barrier_arrive_if, barrier_fence, barrier_init, barrier_wait};
use crate::ptx::copy::prefetch_map;
use crate::ptx::memory::{load_shared_f32, load_shared_u32x4, store_shared_f32};
use crate::ptx::thread::*;
use crate::ptx::warp::{ballot, broadcast, shuffle_xor, sync_warp};
use crate::ptx::wgmma::{self, Accumulators, Element};
use crate::reduce::unroll;
use crate::work::{self, Work};

/// The forward kernel of a row of the variant table, as [`super::forward`]. `CUTS`: units may end within documents.
///
/// # Safety
/// As there; where units may, there must be starts of units, and places of pieces behind the counters.
#[inline(always)]
pub unsafe fn forward<K: Kernel, const FIRST: u32, const CONSUMER: u32, const CUTS: bool>(
    params: &ForwardParams,
    maps: Maps,
    norms: Norms,
) {
    const { assert!(K::CONSUMERS == TURNED_CONSUMERS) };
    const { assert!(K::SLABS == 1 && K::FRAGMENTS == 1 && !K::WINNERS) };
    const { assert!(K::Element::HAS_SCALES && !K::Element::HAS_MINS) };
    let shared = Shared::new::<K>();
    let thread = thread_idx_x();
    // SAFETY: as there.
    unsafe {
        if thread >= 128 {
            wait_threads(n_threads::<K>());
            claim_registers::<CONSUMER>();
            return consume::<K>(params, &shared, thread - 128);
        }
        let (warp, lane) = (thread / 32, thread % 32);
        let mut queries = QueryTile::NONE;
        // Of a block's only tile the warp that loads it asks for the groups, and does not wait for them: all others would wait
        // for it when they meet.
        let (mut tile, mut group) = (0, Group::NONE);
        if CUTS && warp % 2 == 0 {
            // For the loading warps, which need it when barriers are set up.
            Unit::first_entry(params);
        }
        if warp == 0 {
            if lane == 0 {
                init_loading::<K>(&shared, maps);
            }
            sync_warp();
            arrive_threads(n_threads::<K>());
        } else {
            if warp == 1 && lane == 0 {
                init_storing::<CUTS>(&shared);
            }
            if warp == 3 {
                if lane == 0 {
                    prefetch_map(maps.queries);
                }
                if CUTS {
                    tile = work::tile(params, block_idx_x());
                    group = QueryTile::group::<K>(params, tile, lane);
                } else {
                    queries = QueryTile::first::<K>(params, lane);
                }
            }
            wait_threads(n_threads::<K>());
        }
        release_registers::<FIRST>();
        if CUTS {
            let (work, n) = match warp {
                1 => (cut::store::<K>(params, &shared, norms, lane), 1),
                3 => {
                    let queries = QueryTile::of(tile, group);
                    load_query::<K>(&shared, maps, queries, lane);
                    leave_rows::<K>(params, &shared, tile, lane);
                    barrier_arrive_if(shared.query_full(), (lane == 0) as u32);
                    (cut::one_entry(params), 0)
                }
                // One code for both teams: a block starts with cold instruction caches.
                _ => {
                    let team = broadcast(warp) / 2;
                    return cut::load::<K>(params, &shared, maps, norms, team, lane);
                }
            };
            return cut::end::<K>(params, &work, n);
        }
        match warp {
            1 => return store_maxima::<K>(params, &shared, norms, lane),
            2 => return load_told::<K>(params, &shared, maps, norms, lane),
            3 => return load_queries::<K>(params, &shared, maps, queries, lane),
            _ => {}
        }
        load::<K>(params, &shared, maps, norms, lane);
    }
}

/// The barriers of stages and of units.
///
/// # Safety
/// One thread, before any use of the barriers.
#[inline(always)]
unsafe fn init_loading<K: Kernel>(shared: &Shared, maps: Maps) {
    // SAFETY: the caller's promise.
    unsafe {
        prefetch_map(maps.documents);
        prefetch_map(maps.document_tails);
        let mut slot = 0;
        while slot < (TEAMS * K::STAGES) as u32 {
            // Each lane says when its scales have arrived, one that the rows are on their way.
            barrier_init(shared.team_full(slot), 33);
            barrier_init(shared.team_empty(slot), TEAM_WARPS as u32);
            slot += 1;
        }
        slot = 0;
        while slot < UNIT_SLOTS as u32 {
            barrier_init(shared.unit_full(slot), 1);
            // The first warpgroup's other warps are told.
            barrier_init(shared.unit_empty(slot), 3);
            slot += 1;
        }
        barrier_fence();
    }
}

/// The barriers of the query tile and of slots.
///
/// # Safety
/// As [`init_loading`].
#[inline(always)]
unsafe fn init_storing<const CUTS: bool>(shared: &Shared) {
    // SAFETY: the caller's promise.
    unsafe {
        // That the tile's copies are on their way, and, where that is said by itself, which rows are query tokens.
        barrier_init(shared.query_full(), if CUTS { 2 } else { 1 });
        barrier_init(shared.query_empty(), (TEAMS * TEAM_WARPS) as u32);
        let mut slot = 0;
        while slot < (TEAMS * TEAM_SLOTS) as u32 {
            barrier_init(shared.found(slot), TEAM_WARPS as u32);
            barrier_init(shared.read(slot), 1);
            slot += 1;
        }
        barrier_fence();
    }
}

/// Query rows of a warpgroup.
const COLUMNS: u32 = 128;
/// Document tokens of a product.
const ROWS: u32 = FRAGMENT_ROWS as u32;
/// Behind the sums of 16 groups: whether the document has tokens.
const HAS_TOKENS: u32 = 64;

/// The team of a consumer warp.
#[inline(always)]
fn team(warp: u32) -> u32 {
    warp / 4 % TEAMS as u32
}

/// A thread's first row of a product; the second is 8 further on.
#[inline(always)]
fn row(warp: u32, lane: u32) -> u32 {
    Group::ROWS as u32 * (warp % 4) + lane / 4
}

/// In place of a document's tokens: there is no document.
const NO_LEN: u32 = u32::MAX;
/// What is said of the query tile of a document: that it is the last one's, …
const SAME_TILE: u32 = 0;
/// … or another one, the block's first, and the parity of its barrier, …
const NEW_TILE: u32 = 4;
const FIRST_TILE: u32 = 2;
const TILE_PARITY: u32 = 1;
/// … or that there are no more documents. (Consumers have no registers to keep tiles and parities in.)
const END: u32 = u32::MAX;

/// Which team has the next document: the one that has had fewer products. Both have some of the last one where blocks
/// have a single unit, of few documents, so that they end together. Warps that go through the block's documents do so in
/// the same order, and agree.
struct Turns<'a> {
    params: &'a ForwardParams,
    /// Products that the first team has had more of.
    ahead: i32,
}

impl<'a> Turns<'a> {
    #[inline(always)]
    fn new(params: &'a ForwardParams) -> Self {
        Turns { params, ahead: 0 }
    }

    /// The team whose turn it is.
    #[inline(always)]
    fn team(&self) -> u32 {
        u32::from(self.ahead > 0)
    }

    /// What each team has of the next document, of a unit's entry.
    ///
    /// # Safety
    /// One whole warp.
    #[inline(always)]
    unsafe fn next(&mut self, work: &Work, entry: u32, rows: Segment) -> [Option<Segment>; TEAMS] {
        // SAFETY: the caller's promise.
        let (start, len) = unsafe { (broadcast(rows.start), broadcast(rows.len)) };
        let n_products = len.div_ceil(ROWS) as i32;
        let has_one_unit = self.params.draws == 0 && self.params.n_units <= grid_dim_here();
        let is_last = has_one_unit && entry + 1 == work.entry_end;
        if is_last && n_products > self.ahead.abs() + 1 {
            let first = (n_products - self.ahead) as u32 / 2 * ROWS;
            let parts = [(start, first), (start + first, len - first)];
            return parts.map(|(start, len)| Some(Segment { start, len }));
        }
        let rows = Segment { start, len };
        if self.team() == 0 {
            self.ahead += n_products;
            [Some(rows), None]
        } else {
            self.ahead -= n_products;
            [None, Some(rows)]
        }
    }
}

/// What a document's first product leaves.
struct First {
    best: Maxima,
    /// Whether maxima are those of bits, and whether they may be: with scales without factors, sums' products might
    /// not be normal.
    is_sure: bool,
    may_be_sure: bool,
}

impl First {
    /// There is none.
    const NONE: First = First { best: NONE, is_sure: false, may_be_sure: true };
}

/// Where a consumer thread is.
struct Consumer<'a> {
    params: &'a ForwardParams,
    shared: &'a Shared,
    /// Of the consumers' warps. Warpgroups 0 and 1 have the first query rows, 0 and 2 are the first team.
    warp: u32,
    /// Where the scale of the thread's first row of a product is, in the team's first stage.
    scales: u32,
    /// Of the team's stages.
    ring: Ring,
    /// Of the team's slots.
    sums: Ring,
}

/// Works through the documents of the team.
///
/// # Safety
/// All consumer threads; shared memory and barriers as [`forward`] sets them up.
#[inline(always)]
unsafe fn consume<K: Kernel>(params: &ForwardParams, shared: &Shared, thread: u32) {
    // SAFETY: every warp is whole here.
    let warp = unsafe { broadcast(thread / 32) };
    let lane = thread % 32;
    let first_stage = team(warp) * shared.stages;
    // The exchange with itself keeps the address in a register: the assembler would form it anew for every
    // tile, behind the products.
    // SAFETY: as above.
    let scales = unsafe { shuffle_xor::<0>(shared.team_scales(first_stage) + 4 * row(warp, lane)) };
    let (ring, sums) = (Ring::START, Ring::START);
    let mut consumer = Consumer { params, shared, warp, scales, ring, sums };
    // SAFETY: the team's loading warp fills the stages with what is waited for, in this order.
    unsafe {
        loop {
            consumer.wait();
            let [len, tile, ..] = load_shared_u32x4(shared.words(consumer.stage()));
            let (len, tile) = (broadcast(len), broadcast(tile));
            if tile == END {
                return;
            }
            if tile != SAME_TILE {
                let releases = tile & FIRST_TILE == 0 && lane == 0;
                barrier_arrive_if(shared.query_empty(), releases as u32);
                barrier_wait(shared.query_full(), tile & TILE_PARITY);
                consumer.take_rows();
            }
            if len == NO_LEN {
                consumer.release();
                continue;
            }
            consumer.documents::<K>(len);
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

    /// The warpgroup's team.
    #[inline(always)]
    fn team(&self) -> u32 {
        team(self.warp)
    }

    /// The stage at the head of the team's ring.
    #[inline(always)]
    fn stage(&self) -> u32 {
        self.team() * self.shared.stages + self.ring.slot
    }

    /// As [`row`], where there are no registers to keep it.
    #[inline(always)]
    fn row(&self) -> u32 {
        row(self.warp, lane_here())
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

    /// A document of `len` tokens, whose first rows are there, and those that follow it of the same query tile.
    ///
    /// A document's last maxima are exchanged while the next one's first product is under way. That stays within the
    /// loop's body: the assembler serialises products that are under way when a loop turns.
    #[inline(always)]
    unsafe fn documents<K: Kernel>(&mut self, mut len: u32) {
        let is_masked = self.params.documents.mask != 0;
        // SAFETY: every warp is whole here; the producer fills the team's stages with these rows, in this order.
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
                    self.hand_over(most_of_lanes(&best, lane_here()), has_tokens);
                    return;
                }
                let c = self.multiply::<K>();
                sync_warp();
                // The stage's mask, which is 0: the assembler would put the exchange before the product, unless it depends
                // on what is loaded behind it.
                let zero = load_shared_f32(self.shared.words(self.stage()) + 8).to_bits();
                self.hand_over(most_of_lanes(&best, lane_here() | zero), has_tokens);
                let (c, scales) = self.finish::<K>(c);
                first = self.fold_first::<K>(&c, scales);
                len = next;
            }
        }
    }

    /// The maxima of a document's first product, of which all rows are document tokens.
    ///
    /// # Safety
    /// All lanes of the warp together, behind [`Consumer::take_rows`].
    #[inline(always)]
    unsafe fn fold_first<K: Kernel>(&self, c: &[f32; 64], scales: [f32; 2]) -> First {
        let (mut is_sure, mut may_be_sure) = (false, true);
        // SAFETY: the caller's promise.
        unsafe {
            if K::FOLDS_SUMS {
                may_be_sure = ballot(!have_factors(scales) as u32) == 0;
                // Before the fold, in which sums end: for both there are no registers.
                is_sure = may_be_sure && self.are_sure(larger_signs(c));
            }
            let best = match !K::FOLDS_SUMS | is_sure {
                true => first_bits::<K>(c, scales),
                false => {
                    let mut best = NONE;
                    fold_floats::<K>(&mut best, c, scales, [true; 2]);
                    best
                }
            };
            if !K::FOLDS_SUMS {
                is_sure = self.are_sure(signs(&best));
            }
            First { best, is_sure, may_be_sure }
        }
    }

    /// The rest of a document of `len` tokens: the maxima of half of each warp's lanes, and whether it has tokens.
    #[inline(always)]
    unsafe fn document<K: Kernel>(&mut self, len: u32, first: First) -> ([f32; 16], bool) {
        let is_masked = self.params.documents.mask != 0;
        // SAFETY: as in `documents`.
        unsafe {
            // Products that start before this have only document tokens.
            let whole_end = if is_masked { 0 } else { len / ROWS * ROWS };
            let mut has_tokens = !is_masked && len > 0;
            let First { mut best, mut is_sure, mut may_be_sure } = first;
            let mut start = whole_end.min(ROWS);
            while start < len {
                // A loop of its own for what most products are: they have no instructions to spare.
                let mut n_whole = if is_sure { (whole_end - start) / ROWS } else { 0 };
                start += ROWS * n_whole;
                while n_whole > 0 {
                    let (c, scales) = self.product::<K>();
                    n_whole -= 1;
                    if K::FOLDS_SUMS && ballot(!have_factors(scales) as u32) != 0 {
                        into_floats::<K>(&mut best);
                        fold_floats::<K>(&mut best, &c, scales, [true; 2]);
                        (is_sure, may_be_sure) = (false, false);
                        start -= ROWS * n_whole;
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
                if K::FOLDS_SUMS {
                    may_be_sure &= ballot(!have_factors(scales) as u32) == 0;
                }
                if may_be_sure && start < whole_end && self.are_sure(signs(&best)) {
                    is_sure = true;
                    into_bits::<K>(&mut best);
                }
            }
            if len == 0 {
                self.release();
            }
            let lane = self.lane();
            let most = match K::FOLDS_SUMS & is_sure {
                true => most_of_halves::<true>(&best, lane).map(sum_into_float),
                false => most_of_halves::<false>(&best, lane),
            };
            (most, has_tokens)
        }
    }

    /// Waits for the rows at the head of the team's ring.
    #[inline(always)]
    unsafe fn wait(&self) {
        // SAFETY: the producer fills the stage.
        unsafe { barrier_wait(self.shared.team_full(self.stage()), self.ring.parity) };
    }

    /// The product of the rows at the head of the team's ring with the warpgroup's query rows, and the
    /// scales of the thread's two rows. Gives the stage back.
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
            let place = self.scales + self.ring.slot * TEAM_SCALES_BYTES as u32;
            let scales = [load_shared_f32(place), load_shared_f32(place + 32)];
            let c = c.wait::<0>();
            self.release();
            (c, scales)
        }
    }

    /// Starts the product of the rows at the head of the team's ring with the warpgroup's query rows.
    #[inline(always)]
    unsafe fn multiply<K: Kernel>(&self) -> [f32; 64] {
        let columns = self.shared.query_slab(0) + self.half() * COLUMNS * SLAB_BYTES as u32;
        // A step to the stage is less to do than its descriptor.
        let stage = self.stage() * wgmma::descriptor_step(TEAM_STAGE_BYTES as u32);
        let a = wgmma::descriptor(self.shared.rows(0)) + stage;
        let b = wgmma::descriptor(columns);
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

    /// Gives the stage at the head of the team's ring back to the producer.
    #[inline(always)]
    unsafe fn release(&mut self) {
        let empty = self.shared.team_empty(self.stage());
        // SAFETY: this warp has waited for every product that reads the stage.
        unsafe { barrier_arrive_if(empty, (self.lane() == 0) as u32) };
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

    /// Leaves [`most_of_lanes`] of a document to the storing warp.
    #[inline(always)]
    unsafe fn hand_over(&mut self, most: [f32; 4], has_tokens: bool) {
        let (slot, lane) = (self.team() * TEAM_SLOTS as u32 + self.sums.slot, self.lane());
        // SAFETY: all lanes are here; the storing warp empties the slots in this order; one lane arrives
        // when all have stored.
        unsafe {
            barrier_wait(self.shared.read(slot), self.sums.parity ^ 1);
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
                let place = self.shared.team_sums(slot) + HAS_TOKENS;
                store_shared_f32(place, if has_tokens { 1.0 } else { 0.0 });
            }
            sync_warp();
            barrier_arrive_if(self.shared.found(slot), (lane == 0) as u32);
        }
        self.sums = self.sums.next(TEAM_SLOTS as u32);
    }
}
