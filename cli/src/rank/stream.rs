//! Ranking in chunks of documents: a running top-k per query, so that neither all scores nor
//! all documents ever have to fit anywhere.

use std::ops::Range;

use anyhow::{Result, bail};
use half::f16;
use indicatif::ProgressBar;
use maxsim::format::{
    AnyDeviceTokens, AnyTokensRef, ElementType, ScaleType, TokenFormat, with_element,
};
use maxsim::residual::ResidualTokens;
use maxsim::{AnyTokens, Device, Error, Pairing, Ranked, Ranking, ScoreOptions, TokenLayout, TopK};
use rayon::prelude::*;

use crate::documents::Documents;
use crate::finite::Checked;
use crate::input::{ReadItems, TokenFile};
use crate::rank::explain::BadScore;
use crate::rank::queries::query_format;
use crate::residual::{decode, of_items};

/// Device memory for the documents of one call and their scores, unless the caller says
/// otherwise: beyond this a call's fixed cost no longer shows.
const CHUNK_BYTES: u64 = 512 << 20;

/// Memory for the documents of one call on the CPU, where a call costs little and the progress of a
/// run is seen by its calls.
const CPU_CHUNK_BYTES: u64 = 16 << 20;

/// Multiply-adds of queries and one document, per call on the CPU: some hundredths of a second.
const GROUP_WORK: u64 = 1 << 31;

/// Fewest query tokens of a call for that.
const GROUP_TOKENS: u64 = 256;

/// Share of a device's free memory that a call may take: other processes may use it too, and
/// the engines need room of their own.
const FREE_SHARE: u64 = 4;

/// Device memory per document for its place in the work list.
const DOCUMENT_BYTES: u64 = 16;

/// Largest number of pairs per call.
const MAX_PAIRS: u64 = maxsim::layout::MAX_COUNT as u64 - 1;

/// Inputs and options of a ranking.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Queries. All of them are uploaded at once.
    pub queries: &'a TokenFile,
    /// Documents, of the queries' element type and dim, or compressed.
    pub documents: &'a Documents<'a>,
    /// Device that computes.
    pub device: &'a Device,
    /// Options of the scores, with the kernel.
    pub options: &'a ScoreOptions,
    /// How the scales of queries that are compressed are stored
    /// ([`queries::scales`](crate::rank::queries::scales)).
    pub query_scales: ScaleType,
    /// Whether infinite elements and scores are taken. NaN never is.
    pub allow_infinite: bool,
    /// Documents to keep per query.
    pub top_k: usize,
    /// Device memory for the documents of one call and their scores, in bytes; `None`: by the
    /// device's free memory. A document that needs more is uploaded alone.
    pub chunk_bytes: Option<u64>,
    /// Advanced by the number of pairs of a query and a document that are done, or by what its
    /// message says.
    pub progress: &'a ProgressBar,
}

/// The result of a ranking.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Per query its best documents.
    pub rankings: Vec<Ranking>,
    /// Names of the kernels that ran (or `cpu`), in order of first use.
    pub kernels: Vec<&'static str>,
    /// Calls that were made.
    pub n_chunks: usize,
    /// Certainty of the rankings, of a search of compressed documents.
    pub search: Option<Search>,
}

/// Certainty of a search's rankings.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// Places proven, per query: they come first.
    pub proven: Vec<usize>,
    /// Documents that were scored again, of all queries.
    pub n_rescored: u64,
}

/// Ranks, with the formats that the files have. Elements of documents and scores that are not
/// finite are errors; those of queries are the caller's to check.
///
/// Queries of elements are compressed where documents are: in INT8 and FP8 alike, for INT8 affine
/// documents to INT8 where they are f32. Residual-compressed documents are decoded a chunk at a
/// time.
pub fn rank(request: &Request<'_>) -> Result<Outcome> {
    let n_queries = request.queries.n_items();
    let mut best = vec![TopK::new(request.top_k); n_queries];
    let outcome = scores(request, 0..n_queries, |items, scores| {
        let has_tokens = |id| request.documents.layout().has_tokens(id);
        check_numbers(scores, 0, items, request.allow_infinite)?;
        merge(&mut best, scores, items, has_tokens);
        Ok(())
    });
    let (kernels, n_chunks) = outcome?;
    let rankings = best.into_iter().map(TopK::into_ranking).collect();
    Ok(Outcome { rankings, kernels, n_chunks, search: None })
}

/// Scores a range of queries against all documents, chunk by chunk: `take` gets the documents of a
/// chunk and its scores `[n_queries, n_documents]`. Names of the kernels, and calls that were made.
pub fn scores(
    request: &Request<'_>,
    queries: Range<usize>,
    take: impl FnMut(&Range<usize>, &[f32]) -> Result<()>,
) -> Result<(Vec<&'static str>, usize)> {
    let Request { queries: file, documents, query_scales, .. } = *request;
    let documents = match documents {
        Documents::Tokens(documents) => *documents,
        Documents::Residual(tokens) => return decoded(request, tokens, queries, take),
    };
    let (of_queries, format) = (file.contents().format, documents.contents().format);
    let of_queries = query_format(of_queries, format);
    // The CPU has an engine for all formats that go together.
    if !Device::cpu().can_score(of_queries, format) {
        bail!(
            "{of_queries} queries cannot be scored against {format} documents; \
             use the queries' uncompressed embeddings"
        );
    }
    let queries = match file.any_tokens(queries)? {
        queries if queries.format() == of_queries => queries,
        queries => queries.quantize(of_queries, query_scales)?,
    };
    let documents = Checked::new(documents, "document", request.allow_infinite);
    let read = |items| documents.any_tokens(items).map(Part::Tokens);
    chunks(request, &queries, format, read, take)
}

/// Scores as [`scores`], of residual-compressed documents: compressed for f16 queries, and decoded
/// to f32 for others. As bf16 they would keep 8 bits of what they decode to; bf16 queries lose
/// nothing as f32.
fn decoded(
    request: &Request<'_>,
    tokens: &ResidualTokens<'_>,
    queries: Range<usize>,
    take: impl FnMut(&Range<usize>, &[f32]) -> Result<()>,
) -> Result<(Vec<&'static str>, usize)> {
    let file = request.queries;
    let queries: AnyTokens<'_> = match file.contents().format.element() {
        None | Some(ElementType::F16 | ElementType::F32) => file.any_tokens(queries)?,
        Some(element) => with_element!(element, T => {
            file.tokens::<T>(queries)?.convert::<f32>()?.0.into()
        }),
    };
    let of_queries = queries.format();
    match of_queries.element() {
        // Rows are normalised where they are elements.
        Some(ElementType::F16) if request.options.normalize => {
            let decoded = |items| Ok(Part::Tokens(decode::<f16>(tokens, items)?.into()));
            chunks(request, &queries, of_queries, decoded, take)
        }
        Some(ElementType::F16) => {
            let upload = |items| {
                let part = of_items(tokens, items)?;
                Ok(Part::Handle(request.device.upload_residual_any(&part, ElementType::F16)?))
            };
            chunks(request, &queries, TokenFormat::Residual(ElementType::F16), upload, take)
        }
        Some(_) => {
            let decoded = |items| Ok(Part::Tokens(decode::<f32>(tokens, items)?.into()));
            chunks(request, &queries, of_queries, decoded, take)
        }
        None => bail!(
            "{of_queries} queries cannot be scored against plaid documents; \
             use the queries' uncompressed embeddings"
        ),
    }
}

/// One side of a call.
enum Part<'a> {
    /// Uploaded for the call.
    Tokens(AnyTokens<'a>),
    /// There already.
    Handle(AnyDeviceTokens),
}

impl<'a> From<&'a Part<'a>> for AnyTokensRef<'a> {
    fn from(part: &'a Part<'a>) -> Self {
        match part {
            Part::Tokens(tokens) => AnyTokensRef::Host(tokens),
            Part::Handle(handle) => AnyTokensRef::Device(handle),
        }
    }
}

/// Scores queries against all documents; `read` gives the documents of a range, stored as `format`.
fn chunks<'a>(
    request: &Request<'a>,
    queries: &AnyTokens<'_>,
    format: TokenFormat,
    read: impl Fn(Range<usize>) -> Result<Part<'a>>,
    mut take: impl FnMut(&Range<usize>, &[f32]) -> Result<()>,
) -> Result<(Vec<&'static str>, usize)> {
    let Request { device, documents, options, .. } = *request;
    let n_queries = queries.layout().n_items();
    let queries = match device.memory()? {
        Some(_) => vec![Part::Handle(device.upload_any(queries)?)],
        None => groups(queries.layout(), documents.layout())
            .into_iter()
            .map(|group| Ok(Part::Tokens(queries.items(group)?)))
            .collect::<Result<Vec<_>>>()?,
    };
    let (mut kernels, mut n_chunks) = (Vec::new(), 0);
    let mut chunk_bytes = first_chunk_bytes(request.chunk_bytes, device)?;
    let mut start = 0;
    while start < documents.n_items() {
        let layout = documents.layout();
        let row_bytes = layout.dim() * format.size_bytes();
        let (items, bytes) = chunk(layout, row_bytes, n_queries, start, chunk_bytes);
        let pairing = Pairing::cross();
        let scored = read(items.clone()).and_then(|part| {
            let mut scores = Vec::new();
            for queries in &queries {
                let more = device.score_any(queries, &part, &pairing, options)?.into_values();
                request.progress.inc(more.len() as u64);
                match scores.is_empty() {
                    true => scores = more,
                    false => scores.extend(more),
                }
            }
            Ok((device.plan_any(&queries[0], &part, &pairing, options)?.name(), scores))
        });
        let (kernel, scores) = match scored {
            // Another process may hold the device's memory: smaller chunks then.
            Err(error) if items.len() > 1 && is_out_of_memory(&error) => {
                chunk_bytes = bytes / 2;
                continue;
            }
            scored => scored?,
        };
        take(&items, &scores)?;
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
        n_chunks += 1;
        start = items.end;
    }
    Ok((kernels, n_chunks))
}

/// The queries of one call on the CPU: all of them, unless documents are so long that a call of one
/// document would show no progress. At least the query tokens that the CPU scores a
/// document against at a time.
fn groups(queries: &TokenLayout, documents: &TokenLayout) -> Vec<Range<usize>> {
    let token_work = (documents.max_len() as u64).saturating_mul(documents.dim() as u64);
    let most = (GROUP_WORK / token_work.max(1)).max(GROUP_TOKENS);
    let (mut groups, mut first, mut tokens) = (Vec::new(), 0, 0);
    for query in 0..queries.n_items() {
        tokens += queries.item_len(query) as u64;
        if tokens >= most {
            groups.push(first..query + 1);
            (first, tokens) = (query + 1, 0);
        }
    }
    // Make a call without queries, too: it names the kernel that would have run.
    if first < queries.n_items() || groups.is_empty() {
        groups.push(first..queries.n_items());
    }
    groups
}

fn is_out_of_memory(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::DeviceMemory { .. }))
}

/// Device memory for the documents of a call: the number asked for, or a share of the free memory.
pub(crate) fn first_chunk_bytes(wanted: Option<u64>, device: &Device) -> Result<u64> {
    Ok(match (wanted, device.memory()?) {
        (Some(bytes), _) => bytes,
        (None, Some(memory)) => CHUNK_BYTES.min(memory.free_bytes / FREE_SHARE),
        (None, None) => CPU_CHUNK_BYTES,
    })
}

/// The documents of the next call: as many from `start` on as `chunk_bytes` hold, at least
/// one; and how much device memory they need, in bytes.
fn chunk(
    layout: &TokenLayout,
    row_bytes: usize,
    n_queries: usize,
    start: usize,
    chunk_bytes: u64,
) -> (Range<usize>, u64) {
    // Devices pad rows to 16 bytes.
    let row_bytes = row_bytes.next_multiple_of(16) as u64;
    let score_bytes = size_of::<f32>() as u64 * n_queries as u64;
    let mut bytes = 0u64;
    let (mut first_row, mut end_row) = (u64::MAX, 0);
    for document in start..layout.n_items() {
        let n_documents = (document - start) as u64 + 1;
        let [row, len] = layout.segments()[document].map(u64::from);
        if len > 0 {
            (first_row, end_row) = (first_row.min(row), end_row.max(row + len));
        }
        // Rows between documents (padding) travel with them.
        let rows = end_row.saturating_sub(first_row);
        let with_document = rows * row_bytes + n_documents * (score_bytes + DOCUMENT_BYTES);
        let fits = with_document <= chunk_bytes && n_documents * n_queries as u64 <= MAX_PAIRS;
        if document > start && !fits {
            return (start..document, bytes);
        }
        bytes = with_document;
    }
    (start..layout.n_items(), bytes)
}

/// Adds the scores `[n_queries, n_documents of the chunk]` to the running top-k.
fn merge(
    best: &mut [TopK],
    scores: &[f32],
    items: &Range<usize>,
    has_tokens: impl Fn(usize) -> bool + Sync,
) {
    best.par_iter_mut().zip(scores.par_chunks(items.len())).for_each(|(best, scores)| {
        for (document, &score) in items.clone().zip(scores) {
            // A layout has fewer than 2³¹ items.
            let id = document as u32;
            best.push(Ranked { id, score, has_tokens: has_tokens(document) });
        }
    });
}

/// Refuses NaN, and unless that is allowed infinities, among the scores
/// `[n_queries, n_documents of the chunk]` of the queries from `first_query` on.
pub fn check_numbers(
    scores: &[f32],
    first_query: usize,
    items: &Range<usize>,
    allow_infinite: bool,
) -> Result<()> {
    let is_bad = |score: &f32| score.is_nan() || score.is_infinite() && !allow_infinite;
    if let Some(p) = scores.iter().position(is_bad) {
        let (query, document) = (first_query + p / items.len(), items.start + p % items.len());
        bail!(BadScore { query, document, score: scores[p] });
    }
    Ok(())
}
