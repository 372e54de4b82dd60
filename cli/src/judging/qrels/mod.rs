//! Relevance judgements: which documents are relevant to which query, and how much.

mod read;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::judging::ids::{Ids, number_warning, some_of};
use crate::judging::metrics::DEPTH;
use crate::texts::{beginning, counted};

pub use read::QrelsFormat;

/// Columns kept of a query's text.
const TEXT_COLUMNS: usize = 200;

/// Relevant documents of each query, how relevant they are, and the queries' texts.
#[derive(Clone, Debug, Default)]
pub struct Qrels {
    by_item: HashMap<u32, Judged>,
    warnings: Vec<String>,
}

/// Judgements of one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The relevant documents of the token file with their grades, rising.
    relevant: Vec<(u32, u32)>,
    /// Grades of the most relevant documents, falling, in the token file or not.
    best_grades: Vec<u32>,
    n_relevant: usize,
    text: Option<String>,
}

impl Qrels {
    /// Reads a file of judgements, in the form that its content shows unless `format` says so.
    ///
    /// Where queries or documents have names, those of the file that no item has are counted in
    /// [`Qrels::warnings`], and it is an error where that are all; where items have no names, an
    /// id that is no item's number is an error.
    pub fn open(
        path: &Path,
        format: Option<QrelsFormat>,
        queries: &Ids,
        documents: &Ids,
    ) -> Result<Qrels> {
        let mut judgements = Judgements::new(queries, documents);
        let format = read::read(path, format, &mut judgements)?;
        judgements.into_qrels(path, format)
    }

    /// Judgements of a query.
    pub fn get(&self, query: u32) -> Option<&Judged> {
        self.by_item.get(&query)
    }

    /// Warnings for a user before they believe the metrics: a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Judged {
    /// The grade of a document that is relevant, from 1.
    pub fn grade(&self, document: u32) -> Option<u32> {
        let place = self.relevant.binary_search_by_key(&document, |&(document, _)| document);
        place.ok().map(|place| self.relevant[place].1)
    }

    /// Whether a document is relevant to the query.
    pub fn is_relevant(&self, document: u32) -> bool {
        self.grade(document).is_some()
    }

    /// How many documents are relevant, in the token file or not.
    pub fn n_relevant(&self) -> usize {
        self.n_relevant
    }

    /// The grades of the ten most relevant documents, in the token file or not, falling.
    pub fn best_grades(&self) -> &[u32] {
        &self.best_grades
    }

    /// The query's text, printable, where the file gives it.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

/// Judgements, collected line by line.
struct Judgements<'a> {
    queries: &'a Ids,
    documents: &'a Ids,
    by_item: HashMap<u32, Collected>,
    /// Queries that are not in the token file, in the order of the file of judgements.
    absent: Vec<Box<str>>,
    absent_set: HashSet<Box<str>>,
}

#[derive(Default)]
struct Collected {
    grades: HashMap<Box<str>, i64>,
    text: Option<String>,
}

impl<'a> Judgements<'a> {
    fn new(queries: &'a Ids, documents: &'a Ids) -> Judgements<'a> {
        let (by_item, absent, absent_set) = Default::default();
        Judgements { queries, documents, by_item, absent, absent_set }
    }

    /// A query's item, where the token file has it, and whether it was not named before.
    fn query(&mut self, id: &str) -> Result<(Option<u32>, bool)> {
        if let Some(item) = self.queries.find(id) {
            let is_new = !self.by_item.contains_key(&item);
            self.by_item.entry(item).or_default();
            return Ok((Some(item), is_new));
        }
        ensure!(self.queries.are_names(), "{}", self.queries.unknown(id));
        let is_new = self.absent_set.insert(id.into());
        if is_new {
            self.absent.push(id.into());
        }
        Ok((None, is_new))
    }

    /// Takes the judgement of a document for a query.
    fn judge(&mut self, query: Option<u32>, document: &str, grade: i64) -> Result<()> {
        let is_known = self.documents.are_names() || self.documents.find(document).is_some();
        ensure!(is_known, "relevant {}", self.documents.unknown(document));
        ensure!(grade <= i64::from(u32::MAX), "the grade {grade} is too large");
        let Some(query) = query else { return Ok(()) };
        let before = self.by_item.entry(query).or_default().grades.insert(document.into(), grade);
        match before {
            Some(before) if before != grade => bail!(
                "document {document} has the grade {grade} for this query, and {before} before"
            ),
            _ => Ok(()),
        }
    }

    /// Keeps the text of a query.
    fn keep_text(&mut self, query: Option<u32>, text: &str) {
        if let Some(query) = query {
            let text = beginning(text, TEXT_COLUMNS);
            self.by_item.entry(query).or_default().text = Some(text);
        }
    }

    fn into_qrels(self, path: &Path, format: Option<QrelsFormat>) -> Result<Qrels> {
        let file = path.display();
        let n_queries = self.by_item.len() + self.absent.len();
        let queries = |n: usize| counted(n as u64, "judged query", "judged queries");
        ensure!(
            !self.by_item.is_empty() || self.absent.is_empty(),
            "{file}: none of its {} ({}) is among the queries; {}",
            queries(n_queries),
            some_of(&self.absent),
            self.queries.unknown(&self.absent[0])
        );
        let mut warnings = Vec::new();
        if let Some(format) = format {
            let file = file.to_string();
            warnings.extend(number_warning(
                &file,
                &format.to_string(),
                self.queries,
                self.documents,
            ));
        }
        if !self.absent.is_empty() {
            warnings.push(format!(
                "{file}: judged queries that are not among the queries: {} of {n_queries} ({}); \
                 they are left out of the means",
                self.absent.len(),
                some_of(&self.absent)
            ));
        }
        let mut missing: Vec<Box<str>> = Vec::new();
        let (mut n_relevant, mut n_without) = (0, 0);
        let mut by_item = HashMap::with_capacity(self.by_item.len());
        for (item, collected) in self.by_item {
            let judged = collected.judged(self.documents, &mut missing);
            n_relevant += judged.n_relevant;
            n_without += usize::from(judged.n_relevant == 0);
            by_item.insert(item, judged);
        }
        missing.sort_unstable();
        ensure!(
            missing.is_empty() || missing.len() < n_relevant,
            "{file}: none of its {} ({}) is among the documents; {}",
            counted(n_relevant as u64, "relevant document", "relevant documents"),
            some_of(&missing),
            self.documents.unknown(&missing[0])
        );
        if !missing.is_empty() {
            warnings.push(format!(
                "{file}: relevant documents that are not among the documents: {} of \
                 {n_relevant} ({}); they count as not found",
                missing.len(),
                some_of(&missing)
            ));
        }
        if n_without > 0 {
            warnings.push(format!(
                "{file}: judged queries without a relevant document: {n_without}; they are left \
                 out of the means, where trec_eval counts 0"
            ));
        }
        Ok(Qrels { by_item, warnings })
    }
}

impl Collected {
    /// Sorts what was read; relevant documents that are not there are added to `missing`.
    fn judged(self, documents: &Ids, missing: &mut Vec<Box<str>>) -> Judged {
        let (mut relevant, mut best_grades) = (Vec::new(), Vec::new());
        for (id, grade) in self.grades {
            // No larger one was taken.
            let Ok(grade @ 1..) = u32::try_from(grade) else { continue };
            best_grades.push(grade);
            match documents.find(&id) {
                Some(item) => relevant.push((item, grade)),
                None => missing.push(id),
            }
        }
        let n_relevant = best_grades.len();
        relevant.sort_unstable();
        best_grades.sort_unstable_by(|a, b| b.cmp(a));
        best_grades.truncate(DEPTH);
        Judged { relevant, best_grades, n_relevant, text: self.text }
    }
}
