//! Events: points in a stream that others wait for or measure between.

use std::ptr;
use std::sync::Arc;

use cust::event::EventFlags;
use cust::sys::{CUevent, CUstream};

use super::context::{CudaDevice, Entered};
use super::stream::{CudaStream, Order};
use super::symbols::raw;
use crate::error::Result;

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: while a stream is captured, a node
/// of the graph that records the event, or waits for it, whenever the graph runs. Without it
/// the event would belong to the capture, and nothing outside could wait for it.
const EXTERNAL: u32 = 1;

/// A driver event. (`cust`'s own does not give its handle away, which waiting needs.)
#[derive(Debug)]
pub(crate) struct CudaEvent {
    device: Arc<CudaDevice>,
    raw: CUevent,
}

// SAFETY: the driver's event functions may be called from any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: as above; recording and waiting are atomic in the driver.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// An event that only orders work, or one that also takes the time.
    pub(in crate::cuda) fn new(device: &Arc<CudaDevice>, timing: bool) -> Result<CudaEvent> {
        let _entered = device.enter()?;
        let flags = if timing { EventFlags::DEFAULT } else { EventFlags::DISABLE_TIMING };
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the context is current.
        device.check("cuEventCreate", unsafe { raw::cuEventCreate(&mut raw, flags.bits()) })?;
        Ok(CudaEvent { device: device.clone(), raw })
    }

    /// An event that takes the time.
    pub(crate) fn timing(device: &Arc<CudaDevice>) -> Result<CudaEvent> {
        CudaEvent::new(device, true)
    }

    /// Records the work enqueued on a stream so far.
    ///
    /// # Safety
    /// `stream` must be a stream of the event's context that is not captured, or null for the
    /// legacy default one.
    pub(in crate::cuda) unsafe fn record(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
    ) -> Result<()> {
        // SAFETY: the event lives; the caller's promise for the stream.
        entered.device().check("cuEventRecord", unsafe { raw::cuEventRecord(self.raw, stream) })
    }

    /// Records the work that a stream of the same device has been given so far; while it is
    /// captured, the same point in the graph.
    pub(in crate::cuda) fn record_in(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
    ) -> Result<()> {
        // SAFETY: the event lives; one device has one context here, and the caller gives a
        // stream of it, which `order` says is captured or not.
        unsafe {
            match order {
                Order::Stream(_) => self.record(entered, stream.raw()),
                Order::Capture { .. } => entered.device().check(
                    "cuEventRecordWithFlags",
                    raw::cuEventRecordWithFlags(self.raw, stream.raw(), EXTERNAL),
                ),
            }
        }
    }

    /// Records a captured stream's point in its capture, for other streams of the same capture
    /// alone.
    pub(in crate::cuda) fn mark_inside(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
    ) -> Result<()> {
        // SAFETY: the event lives; the stream belongs to the device's context.
        let code = unsafe { raw::cuEventRecord(self.raw, stream.raw()) };
        entered.device().check("cuEventRecord", code)
    }

    /// Makes later work of a captured stream wait for what was recorded in the same capture.
    pub(in crate::cuda) fn hold_back_inside(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
    ) -> Result<()> {
        // SAFETY: as above; the event was marked in this capture.
        let code = unsafe { raw::cuStreamWaitEvent(stream.raw(), self.raw, 0) };
        entered.device().check("cuStreamWaitEvent", code)
    }

    /// Records the work that a stream of the same device has been given so far.
    pub(crate) fn record_on(&self, stream: &CudaStream) -> Result<()> {
        let entered = self.device.enter()?;
        self.record_in(&entered, stream, stream.order(&entered)?)
    }

    /// Makes later work of a stream of the same device wait for the recorded work; while it
    /// is captured, later work in the graph waits for what is recorded when the graph runs.
    pub(in crate::cuda) fn hold_back(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
    ) -> Result<()> {
        let flags = match order {
            Order::Stream(_) => 0,
            Order::Capture { .. } => EXTERNAL,
        };
        // SAFETY: the event lives; the stream belongs to the device's context.
        let code = unsafe { raw::cuStreamWaitEvent(stream.raw(), self.raw, flags) };
        entered.device().check("cuStreamWaitEvent", code)
    }

    /// Waits on the host for the recorded work; returns at once when none was ever recorded.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the event lives; the context is current.
        self.device.check("cuEventSynchronize", unsafe { raw::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds from `start` to this event, waiting for both.
    pub(crate) fn elapsed_ms(&self, start: &CudaEvent) -> Result<f32> {
        start.synchronize()?;
        self.synchronize()?;
        let _entered = self.device.enter()?;
        let mut ms = 0.0;
        // SAFETY: both events live; `ms` outlives the call.
        let code = unsafe { raw::cuEventElapsedTime(&mut ms, start.raw, self.raw) };
        self.device.check("cuEventElapsedTime", code)?;
        Ok(ms)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else { return };
        // SAFETY: this is the only owner; the driver keeps what pending waits need.
        let code = unsafe { raw::cuEventDestroy_v2(self.raw) };
        let _ = self.device.check("cuEventDestroy", code);
    }
}
