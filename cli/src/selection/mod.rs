//! Which documents are ranked for which query: all, those that are left by lists of ids, or the
//! candidates that a first stage has found for each query.

mod candidates;
mod filters;

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use crate::input::Items;
use crate::judging::ids::Ids;

/// Options that choose documents.
#[derive(Debug, Default, clap::Args)]
pub struct SelectionArgs {
    /// Rank for each query its documents of this file alone: the candidates that a first stage has
    /// found. A TREC run, whose ranks and scores do not matter, or one JSON object per line with a
    /// query's `id` and `documents`, a list of ids. No other document is read.
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Documents to rank",
        conflicts_with = "screen"
    )]
    pub candidates: Option<PathBuf>,

    /// Rank the documents of this file alone: one id per line, or one JSON object per line with
    /// `id` or `_id`.
    #[arg(long, value_name = "FILE", help_heading = "Documents to rank")]
    pub include: Option<PathBuf>,

    /// Do not rank the documents of this file, as --include has them.
    #[arg(long, value_name = "FILE", help_heading = "Documents to rank")]
    pub exclude: Option<PathBuf>,
}

impl SelectionArgs {
    /// The files that are read.
    pub fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        self.candidates.iter().chain(&self.include).chain(&self.exclude)
    }
}

/// The documents that are ranked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// All of them, for every query.
    All,
    /// These for every query, rising: one at least.
    Same(Vec<u32>),
    /// Each query's own, as pairs `[document, query]`, which rise: one at least.
    Each(Vec<[u32; 2]>),
}

impl Selected {
    /// Reads what the options name: the documents, and warnings for a user about the files, a line
    /// each.
    ///
    /// # Errors
    /// Where a file cannot be read, is ambiguous, or has ids that no item has (and items have no
    /// names); where nothing is left to rank.
    pub fn open(
        args: &SelectionArgs,
        queries: &Ids,
        documents: &Ids,
    ) -> Result<(Selected, Vec<String>)> {
        let mut warnings = Vec::new();
        let is_left = filters::read(args, documents, &mut warnings)?;
        let selected = match (&args.candidates, is_left) {
            (Some(path), is_left) => {
                let is_left = |document: u32| match &is_left {
                    Some(is_left) => is_left[document as usize],
                    None => true,
                };
                let pairs = candidates::read(path, [queries, documents], is_left, &mut warnings)?;
                Selected::Each(pairs)
            }
            (None, Some(is_left)) => {
                let ids = (0u32..).zip(is_left).filter(|(_, is_left)| *is_left);
                let ids: Vec<u32> = ids.map(|(id, _)| id).collect();
                ensure!(!ids.is_empty(), "no document is left by --include and --exclude");
                Selected::Same(ids)
            }
            (None, None) => Selected::All,
        };
        Ok((selected, warnings))
    }

    /// The documents of every query, where those are the same.
    pub(crate) fn shared(&self, n_documents: usize) -> Result<Items<'_>> {
        match self {
            Selected::All => Ok(Items::Range(0..n_documents)),
            Selected::Same(ids) => Ok(Items::of(ids)),
            Selected::Each(_) => bail!("each query has candidates of its own"),
        }
    }

    /// The documents of any query, rising, of `n_documents`.
    pub(crate) fn documents(&self, n_documents: usize) -> Cow<'_, [u32]> {
        match self {
            // A layout has fewer than 2³¹ items.
            Selected::All => (0..n_documents as u32).collect(),
            Selected::Same(ids) => ids.into(),
            Selected::Each(pairs) => {
                let mut ids: Vec<u32> = pairs.iter().map(|[document, _]| *document).collect();
                ids.dedup();
                ids.into()
            }
        }
    }

    /// Pairs of a query and a document.
    pub(crate) fn n_pairs(&self, n_queries: usize, n_documents: usize) -> usize {
        match self {
            Selected::All => n_queries * n_documents,
            Selected::Same(ids) => n_queries * ids.len(),
            Selected::Each(pairs) => pairs.len(),
        }
    }
}
