//! Tests of all readers together, on files that are made in memory.

mod contents;
mod opening;

/// Files of tokens, which the tool's tests make, too.
#[path = "../../../../cli/tests/files/mod.rs"]
mod made;
