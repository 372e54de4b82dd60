//! Ranking in chunks of documents: a running top-k per query, so that neither all scores nor
//! all documents ever have to fit anywhere.

use std::ops::Range;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use maxsim::format::ScaleType;
use maxsim::{Device, Devices, Error, Pairing, Ranked, Ranking, ScoreOptions, TokenLayout, TopK};
use rayon::prelude::*;

use crate::documents::Documents;
use crate::input::{Items, TokenFile};
use crate::rank::explain::BadScore;
use crate::rank::sides::{Part, Sides};
use crate::rank::winners::Winners;
use crate::rank::{pairs, search};
use crate::selection::Selected;

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
pub(super) const DOCUMENT_BYTES: u64 = 16;

/// Largest number of pairs per call.
pub(super) const MAX_PAIRS: u64 = maxsim::layout::MAX_COUNT as u64 - 1;

/// Inputs and options of a ranking.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Queries. All of them are uploaded at once.
    pub queries: &'a TokenFile,
    /// Documents, of the queries' element type and dim, or compressed.
    pub documents: &'a Documents<'a>,
    /// Documents that are ranked for each query. No others are read.
    pub selected: &'a Selected,
    /// Device that computes.
    pub device: &'a Device,
    /// Devices that share the documents, of which that is the first, where there are to be several.
    pub devices: Option<&'a Devices>,
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
    /// Calls that were made.
    pub calls: Calls,
    /// Certainty of the rankings, of a search of compressed documents.
    pub search: Option<Search>,
    /// Matched tokens of each query's listed documents, where they were asked for.
    pub winners: Option<Vec<Winners>>,
}

/// Calls that a run made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Names of the kernels that ran (or `cpu`), in order of first use.
    pub kernels: Vec<&'static str>,
    /// How many there were.
    pub n_chunks: usize,
}

impl Calls {
    /// Adds calls of some kernels.
    pub(super) fn add(&mut self, more: Calls) {
        for kernel in more.kernels {
            if !self.kernels.contains(&kernel) {
                self.kernels.push(kernel);
            }
        }
        self.n_chunks += more.n_chunks;
    }

    /// Adds a call.
    pub(super) fn count(&mut self, kernel: &'static str) {
        self.add(Calls { kernels: vec![kernel], n_chunks: 1 });
    }
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
    if request.devices.is_some() || request.device.ordinal().is_some() {
        if let Some(outcome) = search::rank(request)? {
            return Ok(outcome);
        }
        request.progress.reset();
    }
    let n_queries = request.queries.n_items();
    let mut best = vec![TopK::new(request.top_k); n_queries];
    let has_tokens = |id| request.documents.layout().has_tokens(id);
    let calls = match request.selected {
        Selected::Each(pairs) => pairs::score(request, pairs, |pairs, scores| {
            for (&[document, query], &score) in pairs.iter().zip(scores.values()) {
                let has_tokens = has_tokens(document as usize);
                best[query as usize].push(Ranked { id: document, score, has_tokens });
            }
            Ok(())
        })?,
        Selected::All | Selected::Same(_) => scores(request, 0..n_queries, |items, scores| {
            check_numbers(scores, 0, items, request.allow_infinite)?;
            merge(&mut best, scores, items, has_tokens);
            Ok(())
        })?,
    };
    let rankings = best.into_iter().map(TopK::into_ranking).collect();
    Ok(Outcome { rankings, calls, search: None, winners: None })
}

/// Scores a range of queries against the selected documents, the same for all, chunk by chunk:
/// `take` gets the documents of a chunk and its scores `[n_queries, n_documents]`.
pub fn scores(
    request: &Request<'_>,
    queries: Range<usize>,
    mut take: impl FnMut(&Items<'_>, &[f32]) -> Result<()>,
) -> Result<Calls> {
    let sides = Sides::new(request, queries)?;
    let Request { device, documents, options, .. } = *request;
    let layout = documents.layout();
    let row_bytes = layout.dim() * sides.format.size_bytes();
    let n_queries = sides.queries.layout().n_items();
    let queries = match device.memory()? {
        Some(_) => vec![Part::Handle(device.upload_any(&sides.queries)?)],
        None => groups(sides.queries.layout(), layout)
            .into_iter()
            .map(|group| Ok(Part::Tokens(sides.queries.items(group)?)))
            .collect::<Result<Vec<_>>>()?,
    };
    let all = request.selected.shared(documents.n_items())?;
    let mut calls = Calls::default();
    let mut chunk_bytes = first_chunk_bytes(request.chunk_bytes, device)?;
    let mut start = 0;
    while start < all.len() {
        let (items, bytes) = chunk(layout, row_bytes, n_queries, &all, start, chunk_bytes);
        let pairing = Pairing::cross();
        let scored = sides.read(&items).and_then(|part| {
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
        calls.count(kernel);
        start += items.len();
    }
    Ok(calls)
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

pub(super) fn is_out_of_memory(error: &anyhow::Error) -> bool {
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

/// The documents of the next call: as many of `all` from place `start` on as `chunk_bytes` hold, at
/// least one; and how much device memory they need, in bytes.
fn chunk<'a>(
    layout: &TokenLayout,
    row_bytes: usize,
    n_queries: usize,
    all: &Items<'a>,
    start: usize,
    chunk_bytes: u64,
) -> (Items<'a>, u64) {
    // Devices pad rows to 16 bytes.
    let row_bytes = row_bytes.next_multiple_of(16) as u64;
    let score_bytes = size_of::<f32>() as u64 * n_queries as u64;
    let (mut bytes, mut copied_rows) = (0u64, 0u64);
    let (mut first_row, mut end_row) = (u64::MAX, 0);
    for place in start..all.len() {
        let n_documents = (place - start) as u64 + 1;
        let document = all.get(place);
        let [row, len] = layout.segments()[document].map(u64::from);
        copied_rows += len;
        if len > 0 {
            (first_row, end_row) = (first_row.min(row), end_row.max(row + len));
        }
        // Rows between documents (padding) travel with them, unless they are copied one by one.
        let follow_each_other = document - all.get(start) == place - start;
        let rows = if follow_each_other { end_row.saturating_sub(first_row) } else { copied_rows };
        let with_document = rows * row_bytes + n_documents * (score_bytes + DOCUMENT_BYTES);
        let fits = with_document <= chunk_bytes && n_documents * n_queries as u64 <= MAX_PAIRS;
        if place > start && !fits {
            return (all.part(start..place), bytes);
        }
        bytes = with_document;
    }
    (all.part(start..all.len()), bytes)
}

/// Adds the scores `[n_queries, n_documents of the chunk]` to the running top-k.
fn merge(
    best: &mut [TopK],
    scores: &[f32],
    items: &Items<'_>,
    has_tokens: impl Fn(usize) -> bool + Sync,
) {
    best.par_iter_mut().zip(scores.par_chunks(items.len())).for_each(|(best, scores)| {
        for (document, &score) in items.iter().zip(scores) {
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
    items: &Items<'_>,
    allow_infinite: bool,
) -> Result<()> {
    if let Some(p) = scores.iter().position(|&score| is_bad(score, allow_infinite)) {
        let (query, document) = (first_query + p / items.len(), items.get(p % items.len()));
        bail!(BadScore { query, document, score: scores[p] });
    }
    Ok(())
}

/// Whether a score is NaN, or infinite unless that is allowed.
pub(super) fn is_bad(score: f32, allow_infinite: bool) -> bool {
    score.is_nan() || score.is_infinite() && !allow_infinite
}
