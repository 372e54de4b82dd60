//! Gradients where the documents that were scored are saved as INT8 codes.

use maxsim::format::{ElementType, Int8, ScaleType, Scales};
use maxsim::stream::Queue;
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientType};
use maxsim::{Device, Error, Pairing, Result, ScoreOptions, Tokens};
use maxsim_tests::case::{Case, Pairs};
use maxsim_tests::engines::Problem;
use maxsim_tests::gradients::{Step, grad_scores, same_bits, train};
use maxsim_tests::saved::{SCALES, SavedStep, check_case};
use maxsim_tests::strategy::{EDGE_DIMS, cases};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::prelude::*;
use proptest::sample::select;

/// The same cases for every element type, of values that take turns.
fn run(name: &'static str, mut cases: Vec<Case>) {
    let values = Values::ALL.into_iter().cycle();
    for ((i, case), values) in (0..).zip(&mut cases).zip(values) {
        (case.seed, case.values, case.poison) = (case.seed + i, values, true);
        case.upload = [i % 3 == 0, i % 4 < 2];
    }
    let of = |element| cases.iter().map(move |case| Case { element, ..case.clone() });
    Suite::run(name, ElementType::ALL.into_iter().flat_map(of), check_case);
}

#[test]
fn random() {
    let any = || select(&ElementType::ALL).prop_flat_map(cases);
    Suite::run_random("saved_gradients", any, check_case);
}

#[test]
fn pairings_and_layouts() {
    let case = Case::new(33, &[5, 0, 17, 1], &[16, 33, 0, 1, 9]);
    run("saved_gradients_pairings_and_layouts", case.in_every_layout_and_pairing());
}

/// With documents that have one pair of few winners, and several.
#[test]
fn dims() {
    let shape = |dim| Case::new(dim, &[17, 3], &[65, 1, 16]);
    let own = |dim| Case { pairs: Pairs::Own { k: 3 }, ..shape(dim) };
    let dims = EDGE_DIMS.into_iter().chain([2, 3, 9, 4095]);
    run("saved_gradients_dims", dims.flat_map(|dim| [shape(dim), own(dim)]).collect());
}

#[test]
fn nothing_there() {
    let mut cases = Case::without_tokens(&Pairs::ALL);
    cases.extend(Case::all_masked());
    run("saved_gradients_nothing_there", cases);
}

/// So many winners that a GPU cuts them into several parts: of a document, and the pairs of few
/// query tokens, whose documents have few winners, too.
#[test]
fn many_winners() {
    let mut cases = vec![
        Case::new(24, &[130; 40], &[300, 0, 7, 1, 512]),
        Case::new(24, &[32], &[64; 700]),
        Case::new(300, &[7, 2], &[20; 900]),
    ];
    cases.push(Case { pairs: Pairs::Own { k: 400 }, ..Case::new(40, &[32, 9], &[30]) });
    // A document whose winners take four bytes on a GPU.
    cases.push(Case::new(8, &[9, 3], &[65_600]));
    run("saved_gradients_many_winners", cases);
}

/// -0 is no 0 here.
fn assert_bits(found: &[f32], expected: &[f32]) {
    let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
    assert_eq!(bits(found), bits(expected), "{found:?}, not {expected:?}");
}

/// Codes that stand for other rows than were scored show in the queries' gradients alone.
#[test]
fn queries_get_what_codes_stand_for_and_documents_what_queries_are() {
    for device in maxsim_tests::gradients::all_devices() {
        let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2).expect("queries");
        let rows = [2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0];
        let documents = Tokens::packed(&rows, 2, &[0i64, 1, 3]).expect("documents");
        let scales = Scales::F32(vec![0.5, 2.0, 0.25].into());
        let codes = Tokens::<Int8>::from_codes(
            &[8i8, -4, 127, -127, 1, 100],
            scales,
            documents.layout().clone(),
        );
        let codes = codes.expect("codes");
        let cross = Pairing::cross();
        let scores = device.score_for_training(&queries, &documents, &cross).expect("scores");
        assert_eq!(scores.scores().winners(), Some(&[0, 0, 0, 1][..]));
        let found = device
            .backward(&queries, &codes, scores.with_grad(&[1.0, 0.5]), &BackwardOptions::default())
            .expect("gradients");
        assert_bits(&found.queries, &[4.0 + 127.0, -2.0 - 127.0, 4.0 + 0.125, -2.0 + 12.5]);
        assert_bits(&found.documents, &[1.0, 1.0, 0.5, 0.0, 0.0, 0.5]);
    }
}

/// On the CPU, codes give the bits of the f32 rows that they stand for.
#[test]
fn codes_are_summed_as_the_rows_that_they_stand_for() {
    let device = Device::cpu();
    for (case, scales) in [Pairs::Cross, Pairs::List { n: 60 }].into_iter().zip(SCALES) {
        let case = Case { pairs: case, ..Case::new(100, &[9, 30, 1, 17], &[40, 3, 0, 64, 20]) };
        let problem = Problem::<f32>::new(&case);
        let scores = train(&problem, &device).expect("scores");
        let grads = grad_scores(&problem.data, 7);
        let (queries, documents, _) = problem.inputs().expect("inputs");
        let codes = documents.quantize::<Int8>(scales).expect("codes");
        let rows = codes.dequantize().expect("rows");
        let options = BackwardOptions::default();
        let from_codes =
            device.backward(&queries, &codes, scores.with_grad(&grads), &options).expect("sums");
        let from_rows =
            device.backward(&queries, &rows, scores.with_grad(&grads), &options).expect("sums");
        assert!(same_bits(&from_codes, &from_rows));
        // What is there is added to.
        let mut sum = from_codes.clone();
        device
            .backward_into(&queries, &codes, scores.with_grad(&grads), &options, &mut sum)
            .expect("sums");
        assert!(sum.queries.iter().zip(&from_codes.queries).any(|(two, one)| two != one));
    }
}

/// Asserts a [`Error::Shape`] with these fields.
fn assert_shape<T>(result: Result<T>, argument: &str, expected: &str, found: &str) {
    let error = result.map(|_| ()).expect_err("must be refused");
    let Error::Shape { argument: a, expected: e, found: f } = &error else { panic!("{error:?}") };
    assert_eq!((*a, e.as_str(), f.as_str()), (argument, expected, found));
}

/// Asserts an [`Error::Unsupported`] that says what to do instead.
fn assert_unsupported<T>(result: Result<T>, what: &str, instead: &str) {
    match result.map(|_| ()) {
        Err(Error::Unsupported { what: w, why }) => {
            assert!(w.contains(what), "{w}");
            assert!(why.contains(instead), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors() {
    for device in maxsim_tests::gradients::all_devices() {
        let data = [1.0f32; 12];
        let queries = Tokens::padded(&data, 2, 3, 2).expect("queries");
        let documents = Tokens::padded(&data, 3, 2, 2).expect("documents");
        let codes = documents.quantize::<Int8>(ScaleType::F16).expect("codes");
        let cross = Pairing::cross();
        let scores = device.score_for_training(&queries, &documents, &cross).expect("scores");
        let grads = [1.0; 6];
        let by = |strategy| {
            let options = BackwardOptions::new(strategy);
            device.backward(&queries, &codes, scores.with_grad(&grads), &options)
        };
        let _ = by(BackwardStrategy::Deterministic).expect("gradients");
        assert_unsupported(
            by(BackwardStrategy::Recompute),
            "documents saved as int8",
            "BackwardStrategy::Deterministic",
        );
        assert_unsupported(
            by(BackwardStrategy::Atomic),
            "BackwardStrategy::Atomic",
            "BackwardStrategy::Deterministic",
        );
        let options = ScoreOptions::default().normalize(true);
        let normalized =
            device.score_for_training_with(&queries, &documents, &cross, &options).expect("scores");
        let options = BackwardOptions::default();
        let result = device.backward(&queries, &codes, normalized.with_grad(&grads), &options);
        assert_unsupported(result, "normalised rows from documents saved as int8", "before");

        // Codes of other documents.
        let others = Tokens::padded(&data, 2, 3, 2).expect("documents");
        let others = others.quantize::<Int8>(ScaleType::F16).expect("codes");
        assert_shape(
            device.backward(&queries, &others, scores.with_grad(&grads), &options),
            "documents",
            "the documents of the training scores Cross { n_queries: 2, n_documents: 3 }",
            "others, 2 items in 6 rows of dim 2",
        );
        let unsaved = device
            .score_for_recompute(&queries, &documents, &cross, &ScoreOptions::default())
            .expect("scores");
        assert_shape(
            device.backward(&queries, &codes, unsaved.with_grad(&grads), &options),
            "scores",
            "scores of Device::score_for_training, or BackwardStrategy::Recompute",
            "scores without winners",
        );
    }
}

#[test]
fn errors_in_stream_order() {
    let options = BackwardOptions::default();
    for device in maxsim_tests::gradients::all_devices() {
        let case = Case::new(16, &[3, 2], &[4, 5]);
        let problem = Problem::<f32>::new(&case);
        let grads = grad_scores(&problem.data, 1);
        let new =
            || Step::new(&problem, &device, GradientType::F32, &options, &grads).expect("a step");
        let mut step = new();
        step.score().expect("scores");
        // A work of either kind takes the documents that it was prepared for.
        let codes = step.documents.quantize::<Int8>(ScaleType::F32).expect("codes");
        let Step { queries, work, scores, backward, grad_scores, gradients, stream, .. } =
            &mut step;
        assert_shape(
            stream.backward(queries, &codes, backward, scores.with_grad(grad_scores), gradients),
            "documents",
            "f32 tokens, as the work was prepared for",
            "int8 tokens",
        );
        for strategy in [BackwardStrategy::Recompute, BackwardStrategy::Atomic] {
            let options = BackwardOptions::new(strategy);
            let result = device.prepare_backward_from_codes(work, &options, GradientType::F32);
            assert_unsupported(result, "BackwardStrategy::", "BackwardStrategy::Deterministic");
        }
        let documents = new().documents;
        let mut saved = SavedStep::of(step, ScaleType::F16, GradientType::F32).expect("a step");
        saved.differentiate().expect("gradients");
        let before = saved.gradients.read().expect("gradients");
        let SavedStep { queries, scores, backward, grad_scores, gradients, stream, .. } =
            &mut saved;
        assert_shape(
            stream.backward(
                queries,
                &documents,
                backward,
                scores.with_grad(grad_scores),
                gradients,
            ),
            "documents",
            "int8 tokens, as the work was prepared for",
            "f32 tokens",
        );
        let others = Tokens::padded(&[1.0f32; 9 * 16], 3, 3, 16).expect("documents");
        let others = device.upload(&others).and_then(|d| d.quantize::<Int8>(ScaleType::F16));
        assert_shape(
            stream.backward(
                queries,
                &others.expect("codes"),
                backward,
                scores.with_grad(grad_scores),
                gradients,
            ),
            "documents",
            "the layout that the work was prepared for",
            "another layout; prepare the work with these handles",
        );
        // Nothing was written.
        assert!(same_bits(&before, &saved.gradients.read().expect("gradients")));

        let (queries, documents, pairing) = problem.inputs().expect("inputs");
        let [queries, documents] =
            [queries, documents].map(|tokens| device.upload(&tokens).expect("a handle"));
        let asked = ScoreOptions::default().winners(true).normalize(true);
        let work = device.prepare(&queries, &documents, &pairing, &asked).expect("work");
        let result = device.prepare_backward_from_codes(&work, &options, GradientType::F32);
        assert_unsupported(result, "normalised rows", "before");
        let asked = ScoreOptions::default();
        let work = device.prepare(&queries, &documents, &pairing, &asked).expect("work");
        assert_shape(
            device.prepare_backward_from_codes(&work, &options, GradientType::F32),
            "work",
            "work prepared with ScoreOptions::winners, or BackwardStrategy::Recompute",
            "work without winners",
        );
    }
}
