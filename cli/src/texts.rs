//! What documents are, in words, and text that is safe to print.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::jsonl;

/// Characters kept of a title.
const TITLE_CHARS: usize = 40;

/// Characters kept of a text.
const TEXT_CHARS: usize = 72;

/// Titles and beginnings of texts by document id, printable.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    by_id: HashMap<u32, Text>,
}

/// What one document is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Its title, or the name of its package; empty when the file gives neither.
    pub title: String,
    /// How its text begins; empty when the file gives none.
    pub text: String,
}

/// A line, for messages.
const EXAMPLE: &str = r#"{"id": 0, "title": "a title", "text": "a text"}"#;

#[derive(Deserialize)]
struct Line {
    id: u32,
    title: Option<String>,
    package: Option<String>,
    text: Option<String>,
}

impl Texts {
    /// Reads a file with one JSON object a line: `id`, and `title` or `package`, and `text`.
    pub fn open(path: &Path, n_documents: usize) -> Result<Texts> {
        let mut by_id = HashMap::new();
        jsonl::read(path, EXAMPLE, |line: Line| {
            check_id("document", line.id, n_documents)?;
            let text = Text {
                title: beginning(&line.title.or(line.package).unwrap_or_default(), TITLE_CHARS),
                text: beginning(&line.text.unwrap_or_default(), TEXT_CHARS),
            };
            ensure!(by_id.insert(line.id, text).is_none(), "document {} is there twice", line.id);
            Ok(())
        })?;
        Ok(Texts { by_id })
    }

    /// What is known of a document.
    pub fn get(&self, id: u32) -> Option<&Text> {
        self.by_id.get(&id)
    }
}

pub(crate) fn check_id(what: &str, id: u32, n_items: usize) -> Result<()> {
    ensure!(
        (id as usize) < n_items,
        "{what} {id} does not exist: the token file has {n_items}, numbered from 0"
    );
    Ok(())
}

/// The text on one line, without anything that could steer a terminal: runs of white space
/// become one space; control characters and the marks that reorder text are dropped.
pub fn printable(text: &str) -> String {
    let words = text.split_whitespace().map(|word| word.chars().filter(|&c| !steers(c)));
    let mut line = String::with_capacity(text.len());
    for word in words {
        let before = line.len();
        if !line.is_empty() {
            line.push(' ');
        }
        let start = line.len();
        line.extend(word);
        if line.len() == start {
            line.truncate(before);
        }
    }
    line
}

/// The first `n_chars` characters of the printable text; an ellipsis says that there is more.
pub fn beginning(text: &str, n_chars: usize) -> String {
    let mut line = printable(text);
    if let Some((cut, _)) = line.char_indices().nth(n_chars) {
        line.truncate(cut);
        line.truncate(line.trim_end().len());
        line.push('…');
    }
    line
}

/// A number of things, in words for one and for more.
pub(crate) fn counted(n: u64, one: &str, many: &str) -> String {
    let what = if n == 1 { one } else { many };
    format!("{n} {what}")
}

fn steers(c: char) -> bool {
    let reorders = matches!(c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_dropped_and_white_space_is_one_space() {
        assert_eq!(printable("a\x1b[31mb\x07\r\n\tc\u{9b}d \u{7f} e"), "a[31mb cd e");
        assert_eq!(printable("\u{202e}abc\u{2066}"), "abc");
        assert_eq!(printable(" \x00 "), "");
        assert_eq!(printable("naïve – 文書"), "naïve – 文書");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(beginning("文書文書", 4), "文書文書");
        assert_eq!(beginning("文書文書", 3), "文書文…");
        assert_eq!(beginning("ab cd", 3), "ab…");
    }
}
