//! What [`super::timeline`] shares between threads, named here once: `tests/orders` compiles that
//! module with loom's in place of these, which tries all orders of what threads do.

pub(super) use std::sync::Arc;
pub(super) use std::sync::atomic::{AtomicBool, Ordering};
