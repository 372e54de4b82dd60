//! Launches forward plans: fills what kernels do not write, starts the kernels and adds up their
//! partial results.

use cust::sys::CUstream;
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::params::{
    ForwardParams, SUM_PARTIALS_THREADS, SumPartialsParams, TensorMap,
};
use maxsim_kernels::table::forward::Variant;

use super::document_splits::CudaSplits;
use super::plan::ForwardPlan;
use super::work_list::Launch;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::row_scales::{found_bytes, found_start, with_found};
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::Entered;
use crate::cuda::driver::launch::{N_RESERVED, start};
use crate::cuda::driver::memory::fill;
use crate::cuda::driver::stream::{CudaStream, Order};
use crate::error::{Error, Result};

/// Alignment of the scores of centroids, and of decoded rows: lines of the cache.
const SCORES_ALIGN: u64 = 256;

/// Tensor maps of queries, of documents' tiles and of their tails: not copied before they are in
/// the parameter struct.
pub(in crate::cuda) type TensorMaps<'a> = [&'a TensorMap; 3];

/// Tokens of queries and documents as a kernel reads them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands<'a> {
    pub tokens: [&'a CudaTokens; 2],
    /// Addresses of what rows are normalised by, where the call finds it; else 0.
    pub found: [u64; 2],
}

impl Operands<'_> {
    /// The address of the row scales of queries.
    pub(super) fn query_scales(&self) -> u64 {
        match self.found[0] {
            0 => self.tokens[0].row_scales_address(),
            found => found,
        }
    }

    /// The address of the row scales of documents, and 1 where they are f16, or 0.
    pub(super) fn document_scales(&self, variant: &Variant) -> (u64, u32) {
        match self.found[1] {
            0 => self.tokens[1].row_scales_address_for(variant),
            found => (found, 0),
        }
    }
}

impl ForwardPlan {
    /// Enqueues the work. Allocates nothing once the stream's workspace has grown.
    ///
    /// The handles' layouts and the outputs' shape must be those of the work; `Stream`
    /// checks them.
    pub(crate) fn enqueue(
        &self,
        stream: &mut CudaStream,
        queries: &CudaTokens,
        documents: &CudaTokens,
        outputs: &CudaOutputs,
    ) -> Result<()> {
        let entered = self.device.enter()?;
        let maps = self.tensor_maps(&entered, queries, documents)?;
        let order = stream.order(&entered)?;
        self.prepare_row_scales(queries, documents, Some(order))?;
        let workspace = match self.workspace_bytes_of([queries, documents]) {
            0 => 0,
            len_bytes => stream.workspace(&entered, order, len_bytes)?,
        };
        let raw = stream.raw();
        // SAFETY: the handles have the problem's layouts and the outputs its shape (the caller's
        // check), in this context; only this stream uses its workspace, and the hazard orders the
        // writes of the outputs.
        let run =
            || unsafe { self.run(&entered, raw, maps, queries, documents, outputs, workspace) };
        outputs.hazard().enqueue(&entered, stream, order, run)
    }

    /// Prepares the row scales that the kernel reads, so that [`ForwardPlan::run`] allocates
    /// nothing.
    pub(crate) fn prepare_row_scales(
        &self,
        queries: &CudaTokens,
        documents: &CudaTokens,
        order: Option<Order>,
    ) -> Result<()> {
        let [queries, documents] = self.as_read([queries, documents]);
        if self.variant.has_query_scales() {
            queries.prepare_row_scales(&self.device, order)?;
        }
        match self.variant.has_row_scales() {
            true => documents.prepare_row_scales(&self.device, order),
            false => Ok(()),
        }
    }

    /// The tokens of both sides as the kernel reads them.
    pub(super) fn as_read<'a>(&self, tokens: [&'a CudaTokens; 2]) -> [&'a CudaTokens; 2] {
        if self.variant.normalizes() { tokens.map(CudaTokens::normalizable) } else { tokens }
    }

    /// Bytes of the work's lists on the device.
    pub(crate) fn list_bytes(&self) -> u64 {
        self.lists.len_bytes()
    }

    /// Bytes of workspace that the work needs for any handles.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        let of = |rows: usize| self.row_norms.map_or(0, |_| found_bytes(rows));
        with_found(self.bytes_before_found(), self.rows.map(of).iter().sum())
    }

    /// Bytes of workspace that the work needs for some handles.
    pub(in crate::cuda) fn workspace_bytes_of(&self, tokens: [&CudaTokens; 2]) -> u64 {
        let of = |tokens: &CudaTokens| self.row_norms.map_or(0, |_| tokens.found_bytes());
        with_found(self.bytes_before_found(), tokens.map(of).iter().sum())
    }

    /// Whether the work decodes residual-compressed rows itself, and finds what they are normalised
    /// by.
    pub(in crate::cuda) fn decodes_once(&self) -> bool {
        self.decoding.is_some()
    }

    /// Bytes of workspace before what rows of foreign memory are normalised by.
    pub(super) fn bytes_before_found(&self) -> u64 {
        match (&self.centroid_scores, &self.decoding) {
            (None, None) => self.bytes_before_scores(),
            (Some(scores), _) => self.scores_offset() + scores.bytes(),
            (_, Some(decoding)) => self.scores_offset() + decoding.bytes(),
        }
    }

    /// Offset of the scores of centroids, or of decoded rows, in the workspace, behind all else.
    fn scores_offset(&self) -> u64 {
        self.bytes_before_scores().next_multiple_of(SCORES_ALIGN)
    }

    fn bytes_before_scores(&self) -> u64 {
        let of_splits = self.splits.as_ref().map_or(0, CudaSplits::workspace_bytes);
        self.partials_bytes() + of_splits
    }

    /// Whether a launch has a dynamic scheduler's counter, or Stream-K's partial maxima behind the
    /// counters.
    pub(super) fn counts(&self, launch: &Launch) -> bool {
        launch.is_dynamic || self.variant.schedule.is_stream_k()
    }

    /// Bytes at the workspace's start for counters and partial sums.
    fn partials_bytes(&self) -> u64 {
        let counts = self.launches.iter().any(|launch| self.counts(launch));
        let stores_more =
            self.splits.is_some() || self.centroid_scores.is_some() || self.decoding.is_some();
        match self.n_partials {
            0 if !counts && !stores_more => 0,
            // Other calls use the same counters, so no data may overlap them.
            n => (N_RESERVED + n) * 4,
        }
    }

    /// Enqueues the work's launches, and what must be filled before them.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; the handles must have the problem's layouts, be
    /// those of the maps, have their norms prepared, and with the outputs, of its shape, live until
    /// the launches have run. Until then nothing else may use the workspace, which must have
    /// [`ForwardPlan::workspace_bytes`], or the outputs.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::cuda) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        maps: TensorMaps<'_>,
        queries: &CudaTokens,
        documents: &CudaTokens,
        outputs: &CudaOutputs,
        workspace: u64,
    ) -> Result<()> {
        let [queries, documents] = self.as_read([queries, documents]);
        let unvisited = self.has_unvisited_scores;
        // Kernels write every valid query token of a visited score whose document has a valid
        // token. For the others alone winners and token scores must be filled.
        let tokens = unvisited || queries.is_masked() || documents.has_empty_items();
        // SAFETY: the lists were made for this problem; the caller's promise for the rest.
        unsafe {
            outputs.clear(entered, stream, unvisited, tokens)?;
            let mut operands = Operands { tokens: [queries, documents], found: [0; 2] };
            if let Some(kernel) = &self.row_norms {
                let mut end = workspace + found_start(self.bytes_before_found());
                for (tokens, found) in operands.tokens.iter().zip(&mut operands.found) {
                    *found = tokens.find_row_scales(entered, stream, kernel, &mut end)?;
                }
            }
            let out = match &self.splits {
                None => outputs.addresses(),
                Some(splits) => {
                    let left = splits.outputs(workspace + self.partials_bytes());
                    splits.begin(entered, stream, documents, left)?;
                    left
                }
            };
            let scores = workspace + self.scores_offset();
            let place = self.decoding.as_ref().map(|decoding| decoding.place(scores));
            let mut maps = maps;
            if let Some(place) = &place {
                operands.found[1] = place.scales;
                maps = [maps[0], place.maps.tiles(entered)?, place.maps.groups(entered)?];
            }
            let params = |launch| self.params(launch, maps, queries, documents, out, workspace);
            if let (Some(of), Some(residuals), Some(launch)) =
                (&self.centroid_scores, &documents.residuals, self.launches.first())
            {
                // Queries and groups are those of every launch.
                of.run(entered, stream, params(launch), residuals.params(), scores)?;
            }
            let mut decoded = None;
            for launch in &self.launches {
                if let (Some(decoding), Some(place)) = (&self.decoding, &place) {
                    let piece = decoding.piece_of(launch);
                    if decoded.replace(piece) != Some(piece) {
                        decoding.run(entered, stream, documents.decoded()?, piece, place)?;
                    }
                }
                let params = params(launch);
                self.launch(entered, stream, launch, &params, operands, scores)?;
            }
            match &self.splits {
                None => Ok(()),
                Some(splits) => splits.combine(entered, stream, &self.lists, queries, out, outputs),
            }
        }
    }

    /// Refuses handles that the kernel cannot read.
    pub(in crate::cuda) fn check_maps(
        &self,
        queries: &CudaTokens,
        documents: &CudaTokens,
    ) -> Result<()> {
        self.tensor_maps(&self.device.enter()?, queries, documents).map(|_| ())
    }

    /// The tensor maps, where the kernel reads through them; an error for handles that it cannot
    /// read.
    pub(in crate::cuda) fn tensor_maps<'a>(
        &self,
        entered: &Entered<'_>,
        queries: &'a CudaTokens,
        documents: &'a CudaTokens,
    ) -> Result<TensorMaps<'a>> {
        let [queries, documents] = self.as_read([queries, documents]);
        if let Some(scores) = &self.centroid_scores {
            scores.check(documents.access())?;
        }
        let refuse = |argument: &'static str| Error::Shape {
            argument,
            expected: format!(
                "rows on 16-byte boundaries{}, as kernel {} of this work reads them",
                if self.variant.schedule.is_contiguous() { " with nothing in between" } else { "" },
                self.variant.name
            ),
            found: "other rows; prepare the work with these handles".into(),
        };
        if self.launches.is_empty() {
            return Ok([&TensorMap::NONE; 3]);
        }
        if self.variant.schedule.is_contiguous() {
            for (argument, tokens) in [("queries", queries), ("documents", documents)] {
                if !tokens.access().lies_together(self.variant, self.dim) {
                    return Err(refuse(argument));
                }
            }
            return Ok([&TensorMap::NONE; 3]);
        }
        if self.variant.arch != Arch::Sm90a {
            // Among the kernels for sm_80, those that decode documents load whole chunks of
            // queries.
            let is_aligned = queries.access().is_aligned() || !self.variant.operand.is_decoded();
            return is_aligned.then_some([&TensorMap::NONE; 3]).ok_or_else(|| refuse("queries"));
        }
        let queries = queries.maps(self.variant).ok_or_else(|| refuse("queries"))?;
        if self.variant.operand.is_decoded() {
            return Ok([queries.groups(entered)?, &TensorMap::NONE, &TensorMap::NONE]);
        }
        let documents = documents.maps(self.variant).ok_or_else(|| refuse("documents"))?;
        let reads_parts = self.variant.schedule.is_stream_k() || self.variant.schedule.is_swap_ab();
        let tiles = match reads_parts {
            true => documents.parts(entered)?,
            false => documents.tiles(entered)?,
        };
        Ok([queries.groups(entered)?, tiles, documents.groups(entered)?])
    }

    /// One launch of the forward kernel and, for partial results, of their sum.
    ///
    /// # Safety
    /// `params` must describe memory of the context that lives until the launch has run, as
    /// [`ForwardParams`] says, for `launch`, of these tokens, whose norms are prepared, and the
    /// scores of centroids be at `scores` where the kernel reads them; `stream` must be a stream of
    /// the context.
    pub(super) unsafe fn launch(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        launch: &Launch,
        params: &ForwardParams,
        operands: Operands<'_>,
        scores: u64,
    ) -> Result<()> {
        let n_partials = u64::from(launch.n_parts) * u64::from(launch.n_results);
        // SAFETY: the caller's promise; partial results lie in the workspace, which holds
        // `n_partials` of them.
        unsafe {
            if launch.is_ragged && self.sum_partials.is_some() {
                fill(entered, params.results, 0, n_partials * 4, stream)?;
            }
            self.start(entered, stream, launch, params, operands, scores)?;
            let (Some(sum_partials), 1.., false) =
                (self.sum_partials, launch.n_parts, launch.sums_in_kernel)
            else {
                return Ok(());
            };
            let sum = SumPartialsParams {
                partials: params.results,
                scores: params.scores,
                entry_score: params.entry_score,
                row_len: match launch.query_stride {
                    0 => launch.n_results,
                    entries => entries,
                },
                score_stride: self.query_stride,
                score_base: u64::from(launch.first_query) * u64::from(self.query_stride)
                    + u64::from(launch.entries.start),
                entry_base: launch.entries.start,
                n_results: launch.n_results,
                n_parts: launch.n_parts,
                reserved: 0,
            };
            let grid = launch.n_results.div_ceil(SUM_PARTIALS_THREADS as u32);
            start(entered, stream, &sum_partials, grid, 0, &sum)
        }
    }
}
