//! The Python package's list of thread pools.

#[path = "../../../../python/src/pool/list.rs"]
mod code;
/// What the code imports, with loom's atomics.
mod sync {
    pub use loom::sync::atomic::{AtomicPtr, Ordering};
}

use std::ptr;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use self::code::List;
use self::sync::AtomicPtr;
use crate::{Model, in_all_orders};

/// What is checked of it.
pub const MODELS: &[Model] = &[("a list that three threads add to", added)];

/// A thing whose making loom sees, so that a reader that could see it unmade is found.
struct Thing(usize, UnsafeCell<usize>);

impl Thing {
    fn new(n: usize) -> Thing {
        Thing(n, UnsafeCell::new(n))
    }

    fn is(&self, n: usize) -> bool {
        // SAFETY: things are not changed once they are in a list.
        self.1.with(|made| unsafe { *made }) == n && self.0 == n
    }
}

// SAFETY: things are not changed once they are in a list.
unsafe impl Sync for Thing {}

fn added() -> usize {
    in_all_orders(5, || {
        // SAFETY: the pointer is null.
        let list = Arc::new(unsafe { List::new(AtomicPtr::new(ptr::null_mut())) });
        let add = |n: usize| {
            let list = list.clone();
            move || {
                let own = list.add(Thing::new(n));
                assert!(own.is(n));
                assert!(ptr::eq(list.find(|thing| thing.is(n)).expect("was added"), own));
            }
        };
        let others = [1, 2].map(|n| thread::spawn(add(n)));
        add(3)();
        // One that another thread adds is found whole, or not yet.
        list.find(|thing| thing.is(1));
        others.into_iter().for_each(|other| other.join().expect("no thread panics"));
        assert!((1..=3).all(|n| list.find(|thing| thing.is(n)).is_some()), "one was lost");
    })
}
