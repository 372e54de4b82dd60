//! Options of a command about a token file, besides its name.

use std::path::PathBuf;

use clap::ValueEnum;

use super::Reading;

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
}

/// Meaning of rows of zeros at the ends of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrailingZeros {
    /// Padding, which is excluded.
    Pad,
    /// Tokens like others.
    Tokens,
}
