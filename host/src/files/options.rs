//! What a caller says about a token file, besides its name.

use std::path::PathBuf;

/// How a token file is read, and what it does not say itself.
///
/// ```no_run
/// use maxsim::files::{FileOptions, TokenFile, TrailingZeros};
///
/// // Embeddings of another name; `n_bytes` does not describe the items, whatever its shape.
/// let options = FileOptions::default().tensor("documents").ignore("n_bytes");
/// let documents = TokenFile::open("both.safetensors", &options)?;
/// // An array [n, len, dim] without a name, whose lengths are in a file of their own.
/// let options = FileOptions::default().lengths_file("lengths.npy");
/// let documents = TokenFile::open("documents.npy", &options)?;
/// // The same with a mask [n, len].
/// let options = FileOptions::default().mask_file("mask.npy");
/// let documents = TokenFile::open("documents.npy", &options)?;
/// // Padded with zeros.
/// let options = FileOptions::default().trailing_zeros(TrailingZeros::Pad);
/// let documents = TokenFile::open("padded.npy", &options)?;
/// # Ok::<(), maxsim::files::FileError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct FileOptions {
    pub(crate) is_mapped: bool,
    pub(crate) tensor: Option<String>,
    pub(crate) ignored: Vec<String>,
    pub(crate) mask_file: Option<PathBuf>,
    pub(crate) lengths_file: Option<PathBuf>,
    pub(crate) trailing_zeros: Option<TrailingZeros>,
}

/// The defaults (a file is read whole, and says everything itself) with one thing changed after
/// the other.
impl FileOptions {
    /// Takes the embeddings from the tensor or array of this name, instead of `embeddings`.
    pub fn tensor(self, name: impl Into<String>) -> FileOptions {
        FileOptions { tensor: Some(name.into()), ..self }
    }

    /// Ignores a tensor, although its name or shape could be that of lengths, offsets or a mask.
    /// May be repeated.
    pub fn ignore(mut self, name: impl Into<String>) -> FileOptions {
        self.ignored.push(name.into());
        self
    }

    /// Takes the valid tokens from a `.npy` file: `[n, len]` of bool or integers, 1 for tokens and
    /// 0 for padding, in any pattern.
    pub fn mask_file(self, path: impl Into<PathBuf>) -> FileOptions {
        FileOptions { mask_file: Some(path.into()), ..self }
    }

    /// Takes the items' lengths from a `.npy` file: `[n]` of i32 or i64.
    pub fn lengths_file(self, path: impl Into<PathBuf>) -> FileOptions {
        FileOptions { lengths_file: Some(path.into()), ..self }
    }

    /// Says what rows of zeros at the ends of items are, where nothing states how long items are.
    /// By default they are tokens, and there is a warning.
    pub fn trailing_zeros(self, meaning: TrailingZeros) -> FileOptions {
        FileOptions { trailing_zeros: Some(meaning), ..self }
    }

    /// Maps the file into memory instead of reading it: pages come in when they are used. Systems
    /// without mapping read it all the same.
    ///
    /// # Safety
    /// No process may change or truncate the file as long as what was opened with these options
    /// lives: neither this program nor the operating system would prevent it.
    /// [`TokenFile::check_unchanged`](crate::files::TokenFile::check_unchanged) finds such changes
    /// afterwards.
    ///
    /// ```no_run
    /// use maxsim::files::{Change, FileOptions, TokenFile, settle};
    ///
    /// settle("corpus.safetensors"); // A change from now on shows.
    /// // SAFETY: the corpus is written once, by the same user.
    /// let options = unsafe { FileOptions::default().map() };
    /// let corpus = TokenFile::open("corpus.safetensors", &options)?;
    /// let first = corpus.any_tokens(0..1000)?;
    /// corpus.check_unchanged(Change::Content)?;
    /// # Ok::<(), maxsim::files::FileError>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn map(self) -> FileOptions {
        FileOptions { is_mapped: true, ..self }
    }
}

/// Meaning of rows of zeros at the ends of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrailingZeros {
    /// Padding, which is excluded.
    Pad,
    /// Tokens like others.
    Tokens,
}
