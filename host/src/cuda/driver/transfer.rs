//! Copies host memory to a device through two pinned halves: one is filled while the other is
//! copied. And small results back, behind a stream's work, with one wait.

use std::sync::Arc;

use super::context::{CudaDevice, Entered};
use super::event::CudaEvent;
use super::memory::{Buffer, Pinned, download};
use super::stream::CudaStream;
use super::symbols::raw;
use crate::error::Result;
use crate::runtime::pitch::write_rows;
use crate::runtime::swap::lock;

/// Bytes of a half. At 25 GB/s this travels for 0.3 ms, which hides a copy's latency.
const HALF_BYTES: usize = 8 << 20;

/// Bytes of the least memory that results are copied to.
const LANDING_BYTES_MIN: usize = 64 << 10;

/// Bytes of the most; what is more is copied to where it belongs at once.
const LANDING_BYTES_MAX: usize = 8 << 20;

/// Staging memory and the stream that empties it.
#[derive(Debug)]
pub(in crate::cuda) struct Uploader {
    stream: CudaStream,
    /// The second one is made when an upload first has more than one half: page-locking takes
    /// milliseconds, which a first call should not wait for in vain.
    halves: Vec<Half>,
}

#[derive(Debug)]
struct Half {
    pinned: Pinned,
    /// The last copy out of the half.
    copied: CudaEvent,
}

impl Half {
    fn new(device: &Arc<CudaDevice>) -> Result<Half> {
        let pinned = Pinned::new(device, HALF_BYTES)?;
        Ok(Half { pinned, copied: CudaEvent::new(device, false)? })
    }
}

/// New device memory with the rows of `source`, each `row_bytes` long there and
/// `pitch_bytes` here, padded with zeros. The bytes have arrived when this returns.
pub(in crate::cuda) fn upload_rows(
    device: &Arc<CudaDevice>,
    source: &[u8],
    row_bytes: usize,
    pitch_bytes: usize,
) -> Result<Buffer> {
    let rows = source.len() / row_bytes.max(1);
    upload_made(device, rows as u64, pitch_bytes, |first, staging| {
        let rows = &source[first as usize * row_bytes..];
        let n = staging.len() / pitch_bytes;
        write_rows(staging, &rows[..n * row_bytes], row_bytes, pitch_bytes);
    })
}

/// Makes device memory of `n` entries of `entry_bytes` each. `make` writes them, some at a time: it
/// is given the index of the first one, and their place. The bytes have arrived when this returns.
pub(in crate::cuda) fn upload_made(
    device: &Arc<CudaDevice>,
    n: u64,
    entry_bytes: usize,
    make: impl FnMut(u64, &mut [u8]),
) -> Result<Buffer> {
    let buffer = Buffer::new(device, n * entry_bytes as u64)?;
    if n == 0 {
        return Ok(buffer);
    }
    // Take the uploader out of the lock: `make` may run on several threads, and one that waits for
    // the others may begin an upload of its own meanwhile.
    let idle = lock(&device.uploader).take();
    let mut uploader = idle.map_or_else(|| Uploader::new(device), Ok)?;
    let uploaded = uploader.upload(&buffer, n, entry_bytes, make);
    // Another upload may have returned its uploader meanwhile: drop that outside the lock.
    let surplus = lock(&device.uploader).replace(uploader);
    drop(surplus);
    uploaded.map(|()| buffer)
}

/// New device memory with the bytes of `source`.
pub(in crate::cuda) fn upload(device: &Arc<CudaDevice>, source: &[u8]) -> Result<Buffer> {
    upload_rows(device, source, 1, 1)
}

impl CudaStream {
    /// Copies device memory to the host behind the stream's work, and waits for both: once, through
    /// page-locked memory that is kept, where there is not too much.
    ///
    /// # Safety
    /// Addresses must be device memory of the context with as many bytes as their destinations,
    /// which no work of another stream writes to meanwhile. The stream may not be captured.
    pub(in crate::cuda) unsafe fn read<const N: usize>(
        &self,
        entered: &Entered<'_>,
        from: [(u64, &mut [u8]); N],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.read_parts(entered, from.map(|(address, to)| (address, [to]))) }
    }

    /// As [`CudaStream::read`], of memory that is copied at once to a destination for each part.
    ///
    /// # Safety
    /// As there.
    pub(in crate::cuda) unsafe fn read_parts<const N: usize, const PARTS: usize>(
        &self,
        entered: &Entered<'_>,
        from: [(u64, [&mut [u8]; PARTS]); N],
    ) -> Result<()> {
        let device = self.device();
        let len_of =
            |parts: &[&mut [u8]; PARTS]| parts.iter().map(|part| part.len()).sum::<usize>();
        let len: usize = from.iter().map(|(_, parts)| len_of(parts)).sum();
        if len > LANDING_BYTES_MAX {
            self.synchronize()?;
            // SAFETY: the caller's promise.
            return from.into_iter().try_for_each(|(mut address, parts)| {
                parts.into_iter().try_for_each(|part| {
                    let from = address;
                    address += part.len() as u64;
                    // SAFETY: the caller's promise.
                    unsafe { download(entered, from, part) }
                })
            });
        }
        let kept = lock(&device.landing).take().filter(|kept| kept.len_bytes() >= len);
        let new = || Pinned::new(device, len.next_power_of_two().max(LANDING_BYTES_MIN));
        let mut landing = kept.map_or_else(new, Ok)?;
        let mut rest = landing.as_mut_slice();
        let mut places: [&[u8]; N] = [&[]; N];
        for ((address, parts), place) in from.iter().zip(&mut places) {
            let (to, behind) = rest.split_at_mut(len_of(parts));
            if !to.is_empty() {
                // SAFETY: the caller's promise; the page-locked bytes live, and are read behind the
                // wait alone.
                let code = unsafe {
                    raw::cuMemcpyDtoHAsync_v2(
                        to.as_mut_ptr().cast(),
                        *address,
                        to.len(),
                        self.raw(),
                    )
                };
                device.check("cuMemcpyDtoHAsync", code)?;
            }
            (*place, rest) = (to, behind);
        }
        self.synchronize()?;
        for ((_, parts), mut place) in from.into_iter().zip(places) {
            for part in parts {
                let (own, behind) = place.split_at(part.len());
                part.copy_from_slice(own);
                place = behind;
            }
        }
        // Another thread may have returned its own meanwhile: that is dropped outside the lock.
        let surplus = lock(&device.landing).replace(landing);
        drop(surplus);
        Ok(())
    }
}

impl Uploader {
    fn new(device: &Arc<CudaDevice>) -> Result<Uploader> {
        let stream = CudaStream::new(device)?;
        Ok(Uploader { stream, halves: vec![Half::new(device)?] })
    }

    fn upload(
        &mut self,
        destination: &Buffer,
        n: u64,
        entry_bytes: usize,
        mut make: impl FnMut(u64, &mut [u8]),
    ) -> Result<()> {
        let device = destination.device();
        let entered = device.enter()?;
        let stream = self.stream.raw();
        let at_once = (HALF_BYTES / entry_bytes) as u64;
        for (i, first) in (0..n).step_by(at_once as usize).enumerate() {
            if i == self.halves.len() && i < 2 {
                self.halves.push(Half::new(device)?);
            }
            let half = &mut self.halves[i % 2];
            half.copied.synchronize()?;
            let len = at_once.min(n - first) as usize * entry_bytes;
            make(first, &mut half.pinned.as_mut_slice()[..len]);
            // SAFETY: the destination has `n * entry_bytes` bytes, of which these are the next;
            // the pinned bytes stay untouched until `copied` says that they are read.
            unsafe {
                let code = raw::cuMemcpyHtoDAsync_v2(
                    destination.address() + first * entry_bytes as u64,
                    half.pinned.as_ptr().cast(),
                    len,
                    stream,
                );
                device.check("cuMemcpyHtoDAsync", code)?;
                half.copied.record(&entered, stream)?;
            }
        }
        self.stream.synchronize()
    }
}
