//! Rankings of documents that pass by: neither all scores nor all documents ever have to fit
//! anywhere.

use std::ops::Range;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use maxsim::format::{Element, Format, ScaleType, ScorableWith};
use maxsim::residual::ResidualSource;
use maxsim::streaming::{ScoredDocuments, Source, StreamOptions, StreamScored};
use maxsim::{Device, Devices, Error, Ranked, Ranking, ScoreOptions, Tokens, TopK};
use rayon::prelude::*;

use crate::documents::Documents;
use crate::input::{Items, TokenFile};
use crate::rank::explain::BadScore;
use crate::rank::sides::{self, Call};
use crate::rank::sources::Found;
use crate::rank::winners::Winners;
use crate::rank::{pairs, search};
use crate::selection::Selected;

/// Device memory for the documents of one call and their scores, unless the caller says
/// otherwise: beyond this a call's fixed cost no longer shows.
const CHUNK_BYTES: u64 = 512 << 20;

/// Memory for the documents of one call on the CPU, where a call costs little and the progress of a
/// run is seen by its calls.
const CPU_CHUNK_BYTES: u64 = 16 << 20;

/// Share of a device's free memory that a call may take: other processes may use it too, and
/// the engines need room of their own.
const FREE_SHARE: u64 = 4;

/// Buffers that a search has on a device at once, and one for scores and what else is there.
const N_BUFFERS: u64 = 4;

/// Buffers that are not made smaller where a device's memory is too little.
const BUFFER_BYTES_MIN: u64 = 1 << 20;

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
    /// Memory for the documents of one call, in bytes, of which a GPU has three; `None`: by the
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
}

impl From<StreamScored> for Calls {
    fn from(done: StreamScored) -> Calls {
        Calls { kernels: done.kernels, n_chunks: done.n_chunks }
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

impl Request<'_> {
    /// Whether infinite scores are taken: angular ones are those of documents without tokens,
    /// unless weights are so large that others may be.
    pub(super) fn takes_infinite_scores(&self) -> bool {
        // A term is at most 2, and rounding may add to it.
        let most = 4.0 * self.queries.layout().max_len() as f64 * self.queries.largest_weight();
        self.allow_infinite || self.options.angular && most < f64::from(f32::MAX)
    }

    /// Options of a call over documents that pass by, which moves the bar.
    pub(super) fn stream_options(&self) -> Result<StreamOptions> {
        let (progress, before) = (self.progress.clone(), self.progress.position());
        Ok(StreamOptions::default()
            .score(self.options.clone())
            .buffer_bytes(self.buffer_bytes()?)
            .progress(move |done| progress.set_position(before + done.pairs)))
    }

    fn buffer_bytes(&self) -> Result<u64> {
        Ok(match (self.chunk_bytes, self.device.memory()?) {
            (Some(bytes), _) => bytes,
            (None, Some(memory)) => CHUNK_BYTES.min(memory.free_bytes / FREE_SHARE) / N_BUFFERS,
            (None, None) => CPU_CHUNK_BYTES,
        })
    }

    /// Runs a ranking, and again with smaller buffers where a device's memory is too little:
    /// another process may hold it.
    pub(super) fn with_less_memory<R>(
        &self,
        mut run: impl FnMut(&Request<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut buffer_bytes = self.buffer_bytes()?;
        loop {
            match run(&Request { chunk_bytes: Some(buffer_bytes), ..*self }) {
                Err(error) if is_out_of_memory(&error) && buffer_bytes > BUFFER_BYTES_MIN => {
                    buffer_bytes /= 2;
                    self.progress.reset();
                }
                done => return done,
            }
        }
    }
}

fn is_out_of_memory(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::DeviceMemory { .. }))
}

/// Ranks, with the formats that the files have. Elements of documents and scores that are not
/// finite are errors; those of queries are the caller's to check.
///
/// Queries of elements are compressed where documents are: in INT8 and FP8 alike, for INT8 affine
/// documents to INT8 where they are f32.
pub fn rank(request: &Request<'_>) -> Result<Outcome> {
    request.with_less_memory(|request| {
        let is_gpu = request.device.ordinal().is_some();
        if request.devices.is_some() || is_gpu {
            if let Some(outcome) = search::rank(request)? {
                return Ok(outcome);
            }
            request.progress.reset();
        }
        by_scores(request)
    })
}

/// Ranks by all scores, each of which is looked at.
fn by_scores(request: &Request<'_>) -> Result<Outcome> {
    let n_queries = request.queries.n_items();
    let mut best = vec![TopK::new(request.top_k); n_queries];
    let has_tokens = |id| request.documents.layout().has_tokens(id);
    let calls = match request.selected {
        Selected::Each(pairs) => pairs::score(request, pairs, |pairs, scores| {
            for (&[query, document], &score) in pairs.iter().zip(scores.values()) {
                let has_tokens = has_tokens(document as usize);
                best[query as usize].push(Ranked { id: document, score, has_tokens });
            }
            Ok(())
        })?,
        Selected::All | Selected::Same(_) => scores(request, 0..n_queries, |items, scores| {
            check_numbers(scores, 0, items, request.takes_infinite_scores())?;
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
    mut take: impl FnMut(&Items<'_>, &[f32]) -> Result<()> + Send,
) -> Result<Calls> {
    let items = request.selected.shared(request.documents.n_items())?;
    let take =
        |found: ScoredDocuments<'_>| take(&items.part(found.documents.clone()), found.scores);
    let call = AllScores { device: request.device, options: &request.stream_options()?, take };
    Ok(sides::run(request, queries, &Found::default(), call)?.into())
}

/// All scores of the selected documents.
struct AllScores<'a, F> {
    device: &'a Device,
    options: &'a StreamOptions,
    take: F,
}

impl<F: FnMut(ScoredDocuments<'_>) -> Result<()> + Send> Call for AllScores<'_, F> {
    type Output = StreamScored;

    fn of_rows<Q: ScorableWith<D>, D: Format>(
        self,
        queries: &Tokens<'_, Q>,
        documents: &dyn Source<D>,
    ) -> Result<StreamScored> {
        self.device.score_stream(queries, &documents, self.options, self.take)
    }

    fn of_residuals<T: Element>(
        self,
        queries: &Tokens<'_, T>,
        documents: &dyn ResidualSource,
    ) -> Result<StreamScored> {
        self.device.score_residual_stream(queries, &documents, self.options, self.take)
    }
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
