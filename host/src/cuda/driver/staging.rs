//! Copies of lists to a device that no call waits for: through pinned memory that is used again, on
//! a stream of their own, which every other stream follows before its next work.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::context::{CudaDevice, Entered};
use super::event::CudaEvent;
use super::memory::{Buffer, Pinned};
use super::stream::{CudaStream, Order};
use super::symbols::raw;
use super::transfer::{upload, upload_rows};
use crate::error::Result;
use crate::runtime::arrival::Arrival;
use crate::runtime::pitch::write_rows;
use crate::runtime::swap::lock;

/// Most bytes that are staged; longer lists are uploaded as tokens are.
const STAGED_BYTES_MAX: usize = 1 << 20;

/// Bytes of the smallest piece of staging memory.
const PIECE_BYTES: usize = 32 << 10;

/// Most pieces of staging memory. When copies out of all of them are under way a caller waits.
const PIECES_MAX: usize = 8;

/// Lists start at multiples of this.
const ALIGN_BYTES: usize = 16;

/// The staging memory of a device.
#[derive(Debug, Default)]
pub(in crate::cuda) struct Staging {
    /// Number of copies so far.
    newest: AtomicU64,
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    stream: CudaStream,
    /// In the order of their last copies.
    pieces: VecDeque<Piece>,
}

#[derive(Debug)]
struct Piece {
    pinned: Pinned,
    /// Bytes that copies may still read.
    used: usize,
    /// The last copy out of the piece.
    copied: CudaEvent,
}

/// The newest copy that a stream is known to run behind.
#[derive(Debug, Default)]
pub(in crate::cuda) struct Followed(AtomicU64);

/// New device memory with several lists, and their addresses there; 0 = an empty one. Does not
/// wait: work that is enqueued on streams of the library from now on runs behind the copy.
pub(in crate::cuda) fn upload_lists<const N: usize>(
    device: &Arc<CudaDevice>,
    lists: [&[u8]; N],
) -> Result<(Buffer, [u64; N])> {
    let (offsets, len) = offsets(lists);
    let buffer = match len {
        0 => Buffer::new(device, 0)?,
        1..=STAGED_BYTES_MAX => stage(device, lists, offsets, len)?,
        _ => {
            let mut bytes = vec![0; len];
            write(&mut bytes, lists, offsets);
            upload(device, &bytes)?
        }
    };
    let address = |offset: usize| buffer.address() + offset as u64;
    let addresses = offsets.map(|offset| offset.map_or(0, address));
    Ok((buffer, addresses))
}

/// As [`upload_rows`], with the rows there by `arrival`.
pub(in crate::cuda) fn send_rows(
    device: &Arc<CudaDevice>,
    source: &[u8],
    [row_bytes, pitch_bytes]: [usize; 2],
    arrival: Arrival,
) -> Result<Buffer> {
    let len = source.len() / row_bytes.max(1) * pitch_bytes;
    match arrival {
        Arrival::InOrder if len <= STAGED_BYTES_MAX => {
            let mut rows = vec![0; len];
            write_rows(&mut rows, source, row_bytes, pitch_bytes);
            Ok(upload_lists(device, [&rows])?.0)
        }
        _ => upload_rows(device, source, row_bytes, pitch_bytes),
    }
}

/// Offsets of lists that lie behind each other; `None` = an empty one. And where the last one ends.
fn offsets<const N: usize>(lists: [&[u8]; N]) -> ([Option<usize>; N], usize) {
    let mut end = 0usize;
    let offsets = lists.map(|list| {
        (!list.is_empty()).then(|| {
            let offset = end.next_multiple_of(ALIGN_BYTES);
            end = offset + list.len();
            offset
        })
    });
    (offsets, end)
}

/// Writes lists to their offsets. What lies between them stays.
fn write<const N: usize>(to: &mut [u8], lists: [&[u8]; N], offsets: [Option<usize>; N]) {
    for (list, offset) in lists.into_iter().zip(offsets) {
        if let Some(offset) = offset {
            to[offset..offset + list.len()].copy_from_slice(list);
        }
    }
}

fn stage<const N: usize>(
    device: &Arc<CudaDevice>,
    lists: [&[u8]; N],
    offsets: [Option<usize>; N],
    len: usize,
) -> Result<Buffer> {
    let buffer = Buffer::new(device, len as u64)?;
    let entered = device.enter()?;
    let mut state = lock(&device.staging.state);
    let State { stream, pieces } = match &mut *state {
        Some(state) => state,
        none => {
            let stream = CudaStream::for_copies(device)?;
            none.insert(State { stream, pieces: VecDeque::new() })
        }
    };
    let mut piece = take(device, pieces, len)?;
    let staged = piece.used..piece.used + len;
    write(&mut piece.pinned.unused_mut(staged.start)[..len], lists, offsets);
    piece.used = staged.end.next_multiple_of(ALIGN_BYTES);
    let from = piece.pinned.as_ptr().wrapping_add(staged.start).cast();
    let raw = stream.raw();
    // SAFETY: the buffer was just made, with this length; the bytes stay as they are until `copied`
    // says that they were read.
    let code = unsafe { raw::cuMemcpyHtoDAsync_v2(buffer.address(), from, len, raw) };
    device.check("cuMemcpyHtoDAsync", code)?;
    // SAFETY: the stream is never captured: its handle is not given away.
    unsafe { piece.copied.record(&entered, raw)? };
    pieces.push_back(piece);
    device.staging.newest.fetch_add(1, Ordering::Release);
    Ok(buffer)
}

/// Takes a piece with room for `len` bytes: the last one, or one that no copy reads any more.
fn take(device: &Arc<CudaDevice>, pieces: &mut VecDeque<Piece>, len: usize) -> Result<Piece> {
    if let Some(piece) = pieces.pop_back_if(|piece| piece.pinned.len_bytes() >= piece.used + len) {
        return Ok(piece);
    }
    let is_done = pieces.front().map_or(Ok(false), |piece| piece.copied.is_done())?;
    if (is_done || pieces.len() == PIECES_MAX)
        && let Some(mut piece) = pieces.pop_front()
    {
        if !is_done {
            piece.copied.synchronize()?;
        }
        if piece.pinned.len_bytes() >= len {
            piece.used = 0;
            return Ok(piece);
        }
    }
    let pinned = Pinned::new(device, len.next_power_of_two().max(PIECE_BYTES))?;
    Ok(Piece { pinned, used: 0, copied: CudaEvent::new(device, false)? })
}

impl Staging {
    /// Orders a stream's next work behind all copies so far.
    pub(in crate::cuda) fn follow(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
    ) -> Result<()> {
        let Followed(followed) = stream.followed();
        if followed.load(Ordering::Relaxed) == self.newest.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = lock(&self.state);
        let newest = self.newest.load(Ordering::Acquire);
        // Copies end in their order.
        let Some(piece) = state.as_ref().and_then(|state| state.pieces.back()) else {
            return Ok(());
        };
        match order {
            // The graph must not wait for an event whenever it runs: the host waits, for copies of
            // some bytes on a stream that nothing else is on.
            Order::Capture { .. } if piece.copied.is_done()? => {}
            Order::Capture { .. } => piece.copied.synchronize()?,
            Order::Stream(_) => piece.copied.hold_back(entered, stream, order)?,
        }
        followed.store(newest, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_start_on_boundaries_and_empty_ones_nowhere() {
        let lists: [&[u8]; 5] = [&[], &[1; 20], &[], &[2; 16], &[3]];
        let (offsets, len) = offsets(lists);
        assert_eq!((offsets, len), ([None, Some(0), None, Some(32), Some(48)], 49));
        let mut bytes = vec![0; len];
        write(&mut bytes, lists, offsets);
        assert_eq!(bytes, [[1; 20].as_slice(), &[0; 12], &[2; 16], &[3]].concat());
        assert_eq!(super::offsets([&[]]), ([None], 0));
    }
}
