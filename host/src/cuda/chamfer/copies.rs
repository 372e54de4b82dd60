//! Copies of clouds of many dims, whose products find blocks that may have nearest points: the
//! launches that make them.

use std::sync::Arc;

use bytemuck::cast_slice;
use cust::sys::CUstream;
use maxsim_kernels::abi::params::chamfer::select::{COPY_LEN, CopyParams, extent};
use maxsim_kernels::table::auxiliary::{CHAMFER_COPIES, CHAMFER_EXTENTS};

use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::{Buffer, fill};
use crate::cuda::driver::module::Kernel;
use crate::cuda::driver::staging::upload_lists;
use crate::error::Result;
use crate::runtime::alloc::reserve;
use crate::tokens::layout::check_count;

/// The [`CopyTask`](maxsim_kernels::abi::params::chamfer::select::CopyTask)s of clouds.
#[derive(Default)]
pub(super) struct CopyTasks(Vec<[u32; 4]>);

impl CopyTasks {
    /// Adds so many points of a side, whose copies lie one behind the other from a row on.
    pub(super) fn add(&mut self, pair_and_side: u32, len: u32, row: u32) -> Result<()> {
        reserve(&mut self.0, len.div_ceil(COPY_LEN) as usize)?;
        let tasks = (0..len).step_by(COPY_LEN as usize);
        self.0.extend(tasks.map(|at| [pair_and_side, at, row + at, 0]));
        Ok(())
    }
}

/// The kernels that copy clouds, and their tasks on the device.
#[derive(Debug)]
pub(super) struct CloudCopies {
    extents: Kernel<CopyParams>,
    copies: Kernel<CopyParams>,
    n_pairs: usize,
    n_tasks: u32,
    tasks: u64,
    _memory: Buffer,
}

impl CloudCopies {
    /// Uploads the tasks, of clouds of so many pairs.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        CopyTasks(tasks): &CopyTasks,
        n_pairs: usize,
    ) -> Result<CloudCopies> {
        check_count("CTAs that copy clouds", tasks.len())?;
        let (memory, [address]) = upload_lists(device, [cast_slice(tasks)])?;
        Ok(CloudCopies {
            extents: device.kernel(CHAMFER_EXTENTS)?,
            copies: device.kernel(CHAMFER_COPIES)?,
            n_pairs,
            n_tasks: tasks.len() as u32,
            tasks: address,
            _memory: memory,
        })
    }

    /// Address of the tasks.
    pub(super) fn tasks(&self) -> u64 {
        self.tasks
    }

    /// Bytes of what is known of the pairs.
    pub(super) fn extents_bytes(&self) -> u64 {
        u64::from(extent::LEN) * 4 * self.n_pairs as u64
    }

    /// Clears so many bytes from the extents on, and enqueues the launches.
    ///
    /// # Safety
    /// `params` must describe memory as [`CopyParams`] says, with these tasks, until the launches
    /// have run, and have so many bytes; nothing else may use it until then.
    pub(super) unsafe fn run(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        params: &CopyParams,
        cleared_bytes: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            fill(entered, params.extents, 0, cleared_bytes, stream)?;
            start(entered, stream, &self.extents, self.n_tasks, 0, params)?;
            start(entered, stream, &self.copies, self.n_tasks, 0, params)
        }
    }
}
