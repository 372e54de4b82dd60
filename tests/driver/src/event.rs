//! Events of the stand-in, which complete with the launches and copies before them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::order::Copies;
use crate::{CLOCK, LAG, OK, state};

/// The launch that an event was last recorded behind, and the copies.
pub struct Event(AtomicU64, Mutex<Copies>);

impl Event {
    pub fn create() -> *mut Event {
        Box::into_raw(Box::new(Event(AtomicU64::new(0), Mutex::default())))
    }

    /// The copies that it comes behind.
    pub fn copies(&self) -> Copies {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has it be done.
    pub fn complete(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
    }
}

/// The launch of an event without work.
const NEVER: u64 = u64::MAX;

pub fn is_done(event: *mut Event) -> bool {
    // SAFETY: an event that `cuEventCreate` made.
    let at = unsafe { (*event).0.load(Ordering::Relaxed) };
    at == NEVER || at.saturating_add(LAG.load(Ordering::Relaxed)) <= CLOCK.load(Ordering::Relaxed)
}

pub fn record(event: *mut Event, stream: usize) -> u32 {
    let state = state();
    let at = if state.busy.contains(&stream) { CLOCK.load(Ordering::Relaxed) } else { NEVER };
    // SAFETY: as above.
    let Event(launch, copies) = unsafe { &*event };
    launch.store(at, Ordering::Relaxed);
    *copies.lock().unwrap_or_else(PoisonError::into_inner) = state.order.of(stream);
    OK
}
