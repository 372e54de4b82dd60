//! Scores pairs of a query and a document: candidates, and what a search scores again.

use anyhow::{Result, bail};
use maxsim::format::{Element, Format, ScorableWith};
use maxsim::residual::ResidualSource;
use maxsim::streaming::{ScoredPairs, Source, StreamOptions, StreamScored};
use maxsim::{Device, Devices, Scores, Tokens};

use crate::rank::explain::BadScore;
use crate::rank::sides::{self, Call};
use crate::rank::sources::Found;
use crate::rank::stream::{Calls, Request, is_bad};
use crate::selection::Selected;

/// Scores pairs `[document, query]`, in any order: as many documents on the device at a time as
/// there is room for, each of them once, and no others. `take` gets some of the pairs, as
/// `[query, document]`, with their scores.
///
/// # Errors
/// Where a score is NaN, or infinite unless that is allowed; those of `take`.
pub(crate) fn score(
    request: &Request<'_>,
    pairs: &[[u32; 2]],
    mut take: impl FnMut(&[[u32; 2]], &Scores) -> Result<()> + Send,
) -> Result<Calls> {
    let n_queries = request.queries.n_items();
    let mut lists = vec![Vec::new(); n_queries];
    pairs.iter().for_each(|&[document, query]| lists[query as usize].push(document));
    let take = |found: ScoredPairs<'_>| {
        let scores = found.pairs.iter().zip(found.scores.values());
        let bad = scores.filter(|(_, score)| is_bad(**score, request.takes_infinite_scores()));
        if let Some((&[query, document], &score)) = bad.min_by_key(|(pair, _)| (pair[1], pair[0])) {
            let (query, document) = (query as usize, document as usize);
            bail!(BadScore { query, document, score });
        }
        take(found.pairs, found.scores)
    };
    let options = request.stream_options()?;
    // Documents are chosen by the pairs alone.
    let request = Request { selected: &Selected::All, ..*request };
    let Request { device, devices, .. } = request;
    let call = Candidates { device, devices, options: &options, lists: &lists, take };
    Ok(sides::run(&request, 0..n_queries, &Found::default(), call)?.into())
}

/// Scores of each query's own documents.
struct Candidates<'a, F> {
    device: &'a Device,
    devices: Option<&'a Devices>,
    options: &'a StreamOptions,
    lists: &'a [Vec<u32>],
    take: F,
}

impl<F: FnMut(ScoredPairs<'_>) -> Result<()> + Send> Call for Candidates<'_, F> {
    type Output = StreamScored;

    fn of_rows<Q: ScorableWith<D>, D: Format>(
        self,
        queries: &Tokens<'_, Q>,
        documents: &dyn Source<D>,
    ) -> Result<StreamScored> {
        let Candidates { device, devices, options, lists, take } = self;
        match devices {
            Some(devices) => devices.score_candidates(queries, &documents, lists, options, take),
            None => device.score_candidates(queries, &documents, lists, options, take),
        }
    }

    fn of_residuals<T: Element>(
        self,
        queries: &Tokens<'_, T>,
        documents: &dyn ResidualSource,
    ) -> Result<StreamScored> {
        let Candidates { device, devices, options, lists, take } = self;
        let documents = &documents;
        match devices {
            Some(all) => all.score_residual_candidates(queries, documents, lists, options, take),
            None => device.score_residual_candidates(queries, documents, lists, options, take),
        }
    }
}
