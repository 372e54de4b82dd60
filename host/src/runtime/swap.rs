//! A shared value that is replaced as a whole, and locks that ignore poisoning.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of a mutex, whether or not a thread panicked while it held the lock.
pub(crate) fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A shared value that is read as a whole and replaced as a whole, so that no thread computes while
/// it holds the lock. (A pool's thread that waits within a computation may begin another call,
/// which would deadlock on a lock that the thread itself holds.)
#[derive(Debug, Default)]
pub(crate) struct Swap<T>(Mutex<Arc<T>>);

impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Swap<T> {
        Swap(Mutex::new(Arc::new(value)))
    }

    /// The current value.
    pub(crate) fn get(&self) -> Arc<T> {
        lock(&self.0).clone()
    }

    /// Replaces the value.
    pub(crate) fn set(&self, value: T) {
        // The old value is dropped outside the lock.
        let _old = std::mem::replace(&mut *lock(&self.0), Arc::new(value));
    }

    /// Replaces the value if it still is `got`, a result of [`Swap::get`]; false where another
    /// thread has replaced it since.
    pub(crate) fn replace(&self, got: &Arc<T>, value: T) -> bool {
        let mut held = lock(&self.0);
        let is_same = Arc::ptr_eq(&held, got);
        if is_same {
            *held = Arc::new(value);
        }
        is_same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_got_is_replaced() {
        let value = Swap::new(1);
        let got = value.get();
        assert!(value.replace(&got, 2));
        assert!(!value.replace(&got, 3));
        assert_eq!((*got, *value.get()), (1, 2));
        value.set(4);
        assert_eq!(*value.get(), 4);
    }
}
