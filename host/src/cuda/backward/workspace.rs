//! Places of a gradient call's data in the workspace.

use maxsim_kernels::abi::params::backward;
use maxsim_kernels::abi::params::backward::OwnerParams;

use super::CudaBackward;
use super::plan::Group;
use crate::cuda::driver::launch::N_RESERVED;
use crate::problem::outputs::GradientMatrix;
use crate::tokens::element::ElementType;

/// Parts of the workspace start at multiples of this.
const ALIGN_BYTES: u64 = 256;

impl CudaBackward {
    /// Bytes of workspace that a call of the work needs.
    pub(crate) fn workspace_bytes(&self, adds: bool) -> u64 {
        if let Some(again) = &self.again {
            return again.workspace_bytes(adds);
        }
        let (_, end) = self.normalized_places(adds);
        match end {
            0 => 0,
            // The counters are other works' too: nothing else is stored where they are.
            end => N_RESERVED * 4 + end,
        }
    }

    /// Where behind the counters the sums of normalised rows are that do not go to the gradient
    /// first, and where the last of them end.
    pub(super) fn normalized_places(&self, adds: bool) -> ([Option<u64>; 2], u64) {
        let mut end = self.lists_end();
        let is_apart = self.project.is_some() && (adds || self.gradient != ElementType::F32);
        let places = self.rows.map(|rows| {
            is_apart.then(|| {
                let place = end.next_multiple_of(ALIGN_BYTES);
                end = place + rows as u64 * self.dim as u64 * 4;
                place
            })
        });
        (places, end)
    }

    /// Where the sums of normalised rows go, for gradients `sides`.
    pub(super) fn sums_of_normalized(
        &self,
        sides: [GradientMatrix; 2],
        adds: bool,
        workspace: u64,
    ) -> [GradientMatrix; 2] {
        let (places, _) = self.normalized_places(adds);
        let of = |side: usize| match places[side] {
            None => sides[side],
            Some(place) => GradientMatrix {
                address: workspace + place,
                element: ElementType::F32,
                ..sides[side]
            },
        };
        [of(0), of(1)]
    }

    /// Where the parts of the workspace end that sums need in between.
    pub(super) fn lists_end(&self) -> u64 {
        let groups = self.plan.groups.iter().map(|group| self.places(group, 0).end);
        groups.max().unwrap_or(0).max(self.sums_start(0) + self.sums_bytes)
    }

    /// Where the sums over chunks of pairs end.
    pub(super) fn chunks_end(&self, start: u64) -> u64 {
        let plan = &self.plan;
        match plan.n_chunks {
            0 | 1 => start,
            n => start + u64::from(n) * u64::from(plan.n_rows) * self.dim as u64 * 4,
        }
    }

    /// Where the documents' gradient in f32 is, behind those.
    pub(in crate::cuda) fn sums_start(&self, start: u64) -> u64 {
        self.chunks_end(start).next_multiple_of(ALIGN_BYTES)
    }

    /// Where a group's parts of the workspace are.
    pub(super) fn places(&self, group: &Group, start: u64) -> Places {
        let mut end = start;
        let mut place = |len_bytes: u64| {
            let address = end.next_multiple_of(ALIGN_BYTES);
            end = address + len_bytes;
            address
        };
        let row_bytes = self.dim as u64 * 4;
        let parts_bytes = u64::from(group.n_segments) * row_bytes;
        let carry_rows = group.carry.as_ref().map_or(0, |carry| carry.n_rows);
        Places {
            // First, and so where it was in the pass before.
            carry: place(u64::from(carry_rows) * row_bytes),
            list: place(u64::from(group.n_sources) * 8),
            destinations: place(u64::from(group.n_destinations) * 8),
            counts: place(u64::from(group.n_counts) * 4),
            warp_counts: place(u64::from(group.n_counts) * u64::from(backward::WARPS) * 2),
            heads: place(parts_bytes),
            tails: place(parts_bytes),
            lasts: place(u64::from(group.n_segments) * 4),
            end,
        }
    }
}

/// Addresses of a group's parts of the workspace.
pub(super) struct Places {
    pub carry: u64,
    pub list: u64,
    pub destinations: u64,
    pub counts: u64,
    pub warp_counts: u64,
    pub heads: u64,
    pub tails: u64,
    pub lasts: u64,
    pub end: u64,
}

impl Places {
    /// Whether counting, and what it clears, overwrites nothing that another group's fixup needs.
    pub(super) fn spares(&self, left: &OwnerParams) -> bool {
        // In this order, and each ends where the next one starts at the latest.
        let written = [(self.carry, self.destinations), (self.counts, self.heads)];
        let end = left.lasts + u64::from(left.n_segments) * 4;
        let destinations_end = left.destinations + u64::from(left.n_destinations) * 8;
        let read = [(left.destinations, destinations_end), (left.heads, end)];
        written.iter().all(|w| read.iter().all(|r| w.1 <= r.0 || r.1 <= w.0))
    }
}
