//! Terms of a corpus that is read a part at a time.

use super::ErrorTerms;
use crate::error::Result;
use crate::runtime::alloc::reserve;
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
}
