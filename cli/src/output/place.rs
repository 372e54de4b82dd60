//! Follows the links of an output path and finds out what it names.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Links that are followed: as many as Linux does.
const MAX_LINKS: usize = 40;

/// Target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The program's own standard output, under another name.
    Stdout,
    /// Another open file, as in /dev/fd/3: it is a stream of the caller, whatever it leads to.
    Descriptor(PathBuf),
    /// A path that is no link; there need not be anything.
    Path(PathBuf),
}

/// Follows the links of a path one by one. A dangling one leads to where its target will be; one in
/// a folder of descriptors is not followed, as the name of what is open is not what is open.
pub(super) fn of(path: &Path) -> Result<Place> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        // Folders are not made: without one, the path is what it is.
        let Ok(folder) = folder(&path).canonicalize() else { return Ok(Place::Path(path)) };
        if is_of_descriptors(&folder) {
            let is_own = Path::new("/proc/self/fd").canonicalize().is_ok_and(|own| own == folder);
            let is_stdout = is_own && path.file_name().is_some_and(|name| name == "1");
            return Ok(if is_stdout { Place::Stdout } else { Place::Descriptor(path) });
        }
        match path.read_link() {
            Ok(target) => path = folder.join(target),
            Err(_) => return Ok(Place::Path(path)),
        }
    }
    bail!("a chain of more than {MAX_LINKS} links")
}

/// The folder of a file's path.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn is_of_descriptors(folder: &Path) -> bool {
    let is_of_process = folder.starts_with("/proc") && folder.ends_with("fd");
    is_of_process || folder == Path::new("/dev/fd")
}
