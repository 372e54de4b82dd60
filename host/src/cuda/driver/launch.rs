//! The only launch of a kernel.

use std::ffi::c_void;
use std::ptr;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::{N_COUNTERS, N_PARTIAL_ROWS};
use maxsim_kernels::table::Resources;

use super::context::Entered;
use super::module::Kernel;
use super::symbols::raw;
use crate::error::Result;

/// Launches a kernel with the parameter struct of its row in the table.
///
/// # Safety
/// The struct's addresses must be good for what the kernel does with them until it has run, and
/// `stream` must be a stream of the context.
pub(in crate::cuda) unsafe fn start<P: Copy>(
    entered: &Entered<'_>,
    stream: CUstream,
    kernel: &Kernel<P>,
    grid: u32,
    shared_bytes: u32,
    params: &P,
) -> Result<()> {
    let mut arguments = [kernel.entry().argument(params).cast_mut().cast::<c_void>()];
    let (arguments, no_extra) = (arguments.as_mut_ptr(), ptr::null_mut());
    let &Resources { threads, begins_early, .. } = kernel.entry().resources();
    let n_threads = threads as u32;
    // Drivers before CUDA 11.8 have no such launch, and no GPU whose kernels begin early.
    if begins_early {
        let early = raw::LaunchAttribute::early();
        let config = raw::LaunchConfig {
            grid: [grid, 1, 1],
            block: [n_threads, 1, 1],
            shared_mem_bytes: shared_bytes,
            stream,
            attributes: &early,
            n_attributes: 1,
        };
        // SAFETY: the caller's promise; the driver copies configuration and parameter before it
        // returns. The kernel itself waits for what the one before it writes.
        let code =
            unsafe { raw::cuLaunchKernelEx(&config, kernel.function(), arguments, no_extra) };
        return entered.device().check("cuLaunchKernelEx", code);
    }
    // SAFETY: the caller's promise; the driver copies the parameter before it returns.
    let code = unsafe {
        raw::cuLaunchKernel(
            kernel.function(),
            grid,
            1,
            1,
            n_threads,
            1,
            1,
            shared_bytes,
            stream,
            arguments,
            no_extra,
        )
    };
    entered.device().check("cuLaunchKernel", code)
}

/// Words at the start of every workspace, 0 between kernels: the work counter of
/// dynamically scheduled units, the counters of parts, and the flags and values that Stream-K
/// units publish for a document that continues in the next unit.
pub(in crate::cuda) const N_RESERVED: u64 = N_COUNTERS as u64 + 2 * N_PARTIAL_ROWS as u64;

/// Bytes that these words take, and what follows them is aligned.
pub(in crate::cuda) const RESERVED_BYTES: u64 = (N_RESERVED * 4).next_multiple_of(256);
