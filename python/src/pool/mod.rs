//! Runs calls of the CPU engine without the interpreter's lock, on threads of this process.

mod list;
mod sync;

use std::process;
use std::ptr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use maxsim::{Interrupt, Result};
use pyo3::prelude::*;
use rayon::ThreadPool;

use self::list::List;
use self::sync::AtomicPtr;
use crate::errors::raised;

/// How often a call that waits looks for signals.
const SIGNALS: Duration = Duration::from_millis(50);

/// The threads of a process, for calls that want so many. A forked child has none of its parent's
/// threads, so it looks for its own. A process has as many of these as numbers of threads that were
/// asked for.
struct Pool {
    process: u32,
    n_threads: usize,
    threads: ThreadPool,
}

// SAFETY: the pointer is null.
static POOLS: List<Pool> = unsafe { List::new(AtomicPtr::new(ptr::null_mut())) };

/// This process's threads for calls that want `n_threads`.
fn pool(n_threads: usize) -> PyResult<&'static ThreadPool> {
    let process = process::id();
    let is_it = |pool: &Pool| (pool.process, pool.n_threads) == (process, n_threads);
    if let Some(pool) = POOLS.find(is_it) {
        return Ok(&pool.threads);
    }
    let builder = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
    let threads = builder.thread_name(|i| format!("maxsim-{i}")).build().map_err(|error| {
        pyo3::exceptions::PyRuntimeError::new_err(format!("threads cannot be started: {error}"))
    })?;
    Ok(&POOLS.add(Pool { process, n_threads, threads }).threads)
}

/// Runs a call on `n_threads` threads, without the interpreter's lock. The thread that waits
/// handles signals; where a handler raises (Ctrl-C), the call is ended and the exception raised.
pub fn run<R: Send>(
    py: Python<'_>,
    n_threads: usize,
    call: impl FnOnce() -> Result<R> + Send,
) -> PyResult<R> {
    let pool = pool(n_threads.max(1))?;
    let interrupt = Interrupt::default();
    py.detach(|| {
        let (sender, receiver) = mpsc::channel();
        pool.in_place_scope(|scope| {
            let heeded = interrupt.clone();
            scope.spawn(move |_| {
                let _ = sender.send(heeded.heeded_by(call));
            });
            let mut raised_by_handler = None;
            loop {
                match receiver.recv_timeout(SIGNALS) {
                    Ok(found) => return raised_by_handler.map_or(found.map_err(raised), Err),
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(error) = Python::attach(|py| py.check_signals()) {
                            interrupt.raise();
                            raised_by_handler.get_or_insert(error);
                        }
                    }
                    // The call has panicked, which the scope passes on.
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(pyo3::exceptions::PyRuntimeError::new_err("a thread panicked"));
                    }
                }
            }
        })
    })
}
