//! Lays out the intermediate data of a gradient call in the workspace.

use maxsim_kernels::abi::params::backward;
use maxsim_kernels::abi::params::backward::SegmentedSumParams;

use super::CudaBackward;
use super::plan::Group;
use crate::cuda::buffers::row_scales::{found_bytes, with_found};
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::launch::N_RESERVED;
use crate::problem::outputs::GradientMatrix;
use crate::tokens::element::ElementType;

/// Parts of the workspace start at multiples of this.
const ALIGN_BYTES: u64 = 256;

impl CudaBackward {
    /// Bytes of workspace that a call of the work needs, for any handles.
    pub(crate) fn workspace_bytes(&self, adds: bool) -> u64 {
        if let Some(again) = &self.again {
            return again.workspace_bytes(adds);
        }
        let of = |rows: usize| self.row_norms.map_or(0, |_| found_bytes(rows));
        let found = self.rows.map(of).iter().sum::<u64>() + self.weighted_bytes();
        with_found(self.bytes_before_found(adds), found)
    }

    /// Bytes of workspace that a call of the work needs, for some handles.
    pub(in crate::cuda) fn workspace_bytes_of(&self, adds: bool, tokens: [&CudaTokens; 2]) -> u64 {
        if let Some(again) = &self.again {
            return again.workspace_bytes_of(adds, tokens);
        }
        let of = |tokens: &CudaTokens| self.row_norms.map_or(0, |_| tokens.found_bytes());
        let found = tokens.map(of).iter().sum::<u64>() + self.weighted_bytes();
        with_found(self.bytes_before_found(adds), found)
    }

    /// Bytes of workspace for what query rows are normalised by, times their weights.
    fn weighted_bytes(&self) -> u64 {
        let [queries, _] = self.rows;
        if self.weighted && self.row_norms.is_some() { found_bytes(queries) } else { 0 }
    }

    /// Bytes of workspace before what rows of foreign memory are normalised by.
    pub(super) fn bytes_before_found(&self, adds: bool) -> u64 {
        let (_, end) = self.projected_sums(adds);
        match end {
            0 => 0,
            // Other calls use the same counters, so no data may overlap them.
            end => N_RESERVED * 4 + end,
        }
    }

    /// Offsets behind the counters of the sums of both sides' rows that are projected, where a
    /// side's sums are not formed in the gradient itself; and the offset at which the last of them
    /// ends.
    pub(super) fn projected_sums(&self, adds: bool) -> ([Option<u64>; 2], u64) {
        let mut end = self.lists_end();
        let is_apart = adds || self.gradient != ElementType::F32;
        let offsets = [0, 1].map(|side| {
            (is_apart && self.projects[side] && self.wanted[side]).then(|| {
                let offset = end.next_multiple_of(ALIGN_BYTES);
                end = offset + self.rows[side] as u64 * self.dim as u64 * 4;
                offset
            })
        });
        (offsets, end)
    }

    /// The matrices that the sums are written to, for gradients `sides`.
    pub(super) fn sums_of_projected(
        &self,
        sides: [GradientMatrix; 2],
        adds: bool,
        workspace: u64,
    ) -> [GradientMatrix; 2] {
        let (offsets, _) = self.projected_sums(adds);
        let of = |side: usize| match offsets[side] {
            None => sides[side],
            Some(offset) => GradientMatrix {
                address: workspace + offset,
                element: ElementType::F32,
                ..sides[side]
            },
        };
        [of(0), of(1)]
    }

    /// The offset at which the sorted lists and partial sums of all groups end.
    pub(super) fn lists_end(&self) -> u64 {
        let groups = self.plan.groups.iter().map(|group| self.group_workspace(group, 0).end);
        groups.max().unwrap_or(0).max(self.sums_start(0) + self.sums_bytes)
    }

    /// The address at which the sums over chunks of pairs end, which begin at `start`.
    pub(super) fn chunks_end(&self, start: u64) -> u64 {
        let plan = &self.plan;
        match plan.n_chunks {
            0 | 1 => start,
            n => start + u64::from(n) * u64::from(plan.n_rows) * self.dim as u64 * 4,
        }
    }

    /// The address of the documents' gradient in f32, behind the sums over chunks.
    pub(in crate::cuda) fn sums_start(&self, start: u64) -> u64 {
        self.chunks_end(start).next_multiple_of(ALIGN_BYTES)
    }

    /// Divides the workspace, which begins at `start`, among a group's lists and partial sums.
    pub(super) fn group_workspace(&self, group: &Group, start: u64) -> GroupWorkspace {
        let mut end = start;
        let mut reserve = |len_bytes: u64| {
            let address = end.next_multiple_of(ALIGN_BYTES);
            end = address + len_bytes;
            address
        };
        let row_bytes = self.dim as u64 * 4;
        let parts_bytes = u64::from(group.n_segments) * row_bytes;
        let carry_rows = group.carry.as_ref().map_or(0, |carry| carry.n_rows);
        GroupWorkspace {
            // First, and so at the address that it had in the pass before.
            carry: reserve(u64::from(carry_rows) * row_bytes),
            list: reserve(u64::from(group.n_sources) * 8),
            destinations: reserve(u64::from(group.n_destinations) * 8),
            counts: reserve(u64::from(group.n_counts) * 4),
            warp_counts: reserve(u64::from(group.n_counts) * u64::from(backward::WARPS) * 2),
            heads: reserve(parts_bytes),
            tails: reserve(parts_bytes),
            lasts: reserve(u64::from(group.n_segments) * 4),
            end,
        }
    }
}

/// Addresses of a group's lists and partial sums in the workspace.
pub(super) struct GroupWorkspace {
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

impl GroupWorkspace {
    /// Whether counting, and the memory that it clears, overwrites nothing that another group's
    /// fixup needs.
    pub(super) fn spares(&self, left: &SegmentedSumParams) -> bool {
        // In this order, and each ends where the next one starts at the latest.
        let written = [(self.carry, self.destinations), (self.counts, self.heads)];
        let end = left.lasts + u64::from(left.n_segments) * 4;
        let destinations_end = left.destinations + u64::from(left.n_destinations) * 8;
        let read = [(left.destinations, destinations_end), (left.heads, end)];
        written.iter().all(|w| read.iter().all(|r| w.1 <= r.0 || r.1 <= w.0))
    }
}
