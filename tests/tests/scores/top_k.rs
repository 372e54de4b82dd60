//! The best of each query, selected where the scores are: on every device the ranking that the host
//! gives of the scores that it reads.

use maxsim::{Device, Pairing, ScoreOptions};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;
use maxsim_tests::top_k::{Corpus, Empty, Scored, VALUES, Values, check};
use proptest::prelude::*;

/// Fewer documents than a warp, than a CTA; of whole rounds of a CTA and not.
const LENS: [usize; 9] = [0, 1, 7, 33, 511, 512, 513, 4096, 5000];

const KS: [usize; 8] = [0, 1, 2, 10, 100, 513, 4095, 4096];

/// Selects twice, and compares with the host both times.
fn check_all(
    device: &Device,
    corpus: &Corpus,
    (pairing, pairs): (&Pairing, &[[u32; 2]]),
    k: usize,
) -> Result<(), String> {
    let [queries, documents] = corpus.tokens().map_err(text)?;
    let scored = Scored::new(device, [&queries, &documents], pairing, k).map_err(text)?;
    let expected = scored.expected(pairing, pairs, k).map_err(text)?;
    let best = scored.best(device).map_err(text)?;
    check(&expected, &best.read().map_err(text)?)?;
    let again = scored.best(device).map_err(text)?;
    check(&expected, &again.read().map_err(text)?).map_err(|why| format!("again: {why}"))?;
    let options = ScoreOptions::default();
    let at_once = device.top_k(&queries, &documents, pairing, &options, k).map_err(text)?;
    check(&expected, &at_once).map_err(|why| format!("at once: {why}"))
}

#[test]
fn selections_are_those_of_the_host() {
    let mut cases = Vec::new();
    for (i, n) in LENS.into_iter().enumerate() {
        for (j, values) in VALUES.into_iter().enumerate() {
            let empty = [Empty::None, Empty::Third, Empty::Most, Empty::All][(i + j) % 4];
            cases.push((values, empty, n, [1, 3, 8][(i + j) % 3]));
        }
    }
    Suite::run("top_k", cases, |suite, &(values, empty, n, n_queries)| {
        let corpus = Corpus::new(values, empty, n, n_queries, n as u64 + 1);
        for device in all_devices() {
            for k in KS {
                check_all(&device, &corpus, (&Pairing::cross(), &[]), k)
                    .map_err(|why| format!("{device}, k = {k}: {why}"))?;
            }
            suite.count(&device.to_string());
        }
        Ok(())
    });
}

/// Candidates of each query's own and out of shared documents, some of them twice; and lists of
/// pairs, of which queries have any number and in any order.
#[test]
fn selections_of_candidates_and_of_ragged_lists() {
    let cases: Vec<(Values, usize)> =
        VALUES.into_iter().flat_map(|values| [3, 70, 1200].map(|n| (values, n))).collect();
    Suite::run("top_k_of_candidates", cases, |suite, &(values, n)| {
        let n_queries = 5;
        let own = Corpus::new(values, Empty::Third, n * n_queries, n_queries, 7);
        let shared = Corpus::new(values, Empty::Third, 400, n_queries, 8);
        let ids: Vec<u32> = (0..n * n_queries).map(|i| (i * i % 397 % 350) as u32).collect();
        let candidates = Pairing::candidates(&ids, n).map_err(text)?;
        // Nothing for query 3, and most for query 1.
        let query = |i: usize| [1u32, 4, 1, 0, 1, 2, 1][(i * 5 + i / 7) % 7];
        let mut pairs: Vec<[u32; 2]> =
            ids.iter().enumerate().map(|(i, &id)| [query(i), id]).collect();
        for device in all_devices() {
            let at = |why: String| format!("{device}: {why}");
            for k in [1, 10, 2000] {
                check_all(&device, &own, (&Pairing::own_candidates(n), &[]), k).map_err(at)?;
                check_all(&device, &shared, (&candidates, &[]), k).map_err(at)?;
                for is_sorted in [false, true] {
                    if is_sorted {
                        pairs.sort_by_key(|pair| pair[0]);
                    }
                    let [queries, documents] =
                        [0, 1].map(|i| pairs.iter().map(|pair| pair[i]).collect::<Vec<u32>>());
                    let pairing = Pairing::pairs(&queries, &documents).map_err(text)?;
                    check_all(&device, &shared, (&pairing, &pairs), k).map_err(at)?;
                }
                pairs.reverse();
            }
            suite.count(&device.to_string());
        }
        Ok(())
    });
}

/// Rows that stay in registers, just and just not; of several chunks and of several levels of
/// selections, whose groups are searched first or are too few; and many rows, in several rounds.
#[test]
fn long_rows_and_many() {
    Suite::run_gpu("gpu_top_k_long", |suite| {
        // A sanitizer takes a thousand times as long.
        let is_timed = std::env::var("MAXSIM_UNTIMED").as_deref() != Ok("1");
        let mut shapes = vec![
            (1, 1_000_000, 100),
            (1, 1_000_000, 4096),
            (3, 20_000, 100),
            (2, 32_768, 256),
            (2, 32_769, 256),
            (2, 32_767, 257),
            (32, 50_000, 100),
            (8, 65_537, 1),
            (3, 300_000, 1000),
            (3, 200_001, 4096),
            (700, 70_000, 4096),
            (700, 70_000, 100),
            (1, 20_000_000, 4096),
            (1, 20_000_000, 10),
            (2, 300_000, 0),
            (100_000, 40, 3),
        ];
        shapes.retain(|&(n_queries, n, _)| is_timed || n_queries * n <= 1_000_000);
        let mut n_cases = 0;
        for device in cuda_devices() {
            for &(n_queries, n, k) in &shapes {
                let all = if n * n_queries > 10_000_000 { &VALUES[..2] } else { &VALUES[..] };
                for &values in all {
                    let empty = if values == Values::Ties { Empty::Third } else { Empty::None };
                    let corpus = Corpus::new(values, empty, n, n_queries, 5);
                    check_all(device, &corpus, (&Pairing::cross(), &[]), k)
                        .map_err(|why| format!("{device} {n_queries} × {n}, k = {k}: {why}"))?;
                    n_cases += 1;
                }
                suite.count(&device.to_string());
            }
        }
        Ok(n_cases)
    });
}

/// The corpus whole, and in chunks of any size whose best are added to a running best, or kept
/// apart and merged.
fn check_chunks(device: &Device, corpus: &Corpus, cuts: &[usize], k: usize) -> Result<(), String> {
    use maxsim::stream::Queue;
    let cross = Pairing::cross();
    let [queries, documents] = corpus.tokens().map_err(text)?;
    let whole = Scored::new(device, [&queries, &documents], &cross, k).map_err(text)?;
    let expected = whole.expected(&cross, &[], k).map_err(text)?;
    let mut best = whole.top_k.new_best().map_err(text)?;
    let mut merged = whole.top_k.new_best().map_err(text)?;
    let mut apart = Vec::new();
    let mut stream = device.stream().map_err(text)?;
    for range in cuts.windows(2).rev() {
        let chunk = corpus.documents(range[0], range[1]).map_err(text)?;
        let scored = Scored::new(device, [&queries, &chunk], &cross, k).map_err(text)?;
        let first_id = range[0] as u32;
        stream.top_k_more(&scored.scores, &scored.top_k, first_id, &mut best).map_err(text)?;
        let mut own = whole.top_k.new_best().map_err(text)?;
        stream.top_k_more(&scored.scores, &scored.top_k, first_id, &mut own).map_err(text)?;
        stream.merge_top_k(&own, &mut merged).map_err(text)?;
        apart.push(own.read().map_err(text)?);
    }
    check(&expected, &best.read().map_err(text)?).map_err(|why| format!("running: {why}"))?;
    check(&expected, &merged.read().map_err(text)?).map_err(|why| format!("merged: {why}"))?;
    let on_host: Vec<_> = (0..expected.len())
        .map(|query| maxsim::Ranking::merge(apart.iter().map(|best| best[query].clone()), k))
        .collect();
    check(&expected, &on_host).map_err(|why| format!("merged on the host: {why}"))
}

#[test]
fn chunks_in_any_order_are_the_whole() {
    let strategy = || {
        let values = prop::sample::select(VALUES.to_vec());
        let empty = prop::sample::select(vec![Empty::None, Empty::Third, Empty::Most]);
        let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..5);
        let k = prop_oneof![0..5usize, 0..1500usize];
        (values, empty, 1..1200usize, 1..4usize, cuts, k, any::<u64>())
    };
    Suite::run_random("top_k_of_chunks", strategy, |suite, case| {
        let (values, empty, n, n_queries, cuts, k, seed) = case;
        let corpus = Corpus::new(*values, *empty, *n, *n_queries, *seed);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(n + 1)).collect();
        cuts.extend([0, *n]);
        cuts.sort_unstable();
        for device in all_devices() {
            check_chunks(&device, &corpus, &cuts, *k).map_err(|why| format!("{device}: {why}"))?;
            suite.count(&device.to_string());
        }
        Ok(())
    });
}

#[test]
fn long_chunks_are_the_whole() {
    Suite::run_gpu("gpu_top_k_of_long_chunks", |suite| {
        for device in cuda_devices() {
            for values in VALUES {
                let corpus = Corpus::new(values, Empty::Third, 400_000, 2, 3);
                for k in [100, 4096] {
                    check_chunks(device, &corpus, &[0, 70_000, 70_001, 200_000, 400_000], k)
                        .map_err(|why| format!("{device} {values:?}, k = {k}: {why}"))?;
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len() * VALUES.len() * 2)
    });
}
