//! Plots of the literature's figures: time against the number of pages, and losses of steps.

use anyhow::Result;
use plotters::prelude::*;

use super::super::plots::{FAINT, OURS, PEERS, Series, drawn, times};
use super::{Literature, Row};

/// The group that a plot belongs to, its file and what it shows.
pub const FILES: [(&str, &str, &str); 2] = [
    ("corpus", "pages.svg", "Time against the number of pages, until memory ends"),
    ("parity", "losses.svg", "Loss of training steps of maxsim and of PyTorch in f32"),
];

/// File name and content of the plots that a record has figures for.
pub fn all(name: &str, record: &Literature) -> Result<Vec<(&'static str, String)>> {
    let mut plots = Vec::new();
    let pages = record.group("corpus");
    if !pages.is_empty() {
        plots.push(("pages.svg", pages_plot(name, &pages)?));
    }
    if let Some(row) = record.group("parity").into_iter().find(|row| !row.curves.is_empty()) {
        plots.push(("losses.svg", losses_plot(name, row)?));
    }
    Ok(plots)
}

/// Pages of a case's words, "one query of 1024 × 5000 × 1024".
fn n_docs(row: &Row) -> Option<f64> {
    row.case.split(" × ").nth(1)?.parse().ok()
}

/// Our points, and those of every other method that has some.
fn series(rows: &[&Row]) -> Vec<Series> {
    let ours: Vec<_> = rows.iter().filter_map(|row| Some((n_docs(row)?, row.ours?))).collect();
    let mut found = vec![("maxsim".to_string(), ours)];
    for row in rows {
        for (name, figure) in &row.peers {
            let (Some(n), Some(ms)) = (n_docs(row), figure.as_f64()) else { continue };
            match found.iter_mut().find(|(known, _)| known == name) {
                Some((_, points)) => points.push((n, ms)),
                None => found.push((name.clone(), vec![(n, ms)])),
            }
        }
    }
    found
}

/// Time against the number of pages: a line ends where memory does.
fn pages_plot(gpu: &str, rows: &[&Row]) -> Result<String> {
    let title = format!("One page of 1024 tokens against n pages, {gpu}");
    times(&title, ["pages", "ms"], &series(rows))
}

/// Losses against steps.
fn losses_plot(gpu: &str, row: &Row) -> Result<String> {
    let steps = row.curves.get("step").cloned().unwrap_or_default();
    let runs: Vec<(&String, Vec<(f64, f64)>)> = row
        .curves
        .iter()
        .filter(|(name, _)| *name != "step")
        .map(|(name, losses)| (name, steps.iter().copied().zip(losses.iter().copied()).collect()))
        .collect();
    let last = steps.last().copied().unwrap_or(1.0);
    let most = runs.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(0.0, f64::max);
    drawn((900, 420), |root| {
        let mut chart = ChartBuilder::on(root)
            .caption(format!("{}, {gpu}", row.case), ("sans-serif", 18))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last, 0.0..most * 1.05)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(FAINT.mix(0.4))
            .x_desc("step")
            .y_desc("loss")
            .label_style(("sans-serif", 13))
            .draw()?;
        for (i, (name, points)) in runs.iter().enumerate() {
            // The wider line lies below: both are seen where they are one.
            let is_ours = *name == "maxsim";
            let style =
                if is_ours { OURS.stroke_width(2) } else { PEERS[i % PEERS.len()].stroke_width(6) };
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.9))
            .label_font(("sans-serif", 13))
            .draw()?;
        Ok(())
    })
}
