//! Hazard tracking: serialises work on a buffer across streams with events.

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::context::{CudaDevice, Entered};
use super::event::CudaEvent;
use super::stream::{CudaStream, Order};
use crate::error::Result;
use crate::runtime::swap::lock;

/// The turns of the work that uses some memory.
#[derive(Debug)]
pub(in crate::cuda) struct Turns(Mutex<LastUse>);

/// The last work that was given the memory.
#[derive(Debug)]
pub(in crate::cuda) struct LastUse {
    /// Completes with it.
    done: CudaEvent,
    /// The same within its capture, where it was captured.
    inside: CudaEvent,
    /// Its order, where that is known. Once the memory was captured into a foreign graph, this
    /// stays with the capture: when that graph runs is not known here.
    order: Option<Order>,
}

/// The memory while work that uses it is enqueued: no other thread enqueues such work or reads it
/// meanwhile.
#[derive(Debug)]
pub(in crate::cuda) struct Turn<'a> {
    last: MutexGuard<'a, LastUse>,
    order: Order,
}

impl Turns {
    /// Of memory that has not been used.
    pub(in crate::cuda) fn new(device: &Arc<CudaDevice>) -> Result<Turns> {
        let [done, inside] = [CudaEvent::new(device, false)?, CudaEvent::new(device, false)?];
        Ok(Turns(Mutex::new(LastUse { done, inside, order: None })))
    }

    /// Notes that earlier work of the legacy default stream uses the memory.
    pub(in crate::cuda) fn record(&self, entered: &Entered<'_>) -> Result<()> {
        // SAFETY: null is the legacy default stream.
        unsafe { lock(&self.0).done.record(entered, ptr::null_mut()) }
    }

    /// Orders a stream's next work behind the last work that was given the memory. Until the
    /// result is dropped no other thread enqueues such work.
    pub(in crate::cuda) fn begin(
        &self,
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
    ) -> Result<Turn<'_>> {
        let last = lock(&self.0);
        match (last.order, order) {
            (Some(before), now) if before == now => {}
            (Some(Order::Capture { capture: a, .. }), Order::Capture { capture: b, .. })
                if a == b =>
            {
                // What waits for `done` would wait for another launch of the same graph.
                last.inside.hold_back_inside(entered, stream)?;
            }
            _ => last.done.hold_back(entered, stream, order)?,
        }
        Ok(Turn { last, order })
    }

    /// Waits for the last work; no thread enqueues more until the result is dropped.
    pub(in crate::cuda) fn wait(&self) -> Result<MutexGuard<'_, LastUse>> {
        let last = lock(&self.0);
        last.done.synchronize()?;
        Ok(last)
    }

    /// Begins a turn of each of these, no two of which are the same.
    pub(in crate::cuda) fn begin_each<'a, const N: usize>(
        mut turns: [Option<&'a Turns>; N],
        entered: &Entered<'_>,
        stream: &CudaStream,
        order: Order,
    ) -> Result<[Option<Turn<'a>>; N]> {
        // In the order of their addresses, so that no two calls wait for each other.
        turns.sort_unstable_by_key(|turns| turns.map_or(ptr::null(), ptr::from_ref));
        let mut begun = [const { None }; N];
        for (turn, turns) in begun.iter_mut().zip(turns) {
            *turn = turns.map(|turns| turns.begin(entered, stream, order)).transpose()?;
        }
        Ok(begun)
    }
}

/// Ends turns, each of them whatever becomes of the others; the first error.
pub(in crate::cuda) fn end_all<'a>(
    turns: impl IntoIterator<Item = Turn<'a>>,
    entered: &Entered<'_>,
    stream: &CudaStream,
) -> Result<()> {
    let mut ended = Ok(());
    for turn in turns {
        ended = ended.and(turn.end(entered, stream));
    }
    ended
}

impl Turn<'_> {
    /// Notes that the stream's work so far may use the memory.
    pub(in crate::cuda) fn end(mut self, entered: &Entered<'_>, stream: &CudaStream) -> Result<()> {
        let was_captured = matches!(self.last.order, Some(Order::Capture { .. }));
        let is_captured = matches!(self.order, Order::Capture { .. });
        if is_captured || !was_captured {
            self.last.order = Some(self.order);
        }
        self.last.done.record_in(entered, stream, self.order)?;
        match is_captured {
            true => self.last.inside.mark_inside(entered, stream),
            false => Ok(()),
        }
    }
}
