//! Options of a command about a token file, besides its name.

use std::path::PathBuf;

use clap::ValueEnum;
use maxsim::files::{self, FileOptions};

/// How a file is brought into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Mapped: pages come in when they are used. The file must not change meanwhile.
    Map,
    /// Read whole, for files that may change, or on file systems without mapping.
    Read,
}

/// How a token file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputOptions {
    /// Way to bring the file into memory.
    pub reading: Reading,
    /// Name of the tensor of embeddings; `embeddings` by default.
    pub tensor: Option<String>,
    /// Tensors that do not describe items, whatever their names and shapes.
    pub ignored: Vec<String>,
    /// A `.npy` file with a mask of the tokens.
    pub mask_file: Option<PathBuf>,
    /// A `.npy` file with the items' lengths.
    pub lengths_file: Option<PathBuf>,
    /// Meaning of rows of zeros at the ends of items, where nothing says how long items are.
    pub trailing_zeros: Option<TrailingZeros>,
}

impl InputOptions {
    /// Options that say no more than how to bring the file into memory.
    pub fn new(reading: Reading) -> InputOptions {
        InputOptions {
            reading,
            tensor: None,
            ignored: Vec::new(),
            mask_file: None,
            lengths_file: None,
            trailing_zeros: None,
        }
    }

    /// The same for the library.
    pub(crate) fn of_library(&self) -> FileOptions {
        let mut options = match self.reading {
            Reading::Map => mapped(),
            Reading::Read => FileOptions::default(),
        };
        if let Some(name) = &self.tensor {
            options = options.tensor(name);
        }
        for name in &self.ignored {
            options = options.ignore(name);
        }
        if let Some(path) = &self.mask_file {
            options = options.mask_file(path);
        }
        if let Some(path) = &self.lengths_file {
            options = options.lengths_file(path);
        }
        match self.trailing_zeros {
            Some(TrailingZeros::Pad) => options.trailing_zeros(files::TrailingZeros::Pad),
            Some(TrailingZeros::Tokens) => options.trailing_zeros(files::TrailingZeros::Tokens),
            None => options,
        }
    }
}

/// Options that map a file.
///
/// This is the only unsafe function of the tool.
#[allow(unsafe_code)]
fn mapped() -> FileOptions {
    // SAFETY: the command documents that inputs must not change while it runs, checks afterwards
    // that they have not, and `--no-mmap` is there for files of which that is not certain.
    unsafe { FileOptions::default().map() }
}

/// Meaning of rows of zeros at the ends of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrailingZeros {
    /// Padding, which is excluded.
    Pad,
    /// Tokens like others.
    Tokens,
}
