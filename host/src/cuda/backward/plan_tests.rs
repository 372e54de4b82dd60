//! The kernels of gradients, emulated in plain Rust by the functions that they share with the plan:
//! whatever the shapes and the room, every winner is sorted once, every sum arrives, and the
//! gradients are the CPU engine's.

use maxsim_kernels::abi::params::backward::{
    FEW_ROWS, FirstPair, NO_ROW, Place, RowTask, SortTask, WARPS, chunk_start, n_joined, place,
};

use super::plan::{GradientPlan, Group, Shape, SidePairs};
use crate::cpu;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::shape::ScoreShape;
use crate::tokens::layout::TokenLayout;

/// Numbers that look random.
struct Draws(u64);

impl Draws {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }

    /// Small integers: sums of them are exact in any order.
    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next(9) as f32 - 4.0).collect()
    }
}

/// A problem with everything that its gradients depend on.
struct Setting<'a> {
    problem: &'a Problem<'a>,
    matrices: [Vec<f32>; 2],
    winners: Vec<i32>,
    grad_scores: Vec<f32>,
}

/// A pair as `pairs::pair` finds it: where its winners are, its factor, and both items' rows.
type Pair = (usize, f32, [u32; 2], [u32; 2]);

impl Setting<'_> {
    fn pair(&self, plan: &GradientPlan, pairs: &SidePairs, first: FirstPair, k: u32) -> Pair {
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
    fn of_queries(
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
    fn atomic(&self, shape: &Shape, start: &[Vec<f32>; 2]) -> [Vec<f32>; 2] {
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

    fn add(&self, side: usize, row: u32, factor: f32, sum: &mut [f32]) {
        let dim = sum.len();
        let values = &self.matrices[side][row as usize * dim..][..dim];
        sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += factor * x);
    }

    /// The steps of a warp: bucket, row and factor of each lane that has a token.
    fn steps(&self, plan: &GradientPlan, task: &SortTask, warp: u32) -> Vec<Vec<(u32, u32, f32)>> {
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

    fn of_documents(&self, plan: &GradientPlan, shape: &Shape, gradient: &mut [f32]) {
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
    fn of_windows(&self, plan: &GradientPlan, shape: &Shape, gradient: &mut [f32]) {
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
    fn sort(&self, plan: &GradientPlan, group: &Group) -> (Vec<(u32, f32)>, Vec<[u32; 2]>) {
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

    /// `owner` and `join`.
    fn sum_segments(
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
            let n = n_joined(segment, len, first, last);
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

/// Compares the emulated kernels with the CPU engine, with much room and with little.
fn check(queries: &TokenLayout, documents: &TokenLayout, pairing: &Pairing, seed: u64) {
    let draws = &mut Draws(seed);
    let problem = Problem::new(queries, documents, pairing).expect("a problem");
    let dim = problem.dim();
    let matrices = [queries, documents].map(|layout| draws.values(layout.rows() * dim));
    let options = ScoreOptions { winners: true, ..ScoreOptions::default() };
    let [q, d]: [cpu::tokens::Matrix<'_, f32>; 2] = [&matrices[0], &matrices[1]]
        .map(|data| cpu::tokens::Matrix { data, scales: None, residuals: None, mask: None });
    let scores = cpu::score(&problem, q, d, &options).expect("scores");
    let mut winners = scores.winners().expect("winners").to_vec();
    // Some of them masked, all of one document in one place.
    for winner in &mut winners {
        match draws.next(8) {
            0 => *winner = -1,
            1..4 => *winner = (*winner).min(0),
            _ => {}
        }
    }
    let grad_scores = draws.values(problem.shape().n_scores());
    let start = [queries, documents].map(|layout| draws.values(layout.rows() * dim));
    let mut expected = start.clone();
    let [of_queries, of_documents] = &mut expected;
    cpu::add_gradients(&problem, q, d, &winners, &grad_scores, [of_queries, of_documents], false)
        .expect("gradients");
    let setting = Setting { problem: &problem, matrices, winners, grad_scores };
    let roomy = Shape {
        element_bytes: 2,
        gathered_bytes: 2,
        adds_in_place: true,
        n_warps: 1000,
        list_bytes_max: 1 << 20,
        parts_bytes_max: 1 << 20,
        carry_bytes_max: 1 << 20,
        task_sources: 8192,
        few_sources: 0,
        rows_max: usize::MAX,
    };
    let row_bytes = dim as u64 * 4;
    for (task_sources, list_bytes_max, adds_in_place, n_warps) in [
        (8192, 1 << 20, true, 1000),
        (64, 1 << 20, false, 8),
        (64, 1 << 12, true, 3),
        (32, 1 << 11, false, 1000),
        (96, 1 << 10, false, 5),
    ] {
        let carry_bytes_max = 7 * row_bytes;
        let shape = Shape {
            task_sources,
            list_bytes_max,
            adds_in_place,
            n_warps,
            carry_bytes_max,
            ..roomy
        };
        let plan = GradientPlan::new(&problem, &shape).expect("a plan");
        for group in &plan.groups {
            let entries = u64::from(group.n_sources) + u64::from(group.n_destinations);
            assert!(entries * 8 <= list_bytes_max.max(8 * 2 * 2100), "{entries} entries");
        }
        let mut found = start.clone();
        setting.of_queries(&plan, &mut found[0], |_, _, _| {});
        setting.of_documents(&plan, &shape, &mut found[1]);
        assert_eq!(found, expected, "{shape:?}");
        assert_eq!(setting.atomic(&shape, &start), expected, "{shape:?}");
        for rows_max in [5, 40] {
            let shape = Shape { adds_in_place: true, rows_max, ..shape };
            let plan = GradientPlan::new(&problem, &shape).expect("a plan");
            let mut found = start[1].clone();
            setting.of_windows(&plan, &shape, &mut found);
            assert_eq!(found, expected[1], "{shape:?} in windows");
        }
        let ScoreShape::Cross { n_queries, .. } = problem.shape() else { continue };
        // Slice by slice, each with the winners of all.
        let mut found = start.clone();
        for range in [0..n_queries / 3, n_queries / 3..n_queries] {
            let part = problem.of_queries(range);
            let plan = GradientPlan::new(&part, &shape).expect("a plan");
            setting.of_queries(&plan, &mut found[0], |_, _, _| {});
            setting.of_documents(&plan, &shape, &mut found[1]);
        }
        assert_eq!(found, expected, "{shape:?} in slices");
    }
}

fn pairings(n_queries: usize, n_documents: usize, draws: &mut Draws) -> Vec<Pairing> {
    let k = 3;
    let ids: Vec<i64> = (0..n_queries * k).map(|_| draws.next(n_documents) as i64).collect();
    let n_pairs = 40;
    let query_ids: Vec<i64> = (0..n_pairs).map(|_| draws.next(n_queries) as i64).collect();
    let document_ids: Vec<i64> = (0..n_pairs).map(|_| draws.next(n_documents) as i64).collect();
    let mut pairings = vec![
        Pairing::cross(),
        Pairing::candidates(&ids, k).expect("candidates"),
        Pairing::pairs(&query_ids, &document_ids).expect("pairs"),
    ];
    if n_documents.is_multiple_of(n_queries) {
        pairings.push(Pairing::own_candidates(n_documents / n_queries));
    }
    pairings
}

#[test]
fn gradients_are_the_cpu_engines() {
    let draws = &mut Draws(7);
    for round in 0..6 {
        let dim = [3, 8, 1][round % 3];
        let mut ragged = |n: usize, most: usize, overlap: bool| {
            let lens: Vec<i64> = (0..n).map(|_| draws.next(most + 1) as i64).collect();
            let rows: i64 = lens.iter().sum::<i64>() + 5;
            let mut end = 0;
            let starts: Vec<i64> = lens
                .iter()
                .map(|&len| {
                    let start = if overlap { end / 2 } else { end };
                    end += len;
                    start.min(rows - len)
                })
                .collect();
            TokenLayout::scattered(rows as usize, dim, &starts, &lens).expect("a layout")
        };
        let sides = [
            (ragged(4, 70, false), ragged(8, 90, false)),
            (ragged(4, 70, true), ragged(8, 90, false)),
            (ragged(4, 40, false), ragged(8, 60, true)),
        ];
        let padded = |n, len| TokenLayout::padded(n, len, dim).expect("a layout");
        for (queries, documents) in sides.into_iter().chain([
            (padded(4, 32), padded(8, 50)),
            (padded(2, 300), padded(2, 1)),
            (padded(1, 33), padded(40, 7)),
        ]) {
            let (n_queries, n_documents) = (queries.n_items(), documents.n_items());
            let seed = &mut Draws(round as u64 + 1);
            for pairing in pairings(n_queries, n_documents, seed) {
                check(&queries, &documents, &pairing, round as u64 + 3);
            }
        }
    }
}

#[test]
fn long_documents_are_sorted_by_window() {
    let queries = TokenLayout::padded(3, 70, 2).expect("queries");
    let documents = TokenLayout::packed(5001, 2, &[0i64, 4990, 5001]).expect("documents");
    check(&queries, &documents, &Pairing::cross(), 5);
}

#[test]
fn the_workspace_holds_every_call() {
    // Bytes of the parts of 32 MB that do not depend on a group's size.
    let shape = |adds_in_place| Shape {
        element_bytes: 2,
        gathered_bytes: 2,
        adds_in_place,
        n_warps: 132 * 24,
        list_bytes_max: 20 << 20,
        parts_bytes_max: 5 << 20,
        carry_bytes_max: 3 << 18,
        task_sources: 8192,
        few_sources: 0,
        rows_max: usize::MAX,
    };
    for (n_queries, query_len, n_documents, len, dim) in [
        (128, 1024, 128, 1024, 128),
        (512, 1024, 512, 1024, 128),
        (1024, 32, 1024, 300, 128),
        (1, 32, 10_000, 300, 128),
        (4096, 1024, 2, 1024, 128),
        (40, 1024, 4, 60_000, 1024),
        (4, 1024, 4, 1024, 4096),
    ] {
        let queries = TokenLayout::padded(n_queries, query_len, dim).expect("queries");
        let documents = TokenLayout::padded(n_documents, len, dim).expect("documents");
        let cross = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &cross).expect("a problem");
        for adds_in_place in [false, true] {
            let plan = GradientPlan::new(&problem, &shape(adds_in_place)).expect("a plan");
            for group in &plan.groups {
                let entries = u64::from(group.n_sources) + u64::from(group.n_destinations);
                let parts = 2 * u64::from(group.n_segments) * dim as u64 * 4;
                let lasts = u64::from(group.n_segments) * 4;
                let carry = group.carry.as_ref().map_or(0, |carry| carry.n_rows);
                let carry = u64::from(carry) * dim as u64 * 4;
                // Of each task, and of each of its warps in two bytes.
                let counts = (4 + 2 * u64::from(WARPS)) * u64::from(group.n_counts);
                let bytes = 8 * entries + counts + parts + lasts + carry;
                assert!(bytes + (64 << 10) + 8 * 256 <= 32 << 20, "{bytes} bytes: {group:?}");
            }
            let chunks = u64::from(plan.n_chunks) * u64::from(plan.n_rows) * dim as u64 * 4;
            assert!(plan.n_chunks == 1 || chunks <= 5 << 20);
        }
    }
}

#[test]
fn documents_with_few_sources_are_not_sorted() {
    let shape = Shape {
        element_bytes: 2,
        gathered_bytes: 2,
        adds_in_place: false,
        n_warps: 1000,
        list_bytes_max: 1 << 20,
        parts_bytes_max: 1 << 20,
        carry_bytes_max: 1 << 20,
        task_sources: 8192,
        few_sources: 32,
        rows_max: usize::MAX,
    };
    let offsets: Vec<i64> = vec![0, 3, 3, 1003, 3003, 3010, 3011];
    let documents = TokenLayout::packed(3012, 2, &offsets).expect("documents");
    let plan = |n_queries: usize, query_len, pairing: &Pairing| {
        let queries = TokenLayout::padded(n_queries, query_len, 2).expect("queries");
        let problem = Problem::new(&queries, &documents, pairing).expect("a problem");
        GradientPlan::new(&problem, &shape).expect("a plan")
    };
    let few = plan(2, 32, &Pairing::own_candidates(3));
    assert!(few.groups.is_empty() && few.sorts.is_empty());
    assert_eq!(few.n_few_rows, 3011, "all but the spare row");
    let mut next = 0;
    for task in &few.few {
        assert_eq!((task.row, task.n_pairs), (next, 1));
        assert!(task.n_rows as usize <= FEW_ROWS);
        let document = offsets.partition_point(|&start| start <= i64::from(next)) as u32 - 1;
        assert_eq!((task.first.query, task.first.document), (document / 3, document));
        next += task.n_rows;
    }
    assert_eq!(next, 3011);
    // One token more than lanes; a second pair; a document that only some pairs have.
    assert!(plan(2, 33, &Pairing::own_candidates(3)).few.is_empty());
    assert!(plan(2, 4, &Pairing::cross()).few.is_empty());
    let one = plan(1, 4, &Pairing::cross());
    assert_eq!((one.n_few_rows, one.groups.len()), (3011, 0));
    let some = plan(2, 4, &Pairing::pairs(&[1i64, 0], &[3i64, 0]).expect("pairs"));
    assert_eq!(some.few.iter().map(|task| task.n_rows).sum::<u32>(), 2003);
    assert_eq!(some.n_few_rows, 2003);
}
