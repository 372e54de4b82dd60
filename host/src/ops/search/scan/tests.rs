//! Searches by what selections find, against searches of all scores.

mod driven;

use super::*;
use crate::ops::search::Hit;
use crate::tokens::Tokens;
use crate::tokens::format::Int8;
use crate::tokens::scales::ScaleType;

const DIM: usize = 16;

/// Rows of nearly one direction, whose lengths differ by `spread`, and so their similarities.
fn rows(n: usize, spread: f32, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut number = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut row = |_| {
        let size = 1.0 + spread * number();
        (0..DIM).map(|_| size * (0.5 + 0.2 * spread * number())).collect::<Vec<f32>>()
    };
    (0..n).flat_map(&mut row).collect()
}

/// A search through selections gives what one of all scores does. Whether it is one, and did
/// not look at all scores itself.
fn check(
    documents: &Tokens<'_, f32>,
    selected: usize,
    k: usize,
    exact: bool,
    copied_bytes: usize,
) -> bool {
    let device = Device::cpu();
    let queries = rows(2, 0.0, 1);
    let queries = Tokens::padded(&queries, 2, 1, DIM).unwrap();
    let codes = [&queries, documents].map(|x| x.quantize::<Int8>(ScaleType::F32).unwrap());
    let queries = SearchTokens::measured(&queries, &codes[0]).unwrap();
    let documents = SearchTokens::measured(documents, &codes[1]).unwrap();
    let options = SearchOptions::default().n_candidates(12).exact(exact);
    let search = || Search {
        bounds: PairBounds::of_rescored(queries.terms(), documents.terms(), f32::TYPE),
        layout: documents.tokens.layout(),
        scanned: Scanned::new(&device, queries.codes, documents.codes).unwrap(),
        rescorer: Rescorer::new(&device, queries.tokens, documents.tokens),
        new: Shortlist::new(k, options),
        searches: Vec::new(),
        copied_bytes,
    };
    let found = search().run(Some(selected)).unwrap();
    let all = search().run(None).unwrap();
    for (found, all) in found.into_iter().zip(all) {
        let (found, all) = (found.into_ranking(), all.into_ranking());
        let same = |(a, b): (&Hit, &Hit)| {
            (a.id, a.score.to_bits(), a.certainty) == (b.id, b.score.to_bits(), b.certainty)
        };
        let are_same = found.documents.iter().zip(&all.documents).all(same);
        let counts = |r: &SearchRanking| (r.documents.len(), r.n_rescored, r.n_nan, r.n_empty);
        assert!(
            are_same && counts(&found) == counts(&all),
            "{selected} selected, k = {k}, {exact}: {found:?} instead of {all:?}"
        );
        assert!(found.n_empty > 50);
    }
    let mut search = search();
    search.begin();
    search.run_selected(selected).unwrap()
}

#[test]
fn selections_find_what_all_scores_do() {
    let lengths: Vec<i64> = (0..400).map(|i| i64::from(i % 7 != 5)).collect();
    for spread in [0.9, 0.3, 0.05, 0.0] {
        let data = rows(400, spread, 2);
        let documents = Tokens::padded(&data, 400, 1, DIM).unwrap();
        let documents = documents.with_lengths(&lengths).unwrap();
        for exact in [false, true] {
            for k in [0, 1, 5, 12] {
                for selected in [12, 20, 60, 343, 400] {
                    for copied_bytes in [0, usize::MAX] {
                        assert!(check(&documents, selected, k, exact, copied_bytes));
                    }
                }
                assert!(!check(&documents, 11, k, exact, 0), "fewer than the candidates");
            }
        }
    }
}

/// Where of a document nothing is known, it is a candidate, wherever the scan has it.
#[test]
fn what_no_bound_is_known_of_is_found_by_all_scores() {
    let lengths: Vec<i64> = (0..400).map(|i| i64::from(i % 7 != 5)).collect();
    for strange in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut data = rows(400, 0.3, 2);
        data[300 * DIM] = strange;
        let documents = Tokens::padded(&data, 400, 1, DIM).unwrap();
        let documents = documents.with_lengths(&lengths).unwrap();
        for exact in [false, true] {
            assert!(!check(&documents, 60, 5, exact, 0), "{strange}");
        }
    }
}

/// Where the sum of three products overflows, and the bound itself does not, documents are
/// found as others are: a query of 7 · 10¹⁸ in all elements, whose codes are 0, and documents
/// that have as much in one.
#[test]
fn bounds_whose_products_overflow_are_bounds() {
    const WIDE: usize = 64;
    let size = 7e18f32;
    let (all, none) = ([size; WIDE], [0.0; WIDE]);
    let query = Tokens::padded(&all, 1, 1, WIDE).unwrap();
    let nothing = Tokens::padded(&none, 1, 1, WIDE).unwrap();
    let mut rows = vec![0.0f32; 300 * WIDE];
    (0..300).for_each(|i| rows[i * WIDE + i % WIDE] = size * (1.0 - i as f32 / 1000.0));
    rows.rotate_left(100 * WIDE);
    let documents = Tokens::padded(&rows, 300, 1, WIDE).unwrap();
    let codes = [&nothing, &documents].map(|x| x.quantize::<Int8>(ScaleType::F32).unwrap());
    let queries = SearchTokens::measured(&query, &codes[0]).unwrap();
    let documents = SearchTokens::measured(&documents, &codes[1]).unwrap();
    let bounds = PairBounds::of_rescored(queries.terms(), documents.terms(), f32::TYPE);
    let linear = bounds.linear(0).reaching(&[0.0; 300], 0.0);
    assert!(bounds.largest(0) < f32::MAX / 4.0 && linear[200].2 == f32::INFINITY);
    let device = Device::cpu();
    let search = Search {
        bounds,
        layout: documents.tokens.layout(),
        scanned: Scanned::new(&device, queries.codes, documents.codes).unwrap(),
        rescorer: Rescorer::new(&device, queries.tokens, documents.tokens),
        new: Shortlist::new(3, SearchOptions::default().n_candidates(12).exact(true)),
        searches: Vec::new(),
        copied_bytes: usize::MAX,
    };
    let found = search.run(Some(20)).unwrap().remove(0).into_ranking();
    let ids: Vec<u32> = found.documents.iter().map(|hit| hit.id).collect();
    assert_eq!(ids, [200, 201, 202]);
}

/// What is below the threshold is below the k-th, whatever the numbers.
#[test]
fn thresholds_leave_nothing_out() {
    let numbers = [0.0, 1e-42, 1e-38, 0.1, 1.0, 20.0, 3e9, 1e37];
    for kth in numbers.into_iter().flat_map(|x: f32| [x, -x]) {
        for largest in numbers {
            let mut search = Shortlist::new(1, SearchOptions::default());
            search.rescored.push(Ranked { id: 0, score: kth, has_tokens: true });
            let least = search.least(largest);
            assert!(most(least.next_down(), largest) < kth, "{kth}, {largest}: {least}");
            // And not much more is looked at.
            let slack = 1e-5 * (kth.abs() + largest) + 1e-37;
            assert!(most(least, largest) > kth - slack, "{kth}, {largest}: {least}");
        }
    }
}
