//! Divides the pairs of a problem into tasks for the threads.

use std::ops::Range;

use super::BLOCK_LEN;
use crate::problem::Problem;
use crate::problem::pairing::Kind;
use crate::problem::scores::Scores;

/// Multiply-adds that a thread takes at once: some tenths of a millisecond, so that handing
/// them out costs little and the threads still end together. Independent of the number of
/// threads.
const BATCH_WORK: u64 = 1 << 24;

/// Fewest document tokens of a task, as long as there are enough: packing a query element
/// costs as much as some tens of multiply-adds.
const TASK_TOKENS: u64 = 2048;

/// Work that a document costs beside its multiply-adds, in the same unit.
const DOCUMENT_WORK: u64 = 1 << 10;

/// Most documents of a task; bounds the memory for its sums.
const TASK_DOCUMENTS: usize = 1024;

/// Outputs of consecutive scores of one query.
#[derive(Debug)]
pub(super) struct Outputs<'a> {
    pub scores: &'a mut [f32],
    pub winners: Option<&'a mut [i32]>,
    pub token_scores: Option<&'a mut [f32]>,
}

impl<'a> Outputs<'a> {
    /// Splits off the first `n` scores of a query of `len` tokens.
    fn split_off(&mut self, n: usize, len: usize) -> Outputs<'a> {
        Outputs {
            scores: split_off(&mut self.scores, n),
            winners: self.winners.as_mut().map(|w| split_off(w, n * len)),
            token_scores: self.token_scores.as_mut().map(|s| split_off(s, n * len)),
        }
    }
}

fn split_off<'a, T>(rest: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    let (front, back) = std::mem::take(rest).split_at_mut(n);
    *rest = back;
    front
}

/// Documents in the order of their scores.
#[derive(Clone, Debug)]
pub(super) enum Documents<'a> {
    Range(Range<usize>),
    Ids(&'a [u32]),
    Pairs(&'a [[u32; 2]]),
}

impl Documents<'_> {
    pub fn len(&self) -> usize {
        match self {
            Documents::Range(range) => range.len(),
            Documents::Ids(ids) => ids.len(),
            Documents::Pairs(pairs) => pairs.len(),
        }
    }

    fn get(&self, i: usize) -> usize {
        match self {
            Documents::Range(range) => range.start + i,
            Documents::Ids(ids) => ids[i] as usize,
            Documents::Pairs(pairs) => pairs[i][1] as usize,
        }
    }

    fn split_off(&mut self, n: usize) -> Self {
        match self {
            Documents::Range(range) => {
                let start = range.start;
                range.start += n;
                Documents::Range(start..start + n)
            }
            Documents::Ids(ids) => {
                let (front, back) = ids.split_at(n);
                *ids = back;
                Documents::Ids(front)
            }
            Documents::Pairs(pairs) => {
                let (front, back) = pairs.split_at(n);
                *pairs = back;
                Documents::Pairs(front)
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).map(|i| self.get(i))
    }
}

/// One query of a task.
#[derive(Debug)]
pub(super) struct TaskQuery<'a> {
    pub id: usize,
    /// Tokens, masked ones included.
    pub len: usize,
    /// In the order of the task's documents.
    pub outputs: Outputs<'a>,
}

/// Some queries, each against the same documents.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub queries: Vec<TaskQuery<'a>>,
    pub documents: Documents<'a>,
}

impl<'a> Task<'a> {
    /// Splits off documents of about `budget` of work, and returns them with their work.
    fn split_off(&mut self, problem: &Problem<'_>, budget: u64) -> (Task<'a>, u64) {
        let n_tokens: usize = self.queries.iter().map(|query| query.len).sum();
        let token_work = (n_tokens * problem.dim()) as u64;
        let budget = budget.max(token_work.saturating_mul(TASK_TOKENS));
        let (mut n, mut work) = (0, 0);
        for d in self.documents.iter().take(TASK_DOCUMENTS) {
            let len = problem.documents().item_len(d) as u64;
            let products = len.saturating_mul(token_work);
            work = products.saturating_add(work).saturating_add(DOCUMENT_WORK);
            n += 1;
            if work >= budget {
                break;
            }
        }
        let queries = self
            .queries
            .iter_mut()
            .map(|query| {
                let TaskQuery { id, len, ref mut outputs } = *query;
                TaskQuery { id, len, outputs: outputs.split_off(n, len) }
            })
            .collect();
        (Task { queries, documents: self.documents.split_off(n) }, work)
    }
}

/// Hands out all tasks of a problem, in batches of about [`BATCH_WORK`]. Lazy: a list of all
/// of them could outgrow the scores.
pub(super) struct Tasks<'a> {
    problem: &'a Problem<'a>,
    /// Outputs that no task has yet.
    rest: Outputs<'a>,
    /// First query, or first pair, that no task has yet.
    next: usize,
    /// Queries in progress, with the documents that they have yet to meet.
    current: Task<'a>,
}

impl<'a> Tasks<'a> {
    pub fn new(problem: &'a Problem<'a>, scores: &'a mut Scores) -> Tasks<'a> {
        Tasks {
            problem,
            rest: Outputs {
                scores: &mut scores.values,
                winners: scores.winners.as_deref_mut(),
                token_scores: scores.token_scores.as_deref_mut(),
            },
            next: 0,
            current: Task { queries: Vec::new(), documents: Documents::Range(0..0) },
        }
    }

    /// The next queries that share their documents.
    fn next_task(&mut self) -> Option<Task<'a>> {
        let (problem, first) = (self.problem, self.next);
        let is_done = match &problem.pairing().0 {
            Kind::Pairs { ids } => first == ids.len(),
            _ => first == problem.queries().n_items(),
        };
        if is_done {
            return None;
        }
        let (n_queries, query, documents) = match &problem.pairing().0 {
            Kind::Cross => {
                let n = self.n_queries_of_a_block(first);
                (n, first, Documents::Range(0..problem.documents().n_items()))
            }
            Kind::OwnCandidates { k } => (1, first, Documents::Range(first * k..(first + 1) * k)),
            Kind::Candidates { ids, k } => {
                (1, first, Documents::Ids(&ids[first * k..(first + 1) * k]))
            }
            Kind::Pairs { ids } => {
                let query = ids[first][0];
                let n = ids[first..].iter().take_while(|pair| pair[0] == query).count();
                (1, query as usize, Documents::Pairs(&ids[first..first + n]))
            }
        };
        let n_documents = documents.len();
        self.next += match &documents {
            Documents::Pairs(pairs) => pairs.len(),
            _ => n_queries,
        };
        let queries = (query..query + n_queries)
            .map(|id| {
                let len = problem.queries().item_len(id);
                TaskQuery { id, len, outputs: self.rest.split_off(n_documents, len) }
            })
            .collect();
        Some(Task { queries, documents })
    }

    /// Number of queries from `first` on that fill a block of panels.
    fn n_queries_of_a_block(&self, first: usize) -> usize {
        let mut n_tokens = 0;
        let fits = |q: &usize| {
            n_tokens += self.problem.queries().item_len(*q);
            *q == first || n_tokens <= BLOCK_LEN
        };
        (first..self.problem.queries().n_items()).take(BLOCK_LEN).take_while(fits).count()
    }
}

impl<'a> Iterator for Tasks<'a> {
    type Item = Vec<Task<'a>>;

    fn next(&mut self) -> Option<Vec<Task<'a>>> {
        let mut batch = Vec::new();
        let mut work = 0;
        while work < BATCH_WORK {
            if self.current.documents.len() == 0 {
                match self.next_task() {
                    Some(task) => self.current = task,
                    None => break,
                }
            }
            let (task, task_work) = self.current.split_off(self.problem, BATCH_WORK - work);
            work = task_work.saturating_add(work).saturating_add(DOCUMENT_WORK);
            batch.push(task);
        }
        (!batch.is_empty()).then_some(batch)
    }
}
