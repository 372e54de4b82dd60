//! Limits of rows: those of tokens that are scored, and of hidden states that tokens are made of.

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
    /// The layout of what a projection makes of these rows: the same items, of rows of `dim`.
    pub(crate) fn projected(&self, dim: usize) -> TokenLayout {
        TokenLayout { dim, ..self.clone() }
    }
}
