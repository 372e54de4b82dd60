//! Relevance judgements.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::jsonl;
use crate::texts::{beginning, check_id};

/// Characters kept of a query's text.
const TEXT_CHARS: usize = 200;

/// Which documents are relevant to which query (binary), and the queries' texts.
#[derive(Clone, Debug, Default)]
pub struct Qrels {
    by_id: HashMap<u32, Judged>,
}

/// What is known of one query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Ids of the relevant documents, rising, each once.
    pub relevant: Vec<u32>,
    /// The query's text, printable, where the file gives it.
    pub text: Option<String>,
}

/// A line, for messages.
const EXAMPLE: &str = r#"{"id": 0, "relevant": [3, 7]}"#;

#[derive(Deserialize)]
struct Line {
    id: u32,
    relevant: Vec<u32>,
    text: Option<String>,
}

impl Qrels {
    /// Reads a file with one JSON object a line: `id`, `relevant`, and optionally `text`.
    pub fn open(path: &Path, n_queries: usize, n_documents: usize) -> Result<Qrels> {
        let mut by_id = HashMap::new();
        jsonl::read(path, EXAMPLE, |line: Line| {
            check_id("query", line.id, n_queries)?;
            let mut relevant = line.relevant;
            relevant.sort_unstable();
            relevant.dedup();
            if let Some(&last) = relevant.last() {
                check_id("relevant document", last, n_documents)?;
            }
            let judged = Judged { relevant, text: line.text.map(|t| beginning(&t, TEXT_CHARS)) };
            ensure!(by_id.insert(line.id, judged).is_none(), "query {} is there twice", line.id);
            Ok(())
        })?;
        Ok(Qrels { by_id })
    }

    /// What is known of a query.
    pub fn get(&self, query: u32) -> Option<&Judged> {
        self.by_id.get(&query)
    }
}

impl Judged {
    /// Whether a document is relevant to the query.
    pub fn is_relevant(&self, document: u32) -> bool {
        self.relevant.binary_search(&document).is_ok()
    }
}
