//! Rows that are normalised: what the suites' random rows do not show.

use half::bf16;
use maxsim::{
    BackwardOptions, Device, DeviceScores, Element, Pairing, ScoreOptions, Tokens, TrainingScores,
};
use maxsim_tests::gradients::all_devices;

fn normalized() -> ScoreOptions {
    ScoreOptions { normalize: true, token_scores: true, ..ScoreOptions::default() }
}

fn train<T: Element>(
    device: &Device,
    queries: &Tokens<'_, T>,
    documents: &Tokens<'_, T>,
) -> TrainingScores {
    let cross = Pairing::cross();
    device.score_for_training_with(queries, documents, &cross, &normalized()).expect("scores")
}

/// Rows whose squares are near the ends of f32's range, and rows that are all but zero.
#[test]
fn cosines_of_huge_and_of_tiny_rows() {
    fn check<T: Element>(large: f32, tiny: f32) {
        let values = |scales: &[f32]| -> Vec<T> {
            scales.iter().flat_map(|s| [3.0 * s, 4.0 * s]).map(T::from_f32).collect()
        };
        let (queries, documents) = (values(&[large, 1.0]), values(&[tiny, -large, 0.0, large]));
        for device in all_devices() {
            let queries = Tokens::padded(&queries, 1, 2, 2).expect("queries");
            let documents = Tokens::padded(&documents, 4, 1, 2).expect("documents");
            let found = train(&device, &queries, &documents);
            // The first row is 5 · tiny long, and counts as 10⁻⁶.
            let short = T::from_f32(3.0 * tiny).to_f32().hypot(T::from_f32(4.0 * tiny).to_f32());
            for (d, cosine) in [short * 1e6, -1.0, 0.0, 1.0].into_iter().enumerate() {
                let token_scores = found.scores().token_scores().expect("token scores");
                for token_score in &token_scores[2 * d..2 * d + 2] {
                    let limit = 0.01 * cosine.abs();
                    assert!((token_score - cosine).abs() <= limit, "{device}: {token_score}");
                }
            }
            assert_eq!(found.scores().winners(), Some(&[0; 8][..]));
        }
    }
    check::<f32>(2f32.powi(60), 2f32.powi(-30));
    check::<bf16>(2f32.powi(60), 2f32.powi(-30));
    check::<half::f16>(8192.0, 2f32.powi(-24));
}

/// Which is the best depends on the rows' lengths, and so do gradients.
#[test]
fn winners_are_those_of_directions() {
    let queries = Tokens::padded(&[2.0f32, 0.0], 1, 1, 2).expect("queries");
    let documents = Tokens::padded(&[30.0f32, 40.0, 0.8, 0.6], 1, 2, 2).expect("documents");
    let cross = Pairing::cross();
    for device in all_devices() {
        let plain = device.score_for_training(&queries, &documents, &cross).expect("scores");
        assert_eq!(plain.scores().winners(), Some(&[0][..]));
        let scores = train(&device, &queries, &documents);
        assert_eq!(scores.scores().winners(), Some(&[1][..]));
        assert_ne!(plain, scores);
        let options = BackwardOptions::default();
        let found = device
            .backward(&queries, &documents, &cross, &scores, &[1.0], &options)
            .expect("gradients");
        // ½ · ((0.8, 0.6) - 0.8 · (1, 0)), and (1, 0) - 0.8 · (0.8, 0.6).
        for (found, expected) in found.queries.iter().zip([0.0, 0.3]) {
            assert!((found - expected).abs() < 1e-6, "{device}: {found}, not {expected}");
        }
        for (found, expected) in found.documents.iter().zip([0.0, 0.0, 0.36, -0.48]) {
            assert!((found - expected).abs() < 1e-6, "{device}: {found}, not {expected}");
        }
    }
}

/// A handle serves calls of both kinds, by streams and graphs too.
#[test]
fn streams_and_graphs_give_what_a_synchronous_call_gives() {
    let cross = Pairing::cross();
    let value = |i: usize| ((i * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let queries: Vec<f32> = (0..3 * 40 * 33).map(value).collect();
    let documents: Vec<f32> = (0..7 * 150 * 33).map(|i| value(i + 9)).collect();
    for device in all_devices() {
        let queries = Tokens::padded(&queries, 3, 40, 33).expect("queries");
        let documents = Tokens::padded(&documents, 7, 150, 33).expect("documents");
        let expected =
            device.score_with(&queries, &documents, &cross, &normalized()).expect("scores");
        let queries = device.upload(&queries).expect("queries");
        let documents = device.upload(&documents).expect("documents");
        let plain = device.score(&queries, &documents, &cross).expect("scores");
        assert_ne!(plain.values(), expected.values());
        let work = device.prepare(&queries, &documents, &cross, &normalized()).expect("work");
        let mut scores = DeviceScores::new(&work).expect("scores");
        let mut stream = device.stream().expect("a stream");
        stream.score_into(&queries, &documents, &work, &mut scores).expect("a call");
        assert_eq!(scores.read().expect("scores"), expected, "{device}");

        let mut scores = DeviceScores::new(&work).expect("scores");
        let mut graph = device
            .capture(|capture| capture.score_into(&queries, &documents, &work, &mut scores))
            .expect("a graph");
        graph.launch(&mut stream).expect("a launch");
        assert_eq!(scores.read().expect("scores"), expected, "{device}");
        assert_eq!(device.score(&queries, &documents, &cross).expect("scores"), plain);
    }
}
