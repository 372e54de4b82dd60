//! PTX entry points: thin `extern "ptx-kernel"` wrappers, one per kernel of the tables.

mod auxiliary;
mod forward;
