//! What a command says of a token file besides its name.

use std::path::PathBuf;

use clap::ValueEnum;

use super::Reading;

/// How a token file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputOptions {
    /// How it is brought into memory.
    pub reading: Reading,
    /// Which tensor the embeddings are; `embeddings` by default.
    pub tensor: Option<String>,
    /// Tensors that say nothing of the items, whatever they look like.
    pub ignored: Vec<String>,
    /// A `.npy` file with a mask of the tokens.
    pub mask_file: Option<PathBuf>,
    /// A `.npy` file with the items' lengths.
    pub lengths_file: Option<PathBuf>,
    /// What rows of zeros at the ends of items are, where nothing says how long items are.
    pub trailing_zeros: Option<TrailingZeros>,
}

impl InputOptions {
    /// Without any but how the file is brought into memory.
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

/// What rows of zeros at the ends of items are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TrailingZeros {
    /// Padding, which is left out.
    Pad,
    /// Tokens like others.
    Tokens,
}
