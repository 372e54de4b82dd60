//! A search of one corpus: what its scan scores best, and what else may change what is found.

use std::ops::Range;

use super::compressed::SearchTokens;
use super::pair_bounds::PairBounds;
use super::rounds::Rescorer;
use super::scanned::Scanned;
use super::{Candidate, SearchOptions, SearchRanking, Shortlist, most};
use crate::device::Device;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::pairing::Pairing;
use crate::problem::ranking::{Ranked, Ranking};
use crate::problem::top_k::K_MAX;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;

/// Documents of each query that a GPU selects from a scan at first, or twice the candidates where
/// that is more.
const SELECTED_MIN: usize = 256;

/// How many times as many it selects next, where the others may change what is found.
const SELECTED_GROWTH: usize = 8;

/// Bytes of scores that are copied to the host rather than selected from once more.
const COPIED_BYTES: usize = 1 << 20;

/// Bytes of scores that are looked at together.
const BLOCK_BYTES: usize = 8 << 20;

impl Device {
    /// The best `k` documents of each query: a scan of compressed documents selects candidates,
    /// which are re-scored in full precision. See [`Shortlist`].
    ///
    /// On a GPU the scores of the scan stay there: the best of them are copied to the host, and of
    /// others what may change what is found. Calls with documents of one [`SearchTokens`], whose
    /// tokens and codes are handles, prepare and upload nothing but their queries. On the CPU a
    /// call takes 4 bytes of host memory per query and document. [`Shortlist`] is the same for
    /// documents that come a chunk at a time.
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
        let (of_queries, of_documents) = (queries.codes.layout(), documents.codes.layout());
        let _ = Problem::new(of_queries, of_documents, &Pairing::cross())?;
        let is_known = queries.is_known && documents.is_known;
        let scanned = Scanned::new(self, queries.codes, documents.codes)?;
        let (mut own_queries, mut own_documents) = (None, None);
        let search = Search {
            bounds: PairBounds::of_rescored(&queries.terms, &documents.terms, T::TYPE),
            layout: documents.tokens.layout(),
            scanned,
            rescorer: match self.ordinal() {
                None => Rescorer::new(self, queries.tokens, documents.tokens),
                Some(_) => {
                    let queries = queries.tokens.sent_to(self, &mut own_queries)?;
                    let documents = documents.tokens.on(self, &mut own_documents)?;
                    Rescorer::new(self, queries.into(), documents.into())
                }
            },
            new: Shortlist::new(k, *options),
            searches: Vec::new(),
            copied_bytes: COPIED_BYTES,
        };
        // What is only assumed may have scores of codes that no bound knows of.
        let selected = search.first_selection().filter(|_| self.ordinal().is_some() && is_known);
        let searches = search.run(selected)?.into_iter();
        Ok(searches.map(|search| search.into_ranking_if(is_known)).collect())
    }
}

/// A search of one corpus for several queries.
struct Search<'a, T: Element> {
    bounds: PairBounds<'a>,
    layout: &'a TokenLayout,
    scanned: Scanned,
    rescorer: Rescorer<'a, T>,
    /// A search that has seen nothing.
    new: Shortlist,
    /// One for each query.
    searches: Vec<Shortlist>,
    /// Bytes of scores that are copied rather than selected from once more.
    copied_bytes: usize,
}

/// The documents that a search has not seen, where there are such.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unseen {
    /// The last document that was seen: all others come behind it in the ranking of the scan.
    last: Ranked,
    /// What no bound is above.
    largest: f32,
}

impl<T: Element> Search<'_, T> {
    /// Documents of each query to select first; `None` where all scores are as soon looked at.
    fn first_selection(&self) -> Option<usize> {
        let n_candidates = self.new.options.n_candidates;
        let wanted = n_candidates.saturating_mul(2).checked_next_power_of_two()?;
        let selected = wanted.clamp(SELECTED_MIN, K_MAX);
        (n_candidates <= selected && selected <= self.layout.n_items() / 4).then_some(selected)
    }

    /// Runs the searches to their ends, by the best `selected` scores where these are enough to
    /// know the candidates, or else by all scores.
    fn run(mut self, selected: Option<usize>) -> Result<Vec<Shortlist>> {
        self.begin();
        let is_done = match selected {
            Some(selected) => self.run_selected(selected)?,
            None => false,
        };
        if !is_done {
            self.begin();
            self.push_all()?;
            self.rescore_all()?;
        }
        Ok(self.searches)
    }

    /// Begins all searches, anew where they had begun.
    fn begin(&mut self) {
        self.searches = vec![self.new.clone(); self.bounds.n_queries()];
    }

    /// Re-scores what searches want until that is nothing.
    fn rescore_all(&mut self) -> Result<()> {
        while self.rescorer.round(&mut self.searches)? {}
        Ok(())
    }

    /// Shows the searches all documents.
    fn push_all(&mut self) -> Result<()> {
        let n_documents = self.layout.n_items();
        if n_documents == 0 {
            return Ok(());
        }
        let at_once = (BLOCK_BYTES / 4 / n_documents).max(1);
        for (first, searches) in (0..).step_by(at_once).zip(self.searches.chunks_mut(at_once)) {
            let queries = first..first + searches.len();
            let scores = self.scanned.rows(queries.clone(), n_documents)?;
            for (query, (search, row)) in
                queries.zip(searches.iter_mut().zip(scores.chunks(n_documents)))
            {
                for (id, &score) in (0u32..).zip(row) {
                    let bound = self.bounds.of(query, id as usize);
                    let has_tokens = self.layout.has_tokens(id as usize);
                    search.push(Candidate { id, score, bound, has_tokens });
                }
            }
        }
        Ok(())
    }

    /// Runs the searches by the best `selected` scores, and by whatever others may change what is
    /// found. Whether that could be: not where the best scores do not say which documents are
    /// candidates, since of some nothing is known.
    fn run_selected(&mut self, selected: usize) -> Result<bool> {
        if self.new.options.n_candidates > selected {
            return Ok(false);
        }
        // Where all scores are on the host, the best are those that have to be known.
        let selected = match self.scanned.copy_few()? {
            true => self.new.options.n_candidates.max(1),
            false => selected,
        };
        let rankings = self.scanned.best(self.layout, selected)?;
        let shown = rankings.iter().zip(&mut self.searches).enumerate();
        let unseen =
            shown.map(|(query, (ranking, search))| self.bounds.show(query, ranking, search));
        let Some(unseen) = unseen.collect::<Option<Vec<_>>>() else { return Ok(false) };
        // The candidates. Their scores say which of the others matter.
        let _ = self.rescorer.round(&mut self.searches)?;
        if !self.widen(unseen, selected)? {
            return Ok(false);
        }
        self.rescore_all()?;
        Ok(true)
    }

    /// Shows the searches those documents that they have not seen which may change what is found:
    /// what larger selections have, and in the end what all scores have. Whether the selections say
    /// which these are.
    fn widen(&mut self, mut unseen: Vec<Option<Unseen>>, mut selected: usize) -> Result<bool> {
        let n_documents = self.layout.n_items();
        loop {
            let searches = self.searches.iter_mut().zip(&mut unseen);
            searches.for_each(|(search, unseen)| {
                // What is behind the last one changes nothing.
                unseen.take_if(|unseen| search.is_above(unseen.most()));
            });
            let mut open = (0..unseen.len()).filter(|&query| unseen[query].is_some());
            let Some(first) = open.next() else { return Ok(true) };
            let queries = first..open.next_back().unwrap_or(first) + 1;
            let larger = selected.saturating_mul(SELECTED_GROWTH).min(K_MAX);
            if larger <= selected || queries.len() * n_documents * 4 <= self.copied_bytes {
                self.push_unseen(&unseen, queries)?;
                return Ok(true);
            }
            let rankings = self.scanned.best(self.layout, larger)?;
            for (query, ranking) in rankings.iter().enumerate() {
                let Some(Unseen { largest, .. }) = unseen[query] else { continue };
                let search = &mut self.searches[query];
                let least = search.least(largest);
                // The first are those of the selection before; scores fall.
                let more = ranking.ranked.iter().skip(selected);
                for document in more.take_while(|more| more.has_tokens && more.score >= least) {
                    search.push(self.bounds.candidate(query, document));
                }
                unseen[query] =
                    match (self.bounds.seen_by(ranking), Unseen::behind(ranking, largest)) {
                        (true, _) => None,
                        (false, None) => return Ok(false),
                        (false, unseen) => unseen,
                    };
            }
            selected = larger;
        }
    }

    /// Shows some of the searches the documents that they have not seen, by all scores.
    fn push_unseen(&mut self, unseen: &[Option<Unseen>], queries: Range<usize>) -> Result<()> {
        let n_documents = self.layout.n_items();
        let at_once = (BLOCK_BYTES / 4 / n_documents).max(1);
        let are_full = !self.layout.has_empty_items();
        for first in queries.clone().step_by(at_once) {
            let some = first..queries.end.min(first + at_once);
            let scores = self.scanned.rows(some.clone(), n_documents)?;
            for (query, row) in some.zip(scores.chunks(n_documents)) {
                let Some(Unseen { last, largest }) = unseen[query] else { continue };
                let search = &mut self.searches[query];
                let least = search.least_best(largest) as f32;
                for (id, score, bound) in self.bounds.linear(query).reaching(row, least) {
                    let is_behind = score < last.score || score == last.score && id > last.id;
                    if is_behind && (are_full || self.layout.has_tokens(id as usize)) {
                        search.push(Candidate { id, score, bound, has_tokens: true });
                    }
                }
            }
        }
        Ok(())
    }
}

impl PairBounds<'_> {
    /// Shows a search the documents of a ranking of its scan, and those without a token. Gives
    /// those that it has not seen, where there are such; `None` where something about them is not
    /// known: all scores have to be looked at.
    pub(crate) fn show(
        &self,
        query: usize,
        ranking: &Ranking,
        search: &mut Shortlist,
    ) -> Option<Option<Unseen>> {
        let unseen = match self.seen_by(ranking) {
            true => None,
            false => Some(Unseen::behind(ranking, self.largest(query))?),
        };
        for document in ranking.ranked.iter().filter(|document| document.has_tokens) {
            search.push(self.candidate(query, document));
        }
        for &id in if ranking.n_empty > 0 { self.empty() } else { &[] } {
            search.push(Candidate { id, score: 0.0, bound: 0.0, has_tokens: false });
        }
        Some(unseen)
    }

    /// Whether a ranking has all documents that have a token.
    fn seen_by(&self, ranking: &Ranking) -> bool {
        let seen = ranking.ranked.iter().filter(|document| document.has_tokens).count() as u64;
        seen + ranking.n_empty == self.n_documents() as u64
    }

    /// A document with a token as a search takes it.
    fn candidate(&self, query: usize, document: &Ranked) -> Candidate {
        let &Ranked { id, score, has_tokens } = document;
        Candidate { id, score, bound: self.of(query, id as usize), has_tokens }
    }
}

impl Unseen {
    /// The documents behind those of a ranking, which are there; `None` where something about them
    /// is not known: all scores have to be looked at.
    fn behind(ranking: &Ranking, largest: f32) -> Option<Unseen> {
        let last = *ranking.ranked.last()?;
        // A bound that is finite is one of a score that is finite, and of half of what f32 holds:
        // whatever such a score can be is finite, too.
        let are_known = ranking.n_nan == 0 && largest < f32::MAX / 4.0 && last.score.is_finite();
        are_known.then_some(Unseen { last, largest })
    }

    /// The most that the score of one of them can be: as a search adds them up, which rises with
    /// either.
    pub(crate) fn most(&self) -> f32 {
        most(self.last.score, self.largest)
    }
}

impl Shortlist {
    /// Whether what a search has found is the same whatever further documents it had seen, of which
    /// none scores more than `most`.
    fn is_above(&mut self, most: f32) -> bool {
        self.k == 0 || self.kth().is_some_and(|kth| kth.score > most)
    }

    /// The threshold of the scan's scores: a document below it, with a bound up to `largest`,
    /// cannot change the ranking.
    fn least(&mut self, largest: f32) -> f32 {
        (self.least_best(largest) - f64::from(largest)) as f32
    }

    /// What the sum of score and bound must be for a document to change the ranking, with a bound
    /// up to `largest`. Less than the k-th score by more than rounding moves the sum by: see
    /// [`most`] and [`LinearBounds::reaching`](super::pair_bounds::LinearBounds::reaching).
    fn least_best(&mut self, largest: f32) -> f64 {
        match self.kth() {
            Some(kth) if !kth.score.is_nan() => {
                let magnitude = f64::from(kth.score.abs()) + f64::from(largest);
                let slack = 16.0 * f64::from(f32::EPSILON) * magnitude;
                f64::from(kth.score) - slack - f64::from(f32::MIN_POSITIVE)
            }
            _ => f64::NEG_INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::search::Hit;
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

    /// A search through selections gives what one of all scores does. Whether it is one, and did
    /// not look at all scores itself.
    fn check(
        documents: &Tokens<'_, f32>,
        selected: usize,
        k: usize,
        exact: bool,
        copied_bytes: usize,
    ) -> bool {
        let device = Device::cpu();
        let queries = rows(2, 0.0, 1);
        let queries = Tokens::padded(&queries, 2, 1, DIM).unwrap();
        let codes = [&queries, documents].map(|x| x.quantize::<Int8>(ScaleType::F32).unwrap());
        let queries = SearchTokens::measured(&queries, &codes[0]).unwrap();
        let documents = SearchTokens::measured(documents, &codes[1]).unwrap();
        let options = SearchOptions::default().n_candidates(12).exact(exact);
        let search = || Search {
            bounds: PairBounds::of_rescored(&queries.terms, &documents.terms, f32::TYPE),
            layout: documents.tokens.layout(),
            scanned: Scanned::new(&device, queries.codes, documents.codes).unwrap(),
            rescorer: Rescorer::new(&device, queries.tokens, documents.tokens),
            new: Shortlist::new(k, options),
            searches: Vec::new(),
            copied_bytes,
        };
        let found = search().run(Some(selected)).unwrap();
        let all = search().run(None).unwrap();
        for (found, all) in found.into_iter().zip(all) {
            let (found, all) = (found.into_ranking(), all.into_ranking());
            let same = |(a, b): (&Hit, &Hit)| {
                (a.id, a.score.to_bits(), a.certainty) == (b.id, b.score.to_bits(), b.certainty)
            };
            let are_same = found.documents.iter().zip(&all.documents).all(same);
            let counts = |r: &SearchRanking| (r.documents.len(), r.n_rescored, r.n_nan, r.n_empty);
            assert!(
                are_same && counts(&found) == counts(&all),
                "{selected} selected, k = {k}, {exact}: {found:?} instead of {all:?}"
            );
            assert!(found.n_empty > 50);
        }
        let mut search = search();
        search.begin();
        search.run_selected(selected).unwrap()
    }

    #[test]
    fn selections_find_what_all_scores_do() {
        let lengths: Vec<i64> = (0..400).map(|i| i64::from(i % 7 != 5)).collect();
        for spread in [0.9, 0.3, 0.05, 0.0] {
            let data = rows(400, spread, 2);
            let documents = Tokens::padded(&data, 400, 1, DIM).unwrap();
            let documents = documents.with_lengths(&lengths).unwrap();
            for exact in [false, true] {
                for k in [0, 1, 5, 12] {
                    for selected in [12, 20, 60, 343, 400] {
                        for copied_bytes in [0, usize::MAX] {
                            assert!(check(&documents, selected, k, exact, copied_bytes));
                        }
                    }
                    assert!(!check(&documents, 11, k, exact, 0), "fewer than the candidates");
                }
            }
        }
    }

    /// Where of a document nothing is known, it is a candidate, wherever the scan has it.
    #[test]
    fn what_no_bound_is_known_of_is_found_by_all_scores() {
        let lengths: Vec<i64> = (0..400).map(|i| i64::from(i % 7 != 5)).collect();
        for strange in [f32::NAN, f32::INFINITY, f32::MAX] {
            let mut data = rows(400, 0.3, 2);
            data[300 * DIM] = strange;
            let documents = Tokens::padded(&data, 400, 1, DIM).unwrap();
            let documents = documents.with_lengths(&lengths).unwrap();
            for exact in [false, true] {
                assert!(!check(&documents, 60, 5, exact, 0), "{strange}");
            }
        }
    }

    /// Where the sum of three products overflows, and the bound itself does not, documents are
    /// found as others are: a query of 7 · 10¹⁸ in all elements, whose codes are 0, and documents
    /// that have as much in one.
    #[test]
    fn bounds_whose_products_overflow_are_bounds() {
        const WIDE: usize = 64;
        let size = 7e18f32;
        let (all, none) = ([size; WIDE], [0.0; WIDE]);
        let query = Tokens::padded(&all, 1, 1, WIDE).unwrap();
        let nothing = Tokens::padded(&none, 1, 1, WIDE).unwrap();
        let mut rows = vec![0.0f32; 300 * WIDE];
        (0..300).for_each(|i| rows[i * WIDE + i % WIDE] = size * (1.0 - i as f32 / 1000.0));
        rows.rotate_left(100 * WIDE);
        let documents = Tokens::padded(&rows, 300, 1, WIDE).unwrap();
        let codes = [&nothing, &documents].map(|x| x.quantize::<Int8>(ScaleType::F32).unwrap());
        let queries = SearchTokens::measured(&query, &codes[0]).unwrap();
        let documents = SearchTokens::measured(&documents, &codes[1]).unwrap();
        let bounds = PairBounds::of_rescored(&queries.terms, &documents.terms, f32::TYPE);
        let linear = bounds.linear(0).reaching(&[0.0; 300], 0.0);
        assert!(bounds.largest(0) < f32::MAX / 4.0 && linear[200].2 == f32::INFINITY);
        let device = Device::cpu();
        let search = Search {
            bounds,
            layout: documents.tokens.layout(),
            scanned: Scanned::new(&device, queries.codes, documents.codes).unwrap(),
            rescorer: Rescorer::new(&device, queries.tokens, documents.tokens),
            new: Shortlist::new(3, SearchOptions::default().n_candidates(12).exact(true)),
            searches: Vec::new(),
            copied_bytes: usize::MAX,
        };
        let found = search.run(Some(20)).unwrap().remove(0).into_ranking();
        let ids: Vec<u32> = found.documents.iter().map(|hit| hit.id).collect();
        assert_eq!(ids, [200, 201, 202]);
    }

    /// What is below the threshold is below the k-th, whatever the numbers.
    #[test]
    fn thresholds_leave_nothing_out() {
        let numbers = [0.0, 1e-42, 1e-38, 0.1, 1.0, 20.0, 3e9, 1e37];
        for kth in numbers.into_iter().flat_map(|x: f32| [x, -x]) {
            for largest in numbers {
                let mut search = Shortlist::new(1, SearchOptions::default());
                search.rescored.push(Ranked { id: 0, score: kth, has_tokens: true });
                let least = search.least(largest);
                assert!(most(least.next_down(), largest) < kth, "{kth}, {largest}: {least}");
                // And not much more is looked at.
                let slack = 1e-5 * (kth.abs() + largest) + 1e-37;
                assert!(most(least, largest) > kth - slack, "{kth}, {largest}: {least}");
            }
        }
    }
}
