//! A search of one corpus: what its scan scores best, and what else may change what is found.

#[cfg(test)]
mod tests;

use std::ops::Range;

use maxsim_kernels::abi::params::search::threshold;

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
    /// others what may change what is found. A search for one query, with up to 256 candidates, in
    /// 1024 to 65 536 documents and at least eight times the candidates (rounded up to a power of
    /// two), is driven by the GPU, which re-scores what it finds without a wait for the host, and
    /// keeps 12 bytes of each document for that with the terms of [`SearchTokens`]; not where
    /// lengths or masks of documents are on the device alone. Calls with documents of one
    /// `SearchTokens`, whose tokens and codes are handles, prepare and upload nothing but their
    /// queries. On the CPU a call takes 4 bytes of host memory per query and document.
    /// [`Shortlist`] is the same for documents that come a chunk at a time.
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
            bounds: PairBounds::of_rescored(queries.terms(), documents.terms(), T::TYPE),
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
pub(super) struct Search<'a, T: Element> {
    pub bounds: PairBounds<'a>,
    layout: &'a TokenLayout,
    pub scanned: Scanned,
    pub rescorer: Rescorer<'a, T>,
    /// A search that has seen nothing.
    pub new: Shortlist,
    /// One for each query.
    pub searches: Vec<Shortlist>,
    /// Bytes of scores that are copied rather than selected from once more.
    copied_bytes: usize,
}

/// The documents that a search has not seen, where there are such.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unseen {
    /// The last document that was seen: all others come behind it in the ranking of the scan.
    pub last: Ranked,
    /// What no bound is above.
    pub largest: f32,
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
            Some(selected) => self.run_driven()? || self.run_selected(selected)?,
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
    pub(super) fn rescore_all(&mut self) -> Result<()> {
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
        for first in queries.clone().step_by(at_once) {
            let some = first..queries.end.min(first + at_once);
            let scores = self.scanned.rows(some.clone(), n_documents)?;
            for (query, row) in some.zip(scores.chunks(n_documents)) {
                let Some(Unseen { last, largest }) = unseen[query] else { continue };
                let search = &mut self.searches[query];
                let least = search.least_best(largest) as f32;
                for (id, score, bound) in self.bounds.linear(query).reaching(row, least) {
                    let is_behind = score < last.score || score == last.score && id > last.id;
                    if is_behind {
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
        let are_known =
            ranking.n_nan == 0 && Unseen::is_known_by(largest) && last.score.is_finite();
        are_known.then_some(Unseen { last, largest })
    }

    /// Whether something is known of all documents by what no bound is above. A bound that is
    /// finite is one of a score that is finite, and of half of what f32 holds: whatever such a
    /// score can be is finite, too.
    pub(super) fn is_known_by(largest: f32) -> bool {
        largest < f32::MAX / 4.0
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
    pub(super) fn is_above(&mut self, most: f32) -> bool {
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
            Some(kth) if !kth.score.is_nan() => threshold(kth.score, largest),
            _ => f64::NEG_INFINITY,
        }
    }
}
