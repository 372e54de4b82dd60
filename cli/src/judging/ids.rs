//! Ids of queries and documents.
//!
//! Items of a token file are numbered from 0, and without anything else that number is an item's
//! id. Names for them, strings, come from a file with one per item, in the order of the token
//! file, or from the token file itself.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::judging::jsonl::{self, JsonId};
use crate::texts::{beginning, counted};

/// Characters kept of a query's text.
const TEXT_CHARS: usize = 200;

/// An example of a line of a file of ids, for messages.
const EXAMPLE: &str = r#"{"id": "a"}"#;

/// Side that items belong to, for messages and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The queries.
    Queries,
    /// The documents.
    Documents,
}

impl Side {
    /// One of them.
    pub fn one(self) -> &'static str {
        match self {
            Side::Queries => "query",
            Side::Documents => "document",
        }
    }

    /// Several of them.
    pub fn many(self) -> &'static str {
        match self {
            Side::Queries => "queries",
            Side::Documents => "documents",
        }
    }

    /// The option that gives their ids.
    pub fn option(self) -> &'static str {
        match self {
            Side::Queries => "--query-ids",
            Side::Documents => "--document-ids",
        }
    }
}

/// The ids of the items of one token file.
#[derive(Clone, Debug)]
pub struct Ids {
    side: Side,
    n_items: usize,
    named: Option<Named>,
}

#[derive(Clone, Debug)]
struct Named {
    names: Vec<Box<str>>,
    /// Items by the order of their names.
    order: Vec<u32>,
    source: Source,
    texts: HashMap<u32, String>,
}

/// Source of the names.
#[derive(Clone, Debug)]
enum Source {
    /// A text file, and the line of each name.
    Lines(String, Vec<u64>),
    /// The token file.
    Tokens(String),
}

/// An id as it is written to JSON: a number, or a string where items have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Id<'a> {
    /// The number of an item without a name.
    Number(u32),
    /// A name.
    Name(&'a str),
}

impl std::fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Id::Number(number) => write!(f, "{number}"),
            Id::Name(name) => f.write_str(name),
        }
    }
}

#[derive(Deserialize)]
struct Line {
    #[serde(alias = "_id")]
    id: JsonId,
    text: Option<String>,
}

impl Ids {
    /// The numbers of items.
    pub fn numbers(side: Side, n_items: usize) -> Ids {
        Ids { side, n_items, named: None }
    }

    /// Reads a file of one id per line, or of one JSON object per line with `id` or `_id`, and
    /// for queries optionally their `text`.
    pub fn open(path: &Path, side: Side, n_items: usize) -> Result<Ids> {
        let (mut names, mut texts) = (Collected::default(), HashMap::new());
        lines(path, |number, id, text| {
            if let (Side::Queries, Some(text)) = (side, text) {
                texts.insert(names.len(), beginning(text, TEXT_CHARS));
            }
            names.push(id, number)
        })?;
        names.into_ids(path, side, n_items, texts)
    }

    /// Ids that a token file gives its items: names, where it has any.
    pub fn stored(
        names: Option<Vec<String>>,
        path: &Path,
        side: Side,
        n_items: usize,
    ) -> Result<Ids> {
        let Some(names) = names else { return Ok(Ids::numbers(side, n_items)) };
        let file = path.display().to_string();
        for (item, name) in names.iter().enumerate() {
            check(name).with_context(|| format!("{file}: the id of {} {item}", side.one()))?;
        }
        let names: Vec<Box<str>> = names.into_iter().map(String::into_boxed_str).collect();
        let named = Named::new(names, Source::Tokens(file), HashMap::new())?;
        Ok(Ids { side, n_items, named: Some(named) })
    }

    /// Side of the items.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Number of items.
    pub fn n_items(&self) -> usize {
        self.n_items
    }

    /// Whether items have names.
    pub fn are_names(&self) -> bool {
        self.named.is_some()
    }

    /// Names as a token file has them in its metadata: a JSON array, of numbers where all names
    /// are.
    pub fn note(&self) -> Result<Option<String>> {
        // A header has at most 100 MB, and describes tensors, too.
        const MAX_BYTES: usize = 90_000_000;
        let Some(named) = &self.named else { return Ok(None) };
        let number = |name: &str| name.parse::<i64>().ok().filter(|n| n.to_string() == *name);
        let numbers: Option<Vec<i64>> = named.names.iter().map(|name| number(name)).collect();
        let text = match numbers {
            Some(numbers) => serde_json::to_string(&numbers)?,
            None => serde_json::to_string(&named.names)?,
        };
        // Quotes are escaped once more in the header.
        let n_bytes = text.len() + text.matches(['"', '\\']).count();
        ensure!(
            n_bytes <= MAX_BYTES,
            "{}: its ids take {n_bytes} bytes, more than the header of a file can hold; leave them \
             out, and give --document-ids to `maxsim rank`",
            named.file()
        );
        Ok(Some(text))
    }

    /// The id of an item.
    pub fn get(&self, item: u32) -> Id<'_> {
        match self.named.as_ref().and_then(|named| named.names.get(item as usize)) {
            Some(name) => Id::Name(name),
            None => Id::Number(item),
        }
    }

    /// The text of a query, where the file of ids has it.
    pub fn text(&self, item: u32) -> Option<&str> {
        self.named.as_ref()?.texts.get(&item).map(String::as_str)
    }

    /// The item of an id.
    pub fn find(&self, id: &str) -> Option<u32> {
        let Some(named) = &self.named else {
            let item: u32 = id.parse().ok()?;
            // `+1` and `01` are other texts than 1.
            return ((item as usize) < self.n_items && item.to_string() == id).then_some(item);
        };
        let order = &named.order;
        let place = order.binary_search_by(|&item| (*named.names[item as usize]).cmp(id));
        place.ok().map(|place| order[place])
    }

    /// As [`Ids::find`]; an id that no item has is an error.
    pub fn require(&self, id: &str) -> Result<u32> {
        self.find(id).with_context(|| self.unknown(id))
    }

    /// Describes an id that no item has.
    pub fn unknown(&self, id: &str) -> String {
        let (one, many, option) = (self.side.one(), self.side.many(), self.side.option());
        match &self.named {
            Some(named) => format!("no {one} has the id {id}: ids are those of {}", named.file()),
            None => format!(
                "{one} {id} does not exist: the token file has {}, numbered from 0; \
                 use {option} to give {many} other ids",
                self.n_items
            ),
        }
    }

    /// Refuses ids that cannot stand in a column of a TREC run.
    pub fn check_columns(&self) -> Result<()> {
        let Some(named) = &self.named else { return Ok(()) };
        let with_space = |name: &str| name.contains(char::is_whitespace);
        match named.names.iter().position(|name| with_space(name)) {
            Some(item) => bail!(
                "{}: the id `{}` has white space in it, which separates the columns of a TREC \
                 run; use another --format or other ids",
                named.place(item),
                named.names[item]
            ),
            None => Ok(()),
        }
    }

    /// Refuses ids of the same items in another file that are not these.
    pub fn check_same(&self, other: &Ids) -> Result<()> {
        let (Some(a), Some(b)) = (&self.named, &other.named) else { return Ok(()) };
        let differs = a.names.iter().zip(&b.names).position(|(a, b)| a != b);
        match differs {
            Some(item) => bail!(
                "{} has the id `{}`, and {} has `{}`",
                a.place(item),
                a.names[item],
                b.place(item),
                b.names[item]
            ),
            None => Ok(()),
        }
    }
}

impl Named {
    fn new(names: Vec<Box<str>>, source: Source, texts: HashMap<u32, String>) -> Result<Named> {
        // A layout has fewer than 2³¹ items.
        let mut order: Vec<u32> = (0..names.len() as u32).collect();
        order.sort_by(|&a, &b| names[a as usize].cmp(&names[b as usize]));
        let named = Named { names, order, source, texts };
        let equal = |pair: &&[u32]| named.names[pair[0] as usize] == named.names[pair[1] as usize];
        // Sorting keeps equal names in the order of their items: name the first that is one too
        // many.
        let twice = named.order.windows(2).filter(equal).min_by_key(|pair| pair[1]);
        if let Some(&[first, second]) = twice {
            bail!(
                "{}: the id `{}` is also that of {}",
                named.place(second as usize),
                named.names[second as usize],
                named.short_place(first as usize)
            );
        }
        Ok(named)
    }

    fn file(&self) -> &str {
        match &self.source {
            Source::Lines(file, _) | Source::Tokens(file) => file,
        }
    }

    fn place(&self, item: usize) -> String {
        let separator = if matches!(self.source, Source::Lines(..)) { ", " } else { ": " };
        format!("{}{separator}{}", self.file(), self.short_place(item))
    }

    fn short_place(&self, item: usize) -> String {
        match &self.source {
            Source::Lines(_, lines) => format!("line {}", lines[item]),
            Source::Tokens(_) => format!("item {item}"),
        }
    }
}

/// Reads a file of one id per line, or of one JSON object per line with `id` or `_id`: `take` gets
/// the number of the line, the id, and the object's `text`.
pub(crate) fn lines(
    path: &Path,
    mut take: impl FnMut(u64, &str, Option<&str>) -> Result<()>,
) -> Result<()> {
    let mut objects = None;
    jsonl::lines(path, |number, line| {
        if *objects.get_or_insert_with(|| jsonl::is_object(line)) {
            let line: Line = jsonl::parse(line, EXAMPLE)?;
            return take(number, &line.id.text, line.text.as_deref());
        }
        let id = std::str::from_utf8(line).context("not UTF-8 text")?.trim();
        if objects == Some(false) && jsonl::is_object(line) {
            bail!("a JSON object, where the lines before are ids");
        }
        take(number, id, None)
    })
}

/// Warns that ids of a file are read as item numbers, where its form could mean something else.
pub(crate) fn number_warning(
    file: &str,
    form: &str,
    queries: &Ids,
    documents: &Ids,
) -> Option<String> {
    let sides = match (queries.are_names(), documents.are_names()) {
        (true, true) => return None,
        (true, false) => "ids of documents",
        (false, true) => "ids of queries",
        (false, false) => "ids",
    };
    Some(format!(
        "{file} ({form}): {sides} are read as item numbers, from 0, because the token files have \
         no ids; use --query-ids and --document-ids to give them"
    ))
}

/// Collects names, line by line.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    names: Vec<Box<str>>,
    lines: Vec<u64>,
}

impl Collected {
    /// Adds the id of the next item.
    pub fn push(&mut self, id: &str, line: u64) -> Result<()> {
        check(id)?;
        self.names.push(id.into());
        self.lines.push(line);
        Ok(())
    }

    /// The number of the next item.
    pub fn len(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }

    /// The ids of all items, which these must be.
    pub fn into_ids(
        self,
        path: &Path,
        side: Side,
        n_items: usize,
        texts: HashMap<u32, String>,
    ) -> Result<Ids> {
        let (file, found) = (path.display().to_string(), self.names.len());
        ensure!(
            found == n_items,
            "{file}: {}, where the token file has {}; ids stand one per line, in the order of the \
             token file",
            counted(found as u64, "id", "ids"),
            counted(n_items as u64, side.one(), side.many())
        );
        let named = Named::new(self.names, Source::Lines(file, self.lines), texts)?;
        Ok(Ids { side, n_items, named: Some(named) })
    }
}

/// Refuses what is no id.
fn check(id: &str) -> Result<()> {
    ensure!(!id.trim().is_empty(), "the id is empty");
    ensure!(!id.chars().any(char::is_control), "the id has a control character in it");
    Ok(())
}

/// Names the first items and counts the others, for messages.
pub(crate) fn some_of(ids: &[Box<str>]) -> String {
    const N_NAMED: usize = 3;
    let named = ids.iter().take(N_NAMED).map(|id| &**id).collect::<Vec<_>>().join(", ");
    match ids.len().saturating_sub(N_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
