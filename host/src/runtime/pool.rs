//! Shares the work of a call among the threads of a pool.
//!
//! A thread that waits for the others' parts runs whatever else its pool has been given
//! meanwhile. That may be another call, which would wait in turn, and so on: with many calls given
//! to one pool at once, until the thread's stack is full. So a call that a thread begins while it
//! waits in another is done by that thread alone, without waiting.
//!
//! So is a call that is too short to be handed out, which costs some tens of microseconds, and any
//! call where the pool has one thread: the caller's does it, and a short one starts no pool.

use std::cell::Cell;
use std::convert::Infallible;

use rayon::iter::IndexedParallelIterator;
use rayon::iter::plumbing::{Producer, ProducerCallback};

/// Elements that one thread reads and writes in about the time that it takes to hand them out to
/// several.
const SHORT_LEN: usize = 1 << 18;

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

    /// The same for a part of the call; this thread alone does it where it is short, or where
    /// there is no other thread.
    pub(crate) fn unless(self, is_short: bool) -> Parallel {
        Parallel { is_alone: self.is_alone || is_short || n_threads() == 1 }
    }

    /// [`Parallel::unless`] of a part that does little with each of `n` elements.
    pub(crate) fn over(self, n: usize) -> Parallel {
        self.unless(n < SHORT_LEN)
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

    /// Does `each` with every item. Alone it is a loop, for which no pool is started.
    pub(crate) fn for_each<I: IndexedParallelIterator>(
        self,
        items: I,
        each: impl Fn(I::Item) + Send + Sync,
    ) {
        self.for_each_with(items, || (), |(), item| each(item));
    }

    /// As [`Parallel::for_each`], with a value that each thread makes for itself.
    pub(crate) fn for_each_with<I: IndexedParallelIterator, S>(
        self,
        items: I,
        make: impl Fn() -> S + Send + Sync,
        each: impl Fn(&mut S, I::Item) + Send + Sync,
    ) {
        let each = |own: &mut S, item| {
            each(own, item);
            Ok::<(), Infallible>(())
        };
        let Ok(()) = self.try_for_each_with(items, make, each);
    }

    /// As [`Parallel::for_each_with`], until there is an error.
    pub(crate) fn try_for_each_with<I: IndexedParallelIterator, S, E: Send>(
        self,
        items: I,
        make: impl Fn() -> S + Send + Sync,
        each: impl Fn(&mut S, I::Item) -> Result<(), E> + Send + Sync,
    ) -> Result<(), E> {
        self.share(|_| match self.is_alone {
            true => {
                let mut own = make();
                items.with_producer(Loop(|item| each(&mut own, item)))
            }
            false => items.try_for_each_init(make, each),
        })
    }
}

/// A loop over what parallel iterators divide, by the thread that asks for it.
struct Loop<F>(F);

impl<T, E, F: FnMut(T) -> Result<(), E>> ProducerCallback<T> for Loop<F> {
    type Output = Result<(), E>;

    fn callback<P: Producer<Item = T>>(self, producer: P) -> Result<(), E> {
        producer.into_iter().try_for_each(self.0)
    }
}

/// Threads that calls of this thread are shared among. Starts them, where nothing has.
pub(crate) fn n_threads() -> usize {
    rayon::current_num_threads()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::thread::ThreadId;
    use std::time::Duration;

    use rayon::iter::{IntoParallelIterator, IntoParallelRefMutIterator};
    use rayon::slice::ParallelSliceMut;

    use super::*;

    /// Threads that took items of a part of a call.
    fn takers(parallel: Parallel) -> HashSet<ThreadId> {
        let threads = Mutex::new(HashSet::new());
        parallel.for_each((0..64).into_par_iter(), |_| {
            std::thread::sleep(Duration::from_millis(1));
            threads.lock().unwrap().insert(std::thread::current().id());
        });
        threads.into_inner().unwrap()
    }

    /// Threads that took items of a call that is begun here.
    fn n_takers() -> usize {
        takers(Parallel::new()).len()
    }

    fn pool(n_threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap()
    }

    #[test]
    fn a_call_within_another_is_one_threads() {
        pool(4).install(|| {
            assert!(n_takers() > 1);
            assert_eq!(Parallel::new().share(|_| n_takers()), 1);
            // And afterwards, also after a panic, no more.
            assert!(n_takers() > 1);
            let panicked =
                std::panic::catch_unwind(|| Parallel::new().share(|_| panic!("as meant")));
            assert!(panicked.is_err() && !Parallel::new().is_alone());
        });
    }

    #[test]
    fn short_parts_are_the_callers_and_so_is_all_where_there_is_one_thread() {
        let own = HashSet::from([std::thread::current().id()]);
        assert_eq!(takers(Parallel::new().over(SHORT_LEN - 1)), own);
        assert_eq!(takers(Parallel::new().unless(true)), own);
        pool(4).install(|| assert!(takers(Parallel::new().over(SHORT_LEN)).len() > 1));
        pool(1).install(|| assert!(Parallel::new().over(SHORT_LEN).is_alone()));
    }

    #[test]
    fn every_item_is_done_until_there_is_an_error() {
        for is_short in [false, true] {
            let parallel = Parallel::new().unless(is_short);
            let mut found = [0usize; 100];
            let items = found.par_chunks_mut(7).enumerate();
            let each = |own: &mut usize, (i, items): (usize, &mut [usize])| {
                items.fill(i + 1);
                *own += 1;
                if i == 9 { Err("as meant") } else { Ok(()) }
            };
            assert_eq!(parallel.try_for_each_with(items, || 0, each), Err("as meant"));
            assert_eq!(found[9 * 7], 10);
            parallel.for_each(found.par_iter_mut(), |x| *x = 5);
            assert_eq!(found, [5; 100]);
        }
    }

    #[test]
    fn a_call_goes_on_as_it_began() {
        let call = Parallel::new();
        assert!(!call.share(|_| call.is_alone()));
        assert_eq!(call.share(|_| call.share(|min_len| min_len)), 1);
    }
}
