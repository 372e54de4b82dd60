//! Scores of centroids, computed once per call before documents of many more tokens: PLAID's
//! centroid interaction (K. Santhanam et al., CIKM 2022), here exact.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::{
    ByCentroidParams, CENTROID_SCORES_BYTES, CentroidScoresParams, ForwardParams, Group, Residuals,
};
use maxsim_kernels::abi::residual_chunk::BY_CENTROID_NBITS_MAX;
use maxsim_kernels::table::Resources;
use maxsim_kernels::table::auxiliary::{CENTROID_SCORES, INFINITE_QUERIES};
use maxsim_kernels::table::forward::Variant;

use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::module::Kernel;
use crate::error::{Error, Result};
use crate::plan::limits::Access;

/// The scores of every centroid in every query tile of a call.
#[derive(Debug)]
pub(in crate::cuda) struct CentroidScores {
    kernel: Kernel<CentroidScoresParams>,
    /// The kernel for queries with infinities.
    infinite: Kernel<ByCentroidParams>,
    n_tiles: u32,
    n_centroids: u32,
    grid: u32,
}

impl CentroidScores {
    /// Prepares the centroid scores that a forward kernel reads; `None` where it reads none.
    pub(in crate::cuda) fn new(
        device: &Arc<CudaDevice>,
        variant: &Variant,
        n_tiles: u32,
        n_centroids: u32,
    ) -> Result<Option<CentroidScores>> {
        let (true, Operand::Residual(element)) =
            (variant.schedule.is_by_centroid(), variant.operand)
        else {
            return Ok(None);
        };
        let kernel = device.kernel_of(&CENTROID_SCORES, element)?;
        let infinite = device.kernel_of(&INFINITE_QUERIES, element)?;
        let n_warps = u64::from(n_centroids).div_ceil(Group::ROWS as u64) * u64::from(n_tiles);
        let &Resources { threads, blocks, .. } = kernel.entry().resources();
        let n_blocks = n_warps.div_ceil(threads as u64 / 32);
        let at_once = device.limits().n_multiprocessors * blocks;
        let grid = n_blocks.min(at_once as u64) as u32;
        Ok(Some(CentroidScores { kernel, infinite, n_tiles, n_centroids, grid }))
    }

    /// Bytes that they take, and a word per tile.
    pub(in crate::cuda) fn bytes(&self) -> u64 {
        let of_tile = u64::from(self.n_centroids) * CENTROID_SCORES_BYTES as u64 + 4;
        u64::from(self.n_tiles) * of_tile
    }

    /// Checks that the kernel can read documents, of as many centroids as those that the work was
    /// prepared with.
    pub(in crate::cuda) fn check(&self, documents: Access) -> Result<()> {
        match documents.n_centroids == self.n_centroids {
            true => Ok(()),
            false => Err(Error::Shape {
                argument: "documents",
                expected: format!(
                    "{} centroids and buckets of up to {BY_CENTROID_NBITS_MAX} bits, as this work \
                     was prepared for",
                    self.n_centroids
                ),
                found: "other documents; prepare the work with these handles".into(),
            }),
        }
    }

    /// Enqueues the kernel that computes them.
    ///
    /// # Safety
    /// `forward` must describe the queries and groups of the call, `documents` centroids as many as
    /// there are, `scores` as much memory as [`CentroidScores::bytes`] says, which lives and is not
    /// used otherwise until the kernel has run; `stream` must be one of the context.
    pub(in crate::cuda) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        forward: ForwardParams,
        documents: Residuals,
        scores: u64,
    ) -> Result<()> {
        let params = CentroidScoresParams {
            forward,
            centroids: documents.centroids,
            scores,
            pitch_bytes: documents.pitch_bytes,
            n_centroids: self.n_centroids,
            n_tiles: self.n_tiles,
            reserved: 0,
        };
        match self.grid {
            0 => Ok(()),
            // SAFETY: the caller's promise.
            grid => unsafe { start(entered, stream, &self.kernel, grid, 0, &params) },
        }
    }

    /// Enqueues a launch of the forward kernel, and that of the kernel for the tiles that it skips.
    ///
    /// # Safety
    /// As for [`CentroidScores::run`], which must have been enqueued before.
    pub(in crate::cuda) unsafe fn forward(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        (kernel, grid): (&Kernel<ByCentroidParams>, u32),
        forward: ForwardParams,
        documents: Residuals,
        scores: u64,
    ) -> Result<()> {
        let (n_centroids, n_tiles) = (self.n_centroids, self.n_tiles);
        let params = ByCentroidParams { forward, documents, scores, n_centroids, n_tiles };
        // SAFETY: the caller's promise.
        unsafe {
            start(entered, stream, kernel, grid, 0, &params)?;
            start(entered, stream, &self.infinite, grid, 0, &params)
        }
    }
}
