//! What the targets share: a limit on what an input may make the library allocate, and folders of
//! files made out of an input.

mod allocation;
mod folder;

pub use allocation::{Limited, within};
pub use folder::Folder;
