//! Files of token embeddings.
//!
//! A reader turns bytes into a [`Contents`]: where the matrix lies, its format and its layout,
//! everything checked. Embeddings are borrowed from the file, a range of items at a
//! time, so that a corpus need fit neither the device nor, mapped, host memory.

mod archive;
mod arrays;
mod bytes;
mod contents;
mod folder;
mod format;
pub(crate) mod ids;
pub(crate) mod items;
pub(crate) mod npy;
mod options;
mod safetensors;
mod tensors;
pub(crate) mod valid;
mod zeros;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use maxsim::format::{Element, ElementType, Quantized, TokenFormat, with_format};
use maxsim::{AnyTokens, TokenLayout, Tokens};

use crate::judging::ids::{Ids, Side};
pub use bytes::Reading;
pub(crate) use bytes::{Change, FileBytes, settle};
use contents::check_int8;
pub use contents::{Contents, ScalesPlace};
pub use format::Format;
pub(crate) use items::{Beside, Matrix, Role};
pub use options::{InputOptions, TrailingZeros};
pub(crate) use safetensors::{Tensors, dtype_of, format_of};
use valid::ValidRows;

/// Most items of a padded array of length 0: such items cost a file nothing, but the program 9
/// bytes each, and a file of 100 bytes must not ask for gigabytes.
const MAX_EMPTY_ITEMS: usize = 1 << 16;

/// An open file of token embeddings.
///
/// All rows of its layout's items are valid: those that a mask excludes are no part of the
/// layout.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    sources: Vec<PathBuf>,
    bytes: FileBytes,
    /// Elements in place of the file's own, where those are not the ones to read.
    elements: Option<Vec<u8>>,
    /// Stored rows that the tokens are, where they are not all.
    stored: Option<ValidRows>,
    /// Ids that the file has beside its embeddings; those of `.safetensors` are read when asked
    /// for.
    ids: Option<Vec<String>>,
    contents: Contents,
    warnings: Vec<String>,
}

/// Reads items of a file in their types, and so in whichever type they have.
pub(crate) trait ReadItems<'a>: Copy {
    /// The file.
    fn file(self) -> &'a TokenFile;

    /// Items of a file of elements.
    fn elements_of<T: Element>(self, items: Range<usize>) -> Result<Tokens<'a, T>>;

    /// Items of a file of codes.
    fn codes_of<F: Quantized>(self, items: Range<usize>) -> Result<Tokens<'a, F>>;

    /// A range of items, in the format that the file has.
    ///
    /// # Errors
    /// The errors of the typed readers, and for residual-compressed tokens.
    fn any_tokens(self, items: Range<usize>) -> Result<AnyTokens<'a>> {
        with_format!(self.file().contents.format, {
            element T => Ok(self.elements_of::<T>(items)?.into()),
            codes F => Ok(self.codes_of::<F>(items)?.into()),
            other => bail!("{other} embeddings are not read row by row"),
        })
    }
}

impl<'a> ReadItems<'a> for &'a TokenFile {
    fn file(self) -> &'a TokenFile {
        self
    }

    fn elements_of<T: Element>(self, items: Range<usize>) -> Result<Tokens<'a, T>> {
        self.tokens(items)
    }

    fn codes_of<F: Quantized>(self, items: Range<usize>) -> Result<Tokens<'a, F>> {
        self.codes(items)
    }
}

/// A file as a reader of some format opens it.
struct Opened {
    bytes: FileBytes,
    contents: Contents,
    /// Files that the rows came from, where they are not the path itself.
    sources: Vec<PathBuf>,
    /// The items' ids, where arrays' names or strings say them.
    ids: Option<Vec<String>>,
    warnings: Vec<String>,
}

impl Opened {
    /// Takes the bytes and contents of one file.
    fn new(bytes: FileBytes, contents: Contents) -> Opened {
        Opened { bytes, contents, sources: Vec::new(), ids: None, warnings: Vec::new() }
    }
}

impl TokenFile {
    /// Opens and checks a file; its embeddings are not read yet when it is mapped.
    pub fn open(path: &Path, reading: Reading) -> Result<TokenFile> {
        TokenFile::open_with(path, &InputOptions::new(reading))
    }

    /// Opens a file as [`TokenFile::open`], with options.
    pub fn open_with(path: &Path, options: &InputOptions) -> Result<TokenFile> {
        let open = || -> Result<TokenFile> {
            let format = Format::of(path)?;
            let whole = || FileBytes::open(path, options.reading);
            match format {
                Format::Safetensors | Format::Npy => TokenFile::of(path, whole()?, format, options),
                Format::Npz => {
                    let files = stated_files(options)?;
                    TokenFile::checked(path, archive::open(whole()?, options, &files)?, options)
                }
                Format::Folder => {
                    let files = stated_files(options)?;
                    TokenFile::checked(path, folder::open(path, options, &files)?, options)
                }
            }
        };
        open().with_context(|| path.display().to_string())
    }

    /// Checks the bytes of a whole file.
    pub(crate) fn of(
        path: &Path,
        bytes: FileBytes,
        format: Format,
        options: &InputOptions,
    ) -> Result<TokenFile> {
        let files = stated_files(options)?;
        let contents = match format {
            Format::Npy => npy::parse(&bytes, options, &files)?,
            _ => safetensors::parse(&bytes, options, &files)?,
        };
        TokenFile::checked(path, Opened::new(bytes, contents), options)
    }

    /// Looks for padding that the file does not state.
    fn checked(path: &Path, opened: Opened, options: &InputOptions) -> Result<TokenFile> {
        let Opened { bytes, mut contents, mut sources, ids, mut warnings } = opened;
        warnings.extend(zeros::check(&mut contents, &bytes, options.trailing_zeros)?);
        if sources.is_empty() {
            sources.push(path.into());
        }
        sources.extend(options.mask_file.iter().chain(&options.lengths_file).cloned());
        Ok(TokenFile {
            path: path.into(),
            sources,
            bytes,
            elements: None,
            stored: None,
            ids,
            contents,
            warnings,
        })
    }

    /// The files that rows, and where items are among them, were read from.
    pub fn sources(&self) -> &[PathBuf] {
        &self.sources
    }

    /// Warnings for a user about a file that can be read all the same.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.warnings.iter().map(|warning| format!("{}: {warning}", self.path.display()))
    }

    /// Row of the stored matrix that a row of the layout is, for messages.
    pub fn stored_row(&self, row: usize) -> usize {
        match &self.stored {
            Some(stored) => stored.stored_row(row),
            None => self.contents.stored_row(row),
        }
    }

    /// The ids that the file gives its items.
    pub fn ids(&self, side: Side) -> Result<Ids> {
        let read = || match Format::of(&self.path)? {
            Format::Safetensors => ids::of(&Tensors::parse(&self.bytes)?, self.n_items()),
            Format::Npy | Format::Npz | Format::Folder => Ok(self.ids.clone()),
        };
        let ids = read().with_context(|| self.path.display().to_string())?;
        Ids::stored(ids, &self.path, side, self.n_items())
    }

    /// The file's name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Format, layout, and place of the embeddings.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Rows, dim, and the rows of each item.
    pub fn layout(&self) -> &TokenLayout {
        &self.contents.layout
    }

    /// Number of items.
    pub fn n_items(&self) -> usize {
        self.contents.layout.n_items()
    }

    /// The embeddings of a range of items.
    pub fn tokens<T: Element>(&self, items: Range<usize>) -> Result<Tokens<'_, T>> {
        self.contents.tokens(self.matrix(), items)
    }

    /// The compressed embeddings of a range of items. The code -128 of INT8 is refused.
    pub fn codes<F: Quantized>(&self, items: Range<usize>) -> Result<Tokens<'_, F>> {
        let read = || -> Result<Tokens<'_, F>> {
            let codes = self.contents.codes::<F>(self.matrix(), items.clone())?;
            if F::FORMAT == TokenFormat::Int8 {
                let stored_row = |row| {
                    let first =
                        self.layout().items(items.clone()).map_or(0, |(rows, _)| rows.start);
                    self.stored_row(first + row)
                };
                check_int8(bytemuck::cast_slice(codes.data()), codes.layout(), stored_row)?;
            }
            Ok(codes)
        };
        read().with_context(|| self.path.display().to_string())
    }

    /// Reads a range of the layout's rows `[n, dim]`, of any items.
    pub fn elements<T: Element>(&self, rows: Range<usize>) -> Result<Cow<'_, [T]>> {
        self.contents.elements(self.matrix(), rows)
    }

    /// Replaces the elements by others in memory, as many as there are. Rows stay those of the
    /// file.
    pub(crate) fn with_elements(self, element: ElementType, elements: Vec<u8>) -> TokenFile {
        let contents = Contents {
            format: element.into(),
            data: 0..elements.len(),
            scales: None,
            // The new elements are valid rows alone.
            valid: None,
            ..self.contents
        };
        let stored = self.stored.or(self.contents.valid);
        TokenFile { contents, elements: Some(elements), stored, ..self }
    }

    /// Bytes that have the matrix of [`TokenFile::contents`].
    fn matrix(&self) -> &[u8] {
        self.elements.as_deref().unwrap_or(&self.bytes)
    }

    /// Size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// Reads the tensors that `--mask-file` and `--lengths-file` name.
pub(crate) fn stated_files(options: &InputOptions) -> Result<Vec<Beside<'static>>> {
    let files = [(&options.mask_file, Role::Mask), (&options.lengths_file, Role::Lengths)];
    let files = files.into_iter().filter_map(|(path, role)| Some((path.as_ref()?, role)));
    let read = |(path, role): (&PathBuf, Role)| {
        let read = || {
            npy::beside(
                &path.display().to_string(),
                Some(role),
                &FileBytes::open(path, Reading::Read)?,
            )
        };
        read().with_context(|| path.display().to_string())
    };
    files.map(read).collect()
}

/// Layout of `[n, len, dim]`, of which an item may use fewer than `len` tokens.
pub(crate) fn padded_layout(
    [n, len, dim]: [usize; 3],
    lengths: Option<&[i64]>,
) -> Result<TokenLayout> {
    ensure!(
        len > 0 || n <= MAX_EMPTY_ITEMS,
        "embeddings: {n} items of 0 tokens each; at most {MAX_EMPTY_ITEMS} empty items are \
         supported"
    );
    let layout = TokenLayout::padded(n, len, dim)?;
    Ok(match lengths {
        Some(lengths) => layout.with_lengths(lengths)?,
        None => layout,
    })
}

/// Bytes as elements: the same memory where it is aligned, a copy where it is not.
pub(crate) fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Result<Cow<'_, [T]>> {
    if let Ok(elements) = bytemuck::try_cast_slice(bytes) {
        return Ok(Cow::Borrowed(elements));
    }
    let size = size_of::<T>();
    let mut elements = reserved(bytes.len() / size)?;
    elements.extend(bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned::<T>));
    Ok(Cow::Owned(elements))
}

/// Makes an empty vector with room for `n` elements; an error where memory is lacking.
pub(crate) fn reserved<T>(n: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    let bytes = n as u128 * size_of::<T>() as u128;
    elements
        .try_reserve_exact(n)
        .map_err(|_| anyhow::anyhow!("not enough memory for {bytes} bytes"))?;
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

    #[test]
    fn empty_items_are_bounded() {
        assert!(padded_layout([MAX_EMPTY_ITEMS, 0, 4], None).is_ok());
        assert!(padded_layout([MAX_EMPTY_ITEMS + 1, 0, 4], None).is_err());
    }
}
