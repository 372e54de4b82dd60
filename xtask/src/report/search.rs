//! The page's sections about operations, search and the CPU engine: rows with goals of their own,
//! as `bench/operations`, `bench/search` and `bench/cpu` write them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use super::markdown::{cell, facts, ratio, whole_cell};
use super::record::Facts;

/// What a run of `bench.search` or `bench.cpu` measured on one machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Search {
    pub card: Option<String>,
    #[serde(flatten)]
    facts: Facts,
    rows: Vec<Row>,
}

/// A row: our figure beside the best peer's and its floor, of which less is better.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    case: String,
    ours: Option<f64>,
    unit: Option<String>,
    peer: Option<String>,
    best_peer: Option<f64>,
    x_best_peer: Option<f64>,
    limit: Option<f64>,
    of_limit: Option<f64>,
    goal: Option<String>,
    met: Option<bool>,
    /// Why the goal is missed, or the row has no figure.
    why: Option<String>,
    /// Share of the exact best documents that methods find.
    recall: BTreeMap<String, f64>,
    /// Our further methods' figures.
    ours_ms: BTreeMap<String, f64>,
    /// The peers' figures, or why there are none.
    peers: BTreeMap<String, Value>,
}

pub fn section(page: &mut String, record: &Search) {
    facts(page, &record.facts);
    let with_goals = || record.rows.iter().filter(|row| row.goal.is_some());
    let n_met = with_goals().filter(|row| row.met == Some(true)).count();
    let _ = write!(
        page,
        "\n{n_met} of {} goals are met.\n\nThe limit is what memory, arithmetic or the link to the \
         host allow, measured in the same run.\n\n\
         | case | maxsim | best peer | × the best peer | limit | of the limit | goal | met |\n\
         |---|---|---|---|---|---|---|---|\n",
        with_goals().count(),
    );
    for row in &record.rows {
        let _ = writeln!(page, "{}", row.figures());
    }
    let missed: Vec<&Row> = record.rows.iter().filter(|row| row.why.is_some()).collect();
    if !missed.is_empty() {
        *page += "\nNot met, or not measured:\n\n";
        for row in missed {
            let _ = writeln!(page, " - {}: {}", row.case, row.why.as_deref().unwrap_or("–"));
        }
    }
    for row in record.rows.iter().filter(|row| !row.recall.is_empty()) {
        row.recalls(page);
    }
}

impl Row {
    fn figures(&self) -> String {
        let unit = self.unit.as_deref().unwrap_or_default();
        let peer = self.peer.as_deref().map_or(String::new(), |name| format!(" ({name})"));
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "no",
            None => "–",
        };
        format!(
            "| {} | {} | {}{peer} | {} | {} | {} | {} | {met} |",
            cell(&self.case),
            figure(self.ours, unit),
            figure(self.best_peer, unit),
            ratio(self.x_best_peer),
            figure(self.limit, unit),
            ratio(self.of_limit),
            self.goal.as_deref().map_or("–".to_string(), whole_cell),
        )
    }

    /// Recall beside time, the best recall first.
    fn recalls(&self, page: &mut String) {
        let _ = write!(
            page,
            "\n{}:\n\n| method | recall | {} |\n|---|---|---|\n",
            self.case,
            self.unit.as_deref().unwrap_or("time"),
        );
        let time = |name: &String| match name.as_str() {
            "maxsim" => self.ours,
            _ => self.ours_ms.get(name).copied().or_else(|| self.peers.get(name)?.as_f64()),
        };
        let mut found: Vec<_> = self.recall.iter().collect();
        found.sort_by(|a, b| b.1.total_cmp(a.1));
        for (name, recall) in found {
            let _ = writeln!(page, "| {name} | {recall:.3} | {} |", figure(time(name), ""));
        }
        for (name, why) in &self.peers {
            if let Some(why) = why.as_str() {
                let _ = writeln!(page, "| {name} | – | {} |", cell(why));
            }
        }
    }
}

/// A figure with the digits that mean something, and its unit.
pub fn figure(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "–".to_string() };
    let n_digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 4,
    };
    format!("{value:.n_digits$} {unit}").trim_end().to_string()
}
