//! Rankings for people.

use std::io::{self, Write};

use maxsim::Ranked;
use unicode_width::UnicodeWidthStr;

use super::Results;
use crate::judging::ids::Id;
use crate::rank::winners::Winners;
use crate::texts::{TITLE_COLUMNS, Text, beginning, cut, padded, printable};

/// Least widths of the columns of ranks, scores and ids.
const WIDTHS: [usize; 3] = [4, 10, 6];

/// Spaces before a title and before a text.
const GAP: usize = 2;

/// A terminal narrower than this is written to as one that is this wide.
const LEAST_COLUMNS: usize = 40;

/// The line of one document, but for its title and text.
struct Line<'a> {
    cells: [String; 3],
    is_likely: bool,
    is_relevant: bool,
    text: Option<&'a Text>,
    /// Matched tokens, for a line of their own.
    matched: Option<String>,
}

/// Writes per query a heading and a line per document: rank, score or distance, `*` where the
/// document is judged relevant, id, title and the beginning of the text. A `?` behind the rank
/// means that the place is likely, not proven. Where there are winners, a line below has the
/// document's token for each token of the query. Columns grow with their contents; with a number of
/// `columns`, those of a terminal, titles and texts are shortened so that a line fits.
pub(super) fn write(
    results: &Results<'_>,
    columns: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let columns = columns.map(|columns| columns.max(LEAST_COLUMNS));
    for (query, ranking) in (0u32..).zip(results.rankings) {
        let mut heading = format!("query {}", shown(results.judging.queries.get(query)));
        if results.distances {
            heading += " (angular distances)";
        }
        if let Some(text) = results.judging.query_text(query) {
            heading += &format!(": {text}");
        }
        writeln!(out, "{}", fitted(heading, columns))?;
        let lines: Vec<Line<'_>> =
            (1..).zip(&ranking.ranked).map(|(rank, r)| line(results, query, rank, r)).collect();
        write_lines(&lines, columns, out)?;
        writeln!(out)?;
    }
    match results.metrics {
        Some(metrics) => writeln!(out, "{metrics}"),
        None => Ok(()),
    }
}

fn line<'a>(results: &Results<'a>, query: u32, rank: usize, ranked: &Ranked) -> Line<'a> {
    let judging = results.judging;
    let score = match ranked.has_tokens {
        true => format!("{:.4}", results.shown(ranked)),
        false => "empty".to_string(),
    };
    let judged = judging.qrels.as_ref().and_then(|qrels| qrels.get(query));
    Line {
        cells: [rank.to_string(), score, shown(judging.documents.get(ranked.id))],
        is_likely: results.proven.is_some_and(|proven| rank > proven[query as usize]),
        is_relevant: judged.is_some_and(|judged| judged.is_relevant(ranked.id)),
        text: judging.texts.get(ranked.id),
        matched: results.winners.map(|winners| matched(&winners[query as usize], rank - 1)),
    }
}

fn write_lines(lines: &[Line<'_>], columns: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let mut widths = WIDTHS;
    let mut title_width = 0;
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(&line.cells) {
            *width = cell.width().max(*width);
        }
        title_width = title_width.max(title(line).width());
    }
    let [rank, score, id] = widths;
    // With `?`, `*` and the spaces around it.
    let left = rank + 1 + score + 3 + id;
    let rest = columns.map(|columns| columns.saturating_sub(left + GAP));
    // An ellipsis takes a column more than what it stands behind.
    let title_columns =
        rest.map_or(TITLE_COLUMNS, |rest| TITLE_COLUMNS.min(rest.saturating_sub(1)));
    let title_width = title_width.min(title_columns + 1);
    let text_columns = rest.map_or(usize::MAX, |rest| rest.saturating_sub(title_width + GAP + 1));
    for Line { cells, is_likely, is_relevant, text, matched } in lines {
        let [rank, score, id] =
            [0, 1, 2].map(|i| format!("{}{}", " ".repeat(widths[i] - cells[i].width()), cells[i]));
        let mark = if *is_relevant { "*" } else { " " };
        let likely = if *is_likely { "?" } else { " " };
        let mut line = format!("{rank}{likely}{score} {mark} {id}");
        if let Some(text) = text {
            let title = beginning(text.title.as_deref().unwrap_or(""), title_columns);
            let text = beginning(text.text.as_deref().unwrap_or(""), text_columns);
            line += &format!("  {}  {}", padded(&title, title_width), text);
        }
        line.truncate(line.trim_end().len());
        writeln!(out, "{}", fitted(line, columns))?;
        if let Some(matched) = matched {
            let indent = widths[0] + GAP;
            writeln!(out, "{}", fitted(format!("{:indent$}{matched}", ""), columns))?;
        }
    }
    Ok(())
}

/// The document's token that each token of the query matches.
fn matched(winners: &Winners, place: usize) -> String {
    let tokens = winners.of(place).map(|token| match token {
        Some(token) => format!(" {token}"),
        None => " -".to_string(),
    });
    format!("tokens{}", tokens.collect::<String>())
}

/// An id that does not steer the terminal.
fn shown(id: Id<'_>) -> String {
    printable(&id.to_string())
}

fn title<'a>(line: &Line<'a>) -> &'a str {
    line.text.and_then(|text| text.title.as_deref()).unwrap_or("")
}

/// A line that fits the columns of a terminal.
fn fitted(line: String, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if line.width() > columns => cut(line, columns - 1),
        _ => line,
    }
}
