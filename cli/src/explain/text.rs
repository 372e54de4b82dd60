//! Matches as lines for a terminal.

use std::fmt::Write;

use unicode_width::UnicodeWidthStr;

use super::Explanation;
use crate::texts::beginning;

/// Columns of a word at most, and of a bar.
const WORD_COLUMNS: usize = 24;
const BAR_COLUMNS: usize = 20;

pub(super) fn text(of: &Explanation) -> String {
    let [query, document] = &of.names;
    let mut out = beginning(&format!("{document} for {query}: score {}", of.score), 200) + "\n\n";
    let word = |text: &str| beginning(text, WORD_COLUMNS);
    let words: Vec<String> = of.query.iter().map(|of| word(&of.word.label())).collect();
    let columns = words.iter().map(|word| word.width()).max().unwrap_or(0).max("query".len());
    let most = of.query.iter().map(|of| of.similarity).fold(f32::MIN_POSITIVE, f32::max);
    let pad = |word: &str| " ".repeat(columns.saturating_sub(word.width()));
    let _ = writeln!(out, "query{}  similarity  document", pad("query"));
    for (of_query, word_of_query) in of.query.iter().zip(&words) {
        let bar = (of_query.similarity / most).clamp(0.0, 1.0) * BAR_COLUMNS as f32;
        let chosen = match of_query.chosen.map(|chosen| &of.document[chosen]) {
            Some(chosen) => match &chosen.word {
                Some(text) => format!("{} (#{})", word(text), chosen.token),
                None => format!("#{}", chosen.token),
            },
            None => "none".into(),
        };
        let (pad, similarity) = (pad(word_of_query), of_query.similarity);
        let bar = "█".repeat(bar.round() as usize);
        let _ = writeln!(out, "{word_of_query}{pad}  {similarity:>10.4}  {chosen}  {bar}");
    }
    out
}
