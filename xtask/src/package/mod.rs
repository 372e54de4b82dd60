//! What is published of the Python package: wheels, and the folder that the Hugging Face `kernels`
//! library loads.

mod elf;
pub mod hub;
mod rules;
mod wheel;
pub mod wheels;

use std::path::{Path, PathBuf};

/// The newest C library whose symbols may be asked for: that of the platform `manylinux_2_28`,
/// which is what the Hub asks of kernels, too.
const GLIBC: (u32, u32) = (2, 28);

/// A path for readers: from the checkout, where it lies in there.
fn shown<'a>(path: &'a Path, root: &Path) -> &'a Path {
    path.strip_prefix(root).unwrap_or(path)
}

/// A folder below the checkout's `target`, which `CARGO_TARGET_DIR` may put elsewhere.
pub fn below_target(root: &Path, name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.map_or_else(|| root.join("target"), |target| root.join(target)).join(name)
}
