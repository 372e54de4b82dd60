//! Queries in the form that documents are scored with: their elements converted or compressed.

use std::ops::Range;

use anyhow::{Result, bail};
use maxsim::Tokens;
use maxsim::format::{
    Conversion, Element, ElementType, QuantizeReport, Quantized, ScaleType, TokenFormat,
    with_element, with_format,
};

use crate::input::TokenFile;
use crate::texts::counted;

/// Format that queries of a file's format are scored in against documents of a format.
pub fn query_format(queries: TokenFormat, documents: TokenFormat) -> TokenFormat {
    let is_compressed = queries.element().is_some() && !queries.is_scorable_with(documents);
    let codes = TokenFormat::QUANTIZED.into_iter().filter(|_| is_compressed);
    codes.into_iter().find(|codes| codes.is_scorable_with(documents)).unwrap_or(queries)
}

/// Queries as codes: those of the file, or its elements compressed with scales that are stored so.
pub(crate) fn compressed<F: Quantized>(
    file: &TokenFile,
    items: Range<usize>,
    scales: ScaleType,
) -> Result<Tokens<'_, F>> {
    Ok(with_format!(file.contents().format, {
        element T => file.tokens::<T>(items)?.quantize(scales)?,
        _ => file.codes(items)?,
    }))
}

/// Chooses how the scales of queries that are compressed for documents of a format are stored: as
/// f16, or as f32 where that would clip a token or keep hardly a bit of it. A note is added to
/// `notes` where tokens are too small for either.
pub fn scales(
    queries: &TokenFile,
    documents: TokenFormat,
    notes: &mut Vec<String>,
) -> Result<ScaleType> {
    fn of<F: Quantized, T: Element>(
        file: &TokenFile,
        notes: &mut Vec<String>,
    ) -> Result<ScaleType> {
        let tokens = file.tokens::<T>(0..file.n_items())?;
        let report = |scales: ScaleType| -> Result<QuantizeReport> {
            Ok(QuantizeReport::measured(&tokens.quantize::<F>(scales)?, &tokens)?)
        };
        if report(ScaleType::F16)?.is_rounding_alone() {
            return Ok(ScaleType::F16);
        }
        let QuantizeReport { n_coarse_tokens, n_tokens, .. } = report(ScaleType::F32)?;
        if n_coarse_tokens > 0 {
            notes.push(format!(
                "warning: {}: {n_coarse_tokens} of {} too small for {} codes and become zeros or \
                 nearly so; scale the embeddings up",
                file.path().display(),
                counted(n_tokens, "query token is", "query tokens are"),
                F::FORMAT
            ));
        }
        Ok(ScaleType::F32)
    }
    let format = queries.contents().format;
    let Some(element) = format.element() else { return Ok(ScaleType::F16) };
    with_format!(query_format(format, documents), {
        codes F => with_element!(element, T => of::<F, T>(queries, notes)),
        _ => Ok(ScaleType::F16),
    })
}

/// Queries with elements of type `to`, which need not be another one. What that rounds is added to
/// `notes`.
///
/// # Errors
/// Where an element becomes infinite, or all elements of a token become zeros.
pub fn converted(
    queries: TokenFile,
    to: ElementType,
    notes: &mut Vec<String>,
) -> Result<TokenFile> {
    let from = queries.contents().format;
    if from == to.into() {
        return Ok(queries);
    }
    let (queries, found) = with_element!(to, T => with::<T>(queries)?);
    check(&queries, &found, [from, to.into()])?;
    notes.push(match found.is_exact() {
        true => format!("queries converted from {from} to {to}, exactly"),
        false => format!(
            "queries converted from {from} to {to}: {} of {} elements rounded, by {:.1e} of their \
             value at most",
            found.n_changed, found.n_elements, found.max_relative_error
        ),
    });
    Ok(queries)
}

/// A file with its elements as those of type `U`.
fn with<U: Element>(file: TokenFile) -> Result<(TokenFile, Conversion)> {
    fn of<T: Element, U: Element>(file: TokenFile) -> Result<(TokenFile, Conversion)> {
        let elements = file.elements::<T>(0..file.layout().rows())?;
        let tokens = Tokens::from_layout(elements, file.layout().clone())?;
        let (tokens, conversion) = tokens.convert::<U>()?;
        Ok((file.with_elements::<U>(tokens.data())?, conversion))
    }
    with_format!(file.contents().format, {
        element T => of::<T, U>(file),
        other => bail!("{other} queries cannot be converted; use their uncompressed embeddings"),
    })
}

/// Refuses a conversion after which a token is not what it was.
fn check(queries: &TokenFile, found: &Conversion, [from, to]: [TokenFormat; 2]) -> Result<()> {
    let (row, what) = match (found.overflowed_row, found.vanished_row) {
        (Some(row), _) => (row, "has an element that is too large for"),
        (None, Some(row)) => (row, "becomes zeros as"),
        (None, None) => return Ok(()),
    };
    let layout = queries.layout();
    let query = (0..layout.n_items()).find(|&i| layout.item_rows(i).contains(&row));
    bail!(
        "row {} of {} (query {}) {what} {to}, so --convert is refused; use {from} documents",
        queries.stored_row(row),
        queries.path().display(),
        query.unwrap_or_default(),
    )
}
