//! Streams, and the workspace that belongs to each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cust::stream::{Stream, StreamFlags};
use cust::sys::CUstream;

use super::context::{CudaDevice, Entered, lock};
use super::forward::raw;
use super::memory::Buffer;
use super::status;
use crate::error::{Error, Result};

/// A queue of device work with its own workspace.
///
/// Streams made here wait for the legacy default stream and it for them (`cust` makes no
/// others), so that work of CUDA libraries that use the default stream is ordered too.
#[derive(Debug)]
pub(crate) struct CudaStream {
    device: Arc<CudaDevice>,
    raw: CUstream,
    /// The stream, where it is ours.
    owned: Option<Stream>,
    id: u64,
    workspace: Option<Buffer>,
}

// SAFETY: the driver takes a stream from any thread; the workspace needs `&mut self`.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub(crate) fn new(device: &Arc<CudaDevice>) -> Result<CudaStream> {
        let _entered = device.enter()?;
        let stream = Stream::new(StreamFlags::DEFAULT, None)
            .map_err(|error| status::error("cuStreamCreateWithPriority", error as u32))?;
        Ok(CudaStream::with_handle(device, stream.as_inner(), Some(stream)))
    }

    /// A stream that belongs to somebody else.
    ///
    /// # Safety
    /// `raw` must be a stream of the device's primary context (or null, the legacy default
    /// stream) and outlive this value.
    pub(crate) unsafe fn from_raw(device: &Arc<CudaDevice>, raw: CUstream) -> CudaStream {
        CudaStream::with_handle(device, raw, None)
    }

    fn with_handle(device: &Arc<CudaDevice>, raw: CUstream, owned: Option<Stream>) -> CudaStream {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        CudaStream { device: device.clone(), raw, owned, id, workspace: None }
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// A number that no other stream of this process has.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Waits until all work of the stream is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the stream lives; its context is current.
        self.device.check("cuStreamSynchronize", unsafe { raw::cuStreamSynchronize(self.raw) })
    }

    /// Address of at least `len_bytes` bytes of workspace, for work of this stream only.
    pub(super) fn workspace(&mut self, entered: &Entered<'_>, len_bytes: u64) -> Result<u64> {
        if let Some(workspace) = &self.workspace
            && workspace.len_bytes() >= len_bytes
        {
            return Ok(workspace.address());
        }
        if self.is_capturing(entered)? {
            return Err(Error::Unsupported {
                what: "growing a stream's workspace while the stream is captured".into(),
                why: "run the same call once before the capture".into(),
            });
        }
        // The old one first: dropping it waits for the work that uses it.
        self.workspace = None;
        let workspace = Buffer::new(&self.device, len_bytes)?;
        let address = workspace.address();
        self.workspace = Some(workspace);
        Ok(address)
    }

    fn is_capturing(&self, entered: &Entered<'_>) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the stream lives; `status` outlives the call.
        let code = unsafe { raw::cuStreamIsCapturing(self.raw, &mut status) };
        entered.device().check("cuStreamIsCapturing", code)?;
        Ok(status != 0)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let Some(owned) = self.owned.take() else { return };
        match self.device.enter() {
            // Pending work still completes.
            Ok(_entered) => drop(owned),
            // A lost device is not touched again.
            Err(_) => std::mem::forget(owned),
        }
    }
}

impl CudaDevice {
    /// Runs a synchronous call on a stream kept for that. Calls of other threads at the same
    /// time get streams of their own, which are not kept.
    pub(crate) fn on_idle_stream<R>(
        self: &Arc<CudaDevice>,
        call: impl FnOnce(&mut CudaStream) -> Result<R>,
    ) -> Result<R> {
        let idle = lock(&self.idle_stream).take();
        let mut stream = match idle {
            Some(stream) => stream,
            None => CudaStream::new(self)?,
        };
        let result = call(&mut stream);
        // Another thread's stream may have come back meanwhile: it is dropped outside the lock.
        let surplus = lock(&self.idle_stream).replace(stream);
        drop(surplus);
        result
    }
}
