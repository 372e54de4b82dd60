//! Gradients to the bit: of cases small enough to compute by hand, of repeats, and of calls in
//! parts.

use half::f16;
use maxsim::format::ElementType;
use maxsim::training::{BackwardOptions, BackwardStrategy, Gradients};
use maxsim::{Device, Pairing, Tokens};
use maxsim_tests::case::{Case, Layout, Pairs};
use maxsim_tests::engines::Problem;
use maxsim_tests::gradients::{
    self, STRATEGIES, all_devices, backward, grad_scores, same_bits, train,
};

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
        let atomic = device.backward(queries, documents, scores.with_grad(grad_scores), &atomic);
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
            .backward(queries, documents, scores.with_grad(grad_scores), &options)
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
            .backward_into(&queries, &documents, scores.with_grad(grads), &options, &mut parts)
            .expect("gradients");
    }
    assert!(same_bits(&parts, &whole));

    let scores = device.score_for_training(&queries, &documents, &pairing).expect("scores");
    let mut sum = Gradients {
        queries: vec![64.0; whole.queries.len()],
        documents: vec![-0.0; whole.documents.len()],
        ..Gradients::default()
    };
    device
        .backward_into(&queries, &documents, scores.with_grad(&grad_scores), &options, &mut sum)
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
            .backward(&queries, &changed, scores.with_grad(&[1.0]), &options)
            .expect("gradients");
        assert_bits(&found.queries, &of_query);
        assert_bits(&found.documents, &of_document);
    }
}
