//! Reads tokens and computes nothing: the limit of kernels that are bound by memory.

use maxsim_kernels::abi::params::BandwidthParams;
use maxsim_kernels::table::auxiliary::BANDWIDTH;

use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::launch::{N_RESERVED, start};
use crate::cuda::driver::stream::CudaStream;
use crate::error::{Error, Result};
use crate::plan::limits::Access;

/// Bytes that a thread loads at once, and that the matrix must be aligned to.
const VECTOR_BYTES: u64 = 16;

/// Most CTAs of a launch.
const GRID_MAX: usize = i32::MAX as usize;

/// Enqueues a read of a whole matrix of rows of `row_bytes`, less what follows its last vector of
/// 16 bytes.
pub(crate) fn read(
    stream: &mut CudaStream,
    tokens: &CudaTokens,
    row_bytes: usize,
    blocks_per_multiprocessor: usize,
) -> Result<()> {
    let device = stream.device().clone();
    let Access { base, pitch_bytes, .. } = tokens.access();
    // Exclude the padding after the last row, which a view may not own.
    let rows = tokens.n_rows() as u64;
    let len_bytes = rows.saturating_sub(1) * pitch_bytes + rows.min(1) * row_bytes as u64;
    if !base.is_multiple_of(VECTOR_BYTES) || blocks_per_multiprocessor == 0 {
        return Err(Error::Shape {
            argument: "tokens, blocks_per_multiprocessor",
            expected: "a matrix on a 16-byte boundary, at least one block".into(),
            found: format!("a matrix at {base:#x}, {blocks_per_multiprocessor} blocks"),
        });
    }
    let n_blocks = device.limits().n_multiprocessors.saturating_mul(blocks_per_multiprocessor);
    if n_blocks > GRID_MAX {
        return Err(Error::TooLarge {
            what: "number of blocks",
            limit: GRID_MAX as u64,
            found: n_blocks as u64,
        });
    }
    let kernel = device.kernel(BANDWIDTH)?;
    let entered = device.enter()?;
    let order = stream.order(&entered)?;
    // Behind the counters.
    let sink = stream.workspace(&entered, order, (N_RESERVED + 1) * 4)? + N_RESERVED * 4;
    let params = BandwidthParams { base, n_vectors: len_bytes / VECTOR_BYTES, sink };
    // SAFETY: a handle's matrix has the rows of its layout at its pitch, and is not written
    // during a call; the sink is this stream's.
    unsafe { start(&entered, stream.raw(), &kernel, n_blocks as u32, 0, &params) }
}
