//! Consumers: what a thread keeps across documents, and the loops over units, documents and tiles.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Group, Segment};
use crate::primitives::accumulator::Best;
use crate::primitives::documents::Documents;
use crate::primitives::row_maxima::row_sums;
use crate::primitives::row_scales::RowScales;
use crate::primitives::row_vector::I8;
use crate::primitives::unroll::unroll;
use crate::primitives::work_tile;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::store_shared_f32;
use crate::ptx::thread::pause;
use crate::ptx::warp::{broadcast, sync_warp};
use crate::ptx::wgmma::{Accumulators, WgmmaElement};
use crate::sm90::kernel::{Kernel, n_slabs};
use crate::sm90::query_rows::WarpRows;
use crate::sm90::scheduler::ReceivedUnits;
use crate::sm90::smem::Ring;
use crate::sm90::smem::Shared;
use crate::sm90::smem::norms::row_norm;

/// A consumer thread and its registers that live across documents.
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
    pub(super) row_scales: RowScales,
    pub(super) row_terms: RowTerms,
}

/// Either the address of the row scales of a document, or the sums of the codes of the thread's two
/// query rows, by the kernel. One word for both: a field more would change the kernels that have
/// none.
#[derive(Clone, Copy)]
pub(super) struct RowTerms(u64);

impl RowTerms {
    pub(super) const NONE: RowTerms = RowTerms(0);

    /// The address of row scales, where rows are normalised or codes are reduced without their
    /// scales: marked, where scales may be f16.
    #[inline(always)]
    const fn scales(address: u64) -> RowTerms {
        RowTerms(address)
    }

    /// Sums of codes, where documents have minima.
    #[inline(always)]
    fn code_sums(sums: [f32; 2]) -> RowTerms {
        let [a, b] = sums.map(f32::to_bits);
        RowTerms(u64::from(b) << 32 | u64::from(a))
    }

    /// Address of [`RowTerms::scales`].
    #[inline(always)]
    pub(super) fn address(self) -> u64 {
        self.0
    }

    /// The sums of [`RowTerms::code_sums`].
    #[inline(always)]
    pub(super) fn sums(self) -> [f32; 2] {
        [self.0 as u32, (self.0 >> 32) as u32].map(f32::from_bits)
    }
}

/// Every column is a document token.
pub(super) const WHOLE: u32 = 0;
/// Columns beyond the document's end are none.
pub(super) const TAIL: u32 = 1;
/// The mask says which columns are.
pub(super) const MASKED: u32 = 2;

/// How a consumer multiplies a tile with its query rows, and reduces the products.
pub(super) trait Product {
    /// Takes the rows of the query tile that the consumer has just looked up.
    ///
    /// # Safety
    /// All threads of the warpgroup together.
    #[inline(always)]
    unsafe fn take_rows<K: Kernel>(&mut self, _: &Consumer<'_>, _tile: u32) {}

    /// Ends what the tiles before have begun, behind the last one.
    ///
    /// # Safety
    /// All threads of the warpgroup together.
    #[inline(always)]
    unsafe fn end(&mut self, _warp: u32) {}

    /// Updates the online max with up to 2 · `N` document tokens from row `row` of their document
    /// on, of which a [`TAIL`] has `left`. Says whether a [`MASKED`] tile has valid columns.
    ///
    /// # Safety
    /// All threads of the warpgroup together; producers load the tile next.
    unsafe fn tile<K: Kernel, const N: usize, const KIND: u32>(
        &mut self,
        consumer: &mut Consumer<'_>,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) -> u32
    where
        [f32; N]: Accumulators;
}

/// Works through the CTA's units: the loop of all consumers that receive units.
///
/// # Safety
/// All consumer threads; shared memory and barriers as
/// [`crate::sm90::persistent::forward`] sets them up.
#[inline(always)]
pub(super) unsafe fn consume<K: Kernel, P: Product>(
    params: &ForwardParams,
    shared: &Shared,
    row_scales: RowScales,
    mut product: P,
    thread: u32,
) {
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
        row_scales,
        row_terms: RowTerms::NONE,
    };
    let mut tile = u32::MAX;
    let mut query_parity = 0;
    let mut units = ReceivedUnits::START;
    // SAFETY: producers fill what is waited for, in this order.
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
                product.take_rows::<K>(&consumer, tile);
                if K::SLABS > 0 {
                    barrier_wait(shared.query_full(), query_parity);
                    query_parity ^= 1;
                }
                if K::FINDS_NORMS {
                    let row = WarpRows::own_row::<K>(warp, consumer.lane);
                    let slabs = [shared.query_slab(0), shared.query_slab(1)];
                    consumer.rows.take_norm(row_norm::<K::Element>(slabs, row, params.dim));
                    // Lanes with rows that are too long to square have gone another way.
                    sync_warp();
                }
                // Both warpgroups start here at once. In step, both would reduce at the same time
                // and the tensor cores would be idle: the second one lets the first go ahead.
                if K::CONSUMERS == 2 && warp >= 4 {
                    pause(tile_clocks::<K>());
                }
            }
            let mut documents = Documents::new(params, &work);
            while let Some((entry, document)) = documents.next() {
                consumer.document::<K, P>(&mut product, entry, document);
            }
        }
        product.end(warp);
    }
}

/// Clocks that the tensor cores take for a warpgroup's part of a tile: 64 for each 32 bytes of
/// each fragment.
pub(super) const fn tile_clocks<K: Kernel>() -> u32 {
    let steps = if K::STEPS == 0 { SLAB_STEPS } else { K::STEPS };
    let products = if K::Element::SPLITS { 3 } else { 1 };
    (64 * steps * products * K::FRAGMENTS) as u32
}

impl Consumer<'_> {
    /// The warp's group in its fragment `fragment`.
    #[inline(always)]
    pub(super) fn group<K: Kernel>(&self, fragment: usize) -> u32 {
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
            self.row_terms = RowTerms::code_sums(sums);
        }
        // SAFETY: groups of this launch.
        self.rows = unsafe { WarpRows::new::<K>(self.params, self.row_scales, groups, self.lane) };
    }

    /// One document against the query tile.
    #[inline(always)]
    unsafe fn document<K: Kernel, P: Product>(
        &mut self,
        product: &mut P,
        entry: u32,
        document: Segment,
    ) {
        let mut best = self.rows.start();
        // The same in all lanes, as the assembler has to know: branches are cheaper then.
        // SAFETY: every warp is whole here.
        let len = unsafe { broadcast(document.len) };
        let mut has_tokens = len > 0;
        if K::LOADS_SCALES || K::SKIPS_CONVERSION {
            self.row_terms = RowTerms::scales(match K::READS_F16_SCALES {
                true => self.row_scales.of_marked_documents(document.start),
                false => self.row_scales.of_documents(document.start),
            });
        }
        // SAFETY: the caller's promise; producers load these tiles in this order.
        unsafe {
            if self.params.documents.mask == 0 {
                self.tiles::<K, P>(product, &mut best, len);
            } else {
                let mut row = 0;
                let mut any = 0;
                while row < len {
                    any |= product.tile::<K, 64, MASKED>(self, &mut best, row, 0);
                    row += DOCUMENT_TILE as u32;
                }
                has_tokens = any != 0;
            }
            let store = has_tokens && self.params.winners | self.params.token_scores != 0;
            let place = (entry, document.start);
            let sum =
                self.rows.finish::<K>(self.params, self.row_scales, place, &best, store, self.lane);
            if K::ADDS {
                self.publish_sum::<K>(if has_tokens { sum } else { 0.0 });
            }
        }
    }

    /// The tiles of a document, or part of one, of `len` tokens without a mask. Loops of their own
    /// for each kind of tile: the accumulators' pipeline must not meet a branch.
    ///
    /// # Safety
    /// All threads of the warpgroup together; producers load these tiles in this order.
    #[inline(always)]
    pub(super) unsafe fn tiles<K: Kernel, P: Product>(
        &mut self,
        product: &mut P,
        best: &mut [Best; 2],
        len: u32,
    ) {
        let whole = len & !(DOCUMENT_TILE as u32 - 1);
        let mut row = 0;
        // SAFETY: the caller's promise.
        unsafe {
            while row < whole {
                product.tile::<K, 64, WHOLE>(self, best, row, 0);
                row += DOCUMENT_TILE as u32;
            }
            let left = len - row;
            if left > 0 {
                self.tail::<K, P>(product, best, row, left);
            }
        }
    }

    /// A document's last tile of `left` tokens, in the narrowest product that holds them.
    ///
    /// # Safety
    /// As [`Consumer::tiles`].
    #[inline(always)]
    unsafe fn tail<K: Kernel, P: Product>(
        &mut self,
        product: &mut P,
        best: &mut [Best; 2],
        row: u32,
        left: u32,
    ) {
        macro_rules! widths {
            ($($n:literal)*) => {
                $(
                    if has_width(K::TAIL_STEP, K::WINNERS, 2 * $n) && left <= 2 * $n {
                        // SAFETY: the caller's promise.
                        unsafe { product.tile::<K, $n, TAIL>(self, best, row, left) };
                        return;
                    }
                )*
            };
        }
        widths!(8 16 24 32 48 64);
    }

    /// Puts the warp's [`crate::primitives::row_maxima::sum_halves`] into the next slot. Another
    /// warp adds them: at a document's end every exchange between lanes keeps the tensor cores
    /// waiting.
    #[inline(always)]
    pub(super) unsafe fn publish_sum<K: Kernel>(&mut self, sum: f32) {
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
