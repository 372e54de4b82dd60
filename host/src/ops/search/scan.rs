//! A search of one corpus: its scan, and the rounds that re-score what the scan names.

use super::bounds::rescore_bounds;
use super::compressed::SearchTokens;
use super::{Candidate, Certainty, SearchOptions, SearchRanking, Shortlist};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::Result;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::Ranking;
use crate::problem::top_k::K_MAX;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;

/// Most pairs that a call re-scores.
const PAIRS_MAX: usize = 1 << 20;

/// Documents of each query that a GPU selects from a scan, where there are at least four times as
/// many: the scores of all others stay where they are.
const SELECTED: usize = K_MAX;

impl Device {
    /// The best `k` documents of each query: a scan of compressed documents selects candidates,
    /// which are re-scored in full precision. See [`Shortlist`].
    ///
    /// Takes 4 bytes of host memory per query and document, and another 4 where a GPU does not
    /// select what is looked at. [`Shortlist`] is the same for documents that come a chunk at a
    /// time.
    ///
    /// # Errors
    /// The errors of [`Device::score`]. [`Error::Shape`](crate::Error::Shape) where a score is
    /// further from that of the scan than errors reach ([`Shortlist::rescored`]): what was assumed
    /// is not so.
    pub fn search<T: Element, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &SearchTokens<'_, T, Q>,
        documents: &SearchTokens<'_, T, D>,
        k: usize,
        options: &SearchOptions,
    ) -> Result<Vec<SearchRanking>> {
        let is_worth_it = documents.tokens.layout().n_items() / 4 >= SELECTED;
        let is_known = queries.is_known && documents.is_known;
        let bounds = rescore_bounds(&queries.terms, &documents.terms, &Pairing::cross(), T::TYPE)?;
        let mut searches = None;
        // What is only assumed may have scores of codes that no bound knows of.
        if self.ordinal().is_some() && is_worth_it && is_known {
            searches = self.search_selected(queries, documents, &bounds, k, options, SELECTED)?;
        }
        let searches = match searches {
            Some(searches) => searches,
            None => self.search_scores(queries, documents, &bounds, k, options)?,
        };
        let ranking = |search: Shortlist| {
            let mut ranking = search.into_ranking();
            if !is_known {
                ranking.documents.iter_mut().for_each(|found| found.certainty = Certainty::Likely);
            }
            ranking
        };
        Ok(searches.into_iter().map(ranking).collect())
    }

    /// Searches that have seen the scores of all codes, and are over.
    fn search_scores<T: Element, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &SearchTokens<'_, T, Q>,
        documents: &SearchTokens<'_, T, D>,
        bounds: &[f32],
        k: usize,
        options: &SearchOptions,
    ) -> Result<Vec<Shortlist>> {
        let scores = self.score(queries.codes, documents.codes, &Pairing::cross())?;
        let layout = documents.tokens.layout();
        let row_len = layout.n_items().max(1);
        let n_queries = queries.tokens.layout().n_items();
        let mut searches = vec![Shortlist::new(k, *options); n_queries];
        let rows = scores.values().chunks(row_len).zip(bounds.chunks(row_len));
        for (search, (scores, bounds)) in searches.iter_mut().zip(rows) {
            for ((id, &score), &bound) in (0u32..).zip(scores).zip(bounds) {
                let has_tokens = layout.has_tokens(id as usize);
                search.push(Candidate { id, score, bound, has_tokens });
            }
        }
        drop(scores);
        self.rescore_wanted(queries.tokens, documents.tokens, &mut searches)?;
        Ok(searches)
    }

    /// The same of the best `selected` scores of each query alone; `None` where one of the others
    /// might change what is found.
    fn search_selected<T: Element, Q: ScorableWith<D>, D: Format>(
        &self,
        queries: &SearchTokens<'_, T, Q>,
        documents: &SearchTokens<'_, T, D>,
        bounds: &[f32],
        k: usize,
        options: &SearchOptions,
        selected: usize,
    ) -> Result<Option<Vec<Shortlist>>> {
        let new = Shortlist::new(k, *options);
        if new.options.n_candidates > selected {
            return Ok(None);
        }
        let (codes, of_codes) = ((queries.codes, documents.codes), ScoreOptions::default());
        let rankings = self.top_k(codes.0, codes.1, &Pairing::cross(), &of_codes, selected)?;
        let layout = documents.tokens.layout();
        let rows = rankings.iter().zip(bounds.chunks(layout.n_items().max(1)));
        let seen = rows.map(|(ranking, bounds)| Seen::new(&new, ranking, bounds, layout));
        let Some(seen) = seen.collect::<Option<Vec<Seen>>>() else { return Ok(None) };
        let (mut searches, mosts): (Vec<_>, Vec<_>) =
            seen.into_iter().map(|seen| (seen.search, seen.most)).unzip();
        self.rescore_wanted(queries.tokens, documents.tokens, &mut searches)?;
        let are_over = searches.iter_mut().zip(&mosts).all(|(s, &most)| s.is_above(most));
        Ok(are_over.then_some(searches))
    }

    /// Re-scores what searches want until that is nothing.
    fn rescore_wanted<T: Element>(
        &self,
        queries: TokensRef<'_, T>,
        documents: TokensRef<'_, T>,
        searches: &mut [Shortlist],
    ) -> Result<()> {
        let (mut own_queries, mut own_documents) = (None, None);
        let (queries, documents) = match self.ordinal() {
            None => (queries, documents),
            Some(_) => (
                TokensRef::Device(queries.on(self, &mut own_queries)?),
                TokensRef::Device(documents.on(self, &mut own_documents)?),
            ),
        };
        loop {
            let wanted: Vec<[u32; 2]> = (0u32..)
                .zip(&mut *searches)
                .flat_map(|(q, search)| search.wanted().into_iter().map(move |d| [q, d]))
                .collect();
            if wanted.is_empty() {
                return Ok(());
            }
            for pairs in wanted.chunks(PAIRS_MAX) {
                let ids = |i: usize| pairs.iter().map(|pair| pair[i]).collect::<Vec<u32>>();
                let pairing = Pairing::pairs(&ids(0), &ids(1))?;
                let found =
                    self.score_with(queries, documents, &pairing, &ScoreOptions::default())?;
                for (&[q, d], &score) in pairs.iter().zip(found.values()) {
                    searches[q as usize].rescored(d, score)?;
                }
            }
        }
    }
}

/// A search that has seen the documents that a scan scores best.
struct Seen {
    search: Shortlist,
    /// The most that the score of any other can be; −∞ where there is no other.
    most: f32,
}

impl Seen {
    /// Shows a search the best documents of the scan, and those without tokens. `None` where some
    /// of the others may have to be re-scored whatever the best ones give: those of which nothing
    /// is known.
    fn new(
        new: &Shortlist,
        ranking: &Ranking,
        bounds: &[f32],
        documents: &TokenLayout,
    ) -> Option<Seen> {
        let mut search = new.clone();
        let with_tokens = || ranking.ranked.iter().filter(|document| document.has_tokens);
        for document in with_tokens() {
            let bound = bounds[document.id as usize];
            search.push(Candidate {
                id: document.id,
                score: document.score,
                bound,
                has_tokens: true,
            });
        }
        if ranking.n_empty > 0 {
            for id in (0..documents.n_items()).filter(|&id| !documents.has_tokens(id)) {
                search.push(Candidate { id: id as u32, score: 0.0, bound: 0.0, has_tokens: false });
            }
        }
        let n_with_tokens = documents.n_items() as u64 - ranking.n_empty;
        if with_tokens().count() as u64 == n_with_tokens {
            return Some(Seen { search, most: f32::NEG_INFINITY });
        }
        // A bound that is finite is one of a score that is finite.
        let largest = bounds.iter().fold(0.0f32, |largest, &bound| largest.max(bound));
        let are_known = bounds.iter().all(|bound| bound.is_finite());
        let last = ranking.ranked.last()?.score;
        if ranking.n_nan > 0 || !are_known || !last.is_finite() {
            return None;
        }
        // As the search adds them up, which rises with either.
        let most = ((f64::from(last) + f64::from(largest)) as f32).next_up();
        Some(Seen { search, most })
    }
}

impl Shortlist {
    /// Whether what a search has found is the same whatever further documents it had seen, of which
    /// none scores more than `most`.
    fn is_above(&mut self, most: f32) -> bool {
        most == f32::NEG_INFINITY || self.k == 0 || self.kth().is_some_and(|kth| kth.score > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Tokens;
    use crate::tokens::format::Int8;
    use crate::tokens::scales::ScaleType;

    const DIM: usize = 16;

    /// Rows of nearly one direction, whose lengths differ by `spread`, and so their similarities.
    fn rows(n: usize, spread: f32, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut number = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut row = |_| {
            let size = 1.0 + spread * number();
            (0..DIM).map(|_| size * (0.5 + 0.2 * spread * number())).collect::<Vec<f32>>()
        };
        (0..n).flat_map(&mut row).collect()
    }

    /// A search through selections gives what one of all scores does, or nothing.
    fn check(spread: f32, selected: usize, k: usize, exact: bool) -> bool {
        let device = Device::cpu();
        let queries = rows(2, 0.0, 1);
        let queries = Tokens::padded(&queries, 2, 1, DIM).unwrap();
        let data = rows(400, spread, 2);
        let lengths: Vec<i64> = (0..400).map(|i| i64::from(i % 7 != 5)).collect();
        let documents = Tokens::padded(&data, 400, 1, DIM).unwrap();
        let documents = documents.with_lengths(&lengths).unwrap();
        let codes = [&queries, &documents].map(|x| x.quantize::<Int8>(ScaleType::F32).unwrap());
        let queries = SearchTokens::measured(&queries, &codes[0]).unwrap();
        let documents = SearchTokens::measured(&documents, &codes[1]).unwrap();
        let bounds =
            rescore_bounds(&queries.terms, &documents.terms, &Pairing::cross(), f32::TYPE).unwrap();
        let options = SearchOptions::default().n_candidates(12).exact(exact);
        let found = device.search_selected(&queries, &documents, &bounds, k, &options, selected);
        let Some(found) = found.unwrap() else { return false };
        let all = device.search_scores(&queries, &documents, &bounds, k, &options).unwrap();
        for (found, all) in found.into_iter().zip(all) {
            let (found, all) = (found.into_ranking(), all.into_ranking());
            assert_eq!(found, all, "spread {spread}, {selected} selected, k = {k}, {exact}");
            assert!(found.n_empty > 50);
        }
        true
    }

    #[test]
    fn selections_find_what_all_scores_do_or_nothing() {
        for exact in [false, true] {
            for k in [0, 1, 5, 12] {
                for spread in [0.9, 0.3, 0.05, 0.0] {
                    for selected in [20, 60, 343, 400] {
                        let is_found = check(spread, selected, k, exact);
                        // All that have tokens are there.
                        assert!(is_found || selected < 343);
                        // Others are far behind the best.
                        assert!(is_found || spread < 0.9 || selected < 60);
                    }
                    assert!(!check(spread, 11, k, exact), "fewer than the candidates");
                }
            }
        }
        assert!(!check(0.0, 60, 5, true), "documents that score nearly the same");
    }
}
