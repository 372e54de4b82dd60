//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use clap::{Parser, Subcommand, ValueEnum};
use maxsim::format::{ElementType, ScaleType, TokenFormat};
use maxsim::layout::MAX_DIM;
use maxsim::residual::BitOrder;
use maxsim::{Device, Devices};

use crate::judging::JudgingArgs;
use crate::rank::explain as explained;
use crate::selection::SelectionArgs;

mod explain;
mod files;

pub use explain::{ExplainArgs, ExplainFormat};
pub use files::{FileArgs, QuantizeFileArgs, RankFileArgs};

/// Late-interaction (MaxSim) ranking of token embeddings, on CPU and NVIDIA GPUs.
#[derive(Debug, Parser)]
#[command(name = "maxsim", version)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Rank documents for every query.
    ///
    /// Token files are .safetensors (tensor `embeddings [rows, dim]` with `offsets [n + 1]` or
    /// `lengths [n]`, or `embeddings [n, len, dim]` with optional `lengths [n]` or `mask [n,
    /// len]`), .npy (one array [n, len, dim]), .npz or a folder of .npy files (arrays of these
    /// names, or an array [len, dim] per item, in the order of names with numbers as numbers), of
    /// f16, bf16 or f32; .safetensors also as `maxsim quantize` writes them. They must not change
    /// while the command runs.
    Rank(Box<RankArgs>),
    /// Compress token embeddings: to one byte per element, or to 1, 2, 4 or 8 bits.
    ///
    /// Writes a .safetensors file that `maxsim rank` reads like any other, and reports its size,
    /// how far elements are off, and, with --queries, how well rankings agree with those of the
    /// original embeddings.
    Quantize(Box<QuantizeArgs>),
    /// Show which token of a document each token of a query chose, and how well.
    ///
    /// As lines of text, as a page or a picture with the tokens' words or above the image of a
    /// page, or as JSON. Computed on the CPU.
    Explain(Box<ExplainArgs>),
    /// List devices and limits.
    Info(InfoArgs),
    /// Load kernels as a server would at startup, and report how long each takes.
    WarmUp(WarmUpArgs),
}

/// What `maxsim info` takes.
#[derive(Debug, clap::Args)]
pub struct InfoArgs {
    /// Also list the kernels that `maxsim rank --kernel NAME` takes.
    #[arg(long)]
    pub kernels: bool,
}

/// What `maxsim warm-up` takes.
#[derive(Debug, clap::Args)]
pub struct WarmUpArgs {
    /// Load kernels on this device: auto takes the first usable GPU, or else the CPU.
    #[arg(long, value_name = "auto|cpu|cuda:N", default_value = "auto")]
    pub device: DeviceChoice,

    /// Load kernels for this element type (may be repeated); for all by default.
    #[arg(long, value_name = "f16|bf16|f32", value_parser = parse_element)]
    pub element: Vec<ElementType>,

    /// Load kernels for tokens of this many elements (may be repeated); for all by default.
    #[arg(long, value_name = "N", value_parser = parse_dim)]
    pub dim: Vec<usize>,

    /// Load kernels for calls that ask for winners, or that do not; for both by default.
    #[arg(long, value_name = "true|false")]
    pub winners: Option<bool>,

    /// Load kernels for calls that normalise rows, or that do not; for both by default.
    #[arg(long, value_name = "true|false")]
    pub normalize: Option<bool>,

    /// Also load kernels for training: those of losses, and those that compute gradients from
    /// winners.
    #[arg(long)]
    pub training: bool,
}

/// What `maxsim quantize` takes.
#[derive(Debug, clap::Args)]
pub struct QuantizeArgs {
    /// Compress the token embeddings of this file: f16, bf16 or f32.
    #[arg(long, value_name = "FILE", required_unless_present = "index")]
    pub input: Option<PathBuf>,

    /// Convert this index of ColBERT, fast-plaid or next-plaid to one file as it is, instead of
    /// compressing --input; for plaid.
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = [
            "input", "nbits", "centroids", "seed", "keep_lengths", "queries", "qrels",
            "query_ids", "document_ids", "QuantizeFileArgs", "FileArgs"
        ]
    )]
    pub index: Option<PathBuf>,

    /// Write the compressed embeddings to this file. It appears whole or not at all.
    #[arg(long, value_name = "FILE.safetensors")]
    pub output: PathBuf,

    /// Compress to this format: int8 is symmetric about 0, int8-affine starts at each token's
    /// minimum and is for documents alone, fp8 is e4m3, plaid is the nearest of some centroids and
    /// a bucket per element (residual compression, as in ColBERTv2) and is for documents alone.
    #[arg(long, value_name = "int8|int8-affine|fp8|plaid", value_parser = parse_compression)]
    pub format: Compression,

    /// Store scales in this form: one per token in f16 (by default) or f32 (not int8-affine), or
    /// one f32 number for all of them (fp8 alone); not for plaid.
    #[arg(long, value_name = "f16|f32|tensor", value_parser = parse_scales)]
    pub scales: Option<ScaleType>,

    /// Compress each element to this many bits, for plaid; 4 by default.
    #[arg(long, value_name = "1|2|4|8", value_parser = parse_nbits)]
    pub nbits: Option<u32>,

    /// Train this many centroids, for plaid; by default the power of two at or below
    /// 16 · √(number of tokens).
    #[arg(long, value_name = "N")]
    pub centroids: Option<usize>,

    /// Train centroids from this random seed, for plaid: the same file, seed and machine give the
    /// same output. 42 by default.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Store the bits of buckets in a byte in this order, for plaid; by default in ColBERT's.
    #[arg(long, value_name = "colbert|little-endian", value_parser = parse_bit_order)]
    pub bit_order: Option<BitOrder>,

    /// Do not divide decoded tokens by their lengths, for plaid: for tokens that are not
    /// normalised.
    #[arg(long)]
    pub keep_lengths: bool,

    /// Rank the documents for these queries before and after compression, and report how well the
    /// rankings agree. Queries must have the input's element type (or use --convert); they are
    /// compressed, too, where `maxsim rank` does so (not for plaid).
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,

    /// Convert the elements of --queries to the input's type, and report what that rounds.
    #[arg(long, requires = "queries")]
    pub convert: bool,

    /// Judgements, to report nDCG@10 before and after.
    #[command(flatten)]
    pub judging: JudgingArgs,

    /// Write the report in this form.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub report: ReportFormat,

    /// What token files do not say themselves.
    #[command(flatten)]
    pub files: QuantizeFileArgs,
}

/// What tokens are compressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// A byte per element, with scales.
    Codes(TokenFormat),
    /// A centroid per token and a bucket per element.
    Plaid,
}

/// Form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
}

/// What `maxsim rank` takes.
#[derive(Debug, clap::Args)]
pub struct RankArgs {
    /// Rank for the queries of this file of token embeddings.
    #[arg(long, value_name = "FILE")]
    pub queries: PathBuf,

    /// Rank the documents of this file of token embeddings.
    #[arg(long, value_name = "FILE")]
    pub documents: PathBuf,

    /// Find candidates in this compressed copy of --documents, and score only these with
    /// --documents. `maxsim quantize` makes the copy, as int8, int8-affine or fp8. The ranking says
    /// which places are proven by the bounds of what compression can do.
    #[arg(
        long,
        value_name = "FILE.safetensors",
        conflicts_with_all = ["normalize", "angular", "allow_tf32", "kernel", "weights", "mean"]
    )]
    pub screen: Option<PathBuf>,

    /// Score this many candidates per query again, with --screen: 100 by default, and at least as
    /// many as are listed.
    #[arg(long, value_name = "N", requires = "screen", value_parser = parse_top_k)]
    pub shortlist: Option<usize>,

    /// Prove every place, with --screen: score as many candidates again as that takes. The ranking
    /// is then that of all documents.
    #[arg(long, requires = "screen")]
    pub exact: bool,

    /// Check in this way that --screen was made of --documents, which proofs need: identity (by
    /// default) reads and digests a file once and trusts it until it changes; always does so in
    /// every run; never skips the check, and then no place is called proven.
    #[arg(long, value_enum, requires = "screen")]
    pub verify: Option<Verify>,

    /// List this many documents per query.
    #[arg(long, value_name = "K", default_value = "10", value_parser = parse_top_k)]
    pub top_k: usize,

    /// List all documents that are ranked, with their scores, instead of the best --top-k. They are
    /// in memory until they are written.
    #[arg(long, conflicts_with_all = ["top_k", "screen"])]
    pub scores: bool,

    /// Also say for each listed document and each token of the query which token of the document it
    /// matches best. Tokens are numbered from 0, as the files have them. Not in a TREC run.
    #[arg(long)]
    pub winners: bool,

    /// Compute on this device: auto takes the first usable GPU, or else the CPU. On cuda:all, all
    /// GPUs share the documents, and the ranking is that of one.
    #[arg(long, value_name = "auto|cpu|cuda:N|cuda:all", default_value = "auto")]
    pub device: DeviceChoice,

    /// Write the ranking in this form.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,

    /// Write to this file instead of standard output. It appears whole or not at all.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Show the documents' titles and texts of this file, in the table and in JSON: one JSON object
    /// per line with `id` or `_id`, and `title` or `package`, and `text`. Ids that are numbers are
    /// those of documents in the token file, from 0; ids that are strings name the documents, in
    /// the order of the lines.
    #[arg(long, value_name = "JSONL")]
    pub texts: Option<PathBuf>,

    /// Judgements, and the ids that they are written with.
    #[command(flatten)]
    pub judging: JudgingArgs,

    /// Documents that are ranked.
    #[command(flatten)]
    pub selection: SelectionArgs,

    /// What token files do not say themselves.
    #[command(flatten)]
    pub files: RankFileArgs,

    /// Convert the queries to the documents' element type, f16, bf16 or f32, and report what that
    /// rounds. A query token that the type cannot hold is an error.
    #[arg(long)]
    pub convert: bool,

    /// Accept infinite elements and infinite scores: both are errors by default, as they are the
    /// result of an overflow. In JSON such scores are the strings "Infinity" and "-Infinity".
    #[arg(long)]
    pub allow_infinite: bool,

    /// Round f32 elements to TF32 (10 fraction bits) where that is faster.
    #[arg(long)]
    pub allow_tf32: bool,

    /// Divide every row by its length: similarities are cosines.
    #[arg(long)]
    pub normalize: bool,

    /// Rank by angular distance, the smallest first: for each token of the query 1 minus the
    /// largest cosine, added. The table and JSON have distances, a TREC run has minus them, as
    /// evaluators put larger numbers first.
    #[arg(long, conflicts_with = "normalize")]
    pub angular: bool,

    /// Multiply the similarity of every query token by its weight of this file before they are
    /// added: .npy [n, len], or one number a row for packed embeddings, f16 or f32, of any sign.
    #[arg(long, value_name = "FILE.npy")]
    pub weights: Option<PathBuf>,

    /// Divide scores by the number of the query's tokens (MeanMaxSim).
    #[arg(long)]
    pub mean: bool,

    /// Run this kernel (see `maxsim info --kernels`) instead of choosing one.
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,

    /// Most bytes of device memory for the documents in flight.
    #[arg(long, value_name = "BYTES", hide = true)]
    pub chunk_bytes: Option<u64>,
}

impl RankArgs {
    /// Documents that are listed for each query, where there are so many.
    pub fn n_listed(&self) -> usize {
        if self.scores { usize::MAX } else { self.top_k }
    }
}

/// How to find out what compressed documents were made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// Read and digest both files in every run.
    Always,
    /// As always, except for files that have not changed since they were last digested.
    #[default]
    Identity,
    /// Skip the check: no place is called proven.
    Never,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people: ranks, scores and titles.
    Table,
    /// One JSON object with ids and scores, and metrics where there are judgements.
    Json,
    /// TREC run lines: `qid Q0 docid rank score tag`.
    Trec,
}

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first usable GPU, or else the CPU.
    Auto,
    /// The CPU engine.
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
    /// All usable GPUs.
    CudaAll,
}

impl DeviceChoice {
    /// Opens the device; of several the first.
    pub fn open(self) -> Result<Device> {
        match self {
            DeviceChoice::CudaAll => {
                let first = Devices::all().devices().first().and_then(Device::ordinal);
                cuda(first.unwrap_or(0)).context("--device cuda:all")
            }
            DeviceChoice::Auto => Ok(Device::best()),
            DeviceChoice::Cpu => Ok(Device::cpu()),
            DeviceChoice::Cuda(ordinal) => {
                cuda(ordinal).with_context(|| format!("--device cuda:{ordinal}"))
            }
        }
    }
}

/// Opens a CUDA device.
fn cuda(ordinal: usize) -> Result<Device> {
    Device::cuda(ordinal).map_err(|error| anyhow!(explained::device(&error)))
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda:all" => Ok(DeviceChoice::CudaAll),
            _ => name
                .strip_prefix("cuda:")
                .and_then(|ordinal| ordinal.parse().ok())
                .map(DeviceChoice::Cuda)
                .ok_or_else(|| "expected auto, cpu, cuda:N or cuda:all".to_string()),
        }
    }
}

fn parse_element(value: &str) -> std::result::Result<ElementType, String> {
    let found = ElementType::ALL.into_iter().find(|element| element.name() == value);
    found.ok_or_else(|| "expected f16, bf16 or f32".to_string())
}

fn parse_dim(value: &str) -> std::result::Result<usize, String> {
    let found = value.parse().ok().filter(|dim| (1..=MAX_DIM).contains(dim));
    found.ok_or_else(|| format!("expected a whole number from 1 to {MAX_DIM}"))
}

fn parse_compression(value: &str) -> std::result::Result<Compression, String> {
    if value == "plaid" {
        return Ok(Compression::Plaid);
    }
    let found = TokenFormat::QUANTIZED.into_iter().find(|format| format.name() == value);
    found.map(Compression::Codes).ok_or_else(|| "expected int8, int8-affine, fp8 or plaid".into())
}

fn parse_nbits(value: &str) -> std::result::Result<u32, String> {
    let found = [1, 2, 4, 8].into_iter().find(|nbits: &u32| nbits.to_string() == value);
    found.ok_or_else(|| "expected 1, 2, 4 or 8".to_string())
}

fn parse_bit_order(value: &str) -> std::result::Result<BitOrder, String> {
    let found = BitOrder::ALL.into_iter().find(|order| order.name() == value);
    found.ok_or_else(|| "expected colbert or little-endian".to_string())
}

fn parse_scales(value: &str) -> std::result::Result<ScaleType, String> {
    let all = [ScaleType::F16, ScaleType::F32, ScaleType::Tensor];
    let found = all.into_iter().find(|scales| scales.name() == value);
    found.ok_or_else(|| "expected f16, f32 or tensor".to_string())
}

fn parse_top_k(value: &str) -> std::result::Result<usize, String> {
    match value.parse() {
        Ok(0) | Err(_) => Err("expected a whole number of 1 or more".to_string()),
        Ok(k) => Ok(k),
    }
}
