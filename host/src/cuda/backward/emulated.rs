//! The kernels of gradients, emulated in plain Rust by the functions that they share with the plan.

use maxsim_kernels::abi::params::backward::{
    FirstPair, NO_ROW, Place, RowTask, SortTask, WARPS, chunk_start, n_continued, place,
};

use super::plan::{GradientPlan, Group, Shape, SidePairs};
use crate::problem::Problem;

/// A pair as `pairs::pair` finds it: where its winners are, its factor, and both items' rows.
type Pair = (usize, f32, [u32; 2], [u32; 2]);

/// A problem with everything that its gradients depend on.
pub(super) struct Setting<'a> {
    pub(super) problem: &'a Problem<'a>,
    pub(super) matrices: [Vec<f32>; 2],
    pub(super) winners: Vec<i32>,
    pub(super) grad_scores: Vec<f32>,
}

impl Setting<'_> {
    pub(super) fn pair(
        &self,
        plan: &GradientPlan,
        pairs: &SidePairs,
        first: FirstPair,
        k: u32,
    ) -> Pair {
        let score = match pairs {
            SidePairs::Listed(order) => {
                let place = (first.score + k) as usize;
                let slot = plan.slots[order.get(place).map_or(place, |&p| p as usize)];
                let rows = [slot.query_start, slot.query_len];
                let factor = self.grad_scores[slot.score as usize];
                let documents = [slot.document_start, slot.document_len];
                return (slot.token_base as usize, factor, rows, documents);
            }
            SidePairs::Computed { score_step, .. } => (first.score + k * score_step) as usize,
        };
        let SidePairs::Computed { query_step, document_step, .. } = pairs else { unreachable!() };
        let query = (first.query + k * query_step) as usize;
        let document = (first.document + k * document_step) as usize;
        assert_eq!(self.problem.pair(score), (query, document));
        let offsets = self.problem.token_offsets();
        // As with a list of bases, one per query.
        let row_len = self.problem.shape().row_len().expect("computed pairs have rows");
        let len = self.problem.queries().item_len(query);
        let base = offsets.bases()[query] as usize + (score - query * row_len) * len;
        let rows = self.problem.queries().segments()[query];
        (base, self.grad_scores[score], rows, self.problem.documents().segments()[document])
    }

    /// `gather` and `sum`; `visit` gets the query row, the document row and the factor of every
    /// source, as `atomic` has them.
    pub(super) fn of_queries(
        &self,
        plan: &GradientPlan,
        gradient: &mut [f32],
        mut visit: impl FnMut(u32, u32, f32),
    ) {
        let Some(pairs) = &plan.query_pairs else { return };
        let dim = self.problem.dim();
        let mut parts = vec![f32::NAN; (plan.n_chunks * plan.n_rows) as usize * dim];
        let tasks = &plan.rows[..plan.n_row_tasks as usize];
        for chunk in 0..plan.n_chunks {
            for task in tasks {
                for i in 0..task.n_rows {
                    let row = task.row + i;
                    let mut sum = vec![0.0; dim];
                    let bounds = [chunk, chunk + 1];
                    let [begin, end] = bounds.map(|c| chunk_start(task.n_pairs, c, plan.n_chunks));
                    for k in begin..end {
                        let (base, factor, query, document) = self.pair(plan, pairs, task.first, k);
                        let token = row.wrapping_sub(query[0]);
                        if token >= query[1] {
                            continue;
                        }
                        let winner = self.winners[base + token as usize] as u32;
                        if winner < document[1] {
                            self.add(1, document[0] + winner, factor, &mut sum);
                            visit(row, document[0] + winner, factor);
                        }
                    }
                    let index = (chunk * plan.n_rows + task.index + i) as usize * dim;
                    parts[index..index + dim].copy_from_slice(&sum);
                }
            }
        }
        sum_chunks(tasks, &parts, plan.n_chunks, plan.n_rows, dim, gradient);
    }

    /// `atomic`: what is added to `start`, in place or by way of sums.
    pub(super) fn atomic(&self, shape: &Shape, start: &[Vec<f32>; 2]) -> [Vec<f32>; 2] {
        let plan = GradientPlan::atomic(self.problem, shape).expect("a plan");
        assert!(plan.groups.is_empty() && (plan.narrowed.is_empty() || !shape.adds_in_place));
        let [mut of_queries, of_documents] = start.clone();
        let dim = self.problem.dim();
        let is_narrowed = !plan.narrowed.is_empty();
        let mut sums = if is_narrowed { vec![0.0; of_documents.len()] } else { of_documents };
        self.of_queries(&plan, &mut of_queries, |row, document_row, factor| {
            self.add(0, row, factor, &mut sums[document_row as usize * dim..][..dim]);
        });
        if !is_narrowed {
            return [of_queries, sums];
        }
        let mut of_documents = start[1].clone();
        let tasks = &plan.rows[plan.narrowed.start as usize..plan.narrowed.end as usize];
        sum_chunks(tasks, &sums, 1, 0, dim, &mut of_documents);
        [of_queries, of_documents]
    }

    pub(super) fn add(&self, side: usize, row: u32, factor: f32, sum: &mut [f32]) {
        let dim = sum.len();
        let values = &self.matrices[side][row as usize * dim..][..dim];
        sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += factor * x);
    }

    /// The steps of a warp: bucket, row and factor of each lane that has a token.
    pub(super) fn steps(
        &self,
        plan: &GradientPlan,
        task: &SortTask,
        warp: u32,
    ) -> Vec<Vec<(u32, u32, f32)>> {
        let pairs = plan.document_pairs.as_ref().expect("pairs");
        let len = match task.n_pairs {
            1 => self.pair(plan, pairs, task.first, 0).2[1],
            _ => u32::MAX,
        };
        let (begin, token_begin) = task.warp_start(warp, len);
        let (end, last_token) = task.warp_start(warp + 1, len);
        let (end, token_end) = match task.n_pairs {
            1 => (1, last_token.min(task.token_end)),
            _ => (end, task.token_end),
        };
        let mut steps = Vec::new();
        for k in begin..end {
            let (base, factor, query, document) = self.pair(plan, pairs, task.first, k);
            let len = query[1].min(token_end);
            for first in (token_begin..len).step_by(32) {
                let lane = |token: u32| {
                    let winner = self.winners[base + token as usize] as u32;
                    let bucket = task.bucket(document[0], document[1], winner);
                    (bucket, query[0] + token, factor)
                };
                steps.push((first..len.min(first + 32)).map(lane).collect());
            }
        }
        steps
    }

    pub(super) fn of_documents(&self, plan: &GradientPlan, shape: &Shape, gradient: &mut [f32]) {
        let dim = self.problem.dim();
        let mut carry = Vec::new();
        for group in &plan.groups {
            let (list, destinations) = self.sort(plan, group);
            match &group.carry {
                None => self.sum_segments(group, &list, &destinations, 0, gradient),
                Some(c) => {
                    assert!(!shape.adds_in_place && group.is_pass);
                    assert!(c.n_rows as u64 * dim as u64 * 4 <= shape.carry_bytes_max);
                    if c.is_first {
                        carry = vec![0.0; c.n_rows as usize * dim];
                    }
                    self.sum_segments(group, &list, &destinations, c.first_row, &mut carry);
                    if c.is_last {
                        let tasks = &plan.rows[c.tasks.start as usize..c.tasks.end as usize];
                        sum_chunks(tasks, &carry, 1, c.n_rows, dim, gradient);
                    }
                }
            }
        }
    }

    /// As [`Setting::of_documents`], some rows at a time.
    pub(super) fn of_windows(&self, plan: &GradientPlan, shape: &Shape, gradient: &mut [f32]) {
        let dim = self.problem.dim();
        let (mut group, mut row) = (0, 0);
        for span in plan.spans() {
            assert!(span.groups.start == group && span.rows.start >= row, "{span:?}");
            assert!(!span.rows.is_empty() && span.rows.len() <= shape.rows_max, "{span:?}");
            (group, row) = (span.groups.end, span.rows.end);
            let mut window = vec![0.0; span.rows.len() * dim];
            for group in &plan.groups[span.groups] {
                let (list, destinations) = self.sort(plan, group);
                self.sum_segments(group, &list, &destinations, span.rows.start, &mut window);
            }
            let sums = &mut gradient[span.rows.start as usize * dim..][..window.len()];
            sums.iter_mut().zip(&window).for_each(|(sum, x)| *sum += x);
        }
        assert_eq!(group, plan.groups.len());
    }

    /// `count` and `invert`.
    pub(super) fn sort(
        &self,
        plan: &GradientPlan,
        group: &Group,
    ) -> (Vec<(u32, f32)>, Vec<[u32; 2]>) {
        let tasks = &plan.sorts[group.tasks.start as usize..group.tasks.end as usize];
        let mut counts = vec![0u32; group.n_counts as usize];
        for task in tasks.iter().filter(|task| task.n_chunks > 1) {
            for (bucket, ..) in (0..task.n_warps).flat_map(|w| self.steps(plan, task, w)).flatten()
            {
                let chunk = task.chunk * task.n_buckets();
                counts[(task.counts + chunk + bucket) as usize] += 1;
            }
        }
        let mut list = vec![(u32::MAX, f32::NAN); group.n_sources as usize];
        let mut destinations = vec![[u32::MAX; 2]; group.n_destinations as usize];
        for task in tasks {
            let n_buckets = task.n_buckets() as usize;
            let mut own = vec![vec![0u32; n_buckets]; task.n_warps as usize];
            for warp in 0..task.n_warps {
                for (bucket, ..) in self.steps(plan, task, warp).into_iter().flatten() {
                    own[warp as usize][bucket as usize] += 1;
                }
            }
            let mut start = task.list;
            for bucket in 0..n_buckets {
                let of_chunk =
                    |chunk: u32| counts[task.counts as usize + chunk as usize * n_buckets + bucket];
                let (before, all) = match task.n_chunks {
                    1 => (0, own.iter().map(|own| own[bucket]).sum()),
                    n => ((0..task.chunk).map(of_chunk).sum(), (0..n).map(of_chunk).sum::<u32>()),
                };
                if task.chunk == 0 {
                    let row = match (bucket as u32) < task.n_rows {
                        true => task.row + bucket as u32,
                        false => NO_ROW,
                    };
                    let place = &mut destinations[task.destination as usize + bucket];
                    assert_eq!(*place, [u32::MAX; 2]);
                    *place = [start, row];
                }
                let mut next: u32 = start + before;
                for own in &mut own {
                    let count = own[bucket];
                    own[bucket] = next;
                    next += count;
                }
                start += all;
            }
            for warp in 0..task.n_warps {
                for step in self.steps(plan, task, warp) {
                    for &(bucket, row, factor) in &step {
                        let at = &mut own[warp as usize][bucket as usize];
                        let source = &mut list[*at as usize];
                        assert!(source.1.is_nan(), "placed twice");
                        *source = (row, factor);
                        *at += 1;
                    }
                }
            }
        }
        assert!(list.iter().all(|source| !source.1.is_nan()), "a place is empty");
        assert!(destinations.iter().all(|place| place[0] != u32::MAX));
        assert!(destinations.windows(2).all(|two| two[0][0] <= two[1][0]));
        (list, destinations)
    }

    /// The segmented sum and the fixup.
    pub(super) fn sum_segments(
        &self,
        group: &Group,
        list: &[(u32, f32)],
        destinations: &[[u32; 2]],
        first_row: u32,
        out: &mut [f32],
    ) {
        let dim = self.problem.dim();
        let (n_sources, len) = (list.len() as u32, group.segment_len);
        let last_of = |i: usize| destinations.get(i + 1).map_or(n_sources, |next| next[0]);
        let mut parts = [0, 1].map(|_| vec![vec![f32::NAN; dim]; group.n_segments as usize]);
        let mut lasts = vec![usize::MAX; group.n_segments as usize];
        let mut is_written = vec![false; out.len() / dim];
        let mut add_out = |row: u32, sum: &[f32]| {
            let row = (row - first_row) as usize;
            assert!(!std::mem::replace(&mut is_written[row], true), "two owners");
            out[row * dim..][..dim].iter_mut().zip(sum).for_each(|(out, x)| *out += x);
        };
        assert!((group.n_segments - 1) * len < n_sources && group.n_segments * len >= n_sources);
        for segment in 0..group.n_segments {
            let (begin, end) = (segment * len, n_sources.min((segment + 1) * len));
            let mut pos = begin;
            while pos < end {
                let which = destinations.partition_point(|place| place[0] <= pos) - 1;
                let ([first, row], last) = (destinations[which], last_of(which));
                let stop = last.min(end);
                if stop == end {
                    lasts[segment as usize] = which;
                }
                if row != NO_ROW {
                    let mut sum = vec![0.0; dim];
                    for &(row, factor) in &list[pos as usize..stop as usize] {
                        self.add(0, row, factor, &mut sum);
                    }
                    match place(first, last, begin, end) {
                        Place::Out => add_out(row, &sum),
                        Place::Head => parts[0][segment as usize] = sum,
                        Place::Tail => parts[1][segment as usize] = sum,
                    }
                }
                pos = stop;
            }
        }
        for segment in 0..group.n_segments {
            let which = lasts[segment as usize];
            let ([first, row], last) = (destinations[which], last_of(which));
            let n = n_continued(segment, len, first, last);
            if n == 0 || row == NO_ROW {
                continue;
            }
            let mut sum = vec![0.0; dim];
            for warp in 0..WARPS {
                let bounds = [warp, warp + 1].map(|w| chunk_start(n + 1, w, WARPS));
                for i in bounds[0]..bounds[1] {
                    let part = &parts[usize::from(i == 0)][(segment + i) as usize];
                    sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
                }
            }
            add_out(row, &sum);
        }
    }
}

/// `sum`.
fn sum_chunks(
    tasks: &[RowTask],
    parts: &[f32],
    n_chunks: u32,
    n_rows: u32,
    dim: usize,
    out: &mut [f32],
) {
    for task in tasks {
        for i in 0..task.n_rows {
            for k in 0..dim {
                let part = |c: u32| parts[(c * n_rows + task.index + i) as usize * dim + k];
                out[(task.row + i) as usize * dim + k] += (0..n_chunks).map(part).sum::<f32>();
            }
        }
    }
}
