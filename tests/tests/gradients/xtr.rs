//! XTR scores, their gradients and rankings: by the oracle, by hand, and what is refused.

use std::time::Instant;

use half::f16;
use maxsim::format::ElementType;
use maxsim::training::{BackwardOptions, BackwardStrategy};
use maxsim::xtr::{Normalizer, TokenPool, XtrOptions, XtrScores};
use maxsim::{Device, Error, Pairing, Result, Tokens};
use maxsim_tests::case::{Case, Layout, Pairs, elements, tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::strategy;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use maxsim_tests::xtr::check_case;
use proptest::prelude::Strategy;
use proptest::sample::select;

/// Every layout and pairing, over sums that are exact, with every number of tokens and normaliser.
#[test]
fn in_every_layout_and_pairing() {
    let case = Case {
        values: Values::Integers,
        poison: true,
        ..Case::new(32, &[5, 0, 17, 1], &[16, 70, 0, 1, 9])
    };
    let cases = case.in_every_layout_and_pairing().into_iter().zip(0u64..);
    let cases = cases.map(|(case, i)| Case { seed: i * 0x1_0305 + 1, ..case });
    Suite::run("xtr", cases, check_case);
}

#[test]
fn random() {
    // Weights are refused.
    let strategy = || {
        let cases = select(&ElementType::ALL).prop_flat_map(strategy::cases);
        cases.prop_map(|case| Case { weights: false, ..case })
    };
    Suite::run_random("xtr_random", strategy, check_case);
}

/// Several blocks of query tokens and runs of documents, whatever the number of threads.
#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (the target has no threads)")]
fn threads_change_no_bit() {
    let documents = [900; 12];
    let case = Case { seed: 3, ..Case::new(8, &[200, 130], &documents) };
    Suite::run("xtr_large", [case.clone()], check_case);
    let data = case.data();
    let [queries, documents] = [&data.queries, &data.documents].map(|side| {
        let offsets = side.items.iter().map(|item| item.start as i64);
        let offsets: Vec<i64> =
            offsets.chain([side.items.last().map_or(0, |item| item.end as i64)]).collect();
        Tokens::packed(&side.values, 8, &offsets).expect("tokens")
    });
    let run = |n_threads: usize| -> XtrScores {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().expect("a pool");
        let options = XtrOptions::default().k(40);
        let found =
            pool.install(|| Device::cpu().xtr(&queries, &documents, &Pairing::cross(), &options));
        found.expect("scores")
    };
    let one = run(1);
    assert!(one.winners().is_ok_and(|winners| winners.contains(&-1)));
    for n_threads in [2, 5] {
        assert_eq!(run(n_threads), one);
    }
}

/// As many documents as a sample is taken of, where a GPU collects with the product of the maxima:
/// few similarities above a bound and very many, more than a list has room for, bounds that are too
/// high since all tie, NaN and infinities, masks and documents without tokens.
#[test]
fn samples_of_many_documents() {
    let lengths: Vec<usize> = (0..137).map(|i| [1, 7, 0, 33, 140][i % 5]).collect();
    let layouts = [Layout::Packed, Layout::PaddedLengths, Layout::Scattered];
    let elements = [ElementType::F16, ElementType::Bf16];
    let cases = Values::ALL.into_iter().zip(0u64..).flat_map(|(values, i)| {
        let lengths = lengths.clone();
        elements.into_iter().zip(0u64..).map(move |(element, j)| {
            let n = 2 * i + j;
            let mut case = Case {
                element,
                values,
                poison: true,
                upload: [n % 2 == 0, true],
                // Of 2, 5, 17 and 64 tokens.
                seed: 6 * (0x1234 + 0x40 * n) + 1 + n % 4,
                ..Case::new([128, 40, 64][n as usize % 3], &[32, 5, 0, 17], &lengths)
            };
            case.documents.layout = layouts[n as usize % 3];
            case.documents.valid_percent = (n % 4 == 1).then_some(70);
            case.queries.valid_percent = (n % 4 > 1).then_some(70);
            case
        })
    });
    Suite::run("xtr_sampled", cases, check_case);
}

/// A list has no room for what one document alone has above the bound, which all others are below.
#[test]
fn a_sample_says_nothing_of_other_documents() {
    let query = Tokens::padded(&[f16::ONE], 1, 1, 1).expect("a query");
    let (n, len) = (128, 200);
    for k in [1, 3, 40] {
        for rises in [false, true] {
            // All rows of a sample may be alike, and those beside it.
            let value = |i: usize| match rises {
                true => f16::from_f32((i % 2000) as f32),
                false => f16::from_f32(if i / len % 8 == 3 { (i % 64) as f32 } else { -1.0 }),
            };
            let rows: Vec<f16> = (0..n * len).map(value).collect();
            let documents = Tokens::padded(&rows, n, len, 1).expect("documents");
            let options = XtrOptions::default().k(k);
            let of = |device: &Device| {
                let found = device.xtr(&query, &documents, &Pairing::cross(), &options);
                let found = found.expect("scores");
                let winners = found.winners().expect("winners").to_vec();
                (found.values().to_vec(), found.thresholds().to_vec(), winners)
            };
            let found = of(&Device::cpu());
            for device in cuda_devices() {
                assert!(of(device) == found, "{device}: k {k}, rises {rises}");
            }
        }
    }
}

/// Scores of one query token 1 against documents of these similarities, the same on every device.
fn scores_of(documents: &[&[f32]], options: &XtrOptions) -> Result<XtrScores> {
    let query = Tokens::padded(&[1.0f32], 1, 1, 1)?;
    let rows: Vec<f32> = documents.concat();
    let ends = documents.iter().scan(0, |end, rows| {
        *end += rows.len() as i64;
        Some(*end)
    });
    let offsets: Vec<i64> = [0].into_iter().chain(ends).collect();
    let documents = Tokens::packed(&rows, 1, &offsets)?;
    let of = |device: &Device| device.xtr(&query, &documents, &Pairing::cross(), options);
    let found = of(&Device::cpu())?;
    let same = |a: &f32, b: &f32| a == b || a.is_nan() && b.is_nan();
    for device in cuda_devices() {
        let other = of(device)?;
        let are_same = found.values().iter().zip(other.values()).all(|(a, b)| same(a, b));
        assert!(are_same, "{device}: {:?}, not {:?}", other.values(), found.values());
        assert_eq!(other.thresholds(), found.thresholds(), "{device}");
        assert_eq!(other.divisors(), found.divisors(), "{device}");
    }
    Ok(found)
}

#[test]
fn ties_nan_and_documents_without_tokens() {
    let k = |k| XtrOptions::default().k(k);
    let of = |documents: &[&[f32]], k_tokens| {
        let found = scores_of(documents, &k(k_tokens)).expect("scores");
        (found.values().to_vec(), found.thresholds()[0])
    };
    // All that tie with the last one are retrieved.
    assert_eq!(of(&[&[3.0, 2.0], &[2.0], &[2.0, 1.0], &[]], 2), (vec![3.0, 2.0, 2.0, 0.0], 2.0));
    // Negative maxima count as they are, and no token of an empty document does.
    assert_eq!(of(&[&[-3.0], &[-1.0], &[]], 2), (vec![-3.0, -1.0, 0.0], -3.0));
    assert_eq!(of(&[&[-3.0], &[-1.0], &[]], 1), (vec![0.0, -1.0, 0.0], -1.0));
    let lowest = f32::NEG_INFINITY;
    assert_eq!(of(&[&[-3.0], &[-1.0]], 3), (vec![-3.0, -1.0], lowest));
    assert_eq!(of(&[&[lowest], &[-1.0]], 2), (vec![lowest, -1.0], lowest));
    assert_eq!(of(&[&[lowest], &[-1.0]], 1), (vec![0.0, -1.0], -1.0));
    // NaN is retrieved by no one, and shows.
    let (values, threshold) = of(&[&[f32::NAN, 5.0], &[4.0], &[3.0]], 2);
    assert!(values[0].is_nan() && values[1..] == [4.0, 0.0] && threshold == 4.0, "{values:?}");
}

/// What PyLate gives for these, by its own code (1.6.0, `XTRScores`).
#[test]
fn pylates_scores() {
    let options = XtrOptions::default().normalizer(Normalizer::PylateCompatible);
    let of = |documents: &[&[f32]], k| {
        scores_of(documents, &options.clone().k(k)).expect("scores").values().to_vec()
    };
    // A maximum below 0 counts where the whole document was retrieved, and is divided by 10⁻³.
    assert_eq!(of(&[&[-1.0, -2.0], &[-3.0, 1.0]], 3), [-1000.0, 1.0]);
    assert_eq!(of(&[&[-1.0, -2.0], &[-3.0, 1.0]], 2), [0.0, 1.0]);
    // Shorter documents are padded.
    assert_eq!(of(&[&[-1.0], &[2.0, 1.0]], 3), [0.0, 2.0]);
}

#[test]
fn candidates_retrieve_from_all_documents_or_their_own() {
    let queries = Tokens::padded(&[1.0f32, 2.0], 2, 1, 1).expect("queries");
    let documents = Tokens::padded(&[1.0f32, 2.0, 3.0], 3, 1, 1).expect("documents");
    let pairing = Pairing::candidates(&[0, 1, 1, 1], 2).expect("a pairing");
    let of = |pool| {
        let options = XtrOptions::default().k(2).pool(pool);
        let of = |device: &Device| {
            let found = device.xtr(&queries, &documents, &pairing, &options).expect("scores");
            (found.values().to_vec(), found.thresholds().to_vec())
        };
        let found = of(&Device::cpu());
        assert!(cuda_devices().iter().all(|device| of(device) == found), "{pool:?}");
        found
    };
    assert_eq!(of(TokenPool::AllDocuments), (vec![0.0, 2.0, 4.0, 4.0], vec![2.0, 4.0]));
    // The second query has one document, though it is named twice.
    let lowest = f32::NEG_INFINITY;
    assert_eq!(of(TokenPool::PairedDocuments), (vec![1.0, 2.0, 4.0, 4.0], vec![1.0, lowest]));
}

/// Codes are searched as elements are.
#[test]
fn compressed_documents_are_ranked() {
    use maxsim::format::{Int8, ScaleType};
    let case = Case { pairs: Pairs::Cross, ..Case::new(16, &[4], &[3, 9, 5, 2, 8, 1]) };
    let data = case.data();
    let queries = Tokens::padded(&data.queries.values, 1, 4, 16).expect("queries");
    let offsets = [0i64, 3, 12, 17, 19, 27, 28];
    let documents = Tokens::packed(&data.documents.values, 16, &offsets).expect("documents");
    let options = XtrOptions::default().k(6);
    let device = Device::cpu();
    let exact = device.xtr_search(&queries, &documents, 6, &options).expect("a ranking");
    let codes = [&queries, &documents].map(|tokens| tokens.quantize::<Int8>(ScaleType::F32));
    let [queries, documents] = codes.map(|codes| codes.expect("codes"));
    let found = device.xtr_search(&queries, &documents, 6, &options).expect("a ranking");
    assert_eq!(found[0].ranked[0].id, exact[0].ranked[0].id);
    let error = found[0].ranked[0].score - exact[0].ranked[0].score;
    assert!(error.abs() < 0.05 && error != 0.0, "{error}");
}

#[test]
fn what_has_no_meaning_is_refused() {
    let device = Device::cpu();
    let tokens = Tokens::padded(&[1.0f32, 2.0], 2, 1, 1).expect("tokens");
    let (cross, options) = (Pairing::cross(), XtrOptions::default());
    let text = |result: Result<()>| result.expect_err("must be refused").to_string();
    let none = options.clone().k(0);
    let found = device.xtr(&tokens, &tokens, &cross, &none).map(|_| ());
    assert_eq!(text(found), "k: expected at least 1 token to retrieve, found 0");
    let found = device.xtr_search(&tokens, &tokens, 1, &none).map(|_| ());
    assert_eq!(text(found), "k: expected at least 1 token to retrieve, found 0");
    let weighted = tokens.clone().with_weights(&[1.0f32, 2.0][..]).expect("weights");
    let found = device.xtr(&weighted, &tokens, &cross, &options).map(|_| ());
    assert!(text(found).contains("weights of XTR queries"));
    for options in [
        options.clone().normalizer(Normalizer::None),
        options.clone().pool(TokenPool::PairedDocuments),
    ] {
        let found = device.xtr_search(&tokens, &tokens, 1, &options).map(|_| ());
        assert!(text(found).contains("leave normalizer and pool as they are"));
    }
    let scores = device.xtr(&tokens, &tokens, &cross, &options).expect("scores");
    let again = BackwardOptions::new(BackwardStrategy::Recompute);
    let found = device.xtr_backward(&tokens, &tokens, scores.with_grad(&[1.0; 4]), &again);
    assert!(text(found.map(|_| ())).contains("not retrieved"));
    let found =
        device.xtr_backward(&tokens, &tokens, scores.with_grad(&[1.0]), &Default::default());
    assert!(matches!(found, Err(Error::Shape { argument: "grad_scores", .. })));
}

/// What the case that goals are set for takes on a GPU, calls that wait, beside plain scores.
#[test]
fn times_on_a_gpu() {
    Suite::run_gpu("gpu_xtr_times", |suite| {
        let case = Case { element: ElementType::F16, ..Case::new(128, &[32; 64], &[180; 512]) };
        let data = case.data();
        let rows = [elements::<f16>(&data.queries), elements::<f16>(&data.documents)];
        let queries = tokens(&case.queries, &data.queries, &rows[0]).map_err(text)?;
        let documents = tokens(&case.documents, &data.documents, &rows[1]).map_err(text)?;
        for device in cuda_devices() {
            let queries = device.upload(&queries).map_err(text)?;
            let documents = device.upload(&documents).map_err(text)?;
            let (cross, options) = (Pairing::cross(), XtrOptions::default());
            let plain = || device.score(&queries, &documents, &cross).map(|_| ());
            let xtr = || device.xtr(&queries, &documents, &cross, &options).map(|_| ());
            let of = |call: &dyn Fn() -> Result<()>| -> std::result::Result<f64, String> {
                let mut best = f64::INFINITY;
                for _ in 0..40 {
                    let start = Instant::now();
                    call().map_err(text)?;
                    best = best.min(start.elapsed().as_secs_f64() * 1e3);
                }
                Ok(best)
            };
            let (plain, xtr) = (of(&plain)?, of(&xtr)?);
            suite.note(&format!("{device}: XTR {xtr:.3} ms, plain scores {plain:.3} ms"));
            suite.count(&device.to_string());
        }
        Ok(1)
    });
}
