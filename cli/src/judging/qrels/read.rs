//! The forms of files of judgements.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::Judgements;
use crate::judging::jsonl::{self, JsonId};

/// A line, for messages.
const EXAMPLE: &str = r#"{"id": 0, "relevant": [3, 7]}"#;

/// How a file of judgements is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QrelsFormat {
    /// One JSON object per line: a query's `id`, and `relevant` with a list of document ids or an
    /// object of document ids and grades.
    Jsonl,
    /// Four columns with white space between them: query, iteration, document, grade.
    Trec,
    /// Three columns with tabs between them, behind a line of their names: query-id, corpus-id,
    /// score.
    Beir,
}

impl fmt::Display for QrelsFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QrelsFormat::Jsonl => "jsonl",
            QrelsFormat::Trec => "trec",
            QrelsFormat::Beir => "beir",
        })
    }
}

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "_id")]
    id: JsonId,
    relevant: Relevant,
    text: Option<String>,
}

/// Columns of the query, the document and the grade.
type Columns = [usize; 3];

/// Reads judgements; returns the form of files whose ids could also mean something other than
/// numbers of items.
pub(super) fn read(
    path: &Path,
    format: Option<QrelsFormat>,
    into: &mut Judgements<'_>,
) -> Result<Option<QrelsFormat>> {
    let mut found = format;
    let mut columns: Option<Columns> = None;
    jsonl::lines(path, |_, line| {
        let is_first = columns.is_none();
        let format = match found {
            Some(format) => format,
            None => *found.insert(recognised(line)?),
        };
        let columns = columns.get_or_insert([0, 1, 2]);
        match format {
            QrelsFormat::Jsonl => object(line, into),
            QrelsFormat::Trec => four_columns(text(line)?, into),
            QrelsFormat::Beir => {
                let line = text(line)?;
                let heading = if is_first { heading(line)? } else { None };
                match heading {
                    Some(named) => *columns = named,
                    None => three_columns(line, *columns, into)?,
                }
                Ok(())
            }
        }
    })?;
    Ok(found.filter(|&format| format != QrelsFormat::Jsonl))
}

fn text(line: &[u8]) -> Result<&str> {
    std::str::from_utf8(line).context("not UTF-8 text")
}

/// The form of a file with this first line. What could be two is an error, and so is what could be
/// none.
fn recognised(line: &[u8]) -> Result<QrelsFormat> {
    const FORMS: &str = "JSON objects, such as {\"id\": 0, \"relevant\": [3, 7]}; TREC qrels, such \
        as `q1 0 d7 1`; or BEIR's, which begin with the line `query-id corpus-id score`, with tabs";
    if jsonl::is_object(line) {
        return Ok(QrelsFormat::Jsonl);
    }
    let line = text(line)?;
    let tabbed: Vec<&str> = line.split('\t').collect();
    let spaced: Vec<&str> = line.split_whitespace().collect();
    if tabbed.len() == 3 && named_columns(&tabbed).is_some() {
        return Ok(QrelsFormat::Beir);
    }
    let is_whole = |text: &str| text.parse::<i64>().is_ok();
    match (spaced.as_slice(), tabbed.len()) {
        (&[_, iteration, _, grade], n_tabbed) if n_tabbed != 3 => {
            ensure!(
                (is_whole(iteration) || iteration.eq_ignore_ascii_case("Q0")) && is_whole(grade),
                "four columns, but not `query 0 document grade` as in TREC qrels; reorder them, \
                 or use --qrels-format trec if the second column is to be ignored"
            );
            Ok(QrelsFormat::Trec)
        }
        (&[_, q0, _, _, _, _], _) if q0.eq_ignore_ascii_case("Q0") => {
            bail!("six columns, as of a TREC run: --qrels takes judgements; expected {FORMS}")
        }
        (_, 3) => bail!(
            "three columns without the line `query-id corpus-id score` before them; add it, or \
             use --qrels-format beir where they are query, document and grade"
        ),
        _ => bail!("not a known form of judgements: expected {FORMS}"),
    }
}

/// A line of JSON.
fn object(line: &[u8], into: &mut Judgements<'_>) -> Result<()> {
    let line: Line = jsonl::parse(line, EXAMPLE)?;
    let (query, is_new) = into.query(&line.id.text)?;
    ensure!(is_new, "query {} appears twice", line.id.text);
    for (document, grade) in line.relevant.0 {
        into.judge(query, &document, grade)?;
    }
    if let Some(text) = &line.text {
        into.keep_text(query, text);
    }
    Ok(())
}

/// A line of TREC qrels; trec_eval does not look at the iteration either.
fn four_columns(line: &str, into: &mut Judgements<'_>) -> Result<()> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let &[query, _, document, grade] = fields.as_slice() else {
        bail!("{} columns; TREC qrels have four: query, iteration, document, grade", fields.len())
    };
    let (query, _) = into.query(query)?;
    into.judge(query, document, whole(grade)?)
}

/// A line of BEIR's qrels.
fn three_columns(line: &str, columns: Columns, into: &mut Judgements<'_>) -> Result<()> {
    let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
    ensure!(
        fields.len() == 3,
        "{} columns with tabs between them; BEIR's qrels have three: query-id, corpus-id, score",
        fields.len()
    );
    let [query, document, grade] = columns.map(|column| fields[column]);
    ensure!(!query.is_empty() && !document.is_empty(), "an id is empty");
    let grade = whole(grade)?;
    let (query, _) = into.query(query)?;
    into.judge(query, document, grade)
}

/// Reads the columns that a heading names; `None` where the line is a judgement.
fn heading(line: &str) -> Result<Option<Columns>> {
    let fields: Vec<&str> = line.split('\t').collect();
    let named = named_columns(&fields);
    let is_judgement = fields.last().is_some_and(|grade| grade.trim().parse::<f64>().is_ok());
    ensure!(
        named.is_some() || is_judgement,
        "expected `query-id corpus-id score`, with tabs, or a judgement"
    );
    Ok(named)
}

fn named_columns(fields: &[&str]) -> Option<Columns> {
    let place = |names: &[&str]| {
        fields.iter().position(|field| {
            let field = field.trim().to_lowercase().replace(['_', ' '], "-");
            names.contains(&field.as_str())
        })
    };
    Some([
        place(&["query-id", "qid"])?,
        place(&["corpus-id", "doc-id", "docid", "document-id", "pid"])?,
        place(&["score", "grade", "relevance", "rel"])?,
    ])
}

fn whole(grade: &str) -> Result<i64> {
    let found = grade.parse().ok().or_else(|| integral(grade.parse().ok()?));
    found.with_context(|| format!("the grade {grade} is no whole number"))
}

/// Document ids and their grades.
struct Relevant(Vec<(String, i64)>);

impl<'de> Deserialize<'de> for Relevant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Relevant, D::Error> {
        struct OfRelevant;
        impl<'de> Visitor<'de> for OfRelevant {
            type Value = Relevant;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of document ids, or an object of document ids and grades")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut ids: A) -> Result<Relevant, A::Error> {
                let mut relevant = Vec::new();
                while let Some(JsonId { text, .. }) = ids.next_element()? {
                    relevant.push((text, 1));
                }
                Ok(Relevant(relevant))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut grades: A) -> Result<Relevant, A::Error> {
                let mut relevant = Vec::new();
                while let Some((id, grade)) = grades.next_entry::<String, serde_json::Number>()? {
                    let grade = grade.as_i64().or_else(|| integral(grade.as_f64()?));
                    let grade = grade.ok_or_else(|| {
                        A::Error::custom(format!("the grade of document {id} is no whole number"))
                    })?;
                    relevant.push((id, grade));
                }
                Ok(Relevant(relevant))
            }
        }
        deserializer.deserialize_any(OfRelevant)
    }
}

/// The integer that a number such as 1.0 is.
fn integral(number: f64) -> Option<i64> {
    const LARGEST: f64 = u32::MAX as f64;
    (number.fract() == 0.0 && number.abs() <= LARGEST).then_some(number as i64)
}
