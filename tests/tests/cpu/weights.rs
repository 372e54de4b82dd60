//! Weights of query tokens, and means: scores and gradients on the CPU, by hand, in streams and
//! graphs, and the calls that refuse them.

use half::f16;
use maxsim::chamfer::ChamferOptions;
use maxsim::format::{ElementType, Int8, ScaleType};
use maxsim::search::{CoarseCodes, SearchTokens};
use maxsim::stream::Queue;
use maxsim::streaming::StreamOptions;
use maxsim::training::{BackwardOptions, GradientSides, GradientSlices};
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::case::Case;
use maxsim_tests::engines::{check_case, check_stream_and_graph, cuda_devices};
use maxsim_tests::gradients;
use maxsim_tests::strategy::weighted_cases;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::prelude::Strategy;
use proptest::sample::select;

/// Every layout and pairing, over sums that are exact.
fn cases() -> Vec<Case> {
    let case = Case {
        values: Values::Integers,
        poison: true,
        weights: true,
        ..Case::new(32, &[5, 0, 17, 1], &[16, 70, 0, 1, 9])
    };
    let cases = case.in_every_layout_and_pairing().into_iter().step_by(3).zip(0..);
    cases.map(|(case, i)| Case { seed: case.seed + i, ..case }).collect()
}

#[test]
fn in_every_layout_and_pairing() {
    Suite::run("weights", cases(), check_case);
}

#[test]
fn have_gradients_in_every_layout_and_pairing() {
    Suite::run("weights_gradients", cases(), gradients::check_case);
}

#[test]
fn random() {
    let strategy = || select(&ElementType::ALL).prop_flat_map(weighted_cases);
    Suite::run_random("weights_random", strategy, check_case);
}

#[test]
fn random_gradients() {
    let strategy = || select(&ElementType::ALL).prop_flat_map(weighted_cases);
    Suite::run_random("weights_gradients_random", strategy, gradients::check_case);
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
    let device = Device::cpu();
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
        assert_eq!(found.values(), expected);
        assert_eq!(found.winners(), Some(&[0, 1, 0, 0, 0, 0, -1, -1, -1][..]));
        assert_eq!(found.token_scores(), Some(&maxima[..]));
    }
    // A NaN shows, though not where there is nothing that it multiplies.
    for weight in [f32::NAN, f32::INFINITY] {
        let found = found([0.0, weight, f32::NEG_INFINITY]);
        assert!(found.values()[0].is_nan(), "{:?}", found.values());
        assert_eq!(found.values()[2], 0.0);
    }
    let queries = weighted([1.0, f32::NAN, 2.0]).with_mask(&[1u8, 0, 1][..]).expect("a mask");
    let found = device.score(&queries, &documents(), &Pairing::cross()).expect("scores");
    assert_eq!(found.values(), [17.0, -5.0, 0.0]);
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
    let device = Device::cpu();
    let found = device.score(&means, &documents(), &Pairing::cross()).expect("scores");
    assert_eq!(found.values(), [5.0, -1.75, 0.0, 0.0, 0.0, 0.0]);
    // Two queries that share a row, of two lengths.
    let shared = Tokens::scattered(&QUERY, 2, &[0i64, 0], &[2i64, 3]).expect("queries");
    match shared.with_mean_weights() {
        Err(Error::Shape { argument: "items", expected, .. }) => {
            assert_eq!(expected, "one length of all items that have row 0");
        }
        other => panic!("{other:?}"),
    }
}

/// Weights stay with the tokens, wherever these go.
#[test]
fn stay_with_the_tokens() {
    let queries = weighted([2.0, -1.0, 0.5]);
    let part = queries.items(0..1).expect("items");
    assert_eq!(part.weights(), queries.weights());
    assert_eq!(queries.convert::<f16>().expect("f16").0.weights(), queries.weights());
    let codes = queries.quantize::<Int8>(ScaleType::F32).expect("codes");
    assert_eq!(codes.weights(), queries.weights());
    assert_eq!(codes.dequantize().expect("f32").weights(), queries.weights());
    let device = Device::cpu();
    let handle = device.upload(&queries).expect("a handle");
    assert!(handle.layout().is_weighted());
    assert_eq!(handle.download().expect("tokens").weights(), queries.weights());
    let codes = handle.quantize::<Int8>(ScaleType::F32).expect("codes");
    assert_eq!(codes.download().expect("codes").weights(), queries.weights());
    let documents = documents().quantize::<Int8>(ScaleType::F32).expect("codes");
    let found = device.score(&codes, &documents, &Pairing::cross()).expect("scores");
    for (found, expected) in found.values().iter().zip([4.5, -5.25, 0.0]) {
        assert!((found - expected).abs() < 0.1, "{found}, not {expected}");
    }
}

/// Streams, graphs, prepared work and searches give what a synchronous call gives.
#[test]
fn of_every_way_to_call() {
    let value = |i: usize| ((i * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let queries: Vec<f32> = (0..3 * 40 * 33).map(value).collect();
    let weights: Vec<f32> = (0..3 * 40).map(|i| value(i + 5)).collect();
    let rows: Vec<f32> = (0..7 * 150 * 33).map(|i| value(i + 9)).collect();
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let device = Device::cpu();
    let plain = Tokens::padded(&queries, 3, 40, 33).expect("queries");
    let queries = plain.clone().with_weights(&weights).expect("weights");
    let documents = Tokens::padded(&rows, 7, 150, 33).expect("documents");
    let expected = device.score(&queries, &documents, &cross).expect("scores");
    let found = device.search_stream(&queries, &documents, 7, &StreamOptions::default());
    let best = expected.top_k(&documents, 7).expect("a ranking");
    for (found, best) in found.expect("a search").rankings.iter().zip(best) {
        let ids = |ranked: &[maxsim::Ranked]| -> Vec<u32> {
            ranked.iter().map(|document| document.id).collect()
        };
        assert_eq!(ids(&found.ranked), ids(&best.ranked));
    }
    let of_plain = device.upload(&plain).expect("queries");
    let queries = device.upload(&queries).expect("queries");
    let documents = device.upload(&documents).expect("documents");
    let work = device.prepare(&queries, &documents, &cross, &options).expect("work");
    let mut scores = work.new_scores().expect("scores");
    let mut stream = device.stream().expect("a stream");
    // Prepared work is for weights, or for none.
    let wrong = stream.score_into(&of_plain, &documents, &work, &mut scores);
    assert!(matches!(wrong, Err(Error::Shape { argument: "queries", .. })), "{wrong:?}");
    check_stream_and_graph(&device, &queries, &documents, &options, &expected);
}

/// The gradient of a weight is the maximum, whatever the weight.
#[test]
fn have_the_maxima_as_gradients() {
    let device = Device::cpu();
    let (queries, documents) = (weighted([2.0, 0.0, -1.0]), documents());
    let cross = Pairing::cross();
    let scores = device.score_for_training(&queries, &documents, &cross).expect("scores");
    let with_grad = || scores.with_grad(&[1.0, 0.5, 100.0]);
    let options = BackwardOptions::default();
    let found = device.backward(&queries, &documents, with_grad(), &options);
    let found = found.expect("gradients");
    assert_eq!(found.weights, [3.0 - 1.0, 5.0 + 0.25, 7.0 - 0.75]);
    assert_eq!(found.queries, [4.0, 8.5, 0.0, 0.0, -2.0, -4.25]);
    // Query tokens times g and their weights: 2 · (1, 0) - (1, 1), nothing of the second.
    assert_eq!(found.documents, [1.0, -1.0, 0.0, 0.0, 0.5, -0.5]);
    let sides = options.sides(GradientSides::Documents);
    let alone = device.backward(&queries, &documents, with_grad(), &sides).expect("gradients");
    assert_eq!((alone.documents, alone.weights.len()), (found.documents, 0));
    // Without room for it, it is left out.
    let (mut of_queries, mut of_weights) = ([0.0; 6], [1.0; 3]);
    let options = BackwardOptions::default();
    let to = [Some(&mut of_queries[..]), None];
    device.backward_sides(&queries, &documents, with_grad(), &options, to).expect("gradients");
    assert_eq!(of_queries[..], found.queries[..]);
    let to = GradientSlices::from([Some(&mut of_queries[..]), None]).weights(&mut of_weights);
    device.backward_sides(&queries, &documents, with_grad(), &options, to).expect("gradients");
    assert_eq!(of_weights, [3.0, 6.25, 7.25]);
    let to = GradientSlices::default().weights(&mut of_weights);
    let wrong = device.backward_sides(&queries, &documents, with_grad(), &options, to);
    assert!(matches!(wrong, Err(Error::Shape { argument: "weights' gradient", .. })), "{wrong:?}");
}

fn refused<T: std::fmt::Debug>(result: Result<T>, what: &str) {
    match result {
        Err(Error::Unsupported { what: found, .. }) => assert_eq!(found, what),
        other => panic!("{other:?} where weights {what} are to be refused"),
    }
}

#[test]
fn are_refused_where_they_would_not_count() {
    let (queries, documents) = (weighted([1.0; 3]), documents());
    let wrong = Tokens::padded(&QUERY, 1, 3, 2).expect("queries").with_weights(&[1.0f32, 2.0][..]);
    assert!(matches!(wrong, Err(Error::Shape { argument: "weights", .. })), "{wrong:?}");
    let layout: TokenLayout = queries.layout().clone();
    refused(Tokens::from_layout(&QUERY[..], layout), "weights of a layout");
    let device = Device::cpu();
    let cross = Pairing::cross();
    refused(device.score(&queries, &queries, &cross), "weights of documents");
    let codes = queries.quantize::<Int8>(ScaleType::F32).expect("codes");
    let compared = "weights of tokens that a search compares by bounds";
    refused(SearchTokens::measured(&queries, &codes).map(|_| ()), compared);
    refused(SearchTokens::plain(&queries).map(|_| ()), compared);
    let of_documents = documents.quantize::<Int8>(ScaleType::F32).expect("codes");
    let coarse = CoarseCodes::new(&codes, &of_documents);
    let options = ScoreOptions::default();
    let found = device.rescore(&queries, &documents, &coarse, &cross, &options);
    refused(found, "weights of tokens that are scored again");
    let found = device.chamfer(&queries, &queries, &ChamferOptions::default());
    refused(found.map(|_| ()), "weights of points");
    for device in cuda_devices() {
        let what = "weights of query tokens on a CUDA device";
        refused(device.score(&queries, &documents, &cross), what);
        let found = device.search_stream(&queries, &documents, 1, &StreamOptions::default());
        refused(found.map(|_| ()), what);
        let (queries, documents) = (device.upload(&queries), device.upload(&documents));
        let (queries, documents) = (queries.expect("queries"), documents.expect("documents"));
        assert_eq!(queries.download().expect("tokens").weights(), Some(&[1.0; 3][..]));
        refused(device.prepare(&queries, &documents, &cross, &options), what);
    }
}
