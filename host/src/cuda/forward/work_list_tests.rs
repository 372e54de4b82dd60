//! Lists and launches against brute force: what the kernels would do with them, as
//! `maxsim_kernels::abi::params` says, must visit every (query row group, entry) exactly once and
//! write every score once.

use std::collections::BTreeMap;
use std::ops::Range;

use maxsim_kernels::abi::params::{Group, N_PARTIAL_ROWS, UnitStart};

use super::partition::{Chunks, UNIT_TOKENS_MAX, grid, launch_ranges};
use super::work_list::{Shape, Units, WorkList};
use crate::cuda::forward::work_list::Launch;
use crate::problem::Problem;
use crate::problem::pairing::Pairing;
use crate::problem::shape::ScoreShape;
use crate::tokens::layout::TokenLayout;

/// Two CTAs of small tiles that alternate.
pub(in crate::cuda) const SMALL: Shape = Shape {
    query_tile: 64,
    n_blocks: 2,
    prefers_whole_rounds: false,
    n_counters_max: 0,
    dynamic_tokens_min: u64::MAX,
    partials_max: 100,
    unit_tokens_max: UNIT_TOKENS_MAX,
    is_contiguous: false,
    is_stream_k: false,
    is_sweep: false,
};

/// A CTA of large tiles for each multiprocessor of an H200.
const LARGE: Shape = Shape {
    query_tile: 256,
    n_blocks: 132,
    prefers_whole_rounds: true,
    partials_max: 8 << 20,
    ..SMALL
};

/// A small generator, so that the cases are the same in every run.
pub(in crate::cuda) struct Random(pub u64);

impl Random {
    pub(in crate::cuda) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

pub(in crate::cuda) fn layout(lens: &[usize]) -> TokenLayout {
    let mut offsets = vec![0i64];
    for &len in lens {
        offsets.push(offsets[offsets.len() - 1] + len as i64);
    }
    TokenLayout::packed(offsets[lens.len()] as usize, 8, &offsets).unwrap()
}

/// The first document's rows that a list of units gives must be those of its first entry.
fn check_first_documents(work: &WorkList, problem: &Problem<'_>) {
    let segment = |entry: u32| {
        let document = match work.entry_document.is_empty() {
            true => entry,
            false => work.entry_document[entry as usize],
        };
        problem.documents().segments()[document as usize]
    };
    for unit in &work.units {
        assert_eq!([unit.first.start, unit.first.len], segment(unit.entry_begin));
    }
    for launch in &work.launches {
        let Units::Starts(first) = launch.units else { continue };
        let n_chunks = launch.n_units as usize / launch.tiles.len();
        let starts = &work.unit_starts[first as usize..][..n_chunks + 1];
        for starts in starts.windows(2).filter(|s| s[0].entry < s[1].entry) {
            assert_eq!([starts[0].first.start, starts[0].first.len], segment(starts[0].entry));
        }
    }
}

/// Checks that a unit has the query and the entries of all units of its counter.
fn check_one_query(
    work: &WorkList,
    launch: &Launch,
    counter: u32,
    (tile, entries): (u32, &Range<u32>),
    n_groups: usize,
) {
    let first = work.unit(launch, counter * launch.n_parts);
    let query = |tile: u32| work.tiles.groups[tile as usize * n_groups].query;
    assert_eq!((query(first.0), &first.1), (query(tile), entries));
    let groups = &work.tiles.groups[tile as usize * n_groups..][..n_groups];
    let owns = |group: &Group| [query(tile), Group::NO_QUERY].contains(&group.query);
    assert!(groups.iter().all(owns));
}

/// The query and the entry of each score that a launch sums up from partials.
fn summed_scores(launch: &Launch) -> impl Iterator<Item = (u32, u32)> {
    let row_len = match launch.query_stride {
        0 => launch.n_results,
        entries => entries,
    };
    let (query, entry) = (launch.first_query, launch.entries.start);
    (0..launch.n_results).map(move |i| (query + i / row_len, entry + i % row_len))
}

/// Checks the work of a problem as a whole.
pub(in crate::cuda) fn check(problem: &Problem<'_>, shape: &Shape) {
    check_work(&WorkList::new(problem, shape).unwrap(), problem, shape);
}

/// Checks the work of a cross product in pieces, which launches take one after the other.
fn check_pieces(problem: &Problem<'_>, shape: &Shape, pieces: &[Range<u32>]) {
    let work = WorkList::in_pieces(problem, shape, pieces).unwrap();
    let piece_of = |launch: &Launch| {
        let holds = |piece: &Range<u32>| {
            piece.start <= launch.entries.start && launch.entries.end <= piece.end
        };
        pieces.iter().position(holds).expect("a piece with the launch")
    };
    assert!(work.launches.iter().map(piece_of).is_sorted());
    check_work(&work, problem, shape);
}

/// Runs the launches: how often each (score, query row) was visited, and with what pair.
fn check_work(work: &WorkList, problem: &Problem<'_>, shape: &Shape) {
    check_first_documents(work, problem);
    let n_groups = shape.query_tile / Group::ROWS;
    let score_stride = match problem.shape() {
        ScoreShape::Cross { n_documents, .. } => n_documents as u32,
        _ => 0,
    };
    let score_of = |query: u32, entry: u32| match work.entry_score.is_empty() {
        true => (query * score_stride + entry) as usize,
        false => work.entry_score[entry as usize] as usize,
    };
    let mut visits: BTreeMap<(usize, u32), u32> = BTreeMap::new();
    let mut written = vec![0u32; problem.shape().n_scores()];
    for launch in &work.launches {
        assert!(launch.n_units > 0 && launch.grid > 0 && launch.grid <= launch.n_units);
        let n_partials = u64::from(launch.n_parts) * u64::from(launch.n_results);
        assert!(n_partials <= work.n_partials);
        assert!(n_partials <= shape.partials_max || launch.entries.len() == 1);
        let mut partials = vec![0u32; n_partials as usize];
        // Parts of a score that arrive at a counter; the last one adds them up.
        let mut counters = BTreeMap::<u32, u32>::new();
        // The dynamic scheduler has one tile, and the units after one for every CTA.
        let can_be_dynamic = launch.tiles.len() == 1 && shape.dynamic_tokens_min < u64::MAX;
        assert!(!launch.is_dynamic || can_be_dynamic && launch.n_units > launch.grid);
        // A CTA whose units end within documents has one unit.
        assert!(!shape.is_stream_k || launch.n_units == launch.grid && !launch.is_dynamic);
        for u in 0..launch.n_units {
            let (tile, entries) = work.unit(launch, u);
            // A unit within a document has the end of none.
            assert!(shape.is_stream_k || !entries.is_empty(), "unit {u} is empty");
            let groups = &work.tiles.groups[tile as usize * n_groups..][..n_groups];
            if launch.sums_in_kernel {
                let counter = u / launch.n_parts;
                assert!(u64::from(counter) < shape.n_counters_max);
                *counters.entry(counter).or_default() += 1;
                check_one_query(work, launch, counter, (tile, &entries), n_groups);
            }
            for entry in entries {
                assert!(launch.entries.contains(&entry));
                let document = match work.entry_document.is_empty() {
                    true => entry,
                    false => work.entry_document[entry as usize],
                };
                for (i, group) in groups.iter().enumerate() {
                    if group.query == Group::NO_QUERY {
                        continue;
                    }
                    let score = score_of(group.query, entry);
                    assert_eq!(problem.pair(score), (group.query as usize, document as usize));
                    let start = problem.queries().segments()[group.query as usize][0];
                    assert_eq!(group.start, start + group.row);
                    *visits.entry((score, group.row)).or_default() += group.n_rows();
                    let is_first = i == 0 || groups[i - 1].query != group.query;
                    match (is_first, launch.n_parts) {
                        (false, _) => {}
                        (true, 0) => written[score] += 1,
                        (true, _) => {
                            let first = launch.first_query * launch.query_stride;
                            let result = group.query * launch.query_stride + entry
                                - first
                                - launch.entries.start;
                            assert!(result < launch.n_results);
                            partials[(group.part() * launch.n_results + result) as usize] += 1;
                        }
                    }
                }
            }
        }
        assert!(counters.values().all(|&n| n == launch.n_parts));
        if launch.n_parts > 0 {
            assert!(partials.iter().all(|&n| n <= 1));
            assert!(launch.is_ragged || partials.iter().all(|&n| n == 1));
            let summed = summed_scores(launch);
            summed.for_each(|(query, entry)| written[score_of(query, entry)] += 1);
        }
    }
    check_all_written(work, problem, &written, &visits);
}

/// Checks that every score is written at most once, and every group of rows was visited with every
/// document that it meets.
fn check_all_written(
    work: &WorkList,
    problem: &Problem<'_>,
    written: &[u32],
    visits: &BTreeMap<(usize, u32), u32>,
) {
    let mut expected = BTreeMap::new();
    let has_documents = problem.documents().max_len() > 0;
    for (p, &n_written) in written.iter().enumerate() {
        let len = problem.queries().item_len(problem.pair(p).0) as u32;
        assert!(n_written <= 1);
        assert!(n_written == 1 || work.has_unvisited_scores, "score {p} is left as it was");
        if has_documents {
            assert!(n_written == 1 || len == 0);
            let rows = (0..len).step_by(Group::ROWS);
            expected.extend(rows.map(|row| ((p, row), (len - row).min(16))));
        }
    }
    assert_eq!(*visits, expected);
}

#[test]
fn every_group_meets_every_entry_once() {
    let mut random = Random(1);
    for _ in 0..2000 {
        let n_queries = random.below(6) as usize;
        let longest = [1, 16, 33, 160][random.below(4) as usize];
        let query_lens: Vec<usize> =
            (0..n_queries).map(|_| random.below(longest + 1) as usize).collect();
        let k = random.below(9) as usize;
        let n_documents = match random.below(2) {
            0 => n_queries * k,
            _ => 1 + random.below(12) as usize,
        };
        let longest_document = [0, 1, 2, 300][random.below(4) as usize];
        let document_lens: Vec<usize> =
            (0..n_documents).map(|_| random.below(longest_document + 1) as usize).collect();
        let (queries, documents) = (layout(&query_lens), layout(&document_lens));
        let shape = Shape {
            query_tile: [16, 64, 128][random.below(3) as usize],
            n_blocks: 1 + random.below(9) as usize,
            prefers_whole_rounds: random.below(2) == 0,
            n_counters_max: random.below(2) * 50,
            dynamic_tokens_min: [u64::MAX, 0, 50][random.below(3) as usize],
            partials_max: 1 + random.below(60),
            unit_tokens_max: 1 + random.below(600),
            ..SMALL
        };
        let mut pairings = vec![Pairing::cross()];
        if n_documents == n_queries * k {
            pairings.push(Pairing::own_candidates(k));
        }
        if n_documents > 0 {
            let mut ids = |n| -> Vec<i64> {
                (0..n).map(|_| random.below(n_documents as u64) as i64).collect()
            };
            pairings.push(Pairing::candidates(&ids(n_queries * k), k).unwrap());
            let document_ids = ids(if n_queries == 0 { 0 } else { 3 * k });
            let query_ids: Vec<i64> =
                document_ids.iter().map(|_| random.below(n_queries as u64) as i64).collect();
            pairings.push(Pairing::pairs(&query_ids, &document_ids).unwrap());
        }
        for pairing in &pairings {
            check(&Problem::new(&queries, &documents, pairing).unwrap(), &shape);
        }
        let cross = Problem::new(&queries, &documents, &pairings[0]).unwrap();
        let mut cuts: Vec<u32> = (0..n_documents as u32).filter(|_| random.below(3) == 0).collect();
        cuts.extend([0, n_documents as u32]);
        cuts.sort_unstable();
        cuts.dedup();
        let pieces: Vec<Range<u32>> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
        check_pieces(&cross, &shape, &pieces);
        // Each tile has a CTA at least: six queries of up to 160 rows need 60.
        let n_blocks = 60 + random.below(100) as usize;
        let cuts = Shape { is_stream_k: true, dynamic_tokens_min: u64::MAX, n_blocks, ..shape };
        check(&cross, &cuts);
    }
}

#[test]
fn pairs_are_numbered_by_query_and_keep_their_order() {
    let (queries, documents) = (layout(&[3, 0, 5]), layout(&[1; 9]));
    let pairing = Pairing::pairs(&[2, 0, 1, 2, 0], &[8, 1, 2, 3, 4]).unwrap();
    let problem = Problem::new(&queries, &documents, &pairing).unwrap();
    let work = WorkList::new(&problem, &SMALL).unwrap();
    assert_eq!(work.entry_score, [1, 4, 2, 0, 3]);
    assert_eq!(work.entry_document, [1, 4, 2, 8, 3]);
    assert!(work.has_unvisited_scores);
}

#[test]
fn nothing_is_launched_without_tokens_or_pairs() {
    for (query_lens, document_lens, unvisited) in [
        (vec![], vec![1, 2], false),
        (vec![9], vec![], false),
        (vec![0, 0], vec![1, 2], true),
        (vec![9], vec![0, 0], true),
    ] {
        let (queries, documents) = (layout(&query_lens), layout(&document_lens));
        let pairing = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &pairing).unwrap();
        let work = WorkList::new(&problem, &SMALL).unwrap();
        assert!(work.launches.is_empty());
        assert_eq!(work.has_unvisited_scores, unvisited);
    }
}

#[test]
fn a_query_with_too_many_entries_is_cut_and_others_are_kept_whole() {
    // Tiles 2, 1, 3 with 5, 4, 20 entries; at most 12 partial sums.
    let ranges = launch_ranges(&[0, 5, 9, 29], &[0, 2, 3, 6], 12);
    let ranges: Vec<_> = ranges.iter().map(|g| (g.queries.clone(), g.entries.clone())).collect();
    assert_eq!(
        ranges,
        [
            (0..1, 0..5),
            (1..2, 5..9),
            (2..3, 9..13),
            (2..3, 13..17),
            (2..3, 17..21),
            (2..3, 21..25),
            (2..3, 25..29)
        ]
    );
}

#[test]
fn the_busiest_block_has_little_more_than_the_average() {
    // One query of four tiles against 10 000 documents, on 132 CTAs.
    let shape = LARGE;
    let drawing = Shape { dynamic_tokens_min: 8192, ..shape };
    for (n_tiles, n_entries) in [(4, 10_000), (1, 10_000), (2, 1_000), (8, 12_345), (32, 300)] {
        let grid = grid(&shape, n_tiles);
        assert!(grid >= 124 && u64::from(grid).is_multiple_of(n_tiles));
        let total = n_entries as u64 * shape.cost(1024);
        let round_robin = Chunks::new(&shape, total, n_entries, n_tiles, grid);
        let (even, n) = round_robin.even(n_entries, shape.cost(1024));
        assert!(even.per_unit < 4, "{n_tiles} × {n_entries}: {even:?}");
        // Units of a CTA are as many as rounds; the longer ones come first.
        let rounds = (n_tiles * n).div_ceil(grid.into());
        let longer = (n_tiles * u64::from(even.n_longer)).div_ceil(grid.into());
        let busiest = rounds * u64::from(even.per_unit) + longer;
        let average = (n_tiles * n_entries as u64) as f64 / f64::from(grid);
        assert!(busiest as f64 <= average + 2.0, "{n_tiles} × {n_entries}: {busiest}");

        // Dynamic units are small ones behind a first one that is at most half of the work.
        let drawn = Chunks::new(&drawing, total, n_entries, n_tiles, grid);
        let (even, n) = drawn.even(n_entries, shape.cost(1024));
        assert_eq!(drawn.is_dynamic, n_tiles == 1);
        if drawn.is_dynamic {
            assert!(n > u64::from(grid));
            assert!(f64::from(even.per_unit + even.longer_by) <= average / 2.0 + 1.0);
            assert!(f64::from(even.per_unit) <= average / 16.0 + 1.0, "{average}: {even:?}");
        }
    }
    // Short units are few: the prologue of CTAs is most of the work, and the rest is a document
    // at a time.
    let runs = Shape { dynamic_tokens_min: 10_000, n_blocks: 264, is_contiguous: true, ..shape };
    let total = 10_000 * runs.cost(300);
    let drawn = Chunks::new(&runs, total, 10_000, 1, 264);
    let (even, n) = drawn.even(10_000, runs.cost(300));
    assert!(drawn.is_dynamic && even.per_unit == 1, "{even:?}");
    let n_drawn = (n - 264) as f64 / 264.0;
    assert!((5.0..10.0).contains(&n_drawn), "{n_drawn} for each block");
    // Documents that are read in order are taken a few at a time, from the first on.
    let sweep = Shape { is_sweep: true, ..drawing };
    for (n_entries, len) in [(10_000, 300), (10_000, 1024), (30_000, 101), (133, 9000)] {
        let total = n_entries as u64 * sweep.cost(len);
        let drawn = Chunks::new(&sweep, total, n_entries, 1, 132);
        let (even, n) = drawn.even(n_entries, sweep.cost(len));
        assert!(drawn.is_dynamic && even.longer_by == 0, "{even:?}");
        assert!(u64::from(even.per_unit) * n >= n_entries as u64 && even.per_unit < 8, "{even:?}");
    }
    // With a multiple of 100 tiles a quarter of the device would be idle.
    assert_eq!(grid(&shape, 100), 132);
    assert_eq!(Chunks::new(&shape, 0, 0, 1, 132).n, 1);
    // Too little for a ticket to be worth its time.
    assert!(!Chunks::new(&drawing, 500 * 132, 1000, 1, 132).is_dynamic);
}

#[test]
fn units_of_ragged_documents_are_about_equal() {
    let mut random = Random(2);
    let lens: Vec<[u32; 2]> = (0..10_000).map(|_| [0, random.below(300) as u32]).collect();
    let shape = LARGE;
    let total = lens.iter().map(|len| shape.cost(len[1])).sum();
    let spread = |bounds: &[usize]| {
        let cost = |b: &[usize]| lens[b[0]..b[1]].iter().map(|len| shape.cost(len[1])).sum::<u64>();
        let costs = bounds.windows(2).map(cost);
        costs.clone().max().unwrap() - costs.min().unwrap()
    };
    let chunks = Chunks::new(&shape, total, lens.len(), 4, 132);
    assert!((4 * chunks.n) % 132 < 4, "{chunks:?} are no whole rounds");
    let bounds = chunks.bounds(&shape, &lens);
    assert_eq!((bounds.len() as u64, bounds[0]), (chunks.n + 1, 0));
    assert_eq!(bounds[chunks.n as usize], lens.len());
    assert!(spread(&bounds) <= 2 * shape.cost(300), "{bounds:?}");
    // First units and the others are alike among themselves.
    let chunks =
        Chunks::new(&Shape { dynamic_tokens_min: 8192, ..shape }, total, lens.len(), 1, 132);
    let bounds = chunks.bounds(&shape, &lens);
    assert!(chunks.n_first == 132 && chunks.is_dynamic);
    assert_eq!(bounds[chunks.n as usize], lens.len());
    assert!(
        spread(&bounds[..133]) <= 2 * shape.cost(300)
            && spread(&bounds[132..]) <= 2 * shape.cost(300)
    );
    // More units than documents would be empty ones.
    assert_eq!(Chunks::new(&shape, 1000, 5, 1, 132).n, 5);
    assert_eq!(Chunks::new(&shape, 0, 0, 1, 132).bounds(&shape, &[]), [0]);
}

#[test]
fn shares_that_end_within_documents_have_every_token_once() {
    let mut random = Random(3);
    for case in 0..500 {
        let longest = [1, 40, 300, 5000][random.below(4) as usize];
        let mut row = 0;
        let lens: Vec<[u32; 2]> = (0..1 + random.below(60))
            .map(|_| {
                let len = random.below(longest + 1) as u32;
                row += len;
                [row - len, len]
            })
            .collect();
        let shape = Shape { query_tile: 128, is_stream_k: true, ..LARGE };
        let total = lens.iter().map(|len| shape.cost(len[1])).sum();
        let (n_tiles, grid) = (1 + random.below(4), 4 + random.below(400) as u32);
        let n_units = u64::from(grid.min(N_PARTIAL_ROWS / 128)) / n_tiles;
        let starts = Chunks::stream_k(&shape, total, n_tiles, grid).starts(&shape, &lens);
        assert!(starts.len() as u64 - 1 <= n_units, "{case}");
        let (first, last) = (starts[0], starts[starts.len() - 1]);
        assert_eq!((first.entry, first.offset), (0, 0));
        assert_eq!((last.entry as usize, last.offset), (lens.len(), 0));
        let before = |start: &UnitStart| {
            let whole = lens[..start.entry as usize].iter().map(|len| shape.cost(len[1]));
            whole.sum::<u64>() + u64::from(start.offset)
        };
        for start in &starts[..starts.len() - 1] {
            let [begin, len] = lens[start.entry as usize];
            assert_eq!([start.first.start, start.first.len], [begin, len]);
            assert!(start.offset % 128 == 0 && (start.offset == 0 || start.offset < len));
        }
        let share = total.div_ceil(n_units);
        for ends in starts.windows(2) {
            // One after the other, none empty, all about equal.
            let cost = before(&ends[1]) - before(&ends[0]);
            assert!(
                cost > 0 && cost <= share + 128 + 2 * shape.cost(0),
                "{case}: {cost} of {share}"
            );
        }
    }
}
