//! Coarse-to-fine scores against the definition, on every engine.

use half::f16;
use maxsim::format::{Element, ElementType, Int8, ScaleType, Scales, with_element};
use maxsim::search::CoarseCodes;
use maxsim::stream::{DeviceScores, Queue};
use maxsim::{Device, Error, Pairing, ScoreOptions, TokenLayout, Tokens, TokensRef};
use maxsim_tests::case::{Case, Data, Pairs, elements, tokens};
use maxsim_tests::coarse::{
    CoarseCase, check_coarse_case, check_coarse_data, coarse_cases, engines, has_kernels,
};
use maxsim_tests::gpu::{same_bits, text};
use maxsim_tests::oracle::maxsim;
use maxsim_tests::strategy::EDGE_DIMS;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::{Values, stored};

const F16: ScaleType = ScaleType::F16;
const F32: ScaleType = ScaleType::F32;

/// The cases with the element types and the scales in turns.
fn in_turns(cases: Vec<Case>) -> Vec<CoarseCase> {
    let elements = ElementType::ALL.into_iter().cycle();
    let scales = [[F16, F16], [F32, F16], [F16, F32], [F32, F32]].into_iter().cycle();
    let both = cases.into_iter().zip(elements.zip(scales));
    both.map(|(case, (element, scales))| CoarseCase { case: Case { element, ..case }, scales })
        .collect()
}

fn run(name: &'static str, cases: Vec<Case>) {
    Suite::run(name, in_turns(cases), check_coarse_case);
}

#[test]
fn random() {
    Suite::run_random("coarse_random", coarse_cases, check_coarse_case);
}

#[test]
fn pairings_and_layouts() {
    let case = Case { poison: true, ..Case::new(32, &[5, 0, 17, 1, 40], &[16, 70, 0, 1, 9]) };
    let mut cases = case.in_every_layout_and_pairing();
    for ((i, case), values) in (0..).zip(&mut cases).zip(Values::ALL.into_iter().cycle()) {
        case.values = values;
        case.seed += i;
        case.upload = [i % 2 == 0, i % 3 == 0];
    }
    run("coarse_pairings_and_layouts", cases);
}

/// Every share of lanes and every way of reading rows.
#[test]
fn dims() {
    let dims = EDGE_DIMS.into_iter().chain([2, 4, 12, 24, 31, 32, 33, 48, 160, 384, 1024]);
    let cases = dims.flat_map(|dim| {
        ElementType::ALL.map(|element| {
            let case = Case::new(dim, &[17, 3, 33], &[65, 1, 16]);
            CoarseCase { case: Case { element, ..case }, scales: [F32, F16] }
        })
    });
    Suite::run("coarse_dims", cases, check_coarse_case);
}

/// Every number of warps per pair, several chunks each, and queries that end anywhere in one.
#[test]
fn long_queries() {
    let lengths: [&[usize]; 8] =
        [&[31, 32, 33], &[64, 1], &[65, 0, 40], &[128], &[129, 5], &[256, 257], &[300], &[1030, 7]];
    let mut cases = Vec::new();
    for queries in lengths {
        for pairs in [Pairs::Cross, Pairs::Own { k: 2 }, Pairs::Candidates { k: 3 }] {
            let mut case = Case { pairs, ..Case::new(40, queries, &[70, 3, 0, 130, 11]) };
            case.queries.valid_percent = Some(90);
            cases.push(case);
        }
    }
    run("coarse_long_queries", cases);
}

#[test]
fn nothing_there() {
    let mut cases =
        Case::without_tokens(&[Pairs::Cross, Pairs::Own { k: 2 }, Pairs::List { n: 5 }]);
    cases.extend(Case::all_masked());
    run("coarse_nothing_there", cases);
}

/// Winners of two bytes and of four.
#[test]
fn long_documents() {
    run(
        "coarse_long_documents",
        vec![Case::new(8, &[3], &[65_534, 2]), Case::new(8, &[3], &[65_600])],
    );
}

/// Rows whose codes say nothing of their lengths: without the scales the short one wins.
#[test]
fn scales_decide_the_winner() {
    let case = Case::new(4, &[1, 2], &[2, 3]);
    let cases = ElementType::ALL
        .map(|element| CoarseCase { case: Case { element, ..case.clone() }, scales: [F16, F16] });
    Suite::run("coarse_scales", cases, |suite, case| {
        let mut data: Data = case.case.data();
        // Codes (127, 0, 0, 0) · 1/127 against (127, 127, 0, 0) · 1/1270: 127² and 2 · 127² before
        // the scales, 1 and 0.2 with them.
        let (long, short) = ([1.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.0, 0.0]);
        let one = |row: &mut [f32], values: [f32; 4]| row.copy_from_slice(&values);
        data.queries.values.chunks_exact_mut(4).for_each(|row| one(row, [1.0, 1.0, 0.0, 0.0]));
        for (i, row) in data.documents.values.chunks_exact_mut(4).enumerate() {
            one(row, if i % 2 == 0 { short } else { long });
        }
        let element = case.case.element;
        data.documents.values.iter_mut().for_each(|x| *x = stored(element, *x));
        check_coarse_data(suite, case, &data)?;
        // The definition above and the planted winner are two things.
        let halves: Vec<f32> = elements(&data.documents);
        let documents = tokens(&case.case.documents, &data.documents, &halves).expect("documents");
        let queries: Vec<f32> = elements(&data.queries);
        let queries = tokens(&case.case.queries, &data.queries, &queries).expect("queries");
        let codes = documents.quantize::<Int8>(F16).expect("codes");
        let options = ScoreOptions::default().winners(true);
        let (coarse, cross) = (CoarseCodes::of_documents(&codes), Pairing::cross());
        for (device, _) in engines().filter(|(device, row)| row.is_none() && has_kernels(device)) {
            let found = device.rescore(&queries, &documents, &coarse, &cross, &options);
            let found = found.expect("scores");
            assert_eq!(found.winners(), Some(&[1; 6][..]), "{device}");
            assert_eq!(found.values(), [1.0, 1.0, 2.0, 2.0], "{device}");
        }
        Ok(())
    });
}

/// Codes of queries that are made on the way are the same wherever the queries are, masks included.
#[test]
fn codes_of_queries_are_made_where_they_are() {
    let mut case = Case::new(100, &[7, 40, 0, 33], &[40, 1, 0, 60]);
    case.queries.valid_percent = Some(70);
    Suite::run("coarse_codes_of_queries", ElementType::ALL, |suite, &element| {
        let case = Case { element, values: Values::Mixed, ..case.clone() };
        with_element!(element, T => check_codes_of_queries::<T>(suite, &case))
    });
}

fn check_codes_of_queries<T: Element>(suite: &Suite, case: &Case) -> Result<(), String> {
    let data = case.data();
    let (q, d): (Vec<T>, Vec<T>) = (elements(&data.queries), elements(&data.documents));
    let queries = tokens(&case.queries, &data.queries, &q).map_err(text)?;
    let documents = tokens(&case.documents, &data.documents, &d).map_err(text)?;
    let codes = (queries.quantize::<Int8>(F32), documents.quantize::<Int8>(F16));
    let codes = (codes.0.map_err(text)?, codes.1.map_err(text)?);
    let options = ScoreOptions::default().winners(true).token_scores(true);
    for (device, _) in engines().filter(|(device, row)| row.is_none() && has_kernels(device)) {
        let score = |queries: TokensRef<'_, T>, coarse: CoarseCodes<'_>| {
            let cross = Pairing::cross();
            device.rescore(queries, &documents, &coarse, &cross, &options)
        };
        let given = score((&queries).into(), CoarseCodes::new(&codes.0, &codes.1)).map_err(text)?;
        let handle = device.upload(&queries).map_err(text)?;
        for queries in [TokensRef::Host(&queries), TokensRef::Device(&handle)] {
            let made = score(queries, CoarseCodes::of_documents(&codes.1)).map_err(text)?;
            if !same_bits(&given, &made) {
                return Err(format!("{device}: other scores from {queries:?}"));
            }
        }
        suite.count(&format!("{device} {}", T::TYPE));
    }
    Ok(())
}

/// Mean relative loss of f16 unit rows, of a query of 32 tokens and documents of 300.
#[test]
fn unit_rows_lose_little() {
    let case = Case { element: ElementType::F16, ..Case::new(128, &[32], &[300; 60]) };
    let data = case.data();
    let (q, d): (Vec<f16>, Vec<f16>) = (elements(&data.queries), elements(&data.documents));
    let queries = tokens(&case.queries, &data.queries, &q).expect("queries");
    let documents = tokens(&case.documents, &data.documents, &d).expect("documents");
    let codes = documents.quantize::<Int8>(F16).expect("codes");
    let exact: Vec<f64> =
        (0..60).map(|d| maxsim(&data.queries, 0, &data.documents, d).score.exact).collect();
    let coarse = CoarseCodes::of_documents(&codes);
    for (device, _) in engines().filter(|(device, row)| row.is_none() && has_kernels(device)) {
        let options = ScoreOptions::default();
        let found = device
            .rescore(&queries, &documents, &coarse, &Pairing::cross(), &options)
            .expect("scores");
        let losses = exact.iter().zip(found.values()).map(|(&exact, &score)| {
            let score = f64::from(score);
            assert!(exact > 0.0 && score <= exact * (1.0 + 2e-6), "{score} above {exact}");
            (exact - score) / exact
        });
        let mean = losses.sum::<f64>() / 60.0;
        eprintln!("{device}: mean loss {mean:e}");
        assert!(mean < 1e-3, "{device}: {mean:e}");
    }
}

/// Streams and graphs give what a synchronous call gives, and see what stands in the handles then.
#[test]
fn streams_and_graphs() {
    let case = Case { element: ElementType::F16, ..Case::new(128, &[7, 40, 0], &[40, 1, 0, 60]) };
    let data = case.data();
    let (q, d): (Vec<f16>, Vec<f16>) = (elements(&data.queries), elements(&data.documents));
    let queries = tokens(&case.queries, &data.queries, &q).expect("queries");
    let documents = tokens(&case.documents, &data.documents, &d).expect("documents");
    let codes = [queries.quantize::<Int8>(F16), documents.quantize::<Int8>(F16)];
    let [query_codes, document_codes] = codes.map(|codes| codes.expect("codes"));
    let cross = Pairing::cross();
    for (device, _) in engines().filter(|(device, row)| row.is_none() && has_kernels(device)) {
        for (winners, token_scores) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let options = ScoreOptions::default().winners(winners).token_scores(token_scores);
            let coarse = CoarseCodes::new(&query_codes, &document_codes);
            let expected =
                device.rescore(&queries, &documents, &coarse, &cross, &options).expect("scores");
            assert_eq!(expected.winners().is_some(), winners);
            assert_eq!(expected.token_scores().is_some(), token_scores);

            let (q, d) = (device.upload(&queries), device.upload(&documents));
            let (q, d) = (q.expect("queries"), d.expect("documents"));
            let codes = (device.upload(&query_codes), device.upload(&document_codes));
            let codes = (codes.0.expect("codes"), codes.1.expect("codes"));
            let coarse = CoarseCodes::new(&codes.0, &codes.1).assumed();
            let work = device.prepare_rescore(&q, &d, &coarse, &cross, &options);
            let work = work.expect("work");
            let mut scores = work.new_scores().expect("room");
            let mut stream = device.stream().expect("a stream");
            for _ in 0..3 {
                stream.rescore_into(&q, &d, &coarse, &work, &mut scores).expect("a call");
            }
            let found = scores.read().expect("scores");
            assert!(same_bits(&found, &expected) && found == expected, "{device}");

            let mut scores = work.new_scores().expect("room");
            let mut graph = device
                .capture(|capture| capture.rescore_into(&q, &d, &coarse, &work, &mut scores))
                .expect("a graph");
            graph.launch(&mut stream).expect("a launch");
            graph.launch(&mut stream).expect("a launch");
            assert!(same_bits(&scores.read().expect("scores"), &expected), "{device}");
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let tokens = Tokens::padded(&values, 1, 3, 2).expect("tokens");
    let codes = tokens.quantize::<Int8>(F16).expect("codes");
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let device = Device::cpu();
    let other = |layout: TokenLayout| {
        let scales = Scales::F32(vec![1.0; 3].into());
        Tokens::<Int8>::from_codes(vec![1i8; 6], scales, layout).expect("codes")
    };
    // As many rows, but other items.
    let items = other(TokenLayout::padded(3, 1, 2).expect("a layout"));
    let shape = |result: Result<_, Error>, expected: &str, words: &[&str]| match result {
        Err(Error::Shape { argument, expected: wanted, found }) => {
            assert_eq!(argument, expected);
            let said = format!("{wanted}, {found}");
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        Err(error) => panic!("{error}"),
        Ok(()) => panic!("no error"),
    };
    let call = |coarse: CoarseCodes<'_>, options: &ScoreOptions| {
        device.rescore(&tokens, &tokens, &coarse, &cross, options).map(|_| ())
    };
    shape(
        call(CoarseCodes::new(&items, &codes), &options),
        "codes of queries",
        &["1 items in 3 rows", "3 items in 3 rows"],
    );
    shape(
        call(CoarseCodes::of_documents(&items), &options),
        "codes of documents",
        &["1 items in 3 rows", "3 items in 3 rows"],
    );
    let normalize = options.clone().normalize(true);
    let normalized = call(CoarseCodes::of_documents(&codes), &normalize);
    assert!(matches!(normalized, Err(Error::Unsupported { .. })));

    let (handle, code_handle) = (device.upload(&tokens), device.upload(&codes));
    let (handle, code_handle) = (handle.expect("a handle"), code_handle.expect("a handle"));
    let coarse = CoarseCodes::of_documents(&code_handle);
    let prepare = |coarse: &CoarseCodes<'_>| {
        device.prepare_rescore(&handle, &handle, coarse, &cross, &options)
    };
    shape(prepare(&coarse).map(|_| ()), "codes of queries", &["handle", "no codes"]);
    let on_host = CoarseCodes::new(&code_handle, &codes);
    shape(prepare(&on_host).map(|_| ()), "codes of documents", &["handle", "host memory"]);

    // Room for other scores, of other tokens.
    let coarse = CoarseCodes::new(&code_handle, &code_handle).assumed();
    let work = prepare(&coarse).expect("work");
    let mut scores = work.new_scores().expect("room");
    let mut stream = device.stream().expect("a stream");
    let plain = device.prepare(&code_handle, &code_handle, &cross, &options).expect("work");
    let mut plain_scores = plain.new_scores().expect("room");
    let mut call = |coarse: &CoarseCodes<'_>, scores: &mut DeviceScores| {
        stream.rescore_into(&handle, &handle, coarse, &work, scores)
    };
    shape(call(&coarse, &mut plain_scores), "scores", &["room"]);
    let items = device.upload(&items).expect("a handle");
    let wrong = CoarseCodes::new(&code_handle, &items);
    shape(call(&wrong, &mut scores), "codes of documents", &["another layout"]);
    call(&coarse, &mut scores).expect("a call");
    let half = [f16::ONE; 6];
    let half = device.upload(&Tokens::padded(&half, 1, 3, 2).expect("tokens")).expect("a handle");
    let other = stream.rescore_into(&half, &half, &coarse, &work, &mut scores);
    shape(other, "queries", &["f32 tokens", "f16 tokens"]);
}

/// Codes of other tokens of the same shape find other winners: they are refused, but on the
/// caller's word.
#[test]
fn codes_of_other_tokens_are_refused() {
    let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let tokens = Tokens::padded(&values, 1, 3, 2).expect("tokens");
    // The winner of (1, 0), which is row 2, becomes row 0.
    let changed = [9.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let changed = Tokens::padded(&changed, 1, 3, 2).expect("tokens");
    let query = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2).expect("a query");
    let stale = tokens.quantize::<Int8>(F16).expect("codes");
    let query_codes = query.quantize::<Int8>(F32).expect("codes");
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let refused = |result: Result<f32, Error>, words: &str| match result {
        Err(Error::Shape { argument: "codes of documents", expected, found }) => {
            let said = format!("expected {expected}, found {found}");
            assert!(said.contains(words), "{said}");
        }
        other => panic!("{other:?}"),
    };
    let device = Device::cpu();
    let score = |documents: TokensRef<'_, f32>, coarse: CoarseCodes<'_>| {
        let found = device.rescore(&query, documents, &coarse, &cross, &options)?;
        Ok(found.values()[0])
    };
    assert_eq!(score((&tokens).into(), CoarseCodes::of_documents(&stale)).expect("a score"), 5.0);
    refused(score((&changed).into(), CoarseCodes::of_documents(&stale)), "row 0 of item 0");
    refused(score((&changed).into(), CoarseCodes::new(&query_codes, &stale)), "row 0 of item 0");
    // What the word is for, and what is wrong with it: 5, where 9 is right.
    let assumed = score((&changed).into(), CoarseCodes::of_documents(&stale).assumed());
    assert_eq!(assumed.expect("a score"), 5.0);
    // Handles know what they were made of, and are read where that is not what they are used with.
    let [a, b] = [&tokens, &changed].map(|tokens| device.upload(tokens).expect("a handle"));
    let stale = a.quantize::<Int8>(F16).expect("codes");
    assert_eq!(score((&a).into(), CoarseCodes::of_documents(&stale)).expect("a score"), 5.0);
    refused(score((&b).into(), CoarseCodes::of_documents(&stale)), "row 0 of item 0");

    // In stream order nothing is read: codes of this very handle, or the caller's word.
    let q = device.upload(&query).expect("a handle");
    let q_codes = q.quantize::<Int8>(F32).expect("codes");
    let coarse = CoarseCodes::new(&q_codes, &stale);
    let work = device.prepare_rescore(&q, &a, &coarse, &cross, &options).expect("work");
    let mut scores = work.new_scores().expect("room");
    let mut stream = device.stream().expect("a stream");
    stream.rescore_into(&q, &a, &coarse, &work, &mut scores).expect("a call");
    let wrong = stream.rescore_into(&q, &b, &coarse, &work, &mut scores);
    refused(wrong.map(|()| 0.0), "this very handle");
    let wrong = device.prepare_rescore(&q, &b, &coarse, &cross, &options);
    refused(wrong.map(|_| 0.0), "this very handle");
    let wrong = device.capture(|capture| capture.rescore_into(&q, &b, &coarse, &work, &mut scores));
    refused(wrong.map(|_| 0.0), "this very handle");
    let coarse = coarse.assumed();
    stream.rescore_into(&q, &b, &coarse, &work, &mut scores).expect("a call");
}
