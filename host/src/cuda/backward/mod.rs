//! Gradients on a device: prepared calls with their lists in device memory, and their kernels.

#[allow(unsafe_code)]
mod atomic;
#[allow(unsafe_code)]
mod launches;
mod lists;
mod plan;
#[allow(unsafe_code)]
mod project;
#[allow(unsafe_code)]
pub(in crate::cuda) mod projected;
pub(in crate::cuda) mod projection;
#[allow(unsafe_code)]
mod recompute;
#[allow(unsafe_code)]
pub(in crate::cuda) mod residual;
mod sides;
mod workspace;

#[cfg(test)]
mod emulated;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod residual_tests;

use std::sync::Arc;

use maxsim_kernels::abi::params::backward;
use maxsim_kernels::abi::params::backward::residual::ResidualGatherParams;
use maxsim_kernels::abi::params::backward::{
    AtomicParams, CountParams, GatherParams, ProjectParams, RowNormsParams, SegmentedSumParams,
    ShortQueryParams, SortParams, SumParams,
};
use maxsim_kernels::table::Resources;
use maxsim_kernels::table::auxiliary::{
    COUNT, FIXUP, GATHER, GATHER_CODES, PROJECT, RESIDUAL_GATHER, ROW_NORMS, SEGMENTED_SUM,
    SHORT_QUERY, SORT, SUM_CHUNKS,
};

use self::lists::Lists;
use self::plan::{GradientPlan, Shape};
use self::recompute::Recompute;
use self::residual::window_rows_max;
use crate::cuda::buffers::gradients::CudaGradScores;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::BackwardCall;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::stream::{CudaStream, Order};
use crate::error::Result;
use crate::plan::backward::BackwardKind;
use crate::plan::backward::Gathered;
use crate::plan::choice::Chosen;
use crate::problem::Problem;
use crate::problem::outputs::GradientMatrix;
use crate::problem::outputs::OutputShape;
use crate::tokens::element::ElementType;

/// Bytes of the workspace's parts, 32 MB together with the counters: sorted sources with their
/// destinations; sums over parts of rows; sums over several passes. Counts have the rest.
const LIST_BYTES_MAX: u64 = 20 << 20;
const PARTS_BYTES_MAX: u64 = 5 << 20;
const CARRY_BYTES_MAX: u64 = 3 << 18;

/// Sources that one CTA sorts, where several do.
const TASK_SOURCES: u64 = backward::WARP_SOURCES as u64 * backward::WARPS as u64;

/// A prepared gradient call: its lists on the device, and its kernels.
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
    /// Whether every row of the queries has pairs, so that their gradient need not be cleared.
    pub(super) covers_queries: bool,
    /// Whether every row of the documents is in a task of the plan's `short_query_tasks`.
    short_queries_cover_documents: bool,
    /// Bytes of the documents' gradient in f32, where it is summed in the workspace and then
    /// narrowed.
    pub(super) sums_bytes: u64,
    /// The calls that compute winners again, for `BackwardStrategy::Recompute`. Of the other fields
    /// only the narrowing is used then.
    again: Option<Recompute>,
    /// Element type of the gradients, and rows of both sides.
    gradient: ElementType,
    rows: [usize; 2],
    /// Whether queries and documents get gradients.
    wanted: [bool; 2],
    /// The kernel that projects gradients of normalised rows to those of the rows as given, and
    /// multiplies by weights, where rows are normalised or have weights.
    project: Option<Kernel<ProjectParams>>,
    /// Whether it makes the gradients of queries, and those of documents.
    projects: [bool; 2],
    /// Whether rows of zeros have no gradient: of angular scores.
    angular: bool,
    /// Whether query tokens have weights.
    weighted: bool,
    /// Kernel that finds what rows of foreign memory are normalised by, where rows are.
    row_norms: Option<Kernel<RowNormsParams>>,
}

#[derive(Clone, Debug)]
pub(super) struct Kernels {
    /// Adds sums over chunks of pairs.
    pub sum_chunks: Kernel<SumParams>,
    pub winners: WinnerKernels,
}

/// The kernels that read the winners.
#[derive(Clone, Debug)]
pub(super) enum WinnerKernels {
    /// Gathers ∂Q, and sorts winners by document row for ∂D.
    Sorted(Box<SortedKernels>),
    /// Adds to both gradients with atomics, in one pass.
    Atomic(Kernel<AtomicParams>),
}

/// The kernels of the deterministic strategy: gather, counting sort, segmented sum, fixup.
#[derive(Clone, Copy, Debug)]
pub(super) struct SortedKernels {
    gather: GatherKernel,
    segmented_sum: Kernel<SegmentedSumParams>,
    count: Kernel<CountParams>,
    sort: Kernel<SortParams>,
    /// The kernel for short queries, whose winners are not sorted.
    short_query: Option<Kernel<ShortQueryParams>>,
    fixup: Kernel<SegmentedSumParams>,
}

/// The kernel that gathers ∂Q.
#[derive(Clone, Copy, Debug)]
enum GatherKernel {
    /// Gathers elements or codes.
    Rows(Kernel<GatherParams>),
    /// Gathers residual-compressed documents.
    Residuals(Kernel<ResidualGatherParams>),
}

impl WinnerKernels {
    /// The kernel that takes most of the time.
    fn main(&self) -> &Resources {
        match self {
            WinnerKernels::Sorted(sorted) => sorted.segmented_sum.entry().resources(),
            WinnerKernels::Atomic(kernel) => kernel.entry().resources(),
        }
    }
}

/// The inputs and outputs of a sum over winners.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums<'a> {
    pub queries: &'a CudaTokens,
    pub documents: &'a CudaTokens,
    pub outputs: &'a CudaOutputs,
    pub grad_scores: &'a CudaGradScores,
    /// The matrices that the sums are written to.
    pub sides: [GradientMatrix; 2],
    /// The documents' row that those of the documents start with.
    pub first_row: u32,
    /// Whether the sums of queries, and those of documents, are added to what is there.
    pub adds: [bool; 2],
    /// Addresses of the row scales of queries and documents: r of normalised rows, scales of codes,
    /// weights of query tokens or their products; 0 = none.
    pub norms: [u64; 2],
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

    /// Computes gradients from winners that `chosen` finds again, at most `bytes_max` of them at
    /// once.
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
        let BackwardKind { gradient, is_atomic, normalizes, weighted, documents, sides, .. } = kind;
        let are_elements = documents == Gathered::Elements;
        debug_assert!(are_elements || !is_atomic && !normalizes && again.is_none());
        let are_residuals = documents == Gathered::Residuals;
        let mut kernels = match is_atomic {
            false => device.owner_kernels(element, documents)?,
            true => device.atomic_kernels(element)?,
        };
        let n_resident = device.blocks_per_multiprocessor(kernels.winners.main(), 0)?;
        let n_blocks = n_resident * device.limits().n_multiprocessors;
        let shape = Shape {
            element_bytes: element.size_bytes(),
            gathered_bytes: match are_elements {
                true => element.size_bytes(),
                false => backward::CODE_BYTES,
            },
            // The sums of normalised rows are f32 in any case, and become the gradient later.
            adds_in_place: gradient == ElementType::F32 || normalizes,
            n_warps: n_blocks * backward::WARPS as usize,
            list_bytes_max: LIST_BYTES_MAX,
            parts_bytes_max: PARTS_BYTES_MAX,
            carry_bytes_max: CARRY_BYTES_MAX,
            task_sources: TASK_SOURCES,
            few_sources: if are_residuals { 0 } else { backward::FEW_SOURCES },
            rows_max: if are_residuals { window_rows_max(problem.dim()) } else { usize::MAX },
        };
        let plan = match &again {
            Some(again) if again.narrows() => GradientPlan::narrowing(problem),
            Some(_) => GradientPlan::default(),
            None if is_atomic => GradientPlan::atomic(problem, &shape)?,
            None => GradientPlan::of_sides(problem, &shape, sides)?,
        };
        if let (WinnerKernels::Sorted(sorted), false) =
            (&mut kernels.winners, plan.short_query_tasks.is_empty())
        {
            sorted.short_query = Some(device.kernel_of(&SHORT_QUERY, element)?);
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
            short_queries_cover_documents: plan.n_short_query_rows == problem.documents().rows(),
            sums_bytes,
            plan,
            again,
            gradient,
            rows: [problem.queries().rows(), problem.documents().rows()],
            wanted: sides,
            project: (normalizes || weighted)
                .then(|| device.kernel_of(&PROJECT, element))
                .transpose()?,
            projects: [normalizes || weighted, normalizes],
            angular: kind.angular,
            weighted,
            row_norms: normalizes.then(|| device.kernel_of(&ROW_NORMS, element)).transpose()?,
        })
    }

    /// Enqueues the call. Allocates nothing once the stream's workspace has grown.
    ///
    /// Handles, scores and gradients must be those of the work; `Stream` checks them.
    pub(crate) fn enqueue(&self, stream: &mut CudaStream, call: &BackwardCall<'_>) -> Result<()> {
        self.check(call.queries, call.documents)?;
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        self.prepare_row_scales(call.queries, call.documents, Some(order))?;
        let tokens = [call.queries, call.documents];
        let workspace = match self.workspace_bytes_of(call.adds, tokens) {
            0 => 0,
            len_bytes => stream.workspace(&entered, order, len_bytes)?,
        };
        let hazards = [
            Some(call.outputs.hazard().as_ref()),
            Some(call.grad_scores.hazard().as_ref()),
            Some(call.gradients.hazard().as_ref()),
            self.own_hazard().map(AsRef::as_ref),
        ];
        // SAFETY: handles, scores and gradients are those of the work (the caller's check), in
        // this context; only this stream uses its workspace, and the hazards order its use of the
        // rest.
        let run = || unsafe { self.run(&entered, stream.raw(), call, workspace) };
        Hazard::enqueue_all(hazards, &entered, stream, order, run)
    }

    /// The hazard of the winners that are found again, which all calls of the work share.
    pub(super) fn own_hazard(&self) -> Option<&Arc<Hazard>> {
        self.again.as_ref().map(Recompute::hazard)
    }

    /// Refuses handles that the work cannot take.
    pub(crate) fn check(&self, queries: &CudaTokens, documents: &CudaTokens) -> Result<()> {
        match &self.again {
            Some(again) => again.check(queries, documents),
            None => Ok(()),
        }
    }

    /// Prepares the row scales that the kernels read, so that [`CudaBackward::run`] allocates
    /// nothing.
    pub(super) fn prepare_row_scales(
        &self,
        queries: &CudaTokens,
        documents: &CudaTokens,
        order: Option<Order>,
    ) -> Result<()> {
        if self.row_norms.is_none() {
            return Ok(());
        }
        [queries, documents]
            .iter()
            .try_for_each(|side| side.prepare_row_scales(&self.device, order))
    }
}

impl CudaDevice {
    /// The kernels of
    /// [`BackwardStrategy::Deterministic`](crate::training::BackwardStrategy::Deterministic).
    fn owner_kernels(&self, element: ElementType, documents: Gathered) -> Result<Kernels> {
        let gather = match documents {
            Gathered::Elements => GatherKernel::Rows(self.kernel_of(&GATHER, element)?),
            Gathered::Codes => GatherKernel::Rows(self.kernel(GATHER_CODES)?),
            Gathered::Residuals => {
                GatherKernel::Residuals(self.kernel_of(&RESIDUAL_GATHER, element)?)
            }
        };
        Ok(Kernels {
            sum_chunks: self.kernel(SUM_CHUNKS)?,
            winners: WinnerKernels::Sorted(Box::new(SortedKernels {
                gather,
                segmented_sum: self.kernel_of(&SEGMENTED_SUM, element)?,
                count: self.kernel(COUNT)?,
                sort: self.kernel(SORT)?,
                short_query: None,
                fixup: self.kernel(FIXUP)?,
            })),
        })
    }
}
