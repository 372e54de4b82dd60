//! A page that opens from disk: the tokens of the query are buttons, and colour the document's by
//! how similar they are to the one that is pressed.

use std::fmt::Write;

use super::{Explanation, Picture};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

pub(super) fn html(of: &Explanation) -> String {
    let [query, document] = of.names.each_ref().map(|name| escaped(name));
    let score = of.score;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{document} for {query}</title>\n<style>\n{STYLE}</style>\n\
         <h1>{document} for {query}</h1>\n\
         <p>Score <strong>{score}</strong>: for each of the query's {} tokens the largest \
         similarity to one of the document's {}, added.</p>\n",
        of.query.len(),
        of.document.len(),
    );
    out += "<h2 id=\"query\">Query</h2>\n<p id=\"hint\">Press a token to see how similar every \
            token of the document is to it; press it again for what all of them chose.</p>\n\
            <p class=\"tokens\" role=\"group\" aria-labelledby=\"query\" \
            aria-describedby=\"hint\">\n";
    for (s, of_query) in of.query.iter().enumerate() {
        let (word, similarity) = (escaped(&of_query.word.label()), of_query.similarity);
        let _ = writeln!(
            out,
            "<button type=\"button\" aria-pressed=\"false\" data-s=\"{s}\">{word} \
             <small>{similarity:.3}</small></button>"
        );
    }
    out += "</p>\n<p id=\"said\" role=\"status\"></p>\n";
    if let Some(picture) = &of.picture {
        out += &figure(of, picture);
    }
    out += "<h2>Document</h2>\n<p class=\"tokens\" id=\"document\">\n";
    let is_patch = |token| of.picture.as_ref().is_some_and(|p| p.place(token).is_some());
    let shares = of.shares();
    for (t, word) in of.document.iter().enumerate().filter(|(_, word)| !is_patch(word.token)) {
        let (label, number, share) = (escaped(&word.label()), word.token, shares[t]);
        let _ = writeln!(
            out,
            "<span data-t=\"{t}\" title=\"token {number}: {share:.3} of the score\">{label}</span>"
        );
    }
    out += "</p>\n<h2>Matches</h2>\n<table>\n<tr><th>token of the query<th>similarity<th>token of \
            the document<th>number\n";
    for of_query in &of.query {
        let chosen = of_query.chosen.map(|chosen| &of.document[chosen]);
        let _ = writeln!(
            out,
            "<tr><td>{}<td>{:.4}<td>{}<td>{}",
            escaped(&of_query.word.label()),
            of_query.similarity,
            chosen.map_or_else(|| "none".into(), |word| escaped(&word.label())),
            chosen.map_or_else(String::new, |word| word.token.to_string()),
        );
    }
    out += "</table>\n<script>\n\"use strict\";\nconst similarities = [";
    for s in 0..of.query.len() {
        let row: Vec<String> = of.row(s).iter().map(|&x| number(x)).collect();
        let _ = write!(out, "[{}],", row.join(","));
    }
    let shares: Vec<String> = shares.iter().map(|&x| number(x)).collect();
    let chosen = of.query.iter().map(|of| of.chosen.map_or(-1, |chosen| chosen as i64));
    let chosen: Vec<String> = chosen.map(|chosen| chosen.to_string()).collect();
    let _ = writeln!(
        out,
        "];\nconst shares = [{}];\nconst chosen = [{}];\n{SCRIPT}</script>\n</html>",
        shares.join(","),
        chosen.join(","),
    );
    out
}

/// The picture with a cell above each of its patches.
fn figure(of: &Explanation, picture: &Picture) -> String {
    let [width, height] = picture.size;
    let mut out = format!(
        "<figure style=\"max-width: {width}px; aspect-ratio: {width} / {height}\">\n\
         <img src=\"{}\" alt=\"the document\">\n\
         <div class=\"patches\" style=\"grid-template: repeat({}, 1fr) / repeat({}, 1fr)\">\n",
        picture.address, picture.grid.rows, picture.grid.columns
    );
    for (t, word) in of.document.iter().enumerate() {
        if let Some([column, row]) = picture.place(word.token) {
            let place = format!("{} / {}", row + 1, column + 1);
            let number = word.token;
            let _ = writeln!(
                out,
                "<i data-t=\"{t}\" style=\"grid-area: {place}\" title=\"token {number}\"></i>"
            );
        }
    }
    out + "</div>\n</figure>\n"
}

/// Text that is no markup.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // Controls, which neither HTML nor XML may have.
            c if c.is_control() => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

/// A number of JavaScript's.
fn number(x: f32) -> String {
    if x.is_finite() {
        format!("{x:.4}")
    } else if x.is_nan() {
        "NaN".into()
    } else {
        format!("{}Infinity", if x < 0.0 { "-" } else { "" })
    }
}
