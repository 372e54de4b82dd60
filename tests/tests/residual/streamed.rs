//! Searches over residual-compressed documents that pass by: the ranking of documents that are all
//! there.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use half::f16;
use maxsim::format::{Element, with_element};
use maxsim::residual::{
    ArrangedTokens, BitOrder, Centroids, ResidualCodec, ResidualSource, ResidualTokens,
};
use maxsim::streaming::{StreamOptions, Subset};
use maxsim::{
    Device, Devices, Error, Pairing, Ranked, Ranking, ScoreOptions, TokenLayout, Tokens, TopK,
};
use maxsim_tests::case::{Case, Pairs, elements, tokens};
use maxsim_tests::gpu::text;
use maxsim_tests::gradients::all_devices;
use maxsim_tests::residual::scored_cases;
use maxsim_tests::residual::scores::{ResidualCase, in_turns, takes};
use maxsim_tests::suite::Suite;
use maxsim_tests::top_k::check;
use proptest::prelude::*;

/// Chunks of a GPU may have kernels that round sums of centroids and weights in other places.
fn check_close(expected: &[Ranking], found: &[Ranking]) -> Result<(), String> {
    for (query, (expected, found)) in expected.iter().zip(found).enumerate() {
        let counts = |of: &Ranking| (of.ranked.len(), of.n_nan, of.n_empty);
        let pairs = expected.ranked.iter().zip(&found.ranked);
        let is_close = |(e, f): (&maxsim::Ranked, &maxsim::Ranked)| {
            let same = e.score == f.score || e.score.is_nan() && f.score.is_nan();
            same || (e.score - f.score).abs() <= 0.02 * (1.0 + e.score.abs())
        };
        if counts(expected) != counts(found) || !pairs.clone().all(is_close) {
            return Err(format!("query {query}: {found:?} instead of {expected:?}"));
        }
    }
    Ok(())
}

fn check_streamed<T: Element>(
    suite: &Suite,
    case: &ResidualCase,
    buffer_bytes: u64,
    k: usize,
) -> Result<(), String> {
    let data = case.case.data();
    let parts = case.parts(&data.documents);
    let documents = case.tokens(&parts, &data.documents).map_err(text)?;
    let stored: Vec<T> = elements(&data.queries);
    let queries = tokens(&case.case.queries, &data.queries, &stored).map_err(text)?;
    for device in all_devices() {
        if device.ordinal().is_some() && !takes::<T>(&device) {
            continue;
        }
        let handle = device.upload_residual::<T>(&documents).map_err(text)?;
        let (cross, score) = (Pairing::cross(), ScoreOptions::default());
        let whole = device.top_k(&queries, &handle, &cross, &score, k).map_err(text)?;
        for buffer_bytes in [1 << 30, buffer_bytes] {
            let at = |why: String| format!("{device}, buffers of {buffer_bytes}: {why}");
            let options = StreamOptions::default().buffer_bytes(buffer_bytes).threads(2);
            let found = device.search_residual_stream(&queries, &documents, k, &options);
            let found = found.map_err(text)?;
            match device.ordinal().is_none() {
                true => check(&whole, &found.rankings).map_err(at)?,
                false => check_close(&whole, &found.rankings).map_err(at)?,
            }
            let devices = Devices::new(vec![device.clone(); 3]).map_err(text)?;
            let shared = devices.search_residual_stream(&queries, &documents, k, &options);
            check(&found.rankings, &shared.map_err(text)?.rankings).map_err(at)?;
            check_scores(&device, &queries, &documents, &options).map_err(at)?;
            // Buckets that are arranged already, and those that no thread stages: the same bits on
            // a GPU, nothing on the CPU.
            let arranged = [documents.arranged(), device.page_locked_residual(&documents)];
            for arranged in arranged {
                let arranged = arranged.map_err(text)?;
                let again = device.search_residual_stream(&queries, &arranged, k, &options);
                match again {
                    Ok(again) => {
                        check(&found.rankings, &again.rankings).map_err(at)?;
                        let shared =
                            devices.search_residual_stream(&queries, &arranged, k, &options);
                        check(&found.rankings, &shared.map_err(text)?.rankings).map_err(at)?;
                    }
                    Err(Error::Unsupported { .. }) if device.ordinal().is_none() => {}
                    Err(error) => return Err(at(error.to_string())),
                }
            }
        }
        suite.count(&device.to_string());
    }
    Ok(())
}

/// All scores and those of pairs rank as a search does, and so do some of the documents; arranged
/// ones have neither.
fn check_scores<T: Element>(
    device: &Device,
    queries: &Tokens<'_, T>,
    documents: &ResidualTokens<'_>,
    options: &StreamOptions,
) -> Result<(), String> {
    let (layout, n_queries) = (documents.layout(), queries.layout().n_items());
    let ids: Vec<u32> = (0..layout.n_items() as u32).filter(|id| id % 4 != 2).collect();
    let empty = || vec![TopK::new(7); n_queries];
    let (mut by_scores, mut by_pairs, mut some) = (empty(), empty(), empty());
    let ranked = |id: u32, score| Ranked { id, score, has_tokens: layout.has_tokens(id as usize) };
    let done = device.score_residual_stream(queries, documents, options, |found| {
        for (query, scores) in found.scores.chunks_exact(found.documents.len()).enumerate() {
            for (id, &score) in found.documents.clone().zip(scores) {
                by_scores[query].push(ranked(id as u32, score));
                if let Ok(place) = ids.binary_search(&(id as u32)) {
                    let of_some = ranked(id as u32, score);
                    some[query].push(Ranked { id: place as u32, ..of_some });
                }
            }
        }
        maxsim::Result::Ok(())
    });
    let _ = done.map_err(text)?;
    let lists = vec![(0..layout.n_items() as u32).collect::<Vec<u32>>(); n_queries];
    let done = device.score_residual_candidates(queries, documents, &lists, options, |found| {
        for (&[query, id], &score) in found.pairs.iter().zip(found.scores.values()) {
            by_pairs[query as usize].push(ranked(id, score));
        }
        maxsim::Result::Ok(())
    });
    let _ = done.map_err(text)?;
    let listed = device.rank_residual_candidates(queries, documents, &lists, 7, options);
    let listed = listed.map_err(text)?;
    let nan = device.first_residual_nan(queries, documents, options).map_err(text)?;
    let search = |documents: &dyn ResidualSource| {
        device.search_residual_stream(queries, &documents, 7, options).map_err(text)
    };
    let rankings = |best: Vec<TopK>| best.into_iter().map(TopK::into_ranking).collect::<Vec<_>>();
    let compare = match device.ordinal() {
        None => check,
        Some(_) => check_close,
    };
    let whole = search(documents)?.rankings;
    compare(&whole, &rankings(by_scores)).map_err(|why| format!("scores: {why}"))?;
    compare(&whole, &rankings(by_pairs)).map_err(|why| format!("pairs: {why}"))?;
    compare(&whole, &listed).map_err(|why| format!("candidates: {why}"))?;
    if nan.is_some() != whole.iter().any(|ranking| ranking.n_nan > 0) {
        return Err(format!("the first NaN is {nan:?}"));
    }
    let subset = Subset::of_residuals(documents, &ids).map_err(text)?;
    let found = search(&subset)?.rankings;
    compare(&rankings(some), &found).map_err(|why| format!("some documents: {why}"))
}

#[test]
fn residuals_as_if_all_were_there() {
    let strategy = || {
        let buffer_bytes = prop_oneof![1..500u64, 500..20_000u64];
        (scored_cases::cases(), buffer_bytes, 0..40usize)
    };
    Suite::run_random("streamed_residuals", strategy, |suite, (case, buffer_bytes, k)| {
        let cross = Case { pairs: Pairs::Cross, document_splits: None, ..case.case.clone() };
        let case = ResidualCase { case: cross, ..case.clone() };
        with_element!(case.case.element, T => check_streamed::<T>(suite, &case, *buffer_bytes, *k))
    });
}

/// Queries of many rows, for which a device decodes the documents of a chunk before it scores them.
#[test]
fn many_query_rows() {
    let cases = in_turns((0..6).map(|seed| {
        let case = Case::new(128, &[300, 700], &[200; 300]);
        Case { seed, poison: seed % 2 == 1, pairs: Pairs::Cross, ..case }
    }));
    let name = "streamed_residuals_of_many_query_rows";
    Suite::run(name, cases, |suite, case| {
        let (buffer_bytes, k) = (1 << 20, 20);
        with_element!(case.case.element, T => check_streamed::<T>(suite, case, buffer_bytes, k))
    });
}

/// A corpus of which one row is read wrongly.
struct Wrong<'a> {
    tokens: ResidualTokens<'a>,
    row: usize,
    /// A code of no centroid; `None`: the row cannot be read.
    code: Option<i32>,
}

impl ResidualSource for Wrong<'_> {
    fn codec(&self) -> &Arc<ResidualCodec<'_>> {
        self.tokens.codec()
    }

    fn order(&self) -> BitOrder {
        self.tokens.order()
    }

    fn layout(&self) -> &TokenLayout {
        self.tokens.layout()
    }

    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()> {
        self.tokens.fill(rows.clone(), codes, residuals)?;
        match (rows.contains(&self.row), self.code) {
            (false, _) => Ok(()),
            (true, Some(code)) => {
                codes[self.row - rows.start] = code;
                Ok(())
            }
            (true, None) => Err(io::Error::other("the disk is gone")),
        }
    }
}

#[test]
fn wrong_codes_and_rows_that_cannot_be_read() {
    let case = ResidualCase {
        n_centroids: 5,
        ..in_turns([Case::new(128, &[32], &[10; 100])]).swap_remove(0)
    };
    let data = case.case.data();
    let parts = case.parts(&data.documents);
    let stored: Vec<f16> = elements(&data.queries);
    let queries: Tokens<'_, f16> = tokens(&case.case.queries, &data.queries, &stored).unwrap();
    let options = StreamOptions::default().buffer_bytes(5000).threads(2);
    for device in all_devices() {
        let search = |row: usize, code: Option<i32>| {
            let tokens = case.tokens(&parts, &data.documents).expect("tokens");
            let wrong = Wrong { tokens, row, code };
            device.search_residual_stream(&queries, &wrong, 3, &options)
        };
        for row in [0, 555, 999] {
            for code in [5, -1, i32::MAX, i32::MIN] {
                match search(row, Some(code)) {
                    Err(Error::Id { argument: "codes", index, found, n_items: 5 }) => {
                        assert_eq!((index, found), (row, code.into()), "{device}");
                    }
                    other => panic!("{device}: {other:?}"),
                }
            }
            match search(row, None) {
                Err(Error::Source { source, .. }) => {
                    assert_eq!(source.to_string(), "the disk is gone");
                }
                other => panic!("{device}: {other:?}"),
            }
            assert_eq!(search(1000, None).expect("a search").rankings[0].ranked.len(), 3);
        }
    }
}

/// Arranged tokens that say to be another corpus.
struct Renamed<'a> {
    arranged: &'a ArrangedTokens<'a>,
    codec: Arc<ResidualCodec<'a>>,
    layout: TokenLayout,
}

impl ResidualSource for Renamed<'_> {
    fn codec(&self) -> &Arc<ResidualCodec<'_>> {
        &self.codec
    }

    fn order(&self) -> BitOrder {
        self.arranged.order()
    }

    fn layout(&self) -> &TokenLayout {
        &self.layout
    }

    fn is_arranged(&self) -> bool {
        true
    }

    fn as_arranged(&self) -> Option<&ArrangedTokens<'_>> {
        Some(self.arranged)
    }

    fn fill(&self, rows: Range<usize>, codes: &mut [i32], residuals: &mut [u8]) -> io::Result<()> {
        self.arranged.fill(rows, codes, residuals)
    }
}

/// Codes that no thread looks at again are those of the codec's centroids, one for each row.
#[test]
fn arranged_tokens_of_another_codec_or_layout() {
    let codec = |n_centroids: usize, nbits: u32| {
        let centroids = Centroids::F32(vec![0.25; n_centroids * 128].into());
        let weights = vec![0.5; 1 << nbits];
        Arc::new(ResidualCodec::new(nbits, 128, centroids, &weights, true).expect("a codec"))
    };
    let layout = |n: usize| TokenLayout::padded(n, 1, 128).expect("a layout");
    let (codes, buckets, order) = (vec![4i32, 0, 1], vec![7; 3 * 32], BitOrder::Colbert);
    let tokens = ResidualTokens::new(codec(5, 2), codes, buckets, order, layout(3));
    let tokens = tokens.expect("tokens");
    let query = vec![f16::ONE; 128];
    let query = Tokens::padded(&query, 1, 1, 128).expect("a query");
    for device in all_devices() {
        let arranged = device.page_locked_residual(&tokens).expect("memory");
        let search = |n_centroids: usize, nbits: u32, n: usize| {
            let (codec, layout) = (codec(n_centroids, nbits), layout(n));
            let renamed = Renamed { arranged: &arranged, codec, layout };
            device.search_residual_stream(&query, &renamed, 3, &StreamOptions::default())
        };
        for (n_centroids, nbits, n, argument) in
            [(4, 2, 3, "documents"), (5, 4, 3, "documents"), (5, 2, 2, "codes"), (5, 2, 4, "codes")]
        {
            match search(n_centroids, nbits, n) {
                Err(Error::Shape { argument: of, .. }) => assert_eq!(of, argument, "{device}"),
                other => panic!("{device}: {other:?}"),
            }
        }
        match search(6, 2, 3) {
            Ok(found) => assert_eq!(found.rankings[0].ranked.len(), 3),
            Err(Error::Unsupported { .. }) if device.ordinal().is_none() => {}
            Err(error) => panic!("{device}: {error}"),
        }
    }
}
