//! One side of a gradient call: its runs of rows, and the pairs that each of them has.

use maxsim_kernels::abi::params::backward::FirstPair;

use super::plan::SidePairs;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::pairing::Kind;
use crate::problem::runs::Runs;
use crate::tokens::layout::TokenLayout;

/// The runs of a side with their pairs.
pub(super) struct Side<'a> {
    pub(super) problem: &'a Problem<'a>,
    pub(super) runs: Runs,
    /// Item of each run, where every run is one.
    pub(super) items: Option<Vec<u32>>,
    pub(super) pairs: SidePairs,
    /// Index of each run's first listed pair, and of the one behind the last.
    pub(super) starts: Vec<u32>,
    pub(super) is_query: bool,
    /// The length of every query, where all are alike.
    pub(super) query_len: Option<u32>,
}

impl<'a> Side<'a> {
    pub(super) fn new(problem: &'a Problem<'a>, is_query: bool) -> Result<Side<'a>> {
        let layout = if is_query { problem.queries() } else { problem.documents() };
        let runs = Runs::new(layout)?;
        let items = items(layout, &runs);
        let n_documents = problem.documents().n_items() as u32;
        let computed = |query_step, document_step, score_step| SidePairs::Computed {
            query_step,
            document_step,
            score_step,
        };
        let pairs = match (&problem.pairing().0, is_query, items.is_some()) {
            (Kind::Cross, true, true) => computed(0, 1, 1),
            (Kind::Cross, false, true) => computed(1, 0, n_documents),
            (Kind::OwnCandidates { .. }, true, true) => computed(0, 1, 1),
            // A document has one pair.
            (Kind::OwnCandidates { .. }, false, true) => computed(0, 0, 0),
            _ => SidePairs::Listed(Vec::new()),
        };
        let (starts, query_len) = (Vec::new(), uniform_len(problem.queries()));
        let mut side = Side { problem, runs, items, pairs, starts, is_query, query_len };
        if let SidePairs::Listed(_) = side.pairs {
            side.list();
        }
        Ok(side)
    }

    /// Lists the scores that have winners by run, in their order.
    pub(super) fn list(&mut self) {
        let problem = self.problem;
        let wanted = problem.wanted();
        let has_winners = |p: usize| {
            let (q, d) = problem.pair(p);
            wanted.contains(&q)
                && problem.queries().item_len(q) > 0
                && problem.documents().item_len(d) > 0
        };
        let run = |p: usize| {
            let (q, d) = problem.pair(p);
            self.runs.of_item[if self.is_query { q } else { d }] as usize
        };
        let n_scores = problem.shape().n_scores();
        let mut starts = vec![0u32; self.runs.rows.len() + 1];
        for p in (0..n_scores).filter(|&p| has_winners(p)) {
            starts[run(p) + 1] += 1;
        }
        for r in 0..self.runs.rows.len() {
            starts[r + 1] += starts[r];
        }
        let mut next = starts.clone();
        let mut order = vec![0u32; starts.last().copied().unwrap_or(0) as usize];
        for p in (0..n_scores).filter(|&p| has_winners(p)) {
            let place = &mut next[run(p)];
            order[*place as usize] = p as u32;
            *place += 1;
        }
        let is_identity = order.len() == n_scores && order.iter().zip(0..).all(|(&p, i)| p == i);
        self.starts = starts;
        self.pairs = SidePairs::Listed(if is_identity { Vec::new() } else { order });
    }

    pub(super) fn n_pairs(&self, run: usize) -> u32 {
        let wanted = self.problem.wanted();
        let n_documents = self.problem.documents().n_items() as u32;
        match (&self.pairs, &self.problem.pairing().0) {
            (SidePairs::Listed(_), _) => self.starts[run + 1] - self.starts[run],
            (_, Kind::OwnCandidates { k }) => {
                if self.is_query {
                    *k as u32
                } else {
                    1
                }
            }
            _ => match &self.items {
                Some(items) if self.is_query && !wanted.contains(&(items[run] as usize)) => 0,
                _ if self.is_query => n_documents,
                _ => wanted.len() as u32,
            },
        }
    }

    /// Winners of pair `k` of a run.
    pub(super) fn len(&self, run: usize, k: u32) -> u64 {
        let len = || self.problem.queries().item_len(self.problem.pair(self.score(run, k)).0);
        self.query_len.map_or_else(|| len() as u64, u64::from)
    }

    /// Winners of a run's pairs.
    pub(super) fn n_sources(&self, run: usize) -> u64 {
        match (self.query_len, self.n_pairs(run)) {
            (Some(len), n_pairs) => u64::from(len) * u64::from(n_pairs),
            (None, n_pairs) => (0..n_pairs).map(|k| self.len(run, k)).sum(),
        }
    }

    /// Score of pair `k` of a run.
    pub(super) fn score(&self, run: usize, k: u32) -> usize {
        let first = self.first(run);
        match &self.pairs {
            SidePairs::Listed(order) => {
                let place = (first.score + k) as usize;
                order.get(place).map_or(place, |&p| p as usize)
            }
            SidePairs::Computed { score_step, .. } => (first.score + k * score_step) as usize,
        }
    }

    pub(super) fn first(&self, run: usize) -> FirstPair {
        if let SidePairs::Listed(_) = self.pairs {
            return FirstPair { query: 0, document: 0, score: self.starts[run] };
        }
        let item = self.items.as_ref().map_or(0, |items| items[run]);
        let n_documents = self.problem.documents().n_items() as u32;
        match (&self.problem.pairing().0, self.is_query) {
            (Kind::OwnCandidates { k }, true) => {
                let first = item * *k as u32;
                FirstPair { query: item, document: first, score: first }
            }
            (Kind::OwnCandidates { k }, false) => {
                FirstPair { query: item / (*k as u32).max(1), document: item, score: item }
            }
            (_, true) => FirstPair { query: item, document: 0, score: item * n_documents },
            (_, false) => {
                let query = self.problem.wanted().start as u32;
                FirstPair { query, document: item, score: query * n_documents + item }
            }
        }
    }

    /// Pair `k` from `first` on.
    pub(super) fn later(&self, first: FirstPair, k: u32) -> FirstPair {
        match self.pairs {
            SidePairs::Listed(_) => FirstPair { score: first.score + k, ..first },
            SidePairs::Computed { query_step, document_step, score_step } => FirstPair {
                query: first.query + k * query_step,
                document: first.document + k * document_step,
                score: first.score + k * score_step,
            },
        }
    }
}

/// The item of each run, where every run is one.
fn items(layout: &TokenLayout, runs: &Runs) -> Option<Vec<u32>> {
    let mut items = vec![u32::MAX; runs.rows.len()];
    for i in (0..layout.n_items()).filter(|&i| layout.item_len(i) > 0) {
        let item = &mut items[runs.of_item[i] as usize];
        if *item != u32::MAX {
            return None;
        }
        *item = i as u32;
    }
    Some(items)
}

/// Whether no two items share rows.
pub(in crate::cuda) fn is_disjoint(layout: &TokenLayout) -> Result<bool> {
    Ok(items(layout, &Runs::new(layout)?).is_some())
}

/// The length of every item, where all are alike.
fn uniform_len(layout: &TokenLayout) -> Option<u32> {
    let segments = layout.segments();
    let len = segments.first().map_or(0, |segment| segment[1]);
    segments.iter().all(|segment| segment[1] == len).then_some(len)
}
