//! Some items' tokens at a time.

use std::ops::Range;

use anyhow::Result;
use maxsim::residual::ResidualTokens;
use maxsim::{Element, Tokens};

use crate::input::part;

/// Decodes the tokens of a range of items, and what lies between them. Masks are not taken into
/// account: the tokens of files have none.
///
/// # Errors
/// As [`ResidualTokens::decode`].
pub fn decode<T: Element>(
    tokens: &ResidualTokens<'_>,
    items: Range<usize>,
) -> Result<Tokens<'static, T>> {
    let (rows, layout) = part(tokens.layout(), items)?;
    let row_bytes = tokens.codec().row_bytes();
    let residuals = &tokens.residuals()[rows.start * row_bytes..rows.end * row_bytes];
    let codes = &tokens.codes()[rows];
    let part =
        ResidualTokens::new(tokens.codec().clone(), codes, residuals, tokens.order(), layout)?;
    Ok(part.decode()?)
}
