//! Rankings for people.

use std::io::{self, Write};

use super::Results;

/// Per query a heading and a line a document: rank, score, `*` where the document is
/// judged relevant, id, title and the beginning of the text. A `?` behind the rank says that the place
/// is likely, not proven.
pub(super) fn write(results: &Results<'_>, out: &mut impl Write) -> io::Result<()> {
    for (query, ranking) in (0u32..).zip(results.rankings) {
        let judged = results.qrels.and_then(|qrels| qrels.get(query));
        match judged.and_then(|judged| judged.text.as_deref()) {
            Some(text) => writeln!(out, "query {query}: {text}")?,
            None => writeln!(out, "query {query}")?,
        }
        let texts = || ranking.ranked.iter().map(|ranked| results.texts.get(ranked.id));
        let width = texts().flatten().map(|text| text.title.chars().count()).max().unwrap_or(0);
        for ((rank, ranked), text) in (1..).zip(&ranking.ranked).zip(texts()) {
            let score = match ranked.has_tokens {
                true => format!("{:.4}", ranked.score),
                false => "empty".to_string(),
            };
            let mark = if judged.is_some_and(|j| j.is_relevant(ranked.id)) { "*" } else { " " };
            let is_likely = results.proven.is_some_and(|proven| rank > proven[query as usize]);
            let likely = if is_likely { "?" } else { " " };
            let mut line = format!("{rank:>4}{likely}{score:>10} {mark} {:>6}", ranked.id);
            if let Some(text) = text {
                line += &format!("  {:width$}  {}", text.title, text.text);
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        writeln!(out)?;
    }
    match results.metrics {
        Some(metrics) => writeln!(out, "{metrics}"),
        None => Ok(()),
    }
}
