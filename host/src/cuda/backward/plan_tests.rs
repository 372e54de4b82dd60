//! The kernels of gradients, emulated in plain Rust by the functions that they share with the plan:
//! whatever the shapes and the room, every winner is sorted once, every sum arrives, and the
//! gradients are the CPU engine's.

use maxsim_kernels::abi::params::backward::{FEW_ROWS, WARPS};

use super::plan::{GradientPlan, Shape};
use crate::cpu;
use crate::cuda::backward::emulated::Setting;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::shape::ScoreShape;
use crate::tokens::layout::TokenLayout;

impl GradientPlan {
    /// Plans the gradients of both sides.
    fn new(problem: &Problem<'_>, shape: &Shape) -> Result<GradientPlan> {
        GradientPlan::of_sides(problem, shape, [true; 2])
    }
}

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

/// Compares the emulated kernels with the CPU engine, with much room and with little.
fn check(queries: &TokenLayout, documents: &TokenLayout, pairing: &Pairing, seed: u64) {
    let draws = &mut Draws(seed);
    let problem = Problem::new(queries, documents, pairing).expect("a problem");
    let dim = problem.dim();
    let matrices = [queries, documents].map(|layout| draws.values(layout.rows() * dim));
    let options = ScoreOptions { winners: true, ..ScoreOptions::default() };
    let [q, d]: [cpu::tokens::Matrix<'_, f32>; 2] = [&matrices[0], &matrices[1]].map(|data| {
        cpu::tokens::Matrix { data, scales: None, residuals: None, mask: None, weights: None }
    });
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
    let outputs = [&mut of_queries[..], &mut of_documents[..], &mut []];
    cpu::add_gradients(&problem, q, d, &winners, &grad_scores, outputs, &options)
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
    for (task_sources, list_bytes_max, adds_in_place, n_warps) in [
        (8192, 1 << 20, true, 1000),
        (64, 1 << 20, false, 8),
        (64, 1 << 12, true, 3),
        (32, 1 << 11, false, 1000),
        (96, 1 << 10, false, 5),
    ] {
        let carry_bytes_max = 7 * dim as u64 * 4;
        let shape = Shape {
            task_sources,
            list_bytes_max,
            adds_in_place,
            n_warps,
            carry_bytes_max,
            ..roomy
        };
        check_shape(&setting, &shape, &start, &expected);
    }
}

/// Compares what the emulated kernels find with as much room as `shape` says.
fn check_shape(
    setting: &Setting<'_>,
    shape: &Shape,
    start: &[Vec<f32>; 2],
    expected: &[Vec<f32>; 2],
) {
    let problem = setting.problem;
    let plan = GradientPlan::new(problem, shape).expect("a plan");
    for group in &plan.groups {
        let entries = u64::from(group.n_sources) + u64::from(group.n_destinations);
        assert!(entries * 8 <= shape.list_bytes_max.max(8 * 2 * 2100), "{entries} entries");
    }
    let mut found = start.clone();
    setting.of_queries(&plan, &mut found[0], |_, _, _| {});
    setting.of_documents(&plan, shape, &mut found[1]);
    assert_eq!(found, *expected, "{shape:?}");
    assert_eq!(setting.atomic(shape, start), *expected, "{shape:?}");
    for sides in [[true, false], [false, true], [false; 2]] {
        let plan = GradientPlan::of_sides(problem, shape, sides).expect("a plan");
        assert_eq!(plan.n_rows > 0 && sides[0], plan.n_rows > 0);
        assert!(sides[1] || plan.sorts.is_empty() && plan.rows.len() == plan.n_row_tasks as usize);
        let mut found = start.clone();
        setting.of_queries(&plan, &mut found[0], |_, _, _| {});
        setting.of_documents(&plan, shape, &mut found[1]);
        for side in [0, 1] {
            let wanted = if sides[side] { &expected[side] } else { &start[side] };
            assert_eq!(&found[side], wanted, "{shape:?}, side {side} of {sides:?}");
        }
    }
    for rows_max in [5, 40] {
        let shape = Shape { adds_in_place: true, rows_max, ..*shape };
        let plan = GradientPlan::new(problem, &shape).expect("a plan");
        let mut found = start[1].clone();
        setting.of_windows(&plan, &shape, &mut found);
        assert_eq!(found, expected[1], "{shape:?} in windows");
    }
    let ScoreShape::Cross { n_queries, .. } = problem.shape() else { return };
    // Slice by slice, each with the winners of all.
    let mut found = start.clone();
    for range in [0..n_queries / 3, n_queries / 3..n_queries] {
        let part = problem.of_queries(range);
        let plan = GradientPlan::new(&part, shape).expect("a plan");
        setting.of_queries(&plan, &mut found[0], |_, _, _| {});
        setting.of_documents(&plan, shape, &mut found[1]);
    }
    assert_eq!(found, *expected, "{shape:?} in slices");
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
    assert_eq!(few.n_short_query_rows, 3011, "all but the spare row");
    let mut next = 0;
    for task in &few.short_query_tasks {
        assert_eq!((task.row, task.n_pairs), (next, 1));
        assert!(task.n_rows as usize <= FEW_ROWS);
        let document = offsets.partition_point(|&start| start <= i64::from(next)) as u32 - 1;
        assert_eq!((task.first.query, task.first.document), (document / 3, document));
        next += task.n_rows;
    }
    assert_eq!(next, 3011);
    // One token more than lanes; a second pair; a document that only some pairs have.
    assert!(plan(2, 33, &Pairing::own_candidates(3)).short_query_tasks.is_empty());
    assert!(plan(2, 4, &Pairing::cross()).short_query_tasks.is_empty());
    let one = plan(1, 4, &Pairing::cross());
    assert_eq!((one.n_short_query_rows, one.groups.len()), (3011, 0));
    let some = plan(2, 4, &Pairing::pairs(&[1i64, 0], &[3i64, 0]).expect("pairs"));
    assert_eq!(some.short_query_tasks.iter().map(|task| task.n_rows).sum::<u32>(), 2003);
    assert_eq!(some.n_short_query_rows, 2003);
}
