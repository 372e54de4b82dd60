//! The error of readers of files: where it is, what was found and expected, and what would help.

use std::error::Error as StdError;
use std::fmt;

use crate::error::Error;

/// Why a file cannot be read, in words for a user: the file and tensor at fault, what was found,
/// what was expected, and what to change.
///
/// [`FileError::source`](StdError::source) is the error of the operating system or of this library
/// that it was made of, where there is one; its text is part of this one's.
///
/// ```
/// use std::error::Error;
///
/// use maxsim::files::{FileError, FileOptions, TokenFile};
///
/// let error: FileError = TokenFile::open("missing.npy", &FileOptions::default()).unwrap_err();
/// assert!(error.to_string().starts_with("missing.npy: "));
/// assert!(error.source().is_some_and(|source| source.is::<std::io::Error>()));
/// ```
#[derive(Debug)]
pub struct FileError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    message: Message,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result with a [`FileError`].
pub(crate) type Result<T, E = FileError> = std::result::Result<T, E>;

/// What is wrong, and which option would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    text: String,
    advice: Option<Advice>,
}

impl Message {
    pub fn new(text: String, advice: Option<Advice>) -> Message {
        Message { text, advice }
    }

    /// Renders the message, with advice in the words of `advice`.
    pub fn with_advice(&self, words: impl FnOnce(&Advice) -> String) -> String {
        match &self.advice {
            Some(advice) => format!("{}; {}", self.text, words(advice)),
            None => self.text.clone(),
        }
    }
}

/// An option or type that would help where a file cannot be read as it was asked for, or not
/// without a warning.
///
/// As text it names items of this library. A program that has options of its own names those
/// instead, by [`FileError::with_advice`] or [`TokenFile::warnings`]:
///
/// ```
/// use maxsim::files::{Advice, FileFormat, FileOptions, TokenFile};
///
/// // No items of one token of dim 1, called `docs`.
/// let header = br#"{"docs":{"dtype":"F32","shape":[0,1,1],"data_offsets":[0,0]}}"#;
/// let file = [&(header.len() as u64).to_le_bytes()[..], header].concat();
/// let options = FileOptions::default();
/// let error = TokenFile::from_bytes(file, FileFormat::Safetensors, &options).unwrap_err();
/// assert!(error.to_string().ends_with("; use FileOptions::tensor(\"docs\") for it"));
/// let said = error.with_advice(|advice| match advice {
///     Advice::Tensor { name, .. } => format!("choose {name} in the menu"),
///     other => other.to_string(),
/// });
/// assert!(said.ends_with("; choose docs in the menu"));
/// ```
///
/// [`TokenFile::warnings`]: crate::files::TokenFile::warnings
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// [`FileOptions::tensor`](crate::files::FileOptions::tensor) takes this tensor for the
    /// embeddings.
    Tensor {
        /// Name of the first tensor that could be them.
        name: String,
        /// Whether others could be them, too.
        has_others: bool,
    },
    /// [`FileOptions::tensor`](crate::files::FileOptions::tensor) takes the first of two tensors
    /// that could both be the embeddings.
    FirstTensor {
        /// Its name.
        name: String,
    },
    /// [`FileOptions::tensor`](crate::files::FileOptions::tensor) has no place: the array has no
    /// name, or the names are fixed.
    NoTensor,
    /// [`FileOptions::ignore`](crate::files::FileOptions::ignore) says that a tensor does not
    /// describe the items.
    Ignore {
        /// Its name.
        name: String,
    },
    /// [`FileOptions::lengths_file`](crate::files::FileOptions::lengths_file) states how long items
    /// are.
    LengthsFile,
    /// [`FileOptions::trailing_zeros`](crate::files::FileOptions::trailing_zeros) says what rows of
    /// zeros are.
    TrailingZeros,
    /// The file must not change while it is mapped; without
    /// [`FileOptions::map`](crate::files::FileOptions::map) it is read.
    NoMap,
    /// [`ResidualFile`](crate::files::ResidualFile) reads the file.
    Residual,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::Tensor { name, has_others } => {
                let others = if *has_others { ", or another name" } else { "" };
                write!(f, "use FileOptions::tensor(\"{name}\") for it{others}")
            }
            Advice::FirstTensor { name } => {
                write!(f, "FileOptions::tensor(\"{name}\") takes the first")
            }
            Advice::NoTensor => f.write_str("leave FileOptions::tensor out"),
            Advice::Ignore { name } => {
                write!(f, "if it is not, use FileOptions::ignore(\"{name}\")")
            }
            Advice::LengthsFile => f.write_str("FileOptions::lengths_file names such a file"),
            Advice::TrailingZeros => f.write_str(
                "give lengths or a mask, or use FileOptions::trailing_zeros: TrailingZeros::Pad \
                 leaves the rows out, TrailingZeros::Tokens says that they are tokens",
            ),
            Advice::NoMap => {
                f.write_str("open it again, without FileOptions::map if it may change at any time")
            }
            Advice::Residual => f.write_str("open it as a ResidualFile"),
        }
    }
}

impl FileError {
    pub(crate) fn new(text: impl Into<String>) -> FileError {
        let message = Message::new(text.into(), None);
        FileError(Box::new(Parts { message, source: None }))
    }

    /// Takes the error of another library or of the system, and its text.
    pub(crate) fn of(source: impl StdError + Send + Sync + 'static) -> FileError {
        let mut text = source.to_string();
        let mut next = source.source();
        while let Some(inner) = next {
            text += &format!(": {inner}");
            next = inner.source();
        }
        let source: Option<Box<dyn StdError + Send + Sync>> = Some(Box::new(source));
        FileError(Box::new(Parts { message: Message::new(text, None), source }))
    }

    /// Adds what would help.
    pub(crate) fn advise(mut self, advice: Advice) -> FileError {
        self.0.message.advice = Some(advice);
        self
    }

    /// Puts the place of the fault before the text.
    fn at(mut self, place: impl fmt::Display) -> FileError {
        let text = &mut self.0.message.text;
        *text = format!("{place}: {text}");
        self
    }

    /// Renders the error with other words for what would help.
    pub fn with_advice(&self, words: impl FnOnce(&Advice) -> String) -> String {
        self.0.message.with_advice(words)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_advice(Advice::to_string))
    }
}

impl StdError for FileError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

impl From<Error> for FileError {
    fn from(error: Error) -> FileError {
        FileError::of(error)
    }
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> FileError {
        FileError::of(error)
    }
}

/// Says where a fault is, or what is missing.
pub(crate) trait Context<T> {
    /// Puts a place before the error's text.
    fn context(self, place: impl fmt::Display) -> Result<T>;

    /// As [`Context::context`], of a place that is put into words where there is an error.
    fn with_context<C: fmt::Display>(self, place: impl FnOnce() -> C) -> Result<T>;
}

impl<T, E: Into<FileError>> Context<T> for Result<T, E> {
    fn context(self, place: impl fmt::Display) -> Result<T> {
        self.map_err(|error| error.into().at(place))
    }

    fn with_context<C: fmt::Display>(self, place: impl FnOnce() -> C) -> Result<T> {
        self.map_err(|error| error.into().at(place()))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, place: impl fmt::Display) -> Result<T> {
        self.ok_or_else(|| FileError::new(place.to_string()))
    }

    fn with_context<C: fmt::Display>(self, place: impl FnOnce() -> C) -> Result<T> {
        self.ok_or_else(|| FileError::new(place().to_string()))
    }
}

/// Returns an error of this text.
macro_rules! bail {
    ($($text:tt)*) => {
        return Err($crate::files::error::FileError::new(format!($($text)*)))
    };
}

/// Returns an error of this text unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            $crate::files::error::bail!($($text)*);
        }
    };
}

pub(crate) use {bail, ensure};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_place_its_source_and_advice_in_the_callers_words() {
        let source = std::io::Error::other("no such thing");
        let error = Err::<(), _>(source).context("`lengths`").context("a.npz").unwrap_err();
        assert_eq!(error.to_string(), "a.npz: `lengths`: no such thing");
        assert!(error.source().unwrap().is::<std::io::Error>());
        let error = error.advise(Advice::NoTensor);
        let said = error.with_advice(|advice| format!("{advice:?}"));
        assert_eq!(said, "a.npz: `lengths`: no such thing; NoTensor");
        assert!(error.to_string().ends_with("; leave FileOptions::tensor out"));
        let error = None::<u8>.context("no such key").unwrap_err();
        assert_eq!((error.to_string().as_str(), error.source().is_none()), ("no such key", true));
    }
}
