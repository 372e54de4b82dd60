//! The parts of the `maxsim` command: readers of token files, rankings of documents that pass by,
//! the output formats, and the compression of token files.

#![deny(unsafe_code)]

pub mod args;
pub mod documents;
pub mod explain;
pub mod finite;
pub mod info;
pub mod input;
pub mod interrupt;
pub mod judging;
pub mod output;
pub mod program;
mod progress;
pub mod provenance;
pub mod quantize;
pub mod rank;
pub mod residual;
pub mod selection;
pub mod texts;
pub mod threads;
pub mod usage;
pub mod warm_up;

use anyhow::Result;

use crate::args::{Args, Command};

/// Runs one command. Everything that can fail is done before the output is written; but `quantize`
/// ranks with the file that it has written, and when that fails the file stays.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Rank(args) => rank::rank(args),
        Command::Quantize(args) => quantize::quantize(args),
        Command::Explain(args) => explain::explain(args),
        Command::Info(args) => info::info(args),
        Command::WarmUp(args) => warm_up::warm_up(args),
    }
}

// The Rust examples of the README and of the guide are compiled and run as documentation tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/guide/tour.md")]
    struct Tour;
    #[doc = include_str!("../../docs/guide/data-model.md")]
    struct DataModel;
    #[doc = include_str!("../../docs/guide/scoring.md")]
    struct Scoring;
    #[doc = include_str!("../../docs/guide/compressed-tokens.md")]
    struct CompressedTokens;
    #[doc = include_str!("../../docs/guide/training.md")]
    struct Training;
    #[doc = include_str!("../../docs/guide/cuda.md")]
    struct Cuda;
}
