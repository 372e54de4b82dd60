//! Chooses the pair of consumer warpgroups that has the next document.

use crate::abi::layout::sm90::*;
use crate::abi::params::{ForwardParams, Segment};
use crate::primitives::work_tile::Work;
use crate::ptx::thread::*;
use crate::ptx::warp::broadcast;
use crate::sm90::swap_ab::kernel::ROWS;

/// Chooses the pair that has the next document: the one that has had fewer products. Both have some
/// of the last one where CTAs have a single unit, of few documents, so that they end together.
/// Warps that go through the CTA's documents do so in the same order, and agree.
pub(super) struct PairScheduler<'a> {
    params: &'a ForwardParams,
    /// Products that the first pair has had more of.
    lead: i32,
}

impl<'a> PairScheduler<'a> {
    #[inline(always)]
    pub(super) fn new(params: &'a ForwardParams) -> Self {
        PairScheduler { params, lead: 0 }
    }

    /// The pair whose turn it is.
    #[inline(always)]
    pub(super) fn pair(&self) -> u32 {
        u32::from(self.lead > 0)
    }

    /// Divides the next document, of a unit's entry, between the pairs.
    ///
    /// # Safety
    /// One whole warp.
    #[inline(always)]
    pub(super) unsafe fn next(
        &mut self,
        work: &Work,
        entry: u32,
        rows: Segment,
    ) -> [Option<Segment>; PAIRS] {
        // SAFETY: the caller's promise.
        let (start, len) = unsafe { (broadcast(rows.start), broadcast(rows.len)) };
        let n_products = len.div_ceil(ROWS) as i32;
        let has_one_unit = self.params.tickets == 0 && self.params.n_units <= grid_dim_here();
        let is_last = has_one_unit && entry + 1 == work.entry_end;
        if is_last && n_products > self.lead.abs() + 1 {
            let first = (n_products - self.lead) as u32 / 2 * ROWS;
            let parts = [(start, first), (start + first, len - first)];
            return parts.map(|(start, len)| Some(Segment { start, len }));
        }
        let rows = Segment { start, len };
        if self.pair() == 0 {
            self.lead += n_products;
            [Some(rows), None]
        } else {
            self.lead -= n_products;
            [None, Some(rows)]
        }
    }
}
