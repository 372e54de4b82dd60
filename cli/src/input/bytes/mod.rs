//! A file's bytes, mapped or read, and which file they are of.

mod identity;

use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use memmap2::Mmap;

use super::reserved;
pub(crate) use identity::{Change, settle};
use identity::{Identity, Opened};

/// How a file is brought into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Mapped: pages come in when they are used. The file must not change meanwhile.
    Map,
    /// Read whole, for files that may change, or on file systems without mapping.
    Read,
}

/// A file's bytes, and which file it was when they were opened.
#[derive(Debug)]
pub(crate) struct FileBytes {
    content: Content,
    /// The file; none where bytes were put together from several, or unpacked.
    file: Option<File>,
    opened: Option<Opened>,
}

#[derive(Debug)]
enum Content {
    Mapped(Mmap),
    Read(Vec<u8>),
    /// Bytes of a file within the file.
    Part(Arc<FileBytes>, Range<usize>),
}

impl FileBytes {
    /// Opens a regular file. A pipe or a device has no length to check anything against.
    pub fn open(path: &Path, reading: Reading) -> Result<FileBytes> {
        // Check before the file is opened: opening a pipe without a writer would block.
        let metadata = std::fs::metadata(path)?;
        ensure!(metadata.is_file(), "not a regular file");
        let file = File::open(path)?;
        // Identify the open file, and before it is read: nothing can be put in its place.
        let mut opened = Opened::of(&file);
        let content = match reading {
            Reading::Map => Content::Mapped(map(&file).context("mapping the file failed")?),
            Reading::Read => {
                let bytes = read(&file, metadata.len())?;
                // If the file has changed meanwhile, the bytes may be neither the old nor the new
                // ones.
                opened = opened.filter(|opened| opened.is_still(&file));
                Content::Read(bytes)
            }
        };
        Ok(FileBytes { content, file: Some(file), opened })
    }

    /// Wraps bytes that were made in memory: a change of the files they came from does not show.
    pub fn in_memory(bytes: Vec<u8>) -> FileBytes {
        FileBytes { content: Content::Read(bytes), file: None, opened: None }
    }

    /// Takes the bytes of a file within a file. `place` must lie in it.
    pub fn part(whole: Arc<FileBytes>, place: Range<usize>) -> FileBytes {
        FileBytes { content: Content::Part(whole, place), file: None, opened: None }
    }

    /// Identity of the file, where a change of it would show.
    pub fn identity(&self) -> Option<Identity> {
        self.opened.as_ref().and_then(Opened::identity)
    }

    /// Checks that a mapped file is as it was when it was opened.
    pub fn check_unchanged(&self, by: Change) -> Result<()> {
        let is_unchanged = |opened: Opened| match by {
            Change::Content => self.file.as_ref().is_none_or(|file| opened.has_same_content(file)),
            Change::Any => self.file.as_ref().is_none_or(|file| opened.is_still(file)),
        };
        let is_unchanged = match &self.content {
            Content::Mapped(_) => self.opened.is_none_or(is_unchanged),
            Content::Read(_) => true,
            Content::Part(whole, _) => return whole.check_unchanged(by),
        };
        ensure!(
            is_unchanged,
            "the file changed during the run, so what was read may be a mixture of old and new; \
             run the command again, with --no-mmap if files may change at any time"
        );
        Ok(())
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.content {
            Content::Mapped(map) => map,
            Content::Read(bytes) => bytes,
            Content::Part(whole, place) => &whole[place.clone()],
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
    // that no other process changes the file is the documented condition above.
    unsafe { Mmap::map(file) }
}

fn read(file: &File, file_len: u64) -> Result<Vec<u8>> {
    let mut bytes = reserved(usize::try_from(file_len)?)?;
    // A file that grows meanwhile does not grow the buffer.
    file.take(file_len).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 == file_len, "the file was truncated while it was read");
    Ok(bytes)
}
