//! Streams of torch, the memory that their calls work in, and what graphs of torch use.
//!
//! Calls work in memory of torch's allocator. A stream is given some that it keeps; a call that
//! needs far more, or that is captured, is given memory for itself alone, which torch has back
//! when the call is enqueued: in the stream's order, or in that of the graph's pool, nothing else
//! uses it before. A call that has too little enqueues nothing and says how much it needs.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use maxsim::stream::Stream;
use maxsim::{Device, Result};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::errors::raised;

create_exception!(
    _maxsim,
    WorkspaceError,
    PyException,
    "A call needs memory to work in: so many bytes, to be kept or for the call alone."
);

/// Most bytes that a stream keeps. Usual calls need less; sums of normalised rows may need more.
const KEPT_MAX: u64 = 40 << 20;

/// Where a call runs, and what of it.
#[derive(FromPyObject, Clone, Copy, Debug)]
pub struct Call(
    /* device */ pub usize,
    /* stream */ pub u64,
    /* normalize */ pub bool,
    /* tf32 */ pub bool,
    /* consistent */ pub bool,
    /* address and bytes of memory for this call alone */ pub Option<(u64, u64)>,
);

/// What became of a call.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<R> {
    /// It was enqueued, or became part of a graph.
    Done { result: R, is_captured: bool },
    /// It was not, for want of so much memory to work in.
    NeedsWorkspace { len_bytes: u64, is_kept: bool },
}

impl<R> Outcome<R> {
    /// Keeps what a graph uses that the call has become part of: prepared work, and what else the
    /// graph reads.
    pub fn keep<W: Send + Sync + 'static>(
        self,
        work: &Arc<W>,
        lists: impl FnOnce() -> [Option<Used>; 2],
    ) -> Outcome<R> {
        if let Outcome::Done { is_captured: true, .. } = self {
            let lists = lists();
            let mut captured = lock(&CAPTURED);
            captured.works.insert(Arc::as_ptr(work).addr(), Box::new(work.clone()));
            captured.lists.extend(lists.into_iter().flatten());
        }
        self
    }

    /// Keeps one more thing that a graph uses which the call has become part of.
    pub fn keep_also(self, used: impl FnOnce() -> Option<Used>) -> Outcome<R> {
        if let Outcome::Done { is_captured: true, .. } = self {
            lock(&CAPTURED).lists.extend(used());
        }
        self
    }
}

/// What a graph uses as long as it may be launched.
pub type Used = Box<dyn Any + Send + Sync>;

/// What captured calls use: prepared calls by their address, which are the same for calls of one
/// shape, and lists of items. Nothing says when the last launch of their graph is done, so it is
/// kept for good.
#[derive(Default)]
struct Captured {
    works: HashMap<usize, Used>,
    lists: Vec<Used>,
}

type Streams = HashMap<(usize, u64), Arc<Mutex<Stream>>>;
static STREAMS: LazyLock<Mutex<Streams>> = LazyLock::new(Mutex::default);
static CAPTURED: LazyLock<Mutex<Captured>> = LazyLock::new(Mutex::default);

/// Locks what stays whole when a thread panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stream(device: &Device, ordinal: usize, handle: u64) -> Result<Arc<Mutex<Stream>>> {
    if let Some(stream) = lock(&STREAMS).get(&(ordinal, handle)) {
        return Ok(stream.clone());
    }
    // SAFETY: the handle is that of a stream of torch, which never destroys its streams.
    let stream = Arc::new(Mutex::new(unsafe { Stream::from_raw(device, handle)? }));
    Ok(lock(&STREAMS).entry((ordinal, handle)).or_insert(stream).clone())
}

/// Enqueues a call that works in `len_bytes` of memory, where there is so much.
///
/// # Safety
/// The memory that the call is given, where it is, must be of torch's allocator, and in the order
/// of the stream or of its graph be the call's alone.
pub unsafe fn enqueue<R>(
    device: &Device,
    call: &Call,
    len_bytes: u64,
    enqueue: impl FnOnce(&mut Stream) -> Result<R>,
) -> Result<Outcome<R>> {
    let stream = stream(device, call.0, call.1)?;
    let mut stream = lock(&stream);
    let is_captured = stream.is_captured()?;
    let result = match call.5 {
        // SAFETY: the caller's promise.
        Some(workspace) => unsafe { stream.with_workspace(workspace, enqueue)? },
        None if len_bytes == 0 || !is_captured && stream.workspace_bytes() >= len_bytes => {
            enqueue(&mut stream)?
        }
        None => {
            let is_kept = !is_captured && len_bytes <= KEPT_MAX;
            return Ok(Outcome::NeedsWorkspace { len_bytes, is_kept });
        }
    };
    Ok(Outcome::Done { result, is_captured })
}

/// A call's result, or the exception that says what it needs.
pub fn finished<R>(outcome: Result<Outcome<R>>) -> PyResult<R> {
    match outcome.map_err(raised)? {
        Outcome::Done { result, .. } => Ok(result),
        Outcome::NeedsWorkspace { len_bytes, is_kept } => {
            Err(WorkspaceError::new_err((len_bytes, is_kept)))
        }
    }
}

/// Gives a stream memory to work in, which it has until it is given other memory.
#[pyfunction]
pub fn cuda_set_workspace(
    py: Python<'_>,
    device: usize,
    stream: u64,
    address: u64,
    len_bytes: u64,
) -> PyResult<()> {
    py.detach(|| {
        let on = self::stream(&Device::cuda(device)?, device, stream)?;
        // SAFETY: the Python caller keeps the memory, which torch allocated on this stream, until
        // the stream has other memory; torch then frees it in the stream's order.
        unsafe { lock(&on).set_workspace(address, len_bytes) }
    })
    .map_err(raised)
}
