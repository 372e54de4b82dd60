//! The work of a gradient call as lists: pure functions of shapes.
//!
//! Rows fall into *runs* that no item crosses: an item, or several that overlap. The rows of a run
//! of queries become [`RowTask`]s. The winners of a run of documents are sorted *window* by window
//! of its rows, as much in a *group* as the workspace holds: its pairs, in their order, are divided
//! into [`SortTask`]s. A window with more winners than that is sorted in several passes, whose sums
//! add up: in the gradient itself, or where that has elements of two bytes, in the workspace.

use std::ops::Range;

use maxsim_kernels::abi::params::backward::{
    FEW_ROWS, FirstPair, PairSlot, RowTask, SortTask, TASK_SOURCES_MAX, WARP_SOURCES, WARPS,
    WINDOW_ROWS, columns,
};

use crate::cuda::backward::sides::Side;
use crate::cuda::forward::lists::slots;
use crate::error::{Error, Result};
use crate::problem::Problem;

/// The sizes of elements, workspace and device that a plan depends on.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Shape {
    /// Bytes per element of the tokens.
    pub element_bytes: usize,
    /// Bytes of a document row as lanes read it for the queries' gradient.
    pub gathered_bytes: usize,
    /// Whether sums of several passes can be added in the documents' gradient: it is f32.
    pub adds_in_place: bool,
    /// Warps that run at once on the whole device.
    pub n_warps: usize,
    /// Bytes of sources and destinations that the workspace holds.
    pub list_bytes_max: u64,
    /// Bytes of sums over parts of a row that the workspace holds.
    pub parts_bytes_max: u64,
    /// Bytes of sums over several passes that the workspace holds.
    pub carry_bytes_max: u64,
    /// Sources that one CTA sorts, where there are several.
    pub task_sources: u64,
    /// Most sources of a document that need no sorting, if it has one pair.
    pub few_sources: u64,
    /// Most rows from a group's first to its last, where not all of the documents' gradient is
    /// there at once.
    pub rows_max: usize,
}

/// Bytes of a source, and of a destination, in the sorted lists.
const LIST_ENTRY_BYTES: u64 = 8;

/// Most CTAs that share a window: each reads all of their counts.
const WINDOW_TASKS_MAX: u64 = 64;

/// Fewest sources of a segment: finding its first destination should take little of its time.
const SEGMENT_LEN_MIN: u64 = 32;

/// Fewest pairs of a chunk, for the same reason.
const CHUNK_PAIRS_MIN: u64 = 32;

/// The pairs of one side's runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum SidePairs {
    /// A run is an item; pair `k` of it is these steps from its first.
    Computed { query_step: u32, document_step: u32, score_step: u32 },
    /// Indices of scores, run by run; empty where they are 0, 1, 2, ...
    Listed(Vec<u32>),
}

/// A window's rows, whose sums over several passes are in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Carry {
    pub first_row: u32,
    pub n_rows: u32,
    /// The rows, to be added to the gradient after the last pass.
    pub tasks: Range<u32>,
    pub is_first: bool,
    pub is_last: bool,
}

/// Documents whose sources are sorted and summed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cuda) struct Group {
    pub tasks: Range<u32>,
    pub n_sources: u32,
    pub n_destinations: u32,
    pub n_counts: u32,
    /// Rows of the largest window.
    pub window_rows: u32,
    pub segment_len: u32,
    pub n_segments: u32,
    /// Whether this is one of several passes over a window, whose sums add up.
    pub is_pass: bool,
    pub carry: Option<Carry>,
}

/// Groups with the rows of documents that they, and no others, add to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Span {
    pub groups: Range<usize>,
    pub rows: Range<u32>,
}

/// The lists of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cuda) struct GradientPlan {
    /// Per score, where some side's pairs are listed.
    pub slots: Vec<PairSlot>,
    pub query_pairs: Option<SidePairs>,
    pub document_pairs: Option<SidePairs>,
    /// Rows of queries, then those of carries, or those that are narrowed.
    pub rows: Vec<RowTask>,
    /// Tasks of `rows` that are of queries.
    pub n_row_tasks: u32,
    /// Rows of queries that some pair has.
    pub n_rows: u32,
    pub n_chunks: u32,
    /// CTAs that sum over pairs.
    pub n_row_blocks: u64,
    pub sorts: Vec<SortTask>,
    pub groups: Vec<Group>,
    /// Document rows of short queries, added without a sort: in place of sorts and groups.
    pub short_query_tasks: Vec<RowTask>,
    /// Number of document rows in `short_query_tasks`.
    pub n_short_query_rows: usize,
    /// Tasks of `rows` that are all of the documents' rows, where winners are not sorted and sums
    /// have another element type than the gradient.
    pub narrowed: Range<u32>,
}

/// Pairs of a run, or tokens of one pair, that one CTA sorts.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    first: u32,
    n_pairs: u32,
    token_begin: u32,
    token_end: u32,
    n_sources: u64,
}

impl GradientPlan {
    /// Plans the gradients of queries, of documents, or of both. What is summed for a side does
    /// not depend on the other.
    pub(in crate::cuda) fn of_sides(
        problem: &Problem<'_>,
        shape: &Shape,
        [of_queries, of_documents]: [bool; 2],
    ) -> Result<GradientPlan> {
        let mut plan = GradientPlan { n_chunks: 1, ..GradientPlan::default() };
        if problem.queries().max_len() == 0 || problem.documents().max_len() == 0 {
            return Ok(plan);
        }
        if of_queries {
            plan.add_queries(problem, shape)?;
        }
        if of_documents {
            let documents = Side::new(problem, false)?;
            if !plan.add_short_queries(&documents, shape)? {
                plan.add_groups(&documents, shape)?;
            }
            if matches!(documents.pairs, SidePairs::Listed(_)) && plan.slots.is_empty() {
                plan.slots = slots(problem);
            }
            plan.document_pairs = Some(documents.pairs);
        }
        Ok(plan)
    }

    /// Plans the atomic strategy: winners are not sorted, but added to their rows in any order.
    pub(in crate::cuda) fn atomic(problem: &Problem<'_>, shape: &Shape) -> Result<GradientPlan> {
        let mut plan = GradientPlan { n_chunks: 1, ..GradientPlan::default() };
        if problem.queries().max_len() == 0 || problem.documents().max_len() == 0 {
            return Ok(plan);
        }
        plan.add_queries(problem, shape)?;
        if !shape.adds_in_place {
            plan.list_narrowed(problem);
        }
        Ok(plan)
    }

    /// Lists the rows of queries, and their pairs where these are listed.
    fn add_queries(&mut self, problem: &Problem<'_>, shape: &Shape) -> Result<()> {
        let queries = Side::new(problem, true)?;
        self.add_rows(&queries, shape)?;
        if let SidePairs::Listed(_) = queries.pairs {
            // Their slots say where documents start.
            problem.documents().check_read("documents of queries that share rows")?;
            self.slots = slots(problem);
        }
        self.query_pairs = Some(queries.pairs);
        Ok(())
    }

    /// Rows of documents alone, whose sums have another element type than the gradient.
    pub(in crate::cuda) fn narrowing(problem: &Problem<'_>) -> GradientPlan {
        let mut plan = GradientPlan { n_chunks: 1, ..GradientPlan::default() };
        plan.list_narrowed(problem);
        plan
    }

    fn list_narrowed(&mut self, problem: &Problem<'_>) {
        self.list_rows(0..problem.documents().rows(), FirstPair::default(), 0, 0);
        self.narrowed = self.n_row_tasks..self.rows.len() as u32;
    }

    fn add_rows(&mut self, side: &Side<'_>, shape: &Shape) -> Result<()> {
        let dim = side.problem.dim();
        let mut most_pairs = 0;
        for (run, rows) in side.runs.rows.iter().enumerate() {
            let n_pairs = side.n_pairs(run);
            most_pairs = most_pairs.max(n_pairs);
            if n_pairs > 0 {
                self.n_rows = self.list_rows(rows.clone(), side.first(run), n_pairs, self.n_rows);
            }
        }
        self.n_row_tasks = self.rows.len() as u32;
        let (_, n_columns) = columns(dim * shape.gathered_bytes);
        let n_units = u64::from(self.n_rows) * u64::from(n_columns);
        let wanted = (shape.n_warps as u64).checked_div(n_units).unwrap_or(0);
        let part_bytes = u64::from(self.n_rows) * dim as u64 * 4;
        let fit = shape.parts_bytes_max.checked_div(part_bytes).unwrap_or(1);
        let n_chunks = wanted.min(fit).min(u64::from(most_pairs) / CHUNK_PAIRS_MIN);
        self.n_chunks = n_chunks.max(1) as u32;
        self.n_row_blocks = u64::from(self.n_row_tasks) * u64::from(n_columns);
        self.n_row_blocks *= u64::from(self.n_chunks);
        check_grid(self.n_row_blocks)
    }

    /// Lists rows from index `index` on; the index behind them.
    fn list_rows(
        &mut self,
        rows: Range<usize>,
        first: FirstPair,
        n_pairs: u32,
        mut index: u32,
    ) -> u32 {
        for row in rows.clone().step_by(WARPS as usize) {
            let n_rows = (rows.end - row).min(WARPS as usize) as u32;
            let row = row as u32;
            self.rows.push(RowTask { row, n_rows, first, n_pairs, index, reserved: 0 });
            index += n_rows;
        }
        index
    }

    /// Lists document rows for the kernel of short queries, if all documents meet one; false where
    /// not.
    fn add_short_queries(&mut self, side: &Side<'_>, shape: &Shape) -> Result<bool> {
        let has_few = |run| {
            let n_sources = side.n_sources(run);
            n_sources == 0 || n_sources <= shape.few_sources && side.n_pairs(run) == 1
        };
        if !(0..side.runs.rows.len()).all(has_few) {
            return Ok(false);
        }
        for (run, rows) in side.runs.rows.iter().enumerate() {
            if side.n_sources(run) == 0 {
                continue;
            }
            self.n_short_query_rows += rows.len();
            let n_tasks = rows.len().div_ceil(FEW_ROWS);
            for first in rows.clone().step_by(rows.len().div_ceil(n_tasks.max(1)).max(1)) {
                let n_rows = (rows.end - first).min(rows.len().div_ceil(n_tasks)) as u32;
                let (row, first) = (first as u32, side.first(run));
                self.short_query_tasks.push(RowTask {
                    row,
                    n_rows,
                    first,
                    n_pairs: 1,
                    index: 0,
                    reserved: 0,
                });
            }
        }
        let (_, n_columns) = columns(side.problem.dim() * shape.element_bytes);
        // Queries and documents share a launch, so their CTAs are counted together.
        check_grid(self.short_query_tasks.len() as u64 * u64::from(n_columns) + self.n_row_blocks)?;
        Ok(true)
    }

    fn add_groups(&mut self, side: &Side<'_>, shape: &Shape) -> Result<()> {
        let dim = side.problem.dim();
        let carry_rows = (shape.carry_bytes_max / (dim as u64 * 4)).max(1);
        // Equal shares of what there is, so that no group is small.
        let list_bytes: u64 = (0..side.runs.rows.len())
            .map(|run| {
                let n_sources = side.n_sources(run);
                LIST_ENTRY_BYTES * (n_sources + side.runs.rows[run].len() as u64 + 1)
            })
            .sum();
        let n_groups = list_bytes.div_ceil(shape.list_bytes_max).max(1);
        let share = list_bytes.div_ceil(n_groups);
        for (run, rows) in side.runs.rows.iter().enumerate() {
            let n_sources = side.n_sources(run);
            if n_sources == 0 {
                continue;
            }
            let entries = |n_rows: usize| n_sources + n_rows as u64 + 1;
            // Equal windows, so that none is small.
            let n_windows = rows.len().div_ceil(shape.rows_max.min(WINDOW_ROWS as usize));
            let window_rows = rows.len().div_ceil(n_windows.max(1));
            let is_large = LIST_ENTRY_BYTES * entries(window_rows) > shape.list_bytes_max;
            let window_rows = match is_large && !shape.adds_in_place {
                true => window_rows.min(carry_rows as usize),
                false => window_rows,
            };
            let chunks = chunks(side, run, n_sources, shape);
            for first_row in rows.clone().step_by(window_rows.max(1)) {
                let window = first_row..rows.end.min(first_row + window_rows);
                if is_large {
                    self.add_passes(side, run, window, &chunks, shape)?;
                } else {
                    let bytes = LIST_ENTRY_BYTES * entries(window.len());
                    self.start_group(&window, bytes, share, shape);
                    self.add_window(side, run, &window, &chunks)?;
                }
            }
        }
        for group in &mut self.groups {
            (group.segment_len, group.n_segments) = segments(group.n_sources, dim, shape);
        }
        Ok(())
    }

    /// Makes sure that the last group takes a window, which is so many bytes.
    fn start_group(&mut self, window: &Range<usize>, bytes: u64, share: u64, shape: &Shape) {
        let is_full = self.groups.last().is_none_or(|group| {
            let entries = u64::from(group.n_sources) + u64::from(group.n_destinations);
            let taken = LIST_ENTRY_BYTES * entries;
            let n_rows = window.end - self.rows_of(group).start as usize;
            let is_large = taken + bytes > shape.list_bytes_max || n_rows > shape.rows_max;
            group.is_pass || taken >= share || is_large
        });
        if is_full {
            self.new_group();
        }
    }

    /// From the first row that a group adds to, to its last.
    fn rows_of(&self, group: &Group) -> Range<u32> {
        // Runs, and the windows of each, are in the order of their rows.
        let tasks = &self.sorts[group.tasks.start as usize..group.tasks.end as usize];
        match (tasks.first(), tasks.last()) {
            (Some(first), Some(last)) => first.row..last.row + last.n_rows,
            _ => 0..0,
        }
    }

    /// The groups, so that those which add to the same rows are together.
    pub(in crate::cuda) fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for (i, group) in self.groups.iter().enumerate() {
            let rows = self.rows_of(group);
            match spans.last_mut() {
                Some(span) if span.rows == rows => span.groups.end = i + 1,
                _ => spans.push(Span { groups: i..i + 1, rows }),
            }
        }
        spans
    }

    fn new_group(&mut self) {
        let first = self.sorts.len() as u32;
        self.groups.push(Group { tasks: first..first, ..Group::default() });
    }

    /// One window in several groups.
    fn add_passes(
        &mut self,
        side: &Side<'_>,
        run: usize,
        window: Range<usize>,
        chunks: &[Chunk],
        shape: &Shape,
    ) -> Result<()> {
        let n_rows = window.len() as u32;
        let most = (shape.list_bytes_max / LIST_ENTRY_BYTES).saturating_sub(u64::from(n_rows) + 1);
        let first_task = self.rows.len() as u32;
        if !shape.adds_in_place {
            self.list_rows(window.clone(), FirstPair::default(), 0, 0);
        }
        let tasks = first_task..self.rows.len() as u32;
        let mut left = chunks;
        while !left.is_empty() {
            let mut n_sources = 0;
            let fits = |chunk: &&Chunk| {
                n_sources += chunk.n_sources;
                n_sources <= most
            };
            let n = left.iter().take_while(fits).count().max(1);
            self.new_group();
            self.add_window(side, run, &window, &left[..n])?;
            if let Some(group) = self.groups.last_mut() {
                group.is_pass = true;
                group.carry = (!shape.adds_in_place).then(|| Carry {
                    first_row: window.start as u32,
                    n_rows,
                    tasks: tasks.clone(),
                    is_first: left.len() == chunks.len(),
                    is_last: left.len() == n,
                });
            }
            left = &left[n..];
        }
        Ok(())
    }

    /// Adds some of a run's pairs, sorted by the rows of a window, to the last group.
    fn add_window(
        &mut self,
        side: &Side<'_>,
        run: usize,
        window: &Range<usize>,
        chunks: &[Chunk],
    ) -> Result<()> {
        let Some(group) = self.groups.last_mut() else { return Ok(()) };
        let n_rows = window.len() as u32;
        let first = side.first(run);
        let n_chunks = chunks.len() as u32;
        let list = group.n_sources;
        for (index, chunk) in (0..).zip(chunks) {
            self.sorts.push(SortTask {
                row: window.start as u32,
                n_rows,
                first: side.later(first, chunk.first),
                n_pairs: chunk.n_pairs,
                token_begin: chunk.token_begin,
                token_end: chunk.token_end,
                n_warps: chunk.n_sources.div_ceil(u64::from(WARP_SOURCES / 8)).clamp(1, 8) as u32,
                chunk: index,
                n_chunks,
                counts: group.n_counts,
                destination: group.n_destinations,
                list,
                share: group.n_sources,
                n_sources: chunk.n_sources as u32,
            });
            group.n_sources += chunk.n_sources as u32;
        }
        group.tasks.end = self.sorts.len() as u32;
        group.n_destinations += n_rows + 1;
        group.n_counts += if n_chunks > 1 { n_chunks * (n_rows + 1) } else { 0 };
        group.window_rows = group.window_rows.max(n_rows);
        check_grid(u64::from(group.tasks.end))
    }
}

fn check_grid(n_blocks: u64) -> Result<()> {
    match n_blocks <= i32::MAX as u64 {
        true => Ok(()),
        false => {
            let what = "blocks of a gradient's kernel";
            Err(Error::TooLarge { what, limit: i32::MAX as u64, found: n_blocks })
        }
    }
}

/// Divides a run's pairs into chunks of about equally many sources.
fn chunks(side: &Side<'_>, run: usize, n_sources: u64, shape: &Shape) -> Vec<Chunk> {
    let most = shape.task_sources.max(n_sources.div_ceil(WINDOW_TASKS_MAX)).next_multiple_of(32);
    // A run of several passes has more tasks than a window may.
    let most = most.min((shape.list_bytes_max / LIST_ENTRY_BYTES / 4).max(32) / 32 * 32);
    let most = most.min(TASK_SOURCES_MAX / 32 * 32);
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut open: Option<Chunk> = None;
    for k in 0..side.n_pairs(run) {
        let len = side.len(run, k);
        if let Some(chunk) = &mut open
            && chunk.n_sources + len <= most
        {
            (chunk.n_pairs, chunk.n_sources) = (chunk.n_pairs + 1, chunk.n_sources + len);
            continue;
        }
        chunks.extend(open.take());
        let whole =
            Chunk { first: k, n_pairs: 1, token_begin: 0, token_end: u32::MAX, n_sources: len };
        if len <= most {
            open = Some(whole);
            continue;
        }
        for begin in (0..len).step_by(most as usize) {
            let end = len.min(begin + most);
            let (token_begin, token_end) = (begin as u32, end as u32);
            chunks.push(Chunk { token_begin, token_end, n_sources: end - begin, ..whole });
        }
    }
    chunks.extend(open);
    chunks
}

/// Length and number of segments: as many as run at once, and as the workspace has room for.
fn segments(n_sources: u32, dim: usize, shape: &Shape) -> (u32, u32) {
    let (_, n_columns) = columns(dim * shape.element_bytes);
    let n_sources = u64::from(n_sources);
    let at_once = (shape.n_warps as u64 / u64::from(n_columns)).max(1);
    let fit = (shape.parts_bytes_max / (2 * dim as u64 * 4)).max(1);
    let len = n_sources.div_ceil(at_once.min(fit)).max(SEGMENT_LEN_MIN).next_multiple_of(32);
    (len as u32, n_sources.div_ceil(len) as u32)
}
