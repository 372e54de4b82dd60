//! Angular scores and distances: of every kernel, by hand, in gradients and rankings, and what is
//! refused.

use half::{bf16, f16};
use maxsim::angular::NearestDocuments;
use maxsim::format::{Element, ElementType, Int8, ScaleType};
use maxsim::stream::Queue;
use maxsim::streaming::StreamOptions;
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientType};
use maxsim::{Device, Error, Pairing, ScoreOptions, Tokens};
use maxsim_tests::case::Case;
use maxsim_tests::engines::check_case;
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;

use super::check_stream_and_graph;

fn angular() -> ScoreOptions {
    ScoreOptions::default().angular(true)
}

/// Every layout and pairing, poisoned rows, tiles of every height, weights and splits.
#[test]
fn of_every_kernel() {
    let small = Case { poison: true, ..Case::new(33, &[5, 0, 17, 1], &[16, 70, 0, 1, 9]) };
    let mut cases: Vec<Case> = small.in_every_layout_and_pairing().into_iter().step_by(3).collect();
    for (queries, documents) in [
        (vec![7], vec![60; 40]),
        (vec![32], vec![300; 40]),
        (vec![30, 20], vec![130, 0, 20]),
        (vec![128], vec![128; 30]),
        (vec![300, 40], vec![140; 12]),
    ] {
        for (dim, document_splits) in [(64, None), (128, None), (128, Some(3)), (320, None)] {
            cases.push(Case { document_splits, ..Case::new(dim, &queries, &documents) });
        }
    }
    let cases = cases.into_iter().zip(0u64..).flat_map(|(case, i)| {
        ElementType::ALL.into_iter().zip(0u64..).map(move |(element, j)| Case {
            element,
            normalize: true,
            angular: true,
            weights: (i + j) % 3 == 0,
            token_scores: (i + j) % 2 == 0,
            seed: case.seed + 7 * i + j,
            ..case.clone()
        })
    });
    Suite::run_on_kernels("angular", cases, check_case);
}

/// One query of three tokens, the last of them zero; documents of two, one, no and one token.
const QUERY: [f32; 6] = [2.0, 0.0, 0.0, 0.5, 0.0, 0.0];
const DOCUMENTS: [f32; 8] = [3.0, 4.0, 0.0, 7.0, -5.0, 0.0, 0.0, 0.0];

fn tokens<T: Element>() -> [Vec<T>; 2] {
    [&QUERY[..], &DOCUMENTS].map(|rows| rows.iter().map(|&x| T::from_f32(x)).collect())
}

fn sides<T: Element>([queries, documents]: &[Vec<T>; 2]) -> [Tokens<'_, T>; 2] {
    [
        Tokens::padded(queries, 1, 3, 2).expect("queries"),
        Tokens::packed(documents, 2, &[0i64, 2, 3, 3, 4]).expect("documents"),
    ]
}

/// Cosines of the best are 0.6, 1, 0 and -1, 0, 0; of a token that is zero they are 0.
#[test]
fn by_hand_in_every_type() {
    fn check<T: Element>() {
        let rows = tokens::<T>();
        let [queries, documents] = sides(&rows);
        let options = ScoreOptions::default().token_scores(true);
        for device in all_devices() {
            let found = device
                .angular(&queries, &documents, &Pairing::cross(), &options)
                .expect("distances");
            let near = |found: f32, expected: f32| (found - expected).abs() < 1e-6;
            let expected = [1.4, 4.0, f32::INFINITY, 3.0];
            for (&found, expected) in found.values().iter().zip(expected) {
                let is_right = found == expected || near(found, expected);
                assert!(is_right, "{device}: {found}, not {expected}");
            }
            assert_eq!(found.winners(), [0, 1, 0, 0, 0, 0, -1, -1, -1, 0, 0, 0], "{device}");
            let of_tokens = [0.4, 0.0, 1.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
            for (&found, expected) in found.token_distances().expect("any").iter().zip(of_tokens) {
                assert!(near(found, expected), "{device}: {found}, not {expected}");
            }
            let NearestDocuments { found, n_nan, n_empty } =
                found.nearest(&documents, 9).expect("the nearest").remove(0);
            let ids: Vec<u32> = found.iter().map(|near| near.id).collect();
            assert_eq!((ids, n_nan, n_empty), (vec![0, 3, 1, 2], 0, 1), "{device}");
            assert_eq!(found[3].distance, f32::INFINITY);
        }
    }
    check::<f32>();
    check::<f16>();
    check::<bf16>();
}

/// No row is below 0 from itself, though the f32 cosine of some is above 1.
#[test]
fn a_row_is_no_distance_from_itself() {
    let rows: Vec<f32> = (0..64 * 48).map(|i| ((i * 7919) % 1013) as f32 / 500.0 - 1.0).collect();
    for device in all_devices() {
        let all = Tokens::padded(&rows, 64, 1, 48).expect("rows");
        let pairs = Pairing::own_candidates(1);
        let scores =
            device.score_with(&all, &all, &pairs, &ScoreOptions::default().normalize(true));
        let found = device.angular(&all, &all, &pairs, &ScoreOptions::default()).expect("any");
        for (distance, cosine) in found.values().iter().zip(scores.expect("cosines").values()) {
            assert!((0.0..1e-6).contains(distance) && distance.is_sign_positive(), "{device}");
            assert_eq!(*distance, if *cosine > 1.0 { 0.0 } else { 1.0 - cosine }, "{device}");
        }
    }
}

/// Streams, graphs, searches and selections on a device rank by minus the distances.
#[test]
fn of_every_way_to_call() {
    let value = |i: usize| ((i as u64 * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let queries: Vec<f32> = (0..3 * 40 * 33).map(value).collect();
    let rows: Vec<f32> = (0..7 * 150 * 33).map(|i| value(i + 9)).collect();
    let (cross, options) = (Pairing::cross(), angular());
    for device in all_devices() {
        let queries = Tokens::padded(&queries, 3, 40, 33).expect("queries");
        let documents = Tokens::padded(&rows, 7, 150, 33).expect("documents");
        let documents =
            documents.with_lengths(&[150, 0, 20, 150, 3, 150, 150i64]).expect("lengths");
        let distances = device.angular(&queries, &documents, &cross, &ScoreOptions::default());
        let distances = distances.expect("distances");
        let expected = device.score_with(&queries, &documents, &cross, &options).expect("scores");
        let negated = distances.values().iter().map(|x| -x);
        assert!(negated.eq(expected.values().iter().copied()), "{device}");
        let best = expected.top_k(&documents, 7).expect("a ranking");
        assert!(best.iter().all(|ranking| ranking.ranked[6].id == 1 && ranking.n_empty == 1));
        let nearest: Vec<NearestDocuments> =
            best.iter().cloned().map(NearestDocuments::from).collect();
        assert_eq!(distances.nearest(&documents, 7).expect("the nearest"), nearest, "{device}");
        let found = device.top_k(&queries, &documents, &cross, &options, 7).expect("a selection");
        assert_eq!(found, best, "{device}");
        let streamed = StreamOptions::default().score(options.clone());
        let found = device.search_stream(&queries, &documents, 7, &streamed).expect("a search");
        let ids = |all: &[maxsim::Ranking]| -> Vec<Vec<u32>> {
            all.iter().map(|r| r.ranked.iter().map(|document| document.id).collect()).collect()
        };
        assert_eq!(ids(&found.rankings), ids(&best), "{device}");
        let mut chunks = Vec::new();
        let scored = device.score_stream(&queries, &documents, &streamed, |found| {
            chunks.push(found.scores.to_vec());
            Ok::<(), Error>(())
        });
        let _ = scored.expect("scores");
        assert_eq!(chunks.concat()[1], f32::NEG_INFINITY, "{device}");

        let [queries, documents] = [&queries, &documents].map(|x| device.upload(x).expect("one"));
        let (scores, mut stream) =
            check_stream_and_graph(&device, [&queries, &documents], &options, &expected);
        // A loss would take a document without tokens as the best, or as none.
        let targets = device.prepare_contrastive(7, &[0, 2, 3], 1.0).expect("a loss");
        let mut loss = targets.new_loss().expect("a loss");
        let work = device.prepare(&queries, &documents, &cross, &options.clone().winners(true));
        let backward =
            device.prepare_backward(&work.expect("work"), &Default::default(), GradientType::F32);
        let mut grads = backward.expect("work").new_grad_scores().expect("gradients");
        let refused = stream.loss(&targets, &scores, &mut grads, &mut loss);
        assert!(refused.unwrap_err().to_string().contains("without any"), "{device}");
    }
}

/// f64: Σ_s min_t (1 − cos) of one query and one document, over given winners.
fn distance(queries: &[f64], documents: &[f64], winners: &[i32], dim: usize) -> f64 {
    let cos = |a: &[f64], b: &[f64]| {
        let dot: f64 = a.iter().zip(b).map(|(x, y)| x * y).sum();
        let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
        dot / (square(a) * square(b)).sqrt()
    };
    let terms = queries.chunks(dim).zip(winners);
    terms.map(|(q, &t)| 1.0 - cos(q, &documents[t as usize * dim..][..dim])).sum()
}

/// Gradients are the differences of f64 distances, by every strategy.
#[test]
fn gradients_are_those_of_the_distances() {
    let dim = 5;
    let value = |i: usize| ((i as u64 * 2_654_435_761) % 4093) as f32 / 1733.0 - 1.1;
    let queries: Vec<f32> = (0..4 * dim).map(value).collect();
    let documents: Vec<f32> = (0..6 * dim).map(|i| value(i + 31)).collect();
    let wide = [&queries, &documents].map(|x| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    let tokens = [
        Tokens::padded(&queries, 1, 4, dim).expect("queries"),
        Tokens::padded(&documents, 1, 6, dim).expect("documents"),
    ];
    for device in all_devices() {
        let [queries, documents] = &tokens;
        let found = device
            .angular(queries, documents, &Pairing::cross(), &ScoreOptions::default())
            .expect("distances");
        let winners = found.winners().to_vec();
        for strategy in [BackwardStrategy::Deterministic, BackwardStrategy::Recompute] {
            let options = BackwardOptions::new(strategy);
            let found = device
                .angular_backward(queries, documents, found.with_grad(&[3.0]), &options)
                .expect("gradients");
            for (side, found) in [&found.queries, &found.documents].into_iter().enumerate() {
                for (i, &found) in found.iter().enumerate() {
                    let at = |step: f64| {
                        let mut moved = wide.clone();
                        moved[side][i] += step;
                        distance(&moved[0], &moved[1], &winners, dim)
                    };
                    let expected = 3.0 * (at(1e-5) - at(-1e-5)) / 2e-5;
                    let error = (f64::from(found) - expected).abs();
                    assert!(error < 1e-5, "{device} {side} {i}: {found}, not {expected}");
                }
            }
        }
    }
}

/// Rows of zeros have no direction, and are moved by nothing; nor is what has no tokens.
#[test]
fn rows_of_zeros_have_no_gradient() {
    fn check<T: Element>() {
        let rows = tokens::<T>();
        let [queries, documents] = sides(&rows);
        for device in all_devices() {
            let found = device
                .angular(&queries, &documents, &Pairing::cross(), &ScoreOptions::default())
                .expect("distances");
            let grads = [1.0, 1.0, f32::NAN, 1.0];
            let found = device
                .angular_backward(
                    &queries,
                    &documents,
                    found.with_grad(&grads),
                    &BackwardOptions::default(),
                )
                .expect("gradients");
            assert_eq!(found.queries[4..], [0.0; 2], "{device}");
            assert_eq!(found.documents[6..], [0.0; 2], "{device}");
            // (2, 0) towards (3, 4): ½ · (0, 0.8), and (-5, 0) is opposite.
            assert!((found.queries[1] + 0.4).abs() < 1e-6, "{device}: {:?}", found.queries);
            assert!(found.queries.iter().chain(&found.documents).all(|x| x.is_finite()));
        }
    }
    check::<f32>();
    check::<f16>();
    check::<bf16>();
}

#[test]
fn what_would_be_ambiguous_is_refused() {
    let rows = tokens::<f32>();
    let [queries, documents] = sides(&rows);
    let (cross, mut raw_angular) = (Pairing::cross(), angular());
    raw_angular.normalize = false;
    let refused = |result: maxsim::Result<()>, expected: &str| {
        let error = result.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    for device in all_devices() {
        let found = device.score_with(&queries, &documents, &cross, &raw_angular);
        refused(found.map(drop), "set `normalize`, too");
        let codes = documents.quantize::<Int8>(ScaleType::F32).expect("codes");
        let queries_as_codes = queries.quantize::<Int8>(ScaleType::F32).expect("codes");
        let found = device.score_with(&queries_as_codes, &codes, &cross, &angular());
        refused(found.map(drop), "rows are compressed");
        let weighted = queries.clone().with_weights(&[1.0f32; 3][..]).expect("weights");
        let found = device.angular(&weighted, &documents, &cross, &ScoreOptions::default());
        let found = found.expect("weighted distances");
        let with_grad = found.with_grad(&[1.0; 4]);
        let options = BackwardOptions::default();
        let found = device.angular_backward(&weighted, &documents, with_grad, &options);
        refused(found.map(drop), "weights of angular scores");
    }
    // Cosines and distances are no gradients of each other.
    let of = |options: &ScoreOptions| {
        Device::cpu().score_for_training_with(&queries, &documents, &cross, options).expect("any")
    };
    assert_ne!(of(&angular()), of(&ScoreOptions::default().normalize(true)));
}
