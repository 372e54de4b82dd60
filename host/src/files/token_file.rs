//! An open file of token embeddings.
//!
//! A reader turns bytes into a [`Contents`]: where the matrix lies, its format and its layout,
//! everything checked. Embeddings are borrowed from the file, a range of items at a time, so that a
//! corpus need fit neither the device nor, mapped, host memory.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::arrays::{archive, folder};
use super::bytes::{Change, FileBytes};
use super::contents::{Contents, check_int8};
use super::error::{Advice, Context, FileError, Message, Result, bail, ensure};
use super::format::FileFormat;
use super::items::{Beside, Role, ValidRows, check_zeros};
use super::options::FileOptions;
use super::safetensors::{self, Tensors};
use super::{ids, npy};
use crate::tokens::Tokens;
use crate::tokens::any::AnyTokens;
use crate::tokens::dispatch::with_format;
use crate::tokens::element::Element;
use crate::tokens::format::{Quantized, TokenFormat};
use crate::tokens::layout::TokenLayout;
use crate::tokens::scales::Scales;

/// An open file of token embeddings: elements, or codes with scales.
///
/// All rows of its layout's items are valid: those that a mask excludes are no part of the layout.
/// Numbers may be any that the format has, NaN and infinities too.
///
/// ```
/// use maxsim::files::{FileFormat, FileOptions, TokenFile};
///
/// // `embeddings` [1, 2, 1] of f32, as if they had been received. The second token is zeros.
/// let header = br#"{"embeddings":{"dtype":"F32","shape":[1,2,1],"data_offsets":[0,8]},
///     "__metadata__":{"ids":"[\"a\"]"}}"#;
/// let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
/// bytes.extend(header);
/// bytes.extend([2.0f32, 0.0].iter().flat_map(|x| x.to_le_bytes()));
/// let options = FileOptions::default();
/// let file = TokenFile::from_bytes(bytes, FileFormat::Safetensors, &options)?;
/// assert_eq!((file.layout().rows(), file.ids()?), (2, Some(vec!["a".to_string()])));
/// let warning: String = file.warnings()[0].to_string();
/// assert!(warning.starts_with("1 of 1 items begin or end with 1 row of zeros"));
/// assert_eq!((file.states_lengths(), file.note("ids")), (false, Some(r#"["a"]"#.to_string())));
///
/// // Elements of single rows, and others in their place.
/// assert_eq!(file.elements::<f32>(0..1)?[..], [2.0]);
/// let halves = [1.0, 0.0].map(maxsim::half::f16::from_f32);
/// let file = file.with_elements(&halves)?;
/// assert_eq!(file.contents().format.name(), "f16");
/// // They were no file, which could change or be known again.
/// assert!(file.sources().is_empty() && file.identity().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Codes have scales, and rows that a mask excludes are no part of the layout:
///
/// ```
/// use maxsim::files::{FileFormat, FileOptions, TokenFile};
/// use maxsim::format::Int8;
///
/// // INT8 [1, 2, 1]: 9 · 0.5 is padding, 2 · 0.5 a token.
/// let header = br#"{"mask":{"dtype":"BOOL","shape":[1,2],"data_offsets":[0,2]},
///     "scales":{"dtype":"F16","shape":[1,2],"data_offsets":[2,6]},
///     "embeddings":{"dtype":"I8","shape":[1,2,1],"data_offsets":[6,8]}}"#;
/// let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
/// bytes.extend(header);
/// bytes.extend([0, 1, 0x00, 0x38, 0x00, 0x38, 9, 2]);
/// let size = bytes.len() as u64;
/// let options = FileOptions::default();
/// let file = TokenFile::from_bytes(bytes, FileFormat::Safetensors, &options)?;
/// assert_eq!((file.layout().rows(), file.stored_row(0), file.size_bytes()), (1, 1, size));
/// assert_eq!(file.codes::<Int8>(0..1)?.dequantize()?.data(), [1.0]);
/// assert_eq!((&file.code_rows::<Int8>(0..1)?[..], file.scales()?.scale(0)), (&[2][..], 0.5));
/// assert_eq!(file.stored_token(0, 0), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenFile {
    /// The file's name, for messages; none where the bytes came from elsewhere.
    path: Option<PathBuf>,
    format: FileFormat,
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
    warnings: Vec<Warning>,
}

/// A warning for a user about a file that can be read all the same.
///
/// ```
/// use maxsim::files::{Advice, Warning};
///
/// fn said(warnings: &[Warning]) -> Vec<String> {
///     let words = |advice: &Advice| format!("see the manual ({advice})");
///     warnings.iter().map(|warning| warning.with_advice(words)).collect()
/// }
/// assert!(said(&[]).is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning(Message);

impl Warning {
    /// Renders the warning with other words for what would help.
    pub fn with_advice(&self, words: impl FnOnce(&Advice) -> String) -> String {
        self.0.with_advice(words)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_advice(Advice::to_string))
    }
}

/// A file as a reader of some format opens it.
pub(super) struct Opened {
    pub bytes: FileBytes,
    pub contents: Contents,
    /// Files that the rows came from, where they are not the path itself.
    pub sources: Vec<PathBuf>,
    /// The items' ids, where arrays' names or strings say them.
    pub ids: Option<Vec<String>>,
    pub warnings: Vec<Message>,
}

impl Opened {
    /// Takes the bytes and contents of one file.
    pub fn new(bytes: FileBytes, contents: Contents) -> Opened {
        Opened { bytes, contents, sources: Vec::new(), ids: None, warnings: Vec::new() }
    }
}

impl TokenFile {
    /// Opens and checks a file, or a folder of `.npy` files. Its embeddings are not read yet when
    /// it is mapped.
    ///
    /// # Errors
    /// Where the file cannot be opened, is of no known format or broken, has residual-compressed
    /// tokens ([`ResidualFile`](crate::files::ResidualFile)), or says too little or what does not
    /// add up.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<TokenFile, FileError> {
        let path = path.as_ref();
        let open = || -> Result<TokenFile> {
            match FileFormat::of(path)? {
                FileFormat::Folder => {
                    let opened = folder::open(path, options, &stated_files(options)?)?;
                    TokenFile::checked(opened, FileFormat::Folder, options)
                }
                format => {
                    let bytes = FileBytes::open(path, options.is_mapped)?;
                    TokenFile::of(bytes, format, options)
                }
            }
        };
        open().with_context(|| path.display()).map(|file| file.named(path))
    }

    /// Checks the bytes of a whole file.
    ///
    /// # Errors
    /// Those of [`TokenFile::open`]; for [`FileFormat::Folder`], which is no file.
    pub fn from_bytes(
        bytes: Vec<u8>,
        format: FileFormat,
        options: &FileOptions,
    ) -> Result<TokenFile, FileError> {
        TokenFile::of(FileBytes::in_memory(bytes), format, options)
    }

    pub(super) fn of(
        bytes: FileBytes,
        format: FileFormat,
        options: &FileOptions,
    ) -> Result<TokenFile> {
        let files = stated_files(options)?;
        let opened = match format {
            FileFormat::Safetensors => {
                let contents = safetensors::parse(&bytes, options, &files)?;
                Opened::new(bytes, contents)
            }
            FileFormat::Npy => {
                let contents = npy::parse(&bytes, options, &files)?;
                Opened::new(bytes, contents)
            }
            FileFormat::Npz => archive::open(bytes, options, &files)?,
            FileFormat::Folder => bail!("a folder has no bytes of its own"),
        };
        TokenFile::checked(opened, format, options)
    }

    /// Looks for padding that the file does not state.
    fn checked(opened: Opened, format: FileFormat, options: &FileOptions) -> Result<TokenFile> {
        let Opened { bytes, mut contents, sources, ids, mut warnings } = opened;
        warnings.extend(check_zeros(&mut contents, &bytes, options.trailing_zeros)?);
        let warnings = warnings.into_iter().map(Warning).collect();
        let stated = options.mask_file.iter().chain(&options.lengths_file).cloned();
        Ok(TokenFile {
            path: None,
            format,
            sources: sources.into_iter().chain(stated).collect(),
            bytes,
            elements: None,
            stored: None,
            ids,
            contents,
            warnings,
        })
    }

    /// Sets the name of the file.
    pub(super) fn named(mut self, path: &Path) -> TokenFile {
        if self.format != FileFormat::Folder {
            self.sources.insert(0, path.into());
        }
        self.path = Some(path.into());
        self
    }

    /// Puts the file's name before an error.
    fn with_path<T>(&self, found: Result<T>) -> Result<T> {
        match &self.path {
            Some(path) => found.with_context(|| path.display()),
            None => found,
        }
    }

    /// The files that rows, and where items are among them, were read from.
    pub fn sources(&self) -> &[PathBuf] {
        &self.sources
    }

    /// Warnings for a user about a file that can be read all the same.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Row of the stored matrix that a row of the layout is, for messages. They differ where a mask
    /// excludes more than the last tokens of items.
    pub fn stored_row(&self, row: usize) -> usize {
        match &self.stored {
            Some(stored) => stored.stored_row(row),
            None => self.contents.stored_row(row),
        }
    }

    /// Place of an item's token among all that the file has of the item, valid or not: what a
    /// [winner](crate::Scores::winners), which counts valid tokens, is in the file. They differ
    /// where a mask excludes more than the last tokens of items.
    ///
    /// # Panics
    /// Where there is no such item.
    pub fn stored_token(&self, item: usize, token: usize) -> usize {
        let first = self.layout().item_rows(item).start;
        match self.stored.as_ref().or(self.contents.valid.as_ref()) {
            Some(stored) => stored.stored_row(first + token) - stored.start(item),
            None => token,
        }
    }

    /// The ids that the file gives its items: a tensor `ids` of whole numbers, or (`.npz`, folders)
    /// of strings; in `.safetensors` a JSON array under the key `ids` of the metadata; the names of
    /// arrays that are an item each.
    ///
    /// # Errors
    /// Where these are not one per item, or disagree.
    pub fn ids(&self) -> Result<Option<Vec<String>>, FileError> {
        if self.format != FileFormat::Safetensors {
            return Ok(self.ids.clone());
        }
        let read = || ids::of(&Tensors::parse(&self.bytes)?, self.n_items());
        self.with_path(read())
    }

    /// A string of the file's metadata; files other than `.safetensors` have none.
    pub fn note(&self, key: &str) -> Option<String> {
        if self.format != FileFormat::Safetensors {
            return None;
        }
        Tensors::parse(&self.bytes).ok()?.note(key).map(str::to_owned)
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

    /// Whether the file or an option states how long items are.
    pub fn states_lengths(&self) -> bool {
        self.contents.is_stated
    }

    /// All embeddings, in whichever format the file has.
    ///
    /// # Errors
    /// Those of [`TokenFile::codes`].
    pub fn all(&self) -> Result<AnyTokens<'_>, FileError> {
        let layout = self.layout();
        let (rows, layout) = (0..layout.rows(), layout.clone());
        with_format!(self.contents.format, {
            element T => Ok(self.contents.tokens_of_rows::<T>(self.matrix(), rows, layout)?.into()),
            codes F => Ok(self.codes_of_rows::<F>(rows, layout)?.into()),
            other => bail!("{other} embeddings are not read row by row"),
        })
    }

    /// The embeddings of a range of items, in whichever format the file has.
    ///
    /// # Errors
    /// Those of [`TokenFile::codes`].
    pub fn any_tokens(&self, items: Range<usize>) -> Result<AnyTokens<'_>, FileError> {
        with_format!(self.contents.format, {
            element T => Ok(self.tokens::<T>(items)?.into()),
            codes F => Ok(self.codes::<F>(items)?.into()),
            other => bail!("{other} embeddings are not read row by row"),
        })
    }

    /// The embeddings of a range of items: elements.
    ///
    /// # Errors
    /// Where the file has another format or fewer items; where memory is lacking.
    pub fn tokens<T: Element>(&self, items: Range<usize>) -> Result<Tokens<'_, T>, FileError> {
        self.contents.tokens(self.matrix(), items)
    }

    /// The embeddings of a range of items: codes.
    ///
    /// # Errors
    /// Those of [`TokenFile::tokens`]; for the code -128 of INT8, which no element is compressed
    /// to.
    pub fn codes<F: Quantized>(&self, items: Range<usize>) -> Result<Tokens<'_, F>, FileError> {
        let found = self.layout().items(items).map_err(FileError::from);
        let (rows, layout) = self.with_path(found)?;
        self.codes_of_rows(rows, layout)
    }

    fn codes_of_rows<F: Quantized>(
        &self,
        rows: Range<usize>,
        layout: TokenLayout,
    ) -> Result<Tokens<'_, F>> {
        let first = rows.start;
        let read = || -> Result<Tokens<'_, F>> {
            let codes = self.contents.codes_of_rows::<F>(self.matrix(), rows, layout)?;
            if F::FORMAT == TokenFormat::Int8 {
                let stored_row = |row| self.stored_row(first + row);
                check_int8(bytemuck::cast_slice(codes.data()), 0, codes.layout(), stored_row)?;
            }
            Ok(codes)
        };
        self.with_path(read())
    }

    /// Reads a range of the layout's rows `[n, dim]`, of any items.
    ///
    /// # Errors
    /// Where the file has another format or fewer rows; where memory is lacking.
    pub fn elements<T: Element>(&self, rows: Range<usize>) -> Result<Cow<'_, [T]>, FileError> {
        self.contents.elements(self.matrix(), rows)
    }

    /// Reads the codes of a range of the layout's rows `[n, dim]`, of any items.
    ///
    /// # Errors
    /// Those of [`TokenFile::codes`].
    pub fn code_rows<F: Quantized>(
        &self,
        rows: Range<usize>,
    ) -> Result<Cow<'_, [F::Stored]>, FileError> {
        let read = || -> Result<Cow<'_, [F::Stored]>> {
            let codes = self.contents.codes_alone::<F>(self.matrix(), &rows)?;
            if F::FORMAT == TokenFormat::Int8 {
                let bytes = bytemuck::cast_slice(&codes);
                check_int8(bytes, rows.start, self.layout(), |row| self.stored_row(row))?;
            }
            Ok(codes)
        };
        self.with_path(read())
    }

    /// The scales of codes, of all rows of the layout.
    ///
    /// # Errors
    /// Where the file has none; where memory is lacking.
    pub fn scales(&self) -> Result<Scales<'_>, FileError> {
        let rows = 0..self.layout().rows();
        self.with_path(self.contents.scales_of_rows(self.matrix(), &rows))
    }

    /// Replaces the elements `[rows, dim]` of the layout's rows by others in memory, such as
    /// converted ones. Rows stay those of the file.
    ///
    /// # Errors
    /// Where they are not as many as there are rows.
    pub fn with_elements<T: Element>(self, elements: &[T]) -> Result<TokenFile, FileError> {
        let layout = self.layout();
        let (rows, dim) = (layout.rows(), layout.dim());
        ensure!(
            elements.len() == rows * dim,
            "elements: expected {rows} rows of {dim}, found {} elements",
            elements.len()
        );
        let elements = bytemuck::cast_slice(elements).to_vec();
        let contents = Contents {
            format: T::TYPE.into(),
            data: 0..elements.len(),
            scales: None,
            // The new elements are valid rows alone.
            valid: None,
            ..self.contents
        };
        let stored = self.stored.or(self.contents.valid);
        Ok(TokenFile { contents, elements: Some(elements), stored, ..self })
    }

    /// Bytes that have the matrix of [`TokenFile::contents`].
    fn matrix(&self) -> &[u8] {
        self.elements.as_deref().unwrap_or(&self.bytes)
    }

    /// Size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Identifies tokens by their file's device, inode, size and times and their place in it, in
    /// words that change when the tokens may have. `None` where a change of the file might not
    /// show: for bytes that are no file's, on systems without such times, and where the file
    /// changed a moment before it was opened ([`settle`](crate::files::settle)).
    pub fn identity(&self) -> Option<String> {
        let identity = self.bytes.identity()?;
        Some(format!("{identity} view {}", view(&self.contents)))
    }

    /// Checks that a mapped file is as it was when it was opened, as far as its size and times
    /// show. A file that was read cannot change.
    ///
    /// # Errors
    /// Where it is not.
    pub fn check_unchanged(&self, by: Change) -> Result<(), FileError> {
        self.with_path(self.bytes.check_unchanged(by))
    }
}

/// Describes the tokens made of a file's bytes: two readings of one file that differ have two
/// descriptions.
fn view(contents: &Contents) -> String {
    let Contents { format, data, scales, layout, valid, is_stated: _ } = contents;
    let mut hasher = XxHash3_128::new();
    hasher.write(format!("{format} {data:?} {scales:?} {}\n", layout.dim()).as_bytes());
    hasher.write(bytemuck::cast_slice(layout.segments()));
    if let Some(valid) = valid {
        hasher.write(b"valid rows");
        hasher.write(bytemuck::cast_slice(valid.runs()));
    }
    format!("{:032x}", hasher.finish_128())
}

/// Reads the tensors in the files that options name.
pub(super) fn stated_files(options: &FileOptions) -> Result<Vec<Beside<'static>>> {
    let files = [(&options.mask_file, Role::Mask), (&options.lengths_file, Role::Lengths)];
    let files = files.into_iter().filter_map(|(path, role)| Some((path.as_ref()?, role)));
    let read = |(path, role): (&PathBuf, Role)| {
        let read = || {
            let bytes = FileBytes::open(path, false)?;
            npy::beside(&path.display().to_string(), Some(role), &bytes)
        };
        read().with_context(|| path.display())
    };
    files.map(read).collect()
}
