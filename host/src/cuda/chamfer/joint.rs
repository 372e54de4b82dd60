//! Pairs of large clouds of about 128 dims on Hopper: one pass of products finds which blocks of
//! points may have nearest ones, in both directions, and those are compared.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::abi::params::chamfer::products::{
    COLUMNS, CONSUMER_ROWS, DIM_MAX, ProductParams, ROW_DIM, ROWS, SHARED_BYTES,
};
use maxsim_kernels::abi::params::chamfer::select::{
    BLOCK, CopyParams, HALVES_POINTS, HALVES_SHARED_BYTES, REFINE_SHARED_BYTES, REFINE_SHARES,
    RefineParams, SELECT_POINTS,
};
use maxsim_kernels::abi::params::chamfer::{CloudPair, Clouds};
use maxsim_kernels::table::auxiliary::{CHAMFER_PRODUCTS, CHAMFER_REFINE, CHAMFER_SELECT_HALVES};

use super::copies::{CloudCopies, CopyTasks};
use super::places::lay_out;
use super::select::{at_no_address, items};
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::{RESERVED_BYTES, start};
use crate::cuda::driver::module::Kernel;
use crate::error::{Error, Result};
use crate::runtime::alloc::reserve;

/// Most bytes of what products find at a time: both minima of 100 000 × 100 000 points.
const MINIMA_BYTES: u64 = 320 << 20;

/// Least dims of points: with fewer, two passes of the forward kernels multiply no more than one
/// of rows that always have nine steps.
const LEAST_DIM: usize = 62;

/// Whether a device has the products, for points of so many dims.
pub(super) fn is_joint(device: &CudaDevice, dim: usize) -> bool {
    Arch::Sm90a.runs_on(device.limits().capability) && (LEAST_DIM..=DIM_MAX).contains(&dim)
}

/// The kernels of a selection by one pass, and what they are launched on.
#[derive(Debug)]
pub(super) struct Joint {
    device: Arc<CudaDevice>,
    copies: CloudCopies,
    products: Kernel<ProductParams>,
    select: Kernel<RefineParams>,
    refine: Kernel<RefineParams>,
    /// Points of all clouds.
    n_places: usize,
    pairs: Vec<JointPair>,
    single_direction: bool,
    /// Rows of copies, and the copies, at no address.
    n_rows: u32,
    rows: CudaTokens,
}

/// A pair of clouds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct JointPair {
    number: u32,
    lens: [u32; 2],
    /// First row of the copies of each.
    rows: [u32; 2],
    /// Points of the first cloud that are multiplied at a time.
    slice_len: u32,
}

/// Points of the first cloud that are multiplied with all of the second.
#[derive(Clone, Copy, Debug)]
struct Slice {
    first: u32,
    len: u32,
    n_row_tiles: u32,
    n_column_tiles: u32,
}

impl JointPair {
    fn new(number: u32, lens: [u32; 2], rows: [u32; 2]) -> JointPair {
        let tiles = [ROWS, COLUMNS].map(|len| len as u64);
        let [n_row_tiles, n_column_tiles] = [0, 1].map(|i| u64::from(lens[i]).div_ceil(tiles[i]));
        // A minimum for each row and tile of columns, and for each column and block of rows.
        let tile_bytes = 2 * n_column_tiles * (tiles[0] + tiles[1] * tiles[0] / u64::from(BLOCK));
        let most = (MINIMA_BYTES / tile_bytes.max(1)).max(1);
        let n_slices = n_row_tiles.div_ceil(most).max(1);
        let slice_len = n_row_tiles.div_ceil(n_slices) * tiles[0];
        JointPair { number, lens, rows, slice_len: slice_len as u32 }
    }

    fn slices(self) -> impl Iterator<Item = Slice> {
        let [n_x, n_y] = self.lens;
        (0..n_x).step_by(self.slice_len as usize).map(move |first| {
            let len = self.slice_len.min(n_x - first);
            let n_row_tiles = len.div_ceil(ROWS as u32);
            Slice { first, len, n_row_tiles, n_column_tiles: n_y.div_ceil(COLUMNS as u32) }
        })
    }
}

impl Slice {
    /// Bytes from one block to the next of the minima of rows, and of columns.
    fn pitches(self) -> [u64; 2] {
        let Slice { n_row_tiles, n_column_tiles, .. } = self;
        [u64::from(n_row_tiles) * 2 * ROWS as u64, u64::from(n_column_tiles) * 2 * COLUMNS as u64]
    }

    /// Blocks of the other cloud: of columns for rows, and of rows for columns.
    fn n_blocks(self) -> [u32; 2] {
        [self.n_column_tiles, self.len.div_ceil(BLOCK)]
    }

    /// Bytes of the minima of rows, and of columns. The last points of a block are read together
    /// with those behind them.
    fn minima_bytes(self) -> [u64; 2] {
        let [of_rows, of_columns] = self.pitches();
        let n_blocks = u64::from(self.n_row_tiles) * (ROWS / CONSUMER_ROWS) as u64;
        let behind = u64::from(HALVES_POINTS) * 2;
        [of_rows * u64::from(self.n_column_tiles) + behind, of_columns * n_blocks + behind]
    }

    /// Bytes of the words that say which points want which block, of both directions the more.
    fn masks_bytes(self, n_columns: u32) -> u64 {
        let [of_rows, of_columns] = self.n_blocks().map(u64::from);
        let words = |n_points: u32| u64::from(n_points.div_ceil(SELECT_POINTS));
        // Rows of the last block are anywhere in it.
        let n_rows = self.len.next_multiple_of(BLOCK);
        4 * (of_rows * words(n_rows)).max(of_columns * words(n_columns))
    }
}

impl Joint {
    /// Makes the selection of pairs, given by their numbers, ready.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        clouds: &[(u32, CloudPair)],
        single_direction: bool,
        [n_places, n_pairs]: [usize; 2],
    ) -> Result<Joint> {
        let (mut pairs, mut tasks) = (Vec::new(), CopyTasks::default());
        let mut n_rows = 0u32;
        reserve(&mut pairs, clouds.len())?;
        for &(number, cloud) in clouds {
            let mut rows = [0; 2];
            for (side, (row, len)) in (0..).zip(rows.iter_mut().zip(cloud.lens)) {
                // Whole tiles: rows behind the last point are such as are masked.
                let len = len.next_multiple_of(ROWS as u32);
                *row = n_rows;
                tasks.add(2 * number + side, len, n_rows)?;
                n_rows =
                    n_rows.checked_add(len).filter(|&n| n <= i32::MAX as u32).ok_or_else(|| {
                        Error::Unsupported {
                            what: "clouds of so many points on a CUDA device".into(),
                            why: "their copies have more than 2³¹ rows".into(),
                        }
                    })?;
            }
            pairs.push(JointPair::new(number, cloud.lens, rows));
        }
        Ok(Joint {
            device: device.clone(),
            copies: CloudCopies::new(device, &tasks, n_pairs)?,
            products: device.kernel(CHAMFER_PRODUCTS)?,
            select: device.kernel(CHAMFER_SELECT_HALVES)?,
            refine: device.kernel(CHAMFER_REFINE)?,
            n_places,
            pairs,
            single_direction,
            n_rows,
            rows: at_no_address(device, &items(n_rows, n_rows, ROW_DIM)?)?,
        })
    }

    /// Where everything is in the workspace, and the end.
    fn places(&self) -> ([u64; 8], u64) {
        let most = |of: &dyn Fn(&JointPair, Slice) -> u64| {
            let of_pair = |pair: &JointPair| pair.slices().map(|slice| of(pair, slice)).max();
            self.pairs.iter().filter_map(of_pair).max().unwrap_or(0)
        };
        let n = self.n_places as u64;
        let lens = [
            // What is 0 before: what is known of pairs, and of blocks.
            self.cleared_bytes(),
            u64::from(self.n_rows) * 2 * ROW_DIM as u64,
            n * 4,
            n * 4,
            n * 4,
            most(&|_, slice| slice.minima_bytes()[0]),
            most(&|_, slice| slice.minima_bytes()[1]),
            most(&|pair, slice| slice.masks_bytes(pair.lens[1])),
        ];
        lay_out(RESERVED_BYTES, lens)
    }

    fn cleared_bytes(&self) -> u64 {
        self.copies.extents_bytes() + u64::from(self.n_rows / BLOCK) * 4
    }

    /// Bytes of workspace.
    pub(super) fn workspace_bytes(&self) -> u64 {
        self.places().1
    }

    /// Enqueues the launches.
    ///
    /// # Safety
    /// As [`super::select::Selection::run`].
    pub(super) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        clouds: &Clouds,
        keys: u64,
        workspace: u64,
    ) -> Result<()> {
        let (offsets, _) = self.places();
        let [extents, rows, norms, errors, bests, row_minima, column_minima, masks] =
            offsets.map(|offset| workspace + offset);
        let odd = extents + self.copies.extents_bytes();
        let copies = CopyParams {
            clouds: *clouds,
            tasks: self.copies.tasks(),
            extents,
            queries: rows,
            documents: 0,
            norms,
            errors,
            odd,
            copied_dim: ROW_DIM as u32,
            is_halved: 1,
        };
        let tokens = self.rows.at(rows);
        let &map = tokens.tile_map(entered)?.ok_or_else(|| Error::Unsupported {
            what: "products of clouds by tensor maps".into(),
            why: "the copies are not where such maps can be".into(),
        })?;
        // SAFETY: the workspace has so many of each; the caller's promise.
        unsafe {
            self.copies.run(entered, stream, &copies, self.cleared_bytes())?;
            for &pair in &self.pairs {
                for slice in pair.slices() {
                    let Slice { first, n_row_tiles, n_column_tiles, .. } = slice;
                    let params = ProductParams {
                        map,
                        row_minima,
                        column_minima,
                        first_row: pair.rows[0] + first,
                        first_column: pair.rows[1],
                        n_row_tiles,
                        n_column_tiles,
                    };
                    let n_tiles = u64::from(n_row_tiles) * u64::from(n_column_tiles);
                    let n_multiprocessors = self.device.limits().n_multiprocessors as u64;
                    let grid = n_tiles.min(n_multiprocessors) as u32;
                    start(entered, stream, &self.products, grid, SHARED_BYTES as u32, &params)?;
                    let at = Minima { keys, minima: [row_minima, column_minima], bests, masks };
                    let n_directions = if self.single_direction { 1 } else { 2 };
                    for side in 0..n_directions {
                        let params = at.params(copies, pair, slice, side);
                        let grid = params.n_points.div_ceil(HALVES_POINTS);
                        let shared = HALVES_SHARED_BYTES as u32;
                        start(entered, stream, &self.select, grid, shared, &params)?;
                        let grid = params.n_blocks * REFINE_SHARES;
                        let shared = REFINE_SHARED_BYTES as u32;
                        start(entered, stream, &self.refine, grid, shared, &params)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Where what products find is, and what is found by it.
#[derive(Clone, Copy)]
struct Minima {
    keys: u64,
    /// The least t of rows, and of columns.
    minima: [u64; 2],
    bests: u64,
    masks: u64,
}

impl Minima {
    /// The parameters for the points of a side of a slice.
    fn params(
        self,
        copies: CopyParams,
        pair: JointPair,
        slice: Slice,
        side: usize,
    ) -> RefineParams {
        let Slice { first, len, .. } = slice;
        let is_rows = side == 0;
        let first_block = if is_rows { 0 } else { first / BLOCK };
        RefineParams {
            copies,
            keys: self.keys,
            maxima: self.minima[side],
            // Only columns meet their blocks in several calls.
            bests: if is_rows || len == pair.lens[0] { 0 } else { self.bests },
            odd: copies.odd + u64::from(pair.rows[1 - side] / BLOCK + first_block) * 4,
            masks: self.masks,
            pair_and_side: 2 * pair.number + side as u32,
            first: if is_rows { first } else { 0 },
            n_points: if is_rows { len } else { pair.lens[1] },
            n_blocks: slice.n_blocks()[side],
            first_block,
            pitch_bytes: slice.pitches()[side] as u32,
            are_rows: u32::from(is_rows),
            is_first: u32::from(first == 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_whole_tiles_that_fit() {
        for lens in [[600, 513], [3000, 24], [100_000, 100_000], [1_000_000, 100_000]] {
            let pair = JointPair::new(0, lens, [0; 2]);
            let slices: Vec<Slice> = pair.slices().collect();
            assert_eq!(slices.iter().map(|slice| slice.len).sum::<u32>(), lens[0]);
            assert!(slices.len() == 1 || pair.slice_len.is_multiple_of(ROWS as u32));
            let largest = slices.iter().map(|slice| slice.minima_bytes().iter().sum::<u64>());
            assert!(largest.max().unwrap() <= MINIMA_BYTES + (1 << 10), "{lens:?}");
        }
        assert_eq!(JointPair::new(0, [100_000; 2], [0; 2]).slices().count(), 1);
        assert_eq!(JointPair::new(0, [1_000_000; 2], [0; 2]).slices().count(), 96);
    }
}
