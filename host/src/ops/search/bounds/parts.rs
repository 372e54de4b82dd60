//! Terms of parts of a corpus, of parts put together, and of what no document exceeds.

use std::ops::Range;

use super::{ErrorTerms, Item};
use crate::error::Result;
use crate::runtime::alloc::{copy_of, reserve};
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;

impl ErrorTerms {
    /// The terms of all items of a layout, from those of consecutive ones.
    pub(crate) fn of_parts(
        format: TokenFormat,
        layout: &TokenLayout,
        parts: impl Iterator<Item = Result<ErrorTerms>>,
    ) -> Result<ErrorTerms> {
        let mut items = Vec::new();
        reserve(&mut items, layout.n_items())?;
        for part in parts {
            items.extend(part?.items);
        }
        Ok(ErrorTerms::of_items(format, layout.clone(), items))
    }

    /// The terms of some consecutive items.
    pub(crate) fn part(&self, items: Range<usize>) -> Result<ErrorTerms> {
        let (_, layout) = self.layout.items(items.clone())?;
        Ok(ErrorTerms::of_items(self.format, layout, copy_of(&self.items[items])?))
    }

    /// Terms of one item, whose bound as a document no item's exceeds.
    pub(crate) fn largest(&self) -> Result<ErrorTerms> {
        let maxima = self.maxima;
        let layout = TokenLayout::padded(1, 1, self.layout.dim())?;
        let item = Item { n_tokens: 1, sums: maxima, maxima };
        Ok(ErrorTerms::of_items(self.format, layout, vec![item]))
    }
}
