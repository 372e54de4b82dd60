//! Rows that are normalised: what the suites' random rows do not show.

mod angular;

use half::bf16;
use maxsim::format::{Element, RawRows};
use maxsim::stream::{DeviceScores, Queue, Stream};
use maxsim::training::{BackwardOptions, TrainingScores};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, Scores, TokenLayout, Tokens};
use maxsim_kernels::table::forward::{FORWARD, Variant};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gradients::all_devices;

fn normalized() -> ScoreOptions {
    ScoreOptions::default().normalize(true).token_scores(true)
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
            .backward(&queries, &documents, scores.with_grad(&[1.0]), &options)
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

/// Checks that a stream and a graph give the scores of a cross product. Gives those of the graph,
/// and the stream.
fn check_stream_and_graph<T: Element>(
    device: &Device,
    [queries, documents]: [&DeviceTokens<T>; 2],
    options: &ScoreOptions,
    expected: &Scores,
) -> (DeviceScores, Stream) {
    let work = device.prepare(queries, documents, &Pairing::cross(), options).expect("work");
    let mut scores = work.new_scores().expect("scores");
    let mut stream = device.stream().expect("a stream");
    stream.score_into(queries, documents, &work, &mut scores).expect("a call");
    assert_eq!(&scores.read().expect("scores"), expected, "{device}");
    let mut scores = work.new_scores().expect("scores");
    let mut graph = device
        .capture(|capture| capture.score_into(queries, documents, &work, &mut scores))
        .expect("a graph");
    graph.launch(&mut stream).expect("a launch");
    assert_eq!(&scores.read().expect("scores"), expected, "{device}");
    (scores, stream)
}

/// A handle serves calls of both kinds, by streams and graphs too.
#[test]
fn streams_and_graphs_give_what_a_synchronous_call_gives() {
    let cross = Pairing::cross();
    let value = |i: usize| ((i as u64 * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
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
        let _ = check_stream_and_graph(&device, [&queries, &documents], &normalized(), &expected);
        assert_eq!(device.score(&queries, &documents, &cross).expect("scores"), plain);
    }
}

/// Rows whose squared lengths, and whose dot products, are beyond f32: each has its direction, in
/// scores and gradients.
#[test]
fn rows_of_any_length_have_their_direction() {
    fn check<T: Element>(lengths: &[f64], precision: f64) {
        let dim = 48;
        let value = |i: usize| ((i as u64 * 2_654_435_761) % 4093) as f64 / 2047.0 - 1.0;
        for &length in lengths {
            // Rows of one direction each: with the length, and as they are.
            let rows = |n: usize, salt: usize| -> [Vec<f64>; 2] {
                let small: Vec<f64> = (0..n * dim)
                    .map(|i| f64::from(T::from_f32(value(i * 7 + salt) as f32).to_f32()))
                    .collect();
                // Every second row alone is long, so that long ones meet short ones too.
                let factor = |i: usize| if (i / dim).is_multiple_of(2) { length } else { 1.0 };
                let long = small.iter().enumerate().map(|(i, x)| x * factor(i)).collect();
                [long, small]
            };
            let stored =
                |rows: &[f64]| -> Vec<T> { rows.iter().map(|&x| T::from_f32(x as f32)).collect() };
            let (queries, documents) = (rows(6, 1), rows(3 * 40, 5));
            for device in all_devices() {
                let call = |[queries, documents]: [&[f64]; 2]| {
                    let (queries, documents) = (stored(queries), stored(documents));
                    let queries = Tokens::padded(&queries, 1, 6, dim).expect("queries");
                    let documents = Tokens::padded(&documents, 3, 40, dim).expect("documents");
                    let scores = train(&device, &queries, &documents);
                    let options = BackwardOptions::default();
                    let grad_scores = [1.0, -0.5, 2.0];
                    let found = device
                        .backward(&queries, &documents, scores.with_grad(&grad_scores), &options)
                        .expect("gradients");
                    (scores, found)
                };
                let (long, long_gradients) = call([&queries[0], &documents[0]]);
                let (small, small_gradients) = call([&queries[1], &documents[1]]);
                assert_eq!(
                    long.scores().winners(),
                    small.scores().winners(),
                    "{device} {length:e}"
                );
                let values = long.scores().values().iter().zip(small.scores().values());
                for (long, small) in values {
                    assert!((long - small).abs() < 1e-5, "{device} {length:e}: {long}, {small}");
                }
                // A gradient is as much smaller as its row is longer.
                for (long, small) in [
                    (&long_gradients.queries, &small_gradients.queries),
                    (&long_gradients.documents, &small_gradients.documents),
                ] {
                    let most = small.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                    for (i, (&long, &small)) in long.iter().zip(small).enumerate() {
                        let factor = if (i / dim).is_multiple_of(2) { length } else { 1.0 };
                        let error = (f64::from(long) * factor - f64::from(small)).abs();
                        let limit = precision * f64::from(most);
                        assert!(error <= limit, "{device} {length:e} {i}: {long:e}, {small:e}");
                    }
                }
            }
        }
    }
    // 2⁵⁰ and less is as it is; from 2⁶³ on products and squares are beyond f32, and 1/x of the
    // longest is among f32's subnormal numbers, of which gradients have some bits only.
    check::<f32>(&[2f64.powi(49), 2f64.powi(64), 2f64.powi(83), 2f64.powi(120)], 1e-5);
    check::<bf16>(&[2f64.powi(49), 2f64.powi(64), 2f64.powi(83), 2f64.powi(120)], 1e-5);
    check::<f32>(&[2f64.powi(126)], 1e-3);
    check::<half::f16>(&[2f64.powi(13)], 1e-5);
}

/// A component of 10²⁵ beside ones that are all but nothing.
#[test]
fn one_huge_component_is_the_direction() {
    let documents = [0.0f32, 1e25, 0.0, 1.0, 0.6, 0.8];
    for device in all_devices() {
        let queries = Tokens::padded(&[0.0f32, 1.0], 1, 1, 2).expect("queries");
        let documents = Tokens::padded(&documents, 3, 1, 2).expect("documents");
        let cross = Pairing::cross();
        let scores = device.score_with(&queries, &documents, &cross, &normalized());
        assert_eq!(scores.expect("scores").values(), [1.0, 1.0, 0.8], "{device}");
        // As they are where they are not normalised: a handle serves both kinds of calls.
        let handle = device.upload(&documents).expect("documents");
        let plain = device.score(&queries, &handle, &cross).expect("scores");
        assert_eq!(plain.values(), [1e25, 1.0, 0.8], "{device}");
        let again = device.score_with(&queries, &handle, &cross, &normalized()).expect("scores");
        assert_eq!(again.values(), [1.0, 1.0, 0.8], "{device}");
        assert_eq!(handle.download().expect("rows").data(), documents.data());
        handle.check_normalizable().expect("rows of its own");
    }
}

/// Every kernel finds the same lengths, to the bit: of rows in memory of others too, whose squares
/// may be beyond f32. Query tokens of one element make products exact, and nothing else is rounded
/// but the lengths and what is divided by them.
#[test]
fn every_kernel_has_the_same_lengths() {
    const N: usize = 400;
    fn check<T: Element>(dim: usize, lengths: &[f32]) {
        let value = |i: usize| ((i as u64 * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
        let length = |row: usize| lengths[row % lengths.len()];
        let rows: Vec<T> = (0..N * dim).map(|i| T::from_f32(value(i) * length(i / dim))).collect();
        let rows = Tokens::padded(&rows, N, 1, dim).expect("documents");
        let mut query = vec![T::from_f32(0.0); 32 * dim];
        (0..32).for_each(|row| query[row * dim + 5 * row % dim] = T::from_f32(0.5));
        let query = Tokens::padded(&query, 32, 1, dim).expect("queries");
        for device in cuda_devices() {
            let owner = device.upload(&rows).expect("documents");
            let query = device.upload(&query).expect("queries");
            let access = owner.access();
            // SAFETY: `owner` lives longer, and nothing writes to its rows.
            let view = unsafe {
                DeviceTokens::<T>::from_raw_parts(
                    device,
                    RawRows::new(access.base, access.pitch_bytes),
                    rows.layout().clone(),
                )
            };
            let view = view.expect("a view");
            let mut found: Option<(&str, Vec<u32>)> = None;
            let is_meant = |row: &&Variant| row.operand == T::TYPE && row.normalizes();
            for row in FORWARD.iter().filter(is_meant) {
                let options = ScoreOptions::default().normalize(true).kernel(row.name);
                // Equal shares of so short documents are none.
                let cross = Pairing::cross();
                let Ok(scores) = device.score_with(&query, &view, &cross, &options) else {
                    continue;
                };
                let bits: Vec<u32> = scores.values().iter().map(|x| x.to_bits()).collect();
                assert!(scores.values().iter().all(|x| x.is_finite()), "{}", row.name);
                match &found {
                    None => found = Some((row.name, bits)),
                    Some((name, first)) => assert_eq!(&bits, first, "{} and {name}", row.name),
                }
            }
            assert!(found.is_some(), "{device} has kernels");
        }
    }
    for dim in [128, 96, 72, 17, 8] {
        check::<half::f16>(dim, &[1.0, 0.001, 300.0]);
        check::<bf16>(dim, &[1.0, 1e-9, 2f32.powi(70), 2f32.powi(120)]);
    }
}

/// Memory of others is read as it is: squares beyond f32 are no obstacle, dot products would be,
/// and what to look for is found where it is asked for.
#[test]
fn views_of_long_rows_have_their_direction_and_are_found() {
    let rows = [0.6f32, 0.8, 0.0, 0.0, 0.0, 1e25, 0.0, 0.0, 0.0, 0.0, f32::INFINITY, 0.0];
    for device in cuda_devices() {
        let tokens = Tokens::padded(&rows, 3, 1, 4).expect("documents");
        let owner = device.upload(&tokens).expect("documents");
        let access = owner.access();
        let view = |layout: TokenLayout| {
            let (base, pitch_bytes) = (access.base, access.pitch_bytes);
            // SAFETY: `owner` lives longer, and nothing writes to its rows.
            unsafe {
                DeviceTokens::<f32>::from_raw_parts(device, RawRows::new(base, pitch_bytes), layout)
            }
        };
        let all = view(tokens.layout().clone()).expect("a view");
        let queries = Tokens::padded(&[0.0f32, 1.0, 0.0, 0.0], 1, 1, 4).expect("queries");
        let cross = Pairing::cross();
        let scores = device.score_with(&queries, &all, &cross, &normalized()).expect("scores");
        assert_eq!(scores.values()[..2], [0.8, 1.0], "{device}");
        let error = all.check_normalizable().expect_err("a long row").to_string();
        assert!(error.contains("row 1") && error.contains("1.0e25"), "{error}");
        // Rows of no item may hold anything.
        let first = TokenLayout::packed(3, 4, &[0i64, 1]).expect("a layout");
        view(first).expect("a view").check_normalizable().expect("the first row alone");
    }
}
