//! Memory that has lost its owner: freed or handed out again when the device is done with it,
//! without ever making the host wait.
//!
//! Why that is safe. A block may be used by work that was enqueued before its owner was dropped,
//! and by none that is enqueued later: the thread that enqueues work holds what it uses, if only
//! for that call. Such work is
//!
//!  - *on a stream of the library's* ([`CudaStream`](super::super::stream::CudaStream), its own or
//!    a foreign one). Each is tracked from its creation on, and marked before the first work. A
//!    batch of dropped blocks is therefore behind an event that is recorded, after they were
//!    dropped, on each tracked and marked stream. A stream that goes is tracked until an event
//!    behind all its work has completed.
//!  - *on the legacy default stream*, which zeroes new results. It is marked after that, before
//!    their owner exists, and recorded where it is marked.
//!  - *in a graph of the library's*, which holds an `Arc` of all that it uses, and whose launches
//!    are work of a stream that it is given.
//!  - *in a foreign graph*. [`Stream::from_raw`](crate::stream::Stream::from_raw) has the caller
//!    keep what such a graph uses until its last launch has finished.
//!
//! When the events of a batch have completed no work uses its blocks. Small ones go back to their
//! size class, and whatever gets them next may use them on any stream at once. Large ones are
//! freed on a stream that never has other work (`cuMemFree` would wait for the device).
//!
//! While a stream is captured nothing is recorded on it, since that would be a node of somebody's
//! graph: batches wait until it is not. So does the per-thread default stream, whose handle means
//! it on its own thread alone. What the driver refuses to do while any stream of the process is
//! captured (allocating, asking for events) is done in the capture mode `relaxed`.
//!
//! The host waits in one case: where memory has run out, for the whole device, before everything
//! that is idle is freed and the allocation is tried once more.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use cust::stream::StreamFlags;
use cust::sys::{CUevent, CUstream};

use super::Handle;
use super::blocks::{Blocks, class_of, slab_bytes};
use super::timeline::{Block, DEFAULT_STREAM, Progress, Timeline, Tracked};
use crate::cuda::driver::context::{CudaDevice, Entered};
use crate::cuda::driver::event::RawEvent;
use crate::cuda::driver::status;
use crate::cuda::driver::symbols::raw;
use crate::error::{Error, Result};
use crate::runtime::swap::lock;

/// Dropped blocks that are put behind events together.
const BATCH: usize = 16;

/// Dropped memory of a device, and small blocks to hand out.
#[derive(Debug)]
pub(in crate::cuda) struct Retired {
    state: Mutex<State>,
    /// Whether the legacy default stream was given work since it was last recorded.
    default_used: Arc<AtomicBool>,
    /// Whether some batch waits for a stream.
    waits: AtomicBool,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct State {
    timeline: Timeline<RawEvent>,
    blocks: Blocks,
    /// The stream on which large blocks are freed.
    frees: Option<Handle>,
}

/// What the host knows of a device's work.
#[derive(Clone, Copy)]
enum Work {
    MayBeInFlight,
    WasWaitedFor,
}

impl Default for Retired {
    fn default() -> Retired {
        let mut timeline = Timeline::default();
        let default_used = timeline.track(DEFAULT_STREAM, Handle(ptr::null_mut()), None);
        let state = Mutex::new(State { timeline, blocks: Blocks::default(), frees: None });
        let (waits, next_id) = (AtomicBool::new(false), AtomicU64::new(1));
        Retired { state, default_used, waits, next_id }
    }
}

/// A stream's place among those that dropped memory waits for.
#[derive(Debug)]
pub(in crate::cuda) struct Track {
    pub id: u64,
    used: Arc<AtomicBool>,
}

impl Track {
    /// Notes that the stream is about to be given work.
    pub(in crate::cuda) fn mark(&self) {
        self.used.store(true, Ordering::Release);
    }
}

impl Retired {
    /// Tracks a stream, whose handle may mean it on this thread alone.
    pub(in crate::cuda) fn track(&self, raw: CUstream, is_threads: bool) -> Track {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let thread = is_threads.then(|| thread::current().id());
        let used = lock(&self.state).timeline.track(id, Handle(raw), thread);
        Track { id, used }
    }

    /// Notes that work was enqueued on the legacy default stream. Call it before the owner of the
    /// memory that the work uses can be dropped.
    pub(in crate::cuda) fn mark_default_stream(&self) {
        self.default_used.store(true, Ordering::Release);
    }

    /// Whether memory that was dropped waits for a stream.
    pub(in crate::cuda) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }
}

impl CudaDevice {
    /// Forgets a stream that is given no more work, but for what it still has.
    pub(in crate::cuda) fn untrack(&self, entered: &Entered<'_>, track: &Track) {
        let mut state = lock(&self.retired.state);
        state.timeline.forget(track.id, |stream| self.record_on(entered, stream));
        // So that no events of streams which come and go pile up.
        self.advance(entered, &mut state);
    }

    /// Takes memory without an owner.
    pub(super) fn retire(&self, block: Block) {
        let mut state = lock(&self.retired.state);
        state.timeline.retire(block);
        if state.timeline.n_open() >= BATCH || !matches!(block, Block::Small { .. }) {
            // The memory of a lost device is gone with its context.
            let Ok(entered) = self.enter() else { return };
            self.advance(&entered, &mut state);
        }
    }

    /// Puts dropped memory behind events, and hands on what the device is done with.
    pub(in crate::cuda) fn reclaim(&self, entered: &Entered<'_>) {
        let mut state = lock(&self.retired.state);
        if !state.timeline.is_empty() {
            self.advance(entered, &mut state);
        }
    }

    fn advance(&self, entered: &Entered<'_>, state: &mut State) {
        let _relaxed = self.relaxed();
        state.timeline.close();
        state.timeline.record(|stream| self.record_on(entered, stream));
        let spent = state.timeline.poll(|event| match event.is_done() {
            0 => Progress::Done,
            status::NOT_READY => Progress::Pending,
            code => match self.check("cuEventQuery", code) {
                // A fault has ended everything.
                Err(Error::DeviceLost { .. }) => Progress::Pending,
                _ => Progress::Unknown,
            },
        });
        spent.into_iter().for_each(|event| self.give_event(event));
        let done = state.timeline.take_done();
        self.hand_on(state, done, Work::MayBeInFlight);
        self.retired.waits.store(!state.timeline.is_empty(), Ordering::Relaxed);
    }

    /// Records an event on a stream, unless it is captured or is another thread's.
    fn record_on(&self, entered: &Entered<'_>, stream: &Tracked<RawEvent>) -> Option<RawEvent> {
        if stream.thread.is_some_and(|thread| thread != thread::current().id()) {
            return None;
        }
        let Handle(raw) = stream.raw;
        let (mut is_captured, mut id) = (0, 0);
        // SAFETY: a tracked stream lives; the results outlive the call.
        let code = unsafe { raw::cuStreamGetCaptureInfo(raw, &mut is_captured, &mut id) };
        // The default stream has another code while a stream that waits for it is captured.
        if code != 0 || is_captured != 0 {
            return None;
        }
        let event = self.take_event(entered).ok()?;
        match event.record(raw) {
            0 => Some(event),
            code => {
                let _ = self.check("cuEventRecord", code);
                self.give_event(event);
                None
            }
        }
    }

    /// Hands on memory that nothing uses: small blocks to their classes, the rest to the driver.
    fn hand_on(&self, state: &mut State, done: Vec<Block>, work: Work) {
        for block in done {
            match block {
                Block::Small { class, address } => state.blocks.give(class, address),
                Block::Large { address, .. } => match work {
                    Work::MayBeInFlight => self.free_in_order(&mut state.frees, address),
                    Work::WasWaitedFor => self.free(address),
                },
                Block::Pinned { address } => {
                    let address = ptr::with_exposed_provenance_mut(address);
                    // SAFETY: its owner is gone, and no copy uses it any more.
                    let code = unsafe { raw::cuMemFreeHost(address) };
                    // There is no caller to return to, but a fault is remembered.
                    let _ = self.check("cuMemFreeHost", code);
                }
            }
        }
    }

    /// Frees device memory that nothing uses: in stream order, where the driver does that.
    fn free_in_order(&self, frees: &mut Option<Handle>, address: u64) {
        if frees.is_none() {
            let (mut stream, flags) = (ptr::null_mut(), StreamFlags::NON_BLOCKING.bits());
            // SAFETY: `stream` outlives the call; the context is current.
            if unsafe { raw::cuStreamCreateWithPriority(&mut stream, flags, 0) } == 0 {
                *frees = Some(Handle(stream));
            }
        }
        if let Some(Handle(stream)) = *frees {
            // SAFETY: its owner is gone, and no work uses it any more; the stream is never
            // destroyed.
            match unsafe { raw::cuMemFreeAsync(address, stream) } {
                0 => return,
                code if status::is_sticky(code) => {
                    let _ = self.check("cuMemFreeAsync", code);
                    return;
                }
                // The driver or the device has no such call.
                _ => {}
            }
        }
        self.free(address);
    }

    /// Frees device memory that nothing uses. The driver may wait for the device.
    fn free(&self, address: u64) {
        // SAFETY: its owner is gone, and no work uses it any more.
        let _ = self.check("cuMemFree", unsafe { raw::cuMemFree_v2(address) });
    }

    /// Takes an idle block with room for as many bytes, where there is one.
    pub(super) fn take_block(&self, len_bytes: u64) -> Option<u64> {
        lock(&self.retired.state).blocks.take(class_of(len_bytes)?)
    }

    /// Allocates device memory, of which there is at least one byte.
    pub(super) fn allocate(&self, entered: &Entered<'_>, len_bytes: u64) -> Result<u64> {
        let mut state = lock(&self.retired.state);
        let Some(class) = class_of(len_bytes) else {
            if !state.timeline.is_empty() {
                self.advance(entered, &mut state);
            }
            drop(state);
            return self.allocate_from_driver(entered, len_bytes);
        };
        if let Some(address) = state.blocks.take(class) {
            return Ok(address);
        }
        if !state.timeline.is_empty() {
            self.advance(entered, &mut state);
            if let Some(address) = state.blocks.take(class) {
                return Ok(address);
            }
        }
        drop(state);
        let slab = self.allocate_from_driver(entered, slab_bytes(class))?;
        let mut state = lock(&self.retired.state);
        state.blocks.add_slab(class, slab);
        // Another thread may have taken all of it; then there is memory for another slab.
        match state.blocks.take(class) {
            Some(address) => Ok(address),
            None => {
                drop(state);
                self.allocate(entered, len_bytes)
            }
        }
    }

    fn allocate_from_driver(&self, entered: &Entered<'_>, len_bytes: u64) -> Result<u64> {
        let _relaxed = self.relaxed();
        let mut address = 0;
        // SAFETY: `address` outlives the call; the context is current.
        let mut allocate = || unsafe { raw::cuMemAlloc_v2(&mut address, len_bytes as usize) };
        let mut code = allocate();
        if code == status::OUT_OF_MEMORY {
            self.reclaim_all(entered)?;
            code = allocate();
        }
        if code == status::OUT_OF_MEMORY {
            let mut free_bytes = 0;
            let mut total_bytes = 0;
            // SAFETY: both outlive the call; the context is current.
            let code = unsafe { raw::cuMemGetInfo_v2(&mut free_bytes, &mut total_bytes) };
            let free_bytes = (code == 0).then_some(free_bytes as u64);
            return Err(Error::DeviceMemory { requested_bytes: len_bytes, free_bytes });
        }
        self.check("cuMemAlloc", code)?;
        Ok(address)
    }

    /// Waits for the device, unless a capture forbids it, and frees all memory without an owner
    /// and all idle blocks.
    fn reclaim_all(&self, entered: &Entered<'_>) -> Result<()> {
        // It becomes memory without an owner, before the state is locked.
        let idle = [lock(&self.idle_slice).take(), lock(&self.idle_slots).take()];
        drop(idle);
        let mut state = lock(&self.retired.state);
        if !state.timeline.is_empty() {
            state = self.reclaim_waiting(entered, state)?;
        }
        for slab in state.blocks.drain_idle_slabs() {
            // SAFETY: all its blocks are idle, and none can be handed out any more.
            let code = unsafe { raw::cuMemFree_v2(slab) };
            self.check("cuMemFree", code)?;
        }
        self.finish_frees(&state)
    }

    /// Frees large memory without an owner, waiting for the device where it is still used, unless
    /// a capture forbids it.
    pub(in crate::cuda) fn reclaim_large(&self, entered: &Entered<'_>) -> Result<()> {
        let mut state = lock(&self.retired.state);
        if !state.timeline.is_empty() {
            self.advance(entered, &mut state);
        }
        if state.timeline.has_large() {
            state = self.reclaim_waiting(entered, state)?;
        }
        self.finish_frees(&state)
    }

    /// Waits for the device without the lock, and hands on what was dropped before.
    fn reclaim_waiting<'a>(
        &'a self,
        entered: &Entered<'_>,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>> {
        let (batch, gone) = (state.timeline.close(), state.timeline.gone());
        drop(state);
        let waited = self.synchronize(entered);
        let mut state = lock(&self.retired.state);
        match waited {
            Ok(()) => {
                let done = state.timeline.take_waited(batch, &gone);
                self.hand_on(&mut state, done, Work::WasWaitedFor);
            }
            Err(error @ Error::DeviceLost { .. }) => return Err(error),
            // Some stream is captured: what is still used stays.
            Err(_) => {}
        }
        Ok(state)
    }

    /// Waits for the stream that frees, which never waits for anything.
    fn finish_frees(&self, state: &State) -> Result<()> {
        match state.frees {
            Some(Handle(frees)) => {
                // SAFETY: the stream lives.
                let code = unsafe { raw::cuStreamSynchronize(frees) };
                self.check("cuStreamSynchronize", code)
            }
            None => Ok(()),
        }
    }
}

impl RawEvent {
    fn is_done(&self) -> u32 {
        // SAFETY: the event lives.
        unsafe { raw::cuEventQuery(self.handle()) }
    }

    fn record(&self, stream: CUstream) -> u32 {
        let event: CUevent = self.handle();
        // SAFETY: the event lives, and so does a tracked stream.
        unsafe { raw::cuEventRecord(event, stream) }
    }
}
