//! Reads some items at a time, as they are or decoded.

use anyhow::Result;
use maxsim::format::Element;
use maxsim::residual::ResidualTokens;
use maxsim::{TokenLayout, Tokens};

use crate::input::Items;

/// Decodes the tokens of some items, and what lies between those that follow each other. Masks are
/// not taken into account: the tokens of files have none.
///
/// # Errors
/// As [`ResidualTokens::decode`].
pub fn decode<T: Element>(
    tokens: &ResidualTokens<'_>,
    items: &Items<'_>,
) -> Result<Tokens<'static, T>> {
    Ok(of_items(tokens, items)?.decode()?)
}

/// The tokens of some items, and what lies between those that follow each other, without a mask.
/// Items that do not follow each other are copied.
///
/// # Errors
/// As [`ResidualTokens::new`].
pub fn of_items<'a>(
    tokens: &'a ResidualTokens<'_>,
    items: &Items<'_>,
) -> Result<ResidualTokens<'a>> {
    let (codec, order) = (tokens.codec().clone(), tokens.order());
    let row_bytes = codec.row_bytes();
    if let Items::Range(items) = items {
        let (rows, layout) = tokens.layout().items(items.clone())?;
        let residuals = &tokens.residuals()[rows.start * row_bytes..rows.end * row_bytes];
        return Ok(ResidualTokens::new(codec, &tokens.codes()[rows], residuals, order, layout)?);
    }
    let (mut codes, mut residuals, mut offsets) = (Vec::new(), Vec::new(), vec![0i64]);
    for item in items.iter() {
        let rows = tokens.layout().item_rows(item);
        residuals
            .extend_from_slice(&tokens.residuals()[rows.start * row_bytes..rows.end * row_bytes]);
        codes.extend_from_slice(&tokens.codes()[rows]);
        offsets.push(codes.len() as i64);
    }
    let layout = TokenLayout::packed(codes.len(), codec.dim(), &offsets)?;
    Ok(ResidualTokens::new(codec, codes, residuals, order, layout)?)
}
