//! Helpers for every layer above: fallible allocation, shared values, the thread pool.

pub(crate) mod alloc;
pub(crate) mod arrival;
#[cfg(feature = "serde")]
pub(crate) mod by_name;
pub(crate) mod fetch;
pub(crate) mod interrupt;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub(crate) mod numa;
pub(crate) mod on;
pub(crate) mod pitch;
pub(crate) mod pool;
pub(crate) mod swap;
