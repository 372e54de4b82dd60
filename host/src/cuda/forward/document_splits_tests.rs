//! The problem of the pieces against the one whose documents were cut.

use super::document_splits::CutProblem;
use super::work_list::{Shape, WorkList};
use super::work_list_tests::{Random, SMALL, check, layout};
use crate::cuda::buffers::tokens::regular_len;
use crate::plan::document_splits::Pieces;
use crate::problem::Problem;
use crate::problem::pairing::Pairing;
use crate::tokens::layout::TokenLayout;

/// Every score's splits follow each other, cover its document's tokens once and in order, and
/// write their results where the kernel that combines them reads.
fn check_cut(problem: &Problem<'_>, pieces: Pieces) {
    let cut = CutProblem::new(problem, pieces).unwrap();
    let of_pieces = cut.problem(problem.queries()).unwrap();
    let n_scores = problem.shape().n_scores();
    assert_eq!(of_pieces.shape().n_scores(), n_scores * pieces.n);
    let shape = Shape {
        query_tile: 64,
        n_blocks: 9,
        prefers_whole_rounds: true,
        n_counters_max: 0,
        drawn_tokens_min: 0,
        partials_max: 100,
        unit_tokens_max: 4096,
        ..SMALL
    };
    // Tokens are added as if nothing were cut: in the same tiles.
    let unbound = Shape { partials_max: u64::MAX, ..shape };
    let tiles = WorkList::new(&of_pieces, &unbound).unwrap().tiles;
    assert_eq!(tiles, WorkList::new(problem, &unbound).unwrap().tiles);
    let score_tokens = cut.score_tokens(problem.queries(), &tiles);
    assert_eq!(score_tokens.len(), n_scores);
    let (whole_offsets, offsets) = (problem.token_offsets(), of_pieces.token_offsets());
    for (p, tokens) in score_tokens.iter().enumerate() {
        let (query, document) = problem.pair(p);
        assert_eq!([tokens.query_start, tokens.query_len], problem.queries().segments()[query]);
        let query_len = tokens.query_len as usize;
        let first = tokens.first as usize;
        assert_eq!(whole_offsets.range(p), first..first + query_len);
        let rows = problem.documents().item_rows(document);
        let mut next = rows.start;
        for i in 0..pieces.n {
            let (piece_query, piece) = of_pieces.pair(p * pieces.n + i);
            assert_eq!(piece_query, query);
            let piece = of_pieces.documents().item_rows(piece);
            assert_eq!(piece.start, next);
            // A winner is counted from there.
            assert!(piece.is_empty() || piece.start == rows.start + i * pieces.len);
            next = piece.end;
            let first = first * pieces.n + i * query_len;
            assert_eq!(offsets.range(p * pieces.n + i), first..first + query_len);
        }
        assert_eq!(next, rows.end);
    }
    let segments = of_pieces.documents().segments();
    match cut.segments() {
        [] if !segments.is_empty() => assert_eq!(regular_len(segments), Some(pieces.len as u32)),
        listed => assert_eq!(listed, segments),
    }
    // And kernels visit all of them.
    check(&of_pieces, &shape);
}

#[test]
fn pieces_are_the_documents_in_every_pairing() {
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
        // Trailing pieces may be empty, of all documents too.
        let pieces = Pieces { n: 8 + random.below(3) as usize, len: 128 };
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
            check_cut(&Problem::new(&queries, &documents, pairing).unwrap(), pieces);
        }
    }
}

#[test]
fn whole_pieces_of_a_padded_matrix_need_no_list() {
    let (queries, pairing) = (layout(&[32]), Pairing::cross());
    for (len, is_listed) in [(512, false), (500, true)] {
        let documents = TokenLayout::padded(3, len, 8).unwrap();
        let problem = Problem::new(&queries, &documents, &pairing).unwrap();
        let pieces = Pieces { n: 2, len: 256 };
        assert_eq!(!CutProblem::new(&problem, pieces).unwrap().segments().is_empty(), is_listed);
        check_cut(&problem, pieces);
    }
}

#[test]
fn pieces_of_empty_documents_are_listed() {
    let (queries, documents) = (layout(&[32]), layout(&[0, 512]));
    let pairing = Pairing::candidates(&[0i64, 0], 2).unwrap();
    let problem = Problem::new(&queries, &documents, &pairing).unwrap();
    let cut = CutProblem::new(&problem, Pieces { n: 2, len: 256 }).unwrap();
    assert_eq!(cut.segments(), [[0, 0]; 4]);
}
