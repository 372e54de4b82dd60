//! What the page about the method shows of the records: rates of each card, and a point of each row
//! below them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::markdown::read_rate;
use super::record::{Record, Row};

/// Rates and rows of a card.
#[derive(Serialize)]
pub struct Card {
    /// Matrix products by element type, in 10¹² operations a second.
    tflop_per_s: BTreeMap<String, f64>,
    /// The fastest read, in 10¹² bytes a second.
    tb_per_s: f64,
    points: Vec<Point>,
}

/// A row of f16 or bf16 tokens.
#[derive(Serialize)]
struct Point {
    case: String,
    /// Operations for each byte of documents.
    intensity: f64,
    /// In 10¹² operations a second.
    ours: f64,
    /// The faster peer's, if one ran.
    peer: Option<f64>,
}

/// The cards with a record of scores, by name.
pub fn cards(root: &Path) -> Result<BTreeMap<String, Card>> {
    let gpus = super::read(&root.join("docs/measured"))?;
    let of = |gpu: &super::Gpu| {
        let (_, record) = gpu.records.iter().find(|(title, _)| *title == super::FORWARD)?;
        Some((gpu.folder.to_uppercase(), card(record)?))
    };
    Ok(gpus.iter().filter_map(of).collect())
}

fn card(record: &Record) -> Option<Card> {
    let rates = record.roofs.iter();
    let tflop_per_s = rates.filter_map(|(name, timed)| Some((name.clone(), timed.tflop_per_s?)));
    let rows = record.rows.iter().filter(|row| row.element != "f32" && row.bytes > 0.0);
    Some(Card {
        tflop_per_s: tflop_per_s.collect(),
        tb_per_s: rounded(read_rate(record)? / 1e12),
        points: rows.filter_map(point).collect(),
    })
}

fn point(row: &Row) -> Option<Point> {
    let tera = |ms: f64| rounded(row.flop / ms / 1e9);
    Some(Point {
        case: row.case.clone(),
        intensity: rounded(row.flop / row.bytes),
        ours: tera(row.ours_ms?),
        peer: row.best_peer_ms.map(tera),
    })
}

/// Three decimals: what a plot shows.
fn rounded(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}
