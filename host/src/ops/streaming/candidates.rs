//! Candidates of an earlier stage, read from where the corpus is and ranked.

use super::options::StreamOptions;
use super::scored::StreamScored;
use super::scored_pairs::ScoredPairs;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::problem::ranking::{Ranked, Ranking, TopK};
use crate::residual::streamed::ResidualSource;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::{Source, masked};

impl Device {
    /// The best `k` of each query's own candidates, `candidates[query]`, whose tokens are read from
    /// a source that holds the whole corpus: what a first stage has found, scored in full
    /// precision. Each candidate is read once, however many queries have it, and no more of them
    /// than a buffer holds are in memory at once.
    ///
    /// Coarse to fine over a corpus that fits nowhere: codes pass by, and what they find is read.
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Tokens};
    ///
    /// let device = Device::best();
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[0.6f32, 0.8, 0.96, 0.28, 0.0, 1.0], 3, 1, 2)?;
    /// let codes = documents.quantize::<Int8>(ScaleType::F16)?; // in a file, say
    /// let query_codes = queries.quantize::<Int8>(ScaleType::F16)?;
    ///
    /// let options = StreamOptions::default();
    /// let coarse = device.search_stream(&query_codes, &codes, 2, &options)?;
    /// let ids = |ranking: &maxsim::Ranking| ranking.ranked.iter().map(|found| found.id).collect();
    /// let candidates: Vec<Vec<u32>> = coarse.rankings.iter().map(ids).collect();
    /// let fine = device.rank_candidates(&queries, &documents, &candidates, 1, &options)?;
    /// assert_eq!((fine[0].ranked[0].id, fine[0].ranked[0].score), (1, 0.96));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where there are not as many lists as queries, [`Error::Id`] for a candidate
    /// that there is not. Those of [`Device::search_stream`].
    pub fn rank_candidates<'a, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: impl Into<TokensRef<'a, Q>>,
        source: &impl Source<D>,
        candidates: &[Vec<u32>],
        k: usize,
        options: &StreamOptions,
    ) -> Result<Vec<Ranking>> {
        let layout = masked(source.layout(), source.mask())?;
        let options = options.clone().score(options.score_alone());
        ranked(candidates, k, &layout, |take| {
            self.score_candidates(queries, source, candidates, &options, take)
        })
    }

    /// As [`Device::rank_candidates`], of residual-compressed documents, as
    /// [`Device::search_residual_stream`] has them.
    ///
    /// ```
    /// use maxsim::residual::ResidualTokens;
    /// use maxsim::streaming::StreamOptions;
    /// use maxsim::{Device, Ranking, Result, Tokens};
    ///
    /// /// The best ten of each query's candidates.
    /// fn rank(
    ///     queries: &Tokens<'_, f32>,
    ///     corpus: &ResidualTokens<'_>,
    ///     candidates: &[Vec<u32>],
    /// ) -> Result<Vec<Ranking>> {
    ///     let options = StreamOptions::default();
    ///     Device::cpu().rank_residual_candidates(queries, corpus, candidates, 10, &options)
    /// }
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::rank_candidates`] and [`Device::search_residual_stream`];
    /// [`Error::Unsupported`] for arranged documents.
    pub fn rank_residual_candidates<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        source: &impl ResidualSource,
        candidates: &[Vec<u32>],
        k: usize,
        options: &StreamOptions,
    ) -> Result<Vec<Ranking>> {
        let layout = masked(source.layout(), source.mask())?;
        let options = options.clone().score(options.score_alone());
        ranked(candidates, k, &layout, |take| {
            self.score_residual_candidates(queries, source, candidates, &options, take)
        })
    }
}

/// What is given scores of some pairs after the other.
type Take<'a> = &'a mut dyn FnMut(ScoredPairs<'_>) -> Result<()>;

/// The best of each query's candidates, of documents of a layout, by the scores that `score` gives.
fn ranked(
    candidates: &[Vec<u32>],
    k: usize,
    layout: &TokenLayout,
    score: impl FnOnce(Take<'_>) -> Result<StreamScored>,
) -> Result<Vec<Ranking>> {
    let mut best = vec![TopK::new(k); candidates.len()];
    let _ = score(&mut |scored| {
        for (&[query, id], &score) in scored.pairs.iter().zip(scored.scores.values()) {
            let has_tokens = layout.has_tokens(id as usize);
            best[query as usize].push(Ranked { id, score, has_tokens });
        }
        Ok(())
    })?;
    Ok(best.into_iter().map(TopK::into_ranking).collect())
}

/// The candidates of all queries, each once, in rising order.
pub(super) fn wanted(candidates: &[Vec<u32>], n_items: usize) -> Result<Vec<u32>> {
    let mut wanted: Vec<u32> = Vec::new();
    for list in candidates {
        if let Some(index) = list.iter().position(|&id| id as usize >= n_items) {
            let found = list[index].into();
            return Err(Error::Id { argument: "candidates", index, found, n_items });
        }
        wanted.extend(list);
    }
    wanted.sort_unstable();
    wanted.dedup();
    Ok(wanted)
}
