//! Finds the rows of items on the device, from lists that the host never reads.

use maxsim_kernels::abi::params::{SEGMENTS_THREADS, SegmentsParams};
use maxsim_kernels::table::auxiliary::SEGMENTS;

use crate::cuda::driver::launch::start;
use crate::cuda::driver::stream::CudaStream;
use crate::error::Result;
use crate::tokens::raw_items::{RawIndices, RawItems, RawItemsOut};

/// Enqueues what finds the items' rows.
///
/// # Safety
/// The addresses must be those of lists and room as [`RawItems`] and [`RawItemsOut`] say, in memory
/// of the stream's device, until the stream has done this.
pub(crate) unsafe fn write_segments(
    stream: &mut CudaStream,
    items: &RawItems,
    out: RawItemsOut,
) -> Result<()> {
    items.check(out)?;
    if items.n_items() == 0 {
        return Ok(());
    }
    let part = |list: Option<RawIndices>| list.map_or((0, false), RawIndices::parts);
    let ((starts, starts_are_wide), (lengths, lengths_are_wide)) =
        (part(items.starts), part(items.lengths));
    let (ids, has_wide_ids) = part(items.ids.map(|(_, ids)| ids));
    // Counts are below 2³¹, as was checked.
    let params = SegmentsParams {
        starts,
        lengths,
        ids,
        segments: out.segments,
        invalid: out.invalid,
        mask: out.mask,
        mask_in: out.mask_in,
        n_items: items.n_items() as u32,
        n_sources: items.n_sources as u32,
        n_rows: items.rows as u32,
        max_len: items.max_len as u32,
        stride: items.stride as u32,
        is_wide: (starts_are_wide || lengths_are_wide).into(),
        has_wide_ids: has_wide_ids.into(),
        reserved: 0,
    };
    let n_threads = u64::from(params.n_items) * u64::from(params.width());
    let grid = n_threads.div_ceil(SEGMENTS_THREADS as u64) as u32;
    let device = stream.device().clone();
    let kernel = device.kernel(SEGMENTS)?;
    let entered = device.enter()?;
    stream.order(&entered)?;
    // SAFETY: the caller's promise; there is a thread per item or byte of the mask.
    unsafe { start(&entered, stream.raw(), &kernel, grid, 0, &params) }
}
