//! The search of long rows' best in groups: its launches.

use std::sync::Arc;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::top_k::groups::{GROUPS_OF_CTA, TopKGroupsParams};
use maxsim_kernels::abi::params::top_k::{THREADS, TopKParams};
use maxsim_kernels::table::Resources;
use maxsim_kernels::table::auxiliary::{TOP_K_BOUND, TOP_K_GATHER, TOP_K_LARGEST};

use super::levels::Levels;
use super::of_keys;
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;

/// The kernels of the search, in the order of their launches.
#[derive(Debug)]
pub(super) struct Groups {
    largest: Kernel<TopKGroupsParams>,
    bound: Kernel<TopKGroupsParams>,
    gather: Kernel<TopKGroupsParams>,
}

impl Groups {
    /// Loads the kernels.
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Groups> {
        Ok(Groups {
            largest: device.kernel(TOP_K_LARGEST)?,
            bound: device.kernel(TOP_K_BOUND)?,
            gather: device.kernel(TOP_K_GATHER)?,
        })
    }

    /// Enqueues the search in some rows, of which `params` has the scores; returns where a
    /// selection among what was found finds it. The areas are of what is known of groups, and of
    /// keys of the first level: a row that was searched with success has its keys there.
    ///
    /// # Safety
    /// As [`super::CudaTopKWork::run`]; the areas must be as large as the levels say.
    pub(super) unsafe fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        n_rows: usize,
        levels: &Levels,
        [known, keys]: [u64; 2],
        params: &TopKParams,
    ) -> Result<TopKParams> {
        let first = &levels.levels[0];
        let (n_rows, n_groups) = (n_rows as u32, levels.n_groups);
        let params = TopKGroupsParams {
            scores: params.scores,
            largest: known + u64::from(n_rows) * 8,
            found: known,
            keys,
            counts: params.counts,
            row_len: first.row_len,
            n_groups,
            room: first.n_chunks * params.k,
            k: params.k,
            first_id: params.first_id.wrapping_add(params.first_document),
            row_documents: params.row_documents,
        };
        let launches = [
            (&self.largest, n_groups.div_ceil(GROUPS_OF_CTA)),
            (&self.bound, 1),
            (&self.gather, n_groups.div_ceil(THREADS as u32)),
        ];
        for (kernel, blocks) in launches {
            let &Resources { shared_bytes, .. } = kernel.entry().resources();
            let grid = n_rows * blocks;
            // SAFETY: the caller's promise.
            unsafe { start(entered, stream, kernel, grid, shared_bytes as u32, &params)? };
        }
        let TopKGroupsParams { found, keys, room, .. } = params;
        Ok(TopKParams { found, found_keys: keys, room, ..of_keys(params.k as usize) })
    }
}
