//! Device memory that lost its owner: it is handed out again when no stream uses it any more, and
//! not before.

mod model;
mod sync;
#[path = "../../../../host/src/cuda/driver/memory/timeline.rs"]
#[allow(dead_code)]
mod timeline;

pub use model::MODELS;

/// A stream's handle: here its number.
#[derive(Clone, Copy, Debug)]
struct Handle(pub usize);
