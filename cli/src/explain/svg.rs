//! The heat map as a picture: over the page's patches where there is one, else as a table of the
//! query's tokens and the document's.

use std::fmt::Write;

use super::page::escaped;
use super::{Explanation, Picture};

/// A cell of the table, and the room for words beside and above it, in pixels.
const CELL: usize = 14;
const LEFT: usize = 160;
const TOP: usize = 120;

/// The colour of heat.
const COLOUR: &str = "#d66400";

pub(super) fn svg(of: &Explanation) -> String {
    match &of.picture {
        Some(picture) => over_picture(of, picture),
        None => table(of),
    }
}

/// How far a value is from the least to the most.
fn heat(values: &[f32]) -> impl Fn(f32) -> f32 {
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let least = finite().fold(f32::INFINITY, f32::min);
    let most = finite().fold(f32::NEG_INFINITY, f32::max);
    move |x| if most > least { ((x - least) / (most - least)).clamp(0.0, 1.0) } else { 0.0 }
}

fn begin(width: usize, height: usize, of: &Explanation) -> String {
    let title = escaped(&format!("{} for {}: score {}", of.names[1], of.names[0], of.score));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<title>{title}</title>\n"
    )
}

/// How much of the score each patch brings.
fn over_picture(of: &Explanation, picture: &Picture) -> String {
    let [width, height] = picture.size;
    let mut out = begin(width, height, of);
    let address = &picture.address;
    let _ = writeln!(out, "<image href=\"{address}\" width=\"{width}\" height=\"{height}\"/>");
    let shares = of.shares();
    let heat = heat(&shares);
    let size = [
        width as f64 / f64::from(picture.grid.columns),
        height as f64 / f64::from(picture.grid.rows),
    ];
    for (word, &share) in of.document.iter().zip(&shares) {
        if let Some(place) = picture.place(word.token) {
            let [x, y] = [0, 1].map(|i| f64::from(place[i]) * size[i]);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{:.2}\" \
                 fill=\"{COLOUR}\" fill-opacity=\"{:.3}\">\
                 <title>token {}: {share:.3}</title></rect>",
                size[0],
                size[1],
                0.7 * heat(share),
                word.token
            );
        }
    }
    out + "</svg>\n"
}

/// A row for each token of the query, a column for each of the document, what was chosen framed.
fn table(of: &Explanation) -> String {
    let width = LEFT + CELL * of.document.len() + TOP;
    let mut out = begin(width, TOP + CELL * of.query.len() + CELL, of);
    for (t, word) in of.document.iter().enumerate() {
        let [x, y] = [LEFT + CELL * t + CELL / 2 + 4, TOP - 4];
        let label = escaped(&word.label());
        let _ = writeln!(out, "<text transform=\"translate({x} {y}) rotate(-60)\">{label}</text>");
    }
    for (s, of_query) in of.query.iter().enumerate() {
        let y = TOP + CELL * s;
        let label = escaped(&of_query.word.label());
        let [x, base] = [LEFT - 6, y + CELL - 3];
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{base}\" text-anchor=\"end\">{label}</text>");
        let heat = heat(of.row(s));
        for (t, &similarity) in of.row(s).iter().enumerate() {
            let frame = match of_query.chosen == Some(t) {
                true => " stroke=\"#000\" stroke-width=\"1.5\"",
                false => "",
            };
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"{COLOUR}\" \
                 fill-opacity=\"{:.3}\"{frame}><title>{similarity:.4}</title></rect>",
                LEFT + CELL * t,
                heat(similarity),
            );
        }
    }
    out + "</svg>\n"
}
