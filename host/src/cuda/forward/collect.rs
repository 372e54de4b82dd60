//! Launches that collect the similarities above bounds, with the lists of a forward plan.

use maxsim_kernels::abi::params::xtr::{CollectParams, Collected};
use maxsim_kernels::abi::params::{ForwardParams, NormalizedParams};
use maxsim_kernels::table::forward::Variant;

use super::launch::{Operands, TensorMaps};
use super::plan::ForwardPlan;
use crate::cuda::buffers::row_scales::found_start;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::Entered;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::CudaStream;
use crate::error::Result;
use crate::problem::outputs::OutputAddresses;

/// A plan whose similarities are collected, of some tokens.
pub(in crate::cuda) struct Collecting<'a> {
    plan: &'a ForwardPlan,
    maps: TensorMaps<'a>,
    operands: Operands<'a>,
    workspace: u64,
}

impl ForwardPlan {
    /// The kernel that the plan runs.
    pub(in crate::cuda) fn variant(&self) -> &'static Variant {
        self.variant
    }

    /// Enqueues the plan's launches over the documents whose numbers are listed at an address, of
    /// more documents than the plan's.
    ///
    /// # Safety
    /// As [`ForwardPlan::run`], for a plan of a cross product that runs its kernel alone; there
    /// must be a number of one of the documents for each of the plan's, of which each is the
    /// document of that place in the list.
    pub(in crate::cuda) unsafe fn run_listed(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        tokens: [&CudaTokens; 2],
        document_numbers: u64,
        out: OutputAddresses,
        workspace: u64,
    ) -> Result<()> {
        let maps = self.tensor_maps(entered, tokens[0], tokens[1])?;
        let operands = Operands { tokens, found: [0; 2] };
        for launch in &self.launches {
            let params = self.params(launch, maps, tokens[0], tokens[1], out, workspace);
            let params = ForwardParams { entry_document: document_numbers, ..params };
            // SAFETY: the caller's promise.
            unsafe { self.launch(entered, stream.raw(), launch, &params, operands, 0)? };
        }
        Ok(())
    }

    /// Makes tokens ready to be read by [`Collecting::enqueue`], and enqueues what finds the scales
    /// of their rows.
    ///
    /// # Safety
    /// The plan must be of a kernel without document splits, and the tokens of its
    /// problem. The stream's workspace must have been grown to what the plan needs for them; until
    /// what is enqueued has run, nothing else may use that part of it.
    pub(in crate::cuda) unsafe fn prepare_collect<'a>(
        &'a self,
        entered: &Entered<'_>,
        stream: &mut CudaStream,
        tokens: [&'a CudaTokens; 2],
    ) -> Result<Collecting<'a>> {
        let maps = self.tensor_maps(entered, tokens[0], tokens[1])?;
        let order = stream.order(entered)?;
        self.prepare_row_scales(tokens[0], tokens[1], Some(order))?;
        let workspace = match self.workspace_bytes_of(tokens) {
            0 => 0,
            len_bytes => stream.workspace(entered, order, len_bytes)?,
        };
        let mut operands = Operands { tokens: self.as_read(tokens), found: [0; 2] };
        if let Some(kernel) = &self.row_norms {
            let mut end = workspace + found_start(self.bytes_before_found());
            for (tokens, found) in operands.tokens.iter().zip(&mut operands.found) {
                // SAFETY: the workspace has room for what is found, as a plan says.
                *found =
                    unsafe { tokens.find_row_scales(entered, stream.raw(), kernel, &mut end)? };
            }
        }
        Ok(Collecting { plan: self, maps, operands, workspace })
    }
}

impl Collecting<'_> {
    /// The address of the scales of the queries' rows; 0 where rows are not normalised.
    pub(in crate::cuda) fn query_scales(&self) -> u64 {
        if self.variant().normalizes() { self.operands.query_scales() } else { 0 }
    }

    /// The kernel whose tiles are multiplied.
    pub(in crate::cuda) fn variant(&self) -> &'static Variant {
        self.plan.variant
    }

    /// Enqueues the plan's launches with a kernel of the same tile that collects, and stores
    /// winners and token scores in `out` where it finds them.
    ///
    /// # Safety
    /// The kernel's tile must be the plan's, `collected` as it says, and `out` of the plan's shape,
    /// until the launches have run; no other stream may use these or the tokens meanwhile.
    pub(in crate::cuda) unsafe fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        kernel: &Kernel<CollectParams>,
        collected: Collected,
        out: OutputAddresses,
    ) -> Result<()> {
        let (document_scales, document_scales_are_f16) = match self.variant().normalizes() {
            true => self.operands.document_scales(self.variant()),
            false => (0, 0),
        };
        let [queries, documents] = self.operands.tokens;
        for launch in &self.plan.launches {
            let forward =
                self.plan.params(launch, self.maps, queries, documents, out, self.workspace);
            let normalized = NormalizedParams {
                forward,
                query_scales: self.query_scales(),
                document_scales,
                document_scales_are_f16,
                maxima_are_cosines: 0,
            };
            let params = CollectParams { normalized, collected };
            let shared_bytes = kernel.entry().resources().shared_bytes as u32;
            // SAFETY: lists and tokens are those of the plan; the caller's promise.
            unsafe { start(entered, stream.raw(), kernel, launch.grid, shared_bytes, &params)? };
        }
        Ok(())
    }
}
