//! Shared memory of the pairs of consumers of swap-AB, besides that of all kernels.

use crate::abi::layout::sm90::*;
use crate::sm90::smem::Shared;

/// Slots of all pairs.
const SLOTS: u32 = (PAIRS * PAIR_SLOTS) as u32;

impl Shared {
    /// The maxima of a pair's warp of a document, in one of the pairs' slots.
    #[inline(always)]
    pub(in crate::sm90) fn maxima(&self, slot: u32, warp: u32) -> u32 {
        self.maxima + MAXIMA_BYTES as u32 * (slot * PAIR_WARPS as u32 + warp)
    }

    /// The scales of half of a tile's query rows, as the storing warp keeps them.
    #[inline(always)]
    pub(in crate::sm90) fn row_scales(&self, half: u32) -> u32 {
        self.maxima(SLOTS, half)
    }

    /// Address of a word for each consumer thread: the columns that are no query tokens.
    #[inline(always)]
    pub(in crate::sm90) fn no_rows(&self) -> u32 {
        self.row_scales(2)
    }

    /// Address of a bit for each row of the query tile: whether it is a query token.
    #[inline(always)]
    pub(in crate::sm90) fn valid_rows(&self) -> u32 {
        self.row_scales(6)
    }

    /// The sums of the groups of the document in a slot.
    #[inline(always)]
    pub(in crate::sm90) fn pair_sums(&self, slot: u32) -> u32 {
        self.valid_rows() + 2 * self.n_groups + slot * PAIR_SUMS_BYTES as u32
    }

    /// The rows of a pair's stage; those of the first pair come first.
    #[inline(always)]
    pub(in crate::sm90) fn rows(&self, stage: u32) -> u32 {
        self.ring + stage * PAIR_STAGE_BYTES as u32
    }

    /// The scales of a stage's rows.
    #[inline(always)]
    pub(in crate::sm90) fn pair_scales(&self, stage: u32) -> u32 {
        self.scales(0) + stage * PAIR_SCALES_BYTES as u32
    }

    /// Address of the words that the pair's producer publishes for a stage: tokens of the document
    /// that it has the first rows of, query tile, and which rows are valid, where documents are
    /// masked.
    #[inline(always)]
    pub(in crate::sm90) fn words(&self, stage: u32) -> u32 {
        self.pair_sums(SLOTS) + stage * PAIR_WORDS_BYTES as u32
    }

    /// Completes when a pair's stage holds its rows.
    #[inline(always)]
    pub(in crate::sm90) fn pair_full(&self, stage: u32) -> u32 {
        self.words(PAIRS as u32 * self.stages) + 8 * stage
    }

    /// Completes when the pair is done with a stage of its own.
    #[inline(always)]
    pub(in crate::sm90) fn pair_empty(&self, stage: u32) -> u32 {
        self.pair_full(PAIRS as u32 * self.stages) + 8 * stage
    }

    /// Completes when a pair's warps have stored their maxima in a slot.
    #[inline(always)]
    pub(in crate::sm90) fn maxima_full(&self, slot: u32) -> u32 {
        self.pair_empty(PAIRS as u32 * self.stages) + 8 * slot
    }

    /// Completes when what is in a slot is read.
    #[inline(always)]
    pub(in crate::sm90) fn maxima_empty(&self, slot: u32) -> u32 {
        self.maxima_full(SLOTS) + 8 * slot
    }
}
