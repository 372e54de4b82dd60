//! Residual-compressed tokens that are refused, and what the messages say.

use half::f16;
use maxsim::residual::{
    Arithmetic, BitOrder, Centroids, Codes, EncodeOptions, ResidualCodec, ResidualTokens,
    TrainOptions,
};
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientType, TrainingScores};
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, TokenLayout, Tokens};

fn packed(rows: &[f32], dim: usize) -> Tokens<'_, f32> {
    Tokens::packed(rows, dim, &[0, (rows.len() / dim) as i64]).unwrap()
}

/// A codec of 2 bits, dim 3 and 2 centroids, and tokens of 4 rows.
fn small() -> (ResidualCodec<'static>, TokenLayout) {
    let centroids = Centroids::F32(vec![0.0; 6].into());
    let codec = ResidualCodec::new(2, 3, centroids, &[0.0; 4], true).unwrap();
    (codec, TokenLayout::packed(4, 3, &[0i64, 4]).unwrap())
}

/// Asserts that a call fails, and that its message names the argument and says what was expected
/// and found.
fn assert_refused<T>(result: Result<T>, argument: &str, parts: &[&str]) {
    let Err(error) = result else { panic!("{argument} was taken") };
    let message = error.to_string();
    assert!(message.starts_with(argument), "{message}");
    parts.iter().for_each(|part| assert!(message.contains(part), "no '{part}': {message}"));
}

/// Gradients that there are none of in stream order.
#[test]
fn prepared_gradients_are_of_queries_in_f32() {
    let (codec, layout) = small();
    let residuals = vec![0u8; 4];
    let tokens =
        ResidualTokens::new(codec.into(), vec![0i32; 4], residuals, BitOrder::Colbert, layout)
            .unwrap();
    let device = Device::cpu();
    let documents = device.upload_residual::<f16>(&tokens).unwrap();
    let queries = packed(&[1.0; 6], 3).convert::<f16>().unwrap().0;
    let queries = device.upload(&queries).unwrap();
    let options = ScoreOptions::default().winners(true);
    let work = device.prepare(&queries, &documents, &Pairing::cross(), &options).unwrap();
    let options = BackwardOptions::default();
    let whole = device.prepare_backward(&work, &options, GradientType::F32).unwrap();
    let gradients = whole.new_gradients().unwrap().read().unwrap();
    assert_eq!((gradients.queries.len(), gradients.documents.len()), (6, 0));
    let narrow = device.prepare_backward(&work, &options, GradientType::Tokens);
    assert_refused(narrow, "not supported", &["GradientType::F32"]);
    let codes = device.prepare_backward_from_codes(&work, &options, GradientType::F32);
    assert_refused(codes, "not supported", &["compressed tokens have none"]);
    let other = BackwardOptions::new(BackwardStrategy::Recompute);
    let other = device.prepare_backward(&work, &other, GradientType::F32);
    assert_refused(other, "not supported", &["BackwardStrategy::Recompute"]);
}

#[test]
fn codecs_that_cannot_be_are_refused() {
    let codec = |nbits: u32, dim: usize, n: usize, weights: usize| {
        ResidualCodec::new(
            nbits,
            dim,
            Centroids::F32(vec![0.0; n].into()),
            &vec![0.0; weights],
            true,
        )
    };
    assert!(codec(1, 1, 1, 2).is_ok());
    for nbits in [0, 3, 5, 6, 7, 9, 16, u32::MAX] {
        assert_refused(codec(nbits, 4, 4, 4), "nbits", &["1, 2, 4 or 8", &nbits.to_string()]);
    }
    assert_refused(codec(2, 0, 4, 4), "dim", &["1 to 4096", "0"]);
    assert_refused(codec(2, 4097, 4097, 4), "dim", &["1 to 4096", "4097"]);
    assert_refused(codec(2, 4, 0, 4), "centroids", &["rows of 4", "0 elements"]);
    assert_refused(codec(2, 4, 6, 4), "centroids", &["rows of 4", "6 elements"]);
    assert_refused(codec(2, 4, 8, 5), "bucket_weights", &["4 entries", "5 entries"]);
    let cutoffs = |values: &[f32]| small().0.with_cutoffs(values);
    assert!(cutoffs(&[0.0, 0.0, 1.0]).is_ok());
    assert_refused(cutoffs(&[0.0, 1.0]), "bucket_cutoffs", &["3 entries", "2 entries"]);
    assert_refused(
        cutoffs(&[0.0, 2.0, 1.0]),
        "bucket_cutoffs",
        &["in rising order", "2 at 1 before 1"],
    );
    assert_refused(cutoffs(&[0.0, f32::NAN, 1.0]), "bucket_cutoffs", &["NaN at 1"]);
}

#[test]
fn tokens_that_cannot_be_are_refused() {
    let make = |codes: Codes<'static>, n_bytes: usize, layout: TokenLayout| {
        ResidualTokens::new(small().0.into(), codes, vec![0; n_bytes], BitOrder::Colbert, layout)
    };
    let layout = || small().1;
    assert!(make(vec![0i32, 1, 1, 0].into(), 4, layout()).is_ok());
    assert!(make(vec![0i64, 1, 1, 0].into(), 4, layout()).is_ok());
    assert_refused(make(vec![0i32; 3].into(), 4, layout()), "codes", &["4 entries", "3 entries"]);
    assert_refused(make(vec![0i32; 4].into(), 5, layout()), "residuals", &["4 bytes", "5 bytes"]);
    assert_refused(make(vec![0, 1, 2, 0i32].into(), 4, layout()), "codes[2]", &["id 2", "2 items"]);
    assert_refused(make(vec![0, 1, 1, -1i32].into(), 4, layout()), "codes[3]", &["id -1"]);
    assert_refused(
        make(vec![0, 1 << 32, 1, 0i64].into(), 4, layout()),
        "codes[1]",
        &["4294967296"],
    );
    let other = TokenLayout::packed(4, 2, &[0i64, 4]).unwrap();
    assert_refused(make(vec![0i32; 4].into(), 4, other), "layout", &["of 3 elements", "of 2"]);
    let masked = layout().with_mask(&[1; 4]).unwrap();
    assert_refused(make(vec![0i32; 4].into(), 4, masked), "layout", &["without a mask"]);
    let tokens = make(vec![0i32; 4].into(), 4, layout()).unwrap();
    assert_refused(tokens.clone().with_mask(vec![1; 3]), "mask", &["4 entries", "3 entries"]);
    assert_refused(tokens.backward(&[0.0; 11]), "grad_tokens", &["12 elements", "11 elements"]);
}

#[test]
fn gradients_of_other_scores_are_refused() {
    let device = Device::cpu();
    let (codec, layout) = small();
    let (codes, bytes) = (vec![0i32, 1, 1, 0], vec![0; 4]);
    let tokens =
        ResidualTokens::new(codec.into(), codes, bytes, BitOrder::Colbert, layout).unwrap();
    let documents = device.upload_residual::<f32>(&tokens).unwrap();
    let queries = Tokens::padded(&[0.5f32; 6], 2, 1, 3).unwrap();
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let scores = device.score_residual_for_training(&queries, &documents, &cross, &options);
    let scores = scores.unwrap();
    let backward = |queries, scores: &TrainingScores, grad_scores: &[f32]| {
        device.backward_residual(queries, &documents, scores.with_grad(grad_scores))
    };
    assert!(backward(&queries, &scores, &[1.0, 0.0]).is_ok());
    let wrong = backward(&queries, &scores, &[1.0]);
    assert_refused(wrong, "grad_scores", &["2 entries", "1 entries"]);
    let one = Tokens::padded(&[0.5f32; 3], 1, 1, 3).unwrap();
    assert_refused(backward(&one, &scores, &[1.0]), "queries", &["training scores"]);
    // The pairing is that of the scores.
    let pairs = Pairing::pairs(&[1i64], &[0i64]).unwrap();
    let of_pairs = device.score_residual_for_training(&queries, &documents, &pairs, &options);
    let of_pairs = of_pairs.unwrap();
    assert_refused(backward(&queries, &of_pairs, &[0.0; 2]), "grad_scores", &["1 entries"]);
    let found = backward(&queries, &of_pairs, &[1.0]).unwrap();
    let of_both = backward(&queries, &scores, &[1.0, 1.0]).unwrap();
    assert_ne!(found.tables.centroids, of_both.tables.centroids);
    // Scores of plain documents in the same layout, without winners or normalised.
    let plain = Tokens::packed(&[0.5f32; 12], 3, &[0i64, 4]).unwrap();
    let none = device.score_for_recompute(&queries, &plain, &cross, &options).unwrap();
    let expected = "score_residual_for_training";
    let wrong = backward(&queries, &none, &[0.0; 2]);
    assert_refused(wrong, "scores", &[expected, "without winners"]);
    let options = options.clone().normalize(true);
    let normalized = device.score_for_training_with(&queries, &plain, &cross, &options).unwrap();
    let wrong = backward(&queries, &normalized, &[0.0; 2]);
    assert_refused(wrong, "scores", &[expected, "normalises"]);
    // Compressed rows are normalised where the codec says so.
    let wrong = device.score_residual_for_training(&queries, &documents, &cross, &options);
    assert!(matches!(wrong, Err(Error::Unsupported { .. })), "{wrong:?}");
    for other in maxsim_tests::engines::cuda_devices() {
        let wrong = other.backward_residual(&queries, &documents, scores.with_grad(&[0.0; 2]));
        assert!(matches!(wrong, Err(Error::WrongDevice { argument: "documents", .. })));
    }
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    let (codec, _) = small();
    let rows = [1.0f32, f32::INFINITY, 0.0, 0.5, 0.5, 0.5];
    let options = EncodeOptions::default();
    let encode = |codec: &ResidualCodec<'static>, rows: &[f32], dim: usize| {
        ResidualTokens::encode(codec.clone().into(), &packed(rows, dim), &options).map(|_| ())
    };
    assert_refused(encode(&codec, &rows, 3), "codec", &["bucket_cutoffs", "none"]);
    let codec = codec.with_cutoffs(&[0.0; 3]).unwrap();
    assert!(encode(&codec, &rows[3..], 3).is_ok());
    assert!(encode(&codec, &[], 3).is_ok());
    assert_refused(encode(&codec, &rows, 3), "tokens", &["finite", "row 0"]);
    assert_refused(encode(&codec, &rows[..2], 2), "tokens", &["3 elements", "2"]);
    let rounded = options.arithmetic(Arithmetic::F16);
    let large = ResidualTokens::encode(codec.into(), &packed(&[7e4, 0.0, 0.0], 3), &rounded);
    assert_refused(large, "tokens", &["finite in f16", "row 0"]);

    let train = |rows: &[f32], options: TrainOptions| {
        ResidualCodec::train(&packed(rows, 3), &options).map(|_| ())
    };
    let usual = TrainOptions::default();
    assert!(train(&rows[3..], usual).is_ok());
    assert_refused(train(&[], usual), "tokens", &["one or more", "none"]);
    assert_refused(train(&rows, usual), "tokens", &["finite", "row 0"]);
    assert_refused(train(&rows[3..], usual.nbits(3)), "nbits", &["3"]);
    for n in [0, 2] {
        let options = usual.n_centroids(n);
        assert_refused(train(&rows[3..], options), "n_centroids", &["1 to 1", &n.to_string()]);
    }
    // Centroids are f16 by default.
    let large = [7e4f32, 0.0, 0.0];
    let long = usual.normalize(false);
    assert_refused(train(&large, long), "centroids", &["finite", "inf in row 0", "F32"]);
    let wide = long.centroid_element(maxsim::format::ElementType::F32);
    assert!(train(&large, wide).is_ok());
    let fit =
        ResidualCodec::fit(Centroids::F32(vec![0.0; 4].into()), &packed(&rows[3..], 3), &usual);
    assert_refused(fit, "centroids", &["rows of 3", "4 elements"]);
    assert!(matches!(train(&[], usual), Err(Error::Shape { argument: "tokens", .. })));
}
