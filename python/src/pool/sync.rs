//! What [`super::list`] shares between threads, named here once: `tests/orders` compiles that
//! module with loom's in place of these, which tries all orders of what threads do.

pub use std::sync::atomic::{AtomicPtr, Ordering};
