//! The problem of the splits against the one whose documents are split.

use super::SplitProblem;
use crate::cuda::forward::work_list::{Shape, WorkList};
use crate::cuda::forward::work_list_tests::{Random, SMALL, check, layout};
use crate::plan::document_splits::DocumentSplits;
use crate::problem::Problem;
use crate::problem::pairing::Pairing;
use crate::tokens::layout::TokenLayout;
use crate::tokens::layout::regular_len;

/// Every score's splits follow each other, cover its document's tokens once and in order, and
/// write their results where the kernel that combines them reads.
fn check_split(problem: &Problem<'_>, splits: DocumentSplits) {
    let split = SplitProblem::new(problem, splits).unwrap();
    let of_splits = split.problem(problem.queries()).unwrap();
    let n_scores = problem.shape().n_scores();
    assert_eq!(of_splits.shape().n_scores(), n_scores * splits.n);
    let shape = Shape {
        query_tile: 64,
        n_blocks: 9,
        prefers_whole_rounds: true,
        n_counters_max: 0,
        dynamic_tokens_min: 0,
        partials_max: 100,
        unit_tokens_max: 4096,
        ..SMALL
    };
    // Tokens are added as if documents were whole: in the same tiles.
    let unbound = Shape { partials_max: u64::MAX, ..shape };
    let tiles = WorkList::new(&of_splits, &unbound).unwrap().tiles;
    assert_eq!(tiles, WorkList::new(problem, &unbound).unwrap().tiles);
    let score_tokens = split.score_tokens(problem.queries(), &tiles);
    assert_eq!(score_tokens.len(), n_scores);
    let (whole_offsets, offsets) = (problem.token_offsets(), of_splits.token_offsets());
    for (p, tokens) in score_tokens.iter().enumerate() {
        let (query, document) = problem.pair(p);
        assert_eq!([tokens.query_start, tokens.query_len], problem.queries().segments()[query]);
        let query_len = tokens.query_len as usize;
        let first = tokens.first as usize;
        assert_eq!(whole_offsets.range(p), first..first + query_len);
        let rows = problem.documents().item_rows(document);
        let mut next = rows.start;
        for i in 0..splits.n {
            let (split_query, split) = of_splits.pair(p * splits.n + i);
            assert_eq!(split_query, query);
            let split = of_splits.documents().item_rows(split);
            assert_eq!(split.start, next);
            // A winner is counted from there.
            assert!(split.is_empty() || split.start == rows.start + i * splits.len);
            next = split.end;
            let first = first * splits.n + i * query_len;
            assert_eq!(offsets.range(p * splits.n + i), first..first + query_len);
        }
        assert_eq!(next, rows.end);
    }
    let segments = of_splits.documents().segments();
    match split.segments() {
        [] if !segments.is_empty() => assert_eq!(regular_len(segments), Some(splits.len as u32)),
        listed => assert_eq!(listed, segments),
    }
    // And kernels visit all of them.
    check(&of_splits, &shape);
}

#[test]
fn splits_are_the_documents_in_every_pairing() {
    let mut random = Random(3);
    for _ in 0..500 {
        let n_queries = 1 + random.below(4) as usize;
        let k = random.below(5) as usize;
        let n_documents = match random.below(2) {
            0 => n_queries * k,
            _ => 1 + random.below(6) as usize,
        };
        let mut lens = |n: usize, most: u64| -> Vec<usize> {
            (0..n).map(|_| random.below(most + 1) as usize).collect()
        };
        let (queries, documents) =
            (layout(&lens(n_queries, 150)), layout(&lens(n_documents, 1000)));
        if documents.max_len() == 0 {
            continue;
        }
        // Trailing splits may be empty, of all documents too.
        let splits = DocumentSplits { n: 8 + random.below(3) as usize, len: 128 };
        let mut pairings = vec![Pairing::cross()];
        if n_documents == n_queries * k {
            pairings.push(Pairing::own_candidates(k));
        }
        let mut ids =
            |n, most| -> Vec<i64> { (0..n).map(|_| random.below(most as u64) as i64).collect() };
        pairings.push(Pairing::candidates(&ids(n_queries * k, n_documents), k).unwrap());
        let documents_of_pairs = ids(3 * k, n_documents);
        pairings.push(Pairing::pairs(&ids(3 * k, n_queries), &documents_of_pairs).unwrap());
        for pairing in &pairings {
            check_split(&Problem::new(&queries, &documents, pairing).unwrap(), splits);
        }
    }
}

#[test]
fn whole_splits_of_a_padded_matrix_need_no_list() {
    let (queries, pairing) = (layout(&[32]), Pairing::cross());
    for (len, is_listed) in [(512, false), (500, true)] {
        let documents = TokenLayout::padded(3, len, 8).unwrap();
        let problem = Problem::new(&queries, &documents, &pairing).unwrap();
        let splits = DocumentSplits { n: 2, len: 256 };
        assert_eq!(!SplitProblem::new(&problem, splits).unwrap().segments().is_empty(), is_listed);
        check_split(&problem, splits);
    }
}

#[test]
fn splits_of_empty_documents_are_listed() {
    let (queries, documents) = (layout(&[32]), layout(&[0, 512]));
    let pairing = Pairing::candidates(&[0i64, 0], 2).unwrap();
    let problem = Problem::new(&queries, &documents, &pairing).unwrap();
    let split = SplitProblem::new(&problem, DocumentSplits { n: 2, len: 256 }).unwrap();
    assert_eq!(split.segments(), [[0, 0]; 4]);
}
