//! Options of `maxsim explain`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::RankFileArgs;
use crate::judging::JudgingArgs;

/// What `maxsim explain` takes.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Take the query from this file of token embeddings.
    #[arg(long, value_name = "FILE")]
    pub queries: PathBuf,

    /// Take the document from this file of token embeddings.
    #[arg(long, value_name = "FILE")]
    pub documents: PathBuf,

    /// Explain the score of the query with this id.
    #[arg(long, value_name = "ID")]
    pub query: String,

    /// Explain the score of the document with this id.
    #[arg(long, value_name = "ID")]
    pub document: String,

    /// Show the words of the document's tokens of this file: one JSON object per line with `id` or
    /// `_id`, and `tokens`, a list of strings, one for each token that the token file has of the
    /// item, as the model's tokenizer gives them. Without it tokens have their numbers.
    #[arg(long, value_name = "JSONL")]
    pub texts: Option<PathBuf>,

    /// Show the words of the query's tokens of this file, as --texts.
    #[arg(long, value_name = "JSONL")]
    pub query_texts: Option<PathBuf>,

    /// Show tokens of the document as patches of this page image: PNG, JPEG, WebP or GIF. For html
    /// and svg.
    #[arg(long, value_name = "FILE", requires = "grid")]
    pub image: Option<PathBuf>,

    /// Cut --image into so many patches across and down, line by line from the top left, as the
    /// model has.
    #[arg(long, value_name = "COLUMNSxROWS", requires = "image", value_parser = parse_grid)]
    pub grid: Option<[u32; 2]>,

    /// The number of the token that is the first patch of --image.
    #[arg(long, value_name = "TOKEN", requires = "image", default_value = "0")]
    pub first_patch: u32,

    /// Write the matches in this form.
    #[arg(long, value_enum, default_value_t = ExplainFormat::Text)]
    pub format: ExplainFormat,

    /// Write to this file instead of standard output. It appears whole or not at all.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Ids of queries and documents.
    #[command(flatten)]
    pub judging: ExplainIds,

    /// What token files do not say themselves.
    #[command(flatten)]
    pub files: RankFileArgs,

    /// Convert the query to the documents' element type, f16, bf16 or f32, and report what that
    /// rounds.
    #[arg(long)]
    pub convert: bool,

    /// Divide every row by its length: similarities are cosines.
    #[arg(long)]
    pub normalize: bool,

    /// Divide the score by the number of the query's tokens (MeanMaxSim).
    #[arg(long)]
    pub mean: bool,
}

/// The files that items have their ids from.
#[derive(Debug, Default, clap::Args)]
pub struct ExplainIds {
    /// Take the queries' ids from this file: one per line, or one JSON object per line with `id` or
    /// `_id`, in the order of the token file. By default an id is the item's number in its token
    /// file, from 0, unless the token file has ids itself.
    #[arg(long, value_name = "FILE")]
    pub query_ids: Option<PathBuf>,

    /// Take the documents' ids from this file, as --query-ids.
    #[arg(long, value_name = "FILE")]
    pub document_ids: Option<PathBuf>,
}

impl From<&ExplainIds> for JudgingArgs {
    fn from(ids: &ExplainIds) -> JudgingArgs {
        let ExplainIds { query_ids, document_ids } = ids;
        JudgingArgs {
            qrels: None,
            qrels_format: None,
            query_ids: query_ids.clone(),
            document_ids: document_ids.clone(),
        }
    }
}

/// Form of the matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExplainFormat {
    /// Lines for people: each token of the query with the one that it chose.
    Text,
    /// One JSON object, with all similarities.
    Json,
    /// A page that opens from disk: press a token to see what is similar to it.
    Html,
    /// A picture: the heat map.
    Svg,
}

fn parse_grid(text: &str) -> Result<[u32; 2]> {
    let parse = || {
        let (columns, rows) = text.split_once('x')?;
        Some([columns.parse().ok()?, rows.parse().ok()?])
    };
    let grid: [u32; 2] = parse().context("expected COLUMNSxROWS, such as 32x32")?;
    ensure!(!grid.contains(&0), "a grid has a line and a column at least");
    Ok(grid)
}
