//! Losses: hand values, numerical derivatives, the edges of floating point, and a training step.

use maxsim::loss::{Loss, contrastive, distillation};
use maxsim::training::{BackwardOptions, Gradients};
use maxsim::{Device, Error, Pairing, Result, Tokens};
use proptest::prelude::*;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(f) - e).abs() <= tolerance, "[{i}]: {f} is not {e}");
    }
}

/// Asserts that the gradients of every query add up to nothing beside their size, or, where all but
/// one probability vanish, beside 1 / t: p − 1 is rounded to f64.
fn assert_rows_sum_to_0(loss: &Loss, n_documents: usize, t: f32) {
    for row in loss.grad_scores.chunks(n_documents) {
        let sum: f64 = row.iter().copied().map(f64::from).sum();
        let size: f64 = row.iter().copied().map(f64::from).map(f64::abs).sum();
        assert!(sum.abs() <= 1e-6 * size + 1e-14 / f64::from(t), "{row:?} add up to {sum}");
    }
}

/// softmax(row / temperature), as the textbook has it.
fn softmax(row: &[f64], temperature: f64) -> Vec<f64> {
    let powers: Vec<f64> = row.iter().map(|x| (x / temperature).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

fn contrastive_f64(scores: &[f64], n: usize, positives: &[usize], t: f64) -> f64 {
    let rows = scores.chunks(n).zip(positives);
    let losses = rows.map(|(row, &positive)| -softmax(row, t)[positive].ln());
    losses.sum::<f64>() / positives.len() as f64
}

fn distillation_f64(scores: &[f64], teacher: &[f64], n: usize, t: f64) -> f64 {
    let rows = scores.chunks(n).zip(teacher.chunks(n));
    let losses = rows.map(|(row, teacher)| {
        let terms = softmax(teacher, t).into_iter().zip(softmax(row, t));
        terms.map(|(y, p)| y * (y / p).ln()).sum::<f64>()
    });
    losses.sum::<f64>() / (scores.len() / n) as f64
}

/// Asserts that a loss is that of `f` at `scores`, and its gradients the central differences.
fn assert_derivative(loss: &Loss, scores: &[f64], t: f64, f: impl Fn(&[f64]) -> f64) {
    assert_close(&[loss.value], &[f(scores)], 1e-6 * (1.0 + f(scores)));
    let h = 1e-4 * t;
    let differences: Vec<f64> = (0..scores.len())
        .map(|i| {
            let moved = |by: f64| {
                let mut scores = scores.to_vec();
                scores[i] += by;
                f(&scores)
            };
            (moved(h) - moved(-h)) / (2.0 * h)
        })
        .collect();
    assert_close(&loss.grad_scores, &differences, 1e-6 / t);
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

#[test]
fn contrastive_of_hand_values() {
    // Probabilities (1, 3) / 4 and (1, 2) / 3; at temperature 2 scores are twice the logarithms.
    let scores = [0.0, 2.0 * 3f32.ln(), 1.0, 1.0 + 2.0 * 2f32.ln()];
    let loss = contrastive(&scores, 2, &[1, 0], 2.0).expect("loss");
    assert_close(&[loss.value], &[((4.0 / 3.0f64).ln() + 3f64.ln()) / 2.0], 1e-6);
    let quarter = 1.0 / 4.0; // temperature and number of queries
    let expected = [0.25, -0.25, -2.0 / 3.0, 2.0 / 3.0].map(|difference| difference * quarter);
    assert_close(&loss.grad_scores, &expected, 1e-7);
    // A document alone has probability 1.
    let alone = contrastive(&[7.0, -3.0], 1, &[0, 0], 0.1).expect("loss");
    assert_eq!(alone, Loss { value: 0.0, grad_scores: vec![0.0; 2] });
}

#[test]
fn distillation_of_hand_values() {
    // The teacher says 3 : 1 and 1 : 1, the scores 1 : 1 and 1 : 3.
    let (scores, teacher) = ([0.0, 0.0, 4.0, 4.0 + 3f32.ln()], [3f32.ln(), 0.0, -9.0, -9.0]);
    let loss = distillation(&scores, &teacher, 2, 1.0).expect("loss");
    let first = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
    let second = 0.5 * 2f64.ln() + 0.5 * (2.0 / 3.0f64).ln();
    assert_close(&[loss.value], &[(first + second) / 2.0], 1e-6);
    assert_close(&loss.grad_scores, &[-0.125, 0.125, -0.125, 0.125], 1e-6);

    // No factor T²: what is scaled with the temperature has the same loss.
    let halved = |values: &[f32]| values.iter().map(|x| x / 2.0).collect::<Vec<_>>();
    let colder = distillation(&halved(&scores), &halved(&teacher), 2, 0.5).expect("loss");
    assert_eq!(colder.value, loss.value);
    assert_close(&halved(&colder.grad_scores), &widened(&loss.grad_scores), 1e-7);
}

#[test]
fn equal_scores_have_no_divergence() {
    let scores = [1e4, -3.5, 0.02, -INF, 8.0, 8.0, -1e4, 0.0];
    for temperature in [0.02, 1.0, 30.0] {
        let loss = distillation(&scores, &scores, 4, temperature).expect("loss");
        assert_eq!(loss, Loss { value: 0.0, grad_scores: vec![0.0; 8] });
    }
}

/// Scores of `n_queries × n_documents`, twice, a positive per query, and a temperature.
type Drawn = (Vec<f32>, Vec<f32>, usize, Vec<usize>, f32);

fn drawn() -> impl Strategy<Value = Drawn> {
    (1usize..5, 1usize..7).prop_flat_map(|(n_queries, n_documents)| {
        let scores = || prop::collection::vec(-6.0f32..6.0, n_queries * n_documents);
        let positives = prop::collection::vec(0..n_documents, n_queries);
        (scores(), scores(), Just(n_documents), positives, 0.2f32..5.0)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gradients_are_the_derivatives((scores, teacher, n, positives, t) in drawn()) {
        let (scores64, teacher64, t64) = (widened(&scores), widened(&teacher), f64::from(t));
        let loss = contrastive(&scores, n, &positives, t).expect("loss");
        assert_derivative(&loss, &scores64, t64, |x| contrastive_f64(x, n, &positives, t64));
        assert_rows_sum_to_0(&loss, n, t);
        let loss = distillation(&scores, &teacher, n, t).expect("loss");
        assert_derivative(&loss, &scores64, t64, |x| distillation_f64(x, &teacher64, n, t64));
        assert_rows_sum_to_0(&loss, n, t);
    }
}

#[test]
fn large_scores_at_a_low_temperature() {
    let (scores, t) = ([1e4, -1e4, 1e4, -1e4], 0.02);
    // The first query is right, the second wrong by 2e4.
    let loss = contrastive(&scores, 2, &[0, 1], t).expect("loss");
    let wrong = 2e4 / f64::from(t);
    let slope = 1.0 / (2.0 * f64::from(t));
    assert_close(&[loss.value], &[wrong / 2.0], wrong * 1e-7);
    assert_close(&loss.grad_scores, &[0.0, 0.0, slope, -slope], 1e-5);
    assert_rows_sum_to_0(&loss, 2, t);
    let loss = distillation(&scores, &[1e4, -1e4, -1e4, 1e4], 2, t).expect("loss");
    assert_close(&[loss.value], &[wrong / 2.0], wrong * 1e-7);
    assert_close(&loss.grad_scores, &[0.0, 0.0, slope, -slope], 1e-5);
    // A sum of large scores: only differences matter.
    let shifted = contrastive(&[1e4, 1e4, -1e4, -1e4], 2, &[0, 1], t).expect("loss");
    assert_eq!(shifted.value, 2f32.ln());
}

#[test]
fn minus_infinity_leaves_documents_out() {
    let with = [1.0, -INF, 2.0, -INF, 0.5, 3.0];
    let without = [1.0, 2.0, 0.5, 3.0];
    let spread = |grads: &[f32]| vec![grads[0], 0.0, grads[1], 0.0, grads[2], grads[3]];
    let padded = contrastive(&with, 3, &[2, 1], 0.7).expect("loss");
    let plain = contrastive(&without, 2, &[1, 0], 0.7).expect("loss");
    assert_eq!(padded, Loss { value: plain.value, grad_scores: spread(&plain.grad_scores) });
    let teacher = [0.0, -INF, 1.0, -INF, 4.0, 3.0];
    let padded = distillation(&with, &teacher, 3, 0.7).expect("loss");
    let plain = distillation(&without, &[0.0, 1.0, 4.0, 3.0], 2, 0.7).expect("loss");
    assert_eq!(padded, Loss { value: plain.value, grad_scores: spread(&plain.grad_scores) });

    // The teacher may exclude what the scores do not.
    let loss = distillation(&[0.0, 0.0], &[5.0, -INF], 2, 1.0).expect("loss");
    assert_eq!(loss, Loss { value: 2f32.ln(), grad_scores: vec![-0.5, 0.5] });
    // What the target wants and the scores exclude is infinitely far.
    let far = Loss { value: INF, grad_scores: vec![-1.0, 1.0] };
    assert_eq!(contrastive(&[-INF, 0.0], 2, &[0], 1.0).expect("loss"), far);
    assert_eq!(distillation(&[-INF, 0.0], &[0.0, -INF], 2, 1.0).expect("loss"), far);
}

#[test]
fn rows_without_a_softmax_are_nan_and_spare_the_others() {
    let bad = [[NAN, 1.0, -INF], [0.0, -NAN, 2.0], [NAN; 3], [1.0, INF, 0.0], [-INF; 3]];
    for row in bad {
        let scores = [row, [1.0, 2.0, -INF]].concat();
        let teacher = [[0.0, 1.0, 2.0], [2.0, 1.0, -INF]].concat();
        for (name, loss) in [
            ("positive first", contrastive(&scores, 3, &[0, 1], 1.0)),
            ("positive last", contrastive(&scores, 3, &[2, 0], 1.0)),
            ("student", distillation(&scores, &teacher, 3, 1.0)),
            ("teacher", distillation(&teacher, &scores, 3, 1.0)),
        ] {
            let loss = loss.expect("loss");
            assert!(loss.value.is_nan(), "{name}, {row:?}: {loss:?}");
            let (nan, numbers) = loss.grad_scores.split_at(3);
            assert!(nan.iter().all(|x| x.is_nan()), "{name}, {row:?}: {loss:?}");
            assert!(numbers.iter().all(|x| x.is_finite()), "{name}, {row:?}: {loss:?}");
        }
    }
}

#[test]
fn nothing_has_loss_0() {
    let nothing = Loss { value: 0.0, grad_scores: vec![] };
    for n_documents in [0, 1, 5, usize::MAX] {
        assert_eq!(contrastive(&[], n_documents, &[], 1.0).expect("loss"), nothing);
        assert_eq!(distillation(&[], &[], n_documents, 1.0).expect("loss"), nothing);
    }
}

/// Trains one small step on tokens of 3 queries and `n_documents` documents, and asserts that the
/// loss falls by the step times the square of the gradient, as a first-order expansion has it.
fn assert_step(n_documents: usize, pairing: &Pairing, loss: impl Fn(&[f32]) -> Loss) {
    const STEP: f32 = 1e-3;
    let device = Device::cpu();
    // Unrelated numbers: no similarities are equal.
    let numbers = |n: usize, seed: f32| (0..n).map(|i| (seed * (i * i + 1) as f32).sin()).collect();
    let mut queries: Vec<f32> = numbers(3 * 2 * 4, 0.7);
    let mut documents: Vec<f32> = numbers(n_documents * 3 * 4, 1.3);
    let forward = |queries: &[f32], documents: &[f32]| {
        let queries = Tokens::padded(queries, 3, 2, 4).expect("queries");
        let documents = Tokens::padded(documents, n_documents, 3, 4).expect("documents");
        let scores = device.score_for_training(&queries, &documents, pairing).expect("scores");
        let loss = loss(scores.scores().values());
        let (grads, options) = (&loss.grad_scores, BackwardOptions::default());
        let gradients = device.backward(&queries, &documents, scores.with_grad(grads), &options);
        (loss.value, gradients.expect("gradients"))
    };
    let (before, Gradients { queries: of_queries, documents: of_documents, .. }) =
        forward(&queries, &documents);
    for (x, g) in queries.iter_mut().zip(&of_queries) {
        *x -= STEP * g;
    }
    for (x, g) in documents.iter_mut().zip(&of_documents) {
        *x -= STEP * g;
    }
    let (after, _) = forward(&queries, &documents);
    let square: f32 = of_queries.iter().chain(&of_documents).map(|g| g * g).sum();
    let (fall, expected) = (before - after, STEP * square);
    assert!(expected > 0.0 && (fall / expected - 1.0).abs() < 0.05, "{fall} is not {expected}");
}

#[test]
fn a_training_step_lowers_the_loss() {
    let (cross, own) = (Pairing::cross(), Pairing::own_candidates(2));
    let teacher = [3.0, 0.0, 1.0, 2.0, -1.0, 0.5, 0.0, 2.0, 4.0];
    assert_step(3, &cross, |x| contrastive(x, 3, &[0, 1, 2], 0.5).expect("loss"));
    assert_step(6, &own, |x| contrastive(x, 2, &[0; 3], 0.5).expect("loss"));
    assert_step(3, &cross, |x| distillation(x, &teacher, 3, 0.5).expect("loss"));
    assert_step(6, &own, |x| distillation(x, &teacher[..6], 2, 0.5).expect("loss"));
}

fn assert_shape(result: Result<Loss>, argument: &str, expected: &str, found: &str) {
    let error = result.expect_err("must be refused");
    let Error::Shape { argument: a, expected: e, found: f } = &error else { panic!("{error:?}") };
    assert_eq!((*a, e.as_str(), f.as_str()), (argument, expected, found));
}

#[test]
fn errors() {
    for (temperature, found) in
        [(0.0, "0"), (-0.0, "-0"), (-1.0, "-1"), (NAN, "NaN"), (INF, "inf"), (-INF, "-inf")]
    {
        let expected = "a finite number above 0";
        let result = contrastive(&[1.0], 1, &[0], temperature);
        assert_shape(result, "temperature", expected, found);
        let result = distillation(&[1.0], &[1.0], 1, temperature);
        assert_shape(result, "temperature", expected, found);
    }

    for (n, found) in [(0, "0 entries"), (5, "5 entries"), (7, "7 entries")] {
        let result = contrastive(&[1.0; 7][..n], 3, &[0, 1], 1.0);
        assert_shape(result, "scores", "6 entries (n_documents per positive)", found);
        let result = distillation(&[1.0; 6], &[1.0; 7][..n], 3, 1.0);
        assert_shape(result, "teacher", "6 entries (one per score)", found);
    }
    let found = "7 entries";
    let expected = "a multiple of 3 entries (n_documents per query)";
    assert_shape(distillation(&[1.0; 7], &[1.0; 7], 3, 1.0), "scores", expected, found);
    let expected = "a multiple of 0 entries (n_documents per query)";
    assert_shape(distillation(&[1.0; 7], &[1.0; 7], 0, 1.0), "scores", expected, found);
    // A product that overflows must not come out as a length that fits.
    let expected = format!("{} entries (n_documents per positive)", usize::MAX);
    let result = contrastive(&[], 1 << (usize::BITS - 1), &[0, 0], 1.0);
    assert_shape(result, "scores", &expected, "0 entries");

    let most = i64::try_from(usize::MAX).unwrap_or(i64::MAX);
    for (positives, index, found) in [([0, 2], 1, 2), ([3, 1], 0, 3), ([1, usize::MAX], 1, most)] {
        match contrastive(&[1.0; 4], 2, &positives, 1.0) {
            Err(Error::Id { argument: "positives", index: i, found: f, n_items: 2 }) => {
                assert_eq!((i, f), (index, found));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(
        contrastive(&[], 0, &[0], 1.0),
        Err(Error::Id { argument: "positives", index: 0, found: 0, n_items: 0 })
    ));
}
