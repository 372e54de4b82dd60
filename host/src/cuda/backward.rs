//! Gradients on a device: a call's lists there, and the kernels that run them.

use std::ops::Range;
use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::gradient::{
    self, CountParams, FewParams, GatherParams, Output, OwnerParams, PairSlot, Pairs,
    ProjectParams, RowTask, Rows, SortParams, SortTask, SumParams, columns,
};
use maxsim_kernels::residual_gradient::{self, ResidualGatherParams};

use super::context::{CudaDevice, Entered};
use super::gradient_plan::{Carry, GradientPlan, Group, Shape, SidePairs};
use super::gradients::{CudaGradScores, CudaGradients, GradientMatrix, output};
use super::launch::{N_COUNTERS, start};
use super::memory::{Buffer, fill};
use super::module::Kernel;
use super::outputs::CudaOutputs;
use super::recompute::Recompute;
use super::residual_gradients::window_rows_max;
use super::stream::{CudaStream, Order};
use super::tokens::{CudaTokens, regular_len};
use super::turn::Turns;
use super::upload::upload;
use crate::element::ElementType;
use crate::error::Result;
use crate::format::TokenFormat;
use crate::plan::Chosen;
use crate::problem::Problem;
use crate::warm_up::gradient_row;
use crate::work::OutputShape;

/// Bytes of the workspace's parts, 32 MB together with the counters: sorted sources with their
/// destinations; sums over parts of rows; sums over several passes. Counts take what is left.
const LIST_BYTES_MAX: u64 = 20 << 20;
const PARTS_BYTES_MAX: u64 = 5 << 20;
const CARRY_BYTES_MAX: u64 = 3 << 18;

/// Sources that one block sorts, where there are several.
const TASK_SOURCES: u64 = gradient::WARP_SOURCES as u64 * gradient::WARPS as u64;

/// Parts of the workspace start at multiples of this.
const ALIGN_BYTES: u64 = 256;

/// A gradient call made ready: its lists on the device, and its kernels.
#[derive(Debug)]
pub(crate) struct CudaBackward {
    device: Arc<CudaDevice>,
    dim: usize,
    winner_bytes: usize,
    row_len: u32,
    documents: Gathered,
    pub(super) kernels: Kernels,
    pub(super) plan: GradientPlan,
    pub(super) lists: Lists,
    /// Whether every row of the queries has pairs, so that nothing must be cleared.
    pub(super) covers_queries: bool,
    /// Whether every row of the documents is in a task of the plan's `few`.
    few_cover_documents: bool,
    /// Bytes of the documents' gradient in f32, where it is summed there and then narrowed.
    pub(super) sums_bytes: u64,
    /// Where winners are found again: what does so. Of what is here, narrowing is all that is used then.
    again: Option<Recompute>,
    /// Element type of the gradients, and rows of both sides.
    gradient: ElementType,
    rows: [usize; 2],
    /// Where rows are normalised: what goes from their gradients to those of the rows as given.
    project: Option<Kernel>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    /// Sums over pairs; where winners are not sorted, it adds to the documents' gradient, too.
    pub pairs: Kernel,
    pub sum: Kernel,
    pub sorted: Option<SortedKernels>,
}

/// What sorts winners, and sums over what is sorted.
#[derive(Clone, Copy, Debug)]
pub(super) struct SortedKernels {
    owner: Kernel,
    count: Kernel,
    invert: Kernel,
    /// Where documents have few winners, which are not sorted then.
    few: Option<Kernel>,
    join: Kernel,
}

/// Where the lists are; 0 = absent.
#[derive(Debug)]
pub(super) struct Lists {
    slots: u64,
    pub query_order: u64,
    pub document_order: u64,
    query_token_base: u64,
    pub rows: u64,
    sorts: u64,
    few: u64,
    _memory: Buffer,
}

/// What a call is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardCall<'a> {
    pub queries: &'a CudaTokens,
    pub documents: &'a CudaTokens,
    pub outputs: &'a CudaOutputs,
    pub grad_scores: &'a CudaGradScores,
    pub gradients: &'a CudaGradients,
    pub adds: bool,
}

/// What kernels sum over winners.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums<'a> {
    pub queries: &'a CudaTokens,
    pub documents: &'a CudaTokens,
    pub outputs: &'a CudaOutputs,
    pub grad_scores: &'a CudaGradScores,
    /// Where sums go.
    pub sides: [GradientMatrix; 2],
    /// The documents' row that those of the documents start with.
    pub first_row: u32,
    pub adds: bool,
    /// What the rows of queries and documents are normalised by, or codes multiplied by; 0 = nothing.
    pub norms: [u64; 2],
}

/// What the documents' rows are read from for the queries' gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gathered {
    /// The elements that were scored.
    Elements,
    /// INT8 codes of them, which only an owner can sum, as they are.
    Codes,
    /// Residuals, which are decoded; the documents' gradient is there some rows at a time
    /// ([`CudaBackward::run_windows`]).
    Residuals,
}

impl Gathered {
    /// What tokens of a format are read as.
    pub(crate) fn of(format: TokenFormat) -> Gathered {
        match format {
            TokenFormat::Int8 => Gathered::Codes,
            TokenFormat::Residual(_) => Gathered::Residuals,
            _ => Gathered::Elements,
        }
    }
}

/// What gradients are wanted, beyond those of a problem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardKind {
    /// Element type of the gradients.
    pub gradient: ElementType,
    /// Whether rows are added to as they come.
    pub is_atomic: bool,
    /// Whether rows are normalised.
    pub normalizes: bool,
    /// What calls are given of the documents.
    pub documents: Gathered,
}

/// Bytes of the documents' gradient in f32.
pub(super) fn document_sums_bytes(problem: &Problem<'_>) -> u64 {
    problem.documents().rows() as u64 * problem.dim() as u64 * 4
}

impl CudaBackward {
    /// Builds and uploads the lists, and loads the kernels, for winners that are read.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        element: ElementType,
        kind: BackwardKind,
        outputs: &OutputShape,
    ) -> Result<CudaBackward> {
        CudaBackward::of(device, problem, element, kind, outputs, None)
    }

    /// The same for winners that `chosen` finds again, at most `bytes_max` of them at once.
    pub(crate) fn recompute(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        element: ElementType,
        kind: BackwardKind,
        outputs: &OutputShape,
        (chosen, bytes_max): (Chosen, u64),
    ) -> Result<CudaBackward> {
        let again = Recompute::new(device, problem, element, kind, outputs, chosen, bytes_max)?;
        CudaBackward::of(device, problem, element, kind, outputs, Some(again))
    }

    fn of(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        element: ElementType,
        kind: BackwardKind,
        outputs: &OutputShape,
        again: Option<Recompute>,
    ) -> Result<CudaBackward> {
        let BackwardKind { gradient, is_atomic, normalizes, documents } = kind;
        let are_elements = documents == Gathered::Elements;
        debug_assert!(are_elements || !is_atomic && !normalizes && again.is_none());
        let are_residuals = documents == Gathered::Residuals;
        let mut kernels = match is_atomic {
            false => device.owner_kernels(element, documents)?,
            true => device.atomic_kernels(element)?,
        };
        let main = kernels.sorted.map_or(kernels.pairs, |sorted| sorted.owner);
        let n_resident = device.blocks_per_multiprocessor(main, 0)?;
        let n_blocks = n_resident * device.limits().n_multiprocessors;
        let shape = Shape {
            element_bytes: element.size_bytes(),
            gathered_bytes: match are_elements {
                true => element.size_bytes(),
                false => gradient::CODE_BYTES,
            },
            // Of normalised rows sums are f32 in any case, and become the gradient later.
            adds_in_place: gradient == ElementType::F32 || normalizes,
            n_warps: n_blocks * gradient::WARPS as usize,
            list_bytes_max: LIST_BYTES_MAX,
            parts_bytes_max: PARTS_BYTES_MAX,
            carry_bytes_max: CARRY_BYTES_MAX,
            task_sources: TASK_SOURCES,
            few_sources: if are_residuals { 0 } else { gradient::FEW_SOURCES },
            rows_max: if are_residuals { window_rows_max(problem.dim()) } else { usize::MAX },
        };
        let plan = match &again {
            Some(again) if again.narrows() => GradientPlan::narrowing(problem),
            Some(_) => GradientPlan::default(),
            None if is_atomic => GradientPlan::atomic(problem, &shape)?,
            None => GradientPlan::new(problem, &shape)?,
        };
        if let (Some(sorted), false) = (&mut kernels.sorted, plan.few.is_empty()) {
            let few = gradient::FEW.on(device.limits().capability)[gradient_row(element)];
            sorted.few = Some(device.gradient_kernel(few)?);
        }
        let sums_bytes = match plan.narrowed.is_empty() {
            true => 0,
            false => document_sums_bytes(problem),
        };
        Ok(CudaBackward {
            device: device.clone(),
            dim: problem.dim(),
            winner_bytes: outputs.winner_bytes,
            row_len: problem.shape().row_len().unwrap_or(0) as u32,
            documents,
            kernels,
            lists: Lists::upload(device, problem, &plan)?,
            covers_queries: plan.n_rows as usize == problem.queries().rows(),
            few_cover_documents: plan.n_few_rows == problem.documents().rows(),
            sums_bytes,
            plan,
            again,
            gradient,
            rows: [problem.queries().rows(), problem.documents().rows()],
            project: normalizes
                .then(|| device.gradient_kernel(gradient::PROJECT[gradient_row(element)]))
                .transpose()?,
        })
    }

    /// Enqueues the call. Allocates nothing once the stream's workspace has grown.
    ///
    /// Handles, scores and gradients must be those of the work; `Stream` checks them.
    pub(crate) fn enqueue(&self, stream: &mut CudaStream, call: &BackwardCall<'_>) -> Result<()> {
        self.check(call.queries, call.documents)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        self.prepare_norms(call.queries, call.documents, Some(order))?;
        let workspace = match self.workspace_bytes(call.adds) {
            0 => 0,
            len_bytes => stream.workspace(order, len_bytes)?,
        };
        let turns = Turns::begin_each(
            [
                Some(call.outputs.turns().as_ref()),
                Some(call.grad_scores.turns().as_ref()),
                Some(call.gradients.turns().as_ref()),
                self.own_turns().map(AsRef::as_ref),
            ],
            &entered,
            stream,
            order,
        )?;
        // SAFETY: handles, scores and gradients are those of the work (the caller's check), in
        // this context; only this stream uses its workspace, and it is this call's turn to use
        // the rest.
        let result = unsafe { self.run(&entered, stream.raw(), call, workspace) };
        // Even after an error, launches before it may be running.
        let ended = turns.into_iter().flatten().try_for_each(|turn| turn.end(&entered, stream));
        result.and(ended)
    }

    /// The turns of the winners that are found again, which all calls of the work share.
    pub(super) fn own_turns(&self) -> Option<&Arc<Turns>> {
        self.again.as_ref().map(Recompute::turns)
    }

    /// Refuses handles that the work cannot take.
    pub(crate) fn check(&self, queries: &CudaTokens, documents: &CudaTokens) -> Result<()> {
        match &self.again {
            Some(again) => again.check(queries, documents),
            None => Ok(()),
        }
    }

    /// Makes ready what the work needs of its handles, so that [`CudaBackward::run`] allocates
    /// nothing.
    pub(super) fn prepare_norms(
        &self,
        queries: &CudaTokens,
        documents: &CudaTokens,
        order: Option<Order>,
    ) -> Result<()> {
        if self.project.is_none() {
            return Ok(());
        }
        [queries, documents].iter().try_for_each(|side| side.prepare_norms(&self.device, order))
    }

    /// Bytes of workspace that a call of the work needs.
    pub(crate) fn workspace_bytes(&self, adds: bool) -> u64 {
        if let Some(again) = &self.again {
            return again.workspace_bytes(adds);
        }
        let (_, end) = self.normalized_places(adds);
        match end {
            0 => 0,
            // The counters are other works' too: nothing else is stored where they are.
            end => N_COUNTERS * 4 + end,
        }
    }

    /// Where behind the counters the sums of normalised rows are that do not go to the gradient first,
    /// and where the last of them end.
    fn normalized_places(&self, adds: bool) -> ([Option<u64>; 2], u64) {
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
    fn sums_of_normalized(
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

    /// Where the parts of the workspace end that sums need on their way.
    fn lists_end(&self) -> u64 {
        let groups = self.plan.groups.iter().map(|group| self.places(group, 0).end);
        groups.max().unwrap_or(0).max(self.sums_start(0) + self.sums_bytes)
    }

    /// Where the sums over chunks of pairs end.
    fn chunks_end(&self, start: u64) -> u64 {
        let plan = &self.plan;
        match plan.n_chunks {
            0 | 1 => start,
            n => start + u64::from(n) * u64::from(plan.n_rows) * self.dim as u64 * 4,
        }
    }

    /// Where the documents' gradient in f32 is, behind those.
    pub(super) fn sums_start(&self, start: u64) -> u64 {
        self.chunks_end(start).next_multiple_of(ALIGN_BYTES)
    }

    /// Where a group's parts of the workspace are.
    fn places(&self, group: &Group, start: u64) -> Places {
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
            warp_counts: place(u64::from(group.n_counts) * u64::from(gradient::WARPS) * 2),
            heads: place(parts_bytes),
            tails: place(parts_bytes),
            lasts: place(u64::from(group.n_segments) * 4),
            end,
        }
    }

    /// Enqueues the work's launches, and what must be filled before them.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; what the call is given must be of the work and
    /// live until the launches have run. Until then nothing else may use the workspace, which
    /// must have [`CudaBackward::workspace_bytes`], or write scores and gradients.
    pub(super) unsafe fn run(
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
    pub(super) unsafe fn run_saved(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &BackwardCall<'_>,
        outputs: &CudaOutputs,
        (sides, adds): ([GradientMatrix; 2], bool),
        workspace: u64,
    ) -> Result<()> {
        let BackwardCall { queries, documents, grad_scores, .. } = *call;
        let free = workspace + N_COUNTERS * 4;
        let norms = [0; 2];
        let mut sums =
            Sums { queries, documents, outputs, grad_scores, sides, first_row: 0, adds, norms };
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(project) = self.project {
                queries.refresh_norms(entered, stream)?;
                documents.refresh_norms(entered, stream)?;
                sums.norms = [queries, documents].map(CudaTokens::norms_address);
                (sums.sides, sums.adds) = (self.sums_of_normalized(sides, adds, free), false);
                self.run_sums(entered, stream, &sums, free)?;
                return self.run_project(entered, stream, &sums, (sides, adds), project);
            }
            if self.documents == Gathered::Codes {
                // Scales are there from the start.
                sums.norms[1] = documents.norms_address();
            }
            self.run_sums(entered, stream, &sums, free)
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
            match &self.kernels.sorted {
                None => self.run_atomic(entered, stream, call, free),
                Some(sorted) => match sorted.few {
                    Some(few) => self.run_few(entered, stream, call, few, free),
                    None => {
                        self.run_queries(entered, stream, call, free)?;
                        self.run_documents(entered, stream, call, sorted, free)
                    }
                },
            }
        }
    }

    /// Enqueues what goes from gradients of normalised rows to those of rows.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], behind the sums.
    unsafe fn run_project(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        sums: &Sums<'_>,
        (sides, adds): ([GradientMatrix; 2], bool),
        project: Kernel,
    ) -> Result<()> {
        for (side, tokens) in [sums.queries, sums.documents].into_iter().enumerate() {
            let out = sides[side];
            let params = ProjectParams {
                rows: tokens.rows(),
                out: out.output(adds),
                sums: sums.sides[side].address,
                norms: sums.norms[side],
                n_rows: out.rows as u32,
                reserved: 0,
            };
            let n_blocks = params.n_rows.div_ceil(gradient::WARPS);
            if n_blocks > 0 {
                // SAFETY: sums and gradient have the tokens' rows; the caller's promise.
                unsafe { start(entered, stream, project, n_blocks, 0, &params)? };
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`CudaBackward::run`], with the workspace behind the counters.
    pub(super) unsafe fn run_queries(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
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
            let out = gradient.output(call.adds);
            let params = self.gather_params(call, pairs, out, workspace);
            let (kernel, grid) = (self.kernels.pairs, self.n_gather_blocks(&params));
            match &call.documents.residuals {
                None => start(entered, stream, kernel, grid, 0, &params)?,
                Some(residuals) => {
                    let params =
                        ResidualGatherParams { sums: params, documents: residuals.params() };
                    start(entered, stream, kernel, grid, 0, &params)?;
                }
            }
            self.add_chunks(entered, stream, out, workspace)
        }
    }

    /// Both sides in one launch, where documents have few sources; in two where those of the queries are
    /// codes.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`].
    unsafe fn run_few(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        few: Kernel,
        workspace: u64,
    ) -> Result<()> {
        let [queries, documents] = call.sides;
        let plan = &self.plan;
        let (Some(query_pairs), Some(document_pairs)) = (&plan.query_pairs, &plan.document_pairs)
        else {
            return Ok(());
        };
        let fills = !call.adds && self.few_cover_documents;
        let out = queries.output(call.adds);
        let params = FewParams {
            pairs: self.pairs(call, document_pairs, self.lists.document_order, call.norms[0]),
            source: call.queries.rows(),
            out: documents.output(call.adds),
            tasks: self.lists.few,
            n_tasks: plan.few.len() as u32,
            fills: u32::from(fills),
            gather: self.gather_params(call, query_pairs, out, workspace),
        };
        let n_few_blocks = params.n_tasks * params.source.n_columns;
        // Without blocks to sum over pairs, what is said of it does not matter.
        let are_elements = self.documents == Gathered::Elements;
        let n_gather_blocks = match are_elements {
            true => self.n_gather_blocks(&params.gather),
            false => 0,
        };
        let grid = n_few_blocks + n_gather_blocks;
        let shared_bytes = gradient::FEW_SHARED_BYTES as u32;
        // SAFETY: the lists were made for this problem; the caller's promise for the rest.
        unsafe {
            match are_elements {
                true => self.clear_queries(entered, stream, call)?,
                false => self.run_queries(entered, stream, call, workspace)?,
            }
            if !call.adds && !fills {
                documents.clear(entered, stream)?;
            }
            start(entered, stream, few, grid, shared_bytes, &params)?;
            match are_elements {
                true => self.add_chunks(entered, stream, out, workspace),
                false => Ok(()),
            }
        }
    }

    /// What sums over pairs; chunks of them are left in the workspace.
    pub(super) fn gather_params(
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
                    let (lanes_log2, n_columns) = columns(self.dim * gradient::CODE_BYTES);
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

    pub(super) fn n_gather_blocks(&self, params: &GatherParams) -> u32 {
        params.n_tasks * params.source.n_columns * params.n_chunks
    }

    /// Adds the chunks of sums over pairs, where there are several.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], behind what left them in the workspace.
    pub(super) unsafe fn add_chunks(
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

    /// Adds chunks of f32 sums `[n_chunks, n_rows, dim]` from `parts` on, whose rows some tasks list.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], behind what leaves these sums there.
    pub(super) unsafe fn run_sum(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        out: Output,
        parts: u64,
        tasks: Range<u32>,
        [n_chunks, n_rows]: [u32; 2],
    ) -> Result<()> {
        let first = u64::from(tasks.start) * size_of::<RowTask>() as u64;
        let params = SumParams { out, parts, tasks: self.lists.rows + first, n_chunks, n_rows };
        // SAFETY: the caller's promise.
        unsafe { start(entered, stream, self.kernels.sum, tasks.len() as u32, 0, &params) }
    }

    /// Adds f32 sums of all rows of the documents to a gradient of another type, or overwrites it.
    ///
    /// # Safety
    /// As [`CudaBackward::run`], behind what leaves the sums.
    pub(super) unsafe fn narrow(
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
    pub(super) unsafe fn clear_queries(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
    ) -> Result<()> {
        match call.adds || self.covers_queries {
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
            // Rows that nobody chose are not written again.
            if !call.adds {
                gradient.clear(entered, stream)?;
            }
            let Some(pairs) = &self.plan.document_pairs else { return Ok(()) };
            let pairs = self.pairs(call, pairs, self.lists.document_order, call.norms[0]);
            let mut left = None;
            for group in &self.plan.groups {
                left =
                    self.run_group(entered, stream, call, &pairs, group, left, sorted, workspace)?;
            }
            left.map_or(Ok(()), |params| self.run_join(entered, stream, &params, sorted))
        }
    }

    /// Enqueues a group, and what the one before has left to be joined; gives what this one leaves.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], in the order of the groups.
    #[allow(clippy::too_many_arguments)] // those of `run_documents`, and what it goes through
    pub(super) unsafe fn run_group(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        call: &Sums<'_>,
        pairs: &Pairs,
        group: &Group,
        left: Option<OwnerParams>,
        sorted: &SortedKernels,
        workspace: u64,
    ) -> Result<Option<OwnerParams>> {
        let places = self.places(group, workspace);
        let row_bytes = self.dim as u64 * 4;
        let sort = SortParams {
            pairs: *pairs,
            tasks: self.lists.sorts + u64::from(group.tasks.start) * size_of::<SortTask>() as u64,
            counts: places.counts,
            warp_counts: places.warp_counts,
            list: places.list,
            destinations: places.destinations,
        };
        let params = self.owner_params(call, group, &places);
        let n_tasks = group.tasks.len() as u32;
        let n_owner_blocks = (group.n_segments * params.source.n_columns).div_ceil(gradient::WARPS);
        let shared_bytes = gradient::shared_bytes(group.window_rows) as u32;
        // SAFETY: the workspace has room for what the group's kernels leave each other; as in
        // `run_queries`.
        unsafe {
            // Where counting writes what is still to be read, it waits.
            let (first, with_counts) = match left {
                Some(left) if group.n_counts > 0 && places.spares(&left) => (None, Some(left)),
                left => (left, None),
            };
            if let Some(left) = first {
                self.run_join(entered, stream, &left, sorted)?;
            }
            if let Some(Carry { is_first: true, n_rows, .. }) = group.carry {
                fill(entered, places.carry, 0, u64::from(n_rows) * row_bytes, stream)?;
            }
            if group.n_counts > 0 {
                // Without blocks to join, what is said of it does not matter.
                let join = with_counts.unwrap_or(params);
                let count = CountParams { sort, join, n_tasks, reserved: 0 };
                let n_blocks = n_tasks + with_counts.map_or(0, |left| n_join_blocks(&left));
                let shared_bytes = gradient::count_shared_bytes(group.window_rows) as u32;
                start(entered, stream, sorted.count, n_blocks, shared_bytes, &count)?;
            }
            start(entered, stream, sorted.invert, n_tasks, shared_bytes, &sort)?;
            start(entered, stream, sorted.owner, n_owner_blocks, 0, &params)?;
            let Some(carry) = &group.carry else { return Ok(Some(params)) };
            self.run_join(entered, stream, &params, sorted)?;
            if carry.is_last {
                let (out, tasks) = (call.sides[1].output(call.adds), carry.tasks.clone());
                self.run_sum(entered, stream, out, places.carry, tasks, [1, carry.n_rows])?;
            }
            Ok(None)
        }
    }

    /// Joins what a group's segments have left.
    ///
    /// # Safety
    /// As [`CudaBackward::run_queries`], behind the group's sums.
    pub(super) unsafe fn run_join(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        params: &OwnerParams,
        sorted: &SortedKernels,
    ) -> Result<()> {
        let shared_bytes = gradient::JOIN_SHARED_BYTES as u32;
        // SAFETY: the caller's promise.
        unsafe { start(entered, stream, sorted.join, n_join_blocks(params), shared_bytes, params) }
    }

    /// What sums over a group's sorted sources.
    fn owner_params(&self, call: &Sums<'_>, group: &Group, places: &Places) -> OwnerParams {
        OwnerParams {
            source: call.queries.rows(),
            out: match &group.carry {
                None => call.sides[1].output(call.adds || group.is_pass),
                Some(_) => output(places.carry, ElementType::F32, self.dim, true),
            },
            list: places.list,
            destinations: places.destinations,
            heads: places.heads,
            tails: places.tails,
            lasts: places.lasts,
            n_sources: group.n_sources,
            n_destinations: group.n_destinations,
            segment_len: group.segment_len,
            n_segments: group.n_segments,
            first_row: group.carry.as_ref().map_or(call.first_row, |carry| carry.first_row),
            reserved: 0,
        }
    }

    /// Pairs for sums whose sources are rows of the side that is normalised by `source_norms`.
    pub(super) fn pairs(
        &self,
        call: &Sums<'_>,
        pairs: &SidePairs,
        order: u64,
        source_norms: u64,
    ) -> Pairs {
        let (slots, query_step, document_step, score_step) = match *pairs {
            SidePairs::Computed { query_step, document_step, score_step } => {
                (0, query_step, document_step, score_step)
            }
            SidePairs::Listed(_) => (self.lists.slots, 0, 0, 0),
        };
        Pairs {
            queries: call.queries.matrix(),
            documents: call.documents.matrix(),
            slots,
            order,
            query_token_base: self.lists.query_token_base,
            winners: call.outputs.addresses().winners,
            grad_scores: call.grad_scores.address(),
            source_norms,
            winner_bytes: self.winner_bytes as u32,
            row_len: self.row_len,
            query_step,
            document_step,
            score_step,
            reserved: 0,
        }
    }
}

/// Blocks that join a group's rows.
fn n_join_blocks(params: &OwnerParams) -> u32 {
    params.n_segments.div_ceil(gradient::WARPS)
}

impl Places {
    /// Whether counting and what it clears leave in place what another group has still to join.
    fn spares(&self, left: &OwnerParams) -> bool {
        // In this order, and each ends where the next one starts at the latest.
        let written = [(self.carry, self.destinations), (self.counts, self.heads)];
        let end = left.lasts + u64::from(left.n_segments) * 4;
        let destinations_end = left.destinations + u64::from(left.n_destinations) * 8;
        let read = [(left.destinations, destinations_end), (left.heads, end)];
        written.iter().all(|w| read.iter().all(|r| w.1 <= r.0 || r.1 <= w.0))
    }
}

/// Addresses of a group's parts of the workspace.
struct Places {
    carry: u64,
    list: u64,
    destinations: u64,
    counts: u64,
    warp_counts: u64,
    heads: u64,
    tails: u64,
    lasts: u64,
    end: u64,
}

impl CudaDevice {
    /// The kernels of [`Backward::Owner`](crate::Backward::Owner).
    fn owner_kernels(&self, element: ElementType, documents: Gathered) -> Result<Kernels> {
        let (row, capability) = (gradient_row(element), self.limits().capability);
        let gather = match documents {
            Gathered::Elements => gradient::GATHER[row],
            Gathered::Codes => gradient::GATHER_CODES,
            Gathered::Residuals => residual_gradient::GATHER[row],
        };
        Ok(Kernels {
            pairs: self.gradient_kernel(gather)?,
            sum: self.gradient_kernel(gradient::SUM)?,
            sorted: Some(SortedKernels {
                owner: self.gradient_kernel(gradient::OWNER.on(capability)[row])?,
                count: self.gradient_kernel(gradient::COUNT)?,
                invert: self.gradient_kernel(gradient::INVERT)?,
                few: None,
                join: self.gradient_kernel(gradient::JOIN)?,
            }),
        })
    }

    /// One of the kernels of gradients.
    pub(super) fn gradient_kernel(&self, name: &'static str) -> Result<Kernel> {
        let shared_bytes = match name {
            gradient::COUNT => gradient::count_shared_bytes(gradient::WINDOW_ROWS),
            gradient::INVERT => gradient::shared_bytes(gradient::WINDOW_ROWS),
            gradient::JOIN => gradient::JOIN_SHARED_BYTES,
            _ if gradient::FEW.contains(name) => gradient::FEW_SHARED_BYTES,
            residual_gradient::TABLES => residual_gradient::tables_shared_bytes(8),
            _ => 0,
        };
        let n_threads = match name {
            residual_gradient::TABLES => residual_gradient::TABLES_THREADS,
            _ => gradient::THREADS,
        };
        self.load(name, n_threads, shared_bytes)
    }
}

impl Lists {
    /// Copies the lists to the device, in one go.
    fn upload(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        plan: &GradientPlan,
    ) -> Result<Lists> {
        let mut bytes = Vec::new();
        // Offset + 1 of each list; 0 = absent.
        let mut place = |list: &[u8]| {
            if list.is_empty() {
                return 0;
            }
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            let offset = bytes.len() as u64;
            bytes.extend_from_slice(list);
            offset + 1
        };
        let slots: Vec<[u32; 8]> = plan.slots.iter().map(slot_words).collect();
        let row_words =
            |tasks: &[RowTask]| -> Vec<[u32; 8]> { tasks.iter().map(row_words).collect() };
        let (rows, few) = (row_words(&plan.rows), row_words(&plan.few));
        let sorts: Vec<[u32; 16]> = plan.sorts.iter().map(sort_words).collect();
        let order = |pairs: &Option<SidePairs>| match pairs {
            Some(SidePairs::Listed(order)) => order.clone(),
            _ => Vec::new(),
        };
        let is_regular = regular_len(problem.queries().segments()).is_some();
        let offsets = (!is_regular && plan.query_pairs.is_some()).then(|| problem.token_offsets());
        let bases = match (&offsets, problem.shape().row_len()) {
            (Some(offsets), Some(_)) => offsets.bases(),
            _ => &[],
        };
        let places = [
            place(bytemuck::cast_slice(&slots)),
            place(bytemuck::cast_slice(&order(&plan.query_pairs))),
            place(bytemuck::cast_slice(&order(&plan.document_pairs))),
            place(bytemuck::cast_slice(bases)),
            place(bytemuck::cast_slice(&rows)),
            place(bytemuck::cast_slice(&sorts)),
            place(bytemuck::cast_slice(&few)),
        ];
        let memory = upload(device, &bytes)?;
        let [slots, query_order, document_order, query_token_base, rows, sorts, few] =
            places.map(|place| if place == 0 { 0 } else { memory.address() + place - 1 });
        Ok(Lists {
            slots,
            query_order,
            document_order,
            query_token_base,
            rows,
            sorts,
            few,
            _memory: memory,
        })
    }
}

/// A listed pair as the device reads it.
pub(super) fn slot_words(slot: &PairSlot) -> [u32; 8] {
    let [low, high] = [slot.token_base as u32, (slot.token_base >> 32) as u32];
    let [start, len] = [slot.document_start, slot.document_len];
    [low, high, slot.score, slot.query_start, slot.query_len, start, len, 0]
}

/// A task of rows as the device reads it.
fn row_words(task: &RowTask) -> [u32; 8] {
    let RowTask { row, n_rows, first, n_pairs, index, .. } = *task;
    [row, n_rows, first.query, first.document, first.score, n_pairs, index, 0]
}

/// A task as the device reads it.
fn sort_words(task: &SortTask) -> [u32; 16] {
    let SortTask { row, n_rows, first, n_pairs, token_begin, token_end, .. } = *task;
    let SortTask { n_warps, chunk, n_chunks, counts, destination, list, share, .. } = *task;
    let [query, document, score] = [first.query, first.document, first.score];
    [
        row,
        n_rows,
        query,
        document,
        score,
        n_pairs,
        token_begin,
        token_end,
        n_warps,
        chunk,
        n_chunks,
        counts,
        destination,
        list,
        share,
        task.n_sources,
    ]
}
