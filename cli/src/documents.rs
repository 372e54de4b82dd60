//! Opens and reads documents of any kind: embeddings, codes with scales, or residual codes.

use std::path::{Path, PathBuf};

use anyhow::Result;
use maxsim::TokenLayout;
use maxsim::files::AnyFile;
use maxsim::residual::ResidualTokens;

use crate::input::{Change, InputOptions, Reading, TokenFile, said};
use crate::judging::ids::{Ids, Side};
use crate::residual::ResidualFile;

/// An open file of documents.
#[derive(Debug)]
pub enum DocumentFile {
    /// Embeddings, or codes with scales.
    Tokens(Box<TokenFile>),
    /// Residual-compressed tokens, and the file's name for messages.
    Residual(Box<ResidualFile>, PathBuf),
}

impl DocumentFile {
    /// Opens a file of any kind; the file itself says which one it is.
    pub fn open(path: &Path, reading: Reading) -> Result<DocumentFile> {
        DocumentFile::open_with(path, &InputOptions::new(reading))
    }

    /// Opens a file as [`DocumentFile::open`], with options.
    pub fn open_with(path: &Path, options: &InputOptions) -> Result<DocumentFile> {
        Ok(match AnyFile::open(path, &options.of_library()).map_err(said)? {
            AnyFile::Tokens(file) => DocumentFile::Tokens(Box::new(TokenFile::new(path, *file))),
            AnyFile::Residual(file) => {
                DocumentFile::Residual(Box::new(ResidualFile::new(*file)), path.into())
            }
        })
    }

    /// The ids that the file gives its `n_documents` documents.
    pub fn ids(&self, n_documents: usize) -> Result<Ids> {
        match self {
            DocumentFile::Tokens(file) => file.ids(Side::Documents),
            DocumentFile::Residual(file, path) => {
                Ids::stored(file.ids(n_documents)?, path, Side::Documents, n_documents)
            }
        }
    }

    /// Checks that a mapped file is as it was when it was opened.
    pub(crate) fn check_unchanged(&self, by: Change) -> Result<()> {
        match self {
            DocumentFile::Tokens(file) => file.check_unchanged(by),
            DocumentFile::Residual(file, _) => file.check_unchanged(by),
        }
    }

    /// The documents of the file, checked.
    pub fn documents(&self) -> Result<Documents<'_>> {
        Ok(match self {
            DocumentFile::Tokens(file) => Documents::Tokens(file),
            DocumentFile::Residual(file, _) => Documents::Residual(Box::new(file.tokens()?), file),
        })
    }
}

/// Documents that are uploaded a range at a time.
#[derive(Debug)]
pub enum Documents<'a> {
    /// Embeddings, or codes with scales, which are uploaded as they are.
    Tokens(&'a TokenFile),
    /// Residual-compressed tokens, which are decoded a range at a time, and their file.
    Residual(Box<ResidualTokens<'a>>, &'a ResidualFile),
}

impl Documents<'_> {
    /// Rows, dim, and the rows of each document.
    pub fn layout(&self) -> &TokenLayout {
        match self {
            Documents::Tokens(file) => file.layout(),
            Documents::Residual(tokens, _) => tokens.layout(),
        }
    }

    /// Place of a document's token among all that the file has of the document, valid or not.
    pub(crate) fn stored_token(&self, document: usize, token: usize) -> usize {
        match self {
            Documents::Tokens(file) => file.stored_token(document, token),
            // Such files have no masks.
            Documents::Residual(..) => token,
        }
    }

    /// Number of documents.
    pub fn n_items(&self) -> usize {
        self.layout().n_items()
    }

    /// Warnings for a user about a file that can be read all the same.
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Documents::Tokens(file) => file.warnings().collect(),
            Documents::Residual(..) => Vec::new(),
        }
    }

    /// The name of the format, for messages.
    pub fn format_name(&self) -> &'static str {
        match self {
            Documents::Tokens(file) => file.contents().format.name(),
            Documents::Residual(..) => "plaid",
        }
    }
}
