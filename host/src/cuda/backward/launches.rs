//! The launches of a gradient call.

use std::ops::Range;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::backward;
use maxsim_kernels::abi::params::backward::residual::ResidualGatherParams;
use maxsim_kernels::abi::params::backward::{
    CountParams, GatherParams, Output, Pairs, RowTask, Rows, SegmentedSumParams, ShortQueryParams,
    SortParams, SortTask, SumParams, columns,
};

use super::plan::{Carry, GradientPlan, Group, SidePairs};
use super::project::Projected;
use super::workspace::GroupWorkspace;
use super::{CudaBackward, GatherKernel, SortedKernels, Sums, WinnerKernels};
use crate::cuda::buffers::gradients::output;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::row_scales::found_start;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::BackwardCall;
use crate::cuda::driver::context::Entered;
use crate::cuda::driver::launch::{N_RESERVED, start};
use crate::cuda::driver::memory::fill;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;
use crate::plan::backward::Gathered;
use crate::problem::outputs::GradientMatrix;
use crate::tokens::element::ElementType;

impl CudaBackward {
    /// Enqueues the work's launches, and what must be filled before them.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; what the call is given must be of the work and
    /// live until the launches have run. Until then nothing else may use the workspace, which
    /// must have [`CudaBackward::workspace_bytes`], or write scores and gradients.
    pub(in crate::cuda) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &BackwardCall<'_>,
        workspace: u64,
    ) -> Result<()> {
        let (sides, adds) = (call.gradients.sides(), call.adds);
        // SAFETY: the caller's promise.
        unsafe {
            match &self.again {
                Some(again) => again.run(self, entered, stream, call, workspace),
                None => {
                    self.run_saved(entered, stream, call, call.outputs, (sides, adds), workspace)
                }
            }
        }
    }

    /// Enqueues the sums over the winners of `outputs`, to `sides`, overwritten or added to.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], for a work that reads winners.
    pub(in crate::cuda) unsafe fn run_saved(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &BackwardCall<'_>,
        outputs: &CudaOutputs,
        (sides, adds): ([GradientMatrix; 2], bool),
        workspace: u64,
    ) -> Result<()> {
        let BackwardCall { queries, documents, grad_scores, .. } = *call;
        let free = workspace + N_RESERVED * 4;
        let tokens = [queries, documents];
        let (mut norms, weights, both) = ([0; 2], queries.weights(), [adds; 2]);
        let mut sums = Sums {
            queries,
            documents,
            outputs,
            grad_scores,
            sides,
            first_row: 0,
            adds: both,
            norms: [weights, 0],
        };
        // SAFETY: the caller's promise.
        unsafe {
            match (&self.row_norms, self.documents) {
                (Some(row_norms), _) => {
                    let mut end = workspace + found_start(self.bytes_before_found(adds));
                    norms = tokens.map(CudaTokens::row_scales_address);
                    [sums.queries, sums.documents] = tokens.map(CudaTokens::normalizable);
                    sums.norms = [sums.queries, sums.documents].map(CudaTokens::row_scales_address);
                    for (side, tokens) in tokens.into_iter().enumerate() {
                        match tokens.find_row_scales(entered, stream, row_norms, &mut end)? {
                            0 => {}
                            found => (norms[side], sums.norms[side]) = (found, found),
                        }
                    }
                    if weights != 0 {
                        sums.norms[0] = end;
                        sums.queries.find_weighted_scales(entered, stream, row_norms, end)?;
                    }
                }
                (None, Gathered::Elements) => {}
                // Scales are there from the start.
                (None, Gathered::Codes) => sums.norms[1] = documents.row_scales_address(),
                (None, Gathered::Residuals) => sums.norms[1] = documents.decoded()?.norms,
            }
            let Some(project) = self.project else {
                return self.run_sums(entered, stream, &sums, free);
            };
            sums.sides = self.sums_of_projected(sides, adds, free);
            sums.adds = self.projects.map(|projects| adds && !projects);
            self.run_sums(entered, stream, &sums, free)?;
            let of_weights = call.gradients.weights();
            let out = Projected { tokens, norms, weights, sides, of_weights, adds };
            self.run_project(entered, stream, &sums, &out, project)
        }
    }

    /// Enqueues what sums over the winners.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], with the workspace behind the counters.
    unsafe fn run_sums(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        free: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.kernels.winners {
                WinnerKernels::Atomic(kernel) => {
                    self.run_atomic(entered, stream, call, kernel, free)
                }
                WinnerKernels::Sorted(sorted) => match &sorted.short_query {
                    Some(kernel) => {
                        self.run_short_query(entered, stream, call, (kernel, sorted), free)
                    }
                    None => {
                        self.run_queries(entered, stream, call, sorted, free)?;
                        self.run_documents(entered, stream, call, sorted, free)
                    }
                },
            }
        }
    }

    /// # Safety
    /// As [`CudaBackward::run`], with the workspace behind the counters.
    pub(in crate::cuda) unsafe fn run_queries(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        sorted: &SortedKernels,
        workspace: u64,
    ) -> Result<()> {
        let [gradient, _] = call.sides;
        let plan = &self.plan;
        // SAFETY: the lists were made for this problem; the caller's promise for the rest.
        unsafe {
            self.clear_queries(entered, stream, call)?;
            let Some(pairs) = &plan.query_pairs else { return Ok(()) };
            if plan.n_row_tasks == 0 {
                return Ok(());
            }
            let out = gradient.output(call.adds[0]);
            let params = self.gather_params(call, pairs, out, workspace);
            let grid = self.n_gather_blocks(&params);
            match &sorted.gather {
                GatherKernel::Rows(kernel) => start(entered, stream, kernel, grid, 0, &params)?,
                GatherKernel::Residuals(kernel) => {
                    let documents = call.documents.decoded()?;
                    let params = ResidualGatherParams { sums: params, documents };
                    start(entered, stream, kernel, grid, 0, &params)?;
                }
            }
            self.add_chunks(entered, stream, out, workspace)
        }
    }

    /// Both sides in one launch, where documents have few sources; in two where those of the
    /// queries are codes.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`].
    unsafe fn run_short_query(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        (kernel, sorted): (&Kernel<ShortQueryParams>, &SortedKernels),
        workspace: u64,
    ) -> Result<()> {
        let [queries, documents] = call.sides;
        let plan = &self.plan;
        let Some(document_pairs) = &plan.document_pairs else { return Ok(()) };
        // Where the queries' gradient is not wanted, no CTA sums over pairs.
        let query_pairs = plan.query_pairs.as_ref().unwrap_or(document_pairs);
        let fills = !call.adds[1] && self.short_queries_cover_documents;
        let out = queries.output(call.adds[0]);
        let params = ShortQueryParams {
            pairs: self.pairs(call, document_pairs, self.lists.document_order, call.norms[0]),
            source: call.queries.rows(),
            out: documents.output(call.adds[1]),
            tasks: self.lists.short_query_tasks,
            n_tasks: plan.short_query_tasks.len() as u32,
            fills: u32::from(fills),
            gather: self.gather_params(call, query_pairs, out, workspace),
        };
        let n_few_blocks = params.n_tasks * params.source.n_columns;
        // If no CTA sums over pairs, these parameters are not read.
        let are_elements = self.documents == Gathered::Elements;
        let n_gather_blocks = match are_elements {
            true => self.n_gather_blocks(&params.gather),
            false => 0,
        };
        let grid = n_few_blocks + n_gather_blocks;
        let shared_bytes = backward::SHORT_QUERY_SHARED_BYTES as u32;
        // SAFETY: the lists were made for this problem; the caller's promise for the rest.
        unsafe {
            match are_elements {
                true => self.clear_queries(entered, stream, call)?,
                false => self.run_queries(entered, stream, call, sorted, workspace)?,
            }
            if !call.adds[1] && !fills {
                documents.clear(entered, stream)?;
            }
            start(entered, stream, kernel, grid, shared_bytes, &params)?;
            match are_elements {
                true => self.add_chunks(entered, stream, out, workspace),
                false => Ok(()),
            }
        }
    }

    /// The parameters of the kernel that sums over pairs; sums of several chunks go to the
    /// workspace.
    pub(in crate::cuda) fn gather_params(
        &self,
        call: &Sums<'_>,
        pairs: &SidePairs,
        out: Output,
        workspace: u64,
    ) -> GatherParams {
        let plan = &self.plan;
        let rows = call.documents.rows();
        GatherParams {
            pairs: self.pairs(call, pairs, self.lists.query_order, call.norms[1]),
            source: match self.documents {
                Gathered::Elements => rows,
                Gathered::Codes | Gathered::Residuals => {
                    let (lanes_log2, n_columns) = columns(self.dim * backward::CODE_BYTES);
                    Rows { lanes_log2, n_columns, ..rows }
                }
            },
            out: match plan.n_chunks {
                1 => out,
                _ => output(workspace, ElementType::F32, self.dim, false),
            },
            tasks: self.lists.rows,
            n_tasks: plan.n_row_tasks,
            n_chunks: plan.n_chunks,
            n_rows: plan.n_rows,
            reserved: 0,
        }
    }

    pub(in crate::cuda) fn n_gather_blocks(&self, params: &GatherParams) -> u32 {
        params.n_tasks * params.source.n_columns * params.n_chunks
    }

    /// Adds the chunks of sums over pairs, where there are several.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], behind the work that wrote them to the workspace.
    pub(in crate::cuda) unsafe fn add_chunks(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        out: Output,
        workspace: u64,
    ) -> Result<()> {
        let GradientPlan { n_chunks, n_rows, n_row_tasks, .. } = self.plan;
        if n_chunks == 1 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_sum(entered, stream, out, workspace, 0..n_row_tasks, [n_chunks, n_rows]) }
    }

    /// Adds chunks of f32 sums `[n_chunks, n_rows, dim]` from `parts` on, whose rows some tasks
    /// list.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], behind the work that writes these sums.
    pub(in crate::cuda) unsafe fn run_sum(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        out: Output,
        parts: u64,
        tasks: Range<u32>,
        [n_chunks, n_rows]: [u32; 2],
    ) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        let first = u64::from(tasks.start) * size_of::<RowTask>() as u64;
        let params = SumParams { out, parts, tasks: self.lists.rows + first, n_chunks, n_rows };
        // SAFETY: the caller's promise.
        unsafe { start(entered, stream, &self.kernels.sum_chunks, tasks.len() as u32, 0, &params) }
    }

    /// Adds f32 sums of all rows of the documents to a gradient of another type, or overwrites it.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], behind the work that writes the sums.
    pub(in crate::cuda) unsafe fn narrow(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        out: Output,
        sums: &GradientMatrix,
    ) -> Result<()> {
        let tasks = self.plan.narrowed.clone();
        // SAFETY: the caller's promise.
        unsafe { self.run_sum(entered, stream, out, sums.address, tasks, [1, sums.rows as u32]) }
    }

    /// Fills the queries' gradient with zeros, where it is overwritten and rows have no pairs.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`].
    pub(in crate::cuda) unsafe fn clear_queries(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
    ) -> Result<()> {
        match call.adds[0] || self.covers_queries {
            true => Ok(()),
            // SAFETY: the caller's promise.
            false => unsafe { call.sides[0].clear(entered, stream) },
        }
    }

    /// # Safety
    /// As [`CudaBackward::run_queries`].
    unsafe fn run_documents(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        sorted: &SortedKernels,
        workspace: u64,
    ) -> Result<()> {
        let [_, gradient] = call.sides;
        // SAFETY: as in `run_queries`.
        unsafe {
            // Rows that no query token chose are not written again.
            if !call.adds[1] {
                gradient.clear(entered, stream)?;
            }
            let Some(pairs) = &self.plan.document_pairs else { return Ok(()) };
            let pairs = self.pairs(call, pairs, self.lists.document_order, call.norms[0]);
            let mut left = None;
            for group in &self.plan.groups {
                left =
                    self.run_group(entered, stream, call, &pairs, group, left, sorted, workspace)?;
            }
            left.map_or(Ok(()), |params| self.run_fixup(entered, stream, &params, sorted))
        }
    }

    /// Enqueues a group and the fixup of the one before; returns the fixup that this one needs.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], in the order of the groups.
    #[allow(clippy::too_many_arguments)] // those of `run_documents`, and what it goes through
    pub(in crate::cuda) unsafe fn run_group(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        pairs: &Pairs,
        group: &Group,
        left: Option<SegmentedSumParams>,
        sorted: &SortedKernels,
        workspace: u64,
    ) -> Result<Option<SegmentedSumParams>> {
        let at = self.group_workspace(group, workspace);
        let row_bytes = self.dim as u64 * 4;
        let sort = SortParams {
            pairs: *pairs,
            tasks: self.lists.sorts + u64::from(group.tasks.start) * size_of::<SortTask>() as u64,
            counts: at.counts,
            warp_counts: at.warp_counts,
            list: at.list,
            destinations: at.destinations,
        };
        let params = self.segmented_sum_params(call, group, &at);
        let n_tasks = group.tasks.len() as u32;
        let n_sum_blocks = (group.n_segments * params.source.n_columns).div_ceil(backward::WARPS);
        let shared_bytes = backward::shared_bytes(group.window_rows) as u32;
        // SAFETY: the workspace has room for what the group's kernels pass to each other; as in
        // `run_queries`.
        unsafe {
            // The fixup of the group before runs in the launch that counts, unless counting writes
            // what the fixup still reads.
            let (first, beside_counts) = match left {
                Some(left) if group.n_counts > 0 && at.spares(&left) => (None, Some(left)),
                left => (left, None),
            };
            if let Some(left) = first {
                self.run_fixup(entered, stream, &left, sorted)?;
            }
            if let Some(Carry { is_first: true, n_rows, .. }) = group.carry {
                fill(entered, at.carry, 0, u64::from(n_rows) * row_bytes, stream)?;
            }
            if group.n_counts > 0 {
                // Where no block runs a fixup, its parameters are not read.
                let fixup = beside_counts.unwrap_or(params);
                let count = CountParams { sort, fixup, n_tasks, reserved: 0 };
                let n_blocks = n_tasks + beside_counts.map_or(0, |left| n_fixup_blocks(&left));
                let shared_bytes = backward::count_shared_bytes(group.window_rows) as u32;
                start(entered, stream, &sorted.count, n_blocks, shared_bytes, &count)?;
            }
            start(entered, stream, &sorted.sort, n_tasks, shared_bytes, &sort)?;
            start(entered, stream, &sorted.segmented_sum, n_sum_blocks, 0, &params)?;
            let Some(carry) = &group.carry else { return Ok(Some(params)) };
            self.run_fixup(entered, stream, &params, sorted)?;
            if carry.is_last {
                let (out, tasks) = (call.sides[1].output(call.adds[1]), carry.tasks.clone());
                self.run_sum(entered, stream, out, at.carry, tasks, [1, carry.n_rows])?;
            }
            Ok(None)
        }
    }

    /// Enqueues the fixup of a group: adds the partial sums of rows that span segments.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], behind the group's sums.
    pub(in crate::cuda) unsafe fn run_fixup(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        params: &SegmentedSumParams,
        sorted: &SortedKernels,
    ) -> Result<()> {
        let shared_bytes = backward::FIXUP_SHARED_BYTES as u32;
        // SAFETY: the caller's promise.
        unsafe {
            start(entered, stream, &sorted.fixup, n_fixup_blocks(params), shared_bytes, params)
        }
    }

    /// The parameters of the kernels that sum a group's sorted sources.
    fn segmented_sum_params(
        &self,
        call: &Sums<'_>,
        group: &Group,
        at: &GroupWorkspace,
    ) -> SegmentedSumParams {
        SegmentedSumParams {
            source: call.queries.rows(),
            out: match &group.carry {
                None => call.sides[1].output(call.adds[1] || group.is_pass),
                Some(_) => output(at.carry, ElementType::F32, self.dim, true),
            },
            list: at.list,
            destinations: at.destinations,
            heads: at.heads,
            tails: at.tails,
            lasts: at.lasts,
            n_sources: group.n_sources,
            n_destinations: group.n_destinations,
            segment_len: group.segment_len,
            n_segments: group.n_segments,
            first_row: group.carry.as_ref().map_or(call.first_row, |carry| carry.first_row),
            reserved: 0,
        }
    }
}

/// Number of CTAs of a group's fixup.
fn n_fixup_blocks(params: &SegmentedSumParams) -> u32 {
    params.n_segments.div_ceil(backward::WARPS)
}
