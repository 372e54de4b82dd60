//! Searches coarse to fine over documents that pass by: the rankings of documents that are all
//! there, and errors that say what happened.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use maxsim::format::{
    Element, Format, Fp8, Int8, Quantized, ScaleType, Scales, ScorableWith, with_element,
};
use maxsim::search::{
    Certainty, ErrorTerms, SearchFound, SearchOptions, SearchRanking, SearchSource, SearchTokens,
};
use maxsim::streaming::{Source, StreamOptions, StreamProgress, StreamStage};
use maxsim::{Device, Devices, Error, Interrupt, Result, TokenLayout, Tokens};
use maxsim_tests::case::{elements, tokens};
use maxsim_tests::coarse::has_kernels;
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::suite::Suite;
use proptest::prelude::*;

use super::search::{SearchCase, check_rankings, devices, ranking, search_cases, text};

/// Tokens that are read a part at a time, up to a row that cannot be read.
struct Read<'a, F: Format>(&'a Tokens<'a, F>, usize);

impl<F: Format> Source<F> for Read<'_, F> {
    fn layout(&self) -> &TokenLayout {
        self.0.layout()
    }

    fn mask(&self) -> Option<&[u8]> {
        self.0.mask()
    }

    fn scales(&self) -> Option<Scales<'_>> {
        Source::scales(self.0)
    }

    fn fill(&self, rows: Range<usize>, to: &mut [F::Stored]) -> io::Result<()> {
        match rows.contains(&self.1) {
            true => Err(io::Error::other("the disk is gone")),
            false => self.0.fill(rows, to),
        }
    }
}

/// Searches a corpus on a device and on three shares of it: the same rankings.
fn search<T: Element, F: Quantized + ScorableWith<F>>(
    device: &Device,
    queries: &SearchTokens<'_, T, F>,
    documents: &SearchSource<'_, T, F>,
    case: &SearchCase,
    buffer_bytes: u64,
) -> std::result::Result<SearchFound, String> {
    let options = StreamOptions::default().buffer_bytes(buffer_bytes).threads(2);
    let (k, search) = (case.k, &case.options);
    let one = device.search_coarse_stream(queries, documents, k, search, &options);
    let three = Devices::new(vec![device.clone(); 3]).map_err(text)?;
    let three = three.search_coarse_stream(queries, documents, k, search, &options);
    let (one, three) = (one.map_err(text)?, three.map_err(text)?);
    // NaN is not equal to itself.
    match format!("{:?}", one.rankings) == format!("{:?}", three.rankings) {
        true => Ok(one),
        false => Err(format!("{three:?} of three, {one:?} of one")),
    }
}

fn check<T: Element, F: Quantized + ScorableWith<F>>(
    device: &Device,
    [queries, documents]: [&Tokens<'_, T>; 2],
    case: &SearchCase,
    buffer_bytes: u64,
) -> std::result::Result<(), String> {
    let data = case.case.data();
    let exact = ranking(device, queries, documents).map_err(text)?;
    let query_codes = queries.quantize::<F>(ScaleType::F32).map_err(text)?;
    let codes = documents.quantize::<F>(ScaleType::F16).map_err(text)?;
    let terms = ErrorTerms::new(&codes);
    let queries = SearchTokens::measured(queries, &query_codes).map_err(text)?;
    let whole = SearchTokens::measured(documents, &codes).map_err(text)?;
    let whole = device.search(&queries, &whole, case.k, &case.options).map_err(text)?;
    let (of_tokens, of_codes) = (Read(documents, usize::MAX), Read(&codes, usize::MAX));
    let sources = [
        ("measured", SearchSource::measured(&of_tokens, &of_codes)),
        ("measured, in memory", SearchSource::measured(documents, &codes)),
        ("known terms", SearchSource::known(&of_tokens, &of_codes, Some(&terms))),
        ("known", SearchSource::known(&of_tokens, &of_codes, None)),
    ];
    let mut known: Vec<SearchRanking> = Vec::new();
    for (name, source) in sources {
        let at = |why: String| format!("{name}, buffers of {buffer_bytes}: {why}");
        let source = source.map_err(|error| at(error.to_string()))?;
        let found = search(device, &queries, &source, case, buffer_bytes).map_err(at)?;
        known = found.rankings;
        check_rankings(&known, &exact, &data, case).map_err(at)?;
        let is_same = format!("{known:?}") == format!("{whole:?}");
        if name.starts_with("measured") && device.ordinal().is_none() && !is_same {
            return Err(at(format!("{known:?} instead of {whole:?}")));
        }
    }
    // Nothing is proven on no word at all.
    let source = SearchSource::assumed(&of_tokens, &of_codes, None).map_err(text)?;
    let found = search(device, &queries, &source, case, buffer_bytes)?;
    for hit in known.iter_mut().flat_map(|ranking| &mut ranking.documents) {
        hit.certainty = Certainty::Likely;
    }
    match format!("{known:?}") == format!("{:?}", found.rankings) {
        true => Ok(()),
        false => Err(format!("{found:?} of assumed codes, {known:?} of known ones")),
    }
}

#[test]
fn as_if_all_were_there() {
    let strategy = || (search_cases(), prop_oneof![1..2000u64, 2000..100_000u64]);
    Suite::run_random("search_streamed", strategy, |suite, (case, buffer_bytes)| {
        with_element!(case.case.element, T => {
            let data = case.case.data();
            let elements: [Vec<T>; 2] = [elements(&data.queries), elements(&data.documents)];
            let queries = tokens(&case.case.queries, &data.queries, &elements[0]).map_err(text)?;
            let documents = tokens(&case.case.documents, &data.documents, &elements[1]);
            let documents = documents.map_err(text)?;
            for device in devices() {
                let sides = [&queries, &documents];
                match case.is_fp8 {
                    false => check::<T, Int8>(&device, sides, case, *buffer_bytes),
                    true => check::<T, Fp8>(&device, sides, case, *buffer_bytes),
                }
                .map_err(|why| format!("{device}: {why}"))?;
                suite.count(&device.to_string());
            }
            Ok(())
        })
    });
}

/// A corpus of which a GPU selects what is looked at: one pass where documents differ, and another
/// one where they score nearly the same.
#[test]
fn large_corpora_on_a_gpu() {
    Suite::run_gpu("gpu_search_streamed", |suite| {
        let (n, dim) = (40_000usize, 64usize);
        for device in cuda_devices().iter().filter(|device| has_kernels(device)) {
            for (spread, n_passes) in [(1.0f32, 1), (1e-4, 2)] {
                let number = |i: usize| ((i as u64 * 2_654_435_761) >> 9) % 2001;
                let data: Vec<f32> = (0..n * dim)
                    .map(|i| 0.3 + spread * (number(i) as f32 / 1000.0 - 1.0))
                    .collect();
                let lengths: Vec<i64> = (0..n as i64).map(|i| i64::from(i % 11 != 4)).collect();
                let queries = Tokens::padded(&data[..2 * dim], 2, 1, dim).map_err(text)?;
                let documents = Tokens::padded(&data, n, 1, dim).map_err(text)?;
                let documents = documents.with_lengths(&lengths).map_err(text)?;
                let expected = ranking(device, &queries, &documents).map_err(text)?;
                let query_codes = queries.quantize::<Int8>(ScaleType::F32).map_err(text)?;
                let codes = documents.quantize::<Int8>(ScaleType::F32).map_err(text)?;
                let queries = SearchTokens::measured(&queries, &query_codes).map_err(text)?;
                let source = SearchSource::measured(&documents, &codes).map_err(text)?;
                let search = SearchOptions::default().exact(true);
                let options = StreamOptions::default().buffer_bytes(1 << 20);
                let found = device.search_coarse_stream(&queries, &source, 10, &search, &options);
                let found = found.map_err(text)?;
                let n_chunks = (n * dim).div_ceil(1 << 20);
                assert!(found.n_chunks >= n_passes * n_chunks, "{found:?}");
                assert!(n_passes > 1 || found.n_chunks < 2 * n_chunks, "{found:?}");
                for (found, expected) in found.rankings.iter().zip(&expected) {
                    let ids: Vec<u32> = found.documents.iter().map(|hit| hit.id).collect();
                    let wanted: Vec<u32> = expected[..10].iter().map(|hit| hit.id).collect();
                    assert_eq!(ids, wanted, "{device}, spread {spread}");
                    assert!(found.documents.iter().all(|hit| hit.certainty == Certainty::Proven));
                    suite.note(&format!("spread {spread}: {} re-scored", found.n_rescored));
                }
                suite.count(&device.to_string());
            }
        }
        Ok(cuda_devices().len() * 2)
    });
}

/// Documents of one token of one element, which falls by 1/8 from each to the next.
const N: usize = 1000;

fn falling() -> Vec<f32> {
    (0..N).map(|row| 200.0 - row as f32 / 8.0).collect()
}

/// Calls a function with sources of a corpus, of which each fails at a row.
fn with_sources<R>(
    [token, code]: [usize; 2],
    run: impl FnOnce(&SearchTokens<'_, f32, Int8>, &SearchSource<'_, f32, Int8>) -> Result<R>,
) -> Result<R> {
    let rows = falling();
    let tokens = Tokens::padded(&rows, N, 1, 1)?;
    let codes = tokens.quantize::<Int8>(ScaleType::F32)?;
    let query = Tokens::padded(&[1.0f32], 1, 1, 1)?;
    let query_codes = query.quantize::<Int8>(ScaleType::F32)?;
    let terms = ErrorTerms::new(&codes);
    let (tokens, codes) = (Read(&tokens, token), Read(&codes, code));
    let queries = SearchTokens::measured(&query, &query_codes)?;
    run(&queries, &SearchSource::known(&tokens, &codes, Some(&terms))?)
}

const NOWHERE: usize = usize::MAX;

/// Chunks of a hundred codes with their scales on the CPU, a batch of 25 documents.
fn options() -> StreamOptions {
    StreamOptions::default().buffer_bytes(500).threads(2)
}

/// A search that must work, whatever came before it.
fn works(device: &Device, options: &StreamOptions) -> SearchFound {
    let search = SearchOptions::default().n_candidates(200);
    let found = with_sources([NOWHERE; 2], |queries, documents| {
        device.search_coarse_stream(queries, documents, 3, &search, options)
    });
    let found = found.expect("a search");
    let ids = found.rankings[0].documents.iter().map(|hit| (hit.id, hit.certainty));
    assert!(ids.eq([0, 1, 2].map(|id| (id, Certainty::Proven))), "{found:?}");
    found
}

#[test]
fn a_source_that_fails_in_either_stage_is_named() {
    for device in devices() {
        for (rows, search) in [
            // In the middle of the scan; among the candidates.
            ([NOWHERE, 450], SearchOptions::default()),
            ([30, NOWHERE], SearchOptions::default()),
        ] {
            let found = with_sources(rows, |queries, documents| {
                device.search_coarse_stream(queries, documents, 3, &search, &options())
            });
            match found {
                Err(Error::Source { first_row, n_rows, source }) => {
                    let wrong = rows[0].min(rows[1]) as u64;
                    assert!((first_row..first_row + n_rows).contains(&wrong), "{device}");
                    assert_eq!(source.to_string(), "the disk is gone");
                }
                other => panic!("{device}: {other:?}"),
            }
            let _ = works(&device, &options());
        }
        // No search asks for what is no candidate.
        let search = SearchOptions::default().n_candidates(10);
        let found = with_sources([999, NOWHERE], |queries, documents| {
            device.search_coarse_stream(queries, documents, 3, &search, &options())
        });
        assert_eq!(found.expect("a search").rankings[0].n_rescored, 10);
    }
}

#[test]
fn both_stages_are_reported_and_end_early() {
    for device in devices() {
        for stage in [StreamStage::Scan, StreamStage::Rescore] {
            let (interrupt, seen) = (Interrupt::default(), Arc::new(Mutex::new(Vec::new())));
            let (flag, log) = (interrupt.clone(), seen.clone());
            let options = options().progress(move |progress: &StreamProgress| {
                log.lock().expect("the log").push(*progress);
                if progress.stage == stage {
                    flag.raise();
                }
            });
            let found = interrupt.heeded_by(|| {
                let search = SearchOptions::default().n_candidates(200);
                with_sources([NOWHERE; 2], |queries, documents| {
                    device.search_coarse_stream(queries, documents, 3, &search, &options)
                })
            });
            assert!(matches!(found, Err(Error::Interrupted)), "{device}: {found:?}");
            let log = std::mem::take(&mut *seen.lock().expect("the log"));
            assert_eq!(log.iter().filter(|seen| seen.stage == stage).count(), 1, "{device}");

            let found = works(&device, &options);
            let log = seen.lock().expect("the log");
            let last_of = |stage| log.iter().rfind(|seen| seen.stage == stage).expect("progress");
            let (scan, rescore) = (last_of(StreamStage::Scan), last_of(StreamStage::Rescore));
            assert_eq!((scan.documents, scan.n_documents, scan.bytes), (1000, 1000, 1000));
            assert_eq!((rescore.documents, rescore.n_documents), (200, 200));
            // 200 documents of 4 bytes beside the codes.
            assert_eq!((rescore.bytes, found.bytes), (1800, 1800));
            assert_eq!(log.len(), found.n_chunks, "a report of each");
        }
    }
}

#[test]
fn codes_of_other_documents_are_found_out() {
    let others: Vec<f32> = falling().iter().map(|x| -x).collect();
    let rows = falling();
    let tokens = |rows| Tokens::padded(rows, N, 1, 1).expect("tokens");
    let (own, others) = (tokens(&rows), tokens(&others));
    let codes = others.quantize::<Int8>(ScaleType::F32).expect("codes");
    let query = Tokens::padded(&[1.0f32], 1, 1, 1).expect("a query");
    let query_codes = query.quantize::<Int8>(ScaleType::F32).expect("codes");
    let queries = SearchTokens::measured(&query, &query_codes).expect("queries");
    let search = SearchOptions::default().n_candidates(10).exact(true);
    for device in devices() {
        let wrong = SearchSource::known(&own, &codes, None).expect("a corpus");
        match device.search_coarse_stream(&queries, &wrong, 1, &search, &options()) {
            Err(Error::Shape { argument, .. }) => assert_eq!(argument, "compressed documents"),
            other => panic!("{device}: {other:?}"),
        }
        // Bounds that are measured are true of any codes.
        let measured = SearchSource::measured(&own, &codes).expect("a corpus");
        let found = device.search_coarse_stream(&queries, &measured, 1, &search, &options());
        let found = found.expect("a search");
        let best = &found.rankings[0].documents[0];
        assert_eq!((best.id, best.certainty), (0, Certainty::Proven), "{device}");
        let _ = works(&device, &options());
    }
    // Of other items.
    let few = Tokens::padded(&rows[1..], N - 1, 1, 1).expect("tokens");
    let few_codes = few.quantize::<Int8>(ScaleType::F32).expect("codes");
    let masked = own.clone().with_mask(vec![1; N]).expect("tokens");
    let terms = ErrorTerms::new(&few_codes);
    let said = |source: Result<SearchSource<'_, f32, Int8>>| match source {
        Err(Error::Shape { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    assert_eq!(said(SearchSource::known(&few, &codes, None)), "codes");
    assert_eq!(said(SearchSource::assumed(&masked, &codes, None)), "codes");
    assert_eq!(said(SearchSource::measured(&own, &few_codes)), "codes");
    assert_eq!(said(SearchSource::known(&own, &codes, Some(&terms))), "terms");
    // Of the same rows, some of which are no tokens.
    let holes: Vec<u8> = (0..N).map(|row| u8::from(row % 9 != 0)).collect();
    let own = own.with_mask(holes.clone()).expect("tokens");
    let terms = ErrorTerms::new(&codes);
    let codes = codes.with_mask(holes).expect("codes");
    assert_eq!(said(SearchSource::known(&own, &codes, Some(&terms))), "terms");
    // Items as long, whose tokens are other rows.
    let pairs = |place: usize| {
        let mask: Vec<u8> = (0..N).map(|row| u8::from(row % 2 != place)).collect();
        let tokens = Tokens::padded(&rows, N / 2, 2, 1).expect("tokens");
        tokens.with_mask(mask).expect("a mask")
    };
    let codes = pairs(1).quantize::<Int8>(ScaleType::F32).expect("codes");
    assert_eq!(said(SearchSource::measured(&pairs(0), &codes)), "codes");
    assert!(SearchSource::measured(&pairs(1), &codes).is_ok());
}

/// As many queries as there are, none among them, and documents without tokens.
#[test]
fn corpora_without_documents_or_queries_are_searched() {
    let rows = [1.0f32; 5];
    for device in devices() {
        for (n_queries, n, len) in [(0, 0, 1), (0, 5, 1), (2, 0, 1), (2, 5, 0)] {
            let query = Tokens::padded(&rows[..n_queries], n_queries, 1, 1).expect("queries");
            let query_codes = query.quantize::<Int8>(ScaleType::F32).expect("codes");
            let queries = SearchTokens::measured(&query, &query_codes).expect("queries");
            let tokens = Tokens::padded(&rows[..n * len], n, len, 1).expect("tokens");
            let codes = tokens.quantize::<Int8>(ScaleType::F32).expect("codes");
            let source = SearchSource::measured(&tokens, &codes).expect("a corpus");
            let search = SearchOptions::default().exact(true);
            let found = device.search_coarse_stream(&queries, &source, 3, &search, &options());
            let found = found.expect("a search").rankings;
            assert_eq!(found.len(), n_queries, "{device}");
            for ranking in found {
                assert_eq!(ranking.documents.len(), n.min(3), "{device}");
                assert_eq!(ranking.n_empty, n as u64, "{device}");
            }
        }
    }
}

/// Places of a ranking that is exact are those of the documents' own scores.
#[test]
fn exact_places_are_those_of_all_scores() {
    for device in devices() {
        let search = SearchOptions::default().n_candidates(1).exact(true);
        let found = with_sources([NOWHERE; 2], |queries, documents| {
            device.search_coarse_stream(queries, documents, 20, &search, &options())
        });
        let rows = falling();
        let expected = (0u32..20).map(|id| (id, rows[id as usize], Certainty::Proven));
        let found = found.expect("a search");
        let hits = found.rankings[0].documents.iter();
        assert!(hits.map(|hit| (hit.id, hit.score, hit.certainty)).eq(expected), "{found:?}");
    }
}
