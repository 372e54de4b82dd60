//! A file's bytes, mapped or read, and which file they are of.

mod identity;

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use super::error::{Advice, Context, FileError, Result, ensure};
pub use identity::{Change, settle};
use identity::{Identity, Opened};

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
    #[cfg(any(unix, windows))]
    Mapped(memmap2::Mmap),
    Read(Vec<u8>),
    /// Bytes of a file within the file.
    Part(Arc<FileBytes>, Range<usize>),
}

impl FileBytes {
    /// Opens a regular file. A pipe or a device has no length to check anything against. It must
    /// not change as long as it `is_mapped`, which [`map`](super::FileOptions::map) demands.
    pub fn open(path: &Path, is_mapped: bool) -> Result<FileBytes> {
        // Check before the file is opened: opening a pipe without a writer would block.
        let metadata = std::fs::metadata(path)?;
        ensure!(metadata.is_file(), "not a regular file");
        let file = File::open(path)?;
        // Identify the open file, and before it is read: nothing can be put in its place.
        let mut opened = Opened::of(&file);
        #[cfg(any(unix, windows))]
        if is_mapped {
            let content = Content::Mapped(map(&file).context("mapping the file failed")?);
            return Ok(FileBytes { content, file: Some(file), opened });
        }
        let _ = is_mapped;
        let content = Content::Read(read(&file, metadata.len())?);
        // If the file has changed meanwhile, the bytes may be neither the old nor the new ones.
        opened = opened.filter(|opened| opened.is_still(&file));
        Ok(FileBytes { content, file: Some(file), opened })
    }

    /// Reads the first bytes of a regular file, at most `len`.
    pub fn head(path: &Path, len: u64) -> Result<Vec<u8>> {
        ensure!(std::fs::metadata(path)?.is_file(), "not a regular file");
        let mut bytes = Vec::new();
        File::open(path)?.take(len).read_to_end(&mut bytes)?;
        Ok(bytes)
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
        if let Content::Part(whole, _) = &self.content {
            return whole.check_unchanged(by);
        }
        let is_same = |opened: Opened| match by {
            Change::Content => self.file.as_ref().is_none_or(|file| opened.has_same_content(file)),
            Change::Any => self.file.as_ref().is_none_or(|file| opened.is_still(file)),
        };
        // Bytes that were read stay as they are.
        let is_read = matches!(self.content, Content::Read(_));
        let is_unchanged = is_read || self.opened.is_none_or(is_same);
        if is_unchanged {
            return Ok(());
        }
        let text = "the file changed after it was opened, so what was read may be a mixture of old \
                    and new";
        Err(FileError::new(text).advise(Advice::NoMap))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.content {
            #[cfg(any(unix, windows))]
            Content::Mapped(map) => map,
            Content::Read(bytes) => bytes,
            Content::Part(whole, place) => &whole[place.clone()],
        }
    }
}

/// Maps a file read-only. The operating system does not stop another process from changing or
/// shortening a mapped file, which is why [`map`](super::FileOptions::map) is unsafe.
#[cfg(any(unix, windows))]
#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the map is private to this process and read-only, so nothing here writes to it; that
    // no other process changes the file is the condition of `FileOptions::map`, without which no
    // file is mapped.
    unsafe { memmap2::Mmap::map(file) }
}

fn read(file: &File, file_len: u64) -> Result<Vec<u8>> {
    let file_len_bytes = usize::try_from(file_len).ok().context("too large for memory")?;
    let mut bytes = reserved(file_len_bytes)?;
    // A file that grows meanwhile does not grow the buffer.
    file.take(file_len).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 == file_len, "the file was truncated while it was read");
    Ok(bytes)
}

/// Bytes as elements: the same memory where it is aligned, a copy where it is not.
pub(super) fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Result<Cow<'_, [T]>> {
    if let Ok(elements) = bytemuck::try_cast_slice(bytes) {
        return Ok(Cow::Borrowed(elements));
    }
    let size = size_of::<T>();
    let mut elements = reserved(bytes.len() / size)?;
    elements.extend(bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned::<T>));
    Ok(Cow::Owned(elements))
}

/// Makes an empty vector with room for `n` elements; an error where memory is lacking.
pub(super) fn reserved<T>(n: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    let bytes = n as u128 * size_of::<T>() as u128;
    elements
        .try_reserve_exact(n)
        .map_err(FileError::of)
        .with_context(|| format!("not enough memory for {bytes} bytes"))?;
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_off_their_boundary_are_copied() {
        let floats = [1.5f32, -2.0, 3.25];
        let mut bytes = [0u8; 4 * 4];
        for shift in 0..4 {
            bytes[shift..shift + 12].copy_from_slice(bytemuck::bytes_of(&floats));
            let slice = &bytes[shift..shift + 12];
            let read = elements::<f32>(slice).unwrap();
            assert_eq!(&read[..], floats);
            let aligned = slice.as_ptr().addr().is_multiple_of(4);
            assert_eq!(matches!(read, Cow::Borrowed(_)), aligned);
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        assert!(reserved::<u64>(usize::MAX / 16).is_err());
        assert!(reserved::<u64>(usize::MAX).is_err());
    }
}
