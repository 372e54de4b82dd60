//! Finds what rows are normalised by, from the tiles that are multiplied: rows come out of memory
//! once.
//!
//! Two warps of the producer warpgroup take blocks of 32 rows in turns, the one that prepares masks
//! and the one that loads queries: one alone would take as long as the products of 256 query rows.

use crate::abi::layout::sm90::DOCUMENT_TILE;
use crate::abi::params::ForwardParams;
use crate::primitives::documents::Documents;
use crate::primitives::row_scales::shared_place;
use crate::primitives::work_tile::Work;
use crate::ptx::barrier::{barrier_arrive_if, barrier_wait};
use crate::ptx::shared::{store_shared_f32, store_shared_u32x4};
use crate::ptx::warp::sync_warp;
use crate::sm90::kernel::Kernel;
use crate::sm90::scales::mask_words;
use crate::sm90::scheduler::{ReceivedUnits, for_each_tile};
use crate::sm90::smem::norms::{NORM_WARPS, row_norm};
use crate::sm90::smem::{Ring, Shared};

/// Finds r in the warp that prepares masks.
///
/// # Safety
/// As [`crate::sm90::producers::load`].
#[inline(always)]
pub(super) unsafe fn find_norms<K: Kernel>(params: &ForwardParams, shared: &Shared, lane: u32) {
    let mut norms = Norms::<0>::START;
    let mut units = ReceivedUnits::START;
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(work) = units.next(shared, lane) {
            norms.find::<K>(params, shared, &work, lane);
        }
    }
}

/// Warp `WARP` of [`NORM_WARPS`], which finds r of its rows of each tile, one tile after the other,
/// behind its copies and ahead of its products.
pub(in crate::sm90) struct Norms<const WARP: u32> {
    ring: Ring,
}

impl<const WARP: u32> Norms<WARP> {
    /// Before the first tile.
    pub(in crate::sm90) const START: Self = Norms { ring: Ring::START };

    /// Finds r of a unit's rows. The first warp turns the documents' mask, where there is one, into
    /// bits.
    ///
    /// # Safety
    /// As [`crate::sm90::producers::load`]; units come in their order.
    #[inline(always)]
    pub(in crate::sm90) unsafe fn find<K: Kernel>(
        &mut self,
        params: &ForwardParams,
        shared: &Shared,
        work: &Work,
        lane: u32,
    ) {
        const { assert!(!K::FINDS_NORMS || K::SLABS == 2) };
        // SAFETY: the producer fills these stages in this order, and consumers release them when r
        // is there, which depends on all that is read here; the whole warp is here.
        unsafe {
            let mut documents = Documents::new(params, work);
            for_each_tile!(documents, |document, row| {
                let (start, left) = (document.start + row, document.len - row);
                let mut words = [0; 4];
                if WARP == 0 {
                    words = mask_words(params, start, left, lane);
                }
                self.find_in_tile::<K>(params, shared, words, left, lane);
            });
        }
    }

    /// Finds r of rows of the next tile, whose document has `left` rows from its first on.
    ///
    /// # Safety
    /// As [`Norms::find`].
    #[inline(always)]
    unsafe fn find_in_tile<K: Kernel>(
        &mut self,
        params: &ForwardParams,
        shared: &Shared,
        words: [u32; 4],
        left: u32,
        lane: u32,
    ) {
        let (first, second) = (self.ring, self.ring.next(shared.stages));
        self.ring = second.next(shared.stages);
        // SAFETY: the caller's promise.
        unsafe {
            barrier_wait(shared.full(first.slot), first.parity);
            barrier_wait(shared.full(second.slot), second.parity);
            let slabs = [shared.stage(first.slot), shared.stage(second.slot)];
            let place = shared.scales(first.slot) + shared_place(lane);
            // Rows behind a document's end have any r.
            let n_rows = left.min(DOCUMENT_TILE as u32);
            let mut row = 32 * WARP;
            while row < n_rows {
                let norm = row_norm::<K::Element>(slabs, row + lane, params.dim);
                store_shared_f32(place + 4 * row, norm);
                row += 32 * NORM_WARPS;
            }
            if WARP == 0 && lane == 0 && params.documents.mask != 0 {
                store_shared_u32x4(shared.mask(first.slot), words);
            }
            sync_warp();
            barrier_arrive_if(shared.normed(first.slot), (lane == 0) as u32);
            // Nothing waits for it, but a stage's rounds are counted alike in all of its barriers.
            barrier_arrive_if(shared.normed(second.slot), (lane == 0) as u32);
        }
    }
}
