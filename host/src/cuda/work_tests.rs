//! Lists and launches against brute force: what the kernels would do with them, as
//! `maxsim_kernels::params` says, must visit every (tile, entry) exactly once.

use std::collections::BTreeMap;

use super::split::{entries_per_unit, entries_per_unit_max, grid, groups};
use super::work::{Launch, Shape, WorkList};
use crate::pairing::Pairing;
use crate::problem::Problem;
use crate::tokens::TokenLayout;

/// A small generator, so that the cases are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn layout(lens: &[usize]) -> TokenLayout {
    let mut offsets = vec![0i64];
    for &len in lens {
        offsets.push(offsets[offsets.len() - 1] + len as i64);
    }
    TokenLayout::packed(offsets[lens.len()] as usize, 8, &offsets).unwrap()
}

/// Unit `u` of a launch as the kernel sees it: tile and entries.
fn unit(work: &WorkList, launch: &Launch, u: u32) -> (u32, std::ops::Range<u32>) {
    if !work.units.is_empty() {
        let unit = work.units[(launch.first_unit + u) as usize];
        return (unit.tile, unit.entry_begin..unit.entry_end);
    }
    let n_tiles = launch.tiles.len() as u32;
    let tile = launch.tiles.start + u % n_tiles;
    let first = work.query_tiles[tile as usize].query * work.entries_per_query;
    let begin = first.max(launch.entries.start) + u / n_tiles * launch.entries_per_unit;
    let end = (first + work.entries_per_query).min(launch.entries.end);
    (tile, begin.min(end)..(begin + launch.entries_per_unit).min(end))
}

/// Runs the launches: how often each (score, query row) was visited, and with what pair.
fn check(problem: &Problem<'_>, shape: &Shape) {
    let work = WorkList::new(problem, shape).unwrap();
    let mut visits: BTreeMap<(usize, u32), u32> = BTreeMap::new();
    let mut written = vec![0u32; problem.shape().n_scores()];
    for launch in &work.launches {
        assert!(launch.n_units > 0 && launch.grid > 0 && launch.grid <= launch.n_units);
        assert!((1..=64).contains(&launch.entries_per_unit));
        let n_partials = u64::from(launch.n_partial_tiles) * launch.entries.len() as u64;
        assert!(n_partials <= work.n_partials);
        assert!(n_partials <= shape.partials_max || launch.entries.len() == 1);
        let mut partials = vec![0u32; n_partials as usize];
        for u in 0..launch.n_units {
            let (tile, entries) = unit(&work, launch, u);
            let tile = work.query_tiles[tile as usize];
            for entry in entries {
                assert!(launch.entries.contains(&entry));
                let score = match work.entry_score.is_empty() {
                    true => entry,
                    false => work.entry_score[entry as usize],
                };
                let document = match work.entry_document.is_empty() {
                    true => entry - tile.query * work.document_stride,
                    false => work.entry_document[entry as usize],
                };
                let pair = problem.pair(score as usize);
                assert_eq!(pair, (tile.query as usize, document as usize));
                *visits.entry((score as usize, tile.row)).or_default() += 1;
                match launch.n_partial_tiles {
                    0 => written[score as usize] += 1,
                    _ => {
                        let row = tile.row / shape.query_tile as u32;
                        let stride = launch.entries.len() as u32;
                        partials[(row * stride + entry - launch.entries.start) as usize] += 1;
                    }
                }
            }
        }
        if launch.n_partial_tiles > 0 {
            assert!(partials.iter().all(|&n| n <= 1));
            assert!(launch.is_ragged || partials.iter().all(|&n| n == 1));
            for entry in launch.entries.clone() {
                let score = match work.entry_score.is_empty() {
                    true => entry,
                    false => work.entry_score[entry as usize],
                };
                written[score as usize] += 1;
            }
        }
    }
    let mut expected = BTreeMap::new();
    let has_documents = problem.documents().max_len() > 0;
    for (p, &n_written) in written.iter().enumerate() {
        let len = problem.queries().item_len(problem.pair(p).0);
        assert!(n_written <= 1);
        assert!(n_written == 1 || work.has_unvisited_scores, "score {p} is left as it was");
        if has_documents {
            assert!(n_written == 1 || len == 0);
            let rows = (0..len as u32).step_by(shape.query_tile);
            expected.extend(rows.map(|row| ((p, row), 1)));
        }
    }
    assert_eq!(visits, expected);
}

#[test]
fn every_tile_meets_every_entry_once() {
    let mut random = Random(1);
    for _ in 0..2000 {
        let n_queries = random.below(6) as usize;
        let longest = [1, 4, 5, 40][random.below(4) as usize];
        let query_lens: Vec<usize> =
            (0..n_queries).map(|_| random.below(longest + 1) as usize).collect();
        let k = random.below(9) as usize;
        let n_documents = match random.below(2) {
            0 => n_queries * k,
            _ => 1 + random.below(12) as usize,
        };
        let document_lens: Vec<usize> =
            (0..n_documents).map(|_| random.below(3) as usize).collect();
        let (queries, documents) = (layout(&query_lens), layout(&document_lens));
        let shape = Shape {
            query_tile: 4,
            n_blocks: 1 + random.below(9) as usize,
            prefers_whole_rounds: random.below(2) == 0,
            partials_max: 1 + random.below(60),
            entries_per_unit_max: 1 + random.below(64),
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
    }
}

#[test]
fn pairs_are_numbered_by_query_and_keep_their_order() {
    let (queries, documents) = (layout(&[3, 0, 5]), layout(&[1; 9]));
    let pairing = Pairing::pairs(&[2, 0, 1, 2, 0], &[8, 1, 2, 3, 4]).unwrap();
    let problem = Problem::new(&queries, &documents, &pairing).unwrap();
    let shape = Shape {
        query_tile: 4,
        n_blocks: 2,
        prefers_whole_rounds: false,
        partials_max: 100,
        entries_per_unit_max: 64,
    };
    let work = WorkList::new(&problem, &shape).unwrap();
    assert_eq!(work.entry_score, [1, 4, 2, 0, 3]);
    assert_eq!(work.entry_document, [1, 4, 2, 8, 3]);
    assert!(work.has_unvisited_scores);
}

#[test]
fn nothing_is_launched_without_tokens_or_pairs() {
    let shape = Shape {
        query_tile: 4,
        n_blocks: 2,
        prefers_whole_rounds: false,
        partials_max: 100,
        entries_per_unit_max: 64,
    };
    for (query_lens, document_lens, unvisited) in [
        (vec![], vec![1, 2], false),
        (vec![9], vec![], false),
        (vec![0, 0], vec![1, 2], true),
        (vec![9], vec![0, 0], true),
    ] {
        let (queries, documents) = (layout(&query_lens), layout(&document_lens));
        let pairing = Pairing::cross();
        let problem = Problem::new(&queries, &documents, &pairing).unwrap();
        let work = WorkList::new(&problem, &shape).unwrap();
        assert!(work.launches.is_empty());
        assert_eq!(work.has_unvisited_scores, unvisited);
    }
}

#[test]
fn a_query_with_too_many_entries_is_cut_and_others_are_kept_whole() {
    // Tiles 2, 1, 3 with 5, 4, 20 entries; at most 12 partial sums.
    let groups = groups(&[0, 5, 9, 29], &[0, 2, 3, 6], 12);
    let cuts: Vec<_> = groups.iter().map(|g| (g.queries.clone(), g.entries.clone())).collect();
    assert_eq!(
        cuts,
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
    // One query of four tiles against 10 000 documents, on 132 blocks.
    let shape = Shape {
        query_tile: 256,
        n_blocks: 132,
        prefers_whole_rounds: true,
        partials_max: 8 << 20,
        entries_per_unit_max: 64,
    };
    for (n_tiles, n_entries) in [(4, 10_000), (1, 10_000), (2, 1_000), (8, 12_345), (32, 300)] {
        let grid = grid(&shape, n_tiles);
        assert!(grid >= 124 && u64::from(grid).is_multiple_of(n_tiles));
        let per_unit = u64::from(entries_per_unit(n_tiles, n_entries, grid, 64));
        let n_units = n_tiles * n_entries.div_ceil(per_unit);
        let busiest = n_units.div_ceil(grid.into()) * per_unit;
        let average = (n_tiles * n_entries) as f64 / f64::from(grid);
        assert!(busiest as f64 <= 1.07 * average + 1.0, "{n_tiles} × {n_entries}: {busiest}");
    }
    // A multiple of 100 tiles would leave a quarter of the device idle.
    assert_eq!(grid(&shape, 100), 132);
    assert_eq!(entries_per_unit(1, 0, 132, 64), 1);
    // Documents of 1024 tokens: four to a unit.
    assert_eq!(entries_per_unit_max(10_000, 10_000 * 1024), 4);
    assert_eq!(entries_per_unit_max(3, 0), 64);
}
