//! Rows of a file, read by several threads: through the page cache, or past it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::Source;
use crate::tokens::format::Format;
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::Scales;

/// Reads past the page cache begin and end at multiples of this, in the file and in memory: the
/// sectors of all disks divide it.
const SECTOR_BYTES: usize = 4096;

/// Bytes of one read past the page cache.
const DIRECT_BYTES: usize = 1 << 20;

thread_local! {
    /// Memory that reads past the page cache go to, kept by each thread that reads.
    static SECTORS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A [`Source`] of the rows of a file: a row-major matrix of little-endian elements or codes that
/// begins at some byte of it.
///
/// Reads as many parts at once as a search has threads. A file that is shorter than its layout says
/// is an error where its rows are missing, not before: a file may be longer than memory, and may
/// change.
///
/// ```
/// use maxsim::streaming::{StreamOptions, TokenReader};
/// use maxsim::{Device, TokenLayout, Tokens};
///
/// let path = std::env::temp_dir().join(format!("maxsim-reader-{}", std::process::id()));
/// # let missing = |error: std::io::Error| error.to_string();
/// // A header of 8 bytes, and three documents of one token each; dim 1.
/// let rows = [1.0f32, 3.0, 2.0].map(f32::to_le_bytes);
/// std::fs::write(&path, [[0; 8].as_slice(), &rows.concat()].concat()).map_err(missing)?;
///
/// let layout = TokenLayout::padded(3, 1, 1)?;
/// let documents = TokenReader::<f32>::open(&path, 8, layout).map_err(missing)?;
/// let query = Tokens::padded(&[1.0f32], 1, 1, 1)?;
/// let found = Device::best().search_stream(&query, &documents, 1, &StreamOptions::default())?;
/// assert_eq!(found.rankings[0].ranked[0].id, 1);
/// # std::fs::remove_file(&path).map_err(missing)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct TokenReader<'a, F: Format> {
    file: File,
    path: PathBuf,
    first_byte: u64,
    is_direct: bool,
    layout: TokenLayout,
    mask: Option<Cow<'a, [u8]>>,
    scales: Option<Scales<'a>>,
    format: PhantomData<fn() -> F>,
}

/// Prints the file and the layout.
impl<F: Format> fmt::Debug for TokenReader<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReader")
            .field("format", &F::FORMAT)
            .field("path", &self.path)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl<'a, F: Format> TokenReader<'a, F> {
    /// Opens a file whose rows begin at byte `first_byte` and lie as `layout` says. What is read
    /// stays in the page cache of the system: right for files that fit, and are read again.
    ///
    /// # Errors
    /// Those of opening a file.
    pub fn open(
        path: impl AsRef<Path>,
        first_byte: u64,
        layout: TokenLayout,
    ) -> io::Result<TokenReader<'a, F>> {
        let path = path.as_ref().to_path_buf();
        let file = File::open(&path)?;
        Ok(TokenReader {
            file,
            path,
            first_byte,
            is_direct: false,
            layout,
            mask: None,
            scales: None,
            format: PhantomData,
        })
    }

    /// As [`TokenReader::open`], and reads past the page cache (`O_DIRECT`): right for files that
    /// are larger than memory, on disks whose reads several threads keep busy.
    ///
    /// ```
    /// use maxsim::TokenLayout;
    /// use maxsim::streaming::TokenReader;
    ///
    /// let layout = TokenLayout::padded(3, 1, 1)?;
    /// match TokenReader::<f32>::open_direct("no such file", 0, layout) {
    ///     Err(why) => assert_eq!(why.kind(), std::io::ErrorKind::NotFound),
    ///     Ok(_) => unreachable!(),
    /// }
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of opening a file; [`io::ErrorKind::InvalidInput`] where its file system has no such
    /// reads, and [`io::ErrorKind::Unsupported`] on systems other than Linux.
    pub fn open_direct(
        path: impl AsRef<Path>,
        first_byte: u64,
        layout: TokenLayout,
    ) -> io::Result<TokenReader<'a, F>> {
        let file = direct(path.as_ref())?;
        let reader = TokenReader::open(path, first_byte, layout)?;
        Ok(TokenReader { file, is_direct: true, ..reader })
    }

    /// Switches rows off: a byte per row, 0 where it is no token.
    ///
    /// ```no_run
    /// use maxsim::format::{Int8, Scales};
    /// use maxsim::streaming::TokenReader;
    /// use maxsim::TokenLayout;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let (layout, mask, scales) = (TokenLayout::padded(1, 1, 8).unwrap(), vec![1], vec![1.0]);
    /// let codes = TokenReader::<Int8>::open("codes.bin", 0, layout)?;
    /// let codes = codes.with_mask(mask).with_scales(Scales::F32(scales.into()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_mask(self, mask: impl Into<Cow<'a, [u8]>>) -> TokenReader<'a, F> {
        TokenReader { mask: Some(mask.into()), ..self }
    }

    /// Gives codes their scales, of all rows.
    pub fn with_scales(self, scales: Scales<'a>) -> TokenReader<'a, F> {
        TokenReader { scales: Some(scales), ..self }
    }
}

impl<F: Format> Source<F> for TokenReader<'_, F> {
    fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    fn mask(&self) -> Option<&[u8]> {
        self.mask.as_deref()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        self.scales.as_ref().map(Scales::borrowed)
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        let row_bytes = (self.layout.dim() * size_of::<F::Stored>()) as u64;
        let at = self.first_byte + rows.start as u64 * row_bytes;
        let to = bytemuck::cast_slice_mut(to);
        let read = if self.is_direct { self.read_direct(to, at) } else { self.read(to, at) };
        read.map_err(|error| {
            let path = self.path.display();
            io::Error::new(error.kind(), format!("{path}, from byte {at} on: {error}"))
        })
    }
}

impl<F: Format> TokenReader<'_, F> {
    /// Fills `to` with the bytes from `at` on.
    fn read(&self, mut to: &mut [u8], mut at: u64) -> io::Result<()> {
        while !to.is_empty() {
            let n = retried(|| read_at(&self.file, to, at))?;
            if n == 0 {
                return Err(ended());
            }
            to = &mut to[n..];
            at += n as u64;
        }
        Ok(())
    }

    /// Fills `to` with the bytes from `at` on, which are copied out of whole sectors.
    fn read_direct(&self, to: &mut [u8], mut at: u64) -> io::Result<()> {
        SECTORS.with_borrow_mut(|memory| {
            let mut to = to;
            memory.resize(DIRECT_BYTES + SECTOR_BYTES, 0);
            let begin = memory.as_ptr().align_offset(SECTOR_BYTES);
            let sectors = &mut memory[begin..][..DIRECT_BYTES];
            while !to.is_empty() {
                let skipped = (at % SECTOR_BYTES as u64) as usize;
                let wanted = (skipped + to.len()).next_multiple_of(SECTOR_BYTES).min(DIRECT_BYTES);
                let sectors = &mut sectors[..wanted];
                let n = retried(|| read_at(&self.file, sectors, at - skipped as u64))?;
                let found = &sectors[skipped.min(n)..n];
                let len = found.len().min(to.len());
                if len == 0 {
                    return Err(ended());
                }
                to[..len].copy_from_slice(&found[..len]);
                to = &mut to[len..];
                at += len as u64;
            }
            Ok(())
        })
    }
}

/// A read that a signal has not ended.
fn retried(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before its rows do")
}

#[cfg(unix)]
fn read_at(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, to, at)
}

#[cfg(windows)]
fn read_at(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, to, at)
}

#[cfg(not(any(unix, windows)))]
fn read_at(mut file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    // A file has one place that all threads read on from.
    static PLACE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = PLACE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(at))?;
    file.read(to)
}

/// Opens a file whose reads do not go through the page cache.
#[cfg(target_os = "linux")]
fn direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

#[cfg(not(target_os = "linux"))]
fn direct(path: &Path) -> io::Result<File> {
    // A path that is wrong is the error that it is elsewhere.
    OpenOptions::new().read(true).open(path)?;
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "reading past the page cache needs Linux; use TokenReader::open",
    ))
}
