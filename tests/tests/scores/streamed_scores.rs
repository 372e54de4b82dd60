//! All scores of documents that pass by, of some of them, and of pairs: to the bit those of
//! documents that are all there.

use std::sync::Mutex;

use half::f16;
use maxsim::format::{
    Element, ElementType, Format, Fp8, Int8, Int8Affine, Quantized, ScaleType, ScorableWith,
};
use maxsim::streaming::{ScoredDocuments, ScoredPairs, StreamOptions, Subset};
use maxsim::{
    Device, Devices, Error, Interrupt, Pairing, Ranked, Ranking, ScoreOptions, TokenLayout, Tokens,
    TopK,
};
use maxsim_tests::case::{Case, elements, tokens};
use maxsim_tests::gpu::text;
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;
use maxsim_tests::top_k::check;
use maxsim_tests::values::Values;
use proptest::prelude::*;

use crate::streamed::{Streamed, buffer_bytes, from_every_source, on_all_devices, streamed};

/// Whether scores are the same, to the bit but for the sign of 0 and what NaN is.
fn same(a: f32, b: f32) -> bool {
    (a + 0.0).to_bits() == (b + 0.0).to_bits() || a.is_nan() && b.is_nan()
}

fn compare(what: &str, expected: &[f32], found: &[f32]) -> Result<(), String> {
    let differs = expected.iter().zip(found).position(|(&a, &b)| !same(a, b));
    match (expected.len() == found.len(), differs) {
        (true, None) => Ok(()),
        (true, Some(i)) => Err(format!("{what}: score {i} is {}, not {}", found[i], expected[i])),
        (false, _) => Err(format!("{what}: {} scores, not {}", found.len(), expected.len())),
    }
}

/// What takes the scores of a chunk.
type Take<'a> = &'a mut (dyn FnMut(ScoredDocuments<'_>) -> maxsim::Result<()> + Send);

/// The scores `[n_queries, n_documents]` that a call gives chunk after chunk.
fn collected(
    [n_queries, n_documents]: [usize; 2],
    call: impl FnOnce(Take<'_>) -> Result<(), String>,
) -> Result<Vec<f32>, String> {
    let mut all = vec![f32::MAX; n_queries * n_documents];
    let mut next = 0;
    call(&mut |found| {
        assert_eq!(found.documents.start, next);
        next = found.documents.end;
        let rows = found.scores.chunks_exact(found.documents.len());
        for (row, scores) in all.chunks_exact_mut(n_documents).zip(rows) {
            row[found.documents.clone()].copy_from_slice(scores);
        }
        Ok(())
    })?;
    assert_eq!(next, n_documents);
    Ok(all)
}

/// The ranking of some documents' scores `[n_queries, n_documents]`, numbered by their places.
fn ranked(
    layout: &TokenLayout,
    (n_queries, scores): (usize, &[f32]),
    ids: &[u32],
    k: usize,
) -> Vec<Ranking> {
    let n = layout.n_items();
    let of_row = |row: &[f32]| {
        let mut best = TopK::new(k);
        for (place, &id) in (0u32..).zip(ids) {
            let has_tokens = layout.has_tokens(id as usize);
            best.push(Ranked { id: place, score: row[id as usize], has_tokens });
        }
        best.into_ranking()
    };
    (0..n_queries).map(|query| of_row(&scores[query * n..][..n])).collect()
}

fn check_scores<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    (queries, documents): (&Tokens<'_, Q>, &Tokens<'_, D>),
    case: &Streamed,
    buffer_bytes: u64,
) -> Result<(), String> {
    let score = ScoreOptions::default().normalize(case.case.normalize);
    let sizes @ [_, n] = [queries.layout().n_items(), documents.layout().n_items()];
    let all = documents.items(0..n).map_err(text)?;
    let whole = device.score_with(queries, &all, &Pairing::cross(), &score).map_err(text)?;
    let options =
        StreamOptions::default().score(score).buffer_bytes(buffer_bytes).threads(case.threads);
    let ids: Vec<u32> = (0..n as u32).filter(|id| id % 5 != 1 && id % 3 != 0).collect();
    let expected = ranked(all.layout(), (sizes[0], whole.values()), &ids, case.k);
    from_every_source(device, documents, |source, documents| {
        let scores = collected(sizes, |take| {
            let done = device.score_stream(queries, &documents, &options, take).map_err(text)?;
            match done.kernels.is_empty() == (n == 0) && (done.n_chunks == 0) == (n == 0) {
                true => Ok(()),
                false => Err(format!("{source}: {done:?}")),
            }
        })?;
        compare(source, whole.values(), &scores)?;
        // Some of them, where chunks of a GPU round as the whole does.
        if device.ordinal().is_some() && buffer_bytes == 1 << 30 {
            return Ok(());
        }
        let some = Subset::new(documents, &ids).map_err(text)?;
        let found = device.search_stream(queries, &some, case.k, &options).map_err(text)?;
        check(&expected, &found.rankings).map_err(|why| format!("some of {source}: {why}"))
    })
}

fn check_elements<T: Element>(suite: &Suite, streamed: &Streamed) -> Result<(), String> {
    on_all_devices::<T>(suite, streamed, check_scores)
}

#[test]
fn scores_of_f16_as_if_all_were_there() {
    Suite::run_random("streamed_scores_f16", || streamed(ElementType::F16), check_elements::<f16>);
}

#[test]
fn scores_of_f32_as_if_all_were_there() {
    Suite::run_random("streamed_scores_f32", || streamed(ElementType::F32), check_elements::<f32>);
}

/// Codes of every format, whose sums a GPU rounds alike in one chunk.
#[test]
fn scores_of_codes_as_if_all_were_there() {
    fn coded<Q: Quantized + ScorableWith<D>, D: Quantized>(
        [queries, documents]: [&Tokens<'_, f32>; 2],
        streamed: &Streamed,
    ) -> Result<(), String> {
        let queries = queries.quantize::<Q>(ScaleType::F16).map_err(text)?;
        let documents = documents.quantize::<D>(ScaleType::F16).map_err(text)?;
        for device in all_devices() {
            let buffer_bytes =
                if device.ordinal().is_some() { 1 << 30 } else { streamed.buffer_bytes };
            check_scores(&device, (&queries, &documents), streamed, buffer_bytes)
                .map_err(|why| format!("{device}, {}: {why}", D::FORMAT))?;
        }
        Ok(())
    }
    let strategy = || streamed(ElementType::F32);
    Suite::run_random_on_kernels("streamed_scores_codes", strategy, |suite, streamed| {
        let (values, normalize, poison) = (Values::Integers, false, false);
        let case = Case { values, normalize, poison, ..streamed.case.clone() };
        let streamed = &Streamed { case, ..streamed.clone() };
        let (case, data) = (&streamed.case, streamed.case.data());
        let stored = [elements::<f32>(&data.queries), elements::<f32>(&data.documents)];
        let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
        let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
        let sides = [&queries, &documents];
        coded::<Int8, Int8>(sides, streamed)?;
        coded::<Int8, Int8Affine>(sides, streamed)?;
        coded::<Fp8, Fp8>(sides, streamed)?;
        all_devices().iter().for_each(|device| suite.count(&device.to_string()));
        Ok(())
    });
}

/// Each pair comes once, by query and document, with the score and the winners that it has among
/// documents that are all there.
#[test]
fn candidates_have_the_scores_and_winners_of_pairs() {
    let strategy = || {
        let list = prop::collection::vec(any::<prop::sample::Index>(), 0..20);
        (streamed(ElementType::F32), prop::collection::vec(list, 1..50))
    };
    Suite::run_random("streamed_pairs", strategy, |suite, (streamed, lists)| {
        let (case, data) = (&streamed.case, streamed.case.data());
        let stored = [elements::<f32>(&data.queries), elements::<f32>(&data.documents)];
        let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
        let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
        let n = documents.layout().n_items();
        let list = |query: usize| -> Vec<u32> {
            let list = lists[query % lists.len()].iter().filter(|_| n > 0);
            list.map(|id| id.index(n.max(1)) as u32).collect()
        };
        let candidates: Vec<Vec<u32>> = (0..queries.layout().n_items()).map(list).collect();
        for device in all_devices() {
            // Batches have kernels of their own on a GPU.
            if device.ordinal().is_some() && buffer_bytes(&device, streamed) == 1 << 30 {
                continue;
            }
            // The winners of equal similarities are the first, on every engine.
            let score = ScoreOptions::default().normalize(case.normalize).winners(true);
            let options = StreamOptions::default()
                .score(score.clone())
                .buffer_bytes(streamed.buffer_bytes)
                .threads(streamed.threads);
            let several = Devices::new(vec![device.clone(); 3]).map_err(text)?;
            let of_several = [None, Some(&several)];
            for several in of_several {
                from_every_source(&device, &documents, |source, of_source| {
                    let mut found = Vec::new();
                    let take = |scored: ScoredPairs<'_>| -> maxsim::Result<()> {
                        let (Some(winners), Some(offsets)) =
                            (scored.scores.winners(), scored.scores.token_offsets())
                        else {
                            panic!("no winners");
                        };
                        assert!(scored.pairs.is_sorted());
                        for (p, (&pair, &score)) in
                            scored.pairs.iter().zip(scored.scores.values()).enumerate()
                        {
                            found.push((pair, score, winners[offsets.range(p)].to_vec()));
                        }
                        Ok(())
                    };
                    let (from, lists) = (&of_source, &candidates);
                    let done = match several {
                        None => device.score_candidates(&queries, from, lists, &options, take),
                        Some(all) => all.score_candidates(&queries, from, lists, &options, take),
                    };
                    let _ = done.map_err(|error| format!("{source}: {error}"))?;
                    found.sort_by_key(|(pair, ..)| *pair);
                    let mut pairs: Vec<[u32; 2]> = (0u32..)
                        .zip(&candidates)
                        .flat_map(|(query, list)| list.iter().map(move |&id| [query, id]))
                        .collect();
                    pairs.sort_unstable();
                    let ids =
                        |side: usize| pairs.iter().map(|pair| pair[side]).collect::<Vec<u32>>();
                    let pairing = Pairing::pairs(&ids(0), &ids(1)).map_err(text)?;
                    let whole = device.score_with(&queries, &documents, &pairing, &score);
                    let whole = whole.map_err(text)?;
                    let found_pairs: Vec<[u32; 2]> = found.iter().map(|(pair, ..)| *pair).collect();
                    let scores: Vec<f32> = found.iter().map(|(_, score, _)| *score).collect();
                    let winners: Vec<i32> =
                        found.into_iter().flat_map(|(_, _, winners)| winners).collect();
                    if found_pairs != pairs || whole.winners() != Some(&winners[..]) {
                        return Err(format!("{source}: other pairs or winners"));
                    }
                    compare(source, whole.values(), &scores)
                })
                .map_err(|why| format!("{device}: {why}"))?;
            }
            suite.count(&device.to_string());
        }
        Ok(())
    });
}

/// An error of the caller ends a call and is what it gives; an interrupt ends it, too. The next one
/// works.
#[test]
fn calls_end_with_an_error_of_the_caller() {
    #[derive(Debug)]
    enum Ended {
        Enough(usize),
        Failed(Error),
    }
    impl From<Error> for Ended {
        fn from(error: Error) -> Ended {
            Ended::Failed(error)
        }
    }
    let rows: Vec<f32> = (0..100).map(|row| row as f32).collect();
    let documents = Tokens::padded(&rows, 100, 1, 1).expect("documents");
    let query = Tokens::padded(&[1.0f32], 1, 1, 1).expect("a query");
    let options = StreamOptions::default().buffer_bytes(10 * 16);
    for device in all_devices() {
        let mut n_seen = 0;
        let ended = device.score_stream(&query, &documents, &options, |found| {
            n_seen += found.documents.len();
            if n_seen >= 30 { Err(Ended::Enough(n_seen)) } else { Ok(()) }
        });
        assert!(matches!(ended, Err(Ended::Enough(30..100))), "{device}: {ended:?}");
        let interrupt = Interrupt::default();
        let n_taken = Mutex::new(0);
        let ended = interrupt.heeded_by(|| {
            device.score_stream(&query, &documents, &options, |_| {
                *n_taken.lock().expect("no panic") += 1;
                interrupt.raise();
                Ok::<(), Ended>(())
            })
        });
        assert!(matches!(ended, Err(Ended::Failed(Error::Interrupted))), "{device}: {ended:?}");
        assert_eq!(*n_taken.lock().expect("no panic"), 1);
        let lists = [(0..100).collect::<Vec<u32>>()];
        let ended = device.score_candidates(&query, &documents, &lists, &options, |found| {
            Err(Ended::Enough(found.pairs.len()))
        });
        assert!(matches!(ended, Err(Ended::Enough(1..100))), "{device}: {ended:?}");
        let several = Devices::new(vec![device.clone(); 3]).expect("devices");
        let ended = several.score_candidates(&query, &documents, &lists, &options, |found| {
            Err(Ended::Enough(found.pairs.len()))
        });
        assert!(matches!(ended, Err(Ended::Enough(1..100))), "{device}: {ended:?}");
        let mut sum = 0.0;
        let done = device.score_stream(&query, &documents, &options, |found| {
            sum += found.scores.iter().sum::<f32>();
            Ok::<(), Ended>(())
        });
        assert_eq!((done.expect("scores").bytes, sum), (400, 4950.0), "{device}");
    }
}

/// What a subset refuses.
#[test]
fn ids_of_a_subset_rise_and_are_there() {
    let documents = Tokens::padded(&[1.0f32, 2.0, 3.0], 3, 1, 1).expect("documents");
    for (ids, index) in [(&[0u32, 2, 2][..], 2), (&[1, 0], 1)] {
        match Subset::new(&documents, ids) {
            Err(Error::Offset { argument: "ids", index: at, .. }) => assert_eq!(at, index),
            other => panic!("{other:?}"),
        }
    }
    let none = Subset::new(&documents, &[1, 3]);
    assert!(matches!(none, Err(Error::Id { argument: "ids", index: 1, found: 3, n_items: 3 })));
}
