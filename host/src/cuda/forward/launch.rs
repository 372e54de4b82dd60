//! Launches the forward kernels: a problem's work lists on the device, and what runs them.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::params::{
    ForwardParams, N_COUNTERS, SUM_PARTIALS_THREADS, SumPartialsParams, TensorMap, Unit, UnitStart,
    inverse,
};
use maxsim_kernels::table::auxiliary::{COMBINE_SPLITS, SUM_PARTIALS};
use maxsim_kernels::table::forward::Variant;

use super::centroid_scores::CentroidScores;
use super::document_splits::{CudaPieces, CutProblem};
use super::lists::DeviceLists;
use super::params::ForwardKernel;
use super::partition::{DRAWN_TOKENS_MIN, RUN_DRAWN_TOKENS_MIN, UNIT_TOKENS_MAX};
use super::work_list::{Launch, Shape, Units, WorkList};
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::launch::N_RESERVED;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::fill;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::{CudaStream, Order};
use crate::error::{Error, Result};
use crate::plan::choice::Chosen;
use crate::plan::stream_k::{BLOCKS_OF_A_CROSS, blocks_of_shares};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputAddresses;
use crate::problem::outputs::OutputShape;
use crate::problem::scores::Scores;
use crate::problem::shape::ScoreShape;

/// Most bytes of partial sums that a launch writes to the workspace.
const PARTIALS_BYTES_MAX: u64 = 32 << 20;

/// What the scores of centroids are aligned to: a line of the cache.
const SCORES_ALIGN: u64 = 128;

/// A problem made ready for one kernel: checked, with its lists on the device.
#[derive(Debug)]
pub(crate) struct ForwardPlan {
    device: Arc<CudaDevice>,
    pub(super) variant: &'static Variant,
    pub(super) kernel: ForwardKernel,
    /// Where scores are sums over several query tiles, and nothing else adds them.
    sum_partials: Option<Kernel<SumPartialsParams>>,
    /// Where documents are cut: all but the outputs is then the problem of the pieces.
    pieces: Option<CudaPieces>,
    /// Where the kernel reads what centroids score.
    pub(super) centroid_scores: Option<CentroidScores>,
    pub(super) dim: usize,
    winner_bytes: usize,
    entries_per_query: u32,
    entry_stride: u32,
    tiles_per_query: u32,
    /// Tokens of every query, where each has the tile of its number; 0 elsewhere.
    pub(super) query_len: u32,
    /// Scores per query of a cross product, 0 for other pairings.
    query_stride: u32,
    n_partials: u64,
    has_unvisited_scores: bool,
    launches: Vec<Launch>,
    pub(super) lists: DeviceLists,
}

impl CudaDevice {
    /// Scores a problem and waits for the results, which also stay on the device.
    pub(crate) fn score(
        self: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        chosen: Chosen,
        queries: &CudaTokens,
        documents: &CudaTokens,
        options: &ScoreOptions,
    ) -> Result<(Scores, CudaOutputs)> {
        let shape = OutputShape::new(problem, options);
        let work = ForwardPlan::new(self, problem, chosen, &shape)?;
        // A call writes every output, filled or computed.
        let outputs = CudaOutputs::unfilled(self, &shape)?;
        work.prepare_row_scales(queries, documents, None)?;
        self.on_idle_stream(|stream| work.enqueue(stream, queries, documents, &outputs))?;
        Ok((outputs.read(&shape)?, outputs))
    }
}

impl ForwardPlan {
    /// Builds and uploads the lists, and loads the kernel.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        chosen: Chosen,
        outputs: &OutputShape,
    ) -> Result<ForwardPlan> {
        let Chosen { variant, pieces, .. } = chosen;
        let Some(pieces) = pieces else {
            return ForwardPlan::of(device, problem, chosen, outputs, None);
        };
        let cut = CutProblem::new(problem, pieces)?;
        let problem = cut.problem(problem.queries())?;
        let left = OutputShape::of_pieces(&problem, outputs.winners);
        let pieces = CudaPieces::new(device.kernel(COMBINE_SPLITS)?, variant, &cut, outputs, &left);
        ForwardPlan::of(device, &problem, chosen, &left, Some((&cut, pieces)))
    }

    /// The work of a problem as it is, or of the splits of another one, whose outputs are the
    /// splits' results.
    fn of(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        Chosen { variant, n_centroids, .. }: Chosen,
        outputs: &OutputShape,
        pieces: Option<(&CutProblem, CudaPieces)>,
    ) -> Result<ForwardPlan> {
        let (cut, pieces) = pieces.unzip();
        let in_runs = variant.schedule.is_contiguous();
        let kernel = device.forward_kernel(variant)?;
        let shared_bytes = variant.shared_bytes(problem.dim());
        let mut n_resident =
            device.blocks_per_multiprocessor(&variant.resources(), shared_bytes)?;
        if in_runs && matches!(problem.shape(), ScoreShape::Cross { .. }) {
            let n_multiprocessors = device.limits().n_multiprocessors;
            n_resident = n_resident.min(match variant.schedule.is_stream_k() {
                true => blocks_of_shares(problem.documents().total_len(), n_multiprocessors),
                false => BLOCKS_OF_A_CROSS,
            });
        }
        let counts = variant.arch == Arch::Sm90a && !in_runs;
        let draws = variant.draws();
        // The sums over splits are not used: their partial sums are not added.
        let sums_in_kernel = counts && pieces.is_none();
        let list = WorkList::new(
            problem,
            &Shape {
                query_tile: variant.query_tile,
                n_blocks: device.limits().n_multiprocessors * n_resident,
                prefers_whole_rounds: counts,
                partials_max: PARTIALS_BYTES_MAX / 4,
                n_counters_max: if sums_in_kernel { u64::from(N_COUNTERS) - 1 } else { 0 },
                drawn_tokens_min: match (draws, in_runs) {
                    (false, _) => u64::MAX,
                    (true, true) => RUN_DRAWN_TOKENS_MIN,
                    (true, false) => DRAWN_TOKENS_MIN,
                },
                // Statically scheduled units do not prefetch across their boundary.
                unit_tokens_max: if in_runs { u64::MAX } else { UNIT_TOKENS_MAX },
                in_runs,
                cuts: variant.schedule.is_stream_k(),
            },
        )?;
        let needs_sum =
            |launch: &Launch| launch.n_parts > 0 && !launch.sums_in_kernel && pieces.is_none();
        let sum_partials =
            list.launches.iter().any(needs_sum).then(|| device.kernel(SUM_PARTIALS)).transpose()?;
        let lists =
            DeviceLists::upload(device, &list, outputs, cut.map(|cut| (cut, problem.queries())))?;
        Ok(ForwardPlan {
            device: device.clone(),
            variant,
            kernel,
            sum_partials,
            pieces,
            centroid_scores: CentroidScores::new(
                device,
                variant,
                list.tiles.n_tiles()?,
                n_centroids,
            )?,
            dim: problem.dim(),
            winner_bytes: outputs.winner_bytes,
            entries_per_query: list.entries_per_query,
            entry_stride: list.entry_stride,
            tiles_per_query: list.tiles_per_query,
            query_len: list.tiles.query_len(),
            query_stride: match problem.shape() {
                ScoreShape::Cross { n_documents, .. } => n_documents as u32,
                _ => 0,
            },
            n_partials: list.n_partials,
            has_unvisited_scores: list.has_unvisited_scores,
            launches: list.launches,
            lists,
        })
    }

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
        let maps = self.tensor_maps(queries, documents)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        self.prepare_row_scales(queries, documents, Some(order))?;
        let workspace = match self.workspace_bytes() {
            0 => 0,
            len_bytes => stream.workspace(order, len_bytes)?,
        };
        let raw = stream.raw();
        // SAFETY: the handles have the problem's layouts and the outputs its shape (the caller's
        // check), in this context; only this stream uses its workspace, and the hazard orders the
        // writes of the outputs.
        let run =
            || unsafe { self.run(&entered, raw, maps, queries, documents, outputs, workspace) };
        Hazard::enqueue([Some(outputs.hazard().as_ref())], &entered, stream, order, run)
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
        if self.variant.has_query_factors() {
            queries.prepare_row_scales(&self.device, order)?;
        }
        match self.variant.has_factors() {
            true => documents.prepare_row_scales(&self.device, order),
            false => Ok(()),
        }
    }

    /// The tokens of both sides as the kernel reads them.
    fn as_read<'a>(&self, tokens: [&'a CudaTokens; 2]) -> [&'a CudaTokens; 2] {
        if self.variant.normalizes() { tokens.map(CudaTokens::normalizable) } else { tokens }
    }

    /// Bytes of workspace that the work needs.
    pub(in crate::cuda) fn workspace_bytes(&self) -> u64 {
        match &self.centroid_scores {
            None => self.bytes_before_scores(),
            Some(scores) => self.scores_offset() + scores.bytes(),
        }
    }

    /// Where the scores of centroids lie in the workspace, behind all else.
    fn scores_offset(&self) -> u64 {
        self.bytes_before_scores().next_multiple_of(SCORES_ALIGN)
    }

    fn bytes_before_scores(&self) -> u64 {
        let of_pieces = self.pieces.as_ref().map_or(0, CudaPieces::workspace_bytes);
        self.partials_bytes() + of_pieces
    }

    /// Whether a launch has a dynamic scheduler's counter, or Stream-K's partial maxima behind the
    /// counters.
    fn counts(&self, launch: &Launch) -> bool {
        launch.draws || self.variant.schedule.is_stream_k()
    }

    /// Bytes at the workspace's start for counters and partial sums.
    fn partials_bytes(&self) -> u64 {
        let draws = self.launches.iter().any(|launch| self.counts(launch));
        let stores_more = self.pieces.is_some() || self.centroid_scores.is_some();
        match self.n_partials {
            0 if !draws && !stores_more => 0,
            // The counters are other works' too: nothing else is stored where they are.
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
        maps: [TensorMap; 3],
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
            if self.variant.has_query_factors() {
                queries.refresh_row_scales(entered, stream)?;
            }
            if self.variant.has_factors() {
                documents.refresh_row_scales(entered, stream)?;
            }
            let out = match &self.pieces {
                None => outputs.addresses(),
                Some(pieces) => {
                    let left = pieces.outputs(workspace + self.partials_bytes());
                    pieces.begin(entered, stream, documents, left)?;
                    left
                }
            };
            let scores = workspace + self.scores_offset();
            let params = |launch| self.params(launch, maps, queries, documents, out, workspace);
            if let (Some(of), Some(residuals), Some(launch)) =
                (&self.centroid_scores, &documents.residuals, self.launches.first())
            {
                // Queries and groups are those of every launch.
                of.run(entered, stream, params(launch), residuals.params(), scores)?;
            }
            self.launches.iter().try_for_each(|launch| {
                let params = params(launch);
                self.launch(entered, stream, launch, &params, [queries, documents], scores)
            })?;
            match &self.pieces {
                None => Ok(()),
                Some(pieces) => pieces.combine(entered, stream, &self.lists, queries, out, outputs),
            }
        }
    }

    /// The tensor maps, where the kernel reads through them; an error for handles that it cannot
    /// read.
    pub(in crate::cuda) fn tensor_maps(
        &self,
        queries: &CudaTokens,
        documents: &CudaTokens,
    ) -> Result<[TensorMap; 3]> {
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
            return Ok([TensorMap::NONE; 3]);
        }
        if self.variant.schedule.is_contiguous() {
            for (argument, tokens) in [("queries", queries), ("documents", documents)] {
                if !tokens.access().lies_together(self.variant, self.dim) {
                    return Err(refuse(argument));
                }
            }
            return Ok([TensorMap::NONE; 3]);
        }
        if self.variant.arch != Arch::Sm90a {
            // Of the rows for sm_80 those that decode documents load whole chunks of queries.
            let is_aligned = queries.access().is_aligned() || !self.variant.operand.is_decoded();
            return is_aligned.then_some([TensorMap::NONE; 3]).ok_or_else(|| refuse("queries"));
        }
        let queries = queries.maps(self.variant).ok_or_else(|| refuse("queries"))?;
        if self.variant.operand.is_decoded() {
            return Ok([queries.groups, TensorMap::NONE, TensorMap::NONE]);
        }
        let documents = documents.maps(self.variant).ok_or_else(|| refuse("documents"))?;
        let reads_parts = self.variant.schedule.is_stream_k() || self.variant.schedule.is_swap_ab();
        let tiles = if reads_parts { documents.parts } else { documents.tiles };
        Ok([queries.groups, tiles, documents.groups])
    }

    fn params(
        &self,
        launch: &Launch,
        [query_map, document_map, document_tail_map]: [TensorMap; 3],
        queries: &CudaTokens,
        documents: &CudaTokens,
        out: OutputAddresses,
        workspace: u64,
    ) -> ForwardParams {
        let documents_matrix = match &self.pieces {
            None => documents.matrix(),
            Some(pieces) => pieces.documents(documents.matrix(), &self.lists),
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
            // They have parameters of their own.
            Units::Runs(_) | Units::Shares(_) => {}
        }
        let first_result = launch.first_query * launch.query_stride + launch.entries.start;
        ForwardParams {
            query_map,
            document_map,
            document_tail_map,
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
            draws: if self.counts(launch) { workspace } else { 0 },
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
        }
    }

    /// One launch of the forward kernel and, for partial results, of their sum.
    ///
    /// # Safety
    /// `params` must describe memory of the context that lives until the launch has run, as
    /// [`ForwardParams`] says, for `launch`, of these tokens, whose norms are prepared, and the
    /// scores of centroids be at `scores` where the kernel reads them; `stream` must be a stream of
    /// the context.
    unsafe fn launch(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        launch: &Launch,
        params: &ForwardParams,
        sides: [&CudaTokens; 2],
        scores: u64,
    ) -> Result<()> {
        let n_partials = u64::from(launch.n_parts) * u64::from(launch.n_results);
        // SAFETY: the caller's promise; partial results lie in the workspace, which holds
        // `n_partials` of them.
        unsafe {
            if launch.is_ragged && self.sum_partials.is_some() {
                fill(entered, params.results, 0, n_partials * 4, stream)?;
            }
            self.start(entered, stream, launch, params, sides, scores)?;
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
            start(entered, stream, sum_partials, grid, 0, &sum)
        }
    }
}
