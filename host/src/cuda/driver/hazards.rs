//! Hazard tracking: serialises work on a buffer across streams with events.

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::context::{CudaDevice, Entered};
use super::event::CudaEvent;
use super::stream::{CudaStream, Order};
use crate::error::Result;
use crate::problem::outputs::Trust;
use crate::runtime::swap::lock;

/// The hazard of one buffer: which work used it last. `None` where the caller orders all its uses:
/// nothing is recorded then, so that such a buffer's value may be dropped while a stream is
/// captured. (An event that a captured call records is part of the graph, and may not be destroyed
/// before it.)
#[derive(Debug)]
pub(in crate::cuda) struct Hazard(Option<Mutex<LastUse>>);

/// The last work that uses a buffer.
#[derive(Debug)]
pub(in crate::cuda) struct LastUse {
    /// Completes with it.
    done: CudaEvent,
    /// Completion of the use within its capture, where it was captured.
    inside: Option<CudaEvent>,
    /// Order of the use, where that is known. Once the buffer was captured into a foreign graph,
    /// this stays with the capture: when that graph runs is not known here.
    order: Option<Order>,
}

/// A buffer while work that uses it is enqueued: until the guard ends or is dropped no other thread
/// enqueues such work or reads the buffer.
#[derive(Debug)]
pub(in crate::cuda) struct HazardGuard<'a> {
    last: Option<MutexGuard<'a, LastUse>>,
    order: Order,
}

impl Hazard {
    /// The hazard of a buffer that has not been used.
    pub(in crate::cuda) fn new(device: &Arc<CudaDevice>) -> Result<Hazard> {
        let (done, inside) = (CudaEvent::new(device, false)?, None);
        Ok(Hazard(Some(Mutex::new(LastUse { done, inside, order: None }))))
    }

    /// The hazard of foreign memory: none where its caller vouches for it.
    pub(in crate::cuda) fn of_foreign(device: &Arc<CudaDevice>, trust: Trust) -> Result<Hazard> {
        match trust {
            Trust::Checked => Hazard::new(device),
            Trust::Unchecked => Ok(Hazard(None)),
        }
    }

    /// Records that earlier work of the legacy default stream uses the buffer.
    pub(in crate::cuda) fn record(&self, entered: &Entered<'_>) -> Result<()> {
        let Some(last) = &self.0 else { return Ok(()) };
        // SAFETY: null is the legacy default stream.
        unsafe { lock(last).done.record(entered, ptr::null_mut()) }
    }

    /// Orders a stream's next work behind the last work that uses the buffer.
    pub(in crate::cuda) fn begin(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
    ) -> Result<HazardGuard<'_>> {
        let Some(last) = &self.0 else { return Ok(HazardGuard { last: None, order }) };
        let last = lock(last);
        match (last.order, order) {
            (Some(before), now) if before == now => {}
            (Some(Order::Capture { capture: a, .. }), Order::Capture { capture: b, .. })
                if a == b =>
            {
                // Wait within the capture: a wait for `done` would be for another launch of the
                // same graph.
                if let Some(inside) = &last.inside {
                    inside.hold_back_inside(entered, stream)?;
                }
            }
            _ => last.done.hold_back(entered, stream, order)?,
        }
        Ok(HazardGuard { last: Some(last), order })
    }

    /// Waits for the last work, or for all work of the device where it is not known; no thread
    /// enqueues more until the result is dropped.
    pub(in crate::cuda) fn wait(
        &self,
        device: &CudaDevice,
    ) -> Result<Option<MutexGuard<'_, LastUse>>> {
        let Some(last) = &self.0 else {
            device.synchronize(&device.enter()?)?;
            return Ok(None);
        };
        let last = lock(last);
        last.done.synchronize()?;
        Ok(Some(last))
    }

    /// Enqueues work on a stream, behind all earlier work that uses the buffer.
    pub(in crate::cuda) fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let guard = self.begin(entered, stream, order)?;
        let enqueued = work();
        // Even after an error, launches before it may be running.
        let ended = guard.end(entered, stream);
        enqueued.and(ended)
    }

    /// Enqueues work on a stream, behind all earlier work that uses these buffers; no two of the
    /// hazards may be the same.
    pub(in crate::cuda) fn enqueue_all<const N: usize>(
        mut hazards: [Option<&Hazard>; N],
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // In the order of their addresses, so that no two calls wait for each other.
        hazards.sort_unstable_by_key(|hazard| hazard.map_or(ptr::null(), ptr::from_ref));
        let mut guards = [const { None }; N];
        for (guard, hazard) in guards.iter_mut().zip(hazards) {
            if let Some(hazard) = hazard {
                *guard = Some(hazard.begin(entered, stream, order)?);
            }
        }
        let enqueued = work();
        // Even after an error, launches before it may be running.
        let ended = end_all(guards.into_iter().flatten(), entered, stream);
        enqueued.and(ended)
    }
}

/// Ends guards, each of them also where another one fails; returns the first error.
pub(in crate::cuda) fn end_all<'a>(
    guards: impl IntoIterator<Item = HazardGuard<'a>>,
    entered: &Entered<'_>,
    stream: &CudaStream,
) -> Result<()> {
    let mut ended = Ok(());
    for guard in guards {
        ended = ended.and(guard.end(entered, stream));
    }
    ended
}

impl HazardGuard<'_> {
    /// Records that the stream's work so far may use the buffer.
    fn end(self, entered: &Entered<'_>, stream: &CudaStream) -> Result<()> {
        let Some(mut last) = self.last else { return Ok(()) };
        let was_captured = matches!(last.order, Some(Order::Capture { .. }));
        let is_captured = matches!(self.order, Order::Capture { .. });
        if is_captured || !was_captured {
            last.order = Some(self.order);
        }
        last.done.record_in(entered, stream, self.order)?;
        if !is_captured {
            return Ok(());
        }
        if last.inside.is_none() {
            last.inside = Some(CudaEvent::new(stream.device(), false)?);
        }
        match &last.inside {
            Some(inside) => inside.mark_inside(entered, stream),
            None => Ok(()),
        }
    }
}
