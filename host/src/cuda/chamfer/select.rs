//! Pairs of large clouds of many dims: a forward kernel finds which blocks of points may have
//! nearest ones, and those are compared.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::element::ElementType;
use maxsim_kernels::abi::params::chamfer::select::{
    BLOCK, CopyParams, ITEM, REFINE_SHARED_BYTES, REFINE_SHARES, RefineParams, SELECT_POINTS,
    SELECT_SHARED_BYTES, SELECTED_DIM, SELECTED_DIM_MAX, copied_dim,
};
use maxsim_kernels::abi::params::chamfer::{CloudPair, Clouds};
use maxsim_kernels::table::auxiliary::{CHAMFER_REFINE, CHAMFER_SELECT};

use super::copies::{CloudCopies, CopyTasks};
use super::places::lay_out;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::{RESERVED_BYTES, start};
use crate::cuda::driver::module::Kernel;
use crate::cuda::forward::plan::ForwardPlan;
use crate::error::{Error, Result};
use crate::plan::choice::Plan;
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::chamfer::Metric;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::{OutputAddresses, OutputShape, Trust};
use crate::problem::pairing::Pairing;
use crate::runtime::alloc::reserve;
use crate::tokens::layout::TokenLayout;

/// Pairs of points times dims that are compared in the time that the launches of a selection take.
const LAUNCHED: u64 = 1 << 28;

/// Least points of both clouds: with fewer there is less to compare than to copy.
const LEAST_LEN: u32 = 512;

/// Most bytes of what a forward kernel finds at a time.
const MAXIMA_BYTES: u64 = 64 << 20;

/// Whether blocks are selected by products of clouds of such lengths.
pub(super) fn is_selected(lens: [u32; 2], dim: usize, metric: Metric) -> bool {
    let n_pairs = u64::from(lens[0]) * u64::from(lens[1]);
    metric == Metric::SquaredL2
        && (SELECTED_DIM..=SELECTED_DIM_MAX).contains(&dim)
        && lens.iter().all(|&len| len >= LEAST_LEN)
        && n_pairs.saturating_mul(dim as u64) >= LAUNCHED
}

/// The kernels of a selection, and what they are launched on.
#[derive(Debug)]
pub(super) struct Selection {
    device: Arc<CudaDevice>,
    copies: CloudCopies,
    select: Kernel<RefineParams>,
    refine: Kernel<RefineParams>,
    /// Points of all clouds.
    n_places: usize,
    copied_dim: usize,
    /// Sides of pairs whose points are looked for neighbours of.
    directions: Vec<Direction>,
}

/// The points of one cloud of a pair, whose neighbours are in the other.
#[derive(Debug)]
struct Direction {
    pair_and_side: u32,
    /// First place and points of the cloud, and of the other one.
    own: [u32; 2],
    other: [u32; 2],
    /// Points of the cloud that a forward kernel takes at a time.
    slice_len: u32,
    /// The forward call of a whole slice, and of the last one.
    whole: Option<SliceWork>,
    last: Option<SliceWork>,
    /// The blocks of the other one, at no address.
    blocks: CudaTokens,
}

/// A forward call on a slice of a cloud.
#[derive(Debug)]
struct SliceWork {
    /// The points, at no address.
    items: CudaTokens,
    plan: ForwardPlan,
    outputs: OutputShape,
}

impl Direction {
    /// The slices: first point, points and call.
    fn slices(&self) -> impl Iterator<Item = (u32, u32, &SliceWork)> {
        (0..self.own[1]).step_by(self.slice_len as usize).filter_map(|first| {
            let len = self.slice_len.min(self.own[1] - first);
            let work = if len == self.slice_len { &self.whole } else { &self.last };
            work.as_ref().map(|work| (first, len, work))
        })
    }

    fn n_blocks(&self) -> u32 {
        self.other[1].div_ceil(BLOCK)
    }

    /// Bytes of the words that say which points of a slice want which block.
    fn masks_bytes(&self) -> u64 {
        u64::from(self.n_blocks()) * u64::from(self.slice_len.div_ceil(SELECT_POINTS)) * 4
    }
}

impl Selection {
    /// Makes the selection of pairs, given by their numbers, ready.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        pairs: &[(u32, CloudPair)],
        single_direction: bool,
        dim: usize,
        [n_places, n_pairs]: [usize; 2],
    ) -> Result<Selection> {
        let copied_dim = copied_dim(dim);
        let (mut directions, mut tasks) = (Vec::new(), CopyTasks::default());
        for &(number, pair) in pairs {
            for side in 0..2 {
                let pair_and_side = 2 * number + side as u32;
                tasks.add(pair_and_side, pair.lens[side], pair.places[side])?;
                if side == 0 || !single_direction {
                    let [own, other] =
                        [side, 1 - side].map(|side| [pair.places[side], pair.lens[side]]);
                    reserve(&mut directions, 1)?;
                    let lens = [own, other];
                    directions.push(Direction::new(device, pair_and_side, lens, copied_dim)?);
                }
            }
        }
        Ok(Selection {
            device: device.clone(),
            copies: CloudCopies::new(device, &tasks, n_pairs)?,
            select: device.kernel(CHAMFER_SELECT)?,
            refine: device.kernel(CHAMFER_REFINE)?,
            n_places,
            copied_dim,
            directions,
        })
    }

    /// Where everything is in the workspace, behind what forward kernels need, and the end.
    fn places(&self) -> ([u64; 8], u64) {
        let slices = || self.directions.iter().flat_map(|of| [&of.whole, &of.last]).flatten();
        let of_plans = slices().map(|slice| slice.plan.workspace_bytes()).max().unwrap_or(0);
        let most = |i: usize| slices().map(|slice| slice.outputs.lens_bytes()[i]).max();
        let n = self.n_places as u64;
        let row_bytes = self.copied_dim as u64 * 2;
        let lens = [
            self.copies.extents_bytes(),
            n * row_bytes,
            n * row_bytes,
            n * 4,
            n * 4,
            most(0).unwrap_or(0),
            most(2).unwrap_or(0),
            self.directions.iter().map(Direction::masks_bytes).max().unwrap_or(0),
        ];
        lay_out(of_plans.max(RESERVED_BYTES), lens)
    }

    /// Bytes of workspace.
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.places().1
    }

    /// Enqueues the launches.
    ///
    /// # Safety
    /// As [`super::CudaChamferWork::run`]; the workspace must be as large as the selection says,
    /// and nothing else may use it until the launches have run.
    pub(super) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        clouds: &Clouds,
        keys: u64,
        workspace: u64,
    ) -> Result<()> {
        let (offsets, _) = self.places();
        let [extents, queries, documents, norms, errors, scores, maxima, masks] =
            offsets.map(|offset| workspace + offset);
        let copies = CopyParams {
            clouds: *clouds,
            tasks: self.copies.tasks(),
            extents,
            queries,
            documents,
            norms,
            errors,
            odd: 0,
            copied_dim: self.copied_dim as u32,
            is_halved: 0,
        };
        let at = |tokens: &CudaTokens, base: u64, place: u32| {
            tokens.at(base + u64::from(place) * self.copied_dim as u64 * 2)
        };
        let to = OutputAddresses { scores, winners: 0, token_scores: maxima };
        // SAFETY: the workspace has so many of each; the caller's promise.
        unsafe {
            self.copies.run(entered, stream, &copies, self.copies.extents_bytes())?;
            for of in &self.directions {
                let blocks = at(&of.blocks, documents, of.other[0]);
                for (first, n_points, work) in of.slices() {
                    let SliceWork { items, plan, outputs } = work;
                    let items = at(items, queries, of.own[0] + first);
                    let trust = Trust::Unchecked;
                    let found = CudaOutputs::from_raw_parts(&self.device, outputs, to, trust)?;
                    let maps = plan.tensor_maps(entered, &items, &blocks)?;
                    plan.run(entered, stream, maps, &items, &blocks, &found, workspace)?;
                    let params = RefineParams {
                        copies,
                        keys,
                        maxima,
                        bests: 0,
                        odd: 0,
                        masks,
                        pair_and_side: of.pair_and_side,
                        first,
                        n_points,
                        n_blocks: of.n_blocks(),
                        first_block: 0,
                        pitch_bytes: 0,
                        are_rows: 0,
                        is_first: 0,
                    };
                    let grid = n_points.div_ceil(SELECT_POINTS);
                    let shared = SELECT_SHARED_BYTES as u32;
                    start(entered, stream, &self.select, grid, shared, &params)?;
                    let grid = of.n_blocks() * REFINE_SHARES;
                    let shared = REFINE_SHARED_BYTES as u32;
                    start(entered, stream, &self.refine, grid, shared, &params)?;
                }
            }
        }
        Ok(())
    }
}

impl Direction {
    fn new(
        device: &Arc<CudaDevice>,
        pair_and_side: u32,
        [own, other]: [[u32; 2]; 2],
        dim: usize,
    ) -> Result<Direction> {
        let layout = items(other[1], BLOCK, dim)?;
        let slice_len = slice_len(own[1], layout.n_items());
        let work = |len: u32| match len {
            0 => Ok(None),
            _ => SliceWork::new(device, &items(len, ITEM, dim)?, &layout).map(Some),
        };
        let whole = work(slice_len)?;
        let last = work(own[1] % slice_len)?;
        let blocks = at_no_address(device, &layout)?;
        Ok(Direction { pair_and_side, own, other, slice_len, whole, last, blocks })
    }
}

impl SliceWork {
    fn new(
        device: &Arc<CudaDevice>,
        items: &TokenLayout,
        blocks: &TokenLayout,
    ) -> Result<SliceWork> {
        let pairing = Pairing::cross();
        let problem = Problem::new(items, blocks, &pairing)?;
        let options = ScoreOptions::default().token_scores(true).document_splits(1);
        let access = [Access::uploaded(items.dim(), ElementType::F16); 2];
        let plan = Plan::choose(&problem, ElementType::F16, device.limits(), access, &options)?;
        let chosen = plan.chosen().ok_or_else(|| Error::Unsupported {
            what: format!("products of points by {}", plan.name()),
            why: "the work runs on a CUDA device".into(),
        })?;
        let outputs = OutputShape::new(&problem, &options);
        let plan = ForwardPlan::new(device, &problem, chosen, &outputs)?;
        Ok(SliceWork { items: at_no_address(device, items)?, plan, outputs })
    }
}

/// Rows of copies whose address a call finds in its workspace.
pub(super) fn at_no_address(device: &Arc<CudaDevice>, layout: &TokenLayout) -> Result<CudaTokens> {
    let access = Access::uploaded(layout.dim(), ElementType::F16);
    CudaTokens::view(device, ElementType::F16, layout, access, [0; 3])
}

/// Points of a slice, of a cloud of `len`, all slices alike but for the last: whole items, or all.
fn slice_len(len: u32, n_blocks: usize) -> u32 {
    let most = MAXIMA_BYTES / (4 * n_blocks.max(1) as u64 * u64::from(ITEM));
    let n_items = u64::from(len.div_ceil(ITEM));
    let n_slices = n_items.div_ceil(most.max(1));
    let items = n_items.div_ceil(n_slices.max(1));
    len.min(items as u32 * ITEM)
}

/// Points one behind the other, so many to an item.
pub(super) fn items(len: u32, item_len: u32, dim: usize) -> Result<TokenLayout> {
    let mut offsets: Vec<u32> = Vec::new();
    reserve(&mut offsets, len.div_ceil(item_len) as usize + 1)?;
    offsets.extend((0..len).step_by(item_len as usize));
    offsets.push(len);
    TokenLayout::packed(len as usize, dim, &offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_clouds_of_many_dims_are_selected() {
        let l2 = Metric::SquaredL2;
        assert!(is_selected([1500; 2], 128, l2) && is_selected([1 << 12; 2], 16, l2));
        assert!(is_selected([i32::MAX as u32; 2], SELECTED_DIM_MAX, l2));
        assert!(!is_selected([1500; 2], 128, Metric::L1) && !is_selected([1 << 12; 2], 15, l2));
        assert!(!is_selected([511, 1 << 30], 128, l2) && !is_selected([1000; 2], 128, l2));
        assert!(!is_selected([1 << 12; 2], 4096, l2));
    }

    #[test]
    fn slices_are_whole_items_that_fit() {
        for (len, n_blocks) in [(600, 5), (3000, 24), (100_000, 782), (1_000_000, 7813)] {
            let slice = slice_len(len, n_blocks);
            assert!(slice == len || slice.is_multiple_of(ITEM), "{len}");
            assert!(u64::from(slice) * n_blocks as u64 * 4 <= MAXIMA_BYTES, "{len}");
        }
        assert_eq!([slice_len(3000, 24), slice_len(100_000, 782)], [3000, 79 * ITEM]);
        // One item at least.
        assert_eq!(slice_len(1000, 1 << 24), ITEM);
    }
}
