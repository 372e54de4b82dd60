//! What tokens stand for: words, or parts of some.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Word;
use crate::judging::ids::Ids;
use crate::judging::jsonl::{self, JsonId};

/// A line, for messages.
const EXAMPLE: &str = r#"{"id": 0, "tokens": ["[CLS]", "a", "word", "[SEP]"]}"#;

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "_id")]
    id: JsonId,
    tokens: Option<Vec<String>>,
}

/// The words of an item by a file of one JSON object per line.
///
/// # Errors
/// Where no line, or more than one, is the item's, or it has no `tokens`.
pub(super) fn open(path: &Path, ids: &Ids, item: u32) -> Result<Vec<String>> {
    let mut found = None;
    jsonl::read(path, EXAMPLE, |_, line: Line| {
        if ids.find(&line.id.text) == Some(item) {
            let id = &line.id.text;
            ensure!(found.is_none(), "{} {id} appears twice", ids.side().one());
            let tokens = line.tokens.with_context(|| {
                format!("{} {id} has no `tokens`; list them, as in {EXAMPLE}", ids.side().one())
            })?;
            found = Some(tokens);
        }
        Ok(())
    })?;
    found.with_context(|| {
        let (one, id) = (ids.side().one(), ids.get(item));
        format!("{}: no line has the id of {one} {id}", path.display())
    })
}

/// Tokens that are all valid, with words where there are some.
pub(super) fn numbered(len: usize, words: Option<Vec<String>>) -> Result<Vec<Word>> {
    if let Some(words) = &words {
        ensure!(words.len() == len, "{} words for {len} tokens", words.len());
    }
    let mut words = words.into_iter().flatten();
    let word = |token| Word { token, word: words.next() };
    Ok((0..u32::try_from(len).context("too many tokens")?).map(word).collect())
}
