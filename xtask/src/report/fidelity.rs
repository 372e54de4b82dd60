//! The page's section about rankings of compressed tokens, as `bench/fidelity` writes them.

use std::fmt::Write as _;

use serde::Deserialize;

use super::markdown::facts;
use super::record::Facts;

/// What formats do to rankings of one data set.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fidelity {
    data: String,
    #[serde(flatten)]
    facts: Facts,
    rows: Vec<Row>,
}

/// A format.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Row {
    case: String,
    bytes_per_token: f64,
    ndcg_at_10: f64,
    recall_at_10: f64,
    top_10_overlap: f64,
    top_20_overlap: f64,
    spearman: Option<f64>,
    mean_relative_error: Option<f64>,
    largest_relative_error: Option<f64>,
}

pub fn section(page: &mut String, record: &Fidelity) {
    let _ = writeln!(page, "\n## Rankings of compressed tokens: {}", record.data);
    facts(page, &record.facts);
    *page += "\nOverlap: of the best documents of float64, the share that is among the best found. \
              Spearman: rank correlation of all documents. Errors: of scores, relative. Where a \
              format finds documents and f16 scores them, both are kept.\n\n\
              | tokens | bytes a token | nDCG@10 | recall@10 | top 10 | top 20 | Spearman | mean \
              error | largest error |\n|---|---|---|---|---|---|---|---|---|\n";
    for row in &record.rows {
        let _ = writeln!(
            page,
            "| {} | {:.1} | {:.4} | {:.4} | {:.4} | {:.4} | {} | {} | {} |",
            row.case,
            row.bytes_per_token,
            row.ndcg_at_10,
            row.recall_at_10,
            row.top_10_overlap,
            row.top_20_overlap,
            row.spearman.map_or("–".into(), |x| format!("{x:.5}")),
            error(row.mean_relative_error),
            error(row.largest_relative_error),
        );
    }
}

fn error(value: Option<f64>) -> String {
    value.map_or("–".into(), |x| format!("{x:.1e}"))
}
