//! Streams, and the workspace that belongs to each.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cust::stream::StreamFlags;
use cust::sys::CUstream;

use super::context::{CudaDevice, Entered};
use super::event::CudaEvent;
use super::launch::N_RESERVED;
use super::memory::retired::Track;
use super::memory::{Buffer, fill};
use super::staging::Followed;
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
    /// Whether the handle means this stream on one thread alone.
    is_threads: bool,
    id: u64,
    /// Its place among the streams that dropped memory waits for, where work runs on it.
    track: Option<Track>,
    /// The lists that its work may read.
    followed: Followed,
    workspace: Option<Workspace>,
    /// Whether a foreign graph uses the workspace, which is then kept for as long as the stream.
    in_graph: bool,
    /// Earlier workspaces that such graphs use.
    captured: Vec<Buffer>,
}

/// Memory for what kernels of one stream pass to each other.
#[derive(Debug)]
enum Workspace {
    Own(Buffer),
    Given { address: u64, len_bytes: u64 },
}

impl Workspace {
    fn place(&self) -> (u64, u64) {
        match self {
            Workspace::Own(buffer) => (buffer.address(), buffer.len_bytes()),
            &Workspace::Given { address, len_bytes } => (address, len_bytes),
        }
    }
}

/// The workspace of a stream that works with another one meanwhile.
#[derive(Debug)]
pub(crate) struct Before(Option<Workspace>);

/// `CU_STREAM_PER_THREAD`: on each thread the default stream of that thread.
const PER_THREAD: usize = 2;

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

    /// Makes a stream to capture work on, and for no work itself. It does not synchronise with the
    /// legacy default stream, which may thus be used meanwhile.
    pub(in crate::cuda) fn independent(device: &Arc<CudaDevice>) -> Result<CudaStream> {
        let raw = create(device, StreamFlags::NON_BLOCKING)?;
        Ok(CudaStream::with_handle(device, raw, true, None))
    }

    /// Makes a stream for copies that do not wait for the legacy default stream.
    pub(in crate::cuda) fn for_copies(device: &Arc<CudaDevice>) -> Result<CudaStream> {
        CudaStream::with_flags(device, StreamFlags::NON_BLOCKING)
    }

    fn with_flags(device: &Arc<CudaDevice>, flags: StreamFlags) -> Result<CudaStream> {
        let raw = create(device, flags)?;
        let track = device.retired.track(raw, false);
        Ok(CudaStream::with_handle(device, raw, true, Some(track)))
    }

    /// A foreign stream.
    ///
    /// # Safety
    /// `raw` must be a stream of the device's primary context, or null, the legacy default stream,
    /// or 2, that of this thread; then this value must stay on it. The stream must outlive this
    /// value, which may not be dropped while the stream is captured.
    pub(crate) unsafe fn from_raw(device: &Arc<CudaDevice>, raw: CUstream) -> CudaStream {
        let track = device.retired.track(raw, raw.addr() == PER_THREAD);
        CudaStream::with_handle(device, raw, false, Some(track))
    }

    fn with_handle(
        device: &Arc<CudaDevice>,
        raw: CUstream,
        owned: bool,
        track: Option<Track>,
    ) -> CudaStream {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        CudaStream {
            device: device.clone(),
            raw,
            owned,
            is_threads: raw.addr() == PER_THREAD,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            track,
            followed: Followed::default(),
            workspace: None,
            in_graph: false,
            captured: Vec::new(),
        }
    }

    /// The driver's handle, to enqueue work with.
    pub(crate) fn raw(&self) -> CUstream {
        if let Some(track) = &self.track {
            track.mark();
        }
        self.raw
    }

    /// The lists that the stream's work may read.
    pub(in crate::cuda) fn followed(&self) -> &Followed {
        &self.followed
    }

    /// The order in which work runs that is enqueued now: behind all lists that were made before.
    pub(in crate::cuda) fn order(&self, entered: &Entered<'_>) -> Result<Order> {
        let order = match self.capture(entered)? {
            None => Order::Stream(self.id),
            Some(capture) => Order::Capture { capture, stream: self.id },
        };
        // Only this thread can say how far its own stream has come.
        if self.is_threads && self.device.retired.waits() {
            self.device.reclaim(entered);
        }
        self.device.staging.follow(entered, self, order)?;
        Ok(order)
    }

    /// The device that the stream's work runs on.
    pub(in crate::cuda) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Waits until all work of the stream is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        let _relaxed = self.device.relaxed();
        // SAFETY: the stream lives; its context is current.
        self.device.check("cuStreamSynchronize", unsafe { raw::cuStreamSynchronize(self.raw) })
    }

    /// Address of at least `len_bytes` bytes of workspace, for work of this stream only, which
    /// is enqueued in `order`.
    pub(in crate::cuda) fn workspace(
        &mut self,
        entered: &Entered<'_>,
        order: Order,
        len_bytes: u64,
    ) -> Result<u64> {
        let is_capture = matches!(order, Order::Capture { .. });
        self.in_graph |= is_capture;
        let place = self.workspace.as_ref().map(Workspace::place);
        match (place, &self.workspace) {
            (Some((address, found)), _) if found >= len_bytes => return Ok(address),
            (Some((_, found)), Some(Workspace::Given { .. })) => {
                return Err(Error::Shape {
                    argument: "workspace",
                    expected: format!("at least {len_bytes} bytes, as the work says"),
                    found: format!("{found} bytes"),
                });
            }
            _ if is_capture => {
                return Err(Error::Unsupported {
                    what: "growing a stream's workspace while the stream is captured".into(),
                    why: "run the same call once before the capture".into(),
                });
            }
            _ => {}
        }
        // The old one first, which a large new one may need the memory of.
        self.drop_workspace();
        let workspace = Buffer::new(&self.device, len_bytes)?;
        let address = workspace.address();
        // SAFETY: the buffer was just made, with this length; work of this stream alone uses it.
        unsafe { fill(entered, address, 0, len_bytes, self.raw())? };
        self.workspace = Some(Workspace::Own(workspace));
        Ok(address)
    }

    /// Replaces the workspace by memory of the caller.
    ///
    /// # Safety
    /// The memory must be of the device, aligned to 256 bytes, this stream's alone until this value
    /// is dropped or has another workspace, and stay until the work enqueued by then is done.
    pub(crate) unsafe fn set_workspace(&mut self, address: u64, len_bytes: u64) -> Result<()> {
        self.drop_workspace();
        // SAFETY: the caller's promise.
        unsafe { self.lend_workspace(address, len_bytes)? };
        Ok(())
    }

    /// Replaces the workspace by memory of the caller until [`CudaStream::restore_workspace`].
    ///
    /// # Safety
    /// As [`CudaStream::set_workspace`].
    pub(crate) unsafe fn lend_workspace(&mut self, address: u64, len_bytes: u64) -> Result<Before> {
        let device = self.device.clone();
        let entered = device.enter()?;
        // SAFETY: the caller's promise. What kernels expect to be 0 lies at the start.
        unsafe { fill(&entered, address, 0, len_bytes.min(N_RESERVED * 4), self.raw())? };
        Ok(Before(self.workspace.replace(Workspace::Given { address, len_bytes })))
    }

    /// Goes back to the workspace that there was.
    pub(crate) fn restore_workspace(&mut self, Before(before): Before) {
        self.workspace = before;
    }

    /// Bytes of the workspace that there is.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.workspace.as_ref().map_or(0, |workspace| workspace.place().1)
    }

    /// Whether the stream is captured now.
    pub(crate) fn is_captured(&self) -> Result<bool> {
        let entered = self.device.enter()?;
        Ok(self.capture(&entered)?.is_some())
    }

    /// The number of the capture that the stream is in.
    fn capture(&self, entered: &Entered<'_>) -> Result<Option<u64>> {
        let (mut status, mut id) = (0, 0);
        // SAFETY: the stream lives; `status` and `id` outlive the call.
        let code = unsafe { raw::cuStreamGetCaptureInfo(self.raw, &mut status, &mut id) };
        entered.device().check("cuStreamGetCaptureInfo", code)?;
        Ok((status != 0).then_some(id))
    }

    fn drop_workspace(&mut self) {
        if let Some(Workspace::Own(old)) = self.workspace.take()
            && self.in_graph
        {
            self.captured.push(old);
        }
    }
}

/// Creates a stream with these flags. `cust`'s own constructor removes `NON_BLOCKING`.
fn create(device: &CudaDevice, flags: StreamFlags) -> Result<CUstream> {
    let entered = device.enter()?;
    let mut raw = ptr::null_mut();
    // SAFETY: `raw` outlives the call; the context is current.
    let code = unsafe { raw::cuStreamCreateWithPriority(&mut raw, flags.bits(), 0) };
    entered.device().check("cuStreamCreateWithPriority", code)?;
    Ok(raw)
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // A lost device is not touched again.
        let Ok(entered) = self.device.enter() else { return };
        if let Some(track) = &self.track {
            self.device.untrack(&entered, track);
        }
        if self.owned {
            // SAFETY: made by `create`, and nothing uses it any more; pending work still
            // completes.
            let code = unsafe { raw::cuStreamDestroy_v2(self.raw) };
            // There is no caller to return to, but a fault is remembered.
            let _ = entered.device().check("cuStreamDestroy", code);
        }
    }
}

/// Streams that are kept for synchronous calls: one that needs two is among them.
const IDLE_STREAMS_MAX: usize = 2;

impl CudaDevice {
    /// As [`CudaDevice::on_idle_stream`], and waits for the stream: even after an error, since
    /// launches before it may be running, and use what the caller drops.
    pub(in crate::cuda) fn until_done<R>(
        self: &Arc<CudaDevice>,
        call: impl FnOnce(&mut CudaStream) -> Result<R>,
    ) -> Result<R> {
        self.on_idle_stream(|stream| {
            let result = call(stream);
            let ended = stream.synchronize();
            result.and_then(|result| ended.map(|()| result))
        })
    }

    /// As [`CudaDevice::until_done`], on two streams. The host waits once, for the first, which
    /// waits for the other.
    pub(in crate::cuda) fn until_both_are_done<R>(
        self: &Arc<CudaDevice>,
        call: impl FnOnce([&mut CudaStream; 2]) -> Result<R>,
    ) -> Result<R> {
        let joined = CudaEvent::new(self, false)?;
        self.until_done(|first| {
            self.on_idle_stream(|second| {
                let result = call([&mut *first, &mut *second]);
                let joins = joined.record_on(second).and_then(|()| {
                    let entered = self.enter()?;
                    joined.hold_back(&entered, first, first.order(&entered)?)
                });
                let Err(error) = joins else { return result };
                // Nothing else waits for it; what it says is no more than that it failed, too.
                let _ = second.synchronize();
                result.and_then(|_| Err(error))
            })
        })
    }

    /// Runs a synchronous call on a stream kept for that, behind all copies of lists and rows that
    /// were begun before: a call may launch kernels that read them. Calls of other threads at the
    /// same time get streams of their own, which are not kept.
    pub(crate) fn on_idle_stream<R>(
        self: &Arc<CudaDevice>,
        call: impl FnOnce(&mut CudaStream) -> Result<R>,
    ) -> Result<R> {
        let idle = lock(&self.idle_streams).pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => CudaStream::new(self)?,
        };
        let entered = self.enter()?;
        self.staging.follow(&entered, &stream, Order::Stream(stream.id))?;
        drop(entered);
        let result = call(&mut stream);
        // Other threads may have returned streams meanwhile: drop one too many outside the lock.
        let mut idle = lock(&self.idle_streams);
        let surplus = if idle.len() < IDLE_STREAMS_MAX { None } else { idle.pop() };
        idle.push(stream);
        drop(idle);
        drop(surplus);
        result
    }
}
