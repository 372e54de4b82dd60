//! A file's bytes: mapped, or read.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use memmap2::Mmap;

use super::reserved;

/// How a file is brought into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Mapped: pages come in when they are used. The file must not change meanwhile.
    Map,
    /// Read whole, for files that may change, or on file systems without mapping.
    Read,
}

/// A file's bytes.
#[derive(Debug)]
pub(crate) enum FileBytes {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl FileBytes {
    /// Opens a regular file. A pipe or a device has no length to check anything against.
    pub fn open(path: &Path, reading: Reading) -> Result<FileBytes> {
        // Asked before the file is opened: opening a pipe without a writer would block.
        let metadata = std::fs::metadata(path)?;
        ensure!(metadata.is_file(), "not a regular file");
        let file = File::open(path)?;
        match reading {
            Reading::Map => Ok(FileBytes::Mapped(map(&file).context("mapping the file failed")?)),
            Reading::Read => Ok(FileBytes::Read(read(file, metadata.len())?)),
        }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(map) => map,
            FileBytes::Read(bytes) => bytes,
        }
    }
}

/// Maps a file read-only.
///
/// This is the only unsafe function of the tool. The operating system does not stop another
/// process from changing or shortening a mapped file; the command documents that inputs must
/// not change while it runs, and `--no-mmap` is there for files of which that is not certain.
#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is private to this process and read-only, so nothing here writes to it;
    // that nobody else changes the file is the documented condition above.
    unsafe { Mmap::map(file) }
}

fn read(file: File, file_len: u64) -> Result<Vec<u8>> {
    let mut bytes = reserved(usize::try_from(file_len)?)?;
    // A file that grows meanwhile does not grow the buffer.
    file.take(file_len).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 == file_len, "the file became shorter while it was read");
    Ok(bytes)
}
