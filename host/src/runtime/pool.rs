//! Shares the work of a call among the threads of a pool.
//!
//! A thread that waits for the others' parts runs whatever else its pool has been given
//! meanwhile. That may be another call, which would wait in turn, and so on: with many calls given
//! to one pool at once, until the thread's stack is full. So a call that a thread begins while it
//! waits in another is done by that thread alone, without waiting.

use std::cell::Cell;

thread_local! {
    /// Whether this thread is within [`Parallel::share`].
    static IS_SHARING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a call shares its work with other threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parallel {
    is_alone: bool,
}

/// Restores [`IS_SHARING`] when dropped, also when work panics.
struct Restored(bool);

impl Drop for Restored {
    fn drop(&mut self) {
        IS_SHARING.set(self.0);
    }
}

impl Parallel {
    /// Chooses for a call that this thread begins.
    pub(crate) fn new() -> Parallel {
        Parallel { is_alone: IS_SHARING.get() }
    }

    /// Whether this thread does all of it: nothing may wait for another.
    pub(crate) fn is_alone(self) -> bool {
        self.is_alone
    }

    /// Does work of the call, from whichever thread; `work` gets the least number of items that a
    /// thread takes ([`rayon::iter::IndexedParallelIterator::with_min_len`]).
    pub(crate) fn share<R>(self, work: impl FnOnce(usize) -> R) -> R {
        let _restored = Restored(IS_SHARING.replace(true));
        work(if self.is_alone { usize::MAX } else { 1 })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::time::Duration;

    use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

    use super::*;

    /// Threads that took items of a call that is begun here.
    fn n_threads() -> usize {
        let threads = Mutex::new(HashSet::new());
        Parallel::new().share(|min_len| {
            (0..64).into_par_iter().with_min_len(min_len).for_each(|_| {
                std::thread::sleep(Duration::from_millis(1));
                threads.lock().unwrap().insert(std::thread::current().id());
            });
        });
        threads.into_inner().unwrap().len()
    }

    #[test]
    fn a_call_within_another_is_one_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        pool.install(|| {
            assert!(n_threads() > 1);
            assert_eq!(Parallel::new().share(|_| n_threads()), 1);
            // And afterwards, also after a panic, no more.
            assert!(n_threads() > 1);
            let panicked =
                std::panic::catch_unwind(|| Parallel::new().share(|_| panic!("as meant")));
            assert!(panicked.is_err() && !Parallel::new().is_alone());
        });
    }

    #[test]
    fn a_call_goes_on_as_it_began() {
        let call = Parallel::new();
        assert!(!call.share(|_| call.is_alone()));
        assert_eq!(call.share(|_| call.share(|min_len| min_len)), 1);
    }
}
