//! Reads candidates: for each query the documents that a first stage has found.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::judging::ids::{Ids, number_warning, some_of};
use crate::judging::jsonl::{self, JsonId};
use crate::texts::counted;

/// An example of a line, for messages.
const EXAMPLE: &str = r#"{"id": 0, "documents": [3, 7]}"#;

/// The forms of files, for messages.
const FORMS: &str = "a TREC run, such as `q1 Q0 d7 1 23.5 name`; or JSON objects, such as \
                     {\"id\": 0, \"documents\": [3, 7]}";

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "_id")]
    id: JsonId,
    documents: Vec<JsonId>,
}

/// Reads a TREC run, or one JSON object per line with `id` and `documents`; the first line shows
/// which. Gives the pairs `[document, query]` of documents that are left, rising, and adds to
/// `warnings`.
pub(super) fn read(
    path: &Path,
    [queries, documents]: [&Ids; 2],
    is_left: impl Fn(u32) -> bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<[u32; 2]>> {
    let mut found = Candidates::new(queries, documents);
    let mut objects = None;
    jsonl::lines(path, |number, line| {
        if *objects.get_or_insert_with(|| jsonl::is_object(line)) {
            return found.object(number, jsonl::parse(line, EXAMPLE)?);
        }
        found.of_run(number, std::str::from_utf8(line).context("not UTF-8 text")?)
    })?;
    let file = path.display().to_string();
    if objects == Some(false) {
        warnings.extend(number_warning(&file, "trec", queries, documents));
    }
    found.into_pairs(&file, is_left, warnings)
}

/// Candidates, collected line by line.
struct Candidates<'a> {
    queries: &'a Ids,
    documents: &'a Ids,
    /// Document, query, and line.
    found: Vec<(u32, u32, u64)>,
    /// Whether each query has a line.
    has_line: Vec<bool>,
    /// Ids of queries that are not there.
    absent: BTreeSet<Box<str>>,
    /// Ids of candidates of queries that are there, which are no documents.
    missing: Vec<Box<str>>,
}

impl<'a> Candidates<'a> {
    fn new(queries: &'a Ids, documents: &'a Ids) -> Candidates<'a> {
        let (found, absent, missing) = Default::default();
        let has_line = vec![false; queries.n_items()];
        Candidates { queries, documents, found, has_line, absent, missing }
    }

    /// Takes a line of JSON.
    fn object(&mut self, number: u64, line: Line) -> Result<()> {
        let query = self.query(&line.id.text)?;
        let is_new = match query {
            Some(query) => !std::mem::replace(&mut self.has_line[query as usize], true),
            None => self.absent.insert(line.id.text.as_str().into()),
        };
        ensure!(is_new, "query {} appears twice", line.id.text);
        line.documents.iter().try_for_each(|id| self.candidate(number, query, &id.text))
    }

    /// Takes a line of a TREC run.
    fn of_run(&mut self, number: u64, line: &str) -> Result<()> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let &[query, _, document, rank, score, _] = fields.as_slice() else {
            match fields.len() {
                4 => bail!("four columns, as of TREC qrels: --candidates takes {FORMS}"),
                n => bail!("{}: expected {FORMS}", counted(n as u64, "column", "columns")),
            }
        };
        let are_numbers = rank.parse::<i64>().is_ok() && score.parse::<f64>().is_ok();
        ensure!(
            are_numbers,
            "the rank `{rank}` and the score `{score}` are not numbers: expected {FORMS}"
        );
        let id = query;
        let query = self.query(id)?;
        match query {
            Some(query) => self.has_line[query as usize] = true,
            None => drop(self.absent.insert(id.into())),
        }
        self.candidate(number, query, document)
    }

    /// The item of a query, where it is there.
    fn query(&self, id: &str) -> Result<Option<u32>> {
        let query = self.queries.find(id);
        ensure!(query.is_some() || self.queries.are_names(), "{}", self.queries.unknown(id));
        Ok(query)
    }

    fn candidate(&mut self, number: u64, query: Option<u32>, id: &str) -> Result<()> {
        let document = self.documents.find(id);
        ensure!(document.is_some() || self.documents.are_names(), "{}", self.documents.unknown(id));
        let Some(query) = query else { return Ok(()) };
        match document {
            Some(document) => self.found.push((document, query, number)),
            None => self.missing.push(id.into()),
        }
        Ok(())
    }

    fn into_pairs(
        mut self,
        file: &str,
        is_left: impl Fn(u32) -> bool,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<[u32; 2]>> {
        let n_queries = self.has_line.iter().filter(|&&has_line| has_line).count();
        let absent = Vec::from_iter(std::mem::take(&mut self.absent));
        let n_lines = n_queries + absent.len();
        ensure!(n_lines > 0, "{file}: no candidates; expected {FORMS}");
        ensure!(
            n_queries > 0,
            "{file}: none of its {} ({}) is among the queries; {}",
            counted(n_lines as u64, "query", "queries"),
            some_of(&absent),
            self.queries.unknown(&absent[0])
        );
        let n_candidates = self.found.len() + self.missing.len();
        ensure!(n_candidates > 0, "{file}: no candidates of any of the queries");
        self.missing.sort_unstable();
        ensure!(
            !self.found.is_empty(),
            "{file}: none of its {} ({}) is among the documents; {}",
            counted(n_candidates as u64, "candidate", "candidates"),
            some_of(&self.missing),
            self.documents.unknown(&self.missing[0])
        );
        self.check_once(file)?;
        if !absent.is_empty() {
            warnings.push(format!(
                "{file}: queries with candidates that are not among the queries: {} of {n_lines} \
                 ({})",
                absent.len(),
                some_of(&absent)
            ));
        }
        if !self.missing.is_empty() {
            warnings.push(format!(
                "{file}: candidates that are not among the documents: {} of {n_candidates} ({}); \
                 they are left out",
                self.missing.len(),
                some_of(&self.missing)
            ));
        }
        let left = self.found.iter().filter(|(document, ..)| is_left(*document));
        let pairs: Vec<[u32; 2]> = left.map(|&(document, query, _)| [document, query]).collect();
        ensure!(
            !pairs.is_empty(),
            "{file}: none of its candidates is left by --include and --exclude"
        );
        warnings.extend(self.bare(file, &pairs));
        Ok(pairs)
    }

    /// Sorts candidates, and refuses those that are named more than once.
    fn check_once(&mut self, file: &str) -> Result<()> {
        self.found.sort_unstable();
        let same = |pair: &&[(u32, u32, u64)]| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1);
        // The first line that is one too many.
        let twice = self.found.windows(2).filter(same).min_by_key(|pair| pair[1].2);
        if let Some(&[(document, query, before), (.., line)]) = twice {
            bail!(
                "{file}, line {line}: document {} is a candidate of query {} already, in line \
                 {before}",
                self.documents.get(document),
                self.queries.get(query)
            );
        }
        Ok(())
    }

    /// Warns of queries for which nothing is ranked.
    fn bare(&self, file: &str, pairs: &[[u32; 2]]) -> Option<String> {
        let mut is_bare = vec![true; self.has_line.len()];
        pairs.iter().for_each(|[_, query]| is_bare[*query as usize] = false);
        let bare = (0u32..).zip(&is_bare).filter(|(_, is_bare)| **is_bare);
        let bare: Vec<Box<str>> =
            bare.map(|(query, _)| self.queries.get(query).to_string().into()).collect();
        (!bare.is_empty()).then(|| {
            format!(
                "{file}: queries without candidates: {} of {} ({}); nothing is ranked for them",
                bare.len(),
                self.has_line.len(),
                some_of(&bare)
            )
        })
    }
}
