//! Options that say what a token file does not say itself.

use std::path::PathBuf;

use crate::input::{InputOptions, Reading, TrailingZeros};

/// Options of every token file of a command.
#[derive(Debug, Default, clap::Args)]
pub struct FileArgs {
    /// Take the embeddings from the tensor or array of this name, instead of `embeddings`.
    #[arg(long, value_name = "NAME", help_heading = "Token files")]
    pub tensor: Option<String>,

    /// Take the embeddings of --queries from this tensor or array, whatever --tensor says.
    #[arg(long, value_name = "NAME", help_heading = "Token files", requires = "queries")]
    pub queries_tensor: Option<String>,

    /// Ignore this tensor, although its shape could be that of lengths or of a mask (may be
    /// repeated).
    #[arg(long, value_name = "NAME", help_heading = "Token files")]
    pub ignore_tensor: Vec<String>,

    /// Take the valid tokens of --queries from this file: .npy [n, len] of bool or integers, 1 for
    /// tokens and 0 for padding anywhere.
    #[arg(long, value_name = "FILE.npy", help_heading = "Token files", requires = "queries")]
    pub queries_mask_file: Option<PathBuf>,

    /// Take the lengths of the items of --queries from this file: .npy of i32 or i64, a number for
    /// each item.
    #[arg(long, value_name = "FILE.npy", help_heading = "Token files", requires = "queries")]
    pub queries_lengths_file: Option<PathBuf>,

    /// Exclude or score rows of zeros at the ends of items, in files that do not say how long items
    /// are: pad excludes them, tokens scores them. By default they are scored, with a warning.
    #[arg(long, value_enum, value_name = "pad|tokens", help_heading = "Token files")]
    pub trailing_zeros: Option<TrailingZeros>,

    /// Read token files into memory instead of mapping them.
    #[arg(long, help_heading = "Token files")]
    pub no_mmap: bool,
}

impl FileArgs {
    /// How files are brought into memory.
    pub fn reading(&self) -> Reading {
        if self.no_mmap { Reading::Read } else { Reading::Map }
    }

    /// The files that it names.
    pub fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        self.queries_mask_file.iter().chain(&self.queries_lengths_file)
    }

    /// How --queries are read.
    pub fn queries(&self) -> InputOptions {
        self.options(&self.queries_tensor, &self.queries_mask_file, &self.queries_lengths_file)
    }

    fn options(
        &self,
        tensor: &Option<String>,
        mask_file: &Option<PathBuf>,
        lengths_file: &Option<PathBuf>,
    ) -> InputOptions {
        InputOptions {
            reading: self.reading(),
            tensor: tensor.as_ref().or(self.tensor.as_ref()).cloned(),
            ignored: self.ignore_tensor.clone(),
            mask_file: mask_file.clone(),
            lengths_file: lengths_file.clone(),
            trailing_zeros: self.trailing_zeros,
        }
    }
}

/// Options of the token files of `maxsim rank`.
#[derive(Debug, Default, clap::Args)]
pub struct RankFileArgs {
    /// Those of both.
    #[command(flatten)]
    pub files: FileArgs,

    /// Take the embeddings of --documents from this tensor or array, whatever --tensor says.
    #[arg(long, value_name = "NAME", help_heading = "Token files")]
    pub documents_tensor: Option<String>,

    /// Take the valid tokens of --documents from this file, as --queries-mask-file.
    #[arg(long, value_name = "FILE.npy", help_heading = "Token files")]
    pub documents_mask_file: Option<PathBuf>,

    /// Take the lengths of the items of --documents from this file, as --queries-lengths-file.
    #[arg(long, value_name = "FILE.npy", help_heading = "Token files")]
    pub documents_lengths_file: Option<PathBuf>,
}

impl RankFileArgs {
    /// The files that it names.
    pub fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        let files = self.documents_mask_file.iter().chain(&self.documents_lengths_file);
        self.files.inputs().chain(files)
    }

    /// How --documents are read.
    pub fn documents(&self) -> InputOptions {
        let (mask, lengths) = (&self.documents_mask_file, &self.documents_lengths_file);
        self.files.options(&self.documents_tensor, mask, lengths)
    }
}

/// Options of the token files of `maxsim quantize`.
#[derive(Debug, Default, clap::Args)]
pub struct QuantizeFileArgs {
    /// Those of both.
    #[command(flatten)]
    pub files: FileArgs,

    /// Take the valid tokens of --input from this file, as --queries-mask-file.
    #[arg(long, value_name = "FILE.npy", help_heading = "Token files")]
    pub mask_file: Option<PathBuf>,

    /// Take the lengths of the items of --input from this file, as --queries-lengths-file.
    #[arg(long, value_name = "FILE.npy", help_heading = "Token files")]
    pub lengths_file: Option<PathBuf>,
}

impl QuantizeFileArgs {
    /// The files that it names.
    pub fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.inputs().chain(&self.mask_file).chain(&self.lengths_file)
    }

    /// How --input is read.
    pub fn input(&self) -> InputOptions {
        self.files.options(&None, &self.mask_file, &self.lengths_file)
    }
}
