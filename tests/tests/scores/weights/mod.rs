//! Weights of query tokens, and means: scores of every kernel, and gradients, by hand.

mod calls;

use maxsim::format::ElementType;
use maxsim::training::{BackwardOptions, GradientSides, GradientSlices};
use maxsim::{Error, Pairing, ScoreOptions, Tokens};
use maxsim_tests::case::Case;
use maxsim_tests::engines::check_case;
use maxsim_tests::gradients::{self, all_devices};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

/// Every layout and pairing, tiles of every height, and calls that each schedule takes.
fn cases() -> Vec<Case> {
    let small = Case {
        values: Values::Integers,
        poison: true,
        ..Case::new(32, &[5, 0, 17, 1], &[16, 70, 0, 1, 9])
    };
    let mut cases: Vec<Case> = small.in_every_layout_and_pairing().into_iter().step_by(5).collect();
    for (queries, documents) in [
        (vec![7], vec![60; 40]),
        (vec![32], vec![300; 90]),
        (vec![30, 20], vec![130; 20]),
        (vec![100], vec![257; 30]),
        (vec![128], vec![128; 150]),
        (vec![250], vec![70, 300, 129, 500]),
        (vec![300, 40], vec![140; 12]),
        (vec![20; 12], vec![40, 90]),
    ] {
        for (dim, token_scores) in [(64, true), (128, false), (128, true), (320, false)] {
            cases.push(Case { token_scores, ..Case::new(dim, &queries, &documents) });
        }
        let splits = Case { document_splits: Some(3), ..Case::new(128, &queries, &documents) };
        cases.push(splits);
    }
    for (case, i) in cases.iter_mut().zip(0..) {
        case.weights = true;
        case.seed += i;
        case.upload = [i % 2 == 0, i % 3 == 0];
    }
    cases
}

#[test]
fn of_every_kernel() {
    let of = |element| cases().into_iter().map(move |case| Case { element, ..case });
    let cases = ElementType::ALL.into_iter().flat_map(of);
    Suite::run_on_kernels("weights", cases, check_case);
}

#[test]
fn of_normalised_rows() {
    let of =
        |element| cases().into_iter().map(move |case| Case { element, normalize: true, ..case });
    let cases = ElementType::ALL.into_iter().flat_map(of).step_by(3);
    Suite::run_on_kernels("weights_normalized", cases, check_case);
}

#[test]
fn and_their_gradients() {
    let of = |element| cases().into_iter().map(move |case| Case { element, ..case });
    let cases = ElementType::ALL.into_iter().flat_map(of).step_by(4).enumerate();
    let cases = cases.map(|(i, case)| Case { normalize: i % 2 == 0, ..case });
    Suite::run_on_kernels("weights_gradients", cases, gradients::check_case);
}

/// One query of three tokens; documents of two, one and no tokens; dim 2.
const QUERY: [f32; 6] = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
const DOCUMENTS: [f32; 6] = [3.0, 4.0, -1.0, 5.0, -2.0, 0.5];

fn documents() -> Tokens<'static, f32> {
    Tokens::packed(&DOCUMENTS, 2, &[0i64, 2, 3, 3]).expect("documents")
}

fn weighted(weights: [f32; 3]) -> Tokens<'static, f32> {
    let queries = Tokens::padded(&QUERY, 1, 3, 2).expect("queries");
    queries.with_weights(weights.to_vec()).expect("weights")
}

/// Maxima are 3, 5, 7 and -2, 0.5, -1.5; none of the document without tokens.
#[test]
fn multiply_the_maxima_and_nothing_else() {
    let options = ScoreOptions::default().winners(true).token_scores(true);
    let maxima = [3.0, 5.0, 7.0, -2.0, 0.5, -1.5, 0.0, 0.0, 0.0];
    for device in all_devices() {
        let found = |weights| {
            let queries = weighted(weights);
            device.score_with(&queries, &documents(), &Pairing::cross(), &options).expect("scores")
        };
        for (weights, expected) in [
            ([1.0, 1.0, 1.0], [15.0, -3.0, 0.0]),
            ([2.0, -1.0, 0.5], [4.5, -5.25, 0.0]),
            ([-1.0, 0.0, 0.0], [-3.0, 2.0, 0.0]),
            ([0.0; 3], [0.0; 3]),
        ] {
            let found = found(weights);
            assert_eq!(found.values(), expected, "{device}");
            assert_eq!(found.winners(), Some(&[0, 1, 0, 0, 0, 0, -1, -1, -1][..]), "{device}");
            assert_eq!(found.token_scores(), Some(&maxima[..]), "{device}");
        }
        // A NaN shows, though not where there is nothing that it multiplies.
        for weight in [f32::NAN, f32::INFINITY] {
            let found = found([0.0, weight, f32::NEG_INFINITY]);
            assert!(found.values()[0].is_nan(), "{device}: {:?}", found.values());
            assert_eq!(found.values()[2], 0.0, "{device}");
        }
        let queries = weighted([1.0, f32::NAN, 2.0]).with_mask(&[1u8, 0, 1][..]).expect("a mask");
        let found = device.score(&queries, &documents(), &Pairing::cross()).expect("scores");
        assert_eq!(found.values(), [17.0, -5.0, 0.0], "{device}");
    }
}

#[test]
fn means_divide_by_the_valid_tokens() {
    let queries = Tokens::padded(&QUERY, 3, 1, 2).expect("queries");
    let one = queries.with_mean_weights().expect("means");
    assert_eq!(one.weights(), Some(&[1.0; 3][..]));
    let rows = [QUERY, QUERY].concat();
    let queries = Tokens::padded(&rows, 2, 3, 2).expect("queries");
    let queries = queries.with_lengths(&[3i64, 2]).expect("lengths");
    let queries = queries.with_mask(&[1u8, 0, 1, 0, 0, 1][..]).expect("a mask");
    let means = queries.clone().with_mean_weights().expect("means");
    assert_eq!(means.weights(), Some(&[0.5, 0.0, 0.5, 0.0, 0.0, 0.0][..]));
    let both = queries.with_weights(&[4.0f32; 6][..]).expect("weights");
    let both = both.with_mean_weights().expect("means");
    assert_eq!(both.weights(), Some(&[2.0, 0.0, 2.0, 0.0, 0.0, 0.0][..]));
    for device in all_devices() {
        let found = device.score(&means, &documents(), &Pairing::cross()).expect("scores");
        assert_eq!(found.values(), [5.0, -1.75, 0.0, 0.0, 0.0, 0.0], "{device}");
    }
    // Two queries that share a row, of two lengths.
    let shared = Tokens::scattered(&QUERY, 2, &[0i64, 0], &[2i64, 3]).expect("queries");
    match shared.with_mean_weights() {
        Err(Error::Shape { argument: "items", expected, .. }) => {
            assert_eq!(expected, "one length of all items that have row 0");
        }
        other => panic!("{other:?}"),
    }
}

/// The gradient of a weight is the maximum, whatever the weight.
#[test]
fn have_the_maxima_as_gradients() {
    for device in all_devices() {
        let (queries, documents) = (weighted([2.0, 0.0, -1.0]), documents());
        let cross = Pairing::cross();
        let scores = device.score_for_training(&queries, &documents, &cross).expect("scores");
        let with_grad = || scores.with_grad(&[1.0, 0.5, 100.0]);
        let options = BackwardOptions::default();
        let found = device.backward(&queries, &documents, with_grad(), &options);
        let found = found.expect("gradients");
        assert_eq!(found.weights, [3.0 - 1.0, 5.0 + 0.25, 7.0 - 0.75], "{device}");
        assert_eq!(found.queries, [4.0, 8.5, 0.0, 0.0, -2.0, -4.25], "{device}");
        // Query tokens times g and their weights: 2 · (1, 0) - (1, 1), nothing of the second.
        assert_eq!(found.documents, [1.0, -1.0, 0.0, 0.0, 0.5, -0.5], "{device}");
        let sides = options.sides(GradientSides::Documents);
        let alone = device.backward(&queries, &documents, with_grad(), &sides).expect("gradients");
        assert_eq!((alone.documents, alone.weights.len()), (found.documents, 0), "{device}");
        // Without room for it, it is left out.
        let (mut of_queries, mut of_weights) = ([0.0; 6], [1.0; 3]);
        let options = BackwardOptions::default();
        let to = [Some(&mut of_queries[..]), None];
        device.backward_sides(&queries, &documents, with_grad(), &options, to).expect("gradients");
        assert_eq!(of_queries[..], found.queries[..], "{device}");
        let to = GradientSlices::from([Some(&mut of_queries[..]), None]).weights(&mut of_weights);
        device.backward_sides(&queries, &documents, with_grad(), &options, to).expect("gradients");
        assert_eq!(of_weights, [3.0, 6.25, 7.25], "{device}");
        let to = GradientSlices::default().weights(&mut of_weights);
        let wrong = device.backward_sides(&queries, &documents, with_grad(), &options, to);
        assert!(
            matches!(wrong, Err(Error::Shape { argument: "weights' gradient", .. })),
            "{wrong:?}"
        );
    }
}
