//! The parameter structs of forward kernels, and their start: each kind of the table has an arm.

use cust::sys::CUstream;
use maxsim_kernels::abi::params::{
    ByCentroidParams, ContiguousParams, ContiguousStreamKParams, ContiguousUnit, ForwardParams,
    NormalizedContiguousParams, NormalizedContiguousStreamKParams, NormalizedParams,
    ResidualParams, ScaledContiguousParams, Unit, UnitStart, inverse,
};
use maxsim_kernels::table::forward::{ForwardEntry, Variant};

use super::launch::Operands;
use super::launch::TensorMaps;
use super::plan::ForwardPlan;
use super::work_list::{Launch, Units};
use crate::cuda::buffers::residual::not_decoded;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::{N_RESERVED, start};
use crate::cuda::driver::module::Kernel;
use crate::error::Result;
use crate::problem::outputs::OutputAddresses;

/// A loaded forward kernel, with the parameter struct of its row in the table.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) enum ForwardKernel {
    Forward(Kernel<ForwardParams>),
    Normalized(Kernel<NormalizedParams>),
    Contiguous(Kernel<ContiguousParams>),
    ScaledContiguous(Kernel<ScaledContiguousParams>),
    ContiguousStreamK(Kernel<ContiguousStreamKParams>),
    NormalizedContiguous(Kernel<NormalizedContiguousParams>),
    NormalizedContiguousStreamK(Kernel<NormalizedContiguousStreamKParams>),
    Residual(Kernel<ResidualParams>),
    ByCentroid(Kernel<ByCentroidParams>),
}

impl CudaDevice {
    /// Loads a kernel of the forward table.
    pub(super) fn forward_kernel(&self, variant: &Variant) -> Result<ForwardKernel> {
        Ok(match variant.entry() {
            ForwardEntry::Forward(entry) => ForwardKernel::Forward(self.kernel(entry)?),
            ForwardEntry::Normalized(entry) => ForwardKernel::Normalized(self.kernel(entry)?),
            ForwardEntry::Contiguous(entry) => ForwardKernel::Contiguous(self.kernel(entry)?),
            ForwardEntry::ScaledContiguous(entry) => {
                ForwardKernel::ScaledContiguous(self.kernel(entry)?)
            }
            ForwardEntry::ContiguousStreamK(entry) => {
                ForwardKernel::ContiguousStreamK(self.kernel(entry)?)
            }
            ForwardEntry::NormalizedContiguous(entry) => {
                ForwardKernel::NormalizedContiguous(self.kernel(entry)?)
            }
            ForwardEntry::NormalizedContiguousStreamK(entry) => {
                ForwardKernel::NormalizedContiguousStreamK(self.kernel(entry)?)
            }
            ForwardEntry::Residual(entry) => ForwardKernel::Residual(self.kernel(entry)?),
            ForwardEntry::ByCentroid(entry) => ForwardKernel::ByCentroid(self.kernel(entry)?),
        })
    }
}

impl ForwardPlan {
    /// Starts the forward kernel with the parameter struct that it takes.
    ///
    /// # Safety
    /// The promises of `ForwardPlan::launch`.
    pub(super) unsafe fn start(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        launch: &Launch,
        params: &ForwardParams,
        operands: Operands<'_>,
        scores: u64,
    ) -> Result<()> {
        let [_, documents] = operands.tokens;
        let shared_bytes = self.variant.shared_bytes(self.dim) as u32;
        let grid = launch.grid;
        // SAFETY: the caller's promise.
        unsafe {
            match &self.kernel {
                ForwardKernel::Forward(kernel) => {
                    start(entered, stream, kernel, grid, shared_bytes, params)
                }
                ForwardKernel::Normalized(kernel) => {
                    let (document_scales, document_scales_are_f16) =
                        operands.document_scales(self.variant);
                    let query_scales = match self.variant.has_query_scales() {
                        true => operands.query_scales(),
                        false => 0,
                    };
                    let params = NormalizedParams {
                        forward: *params,
                        query_scales,
                        document_scales,
                        document_scales_are_f16,
                        maxima_are_cosines: u32::from(self.angular),
                    };
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::Contiguous(kernel) => {
                    let runs = self.run_params(launch, params);
                    start(entered, stream, kernel, grid, shared_bytes, &runs)
                }
                ForwardKernel::ScaledContiguous(kernel) => {
                    let (document_scales, document_scales_are_f16) =
                        operands.document_scales(self.variant);
                    let params = ScaledContiguousParams {
                        document_scales,
                        document_scales_are_f16,
                        reserved: 0,
                        runs: self.run_params(launch, params),
                        query_scales: operands.query_scales(),
                    };
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::ContiguousStreamK(kernel) => {
                    let params = self.share_params(launch, params);
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::NormalizedContiguous(kernel) => {
                    let params = self.normalized_run_params(launch, params);
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::NormalizedContiguousStreamK(kernel) => {
                    let params = self.normalized_share_params(launch, params);
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::Residual(kernel) => {
                    let documents = documents.decoded()?;
                    let params = ResidualParams { forward: *params, documents };
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::ByCentroid(kernel) => {
                    let documents = documents.decoded()?;
                    let of = self.centroid_scores.as_ref().ok_or_else(not_decoded)?;
                    of.forward(entered, stream, (kernel, grid), *params, documents, scores)
                }
            }
        }
    }

    /// The parameters that all forward kernels share, for a launch.
    pub(super) fn params(
        &self,
        launch: &Launch,
        maps: TensorMaps<'_>,
        queries: &CudaTokens,
        documents: &CudaTokens,
        out: OutputAddresses,
        workspace: u64,
    ) -> ForwardParams {
        let documents_matrix = match (&self.splits, &self.decoding) {
            (Some(splits), _) => splits.documents(documents.matrix(), &self.lists),
            (_, Some(decoding)) => decoding.documents(documents.matrix(), &self.lists, launch),
            (None, None) => documents.matrix(),
        };
        let is_partial = launch.n_parts > 0;
        let aligned = queries.access().is_aligned() && documents.access().is_aligned();
        let (mut units, mut unit_starts) = (0, 0);
        let (mut entries_per_unit, mut n_longer_units, mut longer_by) = (0, 0, 0);
        match launch.units {
            Units::Even(even) => {
                (entries_per_unit, n_longer_units) = (even.per_unit, even.n_longer);
                longer_by = even.longer_by;
            }
            Units::Starts(first) => {
                unit_starts =
                    self.lists.unit_starts + u64::from(first) * size_of::<UnitStart>() as u64;
            }
            Units::Listed(first) => {
                units = self.lists.units + u64::from(first) * size_of::<Unit>() as u64;
            }
            // These schedules have parameters of their own.
            Units::Contiguous(_) | Units::StreamK(_) => {}
        }
        let first_result = launch.first_query * launch.query_stride + launch.entries.start;
        let [query_map, document_map, document_tail_map] = maps;
        ForwardParams {
            query_map: *query_map,
            document_map: *document_map,
            document_tail_map: *document_tail_map,
            queries: queries.matrix(),
            documents: documents_matrix,
            groups: self.lists.groups,
            units,
            unit_starts,
            entry_document: self.lists.entry_document,
            entry_score: self.lists.entry_score,
            query_token_base: self.lists.query_token_base,
            score_token_base: self.lists.score_token_base,
            results: if is_partial { workspace + N_RESERVED * 4 } else { out.scores },
            counters: if launch.sums_in_kernel { workspace + 4 } else { 0 },
            tickets: if self.counts(launch) { workspace } else { 0 },
            scores: out.scores,
            score_stride: self.query_stride,
            winners: out.winners,
            token_scores: out.token_scores,
            part_stride: if is_partial { launch.n_results } else { 0 },
            query_stride: if is_partial { launch.query_stride } else { self.query_stride },
            origin: if is_partial { first_result } else { 0 },
            is_partial: u32::from(is_partial),
            n_parts: launch.n_parts,
            entry_base: launch.entries.start,
            entry_end: launch.entries.end,
            tile_base: launch.tiles.start,
            n_tiles: launch.tiles.len() as u32,
            n_tiles_inverse: inverse(launch.tiles.len() as u32, launch.n_units),
            n_units: launch.n_units,
            entries_per_query: self.entries_per_query,
            entries_per_unit,
            n_longer_units,
            longer_by,
            tiles_per_query: self.tiles_per_query,
            tiles_per_query_inverse: inverse(self.tiles_per_query, launch.tiles.end),
            entry_stride: self.entry_stride,
            dim: self.dim as u32,
            winner_bytes: self.winner_bytes as u32,
            aligned: u32::from(aligned),
            // Of splits no sum is used, and token scores are those without weights.
            query_weights: if self.splits.is_some() { 0 } else { queries.weights() },
        }
    }

    /// The parameters of kernels that read equal shares of contiguous documents.
    fn share_params(&self, launch: &Launch, params: &ForwardParams) -> ContiguousStreamKParams {
        let document_steps = match launch.units {
            Units::StreamK(shares) => shares.document_steps,
            // Such kernels are launched with shares alone.
            _ => 0,
        };
        let n_steps = document_steps * launch.entries.len() as u32;
        let document_steps_inverse = inverse(document_steps, n_steps);
        let runs = self.run_params(launch, params);
        ContiguousStreamKParams { document_steps, document_steps_inverse, runs }
    }

    /// The parameters of kernels that read contiguous documents, and normalise rows.
    fn normalized_run_params(
        &self,
        launch: &Launch,
        params: &ForwardParams,
    ) -> NormalizedContiguousParams {
        NormalizedContiguousParams {
            runs: self.run_params(launch, params),
            maxima_are_cosines: u32::from(self.angular),
            reserved: 0,
        }
    }

    /// The same of equal shares.
    fn normalized_share_params(
        &self,
        launch: &Launch,
        params: &ForwardParams,
    ) -> NormalizedContiguousStreamKParams {
        NormalizedContiguousStreamKParams {
            shares: self.share_params(launch, params),
            maxima_are_cosines: u32::from(self.angular),
            reserved: 0,
        }
    }

    /// The parameters of kernels that read contiguous documents.
    fn run_params(&self, launch: &Launch, params: &ForwardParams) -> ContiguousParams {
        let units = match launch.units {
            Units::Contiguous(first) => {
                self.lists.run_units + u64::from(first) * size_of::<ContiguousUnit>() as u64
            }
            _ => 0,
        };
        let (entries_per_unit, n_longer_units) = match launch.units {
            Units::StreamK(shares) => (shares.per_unit, shares.n_longer),
            // A CTA's first unit is computed alike under both schedulers.
            _ if launch.is_dynamic => (params.entries_per_unit + params.longer_by, 0),
            _ => (params.entries_per_unit, params.n_longer_units),
        };
        ContiguousParams {
            documents: params.documents.base,
            units,
            segments: params.documents.segments,
            queries: params.queries.base,
            n_units: params.n_units,
            n_tiles: params.n_tiles,
            n_tiles_inverse: params.n_tiles_inverse,
            entry_stride: params.entry_stride,
            entries_per_unit,
            n_longer_units,
            item_len: params.documents.item_len,
            query_len: self.query_len,
            zero: 0,
            first_tile: params.tile_base,
            forward: *params,
        }
    }
}
