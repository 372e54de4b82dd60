//! The loss of every step, as CSV and as SVG.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use epaint_default_fonts::UBUNTU_LIGHT;
use plotters::prelude::*;

const SIZE: (u32, u32) = (800, 500);

/// Steps that the smoothed curve is the mean of.
const WINDOW: usize = 25;

/// Writes a line per step: its number, from 1, and its loss.
pub fn write_csv(path: &Path, losses: &[f32]) -> Result<()> {
    let lines = (1..).zip(losses).map(|(step, loss)| format!("{step},{loss}\n"));
    let text = String::from("step,loss\n") + &lines.collect::<String>();
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Plots the losses and their running mean.
pub fn write_svg(path: &Path, losses: &[f32]) -> Result<()> {
    // Once a process: a second font of the name would replace the first.
    plotters::style::register_font("sans-serif", FontStyle::Normal, UBUNTU_LIGHT)
        .map_err(|_| anyhow!("the plot's font cannot be read"))?;
    let largest = losses.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("In-batch contrastive loss", ("sans-serif", 22))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(60)
        .build_cartesian_2d(1..losses.len().max(2), 0.0..1.05 * largest)?;
    let labels = ("sans-serif", 15);
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc("loss")
        .label_style(labels)
        .light_line_style(TRANSPARENT)
        .draw()?;
    chart.draw_series(LineSeries::new((1..).zip(losses.iter().copied()), BLUE.mix(0.3)))?;
    let means = losses.windows(WINDOW).map(|window| window.iter().sum::<f32>() / WINDOW as f32);
    // Each mean where its window is, not where it ends.
    let means = (1 + WINDOW / 2..).zip(means);
    chart.draw_series(LineSeries::new(means, BLUE.stroke_width(2)))?;
    area.present().with_context(|| format!("writing {}", path.display()))
}
