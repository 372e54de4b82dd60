//! Gradients: the oracle is the derivative of the scores, and every strategy agrees with it.

use half::f16;
use maxsim::format::ElementType;
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientType, Gradients};
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, Tokens};
use maxsim_tests::case::{Case, Data, Layout, Pairs};
use maxsim_tests::engines::Problem;
use maxsim_tests::gradients::{
    self, STRATEGIES, all_devices, backward, check_case, grad_scores, same_bits, train,
};
use maxsim_tests::oracle::{Answer, maxsim};
use maxsim_tests::strategy::{EDGE_DIMS, cases};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

/// The same cases for every element type. Their seeds differ, so that they take turns in what is
/// checked of some of them.
fn run(name: &'static str, mut cases: Vec<Case>) {
    (0..).zip(&mut cases).for_each(|(i, case)| case.seed += i);
    let of = |element| cases.iter().map(move |case| Case { element, ..case.clone() });
    Suite::run(name, ElementType::ALL.into_iter().flat_map(of), check_case);
}

fn answers(data: &Data) -> Vec<Answer> {
    data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect()
}

/// Σ g · score, in f64.
fn loss(answers: &[Answer], grad_scores: &[f32]) -> f64 {
    answers.iter().zip(grad_scores).map(|(a, &g)| f64::from(g) * a.score.exact).sum()
}

/// The oracle of gradients against central differences of `step` of the oracle of scores, for rows
/// `scale` times as long as generated. Says how many elements were compared, and how many were not
/// since a winner changed in between.
fn compare_with_differences(
    normalize: bool,
    scale: f32,
    step: f32,
    allowed: impl Fn(f64) -> f64,
) -> (usize, usize) {
    let (mut n_near_ties, mut n_checked) = (0, 0);
    for (i, case) in Case::new(3, &[2, 0, 3], &[2, 3, 0, 1])
        .in_every_layout_and_pairing()
        .into_iter()
        .enumerate()
    {
        let mut data = Case { seed: i as u64, ..case }.data();
        let mut change = |side: usize, change: &dyn Fn(&mut [f32])| {
            let matrix = [&mut data.queries, &mut data.documents];
            let [queries, documents] = matrix;
            let matrix = if side == 0 { queries } else { documents };
            change(&mut matrix.values);
            if normalize {
                *matrix = matrix.clone().normalized();
            }
            data.clone()
        };
        let scaled = |values: &mut [f32]| values.iter_mut().for_each(|x| *x *= scale);
        change(0, &scaled);
        let data = change(1, &scaled);
        let grad_scores = grad_scores(&data, i as u64);
        let winners = gradients::winners(&answers(&data));
        let expected = gradients::gradients(&data, &winners, &grad_scores);
        for side in 0..2 {
            let sums = [&expected.queries, &expected.documents][side];
            for (element, sum) in sums.iter().enumerate() {
                let middle = [&data.queries, &data.documents][side].values[element];
                let mut at = |x: f32| {
                    let answers = answers(&change(side, &|values| values[element] = x));
                    let same = gradients::winners(&answers) == winners;
                    (f64::from(x), loss(&answers, &grad_scores), same)
                };
                let ((x0, loss0, same0), (x1, loss1, same1)) =
                    (at(middle - step), at(middle + step));
                at(middle);
                if !(same0 && same1) {
                    n_near_ties += 1;
                    continue;
                }
                let difference = (loss1 - loss0) / (x1 - x0);
                assert!(
                    (difference - sum.exact).abs() <= allowed(sum.exact),
                    "case {i}, side {side}, element {element}: {difference}, not {sum:?}"
                );
                n_checked += 1;
            }
        }
    }
    (n_checked, n_near_ties)
}

/// As long as no winner changes, the loss is linear in each single element, so that the central
/// difference is the derivative but for the f64 rounding of the two losses, about 2⁻⁵² / 2⁻¹¹ of
/// them: far below the 10⁻⁹ allowed.
#[test]
fn oracle_is_the_derivative_of_the_scores() {
    let (n_checked, n_near_ties) = compare_with_differences(false, 1.0, 2f32.powi(-12), |_| 1e-9);
    assert!(n_checked > 10_000 && n_near_ties * 50 < n_checked, "{n_checked} and {n_near_ties}");
}

/// Rows of length 4: the difference errs by a sixth of the third derivative times 2⁻²⁴, of losses
/// that are sums of a few cosines. And rows of length 2⁻²⁴, which are all multiplied by 10⁶, where
/// the loss is linear again.
#[test]
fn oracle_is_the_derivative_of_normalized_scores() {
    for (scale, step, allowed) in
        [(4.0, 2f32.powi(-12), 1e-8), (2f32.powi(-24), 2f32.powi(-36), 1e-6)]
    {
        let allowed = |exact: f64| allowed * exact.abs().max(1.0);
        let (n_checked, n_near_ties) = compare_with_differences(true, scale, step, allowed);
        assert!(
            n_checked > 10_000 && n_near_ties * 50 < n_checked,
            "{n_checked} and {n_near_ties}"
        );
    }
}

#[test]
fn random_f16() {
    Suite::run_random("gradients_f16", || cases(ElementType::F16), check_case);
}

#[test]
fn random_bf16() {
    Suite::run_random("gradients_bf16", || cases(ElementType::Bf16), check_case);
}

#[test]
fn random_f32() {
    Suite::run_random("gradients_f32", || cases(ElementType::F32), check_case);
}

#[test]
fn pairings_and_layouts() {
    let mut case = Case::new(32, &[5, 0, 17, 1], &[16, 33, 0, 1, 9]);
    (case.values, case.poison) = (Values::Integers, true);
    run("gradients_pairings_and_layouts", case.in_every_layout_and_pairing());
}

/// Rows that are normalised, of lengths that differ and of none, with infinities and NaNs.
#[test]
fn normalized() {
    let case = Case::new(32, &[5, 0, 17, 1], &[16, 33, 0, 1, 9]);
    let mut cases: Vec<Case> = case.in_every_layout_and_pairing().into_iter().step_by(3).collect();
    cases.extend(EDGE_DIMS.into_iter().map(|dim| Case::new(dim, &[17, 3], &[65, 1, 16])));
    cases.extend([8, 128].map(|dim| Case::new(dim, &[130; 9], &[300, 0, 7, 1, 512])));
    let values = Values::ALL.into_iter().cycle();
    for (case, values) in cases.iter_mut().zip(values) {
        (case.normalize, case.values, case.poison) = (true, values, true);
    }
    run("gradients_normalized", cases);
}

#[test]
fn dims() {
    let shape = |dim| Case::new(dim, &[17, 3], &[65, 1, 16]);
    run("gradients_dims", EDGE_DIMS.into_iter().map(shape).collect());
}

#[test]
fn nothing_there() {
    let mut cases = Case::without_tokens(&Pairs::ALL);
    cases.extend(Case::all_masked());
    run("gradients_nothing_there", cases);
}

/// More winners of one document, and of one query, than are sorted at a time, and rows that
/// tens of thousands of query tokens chose.
#[test]
fn many_winners() {
    let many = vec![4; 33_000];
    let mut cases = Vec::new();
    for values in [Values::Integers, Values::Unit] {
        let case = Case { values, ..Case::new(2, &many, &[3]) };
        cases.push(Case { values, ..Case::new(2, &[4], &many) });
        // All items lie in one run of rows.
        let mut scattered = case.clone();
        scattered.queries.layout = Layout::Scattered;
        cases.extend([case, scattered]);
    }
    // A query longer than that.
    cases.push(Case::new(1, &[140_000, 3], &[1, 2]));
    // A document whose winners take four bytes on a GPU.
    cases.push(Case::new(8, &[9, 3], &[65_600]));
    run("gradients_many_winners", cases);
}

/// By every strategy of every device, which all give the same bits for sums that are exact.
fn all_gradients(
    queries: &Tokens<'_, f32>,
    documents: &Tokens<'_, f32>,
    pairing: &Pairing,
    grad_scores: &[f32],
) -> Gradients {
    let mut devices = all_devices().into_iter();
    let of = |device: &Device| gradients_on(device, queries, documents, pairing, grad_scores);
    let first = of(&devices.next().expect("a device"));
    let bits = |values: &[f32]| -> Vec<u32> {
        // One NaN is as good as another.
        values.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }.to_bits()).collect()
    };
    for device in devices {
        let scores = device.score_for_training(queries, documents, pairing).expect("scores");
        let atomic = BackwardOptions::new(BackwardStrategy::Atomic);
        let atomic = device.backward(queries, documents, pairing, &scores, grad_scores, &atomic);
        for other in [of(&device), atomic.expect("gradients")] {
            assert_eq!(bits(&other.queries), bits(&first.queries), "{device}");
            assert_eq!(bits(&other.documents), bits(&first.documents), "{device}");
        }
    }
    first
}

/// By every strategy of a device, which all give the same bits.
fn gradients_on(
    device: &Device,
    queries: &Tokens<'_, f32>,
    documents: &Tokens<'_, f32>,
    pairing: &Pairing,
    grad_scores: &[f32],
) -> Gradients {
    let scores = device.score_for_training(queries, documents, pairing).expect("scores");
    let mut results = STRATEGIES.into_iter().map(|strategy| {
        let options = BackwardOptions::new(strategy);
        device
            .backward(queries, documents, pairing, &scores, grad_scores, &options)
            .expect("gradients")
    });
    let first = results.next().expect("a strategy");
    assert!(results.all(|other| same_bits(&first, &other)));
    first
}

/// -0 is no 0 here.
fn assert_bits(found: &[f32], expected: &[f32]) {
    let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
    assert_eq!(bits(found), bits(expected), "{found:?}, not {expected:?}");
}

#[test]
fn ties_go_to_the_lowest_token() {
    let queries = Tokens::padded(&[1.0f32, 2.0], 1, 1, 2).expect("queries");
    // Identical rows, then equal similarities of different rows: +0 and -0.
    let rows = [0.0f32, 0.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0];
    let documents = Tokens::padded(&rows, 1, 4, 2).expect("documents");
    let found = all_gradients(&queries, &documents, &Pairing::cross(), &[2.0]);
    assert_bits(&found.queries, &[6.0, 2.0]);
    assert_bits(&found.documents, &[0.0, 0.0, 2.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    let documents = Tokens::padded(&[-0.0f32, -0.0, 0.0, 0.0], 1, 2, 2).expect("documents");
    let found = all_gradients(&queries, &documents, &Pairing::cross(), &[2.0]);
    assert_bits(&found.documents, &[2.0, 4.0, 0.0, 0.0]);
}

#[test]
fn one_row_that_every_token_chooses() {
    // Documents 0 and 1 share their last row, which beats all others.
    let queries = Tokens::padded(&[1.0f32; 100], 10, 5, 2).expect("queries");
    let rows = [-1.0f32, 0.0, 0.0, 0.5, 4.0, 4.0, 9.0, 9.0];
    let documents = Tokens::scattered(&rows, 2, &[0i64, 1], &[3, 2]).expect("documents");
    let grad_scores: Vec<f32> = (0..20).map(|p| if p % 2 == 0 { 1.0 } else { 3.0 }).collect();
    let found = all_gradients(&queries, &documents, &Pairing::cross(), &grad_scores);
    assert_bits(&found.queries, &[16.0; 100]);
    assert_bits(&found.documents, &[0.0, 0.0, 0.0, 0.0, 200.0, 200.0, 0.0, 0.0]);
}

#[test]
fn repeated_pairs_count_each_time() {
    let queries = Tokens::padded(&[1.0f32, 2.0], 2, 1, 1).expect("queries");
    let documents = Tokens::padded(&[3.0f32, 5.0], 2, 1, 1).expect("documents");
    let pairing = Pairing::pairs(&[1i64, 0, 1, 1], &[0i64, 1, 0, 0]).expect("pairs");
    let found = all_gradients(&queries, &documents, &pairing, &[1.0, 10.0, 100.0, 0.5]);
    assert_bits(&found.queries, &[50.0, 304.5]);
    assert_bits(&found.documents, &[203.0, 10.0]);
    let pairing = Pairing::candidates(&[0i64, 0, 1, 1], 2).expect("candidates");
    let found = all_gradients(&queries, &documents, &pairing, &[1.0, 10.0, 100.0, 0.5]);
    assert_bits(&found.queries, &[33.0, 502.5]);
    assert_bits(&found.documents, &[11.0, 201.0]);
}

#[test]
fn masked_and_foreign_rows_get_zeros_whatever_they_hold() {
    const NAN: f32 = f32::NAN;
    let queries = [NAN, 1.0, NAN, 2.0, f32::INFINITY];
    // Row 0 lies before the query, rows 2 and 4 are masked.
    let queries = Tokens::packed(&queries, 1, &[1i64, 5]).expect("queries");
    let queries = queries.with_mask(&[1u8, 1, 0, 9, 0][..]).expect("mask");
    let documents = Tokens::scattered(&[NAN, -3.0f32, NAN, -2.0, NAN], 1, &[1i64, 0], &[3, 1]);
    let documents = documents.expect("documents").with_mask(&[0u8, 1, 0, 1, 1][..]).expect("mask");
    // The second document has no valid token: its gradient, NaN even, goes nowhere.
    let found = all_gradients(&queries, &documents, &Pairing::cross(), &[1.0, NAN]);
    assert_bits(&found.queries, &[0.0, -2.0, 0.0, -2.0, 0.0]);
    assert_bits(&found.documents, &[0.0, 0.0, 0.0, 3.0, 0.0]);
}

#[test]
fn zero_times_a_finite_row_is_zero_and_nan_shows_where_it_wins() {
    let queries = Tokens::padded(&[1.0f32, 2.0], 2, 1, 1).expect("queries");
    let documents = Tokens::packed(&[3.0f32, f32::NAN, 7.0], 1, &[0i64, 1, 3]).expect("documents");
    let found = all_gradients(&queries, &documents, &Pairing::cross(), &[0.0, 0.0, 1.0, 0.0]);
    // 0 · NaN is NaN in the queries; the NaN token wins, and gets 0 · 1 + 0 · 2.
    assert!(found.queries.iter().all(|x| x.is_nan()), "{found:?}");
    assert_bits(&found.documents, &[2.0, 0.0, 0.0]);
    let found = all_gradients(&queries, &documents, &Pairing::cross(), &[1.0, 5.0, 1.0, 0.0]);
    assert_bits(&found.documents, &[3.0, 5.0, 0.0]);
    let pairing = Pairing::pairs(&[0i64, 1], &[0i64, 0]).expect("pairs");
    let found = all_gradients(&queries, &documents, &pairing, &[0.0, 0.0]);
    assert_bits(&found.queries, &[0.0, 0.0]);
    assert_bits(&found.documents, &[0.0, 0.0, 0.0]);
}

/// Values and gradients that round at every step, in rows that items share.
fn rounding_case(pairs: Pairs) -> Case {
    let mut case = Case::new(100, &[9, 30, 1, 17], &[40, 3, 0, 64, 20]);
    case.pairs = pairs;
    case.queries.layout = Layout::Scattered;
    case.documents.layout = Layout::Scattered;
    case.documents.valid_percent = Some(70);
    case
}

#[test]
fn repeats_give_the_same_bits() {
    for pairs in [Pairs::Cross, Pairs::Own { k: 2 }, Pairs::List { n: 60 }] {
        let case = rounding_case(pairs);
        let case = Case { element: ElementType::F16, ..case };
        let problem = Problem::<f16>::new(&case);
        let grad_scores = grad_scores(&problem.data, 7);
        for device in all_devices() {
            let mut first = None;
            for _ in 0..20 {
                let scores = train(&problem, &device).expect("scores");
                let found =
                    backward(&problem, &device, &scores, &grad_scores, BackwardStrategy::Auto)
                        .expect("gradients");
                assert!(same_bits(first.get_or_insert_with(|| found.clone()), &found));
            }
        }
    }
}

/// Adding continues where the last call ended: a list of pairs in two parts gives the bits of the
/// whole list, and what nothing is added to stays.
#[test]
fn gradients_are_added_to_what_is_there() {
    let case = rounding_case(Pairs::List { n: 60 });
    let problem = Problem::<f32>::new(&case);
    let (queries, documents, pairing) = problem.inputs().expect("inputs");
    let grad_scores = grad_scores(&problem.data, 8);
    let device = Device::cpu();
    let options = BackwardOptions::default();
    let whole = gradients_on(&device, &queries, &documents, &pairing, &grad_scores);

    let mut parts =
        Gradients::zeros(queries.layout(), documents.layout()).expect("room for gradients");
    for part in [0..23, 23..60] {
        let pairs = &problem.data.pairs[part.clone()];
        let query_ids: Vec<i64> = pairs.iter().map(|pair| pair.0 as i64).collect();
        let document_ids: Vec<i64> = pairs.iter().map(|pair| pair.1 as i64).collect();
        let pairing = Pairing::pairs(&query_ids, &document_ids).expect("pairs");
        let scores = device.score_for_training(&queries, &documents, &pairing).expect("scores");
        let grads = &grad_scores[part];
        device
            .backward_into(&queries, &documents, &pairing, &scores, grads, &options, &mut parts)
            .expect("gradients");
    }
    assert!(same_bits(&parts, &whole));

    let scores = device.score_for_training(&queries, &documents, &pairing).expect("scores");
    let mut sum = Gradients {
        queries: vec![64.0; whole.queries.len()],
        documents: vec![-0.0; whole.documents.len()],
    };
    device
        .backward_into(&queries, &documents, &pairing, &scores, &grad_scores, &options, &mut sum)
        .expect("gradients");
    for (&sum, &of_zero) in sum.queries.iter().zip(&whole.queries) {
        assert!((sum - 64.0 - of_zero).abs() <= 1e-3, "{sum}, not 64 + {of_zero}");
    }
    let expected = gradients::gradients(
        &problem.data,
        scores.scores().winners().expect("winners"),
        &grad_scores,
    );
    let mut n_untouched = 0;
    for (sum, expected) in sum.documents.iter().zip(&expected.documents) {
        if expected.n_terms == 0 {
            assert_eq!(sum.to_bits(), (-0.0f32).to_bits());
            n_untouched += 1;
        }
    }
    assert!(n_untouched > 0);
}

/// The saved winners are what [`BackwardStrategy::Deterministic`] reads, and what
/// [`BackwardStrategy::Recompute`] does not: it shows where the tokens have changed since they were
/// scored.
#[test]
fn winners_are_saved_or_found_again() {
    let device = Device::cpu();
    let cross = Pairing::cross();
    let queries = Tokens::padded(&[1.0f32], 1, 1, 1).expect("queries");
    let scored = Tokens::padded(&[2.0f32, 1.0], 1, 2, 1).expect("documents");
    let changed = Tokens::padded(&[2.0f32, 3.0], 1, 2, 1).expect("documents");
    let scores = device.score_for_training(&queries, &scored, &cross).expect("scores");
    for (strategy, of_query, of_document) in [
        (BackwardStrategy::Auto, [2.0], [1.0, 0.0]),
        (BackwardStrategy::Deterministic, [2.0], [1.0, 0.0]),
        (BackwardStrategy::Recompute, [3.0], [0.0, 1.0]),
    ] {
        let options = BackwardOptions::new(strategy);
        let found = device
            .backward(&queries, &changed, &cross, &scores, &[1.0], &options)
            .expect("gradients");
        assert_bits(&found.queries, &of_query);
        assert_bits(&found.documents, &of_document);
    }
}

/// Asserts a [`Error::Shape`] with these fields.
fn assert_shape<T>(result: Result<T>, argument: &str, expected: &str, found: &str) {
    let error = result.map(|_| ()).expect_err("must be refused");
    let Error::Shape { argument: a, expected: e, found: f } = &error else { panic!("{error:?}") };
    assert_eq!((*a, e.as_str(), f.as_str()), (argument, expected, found));
}

#[test]
fn errors() {
    let device = Device::cpu();
    let data = [1.0f32; 12];
    let queries = Tokens::padded(&data, 2, 3, 2).expect("queries");
    let documents = Tokens::padded(&data, 3, 2, 2).expect("documents");
    let cross = Pairing::cross();
    let scores = device.score_for_training(&queries, &documents, &cross).expect("scores");
    let options = BackwardOptions::default();
    let one = |queries, documents, pairing: &Pairing, grads: &[f32]| {
        device.backward::<f32, f32>(queries, documents, pairing, &scores, grads, &options)
    };
    let grads = [1.0; 6];
    assert!(one(&queries, &documents, &cross, &grads).is_ok());

    for n in [0, 5, 7] {
        let found = format!("{n} entries");
        let result = one(&queries, &documents, &cross, &[1.0; 7][..n]);
        assert_shape(result, "grad_scores", "6 entries (one per score)", &found);
    }
    // Tokens and pairings that fit each other, but did not give these scores.
    let shorter = Tokens::padded(&data, 2, 3, 2).expect("queries").with_lengths(&[3, 2]);
    let shorter = shorter.expect("lengths");
    let others = Tokens::padded(&data, 6, 1, 2).expect("documents");
    let own = Pairing::own_candidates(3);
    let was = "training scores Cross { n_queries: 2, n_documents: 3 }";
    let cross_shape = "others, for scores Cross { n_queries: 2, n_documents: 3 }";
    assert_shape(
        one(&shorter, &documents, &cross, &grads),
        "queries",
        &format!("the queries of the {was}"),
        cross_shape,
    );
    assert_shape(
        one(&queries, &others, &own, &grads),
        "documents",
        &format!("the documents of the {was}"),
        "others, for scores Candidates { n_queries: 2, k: 3 }",
    );
    let candidates = Pairing::candidates(&[0i64, 1, 2, 2, 1, 0], 3).expect("candidates");
    assert_shape(
        one(&queries, &documents, &candidates, &grads),
        "pairing",
        &format!("the pairing of the {was}"),
        "others, for scores Candidates { n_queries: 2, k: 3 }",
    );
    // What forward refuses.
    assert!(matches!(
        one(&queries, &documents, &Pairing::pairs(&[2i64], &[0i64]).expect("pairs"), &grads),
        Err(Error::Id { argument: "query_ids", index: 0, found: 2, n_items: 2 })
    ));
    assert!(device.score_for_training(&queries, &documents, &own).is_err());

    let unsaved = device
        .score_for_recompute(&queries, &documents, &cross, &ScoreOptions::default())
        .expect("scores");
    assert_eq!(unsaved.scores().values(), scores.scores().values());
    assert!(unsaved.scores().winners().is_none());
    assert_shape(
        device.backward(&queries, &documents, &cross, &unsaved, &grads, &options),
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
    device.prepare_backward(&work, &recompute, GradientType::F32).expect("gradients");

    let atomic = BackwardOptions::new(BackwardStrategy::Atomic);
    match device.backward(&queries, &documents, &cross, &scores, &grads, &atomic) {
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

    // Gradients of other matrices; they are left as they are.
    for (n_queries, n_documents, argument) in
        [(11, 12, "gradients.queries"), (12, 13, "gradients.documents")]
    {
        let mut gradients =
            Gradients { queries: vec![5.0; n_queries], documents: vec![5.0; n_documents] };
        let result = device.backward_into(
            &queries,
            &documents,
            &cross,
            &scores,
            &grads,
            &options,
            &mut gradients,
        );
        let found = if n_queries == 11 { "11 entries" } else { "13 entries" };
        assert_shape(result, argument, "12 entries (6 rows of 2)", found);
        assert!(gradients.queries.iter().chain(&gradients.documents).all(|&x| x == 5.0));
    }
}
