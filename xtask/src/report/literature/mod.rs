//! The page's section about the tables of the literature, as `bench/literature` measures them, and
//! the list of where each of them is, which is written by hand.

pub mod plots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::markdown::{cell, facts};
use super::record::Facts;
use super::search::figure as with_digits;

/// Where the tables of the literature are among these, or why they are not.
pub const TABLES: &str = include_str!("tables.txt");

/// The groups of rows, with their titles and what their figures are.
const GROUPS: [(&str, &str, &str); 12] = [
    (
        "corpus",
        "Pages until memory ends (figure 1, tables 2, 5, 6 and 23)",
        "Milliseconds (MB beyond the inputs). In chunks: of as many documents as is fastest.",
    ),
    (
        "matched",
        "Five shapes beside PyTorch in every precision (tables 1, 4 and 21)",
        "Milliseconds (MB beyond the inputs).",
    ),
    (
        "steps",
        "Training steps (tables 3, 10, 11 and 24)",
        "Milliseconds of forward and backward (MB beyond the inputs). In blocks: of as many \
         documents as is fastest.",
    ),
    ("serving", "Queries served at once (table 8)", "Milliseconds (MB beyond the inputs)."),
    (
        "ragged",
        "Documents of different lengths (table 12)",
        "Milliseconds (MB beyond the inputs); PyTorch pads them to 512 tokens.",
    ),
    ("codes", "INT8 codes (tables 13 and 14)", "Milliseconds (MB beyond the inputs)."),
    (
        "normalize",
        "Rows that the call normalises",
        "Milliseconds (MB beyond the inputs), as late-interaction-kernels' functions do by \
         default.",
    ),
    (
        "long-queries",
        "Long queries",
        "Milliseconds (MB beyond the inputs); other kernels cut queries of more than 512 tokens.",
    ),
    ("dims", "Further dims (tables 15 and 16)", "Milliseconds (MB beyond the inputs)."),
    (
        "workloads",
        "The workloads of the Hub kernel erikkaum/maxsim",
        "Milliseconds (MB beyond the inputs); the kernel was compiled from its sources.",
    ),
    (
        "traffic",
        "Traffic of device memory (table 22)",
        "Megabytes read and written by a call's kernels, as the hardware counts them.",
    ),
    (
        "parity",
        "The loss of training steps (figure 3)",
        "Largest relative difference of a step's loss from that of the same steps in f32.",
    ),
];

/// What a run of `bench.literature` measured on one machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Literature {
    card: Option<String>,
    #[serde(flatten)]
    facts: Facts,
    rows: Vec<Row>,
}

/// A row: our figure and the others', of which less is better.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    case: String,
    group: String,
    ours: Option<f64>,
    unit: Option<String>,
    x_best_peer: Option<f64>,
    /// The other methods' figures, or why there are none.
    peers: BTreeMap<String, Value>,
    /// Our further methods' figures.
    ours_ms: BTreeMap<String, f64>,
    megabytes: BTreeMap<String, f64>,
    queries_per_s: Option<f64>,
    spearman: Option<f64>,
    top_20: Option<f64>,
    /// Losses by run, and the steps that they are of.
    curves: BTreeMap<String, Vec<f64>>,
    /// Why the row has no figure.
    why: Option<String>,
}

impl Literature {
    /// The card's name.
    pub fn card<'a>(&'a self, folder: &'a str) -> &'a str {
        self.card.as_deref().unwrap_or(folder)
    }

    fn group(&self, name: &str) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.group == name).collect()
    }
}

/// Writes a table for each group that was measured.
pub fn section(page: &mut String, folder: &str, record: &Literature) {
    let _ = write!(page, "\n## Tables of the literature: {}\n", record.card(folder));
    facts(page, &record.facts);
    for (name, title, words) in GROUPS {
        let rows = record.group(name);
        if rows.is_empty() {
            continue;
        }
        let _ = write!(page, "\n### {title}\n\n{words}\n\n");
        table(page, &rows);
        for (group, file, words) in plots::FILES {
            if group == name {
                let _ = write!(page, "\n![{words}](measured/{folder}/{file})\n");
            }
        }
    }
}

/// A column for each method that a row has, and for what few rows have.
fn table(page: &mut String, rows: &[&Row]) {
    let own: BTreeSet<&str> = rows.iter().flat_map(|row| keys(&row.ours_ms)).collect();
    let others: BTreeSet<&str> = rows.iter().flat_map(|row| keys(&row.peers)).collect();
    let more: Vec<Column> = MORE
        .into_iter()
        .filter(|(_, figure)| rows.iter().any(|row| figure(row).is_some()))
        .collect();
    let mut head = vec!["case", "maxsim"];
    head.extend(own.iter().chain(&others));
    if !others.is_empty() {
        head.push("× the best");
    }
    head.extend(more.iter().map(|(name, _)| *name));
    let _ = writeln!(page, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let mut cells = vec![cell(&row.case), row.ours()];
        cells.extend(own.iter().map(|name| row.with_memory(name, row.ours_ms.get(*name).copied())));
        cells.extend(others.iter().map(|name| row.peer(name)));
        if !others.is_empty() {
            cells.push(row.x_best_peer.map_or("–".into(), |x| format!("{x:.2}")));
        }
        cells.extend(more.iter().map(|(_, figure)| figure(row).unwrap_or("–".into())));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
}

/// How the words begin that are no failure.
const KNOWN: [&str; 2] = ["out of memory", "not run"];

/// The name of a column, and what a row has in it.
type Column = (&'static str, fn(&Row) -> Option<String>);

/// Columns that some groups have.
const MORE: [Column; 3] = [
    ("queries/s", |row| row.queries_per_s.map(|n| format!("{n:.0}"))),
    ("Spearman", |row| row.spearman.map(|x| format!("{x:.5}"))),
    ("top 20", |row| row.top_20.map(|x| format!("{x:.2}"))),
];

fn keys<V>(map: &BTreeMap<String, V>) -> impl Iterator<Item = &str> {
    map.keys().map(String::as_str)
}

impl Row {
    fn ours(&self) -> String {
        match &self.why {
            Some(why) => format!("failed: {}", cell(why)),
            None => self.with_memory("maxsim", self.ours),
        }
    }

    fn peer(&self, name: &str) -> String {
        match self.peers.get(name) {
            Some(Value::String(why)) if KNOWN.iter().any(|known| why.starts_with(known)) => {
                cell(why)
            }
            Some(Value::String(why)) => format!("failed: {}", cell(why)),
            figure => self.with_memory(name, figure.and_then(Value::as_f64)),
        }
    }

    /// A method's figure, with its memory where that was measured.
    fn with_memory(&self, method: &str, figure: Option<f64>) -> String {
        let words = match figure {
            Some(value) if self.unit.as_deref() != Some("ms") && value < 0.01 => {
                format!("{value:.1e}")
            }
            figure => with_digits(figure, ""),
        };
        let megabytes = figure.and_then(|_| self.megabytes.get(method));
        megabytes.map_or(words.clone(), |mb| format!("{words} ({mb:.1})"))
    }
}
