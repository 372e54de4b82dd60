//! Scores of pairs whose documents are read from where the corpus is.

use std::ops::Range;
use std::result::Result;

use super::Passage;
use super::candidates::wanted;
use super::corpus::Corpus;
use super::options::{StreamOptions, StreamStage};
use super::scored::StreamScored;
use super::taking::Taking;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Error;
use crate::ops::devices::Devices;
use crate::problem::chunks::{Chunk, shares};
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::residual::streamed::{ResidualSource, StreamedResiduals};
use crate::runtime::alloc::reserve;
use crate::tokens::Tokens;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::check_len;
use crate::tokens::streamed::subset::Subset;
use crate::tokens::streamed::{Source, Streamed};

/// Scores of some pairs of a query and a document.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScoredPairs<'a> {
    /// `[query, document]` of each pair, by query and then by document, as the corpus numbers them.
    pub pairs: &'a [[u32; 2]],
    /// The scores, one per pair, with winners and token scores where they were asked for.
    pub scores: &'a Scores,
}

impl Device {
    /// Scores each query's own candidates, `candidates[query]`, whose tokens are read from a source
    /// that holds the whole corpus, and gives the scores of some pairs after the other to `take`:
    /// for callers that need more than the best, which [`Device::rank_candidates`] gives. Each
    /// candidate is read once, however many queries have it, and no more of them than a buffer
    /// holds are in memory at once. An error of `take` ends the call, and is its error.
    ///
    /// [`StreamOptions::score`](field@StreamOptions::score) may ask for winners and token scores.
    ///
    /// ```
    /// use maxsim::ScoreOptions;
    /// use maxsim::streaming::{ScoredPairs, StreamOptions};
    /// use maxsim::{Device, Error, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 2.0], 2, 1, 1)?;
    /// let documents = Tokens::packed(&[5.0f32, 1.0, 3.0, 4.0], 1, &[0i64, 1, 2, 4])?;
    /// let options = StreamOptions::default().score(ScoreOptions::default().winners(true));
    /// let mut found = Vec::new();
    /// let take = |scored: ScoredPairs<'_>| -> maxsim::Result<()> {
    ///     let winners = scored.scores.winners().unwrap_or_default();
    ///     found.extend(scored.pairs.iter().copied().zip(winners.iter().copied()));
    ///     Ok(())
    /// };
    /// let lists = [vec![2, 1], vec![2]];
    /// let done = Device::cpu().score_candidates(&queries, &documents, &lists, &options, take)?;
    /// assert_eq!(found, [([0, 1], 0), ([0, 2], 1), ([1, 2], 1)]);
    /// assert_eq!(done.bytes, 12); // of documents 1 and 2
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where there are not as many lists as queries, [`Error::Id`] for a candidate
    /// that there is not. Those of [`Device::search_stream`] and [`Device::score_with`], and those
    /// of `take`.
    pub fn score_candidates<'a, Q: ScorableWith<D>, D: Format, E: From<Error>>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        source: &impl Source<D>,
        candidates: &[Vec<u32>],
        options: &StreamOptions,
        take: impl FnMut(ScoredPairs<'_>) -> Result<(), E>,
    ) -> Result<StreamScored, E> {
        let queries = queries.into();
        let ids = checked(queries, candidates, source.layout().n_items())?;
        let some = Subset::new(source, &ids)?;
        let documents = Streamed::new(&some)?;
        Lists { candidates, ids: &ids }.on_one(self, queries, &documents, options, take)
    }

    /// As [`Device::score_candidates`], of residual-compressed documents, as
    /// [`Device::search_residual_stream`] has them.
    ///
    /// ```
    /// use maxsim::residual::ResidualTokens;
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Result, Tokens};
    ///
    /// /// Scores of some documents for one query, by rising id.
    /// fn scores(
    ///     query: &Tokens<'_, f32>,
    ///     corpus: &ResidualTokens<'_>,
    ///     ids: Vec<u32>,
    /// ) -> Result<Vec<f32>> {
    ///     let (mut all, options, lists) = (Vec::new(), StreamOptions::default(), [ids]);
    ///     let take = |found: maxsim::streaming::ScoredPairs<'_>| {
    ///         all.extend_from_slice(found.scores.values());
    ///         maxsim::Result::Ok(())
    ///     };
    ///     let device = Device::cpu();
    ///     let done = device.score_residual_candidates(query, corpus, &lists, &options, take)?;
    ///     println!("{} bytes", done.bytes);
    ///     Ok(all)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::score_candidates`] and [`Device::search_residual_stream`];
    /// [`Error::Unsupported`] for arranged documents.
    pub fn score_residual_candidates<'a, T: Element, E: From<Error>>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        source: &impl ResidualSource,
        candidates: &[Vec<u32>],
        options: &StreamOptions,
        take: impl FnMut(ScoredPairs<'_>) -> Result<(), E>,
    ) -> Result<StreamScored, E> {
        let queries = queries.into();
        let ids = checked(queries, candidates, source.layout().n_items())?;
        let some = Subset::of_residuals(source, &ids)?;
        let documents = StreamedResiduals::new(&some)?;
        Lists { candidates, ids: &ids }.on_one(self, queries, &documents, options, take)
    }
}

impl Devices {
    /// As [`Device::score_candidates`], on GPUs of one kind with the same scores: each device reads
    /// and scores some of its consecutive buffers of candidates; where these are fewer than
    /// devices, some are idle.
    /// `take` is called by one of them at a time, in no order. Queries are in host memory.
    ///
    /// ```
    /// use maxsim::streaming::{ScoredPairs, StreamOptions};
    /// use maxsim::{Devices, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 2.0], 2, 1, 1)?;
    /// let documents = Tokens::packed(&[5.0f32, 1.0, 3.0, 4.0], 1, &[0i64, 1, 2, 4])?;
    /// let (lists, options) = ([vec![2, 1], vec![2]], StreamOptions::default());
    /// let mut found = Vec::new();
    /// let take = |scored: ScoredPairs<'_>| -> maxsim::Result<()> {
    ///     found.extend(scored.pairs.iter().copied().zip(scored.scores.values().iter().copied()));
    ///     Ok(())
    /// };
    /// Devices::all().score_candidates(&queries, &documents, &lists, &options, take)?;
    /// found.sort_by_key(|(pair, _)| *pair);
    /// assert_eq!(found, [([0, 1], 1.0), ([0, 2], 4.0), ([1, 2], 8.0)]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::score_candidates`], from whichever device.
    pub fn score_candidates<Q: ScorableWith<D>, D: Format, E: From<Error> + Send>(
        &self,
        queries: &Tokens<'_, Q>,
        source: &impl Source<D>,
        candidates: &[Vec<u32>],
        options: &StreamOptions,
        take: impl FnMut(ScoredPairs<'_>) -> Result<(), E> + Send,
    ) -> Result<StreamScored, E> {
        let queries = TokensRef::from(queries);
        let ids = checked(queries, candidates, source.layout().n_items())?;
        let some = Subset::new(source, &ids)?;
        let documents = Streamed::new(&some)?;
        Lists { candidates, ids: &ids }.on_all(self, queries, &documents, options, take)
    }

    /// As [`Device::score_residual_candidates`] and [`Devices::score_candidates`].
    ///
    /// ```
    /// use maxsim::residual::ResidualTokens;
    /// use maxsim::streaming::{ScoredPairs, StreamOptions};
    /// use maxsim::{Devices, Result, Tokens};
    ///
    /// /// Counts the pairs that score more than `least`.
    /// fn count(
    ///     queries: &Tokens<'_, f32>,
    ///     corpus: &ResidualTokens<'_>,
    ///     lists: &[Vec<u32>],
    ///     least: f32,
    /// ) -> Result<usize> {
    ///     let (mut n, options) = (0, StreamOptions::default());
    ///     let take = |found: ScoredPairs<'_>| {
    ///         n += found.scores.values().iter().filter(|&&score| score > least).count();
    ///         Result::Ok(())
    ///     };
    ///     Devices::all().score_residual_candidates(queries, corpus, lists, &options, take)?;
    ///     Ok(n)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::score_residual_candidates`], from whichever device.
    pub fn score_residual_candidates<T: Element, E: From<Error> + Send>(
        &self,
        queries: &Tokens<'_, T>,
        source: &impl ResidualSource,
        candidates: &[Vec<u32>],
        options: &StreamOptions,
        take: impl FnMut(ScoredPairs<'_>) -> Result<(), E> + Send,
    ) -> Result<StreamScored, E> {
        let queries = TokensRef::from(queries);
        let ids = checked(queries, candidates, source.layout().n_items())?;
        let some = Subset::of_residuals(source, &ids)?;
        let documents = StreamedResiduals::new(&some)?;
        Lists { candidates, ids: &ids }.on_all(self, queries, &documents, options, take)
    }
}

/// The candidates of all queries, each once, in rising order.
fn checked<Q: Format>(
    queries: TokensRef<'_, Q>,
    candidates: &[Vec<u32>],
    n_documents: usize,
) -> Result<Vec<u32>, Error> {
    let n_queries = queries.layout().n_items();
    check_len("candidates", n_queries, "one list per query", candidates.len())?;
    wanted(candidates, n_documents)
}

/// Candidates of each query, and all of them.
struct Lists<'a> {
    candidates: &'a [Vec<u32>],
    ids: &'a [u32],
}

impl Lists<'_> {
    /// Scores the pairs on a device, `documents` being those of the ids.
    fn on_one<Q: Format, C: Corpus<Q>, E: From<Error>>(
        &self,
        device: &Device,
        queries: TokensRef<'_, Q>,
        documents: &C,
        options: &StreamOptions,
        mut take: impl FnMut(ScoredPairs<'_>) -> Result<(), E>,
    ) -> Result<StreamScored, E> {
        device.check_search(queries, documents, &options.score)?;
        let passage = Passage::new(std::slice::from_ref(device), options);
        passage.begin(StreamStage::Scan, self.ids.len() as u64);
        passage.check()?;
        let chunks = device.chunks_of(queries.layout(), documents, options);
        let call = PairCall { passage: &passage, queries, documents, options };
        call.score(device, &chunks, self, &self.pairs()?, &mut take)?;
        Ok(StreamScored::of(passage))
    }

    /// Scores the pairs on several devices of one kind, each of which takes some consecutive
    /// documents.
    fn on_all<Q: Format, C: Corpus<Q>, E: From<Error> + Send>(
        &self,
        devices: &Devices,
        queries: TokensRef<'_, Q>,
        documents: &C,
        options: &StreamOptions,
        take: impl FnMut(ScoredPairs<'_>) -> Result<(), E> + Send,
    ) -> Result<StreamScored, E> {
        let devices = devices.devices();
        for device in devices {
            device.check_search(queries, documents, &options.score)?;
        }
        let passage = Passage::new(devices, options);
        passage.begin(StreamStage::Scan, self.ids.len() as u64);
        let chunks = devices[0].chunks_of(queries.layout(), documents, options);
        let shares = shares(chunks.iter().map(|chunk| chunk.rows.len()), devices.len());
        let (pairs, taking) = (self.pairs()?, Taking::new(take));
        let call = PairCall { passage: &passage, queries, documents, options };
        let done = passage.on_each(&shares, |device, share: Range<usize>| {
            let mut take = |found: ScoredPairs<'_>| taking.give(|take| take(found));
            call.score(device, &chunks[share], self, &pairs, &mut take)
        });
        let _ = taking.end(done)?;
        Ok(StreamScored::of(passage))
    }

    /// `[document, query]` of all pairs, rising.
    fn pairs(&self) -> Result<Vec<[u32; 2]>, Error> {
        let mut pairs = Vec::new();
        reserve(&mut pairs, self.candidates.iter().map(Vec::len).sum())?;
        for (query, list) in (0u32..).zip(self.candidates) {
            pairs.extend(list.iter().map(|&document| [document, query]));
        }
        pairs.sort_unstable();
        Ok(pairs)
    }
}

/// Pairs by query and then by document, and their pairing with places among `ids`, which rise.
fn by_query(pairs: &[[u32; 2]], ids: &[u32]) -> Result<(Vec<[u32; 2]>, Pairing), Error> {
    let mut by_query = Vec::new();
    reserve(&mut by_query, pairs.len())?;
    by_query.extend(pairs.iter().map(|&[document, query]| [query, document]));
    by_query.sort_unstable();
    let place = |document: u32| ids.partition_point(|&id| id < document) as u32;
    let queries: Vec<u32> = by_query.iter().map(|&[query, _]| query).collect();
    let places: Vec<u32> = by_query.iter().map(|&[_, document]| place(document)).collect();
    Ok((by_query, Pairing::pairs(&queries, &places)?))
}

/// What the chunks of a call share.
struct PairCall<'a, Q: Format, C> {
    passage: &'a Passage<'a>,
    queries: TokensRef<'a, Q>,
    documents: &'a C,
    options: &'a StreamOptions,
}

impl<Q: Format, C: Corpus<Q>> PairCall<'_, Q, C> {
    /// Scores some consecutive chunks on a device; `pairs` are `[document, query]` of all
    /// documents, rising.
    fn score<E: From<Error>>(
        &self,
        device: &Device,
        chunks: &[Chunk],
        lists: &Lists<'_>,
        pairs: &[[u32; 2]],
        take: &mut dyn FnMut(ScoredPairs<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let PairCall { passage, queries, documents, options } = *self;
        if chunks.is_empty() {
            return Ok(());
        }
        let mut own = None;
        let queries = match device.ordinal() {
            Some(_) => TokensRef::Device(queries.on(device, &mut own)?),
            None => queries,
        };
        for chunk in chunks {
            passage.check()?;
            let ids = &lists.ids[chunk.items.clone()];
            let [Some(&first), Some(&last)] = [ids.first(), ids.last()] else { continue };
            let start = pairs.partition_point(|pair| pair[0] < first);
            let end = pairs.partition_point(|pair| pair[0] <= last);
            let (pairs, pairing) = by_query(&pairs[start..end], ids)?;
            let mut found = None;
            documents.with_part(device, chunk.items.clone(), &mut |score| {
                found = Some(score(queries, &pairing, &options.score)?);
                Ok(())
            })?;
            let Some((kernel, scores)) = found else { continue };
            take(ScoredPairs { pairs: &pairs, scores: &scores })?;
            passage.note(&[kernel], 1);
            let bytes = (chunk.rows.len() * documents.row_bytes()) as u64;
            passage.count(pairs.len(), ids.len(), bytes)?;
        }
        Ok(())
    }
}
