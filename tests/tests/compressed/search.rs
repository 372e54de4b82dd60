//! Searches of compressed documents against the exact ranking, on every engine.

use half::f16;
use maxsim::format::{Element, ElementType, Fp8, Int8, Int8Affine, ScaleType, with_element};
use maxsim::search::{
    Certainty, ErrorTerms, SearchOptions, SearchRanking, SearchTokens, rescore_bounds,
};
use maxsim::{Device, Error, Pairing, Ranked, Tokens, TokensRef, TopK};
use maxsim_tests::case::{Case, Data, elements, tokens};
use maxsim_tests::coarse::has_kernels;
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::strategy::cases;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::prelude::*;
use proptest::sample::select;

/// A search, and what it is compared with.
#[derive(Clone, Debug)]
pub struct SearchCase {
    pub case: Case,
    pub is_fp8: bool,
    pub k: usize,
    pub options: SearchOptions,
}

pub fn search_cases() -> impl Strategy<Value = SearchCase> {
    let case = select(&ElementType::ALL).prop_flat_map(cases);
    (case, any::<bool>(), 0..=12usize, 0..=20usize, any::<bool>()).prop_map(
        |(case, is_fp8, k, n_candidates, exact)| {
            let pairs = maxsim_tests::case::Pairs::Cross;
            let case = Case { normalize: false, weights: false, pairs, ..case };
            SearchCase {
                case,
                is_fp8,
                k,
                options: SearchOptions::default().n_candidates(n_candidates).exact(exact),
            }
        },
    )
}

/// The devices that search codes of either format.
pub fn devices() -> impl Iterator<Item = Device> {
    let devices = std::iter::once(Device::cpu()).chain(cuda_devices().iter().cloned());
    devices.filter(has_kernels)
}

#[test]
fn random() {
    Suite::run_random("search_random", search_cases, |suite, case| {
        let data = case.case.data();
        with_element!(case.case.element, T => check::<T>(suite, case, &data))
    });
}

pub fn text(error: Error) -> String {
    error.to_string()
}

fn check<T: Element>(suite: &Suite, case: &SearchCase, data: &Data) -> Result<(), String> {
    let elements: [Vec<T>; 2] = [elements(&data.queries), elements(&data.documents)];
    let queries = tokens(&case.case.queries, &data.queries, &elements[0]).map_err(text)?;
    let documents = tokens(&case.case.documents, &data.documents, &elements[1]).map_err(text)?;
    for device in devices() {
        let found = match case.is_fp8 {
            false => search::<T, Int8>(&device, &queries, &documents, case),
            true => search::<T, Fp8>(&device, &queries, &documents, case),
        };
        let found = found.map_err(text)?;
        let exact = ranking(&device, &queries, &documents).map_err(text)?;
        check_rankings(&found, &exact, data, case).map_err(|why| format!("{device}: {why}"))?;
        suite.count(&device.to_string());
    }
    Ok(())
}

fn search<T: Element, F: maxsim::format::Quantized + maxsim::format::ScorableWith<F>>(
    device: &Device,
    queries: &Tokens<'_, T>,
    documents: &Tokens<'_, T>,
    case: &SearchCase,
) -> Result<Vec<SearchRanking>, Error> {
    let codes = [queries.quantize::<F>(ScaleType::F32)?, documents.quantize::<F>(ScaleType::F16)?];
    let (q, d) = (device.upload(&codes[0])?, device.upload(&codes[1])?);
    let [upload_queries, upload_codes] = case.case.upload;
    let codes: [TokensRef<'_, F>; 2] = match upload_codes {
        true => [(&q).into(), (&d).into()],
        false => [(&codes[0]).into(), (&codes[1]).into()],
    };
    let handle = upload_queries.then(|| device.upload(queries)).transpose()?;
    let queries = handle.as_ref().map_or(TokensRef::Host(queries), TokensRef::Device);
    let queries = SearchTokens::measured(queries, codes[0])?;
    let documents = SearchTokens::measured(documents, codes[1])?;
    device.search(&queries, &documents, case.k, &case.options)
}

/// All documents of each query in the order of their scores in full precision: of all pairs as a
/// list, as searches ask for them.
pub fn ranking<T: Element>(
    device: &Device,
    queries: &Tokens<'_, T>,
    documents: &Tokens<'_, T>,
) -> Result<Vec<Vec<Ranked>>, Error> {
    let n = [queries.layout().n_items() as u32, documents.layout().n_items() as u32];
    let query_ids: Vec<u32> = (0..n[0]).flat_map(|q| (0..n[1]).map(move |_| q)).collect();
    let document_ids: Vec<u32> = (0..n[0]).flat_map(|_| 0..n[1]).collect();
    let scores = device.score(queries, documents, &Pairing::pairs(&query_ids, &document_ids)?)?;
    let rank = |scores: &[f32]| {
        let mut best = TopK::new(n[1] as usize);
        for (id, &score) in (0u32..).zip(scores) {
            let has_tokens = documents.layout().has_tokens(id as usize);
            best.push(Ranked { id, score, has_tokens });
        }
        best.into_ranking().ranked
    };
    Ok(match n[1] {
        0 => vec![Vec::new(); n[0] as usize],
        n => scores.values().chunks(n as usize).map(rank).collect(),
    })
}

/// What rounding may move the score of query `q` and document `d` by, in any engine and call.
fn slack(data: &Data, q: usize, d: u32) -> f64 {
    let length = |values: &[f32]| values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    // 2⁻¹⁴ an element: subnormal f16 numbers count as that.
    let dim = data.queries.dim as f64;
    let least = dim.sqrt() / 16384.0;
    let queries = (0..data.queries.items[q].len()).filter_map(|s| data.queries.token(q, s));
    let of_query: f64 = queries.map(|row| length(row.values) + least).sum();
    let documents = data.documents.tokens(d as usize);
    let of_document = documents.map(|(_, row)| length(row.values) + least).fold(0.0, f64::max);
    let n_terms = 8.0 + 3.0 * dim + data.queries.items[q].len() as f64;
    n_terms * f64::from(f32::EPSILON) * of_query * of_document
}

pub fn check_rankings(
    found: &[SearchRanking],
    exact: &[Vec<Ranked>],
    data: &Data,
    case: &SearchCase,
) -> Result<(), String> {
    let n_documents = data.documents.items.len();
    if found.len() != exact.len() {
        return Err(format!("{} rankings of {}", found.len(), exact.len()));
    }
    for (q, (found, exact)) in found.iter().zip(exact).enumerate() {
        let at = |what: String| Err(format!("query {q}: {what}: {found:?}, exactly {exact:?}"));
        // Where an engine may order documents otherwise in another kind of call: rounding alone.
        let is_near = |[(a, x), (b, y)]: [(u32, f32); 2]| {
            let off = f64::from((x - y).abs());
            x == y || x.is_nan() && y.is_nan() || off <= slack(data, q, a) + slack(data, q, b)
        };
        let n_empty = exact.iter().filter(|document| !document.has_tokens).count();
        let n_nan = exact.iter().filter(|d| d.has_tokens && d.score.is_nan()).count();
        if (found.n_empty, found.n_nan) != (n_empty as u64, n_nan as u64) {
            return at("other counts".into());
        }
        if found.documents.len() != case.k.min(n_documents) {
            return at(format!("{} documents", found.documents.len()));
        }
        for (i, (document, expected)) in found.documents.iter().zip(exact).enumerate() {
            let Some(own) = exact.iter().find(|exact| exact.id == document.id) else {
                return at(format!("place {i}: no such document"));
            };
            let both = [(own.id, own.score), (own.id, document.score)];
            if !is_near(both) || own.has_tokens != document.has_tokens {
                return at(format!("place {i}: another score than {}", own.score));
            }
            let both = [(document.id, document.score), (expected.id, expected.score)];
            let is_right = document.id == expected.id || is_near(both);
            match document.certainty {
                Certainty::Proven if !is_right => {
                    return at(format!("place {i} is proven and wrong"));
                }
                Certainty::Likely if case.options.exact => {
                    return at(format!("place {i} is not proven"));
                }
                _ => {}
            }
        }
        let places = found.documents.iter().map(|document| document.certainty);
        if !places.is_sorted_by_key(|place| place == Certainty::Likely) {
            return at("a place behind a likely one is proven".into());
        }
        let mut ids: Vec<u32> = found.documents.iter().map(|document| document.id).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != found.documents.len() {
            return at("a document twice".into());
        }
        let most = n_documents - n_empty;
        let least = most.min(case.options.n_candidates.max(case.k));
        if !(least..=most).contains(&(found.n_rescored as usize)) {
            return at(format!("{} re-scored", found.n_rescored));
        }
    }
    Ok(())
}

/// Two documents that codes cannot distinguish, of which the worse has the better codes.
#[test]
fn a_likely_place_may_be_wrong_and_is_never_called_proven() {
    // Codes of 0.5 / 127 · 100.4 are those of 100, of 100.6 those of 101: the sum over two elements
    // says that the first row is better, 100 + 101 against 2 · 100; exactly it is worse.
    let unit = 1.0 / 127.0;
    let worse = [1.0, 100.51 * unit, 100.0 * unit, 0.0];
    let better = [1.0, 100.49 * unit, 100.49 * unit, 0.0];
    let far = [1.0, 0.1, 0.1, 0.0];
    let rows: Vec<f32> = [far, better, worse, far].concat();
    let documents = Tokens::padded(&rows, 4, 1, 4).expect("documents");
    let query = [0.0f32, 1.0, 1.0, 0.0];
    let queries = Tokens::padded(&query, 1, 1, 4).expect("a query");
    let codes = documents.quantize::<Int8>(ScaleType::F32).expect("codes");
    let query_codes = queries.quantize::<Int8>(ScaleType::F32).expect("codes");
    let queries = SearchTokens::measured(&queries, &query_codes).expect("bounds");
    let documents = SearchTokens::measured(&documents, &codes).expect("bounds");
    for device in devices() {
        let search = |n_candidates, exact| {
            let options = SearchOptions::default().n_candidates(n_candidates).exact(exact);
            let found = device.search(&queries, &documents, 1, &options);
            let found = &found.expect("a ranking")[0];
            (found.documents[0].id, found.documents[0].certainty, found.n_rescored)
        };
        assert_eq!(search(1, false), (2, Certainty::Likely, 1), "{device}");
        // The far ones are candidates of no query.
        assert_eq!(search(1, true), (1, Certainty::Proven, 2), "{device}");
        assert_eq!(search(2, false), (1, Certainty::Proven, 2), "{device}");
    }
}

/// Of ordinary rows few are re-scored, and most places are proven.
#[test]
fn few_are_rescored_where_documents_differ() {
    let mut case = Case { element: ElementType::F16, ..Case::new(128, &[16, 16], &[30; 400]) };
    case.values = Values::Mixed;
    let data = case.data();
    let (q, d): (Vec<f16>, Vec<f16>) = (elements(&data.queries), elements(&data.documents));
    let queries = tokens(&case.queries, &data.queries, &q).expect("queries");
    let documents = tokens(&case.documents, &data.documents, &d).expect("documents");
    let options = SearchOptions::default().n_candidates(10).exact(true);
    let case = SearchCase { case, is_fp8: false, k: 10, options };
    for device in devices() {
        let found = search::<f16, Int8>(&device, &queries, &documents, &case).expect("rankings");
        let exact = ranking(&device, &queries, &documents).expect("rankings");
        check_rankings(&found, &exact, &data, &case).expect("rankings");
        assert!(found.iter().all(|found| found.n_rescored < 200), "{found:?}");
    }
}

/// A corpus of which a GPU selects what the search looks at: the exact ranking, whether documents
/// differ, so that the selection is enough, or score nearly the same, so that it is not; for one
/// query and for several; few scores, which are copied, and many, which are selected from again.
#[test]
fn large_corpora_on_a_gpu() {
    Suite::run_gpu("gpu_search_selected", |suite| {
        let dim = 64usize;
        let corpora = [(40_000usize, 1usize), (40_000, 2), (300_000, 1), (300_000, 2)];
        for device in cuda_devices().iter().filter(|device| has_kernels(device)) {
            for (spread, (n, n_queries)) in
                [1.0f32, 1e-4].into_iter().flat_map(|spread| corpora.map(|of| (spread, of)))
            {
                let number = |i: usize| ((i as u64 * 2_654_435_761) >> 9) % 2001;
                let data: Vec<f32> = (0..n * dim)
                    .map(|i| 0.3 + spread * (number(i) as f32 / 1000.0 - 1.0))
                    .collect();
                let lengths: Vec<i64> = (0..n as i64).map(|i| i64::from(i % 11 != 4)).collect();
                let queries = &data[..n_queries * dim];
                let queries = Tokens::padded(queries, n_queries, 1, dim).map_err(text)?;
                let documents = Tokens::padded(&data, n, 1, dim).map_err(text)?;
                let documents = documents.with_lengths(&lengths).map_err(text)?;
                let expected = ranking(device, &queries, &documents).map_err(text)?;
                let codes = [&queries, &documents].map(|x| x.quantize::<Int8>(ScaleType::F32));
                let [query_codes, document_codes] = codes;
                let (query_codes, document_codes) =
                    (query_codes.map_err(text)?, document_codes.map_err(text)?);
                let queries = SearchTokens::measured(&queries, &query_codes).map_err(text)?;
                let handles = (device.upload(&documents), device.upload(&document_codes));
                let handles = (handles.0.map_err(text)?, handles.1.map_err(text)?);
                let documents = SearchTokens::measured(&handles.0, &handles.1).map_err(text)?;
                let options = SearchOptions::default().exact(true);
                let found = device.search(&queries, &documents, 10, &options).map_err(text)?;
                for (found, expected) in found.iter().zip(&expected) {
                    let ids: Vec<u32> = found.documents.iter().map(|hit| hit.id).collect();
                    let wanted: Vec<u32> = expected[..10].iter().map(|hit| hit.id).collect();
                    assert_eq!(ids, wanted, "{device}, spread {spread}, {n_queries} × {n}");
                    assert!(found.documents.iter().all(|hit| hit.certainty == Certainty::Proven));
                    assert_eq!(
                        found.n_empty,
                        lengths.iter().filter(|&&len| len == 0).count() as u64
                    );
                    suite.note(&format!("spread {spread}: {} re-scored", found.n_rescored));
                }
                suite.count(&device.to_string());
            }
        }
        Ok(cuda_devices().len() * 2 * corpora.len())
    });
}

/// Affine documents of f16 queries, which are their own codes.
#[test]
fn queries_need_not_be_compressed() {
    let case = Case { element: ElementType::F16, ..Case::new(64, &[5, 9], &[12, 0, 30, 7, 19]) };
    let data = case.data();
    let (q, d): (Vec<f16>, Vec<f16>) = (elements(&data.queries), elements(&data.documents));
    let queries = tokens(&case.queries, &data.queries, &q).expect("queries");
    let documents = tokens(&case.documents, &data.documents, &d).expect("documents");
    let codes = documents.quantize::<Int8Affine>(ScaleType::F16).expect("codes");
    let sides = (SearchTokens::plain(&queries), SearchTokens::measured(&documents, &codes));
    let sides = (sides.0.expect("bounds"), sides.1.expect("bounds"));
    let options = SearchOptions::default().n_candidates(2).exact(true);
    let device = Device::cpu();
    let found = device.search(&sides.0, &sides.1, 2, &options);
    let exact = ranking(&device, &queries, &documents).expect("rankings");
    let case = SearchCase { case, is_fp8: false, k: 2, options };
    check_rankings(&found.expect("rankings"), &exact, &data, &case).expect("rankings");
}

#[test]
fn numbers_that_differ_are_errors() {
    let rows = [1.0f32; 12];
    let tokens = |n: usize| Tokens::padded(&rows[..n * 2], n, 1, 2).expect("tokens");
    let (one, three) = (tokens(1), tokens(3));
    let codes = |n| tokens(n).quantize::<Int8>(ScaleType::F16).expect("codes");
    let (code, codes_of_3) = (codes(1), codes(3));
    let (term, terms) = (ErrorTerms::new(&code), ErrorTerms::new(&codes_of_3));
    let device = Device::cpu();
    let said = |result: Result<SearchTokens<'_, f32, Int8>, Error>| match result {
        Ok(_) => "",
        Err(Error::Shape { argument, .. }) => argument,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(said(SearchTokens::measured(&three, &codes_of_3)), "");
    assert_eq!(said(SearchTokens::measured(&one, &codes_of_3)), "codes");
    assert_eq!(said(SearchTokens::measured(&three, &code)), "codes");
    assert_eq!(said(SearchTokens::assumed(&three, &codes_of_3, &terms)), "");
    assert_eq!(said(SearchTokens::assumed(&three, &code, &term)), "codes");
    assert_eq!(said(SearchTokens::assumed(&three, &codes_of_3, &term)), "terms");
    // As many, but of other items, other rows or another format.
    let masked = codes(3).with_mask(&[1, 0, 1]).expect("mask");
    let shorter = codes(3).with_lengths(&[1, 1, 0]).expect("lengths");
    let narrow = Tokens::padded(&rows[..3], 3, 1, 1).expect("tokens");
    let narrow = narrow.quantize::<Int8>(ScaleType::F16).expect("codes");
    for other in [&masked, &shorter, &narrow] {
        assert_eq!(said(SearchTokens::measured(&three, other)), "codes");
        assert_eq!(said(SearchTokens::assumed(&three, other, &ErrorTerms::new(other))), "codes");
    }
    let other_terms = [
        ErrorTerms::new(&three.quantize::<Fp8>(ScaleType::F16).expect("codes")),
        ErrorTerms::new(&narrow),
    ];
    for terms in &other_terms {
        assert_eq!(said(SearchTokens::assumed(&three, &codes_of_3, terms)), "terms");
    }
    // Of the same shape, but not of these rows, on the caller's word that they are: the scores
    // show it.
    let others: Vec<f32> = rows.iter().map(|x| -x).collect();
    let others = Tokens::padded(&others[..6], 3, 1, 2).expect("tokens");
    let codes_of_others = others.quantize::<Int8>(ScaleType::F16).expect("codes");
    let terms_of_others = ErrorTerms::new(&codes_of_others);
    let wrong = SearchTokens::assumed(&three, &codes_of_others, &terms_of_others).expect("a side");
    let query = SearchTokens::measured(&one, &code).expect("a side");
    match device.search(&query, &wrong, 1, &SearchOptions::default()) {
        Err(Error::Shape { argument, .. }) => assert_eq!(argument, "compressed documents"),
        other => panic!("{other:?}"),
    }

    // What engines lose is more than nothing.
    let cross = Pairing::cross();
    let bounds = maxsim::search::score_bounds(&term, &terms, &cross).expect("bounds");
    let more = rescore_bounds(&term, &terms, &cross, ElementType::F16).expect("bounds");
    assert!(bounds.iter().zip(&more).all(|(a, b)| a < b && *b < 1.01 * a), "{bounds:?} {more:?}");
}

/// Errors are measured row by row, and scores are of each side's own rows: codes of other rows are
/// refused, though their items are as long. Else the second document would be found, and proven.
#[test]
fn codes_of_other_rows_are_refused() {
    let rows = [1.0f32, 0.0, 0.0, 1.0, 0.5, 0.0, 0.5, 0.0];
    let query = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2).expect("a query");
    let query_codes = query.quantize::<Int8>(ScaleType::F32).expect("codes");
    let query = SearchTokens::measured(&query, &query_codes).expect("bounds");
    let options = SearchOptions::default().n_candidates(1);
    let masked = |mask: [u8; 4]| {
        let tokens = Tokens::padded(&rows, 2, 2, 2).expect("tokens");
        tokens.with_mask(mask.to_vec()).expect("a mask")
    };
    let placed = |starts: [i64; 2]| Tokens::scattered(&rows, 2, &starts, &[2, 2]).expect("tokens");
    let sides = [
        [masked([1, 0, 1, 1]), masked([0, 1, 1, 1])],
        [masked([1, 0, 1, 1]), masked([7, 0, 1, 1])],
        [placed([0, 2]), placed([2, 0])],
        [placed([2, 0]), placed([2, 0])],
    ];
    for (device, (i, [tokens, others])) in
        devices().flat_map(|device| sides.iter().enumerate().map(move |of| (device.clone(), of)))
    {
        let codes = others.quantize::<Int8>(ScaleType::F32).expect("codes");
        let handles = (device.upload(tokens), device.upload(&codes));
        let handles = (handles.0.expect("a handle"), handles.1.expect("a handle"));
        for documents in
            [SearchTokens::measured(tokens, &codes), SearchTokens::measured(&handles.0, &handles.1)]
        {
            match documents {
                Err(Error::Shape { argument: "codes", expected, .. }) if i % 2 == 0 => {
                    assert!(expected.ends_with("in item 0"), "{expected}");
                }
                Ok(documents) if i % 2 == 1 => {
                    let found = device.search(&query, &documents, 1, &options).expect("a ranking");
                    let (id, best) = (u32::from(i == 3), &found[0].documents[0]);
                    assert_eq!((best.id, best.certainty), (id, Certainty::Proven), "{device}");
                }
                other => panic!("{device}, {i}: {other:?}"),
            }
        }
    }
}

/// Bounds of tokens without errors are those of rounding, by the formulas that the documentation
/// states.
#[test]
fn bounds_of_rounding_are_as_large_as_stated() {
    const ULP: f64 = f32::EPSILON as f64;
    let (dim, query_len) = (128, 3);
    let norm = |x: &[f32]| x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let data: Vec<f32> =
        (0..(query_len + 1) * dim).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
    let (q, d) = data.split_at(query_len * dim);
    let queries = Tokens::padded(q, 1, query_len, dim).expect("queries");
    let document = Tokens::padded(d, 1, 1, dim).expect("document");
    let cross = Pairing::cross();
    let size = q.chunks(dim).map(norm).sum::<f64>() * norm(d);
    let is = |found: &[f32], expected: f64| {
        let ratio = f64::from(found[0]) / expected;
        assert!((0.9999..1.0001).contains(&ratio), "{found:?} is {ratio} of {expected}");
    };
    let terms = [ErrorTerms::new(&queries), ErrorTerms::new(&document)];
    let few = (8 + query_len) as f64;
    let scored = (few + dim as f64) * ULP * size;
    is(&maxsim::search::score_bounds(&terms[0], &terms[1], &cross).expect("bounds"), scored);
    for (element, n_products) in [(ElementType::F32, 3 * dim), (ElementType::Bf16, dim)] {
        let more = (few + n_products as f64) * ULP * size;
        let found = rescore_bounds(&terms[0], &terms[1], &cross, element).expect("bounds");
        is(&found, scored + more);
    }

    // What codes stand for has no errors either; tensor cores cut their products.
    let (query_codes, codes) =
        (queries.quantize::<Fp8>(ScaleType::F32), document.quantize::<Fp8>(ScaleType::F32));
    let (query_codes, codes) = (query_codes.expect("codes"), codes.expect("codes"));
    let decoded = [query_codes.dequantize().expect("rows"), codes.dequantize().expect("rows")];
    let terms = [
        ErrorTerms::measured(&query_codes, &decoded[0]).expect("terms"),
        ErrorTerms::measured(&codes, &decoded[1]).expect("terms"),
    ];
    let size = decoded[0].data().chunks(dim).map(norm).sum::<f64>() * norm(decoded[1].data());
    let expected = ((few + dim as f64) * ULP + 132.0 / 8192.0) * size;
    is(&maxsim::search::score_bounds(&terms[0], &terms[1], &cross).expect("bounds"), expected);
}

/// A document that changed after it was compressed: bounds that are measured find it all the same;
/// on the caller's word it is missed, and nothing is called proven.
#[test]
fn stale_codes_prove_nothing() {
    let n = 300;
    let query = [0.6f32, 0.8, 0.0, 0.0];
    let mut rows: Vec<f32> = (0..n).flat_map(|i| [0.1, 0.001 * i as f32, 0.5, 0.7]).collect();
    let place = 42 * 4..43 * 4;
    rows[place.clone()].copy_from_slice(&query.map(|x| -x));
    let codes = Tokens::padded(&rows, n, 1, 4).expect("documents");
    let codes = codes.quantize::<Int8>(ScaleType::F16).expect("codes");
    rows[place].copy_from_slice(&query);
    let documents = Tokens::padded(&rows, n, 1, 4).expect("documents");
    let queries = Tokens::padded(&query, 1, 1, 4).expect("a query");
    let query_codes = queries.quantize::<Int8>(ScaleType::F32).expect("codes");
    let queries = SearchTokens::measured(&queries, &query_codes).expect("bounds");
    let terms = ErrorTerms::new(&codes);
    let options = SearchOptions::default().n_candidates(5).exact(true);
    for device in devices() {
        let handles = (device.upload(&documents), device.upload(&codes));
        let handles = (handles.0.expect("a handle"), handles.1.expect("a handle"));
        let measured = SearchTokens::measured(&documents, &codes).expect("bounds");
        let of_handles = SearchTokens::measured(&handles.0, &handles.1).expect("bounds");
        for documents in [measured, of_handles] {
            let found = device.search(&queries, &documents, 5, &options);
            let found = &found.expect("a ranking")[0].documents;
            assert_eq!(found[0].id, 42, "{device}");
            assert!(found.iter().all(|found| found.certainty == Certainty::Proven), "{found:?}");
        }
        let assumed = SearchTokens::assumed(&documents, &codes, &terms).expect("a side");
        let found = device.search(&queries, &assumed, 5, &options);
        let found = &found.expect("a ranking")[0].documents;
        assert!(found.iter().all(|found| found.id != 42 && found.certainty == Certainty::Likely));
    }
}
