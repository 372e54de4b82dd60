//! Shared memory of the pairs of consumers, besides that of all kernels.

use crate::abi::layout::sm90::*;
use crate::sm90::smem::Shared;

/// Slots of all teams.
const SLOTS: u32 = (TEAMS * TEAM_SLOTS) as u32;

impl Shared {
    /// What a warp of a team has found of a document, in one of the teams' slots.
    #[inline(always)]
    pub(super) fn maxima(&self, slot: u32, warp: u32) -> u32 {
        self.maxima + MAXIMA_BYTES as u32 * (slot * TEAM_WARPS as u32 + warp)
    }

    /// The scales of half of a tile's query rows, as the storing warp keeps them.
    #[inline(always)]
    pub(super) fn row_scales(&self, half: u32) -> u32 {
        self.maxima(SLOTS, half)
    }

    /// Which columns of consumer threads are no query tokens, a word for each.
    #[inline(always)]
    pub(super) fn no_rows(&self) -> u32 {
        self.row_scales(2)
    }

    /// Which rows of the query tile are query tokens, a bit for each.
    #[inline(always)]
    pub(super) fn valid_rows(&self) -> u32 {
        self.row_scales(6)
    }

    /// The sums of the groups of the document in a slot.
    #[inline(always)]
    pub(super) fn team_sums(&self, slot: u32) -> u32 {
        self.valid_rows() + 2 * self.n_groups + slot * TEAM_SUMS_BYTES as u32
    }

    /// The rows of a team's stage; those of the first team come first.
    #[inline(always)]
    pub(super) fn rows(&self, stage: u32) -> u32 {
        self.ring + stage * TEAM_STAGE_BYTES as u32
    }

    /// The scales of a stage's rows.
    #[inline(always)]
    pub(super) fn team_scales(&self, stage: u32) -> u32 {
        self.scales(0) + stage * TEAM_SCALES_BYTES as u32
    }

    /// What its loading warp says of it: tokens of the document that it has the first rows of,
    /// query tile, and which rows are valid, where documents are masked.
    #[inline(always)]
    pub(super) fn words(&self, stage: u32) -> u32 {
        self.team_sums(SLOTS) + stage * TEAM_WORDS_BYTES as u32
    }

    /// Completes when a team's stage holds its rows.
    #[inline(always)]
    pub(super) fn team_full(&self, stage: u32) -> u32 {
        self.words(TEAMS as u32 * self.stages) + 8 * stage
    }

    /// Completes when the team is done with a stage of its own.
    #[inline(always)]
    pub(super) fn team_empty(&self, stage: u32) -> u32 {
        self.team_full(TEAMS as u32 * self.stages) + 8 * stage
    }

    /// Completes when a team's warps have left what they have found in a slot.
    #[inline(always)]
    pub(super) fn found(&self, slot: u32) -> u32 {
        self.team_empty(TEAMS as u32 * self.stages) + 8 * slot
    }

    /// Completes when what is in a slot is read.
    #[inline(always)]
    pub(super) fn read(&self, slot: u32) -> u32 {
        self.found(SLOTS) + 8 * slot
    }
}
