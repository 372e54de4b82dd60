//! Reads ids, texts and relevance judgements of queries and documents.

pub mod ids;
pub mod jsonl;
pub mod metrics;
pub mod qrels;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::judging::ids::Ids;
use crate::judging::qrels::{Qrels, QrelsFormat};
use crate::texts::{Keep, Texts};

/// Judgements, and the ids that they are written with.
#[derive(Debug, clap::Args)]
pub struct JudgingArgs {
    /// Report nDCG@10 and recall@10 by the relevance judgements of this file: JSON objects, one per
    /// line, with a query's `id`, `relevant` (a list of document ids, or an object of document ids
    /// and grades) and optionally its `text`; TREC qrels; or BEIR's, which have tabs and a line of
    /// column names.
    ///
    /// Documents of grade 1 and more are relevant, and grades are the gains of nDCG, as in
    /// trec_eval. Relevant documents that are not among the documents count as not found.
    #[arg(long, value_name = "FILE", requires = "queries")]
    pub qrels: Option<PathBuf>,

    /// Read --qrels in this format, where its first line does not show it.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "qrels")]
    pub qrels_format: Option<QrelsFormat>,

    /// Take the queries' ids from this file: one per line, or one JSON object per line with `id` or
    /// `_id` and optionally `text`, in the order of the token file.
    ///
    /// An id is what output and judgements call an item by. By default that is the item's number
    /// in its token file, from 0, unless the token file has ids itself: a tensor `ids [n]` of
    /// whole numbers, or `ids` in its metadata, a JSON array of strings.
    #[arg(long, value_name = "FILE", requires = "queries")]
    pub query_ids: Option<PathBuf>,

    /// Take the documents' ids from this file, as --query-ids. Ids in --texts that are strings do
    /// the same.
    #[arg(long, value_name = "FILE")]
    pub document_ids: Option<PathBuf>,
}

impl JudgingArgs {
    /// The files that are read.
    pub fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        self.qrels.iter().chain(&self.query_ids).chain(&self.document_ids)
    }
}

/// Knowledge of queries and documents besides their tokens: names, texts, judgements.
#[derive(Clone, Debug)]
pub struct Judging {
    /// Ids of the queries.
    pub queries: Ids,
    /// Ids of the documents.
    pub documents: Ids,
    /// Texts of the documents.
    pub texts: Texts,
    /// Relevant documents of each query.
    pub qrels: Option<Qrels>,
}

impl Judging {
    /// Reads what the options name. `queries` and `documents` are the ids that their token files
    /// give.
    pub fn open(
        args: &JudgingArgs,
        texts: Option<(&Path, Keep)>,
        queries: Ids,
        documents: Ids,
    ) -> Result<Judging> {
        let queries = named(args.query_ids.as_deref(), queries)?;
        let mut documents = named(args.document_ids.as_deref(), documents)?;
        let texts = match texts {
            Some((path, keep)) => {
                let (texts, names) = Texts::open(path, &documents, keep)?;
                documents = names.unwrap_or(documents);
                texts
            }
            None => Texts::default(),
        };
        let qrels = match &args.qrels {
            Some(path) => Some(Qrels::open(path, args.qrels_format, &queries, &documents)?),
            None => None,
        };
        Ok(Judging { queries, documents, texts, qrels })
    }

    /// The text of a query, where judgements or the file of ids have it.
    pub fn query_text(&self, query: u32) -> Option<&str> {
        let judged = self.qrels.as_ref().and_then(|qrels| qrels.get(query)?.text());
        judged.or_else(|| self.queries.text(query))
    }
}

/// Ids from a file, or else those that the token file gives.
fn named(path: Option<&Path>, stored: Ids) -> Result<Ids> {
    let Some(path) = path else { return Ok(stored) };
    let given = Ids::open(path, stored.side(), stored.n_items())?;
    given.check_same(&stored)?;
    Ok(given)
}
