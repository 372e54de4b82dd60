//! Events: points in a stream that others wait for or measure between.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cust::event::EventFlags;
use cust::sys::{CUevent, CUstream};

use super::context::{CudaDevice, Entered};
use super::status::NOT_READY;
use super::stream::{CudaStream, Order};
use super::symbols::raw;
use crate::error::Result;
use crate::runtime::swap::lock;

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: while a stream is captured, a node
/// of the graph that records the event, or waits for it, whenever the graph runs. Without it
/// the event would belong to the capture, and nothing outside could wait for it.
const EXTERNAL: u32 = 1;

/// Most events that are kept for reuse.
const IDLE_MAX: usize = 256;

/// The handle of an event that only orders work, without an owner.
#[derive(Debug)]
pub(in crate::cuda) struct RawEvent(CUevent);

// SAFETY: the driver's event functions may be called from any thread.
unsafe impl Send for RawEvent {}

impl RawEvent {
    /// The driver's handle.
    pub(in crate::cuda) fn handle(&self) -> CUevent {
        self.0
    }
}

/// A driver event. (`cust`'s own does not give its handle away, which waiting needs.)
///
/// Events that only order work are used again when their owner is gone: making one takes longer
/// than a small call.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    device: Arc<CudaDevice>,
    raw: CUevent,
    /// Whether it was recorded: before that it may still have a record of its last owner's.
    is_recorded: AtomicBool,
    /// Whether it may be used again. An event that takes the time is not, nor is one that a graph
    /// records or waits for, which may run when its owner is gone.
    is_reusable: AtomicBool,
}

// SAFETY: the driver's event functions may be called from any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: as above; recording and waiting are atomic in the driver.
unsafe impl Sync for CudaEvent {}

impl CudaDevice {
    /// An event that only orders work. It may have been recorded before.
    pub(in crate::cuda) fn take_event(&self, _entered: &Entered<'_>) -> Result<RawEvent> {
        if let Some(event) = lock(&self.idle_events).pop() {
            return Ok(event);
        }
        self.create_event(EventFlags::DISABLE_TIMING).map(RawEvent)
    }

    /// Takes back an event that no work waits for any more but what was already enqueued.
    pub(in crate::cuda) fn give_event(&self, event: RawEvent) {
        let mut idle = lock(&self.idle_events);
        if idle.len() < IDLE_MAX {
            return idle.push(event);
        }
        drop(idle);
        self.destroy_event(event.0);
    }

    fn create_event(&self, flags: EventFlags) -> Result<CUevent> {
        let _relaxed = self.relaxed();
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` outlives the call; the context is current.
        self.check("cuEventCreate", unsafe { raw::cuEventCreate(&mut raw, flags.bits()) })?;
        Ok(raw)
    }

    fn destroy_event(&self, event: CUevent) {
        // SAFETY: its owner is gone; the driver keeps what pending waits need.
        let code = unsafe { raw::cuEventDestroy_v2(event) };
        // There is no caller to return to, but a fault is remembered.
        let _ = self.check("cuEventDestroy", code);
    }
}

impl CudaEvent {
    /// An event that only orders work, or one that also takes the time.
    pub(in crate::cuda) fn new(device: &Arc<CudaDevice>, timing: bool) -> Result<CudaEvent> {
        let raw = match timing {
            true => {
                let _entered = device.enter()?;
                device.create_event(EventFlags::DEFAULT)?
            }
            false => {
                let idle = lock(&device.idle_events).pop();
                idle.map_or_else(|| device.take_event(&device.enter()?), Ok)?.0
            }
        };
        let (is_recorded, is_reusable) = (AtomicBool::new(false), AtomicBool::new(!timing));
        Ok(CudaEvent { device: device.clone(), raw, is_recorded, is_reusable })
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
        self.is_recorded.store(true, Ordering::Release);
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
                Order::Capture { .. } => {
                    self.is_recorded.store(true, Ordering::Release);
                    self.is_reusable.store(false, Ordering::Relaxed);
                    let code = raw::cuEventRecordWithFlags(self.raw, stream.raw(), EXTERNAL);
                    entered.device().check("cuEventRecordWithFlags", code)
                }
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
        self.is_reusable.store(false, Ordering::Relaxed);
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
            Order::Stream(_) if !self.is_recorded.load(Ordering::Acquire) => return Ok(()),
            Order::Stream(_) => 0,
            // What is recorded later counts too.
            Order::Capture { .. } => {
                self.is_reusable.store(false, Ordering::Relaxed);
                EXTERNAL
            }
        };
        // SAFETY: the event lives; the stream belongs to the device's context.
        let code = unsafe { raw::cuStreamWaitEvent(stream.raw(), self.raw, flags) };
        entered.device().check("cuStreamWaitEvent", code)
    }

    /// Waits on the host for the recorded work; returns at once when none was ever recorded.
    pub(crate) fn synchronize(&self) -> Result<()> {
        if !self.is_recorded.load(Ordering::Acquire) {
            return Ok(());
        }
        let _entered = self.device.enter()?;
        let _relaxed = self.device.relaxed();
        // SAFETY: the event lives; the context is current.
        self.device.check("cuEventSynchronize", unsafe { raw::cuEventSynchronize(self.raw) })
    }

    /// Whether the recorded work is done; it is where none was ever recorded.
    pub(in crate::cuda) fn is_done(&self) -> Result<bool> {
        if !self.is_recorded.load(Ordering::Acquire) {
            return Ok(true);
        }
        let _entered = self.device.enter()?;
        let _relaxed = self.device.relaxed();
        // SAFETY: the event lives; the context is current.
        match unsafe { raw::cuEventQuery(self.raw) } {
            NOT_READY => Ok(false),
            code => self.device.check("cuEventQuery", code).map(|()| true),
        }
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
        if *self.is_reusable.get_mut() {
            return self.device.give_event(RawEvent(self.raw));
        }
        let Ok(_entered) = self.device.enter() else { return };
        self.device.destroy_event(self.raw);
    }
}
