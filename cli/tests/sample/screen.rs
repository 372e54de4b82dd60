//! Coarse to fine on real embeddings: `maxsim rank --screen`, and what screening winners loses.
//!
//! The sample in the repository, and where it is there the set of 1000 documents and 250 queries;
//! on the CPU, and on a CUDA device where there is one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::files::{Random, padded};
use crate::part::{Set, real_set};
use crate::tool::{Folder, json, rank, run, sample};
use half::f16;
use indicatif::ProgressBar;
use maxsim::format::{Int8, ScaleType, TokenFormat};
use maxsim::search::{CoarseCodes, SearchOptions};
use maxsim::{Device, Devices, Pairing, ScoreOptions, Tokens};
use maxsim_cli::documents::Documents;
use maxsim_cli::input::{Reading, TokenFile};
use maxsim_cli::provenance::Proof;
use maxsim_cli::rank::search;
use maxsim_cli::rank::stream::Request;
use maxsim_cli::selection::Selected;
use serde_json::Value;
use tempfile::TempDir;

const FORMATS: [&str; 3] = ["int8", "int8-affine", "fp8"];

/// The sets that are there.
fn sets(skipped: &str) -> Vec<Set> {
    let sample = PathBuf::from("examples/debian-packages");
    [Some(sample.into()), real_set(skipped)].into_iter().flatten().collect()
}

fn devices() -> Vec<Device> {
    let device = Device::cuda(0);
    if let Err(error) = &device {
        let required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "MAXSIM_REQUIRE_GPU=1, but {error}");
        eprintln!("SKIPPED (no CUDA device): coarse to fine on real embeddings");
    }
    [Device::cpu()].into_iter().chain(device).collect()
}

/// The documents of a set, compressed.
fn compressed(set: &Path, folder: &TempDir, format: &str) -> PathBuf {
    let output = folder.path().join(format!("{format}.safetensors"));
    let input = set.join("documents.safetensors");
    let paths = [input.to_str().unwrap(), output.to_str().unwrap()];
    let args = ["quantize", "--format", format, "--input", paths[0], "--output", paths[1]];
    run(args).ok();
    output
}

/// Ids, scores, and places proven of a query.
type Found = (Vec<u64>, Vec<f64>, Option<u64>);

/// What a run found for each query, and said.
fn found(set: &Path, more: &[&str]) -> (Vec<Found>, String) {
    let (queries, documents) = (set.join("queries.safetensors"), set.join("documents.safetensors"));
    let more = [&["--format", "json"], more].concat();
    let run = rank(&queries, &documents, &more);
    let stderr = run.stderr.clone();
    let output = json(&run.ok());
    let of = |query: &Value| {
        let array = |key: &str| query[key].as_array().unwrap().iter();
        let ids = array("documents").map(|id| id.as_u64().unwrap()).collect();
        let scores = array("scores").map(|score| score.as_f64().unwrap()).collect();
        (ids, scores, query["proven"].as_u64())
    };
    (output["queries"].as_array().unwrap().iter().map(of).collect(), stderr)
}

/// Whether two rankings are one, but for scores that rounding may have swapped.
fn same(a: &[u64], b: &[u64], scores: &[[f64; 2]], is_cpu: bool) -> bool {
    let near = |[a, b]: &[f64; 2]| (a - b).abs() <= 1e-5 * b.abs();
    if is_cpu { a == b } else { scores.iter().all(near) }
}

#[test]
fn exact_searches_find_the_exact_ten_of_every_query() {
    for set in sets("exact searches") {
        let folder = TempDir::new().unwrap();
        for device in devices() {
            let name = device.to_string();
            let (exact, _) = found(&set, &["--device", &name]);
            assert!(exact.iter().all(|(ids, _, proven)| ids.len() == 10 && proven.is_none()));
            for format in FORMATS {
                let screen = compressed(&set, &folder, format);
                let screen = screen.to_str().unwrap();
                // So few candidates that proofs take more.
                let options = ["--screen", screen, "--exact", "--shortlist", "10"];
                let (queries, said) = found(&set, &[&["--device", &name][..], &options].concat());
                assert_eq!(queries.len(), exact.len());
                for (q, (query, exact)) in queries.iter().zip(&exact).enumerate() {
                    let (ids, scores, proven) = query;
                    let both: Vec<[f64; 2]> =
                        scores.iter().zip(&exact.1).map(|(&a, &b)| [a, b]).collect();
                    let is_same = same(ids, &exact.0, &both, device.ordinal().is_none());
                    assert!(is_same, "{name} {format}, query {q}: {query:?}, exactly {exact:?}");
                    assert_eq!(*proven, Some(10), "{name} {format}, query {q}");
                }
                eprint!("{}: {said}", set.display());
            }
        }
    }
}

#[test]
fn proven_places_are_right_and_likely_ones_mostly() {
    for set in sets("proven places") {
        let folder = TempDir::new().unwrap();
        let (exact, _) = found(&set, &[]);
        for format in FORMATS {
            let screen = compressed(&set, &folder, format);
            let options = ["--screen", screen.to_str().unwrap(), "--shortlist", "20"];
            let (queries, said) = found(&set, &options);
            // Chunks are nothing that shows.
            let (in_chunks, _) =
                found(&set, &[&options[..], &["--chunk-bytes", "300000"]].concat());
            assert_eq!(queries, in_chunks, "{format}");
            let mut n_right = 0;
            for ((ids, _, proven), (exact, ..)) in queries.iter().zip(&exact) {
                let proven = proven.unwrap() as usize;
                assert_eq!(ids[..proven], exact[..proven], "{format}");
                n_right += ids.iter().zip(exact).filter(|(a, b)| a == b).count();
            }
            assert!(n_right as f64 > 0.99 * 10.0 * queries.len() as f64, "{format}: {n_right}");
            assert!(said.contains("scored again") && said.contains("places proven"), "{said}");
            eprint!("{}: {said}", set.display());
        }
    }
}

/// The bar of a search counts pairs first, and then the pairs that are scored again.
#[test]
fn progress_is_in_what_it_says() {
    let set = Path::new("examples/debian-packages");
    let folder = TempDir::new().unwrap();
    let open = |path: &Path| TokenFile::open(path, Reading::Map).unwrap();
    let queries = open(&set.join("queries.safetensors"));
    let documents = open(&set.join("documents.safetensors"));
    let screen = open(&compressed(set, &folder, "int8"));
    let progress = ProgressBar::hidden().with_message("pairs");
    let request = Request {
        queries: &queries,
        documents: &Documents::Tokens(&documents),
        selected: &Selected::All,
        device: &Device::cpu(),
        devices: None,
        options: &ScoreOptions::default(),
        query_scales: ScaleType::F16,
        allow_infinite: false,
        top_k: 10,
        chunk_bytes: None,
        progress: &progress,
    };
    let options = SearchOptions::default().n_candidates(10).exact(false);
    let found = maxsim_cli::rank::screen::rank(&request, &screen, Proof::None, options).unwrap();
    let n_pairs = found.search.unwrap().n_rescored;
    assert_eq!((progress.position(), progress.length()), (n_pairs, Some(n_pairs)));
    assert_eq!(progress.message(), "pairs to score again");
}

/// The bar moves while one document is scored, and the scores are those of one call.
#[test]
fn progress_is_in_shares_of_a_long_document() {
    let (n_queries, query_len, len, dim) = (48usize, 64, 1usize << 16, 32);
    let folder = Folder::empty();
    let mut random = Random(7);
    let (of_queries, of_documents) =
        (random.values(n_queries * query_len * dim), random.values(len * dim));
    let file = |name: &str, shape: [usize; 3], data: &[f32]| {
        let path = folder.write(name, padded(data, shape, None));
        TokenFile::open(&path, Reading::Map).unwrap()
    };
    let queries = file("queries.safetensors", [n_queries, query_len, dim], &of_queries);
    let documents = file("documents.safetensors", [1, len, dim], &of_documents);
    let progress = ProgressBar::hidden();
    let request = Request {
        queries: &queries,
        documents: &Documents::Tokens(&documents),
        selected: &Selected::All,
        device: &Device::cpu(),
        devices: None,
        options: &ScoreOptions::default(),
        query_scales: ScaleType::F16,
        allow_infinite: false,
        top_k: 1,
        chunk_bytes: None,
        progress: &progress,
    };
    let (is_done, mut seen) = (AtomicBool::new(false), BTreeSet::new());
    let mut scores = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                seen.insert(progress.position());
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let taken = maxsim_cli::rank::stream::scores(&request, 0..n_queries, |_, found| {
            scores.extend_from_slice(found);
            Ok(())
        });
        is_done.store(true, Ordering::Relaxed);
        taken.unwrap();
    });
    assert_eq!(progress.position(), n_queries as u64);
    assert!(seen.range(1..n_queries as u64).next().is_some(), "{seen:?}");
    let queries = Tokens::padded(&of_queries, n_queries, query_len, dim).unwrap();
    let documents = Tokens::padded(&of_documents, 1, len, dim).unwrap();
    let at_once = Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();
    assert_eq!(scores, at_once.values());
}

/// The library's search over documents that pass by, which GPUs take, gives the ranking that chunk
/// after chunk gives, and none where it would not see what is wrong.
#[test]
fn searches_that_pass_by_rank_as_chunks_do() {
    let folder = Folder::empty();
    let set = Path::new("examples/debian-packages");
    let open = |path: &Path| TokenFile::open(path, Reading::Map).unwrap();
    let (queries, documents) =
        (open(&set.join("queries.safetensors")), open(&set.join("documents.safetensors")));
    let progress = ProgressBar::hidden();
    let by = |[queries, documents]: [&TokenFile; 2], devices, chunk_bytes: u64, top_k| {
        let request = Request {
            queries,
            documents: &Documents::Tokens(documents),
            selected: &Selected::All,
            device: &Device::cpu(),
            devices,
            options: &ScoreOptions::default(),
            query_scales: ScaleType::F16,
            allow_infinite: false,
            top_k,
            chunk_bytes: Some(chunk_bytes),
            progress: &progress,
        };
        (search::rank(&request), maxsim_cli::rank::stream::rank(&request))
    };
    let with = |queries: &TokenFile, documents: &TokenFile, bytes, top_k| {
        by([queries, documents], None, bytes, top_k)
    };
    let (found, expected) = with(&queries, &documents, 300_000, 7);
    let (found, expected) = (found.unwrap().unwrap(), expected.unwrap());
    assert_eq!(found.rankings, expected.rankings);
    assert!(found.calls.n_chunks > 3 && found.calls.kernels == ["cpu"], "{:?}", found.calls);
    assert_eq!(progress.position(), 2 * 50 * 200);

    // Several devices share the documents, and find the same.
    let devices = Devices::new([Device::cpu(), Device::cpu(), Device::cpu()]).unwrap();
    let (shared, whole) = by([&queries, &documents], Some(&devices), 300_000, 7);
    assert_eq!(shared.unwrap().unwrap().rankings, found.rankings);
    assert_eq!(whole.unwrap().rankings, found.rankings);

    // Row 2 is padding, which may be anything and travels with the rows around it.
    let query = open(&folder.write("q.safetensors", padded(&[1.0, -2.0], [1, 1, 2], None)));
    let mut rows: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let file = |name: &str, rows: &[f32]| {
        open(&folder.write(name, padded(rows, [2, 3, 2], Some(&[2, 3]))))
    };
    rows[4] = f32::NAN;
    let (found, expected) = with(&query, &file("padding.safetensors", &rows), 1000, 2);
    assert!(found.unwrap().is_none() && expected.is_ok());
    rows[3] = f32::INFINITY;
    let (found, expected) = with(&query, &file("infinite.safetensors", &rows), 1000, 2);
    let [found, expected] = [found, expected.map(Some)].map(|of| of.unwrap_err().to_string());
    assert!(expected.contains("row 1 of") && expected.contains("infinity"), "{expected}");
    assert_eq!(found, expected);
    // The score of document 0 is -inf, which would not be listed.
    rows[..6].copy_from_slice(&[f32::MIN, f32::MAX, f32::MIN, f32::MAX, 0.0, 0.0]);
    let (found, expected) = with(&query, &file("large.safetensors", &rows), 1000, 1);
    assert!(found.unwrap().is_none());
    let error = expected.unwrap_err().to_string();
    assert_eq!(error, "the score of query 0 and document 0 is -inf");
    let error = by([&query, &file("large.safetensors", &rows)], Some(&devices), 1000, 1).1;
    assert!(error.unwrap_err().to_string().contains("use --device cuda:N, which looks at each"));
}

/// The table marks what is likely only.
#[test]
fn tables_say_which_places_are_likely() {
    let folder = TempDir::new().unwrap();
    let screen = compressed(Path::new("examples/debian-packages"), &folder, "fp8");
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let screen = screen.to_str().unwrap();
    let likely = rank(&queries, &documents, &["--screen", screen, "--shortlist", "10"]).ok();
    let proven = rank(&queries, &documents, &["--screen", screen, "--exact"]).ok();
    let plain = rank(&queries, &documents, &[]).ok();
    assert!(likely.contains("?") && !proven.contains("?"), "{likely}");
    assert_eq!(proven, plain);
}

#[test]
fn what_does_not_go_together_is_an_error() {
    let folder = TempDir::new().unwrap();
    let set = Path::new("examples/debian-packages");
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let screen = compressed(set, &folder, "int8");
    let screen = screen.to_str().unwrap();
    let error = |documents: &Path, more: &[&str]| rank(&queries, documents, more).error();
    let uncompressed = error(&documents, &["--screen", documents.to_str().unwrap()]);
    assert!(uncompressed.contains("not compressed"), "{uncompressed}");
    let both = error(Path::new(screen), &["--screen", screen]);
    assert!(both.contains("uncompressed embeddings"), "{both}");
    let others = folder.path().join("queries.safetensors");
    let (input, output) = (queries.to_str().unwrap(), others.to_str().unwrap());
    run(["quantize", "--format", "int8", "--input", input, "--output", output]).ok();
    let others = error(&documents, &["--screen", output]);
    assert!(others.contains("50 documents") && others.contains("200"), "{others}");
    let none = ["--screen", screen, "--shortlist", "0"];
    let alone = ["--shortlist", "5"];
    for options in [&["--exact"][..], &alone, &none, &["--screen", screen, "--normalize"]] {
        let run = rank(&queries, &documents, options);
        assert_eq!(run.code, Some(2), "{options:?}");
    }
}

/// What it loses that INT8 chooses the winners: 10⁻⁴ of a score in the mean, and nothing above.
#[test]
fn screened_winners_lose_little() {
    for set in sets("screened winners") {
        let open = |file: &str| TokenFile::open(&set.join(file), Reading::Map).unwrap();
        let (queries, documents) = (open("queries.safetensors"), open("documents.safetensors"));
        let format = queries.contents().format;
        assert_eq!(format, TokenFormat::Element(maxsim::format::ElementType::F16));
        let queries = queries.tokens::<f16>(0..queries.n_items()).unwrap();
        let documents = documents.tokens::<f16>(0..documents.n_items()).unwrap();
        let codes = documents.quantize::<Int8>(ScaleType::F16).unwrap();
        let (screen, cross) = (CoarseCodes::of_documents(&codes), Pairing::cross());
        // In f32, as far as it goes: tensor cores cut off.
        let exact = Device::cpu().score(&queries, &documents, &cross).unwrap();
        for device in devices() {
            let options = ScoreOptions::default();
            let found = device.rescore(&queries, &documents, &screen, &cross, &options);
            let found = found.unwrap();
            let pairs = exact.values().iter().zip(found.values());
            let losses = pairs.map(|(&exact, &score)| {
                let (exact, score) = (f64::from(exact), f64::from(score));
                assert!(exact > 0.0 && score <= exact * (1.0 + 2e-6), "{score} above {exact}");
                (exact - score) / exact
            });
            let mean = losses.sum::<f64>() / exact.values().len() as f64;
            eprintln!("{} on {device}: mean loss {mean:.2e}", set.display());
            assert!(mean < 1e-4, "{mean:e}");
        }
    }
}
