//! All scores of documents that pass by, chunk after chunk.

use std::ops::Range;
use std::result::Result;

use super::Passage;
use super::corpus::Corpus;
use super::options::StreamOptions;
use super::taking::Taking;
use crate::cuda::Kept;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Error;
use crate::problem::chunks::Chunk;
use crate::residual::streamed::{ResidualSource, StreamedResiduals};
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::streamed::{Source, Streamed};

/// Scores of documents that follow each other.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScoredDocuments<'a> {
    /// The documents.
    pub documents: Range<usize>,
    /// `[n_queries, n_documents]`, row-major.
    pub scores: &'a [f32],
}

/// What a call that gives scores chunk after chunk has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct StreamScored {
    /// The kernels that ran, in the order of their first use, or `cpu`.
    pub kernels: Vec<&'static str>,
    /// Chunks that were scored one after the other.
    pub n_chunks: usize,
    /// Bytes of the rows that were read.
    pub bytes: u64,
}

impl Device {
    /// Scores all queries against documents that pass by, and gives the scores of each chunk to
    /// `take`: for callers that need more than the best, which [`Device::search_stream`] selects
    /// where scores are. No more than one chunk of documents and scores is in memory at once. An
    /// error of `take` ends the call, and is its error.
    ///
    /// On the CPU documents in memory are scored where they lie ([`Source::view`]), and scores have
    /// the bits of any other call. A GPU has chunks take turns in three buffers, as a search does,
    /// and reads the scores of each.
    ///
    /// ```
    /// use maxsim::streaming::{ScoredDocuments, StreamOptions, StreamScored};
    /// use maxsim::{Device, Error, Tokens};
    ///
    /// let query = Tokens::padded(&[2.0f32], 1, 1, 1)?;
    /// let documents = Tokens::padded(&[1.0f32, 3.0, 2.0], 3, 1, 1)?;
    /// let options = StreamOptions::default().buffer_bytes(8);
    /// let mut above: Vec<usize> = Vec::new();
    /// let take = |found: ScoredDocuments<'_>| -> maxsim::Result<()> {
    ///     let scored = found.documents.zip(found.scores);
    ///     above.extend(scored.filter(|(_, score)| **score > 3.0).map(|(document, _)| document));
    ///     Ok(())
    /// };
    /// let done: StreamScored = Device::cpu().score_stream(&query, &documents, &options, take)?;
    /// assert_eq!((above, done.n_chunks, done.bytes), (vec![1, 2], 2, 12));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::search_stream`], and those of `take`.
    pub fn score_stream<'a, Q: ScorableWith<D>, D: Format, E: From<Error> + Send>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        source: &impl Source<D>,
        options: &StreamOptions,
        take: impl FnMut(ScoredDocuments<'_>) -> Result<(), E> + Send,
    ) -> Result<StreamScored, E> {
        score_chunks(self, queries.into(), &Streamed::new(source)?, options, take)
    }

    /// As [`Device::score_stream`], of residual-compressed documents, as
    /// [`Device::search_residual_stream`] has them.
    ///
    /// ```
    /// use maxsim::residual::ResidualTokens;
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Result, Tokens};
    ///
    /// /// All scores of a query.
    /// fn scores(query: &Tokens<'_, f32>, corpus: &ResidualTokens<'_>) -> Result<Vec<f32>> {
    ///     let (mut all, options) = (Vec::new(), StreamOptions::default());
    ///     let done = Device::cpu().score_residual_stream(query, corpus, &options, |found| {
    ///         all.extend_from_slice(found.scores);
    ///         maxsim::Result::Ok(())
    ///     })?;
    ///     println!("{} bytes", done.bytes);
    ///     Ok(all)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::search_residual_stream`], and those of `take`. [`Error::Unsupported`] for
    /// arranged documents.
    pub fn score_residual_stream<'a, T: Element, E: From<Error> + Send>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        source: &impl ResidualSource,
        options: &StreamOptions,
        take: impl FnMut(ScoredDocuments<'_>) -> Result<(), E> + Send,
    ) -> Result<StreamScored, E> {
        score_chunks(self, queries.into(), &StreamedResiduals::new(source)?, options, take)
    }
}

fn score_chunks<Q: Format, C: Corpus<Q>, E: From<Error> + Send>(
    device: &Device,
    queries: TokensRef<'_, Q>,
    documents: &C,
    options: &StreamOptions,
    take: impl FnMut(ScoredDocuments<'_>) -> Result<(), E> + Send,
) -> Result<StreamScored, E> {
    let passage = Passage::new(std::slice::from_ref(device), options);
    let taking = Taking::new(take);
    let take = |chunk: &Chunk, scores: &[f32]| {
        let documents = chunk.items.clone();
        taking.give(|take| take(ScoredDocuments { documents, scores }))
    };
    let scanned = passage.scan::<Q, C>(queries.layout(), documents, |device, chunks, passed| {
        let kept = Kept::Scores(&take);
        device.search_chunks(queries, documents, chunks, kept, options, passed)
    });
    let _ = taking.end(scanned)?;
    Ok(StreamScored::of(passage))
}

impl StreamScored {
    /// What a call has done.
    pub(super) fn of(passage: Passage<'_>) -> StreamScored {
        let (kernels, n_chunks, bytes) = passage.into_parts();
        StreamScored { kernels, n_chunks, bytes }
    }
}
