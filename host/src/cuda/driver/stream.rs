//! Streams, and the workspace that belongs to each.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cust::stream::StreamFlags;
use cust::sys::CUstream;

use super::context::{CudaDevice, Entered};
use super::memory::Buffer;
use super::symbols::raw;
use crate::error::{Error, Result};
use crate::runtime::swap::lock;

/// A queue of device work with its own workspace.
///
/// The streams of users wait for the legacy default stream and it for them, so that work of
/// CUDA libraries that use the default stream is ordered too.
#[derive(Debug)]
pub(crate) struct CudaStream {
    device: Arc<CudaDevice>,
    raw: CUstream,
    /// The stream, where this value owns it.
    owned: bool,
    id: u64,
    workspace: Option<Buffer>,
    /// Whether a foreign graph uses the workspace, which is then kept for as long as the stream.
    is_captured: bool,
    /// Earlier workspaces that such graphs use.
    captured: Vec<Buffer>,
}

/// The order in which enqueued work runs: work of equal order runs one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The order of the stream with this number.
    Stream(u64),
    /// The order of the stream with this number in a capture into a foreign graph. Streams that
    /// were forked from one another share the capture, but no order.
    Capture { capture: u64, stream: u64 },
}

// SAFETY: the driver takes a stream from any thread; the workspace needs `&mut self`.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub(crate) fn new(device: &Arc<CudaDevice>) -> Result<CudaStream> {
        CudaStream::with_flags(device, StreamFlags::DEFAULT)
    }

    /// Makes a stream to capture work on. It does not synchronise with the legacy default stream,
    /// which may thus be used meanwhile.
    pub(in crate::cuda) fn independent(device: &Arc<CudaDevice>) -> Result<CudaStream> {
        CudaStream::with_flags(device, StreamFlags::NON_BLOCKING)
    }

    /// Creates a stream with these flags. `cust`'s own constructor removes `NON_BLOCKING`.
    fn with_flags(device: &Arc<CudaDevice>, flags: StreamFlags) -> Result<CudaStream> {
        let entered = device.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the context is current.
        let code = unsafe { raw::cuStreamCreateWithPriority(&mut raw, flags.bits(), 0) };
        entered.device().check("cuStreamCreateWithPriority", code)?;
        Ok(CudaStream::with_handle(device, raw, true))
    }

    /// A foreign stream.
    ///
    /// # Safety
    /// `raw` must be a stream of the device's primary context (or null, the legacy default
    /// stream) and outlive this value.
    pub(crate) unsafe fn from_raw(device: &Arc<CudaDevice>, raw: CUstream) -> CudaStream {
        CudaStream::with_handle(device, raw, false)
    }

    fn with_handle(device: &Arc<CudaDevice>, raw: CUstream, owned: bool) -> CudaStream {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (device, captured) = (device.clone(), Vec::new());
        CudaStream { device, raw, owned, id, workspace: None, is_captured: false, captured }
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    /// The order in which work runs that is enqueued now.
    pub(in crate::cuda) fn order(&self, entered: &Entered<'_>) -> Result<Order> {
        let (mut status, mut id) = (0, 0);
        // SAFETY: the stream lives; `status` and `id` outlive the call.
        let code = unsafe { raw::cuStreamGetCaptureInfo(self.raw, &mut status, &mut id) };
        entered.device().check("cuStreamGetCaptureInfo", code)?;
        Ok(match status {
            0 => Order::Stream(self.id),
            _ => Order::Capture { capture: id, stream: self.id },
        })
    }

    /// The device that the stream's work runs on.
    pub(in crate::cuda) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Waits until all work of the stream is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the stream lives; its context is current.
        self.device.check("cuStreamSynchronize", unsafe { raw::cuStreamSynchronize(self.raw) })
    }

    /// Address of at least `len_bytes` bytes of workspace, for work of this stream only, which
    /// is enqueued in `order`.
    pub(in crate::cuda) fn workspace(&mut self, order: Order, len_bytes: u64) -> Result<u64> {
        let is_capture = matches!(order, Order::Capture { .. });
        self.is_captured |= is_capture;
        if let Some(workspace) = &self.workspace
            && workspace.len_bytes() >= len_bytes
        {
            return Ok(workspace.address());
        }
        if is_capture {
            return Err(Error::Unsupported {
                what: "growing a stream's workspace while the stream is captured".into(),
                why: "run the same call once before the capture".into(),
            });
        }
        // The old one first: dropping it waits for the work that uses it.
        if let Some(old) = self.workspace.take()
            && self.is_captured
        {
            self.captured.push(old);
        }
        let workspace = Buffer::zeroed(&self.device, len_bytes)?;
        let address = workspace.address();
        self.workspace = Some(workspace);
        Ok(address)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // A lost device is not touched again.
        if self.owned
            && let Ok(entered) = self.device.enter()
        {
            // SAFETY: made by `with_flags`, and nothing uses it any more; pending work still
            // completes.
            let code = unsafe { raw::cuStreamDestroy_v2(self.raw) };
            // There is no caller to return to, but a fault is remembered.
            let _ = entered.device().check("cuStreamDestroy", code);
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
        // Another thread may have returned a stream meanwhile: drop it outside the lock.
        let surplus = lock(&self.idle_stream).replace(stream);
        drop(surplus);
        result
    }
}
