//! Ways to call with weights of query tokens: handles, codes, streams and graphs, and the calls
//! that refuse them.

use half::f16;
use maxsim::chamfer::ChamferOptions;
use maxsim::format::{Int8, ScaleType};
use maxsim::search::{CoarseCodes, SearchTokens};
use maxsim::stream::Queue;
use maxsim::streaming::StreamOptions;
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::engines::check_stream_and_graph;
use maxsim_tests::gradients::all_devices;

use super::{QUERY, documents, weighted};

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
    for device in all_devices() {
        let handle = device.upload(&queries).expect("a handle");
        assert!(handle.layout().is_weighted());
        assert_eq!(handle.download().expect("tokens").weights(), queries.weights());
        let codes = handle.quantize::<Int8>(ScaleType::F32).expect("codes");
        assert_eq!(codes.download().expect("codes").weights(), queries.weights(), "{device}");
        let documents = documents().quantize::<Int8>(ScaleType::F32).expect("codes");
        let found = device.score(&codes, &documents, &Pairing::cross()).expect("scores");
        for (found, expected) in found.values().iter().zip([4.5, -5.25, 0.0]) {
            assert!((found - expected).abs() < 0.1, "{device}: {found}, not {expected}");
        }
    }
}

/// Streams, graphs, prepared work and searches give what a synchronous call gives.
#[test]
fn of_every_way_to_call() {
    let value = |i: usize| ((i as u64 * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let queries: Vec<f32> = (0..3 * 40 * 33).map(value).collect();
    let weights: Vec<f32> = (0..3 * 40).map(|i| value(i + 5)).collect();
    let rows: Vec<f32> = (0..7 * 150 * 33).map(|i| value(i + 9)).collect();
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    for device in all_devices() {
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
            assert_eq!(ids(&found.ranked), ids(&best.ranked), "{device}");
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
    let layout = TokenLayout::padded(1, 3, 2).expect("a layout").with_unread_weights();
    refused(Tokens::from_layout(&QUERY[..], layout), "weights of a layout");
    let device = Device::cpu();
    let cross = Pairing::cross();
    refused(device.score(&queries, &queries, &cross), "weights of documents");
    let passing = device.search_stream(&documents, &queries, 1, &StreamOptions::default());
    refused(passing.map(|_| ()), "weights of documents");
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
}
