//! Titles and texts of documents, and text that is safe to print.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::judging::ids::{Collected, Ids};
use crate::judging::jsonl::{self, JsonId};

/// An error and what caused it, in one line; a cause that the text before it has already is not
/// repeated.
pub fn chain(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |text, cause| {
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// Columns kept of a title.
pub(crate) const TITLE_COLUMNS: usize = 40;

/// Columns kept of a text.
pub(crate) const TEXT_COLUMNS: usize = 72;

/// Titles and texts by document, of the documents that a file names.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    by_item: HashMap<u32, Text>,
}

/// Title and text of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Title, or name of the package, where the file has one.
    pub title: Option<String>,
    /// Text, where the file has one.
    pub text: Option<String>,
}

/// How much is kept of titles and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Beginnings of the texts, printable: for a table.
    Beginning,
    /// The whole text, as in the file.
    Whole,
}

/// A line, for messages.
const EXAMPLE: &str = r#"{"id": 0, "title": "a title", "text": "a text"}"#;

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "_id")]
    id: JsonId,
    title: Option<String>,
    package: Option<String>,
    text: Option<String>,
}

impl Texts {
    /// Reads a file of one JSON object per line: `id` or `_id`, and `title` or `package`, and
    /// `text`.
    ///
    /// Where documents have names, lines come in any order, and an id is a document's name. Where
    /// they have none, an id that is a number is the number of a document, and lines come in any
    /// order; ids that are strings name the documents in the order of the lines: the names are
    /// returned, too.
    pub fn open(path: &Path, ids: &Ids, keep: Keep) -> Result<(Texts, Option<Ids>)> {
        let (mut by_item, mut names) = (HashMap::new(), Collected::default());
        let mut are_numbers = None;
        jsonl::read(path, EXAMPLE, |number, line: Line| {
            let id = &line.id;
            let is_number = *are_numbers.get_or_insert(id.is_number);
            let item = if ids.are_names() || (is_number && id.is_number) {
                ids.require(&id.text)?
            } else if !is_number && !id.is_number {
                names.push(&id.text, number)?;
                names.len() - 1
            } else {
                let [this, first] = [id.is_number, is_number].map(|is_number| match is_number {
                    true => "a number",
                    false => "a string",
                });
                bail!(
                    "the id {} is {this}, and that of the first line is {first}; numbers are those \
                     of documents in the token file, strings are ids of their own",
                    id.text
                )
            };
            let whole = |text: String, columns| match keep {
                Keep::Whole => text,
                Keep::Beginning => beginning(&text, columns),
            };
            let text = Text {
                title: line.title.or(line.package).map(|title| whole(title, TITLE_COLUMNS)),
                text: line.text.map(|text| whole(text, TEXT_COLUMNS)),
            };
            // Names that are there twice are refused below, with both lines.
            let is_new = by_item.insert(item, text).is_none();
            ensure!(is_new, "document {} appears twice", id.text);
            Ok(())
        })?;
        let named = are_numbers == Some(false) && !ids.are_names();
        let names = named.then(|| names.into_ids(path, ids.side(), ids.n_items(), HashMap::new()));
        Ok((Texts { by_item }, names.transpose()?))
    }

    /// Title and text of a document.
    pub fn get(&self, item: u32) -> Option<&Text> {
        self.by_item.get(&item)
    }

    /// Whether no document has a title or a text.
    pub fn is_empty(&self) -> bool {
        self.by_item.is_empty()
    }
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

/// Returns as much of the printable text as fits `n_columns` of a terminal; an ellipsis, one column
/// more, means that there is more. Characters of East Asian scripts and emoji take two columns.
pub fn beginning(text: &str, n_columns: usize) -> String {
    cut(printable(text), n_columns)
}

/// As [`beginning`], of a line that is printable.
pub(crate) fn cut(mut line: String, n_columns: usize) -> String {
    let mut columns = 0;
    let fits = |&(_, c): &(usize, char)| {
        columns += c.width().unwrap_or(0);
        columns <= n_columns
    };
    let end = line.char_indices().take_while(fits).last().map_or(0, |(at, c)| at + c.len_utf8());
    let is_whole = end == line.len();
    line.truncate(end);
    // Sequences of characters that are one symbol may be wider than their parts.
    let mut is_cut = !is_whole;
    while line.width() > n_columns {
        is_cut |= line.pop().is_some();
    }
    if is_cut {
        line.truncate(line.trim_end().len());
        line.push('…');
    }
    line
}

/// The text with spaces behind it, `n_columns` wide where it is no wider itself.
pub(crate) fn padded(text: &str, n_columns: usize) -> String {
    let missing = n_columns.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(missing))
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
        assert_eq!(beginning("naïve", 5), "naïve");
        assert_eq!(beginning("naïve", 4), "naïv…");
        assert_eq!(beginning("ab cd", 3), "ab…");
        assert_eq!(beginning("", 0), "");
        assert_eq!(beginning("a", 0), "…");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(beginning("文書文書", 8), "文書文書");
        assert_eq!(beginning("文書文書", 7), "文書文…");
        assert_eq!(beginning("文書文書", 6), "文書文…");
        assert_eq!(padded("文書", 6), "文書  ");
        assert_eq!(padded("文書", 3), "文書");
        // A heart alone is one column wide, as an emoji two; an accent of its own takes none.
        assert_eq!(beginning("❤\u{fe0f}", 1), "❤…");
        assert_eq!(beginning("e\u{301}e\u{301}", 2), "e\u{301}e\u{301}");
    }
}
