//! Shared-memory addresses of a CTA, and positions in its rings.

pub(in crate::sm90) mod norms;
mod pairs;

use crate::abi::layout::sm90::*;
use crate::ptx::shared::dynamic_shared;
use crate::ptx::wgmma::WgmmaElement;
use crate::sm90::kernel::Kernel;

/// Window addresses of the block's shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    pub(in crate::sm90) queries: u32,
    pub(in crate::sm90) ring: u32,
    pub(in crate::sm90) masks: u32,
    pub(in crate::sm90) barriers: u32,
    pub(in crate::sm90) sums: u32,
    pub(in crate::sm90) maxima: u32,
    pub(in crate::sm90) units: u32,
    pub(in crate::sm90) stages: u32,
    pub(in crate::sm90) stage_bytes: u32,
    pub(in crate::sm90) query_slab_bytes: u32,
    pub(in crate::sm90) n_groups: u32,
    pub(in crate::sm90) sum_slots: u32,
}

impl Shared {
    #[inline(always)]
    pub(in crate::sm90) fn new<K: Kernel>() -> Shared {
        // Changes nothing, since the memory is declared with this alignment, but the compiler
        // learns it here.
        let align = TILE_ALIGN as u32;
        let base = (dynamic_shared() + align - 1) & !(align - 1);
        let (rows, slabs, stages) = (K::QUERY_TILE, K::SLABS, K::STAGES);
        let parts = parts(K::Element::SPLITS);
        Shared {
            queries: base,
            ring: base + ring_offset(rows, slabs) as u32,
            masks: base + masks_offset(rows, slabs, stages, parts) as u32,
            barriers: base + barriers_offset(rows, slabs, stages, parts) as u32,
            sums: base + sums_offset(rows, slabs, stages, parts) as u32,
            maxima: base + maxima_offset(rows, slabs, stages, parts) as u32,
            units: base + units_offset(rows, slabs, stages, parts) as u32,
            stages: stages as u32,
            stage_bytes: stage_bytes(rows, slabs, parts) as u32,
            query_slab_bytes: query_slab_bytes(rows) as u32,
            n_groups: K::GROUPS,
            sum_slots: sum_slots(rows) as u32,
        }
    }

    /// Resident slab of the query tile.
    #[inline(always)]
    pub(in crate::sm90) fn query_slab(&self, slab: u32) -> u32 {
        self.queries + slab * self.query_slab_bytes
    }

    /// Document slab of a stage.
    #[inline(always)]
    pub(in crate::sm90) fn stage(&self, slot: u32) -> u32 {
        self.ring + slot * self.stage_bytes
    }

    /// Query slab of a stage, where queries stream.
    #[inline(always)]
    pub(in crate::sm90) fn stage_queries(&self, slot: u32) -> u32 {
        self.stage(slot) + DOCUMENT_SLAB_BYTES as u32
    }

    /// Distance from a stage's slabs to their lower parts, where elements are split.
    #[inline(always)]
    pub(in crate::sm90) fn lower_bytes(&self) -> u32 {
        self.stage_bytes / 2
    }

    /// Column mask of the tile whose first slab is in a stage.
    #[inline(always)]
    pub(in crate::sm90) fn mask(&self, slot: u32) -> u32 {
        self.masks + slot * MASK_BYTES as u32
    }

    /// Scales of the columns of the tile whose first slab is in a stage, where rows have such.
    #[inline(always)]
    pub(in crate::sm90) fn scales(&self, slot: u32) -> u32 {
        self.unit(UNIT_SLOTS as u32) + slot * SCALES_BYTES as u32
    }

    /// The unit of a slot.
    #[inline(always)]
    pub(in crate::sm90) fn unit(&self, slot: u32) -> u32 {
        self.units + slot * UNIT_BYTES as u32
    }

    /// A group's sums in a slot.
    #[inline(always)]
    pub(in crate::sm90) fn sums(&self, slot: u32, group: u32) -> u32 {
        self.sums + GROUP_SUMS_BYTES as u32 * (slot * self.n_groups + group)
    }
}

/// Barriers.
impl Shared {
    /// Completes when a stage's slab is copied, where it has to be split then.
    #[inline(always)]
    pub(in crate::sm90) fn landed(&self, slot: u32) -> u32 {
        self.unit_empty(UNIT_SLOTS as u32) + 8 * slot
    }

    /// Completes when r of the tile's rows whose first slab is in a stage, and its mask, are there:
    /// of kernels that find r themselves.
    #[inline(always)]
    pub(in crate::sm90) fn normed(&self, slot: u32) -> u32 {
        self.maxima + 8 * slot
    }

    /// Completes when a stage holds a slab.
    #[inline(always)]
    pub(in crate::sm90) fn full(&self, slot: u32) -> u32 {
        self.barriers + 8 * slot
    }

    /// Completes when every consumer warp is done with a stage.
    #[inline(always)]
    pub(in crate::sm90) fn empty(&self, slot: u32) -> u32 {
        self.barriers + 8 * (self.stages + slot)
    }

    /// Completes when the query tile is there.
    #[inline(always)]
    pub(in crate::sm90) fn query_full(&self) -> u32 {
        self.barriers + 8 * (2 * self.stages)
    }

    /// Completes when every consumer warp is done with the query tile.
    #[inline(always)]
    pub(in crate::sm90) fn query_empty(&self) -> u32 {
        self.barriers + 8 * (2 * self.stages + 1)
    }

    /// Completes when every consumer warp has put its sums into a slot.
    #[inline(always)]
    pub(in crate::sm90) fn sum_full(&self, slot: u32) -> u32 {
        self.barriers + 8 * (2 * self.stages + 2 + slot)
    }

    /// Completes when the sums of a slot are read.
    #[inline(always)]
    pub(in crate::sm90) fn sum_empty(&self, slot: u32) -> u32 {
        self.barriers + 8 * (2 * self.stages + 2 + self.sum_slots + slot)
    }

    /// Completes when a slot has a unit.
    #[inline(always)]
    pub(in crate::sm90) fn unit_full(&self, slot: u32) -> u32 {
        self.sum_empty(self.sum_slots) + 8 * slot
    }

    /// Completes when every receiving warp has read a unit.
    #[inline(always)]
    pub(in crate::sm90) fn unit_empty(&self, slot: u32) -> u32 {
        self.unit_full(UNIT_SLOTS as u32) + 8 * slot
    }
}

/// A position in a ring, and the parity of its current round.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    pub(crate) slot: u32,
    pub(crate) parity: u32,
}

impl Ring {
    pub(crate) const START: Ring = Ring { slot: 0, parity: 0 };

    #[inline(always)]
    pub(crate) fn next(self, n_slots: u32) -> Ring {
        let slot = self.slot + 1;
        if slot == n_slots {
            Ring { slot: 0, parity: self.parity ^ 1 }
        } else {
            Ring { slot, parity: self.parity }
        }
    }
}
