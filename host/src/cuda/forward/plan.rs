//! Forward plans: a problem with its kernel and its work lists on the device, ready to launch.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::backward::RowNormsParams;
use maxsim_kernels::abi::params::{N_COUNTERS, SumPartialsParams};
use maxsim_kernels::table::auxiliary::{COMBINE_SPLITS, ROW_NORMS, SUM_PARTIALS};
use maxsim_kernels::table::forward::Variant;

use super::document_splits::{CudaSplits, SplitProblem};
use super::lists::{DeviceLists, WorkItems};
use super::params::ForwardKernel;
use super::partition::{CONTIGUOUS_DYNAMIC_TOKENS_MIN, UNIT_TOKENS_MAX};
use super::residual::centroid_scores::CentroidScores;
use super::residual::decoding::{DecodedProblem, Decoding};
use super::work_list::{Launch, Shape, WorkList};
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::CudaDevice;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;
use crate::plan::choice::Chosen;
use crate::plan::stream_k::{BLOCKS_OF_A_CROSS, blocks_of_shares};
use crate::plan::sweep::{DYNAMIC_TOKENS_MIN, is_sweep};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::scores::Scores;
use crate::problem::shape::ScoreShape;

/// Most bytes of partial sums that a launch writes to the workspace.
const PARTIALS_BYTES_MAX: u64 = 32 << 20;

/// A problem made ready for one kernel: checked, with its lists on the device.
#[derive(Debug)]
pub(crate) struct ForwardPlan {
    pub(super) device: Arc<CudaDevice>,
    pub(super) variant: &'static Variant,
    pub(super) kernel: ForwardKernel,
    /// Kernel that adds partial sums, where scores are sums over several query tiles.
    pub(super) sum_partials: Option<Kernel<SumPartialsParams>>,
    /// Kernel that finds what rows of foreign memory are normalised by, where rows are.
    pub(super) row_norms: Option<Kernel<RowNormsParams>>,
    /// Rows of the matrices of queries and documents.
    pub(super) rows: [usize; 2],
    /// Document splits, if any: all but the outputs then describes the problem of the splits.
    pub(super) splits: Option<CudaSplits>,
    /// Kernel of the centroid scores, where the forward kernel reads them.
    pub(super) centroid_scores: Option<CentroidScores>,
    /// Decodes documents before the forward kernel, where that reads decoded ones: lists and
    /// launches are then those of decoded documents.
    pub(super) decoding: Option<Decoding>,
    pub(super) dim: usize,
    pub(super) winner_bytes: usize,
    /// Whether scores are angular; those of splits are not, before they are combined.
    pub(super) angular: bool,
    pub(super) entries_per_query: u32,
    pub(super) entry_stride: u32,
    pub(super) tiles_per_query: u32,
    /// Tokens of every query, where each has the tile of its number; 0 elsewhere.
    pub(super) query_len: u32,
    /// Scores per query of a cross product, 0 for other pairings.
    pub(super) query_stride: u32,
    pub(super) n_partials: u64,
    pub(super) has_unvisited_scores: bool,
    pub(super) launches: Vec<Launch>,
    pub(super) lists: DeviceLists,
    /// What calls that run the plan among other work keep with it.
    pub(in crate::cuda) beside: OnceLock<Arc<dyn Any + Send + Sync>>,
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
        let Chosen { variant, splits, .. } = chosen;
        if variant.decodes_once() {
            let decoded = DecodedProblem::new(problem, variant)?;
            let items = WorkItems::Decoded(&decoded);
            let work = {
                let problem = decoded.problem(problem)?;
                ForwardPlan::of(device, &problem, chosen, outputs, items)?
            };
            return Ok(ForwardPlan {
                decoding: Some(Decoding::new(device, variant, decoded)?),
                ..work
            });
        }
        let Some(splits) = splits else {
            return ForwardPlan::of(device, problem, chosen, outputs, WorkItems::Whole);
        };
        let split = SplitProblem::new(problem, splits)?;
        let problem = split.problem(problem.queries())?;
        let left = OutputShape::of_splits(&problem, outputs.winners);
        let work = ForwardPlan::of(device, &problem, chosen, &left, WorkItems::Splits(&split))?;
        let combine = device.kernel(COMBINE_SPLITS)?;
        let splits = CudaSplits::new(combine, variant, &split, outputs, &left);
        Ok(ForwardPlan { splits: Some(splits), ..work })
    }

    /// Makes the work of a problem, whose documents may be the splits of another one's, with
    /// outputs for the splits' results, or decoded.
    fn of(
        device: &Arc<CudaDevice>,
        problem: &Problem<'_>,
        Chosen { variant, n_centroids, .. }: Chosen,
        outputs: &OutputShape,
        items: WorkItems<'_>,
    ) -> Result<ForwardPlan> {
        let are_splits = matches!(items, WorkItems::Splits(_));
        let kernel = device.forward_kernel(variant)?;
        let shape = launch_shape(device, problem, variant, are_splits)?;
        let list = match items {
            WorkItems::Decoded(decoded) => WorkList::in_pieces(problem, &shape, &decoded.pieces())?,
            _ => WorkList::new(problem, &shape)?,
        };
        let needs_sum = |launch: &Launch| launch.n_parts > 0 && !launch.sums_in_kernel;
        let needs_sum = !are_splits && list.launches.iter().any(needs_sum);
        let sum_partials = needs_sum.then(|| device.kernel(SUM_PARTIALS)).transpose()?;
        let lists = DeviceLists::upload(device, &list, outputs, items, problem.queries())?;
        Ok(ForwardPlan {
            device: device.clone(),
            variant,
            kernel,
            sum_partials,
            splits: None,
            decoding: None,
            centroid_scores: CentroidScores::new(
                device,
                variant,
                list.tiles.n_tiles()?,
                n_centroids,
            )?,
            row_norms: match (variant.reads_norms(), variant.operand) {
                (true, Operand::Element(element)) => Some(device.kernel_of(&ROW_NORMS, element)?),
                _ => None,
            },
            rows: [problem.queries().rows(), problem.documents().rows()],
            dim: problem.dim(),
            winner_bytes: outputs.winner_bytes,
            angular: outputs.angular,
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
            beside: OnceLock::new(),
        })
    }
}

/// Properties of a problem, or of the splits of another one, that a kernel's launches depend on.
fn launch_shape(
    device: &CudaDevice,
    problem: &Problem<'_>,
    variant: &Variant,
    are_splits: bool,
) -> Result<Shape> {
    let is_contiguous = variant.schedule.is_contiguous();
    let is_stream_k = variant.schedule.is_stream_k();
    let n_multiprocessors = device.limits().n_multiprocessors;
    let shared_bytes = variant.shared_bytes(problem.dim());
    let mut n_resident = device.blocks_per_multiprocessor(&variant.resources(), shared_bytes)?;
    if is_contiguous && matches!(problem.shape(), ScoreShape::Cross { .. }) {
        n_resident = n_resident.min(match is_stream_k {
            true => blocks_of_shares(problem.documents().total_len(), n_multiprocessors),
            false => BLOCKS_OF_A_CROSS,
        });
    }
    let is_sweep = is_sweep(variant, problem, device.limits());
    if is_sweep {
        n_resident = n_resident.min(1);
    }
    let counts = variant.arch == Arch::Sm90a && !is_contiguous;
    // The sums over splits are not used: their partial sums are not added.
    let sums_in_kernel = counts && !are_splits;
    Ok(Shape {
        query_tile: variant.query_tile,
        n_blocks: n_multiprocessors * n_resident,
        prefers_whole_rounds: counts,
        partials_max: PARTIALS_BYTES_MAX / 4,
        n_counters_max: if sums_in_kernel { u64::from(N_COUNTERS) - 1 } else { 0 },
        dynamic_tokens_min: match (variant.has_scheduler(), is_contiguous) {
            (false, _) => u64::MAX,
            (true, true) => CONTIGUOUS_DYNAMIC_TOKENS_MIN,
            (true, false) => DYNAMIC_TOKENS_MIN,
        },
        // Statically scheduled units do not prefetch across their boundary.
        unit_tokens_max: if is_contiguous { u64::MAX } else { UNIT_TOKENS_MAX },
        is_contiguous,
        is_stream_k,
        is_sweep,
    })
}
