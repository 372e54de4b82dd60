//! Searches whose first pass selects what is looked at, on the CPU.

use super::*;
use crate::ops::search::Certainty;
use crate::tokens::format::Int8;
use crate::tokens::scales::ScaleType;

const DIM: usize = 16;
const N: usize = 400;

/// Rows of nearly one direction, whose lengths differ by `spread`, and so their similarities.
fn rows(n: usize, spread: f32) -> Vec<f32> {
    let number = |i: usize| ((i * 2_654_435_761) >> 7) as u32 % 2001;
    let number = |i: usize| number(i) as f32 / 1000.0 - 1.0;
    let size = |row: usize| 1.0 + spread * number(row + 7);
    let x = |i: usize| size(i / DIM) * (0.5 + 0.2 * spread * number(i));
    (0..n * DIM).map(x).collect()
}

/// A search through a selection gives what one that looks at all scores does. Returns whether
/// one pass was enough.
fn check(spread: f32, selected: usize, k: usize, exact: bool) -> bool {
    let queries = rows(2, 0.0);
    let queries = Tokens::padded(&queries, 2, 1, DIM).unwrap();
    let data = rows(N, spread);
    let lengths: Vec<i64> = (0..N as i64).map(|i| i64::from(i % 7 != 5)).collect();
    let documents = Tokens::padded(&data, N, 1, DIM).unwrap();
    let documents = documents.with_lengths(&lengths).unwrap();
    let codes = [&queries, &documents].map(|x| x.quantize::<Int8>(ScaleType::F32).unwrap());
    let queries = SearchTokens::measured(&queries, &codes[0]).unwrap();
    let documents = SearchSource::measured(&documents, &codes[1]).unwrap();
    let search = SearchOptions::default().n_candidates(12).exact(exact);
    let options = StreamOptions::default().buffer_bytes(1000);
    let devices = [Device::cpu(), Device::cpu()];
    let run = |selected: Option<usize>| {
        let new = CoarseSearch::new(&devices, &queries, &documents, k, search, &options);
        CoarseSearch { selected, ..new }.run().unwrap()
    };
    let (found, all) = (run(Some(selected)), run(None));
    for (found, all) in found.rankings.iter().zip(&all.rankings) {
        let what = format!("spread {spread}, {selected} selected, k = {k}, {exact}");
        let counts = |of: &SearchRanking| (of.n_rescored, of.n_nan, of.n_empty);
        assert_eq!(counts(found), counts(all), "{what}");
        assert_eq!(found.documents.len(), all.documents.len(), "{what}");
        for (found, all) in found.documents.iter().zip(&all.documents) {
            assert_eq!((found.id, found.score), (all.id, all.score), "{what}");
            let is_proven = found.certainty == Certainty::Proven;
            assert!(!is_proven || all.certainty == Certainty::Proven, "{what}");
            assert!(is_proven || !exact, "{what}");
        }
    }
    found.bytes < all.bytes + (N * DIM) as u64 / 2
}

#[test]
fn selections_find_what_all_scores_do() {
    for k in [0, 1, 5, 12] {
        for spread in [0.9, 0.3, 0.05, 0.0] {
            for selected in [20, 60, 343, N] {
                assert!(check(spread, selected, k, false), "never twice");
                let is_once = check(spread, selected, k, true);
                // All that have tokens are there.
                assert!(is_once || selected < 343);
                // Others are far behind the best.
                assert!(is_once || spread < 0.9 || selected < 60);
            }
        }
    }
    assert!(!check(0.0, 60, 5, true), "documents that score the same");
}

/// Of several queries, those that a selection proves are not looked at again.
#[test]
fn one_query_of_two_takes_another_pass() {
    // One query meets rows that differ, the other one rows that are all alike.
    let mut data = vec![0.0f32; N * 2];
    for (row, values) in data.chunks_exact_mut(2).enumerate() {
        values.copy_from_slice(&[1.0 - row as f32 / 500.0, 0.5]);
    }
    let documents = Tokens::padded(&data, N, 1, 2).unwrap();
    let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 2, 1, 2).unwrap();
    let codes = [&queries, &documents].map(|x| x.quantize::<Int8>(ScaleType::F32).unwrap());
    let queries = SearchTokens::measured(&queries, &codes[0]).unwrap();
    let documents = SearchSource::measured(&documents, &codes[1]).unwrap();
    let search = SearchOptions::default().n_candidates(12).exact(true);
    let options = StreamOptions::default();
    let devices = [Device::cpu()];
    let new = CoarseSearch::new(&devices, &queries, &documents, 3, search, &options);
    let found = CoarseSearch { selected: Some(50), ..new }.run().unwrap();
    let n_rescored: Vec<u64> = found.rankings.iter().map(|found| found.n_rescored).collect();
    assert!(n_rescored[0] < 50 && n_rescored[1] == N as u64, "{n_rescored:?}");
    for ranking in &found.rankings {
        let ids = ranking.documents.iter().map(|found| (found.id, found.certainty));
        assert!(ids.eq([0, 1, 2].map(|id| (id, Certainty::Proven))), "{ranking:?}");
    }
    assert!(found.n_chunks > 3, "two passes, and what they wanted");
}
