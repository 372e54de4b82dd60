//! Reads some items at a time, as they are or decoded.

use std::ops::Range;

use anyhow::Result;
use maxsim::Tokens;
use maxsim::format::Element;
use maxsim::residual::ResidualTokens;

/// Decodes the tokens of a range of items, and what lies between them. Masks are not taken into
/// account: the tokens of files have none.
///
/// # Errors
/// As [`ResidualTokens::decode`].
pub fn decode<T: Element>(
    tokens: &ResidualTokens<'_>,
    items: Range<usize>,
) -> Result<Tokens<'static, T>> {
    Ok(of_items(tokens, items)?.decode()?)
}

/// The tokens of a range of items, and what lies between them, without a mask.
///
/// # Errors
/// As [`ResidualTokens::new`].
pub fn of_items<'a>(
    tokens: &'a ResidualTokens<'_>,
    items: Range<usize>,
) -> Result<ResidualTokens<'a>> {
    let (rows, layout) = tokens.layout().items(items)?;
    let row_bytes = tokens.codec().row_bytes();
    let residuals = &tokens.residuals()[rows.start * row_bytes..rows.end * row_bytes];
    let codes = &tokens.codes()[rows];
    let codec = tokens.codec().clone();
    Ok(ResidualTokens::new(codec, codes, residuals, tokens.order(), layout)?)
}
