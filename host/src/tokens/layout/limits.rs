//! Limits of rows: those of tokens that are scored, and of hidden states that tokens are made of.

use std::ops::Range;

use super::TokenLayout;
use crate::error::{Error, Result};

/// Largest number of elements per token that is scored.
pub const MAX_DIM: usize = 4096;

/// Largest number of elements per row of hidden states, which a
/// [projection](crate::projection) makes tokens of.
pub const MAX_HIDDEN: usize = 8192;

/// Checks the elements per token, where tokens are scored or compressed.
pub(crate) fn check_dim(dim: usize) -> Result<()> {
    check_at_most(dim, MAX_DIM)
}

/// Checks the elements per row of a matrix, which may be of tokens or of hidden states.
pub(crate) fn check_row_len(dim: usize) -> Result<()> {
    check_at_most(dim, MAX_HIDDEN)
}

fn check_at_most(dim: usize, most: usize) -> Result<()> {
    if dim == 0 || dim > most {
        return Err(Error::Shape {
            argument: "dim",
            expected: format!("1 to {most}"),
            found: dim.to_string(),
        });
    }
    Ok(())
}

impl TokenLayout {
    /// As [`TokenLayout::items`], with what is known of the mask of these rows.
    pub(crate) fn masked_items(&self, items: Range<usize>) -> Result<(Range<usize>, TokenLayout)> {
        let (rows, layout) = self.items(items.clone())?;
        let has_tokens = self.has_tokens[items].to_vec();
        let has_empty_items = self.unread_mask || has_tokens.iter().any(|&has| !has);
        let TokenLayout { masked, unread_mask, .. } = *self;
        let layout = TokenLayout { masked, unread_mask, has_tokens, has_empty_items, ..layout };
        Ok((rows, layout))
    }

    /// The layout of what a projection makes of these rows: the same items, of rows of `dim`.
    pub(crate) fn projected(&self, dim: usize) -> TokenLayout {
        TokenLayout { dim, ..self.clone() }
    }
}
