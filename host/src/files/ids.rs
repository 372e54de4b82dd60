//! Ids that a token file has itself: strings in the header, as the format has no tensors of
//! strings, or whole numbers in a tensor.

use serde_json::Value;

use super::error::{Context, Result, bail, ensure};
use super::items::integers;
use super::npy;
use super::safetensors::Tensors;

/// The name of the tensor, and the key of `__metadata__`.
pub(super) const IDS: &str = "ids";

/// The ids of `n_items` items, where a safetensors file has them.
pub(super) fn of(tensors: &Tensors<'_>, n_items: usize) -> Result<Option<Vec<String>>> {
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

/// The ids of `n_items` items in a `.npy` file: whole numbers, or strings as numpy has them, of so
/// many characters of four bytes each.
pub(super) fn numpy(bytes: &[u8], n_items: usize) -> Result<Vec<String>> {
    let (header, data) = npy::array(bytes)?;
    let n_chars: Option<usize> = header.descr.strip_prefix("<U").and_then(|n| n.parse().ok());
    let ids: Vec<String> = match n_chars {
        Some(n_chars) => {
            let size = n_chars.checked_mul(4).context("strings that are beyond any file")?;
            header.check_bytes(size, data)?;
            ensure!(size > 0, "`{IDS}` are empty strings");
            data.chunks_exact(size).map(string).collect::<Result<_>>()?
        }
        None => {
            let beside = npy::beside(IDS, None, bytes).with_context(|| format!("`{IDS}`"))?;
            integers(&beside)?.iter().map(ToString::to_string).collect()
        }
    };
    ensure!(
        header.shape.len() == 1 && ids.len() == n_items,
        "`{IDS}` have shape {:?}; expected [{n_items}], one for each item",
        header.shape
    );
    Ok(ids)
}

/// A string of numpy's: code points, and zeros behind them.
fn string(chars: &[u8]) -> Result<String> {
    let chars = chars.as_chunks::<4>().0.iter().map(|&c| u32::from_le_bytes(c));
    let chars = chars.map(|c| char::from_u32(c).with_context(|| format!("`{IDS}` are no text")));
    let text: String = chars.collect::<Result<_>>()?;
    Ok(text.trim_end_matches('\0').to_owned())
}

fn noted(text: &str) -> Result<Vec<String>> {
    let of_one = |id: &Value| match id {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) if id.is_u64() || id.is_i64() => Some(id.to_string()),
        _ => None,
    };
    let found = serde_json::from_str::<Vec<Value>>(text).ok();
    found.and_then(|ids| ids.iter().map(of_one).collect()).with_context(|| {
        format!("`{IDS}` in the metadata is no JSON array of strings or whole numbers")
    })
}
