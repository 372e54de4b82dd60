//! A list that is only ever added to, without locks.

use std::ptr;

use super::sync::{AtomicPtr, Ordering};

/// Things that stay where they are until the process ends, the newest first.
///
/// A forked child has none of its parent's threads, so that a lock which one of them held stays
/// locked; this has none.
pub struct List<T: 'static>(AtomicPtr<Node<T>>);

/// A thing, and the one that was added before it.
pub struct Node<T: 'static> {
    of: T,
    next: *const Node<T>,
}

// Things are found by every thread.
impl<T: Send + Sync> List<T> {
    /// A list of nothing.
    ///
    /// # Safety
    /// `newest` must be null. (It is given, as loom's cannot be made for a constant.)
    pub const unsafe fn new(newest: AtomicPtr<Node<T>>) -> List<T> {
        List(newest)
    }

    /// The newest thing that is asked for, if there is one.
    pub fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<&'static T> {
        let mut at = self.0.load(Ordering::Acquire).cast_const();
        // SAFETY: what is in the list is never freed or changed.
        while let Some(node) = unsafe { at.as_ref() } {
            if is_it(&node.of) {
                return Some(&node.of);
            }
            at = node.next;
        }
        None
    }

    /// Adds a thing. Two threads may both add one that neither has found.
    pub fn add(&self, of: T) -> &'static T {
        let new = Box::leak(Box::new(Node { of, next: ptr::null() }));
        let mut next = self.0.load(Ordering::Acquire);
        loop {
            new.next = next;
            match self.0.compare_exchange_weak(next, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return &new.of,
                Err(other) => next = other,
            }
        }
    }
}
