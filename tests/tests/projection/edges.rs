//! What is refused, what does not depend on threads, and what the smallest cases give.

use maxsim::projection::Projection;
use maxsim::training::TrainingScores;
use maxsim::{Device, Error, Pairing, ScoreOptions, Tokens};
use maxsim_tests::gradients::all_devices;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
}

fn argument<R: std::fmt::Debug>(result: maxsim::Result<R>) -> &'static str {
    match result {
        Err(Error::Shape { argument, .. }) => argument,
        other => panic!("{other:?}"),
    }
}

#[test]
fn projections_that_do_not_fit_are_refused() {
    let device = Device::cpu();
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let numbers = [1.0f32; 24];
    let weight = Tokens::padded(&numbers[..12], 1, 3, 4).unwrap();
    let bias = |n: usize, len: usize| Tokens::padded(&numbers[..n * len], 1, n, len).unwrap();
    let fits = Projection::new(&weight).unwrap().bias(&bias(1, 3)).map(drop);
    assert!(fits.is_ok());
    assert_eq!(argument(Projection::new(&weight).unwrap().bias(&bias(1, 4))), "bias");
    assert_eq!(argument(Projection::new(&weight).unwrap().bias(&bias(3, 3))), "bias");
    let two = Tokens::padded(&numbers, 2, 3, 4).unwrap();
    assert_eq!(argument(Projection::new(&two)), "weight");
    let masked = weight.clone().with_mask(&[1, 0, 1]).unwrap();
    assert_eq!(argument(Projection::new(&masked)), "weight");
    let long = vec![0.0f32; 4097];
    let long = Tokens::padded(&long, 1, 4097, 1).unwrap();
    assert_eq!(argument(Projection::new(&long)), "dim");

    let projection = Projection::new(&weight).unwrap();
    let queries = Tokens::padded(&numbers[..6], 1, 2, 3).unwrap();
    let hidden = Tokens::padded(&numbers, 3, 2, 4).unwrap();
    let narrow = Tokens::padded(&numbers, 4, 2, 3).unwrap();
    assert_eq!(argument(device.project(&narrow, &projection)), "hidden");
    let score =
        |queries, hidden| device.score_projected(queries, hidden, &projection, &cross, &options);
    assert!(score(&queries, &hidden).is_ok());
    assert_eq!(argument(score(&queries, &narrow)), "hidden");
    assert_eq!(argument(score(&hidden, &hidden)), "documents");
    let normalized = options.clone().normalize(true);
    let refused = device.score_projected(&queries, &hidden, &projection, &cross, &normalized);
    assert!(matches!(refused, Err(Error::Unsupported { .. })));

    let scores =
        device.score_projected_for_training(&queries, &hidden, &projection, &cross).unwrap();
    let backward = |hidden: &Tokens<'_, f32>, grad: &[f32]| {
        device.backward_projected(&queries, hidden, &projection, scores.with_grad(grad))
    };
    assert!(backward(&hidden, &[1.0; 3]).is_ok());
    assert_eq!(argument(backward(&hidden, &[1.0; 2])), "grad_scores");
    let other = Tokens::padded(&numbers, 2, 3, 4).unwrap();
    assert_eq!(argument(backward(&other, &[1.0; 3])), "documents");
    assert_eq!(argument(device.project_backward(&hidden, &projection, &[0.0; 17])), "grad_tokens");
}

/// Work that is prepared takes any queries of its items: others, and other rows of those.
#[test]
fn prepared_work_takes_queries_of_its_items_alone() {
    let device = Device::cpu();
    let (cross, options) = (Pairing::cross(), ScoreOptions::default().winners(true));
    let numbers = random(24, 5);
    let weight = Tokens::padded(&numbers[..12], 1, 3, 4).unwrap();
    let projection = Projection::new(&weight).unwrap();
    let hidden = Tokens::padded(&numbers, 3, 2, 4).unwrap();
    let of = |n: usize, rows: usize, from: usize| {
        Tokens::padded(&numbers[from..from + n * rows * 3], n, rows, 3).unwrap()
    };
    let prepare =
        |options| device.prepare_projected(&of(2, 2, 0), &hidden, &projection, &cross, options);
    let mut work = prepare(&options).unwrap();
    for from in [0, 7, 12, 0] {
        let queries = of(2, 2, from);
        let scores = device.score_projected(&queries, &hidden, &projection, &cross, &options);
        assert_eq!(work.score(&queries).unwrap(), scores.unwrap());
    }
    for (n, rows) in [(1, 2), (4, 1), (2, 1)] {
        assert_eq!(argument(work.score(&of(n, rows, 0))), "queries");
    }
    let normalized = prepare(&options.clone().normalize(true)).map(drop);
    assert!(matches!(normalized, Err(Error::Unsupported { .. })));
}

/// Masked rows of NaN, documents without tokens, rows of zeros: what shows of them is nothing.
#[test]
fn what_is_masked_or_empty_does_not_show() {
    for device in all_devices() {
        let weight = Tokens::padded(&[1.0f32, 2.0, -1.0, 0.5], 1, 2, 2).unwrap();
        let projection = Projection::new(&weight).unwrap().normalize(true);
        let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2).unwrap();
        let nan = f32::NAN;
        // A masked row and a valid one; nothing; a row of zeros; a row of no item.
        let hidden = [nan, nan, 1.0, 1.0, 0.0, 0.0, nan, nan];
        let hidden = Tokens::packed(&hidden, 2, &[0, 2, 2, 3]).unwrap();
        let hidden = hidden.with_mask(&[0, 1, 1, 1]).unwrap();
        let cross = Pairing::cross();
        let scores =
            device.score_projected_for_training(&queries, &hidden, &projection, &cross).unwrap();
        // u = (3, -0.5)
        let expected = 3.0 / 9.25f32.sqrt();
        assert!((scores.scores().values()[0] - expected).abs() < 1e-6);
        assert_eq!(scores.scores().values()[1..], [0.0, 0.0]);
        assert_eq!(scores.scores().winners(), Some(&[1, -1, 0][..]));
        let found = device
            .backward_projected(&queries, &hidden, &projection, scores.with_grad(&[1.0, 5.0, 1e-6]))
            .unwrap();
        let of_hidden = &found.documents.hidden;
        assert_eq!([&of_hidden[..2], &of_hidden[6..]].concat(), [0.0; 4]);
        assert!(of_hidden[2..4].iter().all(|x| x.is_finite() && *x != 0.0));
        // r is 10⁶ of a row of zeros, and constant: ∂h = r · g · the first row of W.
        let of_zeros = &of_hidden[4..6];
        match device.ordinal() {
            None => assert_eq!(of_zeros, [1.0, 2.0]),
            // Its square root is rounded otherwise.
            Some(_) => assert!(of_zeros.iter().zip([1.0, 2.0]).all(|(x, y)| (x - y).abs() < 1e-6)),
        }
        assert!(found.documents.weight.iter().all(|x| x.is_finite()));
        assert!(found.documents.bias.is_empty());
    }
}

/// Scores of kept tokens have gradients, but not where they have no winners or normalise.
#[test]
fn scores_of_other_calls_are_refused() {
    let device = Device::cpu();
    let numbers = [1.0f32; 12];
    let weight = Tokens::padded(&numbers[..6], 1, 2, 3).unwrap();
    let projection = Projection::new(&weight).unwrap();
    let queries = Tokens::padded(&numbers[..4], 1, 2, 2).unwrap();
    let hidden = Tokens::padded(&numbers, 2, 2, 3).unwrap();
    let tokens = device.project(&hidden, &projection).unwrap();
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let backward = |scores: maxsim::Result<TrainingScores>| {
        let scores = scores.unwrap();
        let with_grad = scores.with_grad(&[1.0; 2]);
        device.backward_projected(&queries, &hidden, &projection, with_grad)
    };
    assert!(backward(device.score_for_training(&queries, &tokens, &cross)).is_ok());
    let without = device.score_for_recompute(&queries, &tokens, &cross, &options);
    assert_eq!(argument(backward(without)), "scores");
    let normalized = options.normalize(true);
    let scores = device.score_for_training_with(&queries, &tokens, &cross, &normalized);
    assert!(matches!(backward(scores), Err(Error::Unsupported { .. })));
}

/// Masked rows and rows of no item get no gradient and give none, whatever is said of them.
#[test]
fn gradients_of_what_is_no_token_are_left_out() {
    for device in all_devices() {
        let weight = Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2).unwrap();
        let bias = Tokens::padded(&[0.0f32, 1.0], 1, 1, 2).unwrap();
        let projection = Projection::new(&weight).unwrap().bias(&bias).unwrap();
        let nan = f32::NAN;
        // A token; a masked row; a row of no item.
        let hidden = [3.0f32, 1.0, nan, nan, nan, nan];
        let hidden = Tokens::packed(&hidden, 2, &[0, 2]).unwrap();
        let hidden = hidden.with_mask(&[1, 0, 1]).unwrap();
        let grad = [1.0f32, 0.5, 1.0, nan, 1.0, 1.0];
        let found = device.project_backward(&hidden, &projection, &grad).unwrap();
        assert_eq!(found.hidden, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(found.weight, [3.0, 1.0, 1.5, 0.5]);
        assert_eq!(found.bias, [1.0, 0.5]);
        let projection = projection.normalize(true);
        let found = device.project_backward(&hidden, &projection, &grad).unwrap();
        assert_eq!(found.hidden[2..], [0.0; 4]);
        assert!(found.weight.iter().chain(&found.bias).all(|x| x.is_finite()));
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (the target has no threads)")]
fn results_do_not_depend_on_threads_or_on_the_documents_beside() {
    let (dim, n) = (70, 130);
    let [weight, bias, queries, hidden] =
        [dim * n, dim, 9 * dim, 300 * n].map(|len| random(len, len as u64));
    let weight = Tokens::padded(&weight, 1, dim, n).unwrap();
    let bias = Tokens::padded(&bias, 1, 1, dim).unwrap();
    let projection = Projection::new(&weight).unwrap().bias(&bias).unwrap().normalize(true);
    let queries = Tokens::padded(&queries, 3, 3, dim).unwrap();
    let hidden = Tokens::packed(&hidden, n, &[0, 1, 70, 71, 300]).unwrap();
    let (device, cross) = (Device::cpu(), Pairing::cross());
    let on = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let scores =
                device.score_projected_for_training(&queries, &hidden, &projection, &cross);
            let scores = scores.unwrap();
            let grad = random(12, 5);
            let with_grad = scores.with_grad(&grad);
            let found = device.backward_projected(&queries, &hidden, &projection, with_grad);
            (scores.scores().clone(), found.unwrap())
        })
    };
    let one = on(1);
    for n_threads in [2, 3] {
        assert!(on(n_threads) == one, "{n_threads} threads");
    }
    // Tokens that are kept give the same bits, and so do documents that are scored one by one.
    let options = ScoreOptions::default().winners(true);
    let kept = device.project(&hidden, &projection).unwrap();
    let scores = device.score_with(&queries, &kept, &cross, &options).unwrap();
    assert_eq!(scores, one.0);
    for document in 0..4 {
        let alone = hidden.items(document..document + 1).unwrap();
        let found = device.score_projected(&queries, &alone, &projection, &cross, &options);
        let column: Vec<f32> = scores.rows().map(|row| row[document]).collect();
        assert_eq!(found.unwrap().values(), column);
    }
}
