//! Items that the device alone knows.

use super::stream::Stream;
use crate::cuda::write_segments;
use crate::error::Result;
use crate::runtime::on::On;
use crate::tokens::raw_items::{RawItems, RawItemsOut};

impl Stream {
    /// Finds the rows of items from offsets, lengths and ids in device memory, without a wait:
    /// segments for [`RawRows::segments`](crate::format::RawRows::segments), and a mask of the rows
    /// that padded items have, for queries. One small kernel; nothing is allocated, and it may be
    /// captured.
    ///
    /// Input that the host would refuse cannot be an error here. An invalid item becomes an empty
    /// one and is marked ([`RawItemsOut::new`]): the caller makes NaN of its scores, or whatever
    /// shows.
    ///
    /// ```no_run
    /// use maxsim::format::{RawIndices, RawItems, RawItemsOut, RawRows};
    /// use maxsim::half::f16;
    /// use maxsim::stream::Stream;
    /// use maxsim::{DeviceTokens, Result, TokenLayout};
    ///
    /// /// 100 documents that another library has packed, with their offsets on the device.
    /// ///
    /// /// # Safety
    /// /// The memory stays as it is until the stream has done the calls that are given the handle.
    /// unsafe fn documents(
    ///     stream: &mut Stream,
    ///     (tokens, rows): (u64, usize),
    ///     offsets: u64,
    ///     [segments, invalid]: [u64; 2],
    /// ) -> Result<DeviceTokens<f16>> {
    ///     let longest = 512.min(rows);
    ///     let items = RawItems::packed(100, RawIndices::I32(offsets), rows, longest);
    ///     let layout = TokenLayout::unread(rows, 128, items.n_items(), longest, rows / 100)?;
    ///     // SAFETY: the caller's promise.
    ///     unsafe {
    ///         stream.write_segments(&items, RawItemsOut::new(invalid).segments(segments))?;
    ///         let rows = RawRows::new(tokens, 256).segments(segments);
    ///         DeviceTokens::from_raw_unchecked(stream.device(), rows, layout)
    ///     }
    /// }
    ///
    /// // The first `lengths[i]` of 32 tokens of each of the pages that are named, as a mask, too.
    /// let [lengths, ids, mask, invalid] = [0u64, 256, 512, 1024]; // addresses
    /// let pages = RawItems::padded(50, 32, 32, 50 * 32).with_lengths(RawIndices::I64(lengths));
    /// let some = pages.with_ids(10, RawIndices::I64(ids));
    /// let to = RawItemsOut::new(invalid).mask(mask, None);
    /// # let lists = [RawIndices::I32(0), RawIndices::I32(8)];
    /// # let _ = (some, to, RawItems::scattered(2, lists, 9, 9));
    /// ```
    ///
    /// # Safety
    /// Addresses of `items` and `out` must be those of lists and room as these types say, in memory
    /// of the stream's device, which nothing else writes to until the stream has done this.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) on the CPU;
    /// [`Error::Shape`](crate::Error::Shape) for lists of two types,
    /// [`Error::TooLarge`](crate::Error::TooLarge), and
    /// [`Error::ForeignPointer`](crate::Error::ForeignPointer) for misaligned addresses.
    pub unsafe fn write_segments(&mut self, items: &RawItems, out: RawItemsOut) -> Result<()> {
        self.device.cuda_device("items in memory of a CUDA device")?;
        match &mut self.inner {
            On::Cpu(()) => Ok(()),
            // SAFETY: the caller's promise.
            On::Cuda(stream) => unsafe { write_segments(stream, items, out) },
        }
    }
}
