//! The oracle against answers worked out by hand.

use maxsim_tests::oracle::{Matrix, Row, TokenAnswer, maxsim, similarity};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// One item of rows of two elements.
fn item(rows: &[[f32; 2]]) -> Matrix {
    let items = std::iter::once(0..rows.len()).collect();
    Matrix {
        values: rows.concat(),
        dim: 2,
        items,
        mask: None,
        weights: None,
        factors: None,
        offsets: None,
        least: 0.0,
    }
}

fn masked(rows: &[[f32; 2]], mask: &[u8]) -> Matrix {
    Matrix { mask: Some(mask.to_vec()), ..item(rows) }
}

/// Score, winners and token scores; the twin must say the same.
fn answer(queries: &Matrix, documents: &Matrix) -> (f64, Vec<Option<usize>>, Vec<f64>) {
    let answer = maxsim(queries, 0, documents, 0);
    let twin = f64::from(answer.score.twin);
    assert!(twin == answer.score.exact || twin.is_nan() && answer.score.exact.is_nan(), "{twin}");
    let winners = answer.tokens.iter().map(|t: &TokenAnswer| t.winner).collect();
    let token_scores = answer.tokens.iter().map(|t| t.score.exact).collect();
    (answer.score.exact, winners, token_scores)
}

#[test]
fn small_integers() {
    // ⟨(1,2), (3,1)⟩ = 5, ⟨(1,2), (0,4)⟩ = 8;  ⟨(2,-1), (3,1)⟩ = 5, ⟨(2,-1), (0,4)⟩ = -4.
    let queries = item(&[[1.0, 2.0], [2.0, -1.0]]);
    let documents = item(&[[3.0, 1.0], [0.0, 4.0]]);
    assert_eq!(answer(&queries, &documents), (13.0, vec![Some(1), Some(0)], vec![8.0, 5.0]));
}

#[test]
fn magnitude_and_twin() {
    let similarity = |query: &[f32], document: &[f32]| {
        let row = |values| Row { values, factor: 1.0, offset: 0.0, least: 0.0 };
        similarity(row(query), row(document))
    };
    let value = similarity(&[1.0, 2.0], &[3.0, -4.0]);
    assert_eq!((value.exact, value.twin, value.magnitude), (-5.0, -5.0, 11.0));
    // 2²⁴ + 1 is not an f32, and 1 is lost on the way.
    let value = similarity(&[16777216.0, 1.0, -16777216.0], &[1.0, 1.0, 1.0]);
    assert_eq!((value.exact, value.twin, value.magnitude), (1.0, 0.0, 33554433.0));
    // The largest magnitude of any candidate, not the winner's.
    let best = maxsim(&item(&[[1.0, 1.0]]), 0, &item(&[[1.0, 1.0], [9.0, -9.0]]), 0);
    assert_eq!((best.score.exact, best.score.magnitude), (2.0, 18.0));
}

#[test]
fn normalized_rows() {
    // Lengths 5, 0.5 and 10: cosines 1, 0 and 0.6. Rows of length 0 and 10⁻⁹ count as 10⁻⁶ long.
    let queries = item(&[[3.0, 4.0]]).normalized();
    let documents = item(&[[0.4, -0.3], [0.0, 0.0], [10.0, 0.0]]).normalized();
    let best = maxsim(&queries, 0, &documents, 0);
    assert!((best.score.exact - 0.6).abs() < 1e-15, "{best:?}");
    assert_eq!(best.tokens[0].winner, Some(2));
    let tiny = item(&[[1e-9, 0.0]]).normalized();
    let score = maxsim(&tiny, 0, &item(&[[2.0, 0.0]]).normalized(), 0).score;
    assert!((score.exact - 1e-3).abs() < 1e-10 && (score.magnitude - 1e-3).abs() < 1e-10);
    // With an infinite length there is no direction.
    let infinite = maxsim(&queries, 0, &item(&[[INF, 1.0], [9.0, 9.0]]).normalized(), 0);
    assert!(infinite.score.exact.is_nan() && infinite.tokens[0].winner == Some(0));
    let nan = maxsim(&item(&[[NAN, 1.0]]).normalized(), 0, &documents, 0);
    assert!(nan.score.exact.is_nan());
}

#[test]
fn all_negative() {
    let queries = item(&[[1.0, 0.0]]);
    let documents = item(&[[-3.0, 0.0], [-2.0, 5.0], [-7.0, 0.0]]);
    assert_eq!(answer(&queries, &documents), (-2.0, vec![Some(1)], vec![-2.0]));
}

#[test]
fn ties_go_to_the_lowest_index() {
    let queries = item(&[[1.0, 1.0]]);
    let documents = item(&[[0.0, 1.0], [2.0, 1.0], [1.0, 2.0], [3.0, 0.0]]);
    assert_eq!(answer(&queries, &documents), (3.0, vec![Some(1)], vec![3.0]));
    // +0 equals -0.
    let documents = item(&[[-0.0, -0.0], [0.0, 0.0]]);
    assert_eq!(answer(&queries, &documents).1, [Some(0)]);
}

#[test]
fn masked_tokens_take_no_part() {
    let queries = masked(&[[1.0, 0.0], [100.0, 0.0], [0.0, 1.0]], &[1, 0, 255]);
    let documents = masked(&[[-1.0, -2.0], [9.0, 9.0], [-3.0, -4.0]], &[7, 0, 1]);
    let expected = (-3.0, vec![Some(0), None, Some(0)], vec![-1.0, 0.0, -2.0]);
    assert_eq!(answer(&queries, &documents), expected);
    // Not even as NaN.
    let documents = masked(&[[-1.0, -2.0], [NAN, INF], [-3.0, -4.0]], &[7, 0, 1]);
    assert_eq!(answer(&queries, &documents), expected);
}

#[test]
fn empty_items() {
    let (tokens, none) = (item(&[[1.0, 2.0], [3.0, 4.0]]), item(&[]));
    assert_eq!(answer(&tokens, &none), (0.0, vec![None; 2], vec![0.0; 2]));
    assert_eq!(answer(&none, &tokens), (0.0, vec![], vec![]));
    assert_eq!(answer(&none, &none), (0.0, vec![], vec![]));
    let masked = masked(&[[1.0, 2.0], [3.0, 4.0]], &[0, 0]);
    assert_eq!(answer(&tokens, &masked), (0.0, vec![None; 2], vec![0.0; 2]));
    assert_eq!(answer(&masked, &tokens), (0.0, vec![None; 2], vec![0.0; 2]));
}

#[test]
fn nan_wins() {
    let queries = item(&[[1.0, 0.0], [0.0, 1.0]]);
    let documents = item(&[[5.0, 1.0], [NAN, 0.0], [9.0, 2.0]]);
    // 0 · NaN is NaN, so both query tokens see it.
    let (score, winners, token_scores) = answer(&queries, &documents);
    assert!(score.is_nan() && token_scores.iter().all(|s| s.is_nan()));
    assert_eq!(winners, [Some(1), Some(1)]);
    // In the first place it must not be passed over.
    let documents = item(&[[NAN, 0.0], [9.0, 2.0]]);
    assert_eq!(answer(&queries, &documents).1, [Some(0), Some(0)]);
}

#[test]
fn infinities() {
    let queries = item(&[[1.0, 1.0]]);
    let documents = item(&[[5.0, 1.0], [INF, 0.0], [INF, 3.0]]);
    assert_eq!(answer(&queries, &documents), (f64::INFINITY, vec![Some(1)], vec![f64::INFINITY]));
    let documents = item(&[[-INF, 0.0], [-9.0, -9.0]]);
    assert_eq!(answer(&queries, &documents), (-18.0, vec![Some(1)], vec![-18.0]));
    // -∞ alone still wins: there is a token.
    let documents = item(&[[-INF, 0.0], [0.0, -INF]]);
    let all = f64::NEG_INFINITY;
    assert_eq!(answer(&queries, &documents), (all, vec![Some(0)], vec![all]));
    // ∞ - ∞, within a similarity and between two query tokens.
    assert!(answer(&queries, &item(&[[INF, -INF]])).0.is_nan());
    let opposite = item(&[[1.0, 0.0], [-1.0, 0.0]]);
    assert!(answer(&opposite, &item(&[[INF, 1.0]])).0.is_nan());
}

#[test]
fn items_are_where_they_say() {
    let rows = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0]];
    let documents = Matrix { items: vec![2..4, 0..2, 1..3, 4..4], ..item(&rows) };
    let queries = Matrix { items: vec![3..4, 0..1], ..item(&rows) };
    let scores = |q| -> Vec<f64> {
        (0..4).map(|d| maxsim(&queries, q, &documents, d).score.exact).collect()
    };
    assert_eq!(scores(0), [16.0, 8.0, 12.0, 0.0]);
    assert_eq!(scores(1), [4.0, 2.0, 3.0, 0.0]);
}
