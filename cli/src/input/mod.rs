//! Files of token embeddings, as the library reads them ([`maxsim::files`]), with the options and
//! messages of this tool.

mod items;
mod options;
mod weights;
mod words;

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use maxsim::format::{Element, Format as TokenType, Quantized, Scales, with_format};
use maxsim::{AnyTokens, TokenLayout, Tokens, files};

use crate::judging::ids::{Ids, Side};
pub use items::Items;
pub(crate) use maxsim::files::{Change, settle};
pub use maxsim::files::{Contents, FileFormat as Format, ScalesPlace};
pub use options::{InputOptions, Reading, TrailingZeros};
pub(crate) use words::{said, said_of_residual};

/// An open file of token embeddings.
///
/// All rows of its layout's items are valid: those that a mask excludes are no part of the
/// layout.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: files::TokenFile,
    /// A weight for each row of the layout, where tokens have any.
    weights: Option<Vec<f32>>,
    /// Whether weights are divided by the number of the item's tokens.
    is_mean: bool,
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
        with_format!(self.file().contents().format, {
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

impl TokenFile {
    /// Opens and checks a file; its embeddings are not read yet when it is mapped.
    pub fn open(path: &Path, reading: Reading) -> Result<TokenFile> {
        TokenFile::open_with(path, &InputOptions::new(reading))
    }

    /// Opens a file as [`TokenFile::open`], with options.
    pub fn open_with(path: &Path, options: &InputOptions) -> Result<TokenFile> {
        let file = files::TokenFile::open(path, &options.of_library()).map_err(said)?;
        Ok(TokenFile::new(path, file))
    }

    /// Wraps an open file.
    pub(crate) fn new(path: &Path, file: files::TokenFile) -> TokenFile {
        TokenFile { path: path.into(), file, weights: None, is_mean: false }
    }

    /// The same tokens with the weights of a `.npy` file, if one is named, divided by the number of
    /// the item's tokens for a mean.
    pub fn with_weights(self, weights: Option<&Path>, is_mean: bool) -> Result<TokenFile> {
        let weights = weights.map(|path| weights::read(path, &self)).transpose()?;
        Ok(TokenFile { weights, is_mean, ..self })
    }

    /// The largest magnitude of a token's weight, before means divide it, and at least 1.
    pub(crate) fn largest_weight(&self) -> f64 {
        let weights = self.weights.iter().flatten();
        weights.fold(1.0, |most: f64, &weight| most.max(f64::from(weight.abs())))
    }

    /// The tokens of items with their weights.
    fn weighted<'a, F: TokenType>(
        &'a self,
        items: Range<usize>,
        mut tokens: Tokens<'a, F>,
    ) -> Result<Tokens<'a, F>> {
        if let Some(weights) = &self.weights {
            let (rows, _) = self.layout().items(items)?;
            tokens = tokens.with_weights(&weights[rows])?;
        }
        Ok(if self.is_mean { tokens.with_mean_weights()? } else { tokens })
    }

    /// The files that rows, and where items are among them, were read from.
    pub fn sources(&self) -> &[PathBuf] {
        self.file.sources()
    }

    /// Warnings for a user about a file that can be read all the same.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let warnings = self.file.warnings().iter();
        warnings.map(|warning| {
            format!("{}: {}", self.path.display(), warning.with_advice(words::options))
        })
    }

    /// Row of the stored matrix that a row of the layout is, for messages.
    pub fn stored_row(&self, row: usize) -> usize {
        self.file.stored_row(row)
    }

    /// Place of an item's token among all that the file has of the item, valid or not.
    pub(crate) fn stored_token(&self, item: usize, token: usize) -> usize {
        self.file.stored_token(item, token)
    }

    /// The ids that the file gives its items.
    pub fn ids(&self, side: Side) -> Result<Ids> {
        Ids::stored(self.file.ids().map_err(said)?, &self.path, side, self.n_items())
    }

    /// A string of the file's metadata.
    pub(crate) fn note(&self, key: &str) -> Option<String> {
        self.file.note(key)
    }

    /// The file's name, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Format, layout, and place of the embeddings.
    pub fn contents(&self) -> &Contents {
        self.file.contents()
    }

    /// Rows, dim, and the rows of each item.
    pub fn layout(&self) -> &TokenLayout {
        self.file.layout()
    }

    /// Number of items.
    pub fn n_items(&self) -> usize {
        self.file.n_items()
    }

    /// Whether the file or an option states how long items are.
    pub fn states_lengths(&self) -> bool {
        self.file.states_lengths()
    }

    /// The embeddings of a range of items.
    pub fn tokens<T: Element>(&self, items: Range<usize>) -> Result<Tokens<'_, T>> {
        self.weighted(items.clone(), self.file.tokens(items).map_err(said)?)
    }

    /// The compressed embeddings of a range of items. The code -128 of INT8 is refused.
    pub fn codes<F: Quantized>(&self, items: Range<usize>) -> Result<Tokens<'_, F>> {
        self.weighted(items.clone(), self.file.codes(items).map_err(said)?)
    }

    /// Reads a range of the layout's rows `[n, dim]`, of any items.
    pub fn elements<T: Element>(&self, rows: Range<usize>) -> Result<Cow<'_, [T]>> {
        self.file.elements(rows).map_err(said)
    }

    /// Reads the codes of a range of the layout's rows `[n, dim]`, of any items. The code -128 of
    /// INT8 is refused.
    pub fn code_rows<F: Quantized>(&self, rows: Range<usize>) -> Result<Cow<'_, [F::Stored]>> {
        self.file.code_rows::<F>(rows).map_err(said)
    }

    /// The scales of codes, of all rows of the layout.
    pub fn scales(&self) -> Result<Scales<'_>> {
        self.file.scales().map_err(said)
    }

    /// Replaces the elements by others in memory, as many as there are. Rows stay those of the
    /// file.
    pub(crate) fn with_elements<T: Element>(self, elements: &[T]) -> Result<TokenFile> {
        let file = self.file.with_elements(elements).map_err(said)?;
        Ok(TokenFile { file, ..self })
    }

    /// Size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    /// Identifies tokens by their file's identity and their place in it, in words that change when
    /// the tokens may have. `None` where a change of the file might not show.
    pub(crate) fn identity(&self) -> Option<String> {
        self.file.identity()
    }

    /// Checks that a mapped file is as it was when it was opened.
    pub(crate) fn check_unchanged(&self, by: Change) -> Result<()> {
        self.file.check_unchanged(by).map_err(said)
    }
}
