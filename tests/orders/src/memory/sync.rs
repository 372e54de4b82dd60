//! What the code imports, with loom's atomics.

use loom::sync::atomic;

pub use loom::sync::Arc;
pub use loom::sync::atomic::Ordering;

/// A flag. For loom a store may come between an exchange and the value that it read, which no
/// memory does; so that no order is tried which there is not, stores are exchanges here.
#[derive(Debug)]
pub struct AtomicBool(atomic::AtomicBool);

impl AtomicBool {
    pub fn new(value: bool) -> AtomicBool {
        AtomicBool(atomic::AtomicBool::new(value))
    }

    pub fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    pub fn store(&self, value: bool, order: Ordering) {
        self.0.swap(value, order);
    }

    pub fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, order)
    }
}
