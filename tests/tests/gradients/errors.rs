//! Errors of gradients.

use maxsim::training::{
    BackwardOptions, BackwardStrategy, GradientType, Gradients, TrainingScores,
};
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, Tokens};

/// Asserts a [`Error::Shape`] with these fields.
fn assert_shape<T>(result: Result<T>, argument: &str, expected: &str, found: &str) {
    let error = result.map(|_| ()).expect_err("must be refused");
    let Error::Shape { argument: a, expected: e, found: f } = &error else { panic!("{error:?}") };
    assert_eq!((*a, e.as_str(), f.as_str()), (argument, expected, found));
}

/// Two queries of three tokens and three documents of two, of dim 2.
fn sides(data: &[f32; 12]) -> [Tokens<'_, f32>; 2] {
    let queries = Tokens::padded(data, 2, 3, 2).expect("queries");
    [queries, Tokens::padded(data, 3, 2, 2).expect("documents")]
}

#[test]
fn errors() {
    let device = Device::cpu();
    let data = [1.0f32; 12];
    let [queries, documents] = sides(&data);
    let scores =
        device.score_for_training(&queries, &documents, &Pairing::cross()).expect("scores");
    calls_of_other_tokens(&device, &scores);
    calls_of_other_strategies(&device, &scores);
    gradients_of_other_matrices(&device, &scores);
}

/// Scores, tokens and pairings that do not belong together.
fn calls_of_other_tokens(device: &Device, scores: &TrainingScores) {
    let data = [1.0f32; 12];
    let [queries, documents] = sides(&data);
    let options = BackwardOptions::default();
    let one = |queries, documents, grads: &[f32]| {
        device.backward::<f32, f32>(queries, documents, scores.with_grad(grads), &options)
    };
    let grads = [1.0; 6];
    let right = one(&queries, &documents, &grads).expect("gradients");

    for n in [0, 5, 7] {
        let found = format!("{n} entries");
        let result = one(&queries, &documents, &[1.0; 7][..n]);
        assert_shape(result, "grad_scores", "6 entries (one per score)", &found);
    }
    // Tokens that did not give these scores.
    let shorter = Tokens::padded(&data, 2, 3, 2).expect("queries").with_lengths(&[3, 2]);
    let shorter = shorter.expect("lengths");
    let others = Tokens::padded(&data, 6, 1, 2).expect("documents");
    let was = "training scores Cross { n_queries: 2, n_documents: 3 }";
    assert_shape(
        one(&shorter, &documents, &grads),
        "queries",
        &format!("the queries of the {was}"),
        "others, 2 items in 6 rows of dim 2",
    );
    assert_shape(
        one(&queries, &others, &grads),
        "documents",
        &format!("the documents of the {was}"),
        "others, 6 items in 6 rows of dim 2",
    );
    // The pairing is that of the scores: as many gradients of other pairs are other gradients.
    let candidates = Pairing::candidates(&[0i64, 1, 1, 2, 1, 0], 3).expect("candidates");
    let of_candidates =
        device.score_for_training(&queries, &documents, &candidates).expect("scores");
    let found = device.backward(&queries, &documents, of_candidates.with_grad(&grads), &options);
    assert_ne!(found.expect("gradients").documents, right.documents);
    // What forward refuses.
    let pairs = Pairing::pairs(&[2i64], &[0i64]).expect("pairs");
    assert!(matches!(
        device.score_for_training(&queries, &documents, &pairs),
        Err(Error::Id { argument: "query_ids", index: 0, found: 2, n_items: 2 })
    ));
    let own = Pairing::own_candidates(3);
    assert!(device.score_for_training(&queries, &documents, &own).is_err());
}

/// What a strategy reads and was not saved, and what a device does not have.
fn calls_of_other_strategies(device: &Device, scores: &TrainingScores) {
    let data = [1.0f32; 12];
    let [queries, documents] = sides(&data);
    let cross = Pairing::cross();
    let (options, grads) = (BackwardOptions::default(), [1.0; 6]);
    let unsaved = device
        .score_for_recompute(&queries, &documents, &cross, &ScoreOptions::default())
        .expect("scores");
    assert_eq!(unsaved.scores().values(), scores.scores().values());
    assert!(unsaved.scores().winners().is_none());
    assert_shape(
        device.backward(&queries, &documents, unsaved.with_grad(&grads), &options),
        "scores",
        "scores of Device::score_for_training, or BackwardStrategy::Recompute",
        "scores without winners",
    );

    let [query_tokens, document_tokens] =
        [&queries, &documents].map(|tokens| device.upload(tokens).expect("tokens"));
    let work = device
        .prepare(&query_tokens, &document_tokens, &cross, &ScoreOptions::default())
        .expect("work");
    assert_shape(
        device.prepare_backward(&work, &options, GradientType::F32),
        "work",
        "work prepared with ScoreOptions::winners, or BackwardStrategy::Recompute",
        "work without winners",
    );
    let recompute = BackwardOptions::new(BackwardStrategy::Recompute);
    let _ = device.prepare_backward(&work, &recompute, GradientType::F32).expect("gradients");

    let atomic = BackwardOptions::new(BackwardStrategy::Atomic);
    match device.backward(&queries, &documents, scores.with_grad(&grads), &atomic) {
        Err(Error::Unsupported { what, why }) => {
            assert_eq!(what, "BackwardStrategy::Atomic on the CPU");
            assert!(why.contains("bits that vary from run to run"), "{why}");
            assert!(
                why.contains("BackwardStrategy::Deterministic or BackwardStrategy::Recompute"),
                "{why}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// Gradients of other matrices, which stay as they are.
fn gradients_of_other_matrices(device: &Device, scores: &TrainingScores) {
    let data = [1.0f32; 12];
    let [queries, documents] = sides(&data);
    let (options, grads) = (BackwardOptions::default(), [1.0; 6]);
    for (n_queries, n_documents, argument) in
        [(11, 12, "gradients.queries"), (12, 13, "gradients.documents")]
    {
        let mut gradients = Gradients {
            queries: vec![5.0; n_queries],
            documents: vec![5.0; n_documents],
            ..Gradients::default()
        };
        let result = device.backward_into(
            &queries,
            &documents,
            scores.with_grad(&grads),
            &options,
            &mut gradients,
        );
        let found = if n_queries == 11 { "11 entries" } else { "13 entries" };
        assert_shape(result, argument, "12 entries (6 rows of 2)", found);
        assert!(gradients.queries.iter().chain(&gradients.documents).all(|&x| x == 5.0));
    }
}
