//! Coarse to fine over a corpus: a scan of compressed documents selects candidates, full precision
//! re-scores them, and every place of the result is proven or likely.

pub(crate) mod bounds;
pub(crate) mod compressed;
mod driven;
mod named;
pub(crate) mod pair_bounds;
mod rounds;
pub(crate) mod scan;
mod scanned;

use std::cmp::Ordering;

use self::named::Named;
use crate::error::{Error, Result};
use crate::problem::ranking::Ranked;

/// Documents that a [`Shortlist`] holds at least before it looks for some to let go.
const KEPT_MIN: usize = 1024;

/// How a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct SearchOptions {
    /// Documents per query that are re-scored for their scores; as many as are returned at least.
    pub n_candidates: usize,
    /// Re-score as many more documents as it takes until every place is proven.
    pub exact: bool,
}

impl Default for SearchOptions {
    /// 100 candidates, and no more.
    fn default() -> SearchOptions {
        SearchOptions { n_candidates: 100, exact: false }
    }
}

/// The defaults with one thing changed after the other.
impl SearchOptions {
    /// Sets [`SearchOptions::n_candidates`](field@SearchOptions::n_candidates).
    pub fn n_candidates(self, n_candidates: usize) -> SearchOptions {
        SearchOptions { n_candidates, ..self }
    }

    /// Sets [`SearchOptions::exact`](field@SearchOptions::exact).
    pub fn exact(self, exact: bool) -> SearchOptions {
        SearchOptions { exact, ..self }
    }
}

/// Certainty of a document's place in a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Certainty {
    /// The place is that of the exact ranking: no document that was not re-scored can come before.
    Proven,
    /// The place may be too high: some document that was not re-scored may belong before.
    Likely,
}

/// A document that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Hit {
    /// Document id.
    pub id: u32,
    /// Score in full precision.
    pub score: f32,
    /// Whether the document has a valid token; without one it scores 0 and ranks last.
    pub has_tokens: bool,
    /// Certainty of the place.
    pub certainty: Certainty,
}

/// The best documents of one query, best first.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use]
pub struct SearchRanking {
    /// At most k documents.
    pub documents: Vec<Hit>,
    /// Documents that were re-scored.
    pub n_rescored: u64,
    /// Documents with tokens whose score is NaN. All of them were re-scored.
    pub n_nan: u64,
    /// Documents without a valid token.
    pub n_empty: u64,
}

/// A document as a scan sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Document id.
    pub id: u32,
    /// The score of its compressed tokens.
    pub score: f32,
    /// Bound of how far that is from the score of its embeddings:
    /// [`rescore_bounds`](crate::search::rescore_bounds).
    pub bound: f32,
    /// Whether it has a valid token.
    pub has_tokens: bool,
}

/// Searches for one query, in documents that come in chunks of any size: push what the scan sees,
/// re-score what [`Shortlist::wanted`] names until that is nothing.
///
/// What it proves is as true as the scores and bounds that it is given: that the scanned documents
/// are those that are re-scored is the caller's word
/// ([`SearchTokens`](crate::search::SearchTokens) makes sure of it).
///
/// Holds the candidates, and with [`SearchOptions::exact`] what may still belong before the k-th of
/// them, beside 16 bytes for each document that was re-scored.
///
/// ```
/// use maxsim::search::{Candidate, Certainty, SearchOptions, Shortlist};
///
/// let options = SearchOptions::default().n_candidates(1).exact(true);
/// let mut candidates = Shortlist::new(1, options);
/// for (id, score) in [(0, 0.9f32), (1, 1.0), (2, 0.2)] {
///     candidates.push(Candidate { id, score, bound: 0.1, has_tokens: true });
/// }
/// assert_eq!(candidates.wanted(), [1]);
/// candidates.rescored(1, 0.95)?;
/// // Document 0 may have up to 1.0.
/// assert_eq!(candidates.wanted(), [0]);
/// candidates.rescored(0, 0.96)?;
/// assert!(candidates.wanted().is_empty());
/// let ranking = candidates.into_ranking();
/// assert_eq!((ranking.documents[0].id, ranking.documents[0].certainty), (0, Certainty::Proven));
/// # Ok::<(), maxsim::Error>(())
/// ```
///
/// With a the score of a document's compressed tokens and b its bound
/// ([`rescore_bounds`](crate::search::rescore_bounds)), the score e that the engine would give its
/// embeddings is at most a + b. So the document at some place, of score e, is where the ranking of
/// *all* documents' e has it if every document that was not re-scored has a + b < e (or, of equal
/// numbers, the higher id): those that were re-scored are in their order already. As e falls from
/// place to place, the proven places come first.
///
/// e is what the engine computes, in f32. Documents whose real scores differ by less than the
/// rounding of f32 may be the other way around in another engine; the bounds count with every
/// engine's rounding, so that what is proven here holds for the scores of any call of this engine.
///
/// Candidates are the documents of the highest scores a, and all of which nothing is known: where a
/// or b is NaN or infinite. With [`SearchOptions::exact`] they are followed by every document whose
/// a + b reaches the k-th best e so far: re-scoring can only raise that, so one such round proves
/// all k places. A document without tokens needs no scoring; it scores 0 and ranks last.
///
/// ```
/// use maxsim::format::{Int8, Int8Affine, ScaleType};
/// use maxsim::half::f16;
/// use maxsim::search::{Certainty, ErrorTerms, SearchOptions, SearchTokens};
/// use maxsim::{Device, Tokens};
///
/// let own_queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
/// // Three documents of one token each.
/// let own = Tokens::padded(&[0.6f32, 0.8, 0.96, 0.28, 0.0, 1.0], 3, 1, 2)?;
///
/// // Made once, and kept with the documents.
/// let codes = own.quantize::<Int8>(ScaleType::F16)?;
/// let documents = SearchTokens::measured(&own, &codes)?;
///
/// let query_codes = own_queries.quantize::<Int8>(ScaleType::F32)?;
/// let queries = SearchTokens::measured(&own_queries, &query_codes)?;
/// let options = SearchOptions::default().n_candidates(1);
/// let found = Device::best().search(&queries, &documents, 1, &options)?;
/// let best = &found[0].documents[0];
/// // No other document can score more: 0.6 is further away than all errors reach.
/// assert_eq!((best.id, best.score, best.certainty), (1, 0.96, Certainty::Proven));
/// assert_eq!(found[0].n_rescored, 1);
///
/// // With bounds that a file has: they may be another file's.
/// let terms = ErrorTerms::new(&codes);
/// let documents = SearchTokens::assumed(&own, &codes, &terms)?;
/// let found = Device::best().search(&queries, &documents, 1, &options)?;
/// let best = &found[0].documents[0];
/// assert!(best.id == 1 && best.certainty != Certainty::Proven);
///
/// // Queries stay f16 where documents have affine codes.
/// let queries = own_queries.convert::<f16>()?.0;
/// let queries = SearchTokens::plain(&queries)?;
/// let own = own.convert::<f16>()?.0;
/// let codes = own.quantize::<Int8Affine>(ScaleType::F16)?;
/// let documents = SearchTokens::measured(&own, &codes)?;
/// let found = Device::best().search(&queries, &documents, 1, &options)?;
/// assert_eq!((found[0].documents[0].id, found[0].documents[0].certainty), (1, Certainty::Proven));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Shortlist {
    k: usize,
    options: SearchOptions,
    /// Documents that were not re-scored, of which something is known.
    waiting: Vec<Bounded>,
    /// Documents without a bound.
    unknown: Vec<u32>,
    /// Documents that were named and not re-scored yet.
    named: Named,
    /// The best place that a dropped document may have: its id with the most that its score can be.
    passed: Option<Ranked>,
    /// Whether the candidates have been named.
    is_scanned: bool,
    /// How many documents wait before some are let go.
    capacity: usize,
    rescored: Vec<Ranked>,
    /// Documents that were re-scored besides, of which k others are ahead.
    n_behind: u64,
    /// The lowest ids.
    empty: Vec<u32>,
    n_empty: u64,
}

/// A document with what its score can be.
#[derive(Clone, Copy, Debug)]
struct Bounded {
    id: u32,
    score: f32,
    lower: f32,
    upper: f32,
}

/// The most that a score can be which is within `bound` of this: the sum in f64, and then one
/// further, so that it is never less. It rises with either.
fn most(score: f32, bound: f32) -> f32 {
    ((f64::from(score) + f64::from(bound)) as f32).next_up()
}

impl Bounded {
    /// A document with a token and what its score can be; `None` where nothing is known of that.
    fn of(document: Candidate) -> Option<Bounded> {
        let Candidate { id, score, bound, .. } = document;
        let upper = most(score, bound);
        let lower = ((f64::from(score) - f64::from(bound)) as f32).next_down();
        let is_known =
            score.is_finite() && bound.is_finite() && upper.is_finite() && lower.is_finite();
        is_known.then_some(Bounded { id, score, lower, upper })
    }

    /// Makes a document without a bound.
    fn unknown(id: u32) -> Bounded {
        Bounded { id, score: f32::NAN, lower: f32::NEG_INFINITY, upper: f32::INFINITY }
    }

    /// Refuses a score further from that of the scan than the bound.
    fn check_score(&self, score: f32) -> Result<()> {
        let &Bounded { id, lower: least, upper: most, .. } = self;
        if score.is_finite() && !(least..=most).contains(&score) {
            return Err(Error::Shape {
                argument: "compressed documents",
                expected: format!("those of the documents: a score of {least} to {most} here"),
                found: format!(
                    "a score of {score} for document {id}; compress the documents again"
                ),
            });
        }
        Ok(())
    }

    /// The document with the highest score that it can have.
    fn best(&self) -> Ranked {
        Ranked { id: self.id, score: self.upper, has_tokens: true }
    }

    /// The order of the scan's scores.
    fn rank(&self, other: &Bounded) -> Ordering {
        other.score.total_cmp(&self.score).then(self.id.cmp(&other.id))
    }
}

impl Shortlist {
    /// A search for the best `k` documents that has seen none.
    pub fn new(k: usize, options: SearchOptions) -> Shortlist {
        let options = SearchOptions { n_candidates: options.n_candidates.max(k), ..options };
        Shortlist {
            k,
            options,
            waiting: Vec::new(),
            unknown: Vec::new(),
            named: Named::default(),
            passed: None,
            is_scanned: false,
            capacity: options.n_candidates.saturating_mul(2).max(KEPT_MIN),
            rescored: Vec::new(),
            n_behind: 0,
            empty: Vec::new(),
            n_empty: 0,
        }
    }

    /// Takes a document into account. All come before the first call of [`Shortlist::wanted`].
    pub fn push(&mut self, document: Candidate) {
        if !document.has_tokens {
            self.n_empty += 1;
            self.empty.push(document.id);
            if self.empty.len() > self.k.saturating_mul(2).max(64) {
                self.empty.sort_unstable();
                self.empty.truncate(self.k);
            }
            return;
        }
        match Bounded::of(document) {
            Some(bounded) => self.waiting.push(bounded),
            None => return self.unknown.push(document.id),
        }
        if self.waiting.len() >= self.capacity {
            self.let_go();
            self.capacity = self.capacity.max(self.waiting.len().saturating_mul(2));
        }
    }

    /// Drops documents that are no candidates, and (where the search is to be exact) no k-th best
    /// either, whatever the candidates' scores.
    fn let_go(&mut self) {
        let n_candidates = self.options.n_candidates;
        if self.waiting.len() <= n_candidates || self.k == 0 {
            return;
        }
        let least = match self.options.exact {
            false => f32::INFINITY,
            true => {
                // k documents have so much at least.
                let mut lowers: Vec<f32> = self.waiting.iter().map(|d| d.lower).collect();
                *lowers.select_nth_unstable_by(self.k - 1, |a, b| b.total_cmp(a)).1
            }
        };
        self.waiting.select_nth_unstable_by(n_candidates - 1, Bounded::rank);
        let others = self.waiting.split_off(n_candidates);
        for document in others {
            match document.upper >= least {
                true => self.waiting.push(document),
                false => self.pass(document.best()),
            }
        }
    }

    fn pass(&mut self, best: Ranked) {
        let is_first = self.passed.is_none_or(|passed| best.rank(&passed) == Ordering::Less);
        if is_first {
            self.passed = Some(best);
        }
    }

    /// Takes documents into account that are not pushed, nor re-scored: no score of theirs is above
    /// `most`.
    pub(crate) fn pass_others(&mut self, most: f32) {
        self.pass(Ranked { id: 0, score: most, has_tokens: true });
    }

    /// Whether all k places are proven by what was re-scored, as far as they are documents' with
    /// tokens.
    pub(crate) fn is_proven(&mut self) -> bool {
        let Some(passed) = self.passed.filter(|_| self.k > 0) else { return true };
        self.kth().is_some_and(|kth| kth.rank(&passed) == Ordering::Less)
    }

    /// The documents to re-score next, by rising id; none when the search is over. Documents that
    /// were named and have not been given to [`Shortlist::rescored`] are named again.
    pub fn wanted(&mut self) -> Vec<u32> {
        if self.named.is_empty() {
            self.named = Named::new(self.next_round());
        }
        self.named.ids().collect()
    }

    /// Takes out the documents to re-score next; those of which nothing is known, whenever they
    /// come.
    fn next_round(&mut self) -> Vec<Bounded> {
        let mut next = self.next_known();
        next.extend(self.unknown.drain(..).map(Bounded::unknown));
        next
    }

    /// Those of which something is known.
    fn next_known(&mut self) -> Vec<Bounded> {
        if !self.is_scanned {
            self.is_scanned = true;
            let n = self.options.n_candidates.min(self.waiting.len());
            if n > 0 && n < self.waiting.len() {
                self.waiting.select_nth_unstable_by(n - 1, Bounded::rank);
            }
            return self.waiting.drain(..n).collect();
        }
        if !self.options.exact || self.k == 0 {
            return Vec::new();
        }
        let Some(kth) = self.kth() else { return std::mem::take(&mut self.waiting) };
        let may_come_before = |document: &mut Bounded| document.best().rank(&kth) == Ordering::Less;
        self.waiting.extract_if(.., may_come_before).collect()
    }

    /// The k-th of what was re-scored.
    fn kth(&mut self) -> Option<Ranked> {
        if self.k == 0 || self.rescored.len() < self.k {
            return None;
        }
        Some(*self.rescored.select_nth_unstable_by(self.k - 1, Ranked::rank).1)
    }

    /// Takes the score of a document that [`Shortlist::wanted`] has named.
    ///
    /// # Errors
    /// [`Error::Shape`] for a document that is not wanted, and for a score further from that of the
    /// scan than its bound: what was scanned is not what is re-scored, and nothing would be proven.
    pub fn rescored(&mut self, id: u32, score: f32) -> Result<()> {
        let Some(document) = self.named.take(id) else {
            return Err(Error::Shape {
                argument: "id",
                expected: "a document that Candidates::wanted has named, once".into(),
                found: format!("document {id}"),
            });
        };
        self.take_score(document, score)
    }

    /// Takes the score of a document that is to be re-scored.
    fn take_score(&mut self, document: Bounded, score: f32) -> Result<()> {
        document.check_score(score)?;
        self.rescored.push(Ranked { id: document.id, score, has_tokens: true });
        Ok(())
    }
    /// The ranking of everything that was re-scored, and of what is empty.
    pub fn into_ranking(mut self) -> SearchRanking {
        let n_rescored = self.rescored.len() as u64 + self.n_behind;
        let n_nan = self.rescored.iter().filter(|document| document.score.is_nan()).count() as u64;
        let (named, waiting) = (std::mem::take(&mut self.named), std::mem::take(&mut self.waiting));
        let unknown = std::mem::take(&mut self.unknown).into_iter().map(Bounded::unknown);
        let left = named.into_left().chain(waiting).chain(unknown);
        left.for_each(|document| self.pass(document.best()));
        let empty = self.empty.iter().map(|&id| Ranked { id, score: 0.0, has_tokens: false });
        let mut ranked = self.rescored;
        ranked.extend(empty);
        if self.k > 0 && self.k < ranked.len() {
            ranked.select_nth_unstable_by(self.k - 1, Ranked::rank);
        }
        ranked.truncate(self.k);
        ranked.sort_unstable_by(Ranked::rank);
        let found = |document: Ranked| {
            let Ranked { id, score, has_tokens } = document;
            let is_first = self.passed.is_none_or(|best| document.rank(&best) == Ordering::Less);
            let certainty = if is_first { Certainty::Proven } else { Certainty::Likely };
            Hit { id, score, has_tokens, certainty }
        };
        let documents = ranked.into_iter().map(found).collect();
        SearchRanking { documents, n_rescored, n_nan, n_empty: self.n_empty }
    }

    /// As [`Shortlist::into_ranking`], where the bounds are known to be true; where they are only
    /// assumed, no place is proven.
    pub(crate) fn into_ranking_if(self, is_known: bool) -> SearchRanking {
        let mut ranking = self.into_ranking();
        if !is_known {
            ranking.documents.iter_mut().for_each(|found| found.certainty = Certainty::Likely);
        }
        ranking
    }
}
