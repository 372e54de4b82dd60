//! The plots, as SVG.

use std::collections::BTreeSet;
use std::sync::Once;

use anyhow::{Result, anyhow};
use epaint_default_fonts::UBUNTU_LIGHT;
use plotters::coord::combinators::LogCoord;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::markdown::read_rate;
use super::record::{Record, Row};
use super::{Gpu, literature};

pub(super) const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const SLOWER: RGBColor = RGBColor(0xc0, 0x50, 0x30);
pub(super) const PEERS: [RGBColor; 5] = [
    RGBColor(0xe0, 0x8a, 0x1e),
    RGBColor(0x5a, 0x9c, 0x4a),
    RGBColor(0x8a, 0x5f, 0xa8),
    RGBColor(0x70, 0x70, 0x70),
    RGBColor(0xc7, 0x4b, 0x8a),
];
pub(super) const FAINT: RGBColor = RGBColor(0xb0, 0xb0, 0xb0);

/// File name and content of every plot that a GPU's records have figures for.
pub fn all(gpu: &Gpu) -> Result<Vec<(&'static str, String)>> {
    let mut plots = Vec::new();
    for (title, record) in &gpu.records {
        if *title != "Forward" {
            continue;
        }
        let name = record.gpu.as_deref().unwrap_or(&gpu.folder);
        if !record.rows.is_empty() {
            plots.push(("speedup.svg", speedup(name, record)?));
            plots.push(("roofline.svg", roofline(name, record)?));
        }
        if !record.scaling.is_empty() {
            plots.push(("documents.svg", documents(name, record)?));
        }
    }
    if let Some(record) = &gpu.literature {
        plots.extend(literature::plots::all(record.card(&gpu.folder), record)?);
    }
    Ok(plots)
}

/// A bar per case: the best peer's time over ours.
fn speedup(gpu: &str, record: &Record) -> Result<String> {
    const BAR: i32 = 22;
    const LABELS: i32 = 430;
    const TOP: i32 = 40;
    let rows: Vec<&Row> = record.rows.iter().filter(|row| row.x_best_peer.is_some()).collect();
    let most = rows.iter().filter_map(|row| row.x_best_peer).fold(1.5, f64::max);
    let (width, height) = (960, TOP + BAR * rows.len() as i32 + 20);
    let per_unit = f64::from(width - LABELS - 70) / most;
    let at = |x: f64| LABELS + (x * per_unit).round() as i32;
    drawn((width as u32, height as u32), |root| {
        let label = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        let right = label(13).pos(Pos::new(HPos::Right, VPos::Center));
        let left = label(13).pos(Pos::new(HPos::Left, VPos::Center));
        let title = format!("Times as fast as the faster peer, {gpu}");
        root.draw(&Text::new(title, (12, 10), label(17)))?;
        for (i, row) in rows.iter().enumerate() {
            let Some(x) = row.x_best_peer else { continue };
            let top = TOP + BAR * i as i32;
            let middle = top + BAR / 2;
            let color = if x < 1.0 { SLOWER } else { OURS };
            let corners = [(LABELS, top + 3), (at(x), top + BAR - 3)];
            root.draw(&Rectangle::new(corners, color.filled()))?;
            root.draw(&Text::new(row.case.clone(), (LABELS - 8, middle), right.clone()))?;
            // Right of the line at 1 too, which would cross the figure.
            root.draw(&Text::new(format!("{x:.2}"), (at(x.max(1.0)) + 6, middle), left.clone()))?;
        }
        let line = vec![(at(1.0), TOP - 4), (at(1.0), TOP + BAR * rows.len() as i32 + 4)];
        root.draw(&PathElement::new(line, BLACK.stroke_width(1)))?;
        Ok(())
    })
}

/// Arithmetic rate against arithmetic intensity, ours and the best peer's, below two roofs.
fn roofline(gpu: &str, record: &Record) -> Result<String> {
    let rows = record.rows.iter().filter(|row| row.element != "f32" && row.bytes > 0.0);
    let rows: Vec<&Row> = rows.filter(|row| row.ours_ms.is_some()).collect();
    let tera = |row: &Row, ms: f64| row.flop / ms / 1e9;
    let compute = record.roofs.get("f16").and_then(|timed| timed.tflop_per_s);
    let memory = read_rate(record);
    let intensities: Vec<f64> = rows.iter().map(|row| row.flop / row.bytes).collect();
    let (low, high) = span(&intensities, 1.6);
    let rates: Vec<f64> = rows
        .iter()
        .flat_map(|row| {
            [row.ours_ms, row.best_peer_ms].into_iter().flatten().map(|ms| tera(row, ms))
        })
        .chain(compute)
        .collect();
    let (least, most) = span(&rates, 1.6);
    drawn((900, 560), |root| {
        let mut chart = log_chart(
            root,
            &format!("Roofline, f16 and bf16, {gpu}"),
            [(low, high), (least, most)],
            ["FLOP per byte of documents", "TFLOP/s"],
        )?;
        if let Some(compute) = compute {
            let line = vec![(low, compute), (high, compute)];
            chart
                .draw_series(LineSeries::new(line, BLACK.stroke_width(2)))?
                .label(format!("cuBLAS f16, 8192³: {compute:.0} TFLOP/s"))
                .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLACK.stroke_width(2)));
        }
        if let Some(memory) = memory {
            let rate = |intensity: f64| intensity * memory / 1e12;
            // From the lower to the upper or the left to the right end of the plot.
            let first = low.max(least * 1e12 / memory);
            let last = high.min(most * 1e12 / memory);
            let line = vec![(first, rate(first)), (last, rate(last))];
            chart
                .draw_series(LineSeries::new(line, FAINT.stroke_width(2)))?
                .label(format!("reading the documents: {:.2} TB/s", memory / 1e12))
                .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], FAINT.stroke_width(2)));
        }
        let peers = rows
            .iter()
            .filter_map(|row| Some((row.flop / row.bytes, tera(row, row.best_peer_ms?))));
        chart
            .draw_series(peers.map(|point| Cross::new(point, 4, PEERS[0].stroke_width(2))))?
            .label("best peer")
            .legend(|(x, y)| Cross::new((x + 8, y), 4, PEERS[0].stroke_width(2)));
        let ours =
            rows.iter().filter_map(|row| Some((row.flop / row.bytes, tera(row, row.ours_ms?))));
        chart
            .draw_series(ours.map(|point| Circle::new(point, 4, OURS.filled())))?
            .label("maxsim")
            .legend(|(x, y)| Circle::new((x + 8, y), 4, OURS.filled()));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.9))
            .label_font(("sans-serif", 13))
            .draw()?;
        Ok(())
    })
}

/// Time against the number of documents.
fn documents(gpu: &str, record: &Record) -> Result<String> {
    let names: BTreeSet<&str> =
        record.scaling.iter().flat_map(|point| point.results.keys()).map(String::as_str).collect();
    let series = |name: &str| -> Series {
        let of = |point: &super::record::Point| Some((point.n_docs, point.results.get(name)?.ms?));
        (name.to_string(), record.scaling.iter().filter_map(of).collect())
    };
    let all: Vec<Series> = names.iter().map(|name| series(name)).collect();
    let doc_len = record.scaling[0].doc_len;
    let title = format!("One query of 32 tokens against n documents of {doc_len}, {gpu}");
    times(&title, ["documents", "ms"], &all)
}

/// A method's name, and its points.
pub(super) type Series = (String, Vec<(f64, f64)>);

/// Lines of times, both axes logarithmic.
pub(super) fn times(title: &str, names: [&str; 2], series: &[Series]) -> Result<String> {
    let axis = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
        series.iter().flat_map(|(_, points)| points.iter().map(of)).collect()
    };
    let ranges = [span(&axis(|point| point.0), 1.3), span(&axis(|point| point.1), 1.5)];
    drawn((900, 560), |root| {
        let mut chart = log_chart(root, title, ranges, names)?;
        let mut colors = PEERS.iter().cycle();
        for (name, points) in series {
            let color = match name.as_str() {
                "maxsim" => OURS,
                _ => *colors.next().unwrap_or(&FAINT),
            };
            let style = color.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            chart.draw_series(points.iter().map(|at| Circle::new(*at, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.9))
            .label_font(("sans-serif", 13))
            .draw()?;
        Ok(())
    })
}

/// A number without the digits that it does not need.
fn short(value: &f64) -> String {
    format!("{value}")
}

/// Least and largest value with some room, for a logarithmic axis.
fn span(values: &[f64], room: f64) -> (f64, f64) {
    let usable = || values.iter().copied().filter(|value| *value > 0.0);
    let (least, most) = usable().fold((f64::INFINITY, 0.0), |(l, m), v| (v.min(l), v.max(m)));
    if most == 0.0 { (1.0, 10.0) } else { (least / room, most * room) }
}

type Root<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Failure = Box<dyn std::error::Error>;
type LogAxes = Cartesian2d<LogCoord<f64>, LogCoord<f64>>;
type LogChart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, LogAxes>;

/// A chart with two logarithmic axes, each with its range and its name.
fn log_chart<'a, 'b>(
    root: &'a Root<'b>,
    title: &str,
    [(low, high), (least, most)]: [(f64, f64); 2],
    [x_name, y_name]: [&str; 2],
) -> std::result::Result<LogChart<'a, 'b>, Failure> {
    let mut chart = ChartBuilder::on(root)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((low..high).log_scale(), (least..most).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(FAINT.mix(0.4))
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .x_desc(x_name)
        .y_desc(y_name)
        .label_style(("sans-serif", 13))
        .draw()?;
    Ok(chart)
}

/// An SVG of this size, on white.
pub(super) fn drawn(
    size: (u32, u32),
    draw: impl FnOnce(&Root<'_>) -> std::result::Result<(), Failure>,
) -> Result<String> {
    static FONT: Once = Once::new();
    FONT.call_once(|| {
        // Refused only if it is no font; drawing says so then.
        let _ = register_font("sans-serif", FontStyle::Normal, UBUNTU_LIGHT);
    });
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let fail = |error: Failure| anyhow!("drawing a plot: {error}");
        root.fill(&WHITE).map_err(|error| fail(error.into()))?;
        draw(&root).map_err(fail)?;
        root.present().map_err(|error| fail(error.into()))?;
    }
    Ok(svg)
}
