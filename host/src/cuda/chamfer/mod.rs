//! Chamfer distances on a device: the launches that find neighbours, and those of gradients.

mod copies;
mod found;
mod joint;
mod lists;
mod places;
mod search;
mod select;

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::chamfer::{
    Clouds, GradientParams, NARROW_DIM, NearestParams, Points, REDUCE_SHARED_BYTES, ReduceParams,
    WIDE_SHARED_BYTES, lanes_log2, reduction, tag, tile_offset,
};
use maxsim_kernels::table::Entry;
use maxsim_kernels::table::auxiliary::{
    CHAMFER_BOTH_3, CHAMFER_BOTH_8, CHAMFER_BOTH_15, CHAMFER_COMPARE, CHAMFER_GRADIENTS,
    CHAMFER_NEAREST_3, CHAMFER_NEAREST_8, CHAMFER_NEAREST_15, CHAMFER_REDUCE, CHAMFER_SCATTER,
};

pub(crate) use self::found::CudaChamfer;
use self::joint::{Joint, is_joint};
use self::lists::{Comparison, Lists};
use self::search::Search;
use self::select::Selection;
use crate::cuda::buffers::gradients::CudaGradients;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::calls::ChamferGradCall;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::hazards::Hazard;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, fill};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::staging::upload_lists;
use crate::cuda::driver::stream::CudaStream;
use crate::error::{Error, Result};
use crate::problem::chamfer::{ChamferOptions, CloudPairs, Metric, PointReduction};
use crate::problem::runs::Runs;
use crate::tokens::element::ElementType;
use crate::tokens::layout::TokenLayout;

/// Chamfer distances made ready.
#[derive(Debug)]
pub(crate) struct CudaChamferWork {
    device: Arc<CudaDevice>,
    nearest: Kernel<NearestParams>,
    reduce: Kernel<ReduceParams>,
    scatter: Kernel<GradientParams>,
    gradients: Kernel<GradientParams>,
    dim: usize,
    element: ElementType,
    options: ChamferOptions,
    /// Pairs of large clouds, whose points are sorted.
    search: Option<Search>,
    /// Pairs of large clouds of many dims: one of the two, by the device and the dim.
    selection: Option<Selection>,
    joint: Option<Joint>,
    n_pairs: u32,
    n_nearest_tasks: u32,
    n_point_tasks: u32,
    /// Shared memory of the comparison.
    shared_bytes: u32,
    /// Pairs, and tasks of points against tiles and of points; 0 = none.
    lists: [u64; 3],
    _lists: Buffer,
    /// Clouds of a side that share rows.
    has_overlaps: bool,
    /// Sides whose matrix has rows of no cloud.
    has_other_rows: [bool; 2],
}

impl CudaChamferWork {
    /// Uploads the lists and loads the kernels.
    pub(crate) fn new(
        device: &Arc<CudaDevice>,
        pairs: &CloudPairs<'_>,
        options: &ChamferOptions,
        element: ElementType,
    ) -> Result<CudaChamferWork> {
        let serves_both = !options.single_direction;
        let (kernel, width) = kernel_for(pairs.dim(), serves_both);
        let comparison = match width {
            Some(width) if serves_both => Comparison::both(width),
            Some(width) => Comparison::narrow(width),
            None => Comparison::WIDE,
        };
        let n_multiprocessors = device.limits().n_multiprocessors;
        let lists = Lists::new(pairs, options, comparison, n_multiprocessors)?;
        let search = match lists.searched.is_empty() {
            true => None,
            false => Some(Search::new(device, lists.searched.clone())?),
        };
        let n_points = pairs.layouts.map(TokenLayout::total_len).iter().sum::<u64>();
        let counts = [n_points as usize, pairs.n_pairs()];
        let (single, selected) = (options.single_direction, &lists.selected);
        let (mut selection, mut joint) = (None, None);
        match is_joint(device, pairs.dim()) {
            _ if selected.is_empty() => {}
            true => joint = Some(Joint::new(device, selected, single, counts)?),
            false => {
                let dim = pairs.dim();
                selection = Some(Selection::new(device, selected, single, dim, counts)?);
            }
        }
        let (memory, addresses) = upload_lists(device, lists.bytes())?;
        let mut has_overlaps = false;
        let mut has_other_rows = [false; 2];
        for (layout, has_other_rows) in pairs.layouts.into_iter().zip(&mut has_other_rows) {
            let n_filled = (0..layout.n_items()).filter(|&i| layout.item_len(i) > 0).count();
            has_overlaps |= Runs::new(layout)?.rows.len() < n_filled;
            *has_other_rows = layout.total_len() != layout.rows() as u64;
        }
        Ok(CudaChamferWork {
            device: device.clone(),
            nearest: device.kernel(kernel)?,
            reduce: device.kernel(CHAMFER_REDUCE)?,
            scatter: device.kernel(CHAMFER_SCATTER)?,
            gradients: device.kernel(CHAMFER_GRADIENTS)?,
            dim: pairs.dim(),
            element,
            options: options.clone(),
            search,
            selection,
            joint,
            n_pairs: pairs.n_pairs() as u32,
            n_nearest_tasks: lists.nearest.len() as u32,
            n_point_tasks: lists.points.len() as u32,
            shared_bytes: match width {
                Some(width) => tile_offset(width, serves_both) + lists.tile_len * width as u32 * 4,
                None => WIDE_SHARED_BYTES as u32,
            },
            lists: addresses,
            _lists: memory,
            has_overlaps,
            has_other_rows,
        })
    }

    /// Refuses clouds that share rows, of which no thread would have a row's gradient for itself.
    pub(crate) fn check_backward(&self) -> Result<()> {
        if !self.has_overlaps {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "gradients of clouds that share rows on a CUDA device".into(),
            why: "they are computed on the CPU: use Device::cpu".into(),
        })
    }

    /// Bytes of workspace that the work needs.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        let search = self.search.as_ref().map_or(0, Search::workspace_bytes);
        let selection = self.selection.as_ref().map_or(0, Selection::workspace_bytes);
        search.max(selection).max(self.joint.as_ref().map_or(0, Joint::workspace_bytes))
    }

    /// Bytes of what is found, and from where on these have distances, indices and values.
    pub(crate) fn found_memory(&self, n_points: [usize; 2]) -> (u64, [u64; 3]) {
        CudaChamfer::memory(n_points, self.n_pairs as usize, self.dim)
    }

    /// Enqueues the search and the reduction. Allocates nothing once the stream's workspace has
    /// grown.
    ///
    /// Tokens and results must be those of the work; the caller checks them.
    pub(crate) fn enqueue(
        &self,
        stream: &mut CudaStream,
        tokens: [&Arc<CudaTokens>; 2],
        found: &CudaChamfer,
    ) -> Result<()> {
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let workspace = match self.workspace_bytes() {
            0 => 0,
            len_bytes => stream.workspace(&entered, order, len_bytes)?,
        };
        let raw = stream.raw();
        // SAFETY: tokens and results are those of the work (the caller's check), in this context;
        // only this stream uses its workspace, and the hazard orders the use of the rest.
        let run = || unsafe { self.run(&entered, raw, tokens, found, workspace) };
        found.hazard().enqueue(&entered, stream, order, run)
    }

    /// Enqueues the launches of a search.
    ///
    /// # Safety
    /// `stream` must be a stream of the context; what the call is given must be of the work and
    /// live until the launches have run. Until then nothing else may use the results or the
    /// workspace, which must be as large as the work says.
    pub(super) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        tokens: [&Arc<CudaTokens>; 2],
        found: &CudaChamfer,
        workspace: u64,
    ) -> Result<()> {
        let addresses = found.addresses();
        // SAFETY: lists, keys and results are of these clouds; the caller's promise.
        unsafe {
            if let Some(search) = &self.search {
                let clouds = self.clouds(tokens);
                search.run(entered, stream, &clouds, addresses.keys, workspace)?;
            }
            if let Some(selection) = &self.selection {
                let clouds = self.clouds(tokens);
                selection.run(entered, stream, &clouds, addresses.keys, workspace)?;
            }
            if let Some(joint) = &self.joint {
                let clouds = self.clouds(tokens);
                joint.run(entered, stream, &clouds, addresses.keys, workspace)?;
            }
            if self.n_nearest_tasks > 0 {
                let params = NearestParams {
                    clouds: self.clouds(tokens),
                    tasks: self.lists[1],
                    keys: addresses.keys,
                };
                let grid = self.n_nearest_tasks;
                start(entered, stream, &self.nearest, grid, self.shared_bytes, &params)?;
            }
            if self.n_pairs == 0 {
                return Ok(());
            }
            let params = ReduceParams {
                pairs: self.lists[0],
                keys: addresses.keys,
                distances: addresses.distances,
                indices: addresses.indices,
                stats: addresses.stats,
                values: addresses.values,
                reduction: number_of(self.options.reduction),
                single_direction: u32::from(self.options.single_direction),
            };
            let shared = REDUCE_SHARED_BYTES as u32;
            start(entered, stream, &self.reduce, self.n_pairs, shared, &params)
        }
    }

    /// Enqueues gradients. Allocates nothing.
    ///
    /// Everything must be of the work; the caller checks it.
    pub(crate) fn enqueue_backward(
        &self,
        stream: &mut CudaStream,
        tokens: [&Arc<CudaTokens>; 2],
        found: &CudaChamfer,
        grad: ChamferGradCall<'_>,
        gradients: &CudaGradients,
    ) -> Result<()> {
        let entered = self.device.enter()?;
        let order = stream.order(&entered)?;
        let raw = stream.raw();
        let hazards = [
            Some(found.hazard().as_ref()),
            Some(grad.gradients.hazard().as_ref()),
            Some(gradients.hazard().as_ref()),
        ];
        // SAFETY: everything is of the work (the caller's check), in this context, and the hazards
        // order its use.
        let run = || unsafe { self.run_backward(&entered, raw, tokens, found, grad, gradients) };
        Hazard::enqueue_all(hazards, &entered, stream, order, run)
    }

    /// Enqueues the launches of gradients.
    ///
    /// # Safety
    /// As [`CudaChamferWork::run`]; until the launches have run nothing else may use the gradients
    /// or write what they are of.
    pub(super) unsafe fn run_backward(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        tokens: [&Arc<CudaTokens>; 2],
        found: &CudaChamfer,
        grad: ChamferGradCall<'_>,
        gradients: &CudaGradients,
    ) -> Result<()> {
        let (addresses, sides) = (found.addresses(), gradients.sides());
        let (own, most_of_points) = (grad.gradients.address(), grad.most_of_points);
        let params = GradientParams {
            clouds: self.clouds(tokens),
            tasks: self.lists[2],
            distances: addresses.distances,
            indices: addresses.indices,
            stats: addresses.stats,
            grads: if most_of_points.is_none() { own } else { 0 },
            point_grads: if most_of_points.is_some() { own } else { 0 },
            sums: addresses.sums,
            flags: addresses.flags,
            gradients: sides.map(|side| side.address),
            most_grad: most_of_points.unwrap_or(0.0),
            reduction: number_of(self.options.reduction),
            gradient_element: tag(sides[0].element),
            lanes_log2: lanes_log2(self.dim),
        };
        // SAFETY: gradients are as large as their matrices; the caller's promise.
        unsafe {
            for (side, has_other_rows) in sides.iter().zip(self.has_other_rows) {
                if has_other_rows {
                    fill(entered, side.address, 0, side.len_bytes(), stream)?;
                }
            }
            if self.n_point_tasks == 0 {
                return Ok(());
            }
            start(entered, stream, &self.scatter, self.n_point_tasks, 0, &params)?;
            start(entered, stream, &self.gradients, self.n_point_tasks, 0, &params)
        }
    }

    /// The clouds as kernels read them.
    fn clouds(&self, tokens: [&Arc<CudaTokens>; 2]) -> Clouds {
        let sides = tokens.map(|tokens| {
            let matrix = tokens.matrix();
            Points { base: matrix.base, pitch_bytes: matrix.pitch_bytes, mask: matrix.mask }
        });
        Clouds {
            sides,
            pairs: self.lists[0],
            dim: self.dim as u32,
            element: tag(self.element),
            is_l1: u32::from(self.options.metric == Metric::L1),
            single_direction: u32::from(self.options.single_direction),
        }
    }
}

/// The kernel that compares points of so many dims, in one direction or both, and the numbers that
/// a thread has of each in registers, where it has all.
fn kernel_for(dim: usize, serves_both: bool) -> (Entry<NearestParams>, Option<usize>) {
    match (dim, serves_both) {
        (0..=3, true) => (CHAMFER_BOTH_3, Some(4)),
        (4..=8, true) => (CHAMFER_BOTH_8, Some(8)),
        (9..=NARROW_DIM, true) => (CHAMFER_BOTH_15, Some(16)),
        (0..=3, false) => (CHAMFER_NEAREST_3, Some(4)),
        (4..=8, false) => (CHAMFER_NEAREST_8, Some(8)),
        (9..=NARROW_DIM, false) => (CHAMFER_NEAREST_15, Some(16)),
        _ => (CHAMFER_COMPARE, None),
    }
}

/// The number of a reduction.
fn number_of(reduction: PointReduction) -> u32 {
    match reduction {
        PointReduction::Mean => reduction::MEAN,
        PointReduction::Sum => reduction::SUM,
        PointReduction::Max => reduction::MAX,
        PointReduction::None => reduction::NONE,
    }
}
