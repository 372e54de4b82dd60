//! Writes a file that appears whole or not at all, however the run ends.
//!
//! On Linux it has no name until it is complete (`O_TMPFILE`), so that the system removes it with
//! the process, however that ends. It is then linked to its name; where there is a file already, it
//! is linked to a hidden name and renamed at once. Where there are no files without names, it has
//! the hidden name from the beginning, which [`crate::interrupt`] removes. A hidden name that
//! remains all the same, as after SIGKILL, is removed by the next run in the folder: a file is
//! locked while its run lives.

use std::ffi::OsStr;
use std::fs::{File, Permissions, TryLockError};
use std::io;
#[cfg(unix)]
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::place;
use crate::interrupt::Unfinished;

/// How hidden names begin and end. Between them is the process, and what makes names differ.
const PREFIX: &str = ".maxsim-";
const SUFFIX: &str = ".part";

/// Names that are tried. One is taken only where another process makes up the same.
const MAX_TRIES: usize = 16;

/// `named` does without files that have no name, as a file system that has none does.
#[cfg(target_os = "linux")]
const VARIABLE: &str = "MAXSIM_TEMPORARY";

/// A file being written. Unless it is published, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    /// Locked, so that no other run removes it.
    file: File,
    path: PathBuf,
    /// `None` where it has no name yet.
    name: Option<Unfinished>,
}

impl NewFile {
    /// Finds out, before any work is done, whether a file can be written, and removes the
    /// unfinished files of dead runs in its folder.
    pub(crate) fn check(path: &Path) -> Result<()> {
        remove_left(place::folder(path));
        NewFile::create(path).map(drop)
    }

    /// An empty file that will be `path`, which is no link. Who may read and write it is what it is
    /// for the file at that place.
    pub(crate) fn create(path: &Path) -> Result<NewFile> {
        let replaced = std::fs::metadata(path).map(|found| found.permissions()).ok();
        let create = || -> io::Result<NewFile> {
            let file = match nameless(path, replaced.as_ref()) {
                Some(file) => NewFile { file, path: path.to_path_buf(), name: None },
                None => named(path, replaced.as_ref())?,
            };
            // Creating took the umask off.
            replaced.into_iter().try_for_each(|mode| file.file.set_permissions(mode))?;
            Ok(file)
        };
        let folder = place::folder(path).display();
        create().with_context(|| format!("cannot write in the folder {folder}"))
    }

    /// The file to write to.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Puts the file in its place, in place of what is there.
    pub(crate) fn publish(self) -> io::Result<()> {
        match self.name {
            Some(name) => name.rename(&self.path),
            None => publish_nameless(self.file, &self.path),
        }
    }
}

/// A file without a name, in the folder of `path`; `None` where there are none.
#[cfg(target_os = "linux")]
fn nameless(path: &Path, replaced: Option<&Permissions>) -> Option<File> {
    use rustix::fs::{CWD, Mode, OFlags, openat};

    if std::env::var_os(VARIABLE).is_some_and(|choice| choice == "named") {
        return None;
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(CWD, place::folder(path), flags, Mode::from_raw_mode(mode(replaced))).ok()?;
    let file = File::from(file);
    // Without /proc the file could not be given a name.
    std::fs::metadata(linux::path_of(&file)).ok()?;
    // No other process knows the file, so locking can only fail where the file system has no locks.
    let _ = file.try_lock();
    Some(file)
}

#[cfg(not(target_os = "linux"))]
fn nameless(_: &Path, _: Option<&Permissions>) -> Option<File> {
    None
}

#[cfg(target_os = "linux")]
fn publish_nameless(mut file: File, path: &Path) -> io::Result<()> {
    match linux::link(&file, path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        // Links are forbidden, or the folder is gone.
        Err(_) => return copy(&mut file, path),
    }
    let hidden = hidden(path);
    crate::interrupt::held_off(|| {
        linux::link(&file, &hidden)?;
        let renamed = std::fs::rename(&hidden, path);
        if renamed.is_err() {
            let _ = std::fs::remove_file(&hidden);
        }
        renamed
    })
}

#[cfg(not(target_os = "linux"))]
fn publish_nameless(mut file: File, path: &Path) -> io::Result<()> {
    copy(&mut file, path)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};

    use rustix::fs::{AtFlags, CWD, linkat};

    /// Path of an open file that has no name of its own.
    pub(super) fn path_of(file: &File) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    pub(super) fn link(file: &File, name: &Path) -> io::Result<()> {
        Ok(linkat(CWD, path_of(file), CWD, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// As a copy that has a name.
fn copy(file: &mut File, path: &Path) -> io::Result<()> {
    let permissions = file.metadata()?.permissions();
    let mut copy = named(path, Some(&permissions))?;
    copy.file.set_permissions(permissions)?;
    io::Seek::rewind(file)?;
    io::copy(file, &mut copy.file)?;
    copy.publish()
}

/// A file with a hidden name, in the folder of `path`.
fn named(path: &Path, replaced: Option<&Permissions>) -> io::Result<NewFile> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    options.mode(mode(replaced));
    #[cfg(not(unix))]
    let _ = replaced;
    for _ in 0..MAX_TRIES {
        let (name, file) = match Unfinished::create(hidden(path), |name| options.open(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created?,
        };
        // Before the lock another run may have taken it for a dead one's: it has the lock then, or
        // has removed the file.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) || is_removed(&file)? {
            continue;
        }
        return Ok(NewFile { file, path: path.to_path_buf(), name: Some(name) });
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "no name is free for an unfinished file"))
}

#[cfg(unix)]
fn is_removed(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() == 0)
}

#[cfg(not(unix))]
fn is_removed(_: &File) -> io::Result<bool> {
    Ok(false)
}

/// Readable like any new file, or like the one that is replaced.
#[cfg(unix)]
fn mode(replaced: Option<&Permissions>) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    replaced.map_or(0o666, |permissions| permissions.mode() & 0o7777)
}

/// A hidden name in the folder of `path`.
fn hidden(path: &Path) -> PathBuf {
    static N_NAMES: AtomicU64 = AtomicU64::new(0);
    let n = N_NAMES.fetch_add(1, Ordering::Relaxed);
    // Processes of other machines may have the same number.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let unique = now.as_nanos() as u64;
    let name = format!("{PREFIX}{}-{unique:x}-{n}{SUFFIX}", std::process::id());
    place::folder(path).join(name)
}

fn is_hidden(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// Removes the hidden names of dead runs, whose files are not locked. Where that fails, they stay.
fn remove_left(folder: &Path) {
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries.flatten() {
        let is_file = || entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_hidden(&entry.file_name()) || !is_file() {
            continue;
        }
        // Open for writing: some file systems lock only such files.
        let path = entry.path();
        let write = File::options().read(true).write(true).open(&path);
        if let Ok(file) = write.or_else(|_| File::open(&path))
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}
