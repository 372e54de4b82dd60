//! Starts the forward kernel of a plan: each kind of parameter struct of the table has an arm here.

use cust::sys::CUstream;
use maxsim_kernels::abi::params::{
    ByCentroidParams, CutRunParams, ForwardParams, NormalizedParams, ResidualParams, RunParams,
    RunUnit, ScaledRunParams, inverse,
};
use maxsim_kernels::table::forward::{ForwardEntry, Variant};

use super::launch::ForwardPlan;
use super::work_list::{Launch, Units};
use crate::cuda::buffers::residual::not_decoded;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;

/// A loaded forward kernel, with the struct that its line of the table says it takes.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) enum ForwardKernel {
    Forward(Kernel<ForwardParams>),
    Normalized(Kernel<NormalizedParams>),
    Contiguous(Kernel<RunParams>),
    ScaledContiguous(Kernel<ScaledRunParams>),
    ContiguousStreamK(Kernel<CutRunParams>),
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
            ForwardEntry::Residual(entry) => ForwardKernel::Residual(self.kernel(entry)?),
            ForwardEntry::ByCentroid(entry) => ForwardKernel::ByCentroid(self.kernel(entry)?),
        })
    }
}

impl ForwardPlan {
    /// Starts the forward kernel with the parameter struct that it takes.
    ///
    /// # Safety
    /// As `ForwardPlan::launch`.
    pub(super) unsafe fn start(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        launch: &Launch,
        params: &ForwardParams,
        sides: [&CudaTokens; 2],
        scores: u64,
    ) -> Result<()> {
        let [queries, documents] = sides;
        let shared_bytes = self.variant.shared_bytes(self.dim) as u32;
        let (grid, forward) = (launch.grid, *params);
        // SAFETY: the caller's promise.
        unsafe {
            match self.kernel {
                ForwardKernel::Forward(kernel) => {
                    start(entered, stream, kernel, grid, shared_bytes, params)
                }
                ForwardKernel::Normalized(kernel) => {
                    let document_norms = documents.row_scales_address_for(self.variant);
                    let query_norms = match self.variant.has_query_factors() {
                        true => queries.row_scales_address(),
                        false => 0,
                    };
                    let params = NormalizedParams { forward, query_norms, document_norms };
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::Contiguous(kernel) => {
                    let runs = self.run_params(launch, params);
                    start(entered, stream, kernel, grid, shared_bytes, &runs)
                }
                ForwardKernel::ScaledContiguous(kernel) => {
                    let params = ScaledRunParams {
                        document_scales: documents.row_scales_address_for(self.variant),
                        runs: self.run_params(launch, params),
                        query_scales: queries.row_scales_address(),
                    };
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::ContiguousStreamK(kernel) => {
                    let runs = self.run_params(launch, params);
                    let document_steps = match launch.units {
                        Units::Shares(shares) => shares.document_steps,
                        // Such kernels are launched with shares alone.
                        _ => 0,
                    };
                    let n_steps = document_steps * launch.entries.len() as u32;
                    let document_steps_inverse = inverse(document_steps, n_steps);
                    let params = CutRunParams { document_steps, document_steps_inverse, runs };
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::Residual(kernel) => {
                    let documents = documents.decoded()?;
                    let params = ResidualParams { forward, documents };
                    start(entered, stream, kernel, grid, shared_bytes, &params)
                }
                ForwardKernel::ByCentroid(kernel) => {
                    let documents = documents.decoded()?;
                    let of = self.centroid_scores.as_ref().ok_or_else(not_decoded)?;
                    of.forward(entered, stream, (kernel, grid), forward, documents, scores)
                }
            }
        }
    }

    /// The parameters of kernels that read contiguous documents.
    fn run_params(&self, launch: &Launch, params: &ForwardParams) -> RunParams {
        let units = match launch.units {
            Units::Runs(first) => {
                self.lists.run_units + u64::from(first) * size_of::<RunUnit>() as u64
            }
            _ => 0,
        };
        let (entries_per_unit, n_longer_units) = match launch.units {
            Units::Shares(shares) => (shares.per_unit, shares.n_longer),
            // A CTA's first unit is computed alike under both schedulers.
            _ if launch.draws => (params.entries_per_unit + params.longer_by, 0),
            _ => (params.entries_per_unit, params.n_longer_units),
        };
        RunParams {
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
