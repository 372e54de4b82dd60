//! Ids that a token file has itself: strings in the header, as the format has no tensors of
//! strings, or whole numbers in a tensor.

use anyhow::{Context, Result, bail, ensure};

use super::Tensors;
use crate::jsonl::JsonId;

/// The name of the tensor, and the key of `__metadata__`.
pub(crate) const IDS: &str = "ids";

/// The ids of `n_items` items, where a safetensors file has them.
pub(crate) fn of(tensors: &Tensors<'_>, n_items: usize) -> Result<Option<Vec<String>>> {
    let noted = tensors.note(IDS).map(noted).transpose()?;
    let numbers = tensors.integers(IDS)?;
    let numbered = numbers.map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>());
    let ids = match (noted, numbered) {
        (Some(noted), Some(numbered)) if noted != numbered => {
            bail!("`{IDS}` in the metadata and the tensor `{IDS}` are not the same; leave one out")
        }
        (noted, numbered) => noted.or(numbered),
    };
    let Some(ids) = ids else { return Ok(None) };
    ensure!(
        ids.len() == n_items,
        "`{IDS}` has {} entries, where the file has {n_items} items; give each item one, or name \
         it otherwise",
        ids.len()
    );
    Ok(Some(ids))
}

fn noted(text: &str) -> Result<Vec<String>> {
    let ids: Vec<JsonId> = serde_json::from_str(text).with_context(|| {
        format!("`{IDS}` in the metadata is no JSON array of strings or whole numbers")
    })?;
    Ok(ids.into_iter().map(|id| id.text).collect())
}
