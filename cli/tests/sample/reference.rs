//! The real set of 1000 documents and 250 queries against its reference ranking, on the CPU
//! and, where there is a CUDA device, with a kernel of every instruction set that it runs.
//!
//! The set lies in `data/debian-packages` of the folder MAXSIM_SHARED, or else of the folder
//! `shared` beside the workspace.

use std::path::Path;

use crate::tool::{json, rank, reference_set};
use half::f16;
use maxsim::format::ElementType;
use maxsim::{Device, Pairing, ScoreOptions};
use maxsim_cli::input::{Reading, TokenFile};
use maxsim_kernels::abi::arch::Arch;
use maxsim_kernels::table::forward::FORWARD;
use serde_json::Value;

/// Scores closer than this, relatively, may change places.
const TIE: f64 = 1e-3;

const NDCG: f64 = 0.9458;
const NDCG_TOLERANCE: f64 = 0.0005;
const RECALL: f64 = 0.972;

#[test]
fn cpu_gives_the_reference_ranking() {
    if let Some(set) = reference_set("the reference ranking") {
        check(&set, "cpu", &[]);
    }
}

#[test]
fn cuda_gives_the_reference_ranking() {
    let Some(set) = reference_set("the reference ranking") else { return };
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            let required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
            assert!(!required, "MAXSIM_REQUIRE_GPU=1, but {error}");
            eprintln!("SKIPPED (no CUDA device): the reference ranking");
            return;
        }
    };
    check(&set, "cuda:0", &[]);
    check(&set, "cuda:0", &["--chunk-bytes", "1000000"]);
    let queries = TokenFile::open(&set.join("queries.safetensors"), Reading::Map).unwrap();
    let tokens = queries.tokens::<f16>(0..queries.n_items()).unwrap();
    let mut archs: Vec<Arch> = Vec::new();
    for row in FORWARD.iter().filter(|row| row.operand == ElementType::F16 && !row.winners) {
        let options = ScoreOptions::default().kernel(row.name);
        match device.plan(&tokens, &tokens, &Pairing::cross(), &options) {
            Ok(_) => {
                check(&set, "cuda:0", &["--kernel", row.name]);
                archs.push(row.arch);
            }
            Err(error) => eprintln!("not eligible: {error}"),
        }
    }
    assert!(archs.contains(&Arch::Sm80), "no sm_80 kernel ran");
}

fn check(set: &Path, device: &str, options: &[&str]) {
    let qrels = set.join("queries.jsonl");
    let mut more = vec!["--device", device, "--format", "json", "--qrels", qrels.to_str().unwrap()];
    more.extend(options);
    let run = rank(&set.join("queries.safetensors"), &set.join("documents.safetensors"), &more);
    eprint!("{}", run.stderr);
    if let ["--kernel", kernel] = options {
        assert!(run.stderr.contains(kernel), "{}", run.stderr);
    }
    let output = json(&run.ok());
    let reference = std::fs::read_to_string(set.join("reference.json")).unwrap();
    let reference = json(&reference);

    let (found, expected) = (&output["queries"], &reference["top10"]);
    let (found, expected) = (found.as_array().unwrap(), expected.as_array().unwrap());
    assert_eq!((found.len(), expected.len()), (250, 250));
    for (query, (found, expected)) in found.iter().zip(expected).enumerate() {
        check_ranking(query, &entries(found), &entries(expected));
    }
    let metric = |name: &str| output["metrics"][name].as_f64().unwrap();
    assert!((metric("ndcg@10") - NDCG).abs() <= NDCG_TOLERANCE, "{}", output["metrics"]);
    assert!((metric("recall@10") - RECALL).abs() <= NDCG_TOLERANCE, "{}", output["metrics"]);
}

/// Documents and scores of one query, best first.
type Entries = Vec<(u64, f64)>;

fn entries(query: &Value) -> Entries {
    let array = |key: &str| query[key].as_array().unwrap().iter();
    let documents = array("documents").map(|id| id.as_u64().unwrap());
    documents.zip(array("scores").map(|score| score.as_f64().unwrap())).collect()
}

/// Same documents in the same places, except where reference scores are nearly equal. A
/// document that the reference does not list scores at most as its tenth.
fn check_ranking(query: usize, found: &[(u64, f64)], expected: &[(u64, f64)]) {
    assert_eq!((found.len(), expected.len()), (10, 10), "query {query}");
    let near = |a: f64, b: f64| (a - b).abs() < TIE * b.abs();
    let tenth = expected[9].1;
    for (rank, (&(id, score), &(wanted, wanted_score))) in found.iter().zip(expected).enumerate() {
        let reference = expected.iter().find(|(known, _)| *known == id).map(|&(_, score)| score);
        let place = format!("query {query}, rank {}: {id} instead of {wanted}", rank + 1);
        assert!(near(score, reference.unwrap_or(tenth)), "{place}: score {score}");
        assert!(id == wanted || near(reference.unwrap_or(tenth), wanted_score), "{place}");
    }
    let mut ids: Vec<u64> = found.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 10, "query {query}: a document is listed twice");
}

#[test]
fn the_comparison_sees_wrong_rankings() {
    let expected: Entries = (0..10u32).map(|i| (i.into(), 10.0 - f64::from(i) / 2.0)).collect();
    let fails = |found: &[(u64, f64)]| {
        std::panic::catch_unwind(|| check_ranking(0, found, &expected)).is_err()
    };
    let changed = |change: &dyn Fn(&mut Entries)| {
        let mut found = expected.clone();
        change(&mut found);
        fails(&found)
    };
    assert!(!fails(&expected));
    assert!(changed(&|found| found.swap(3, 4)));
    assert!(changed(&|found| found[9] = (77, 5.4)));
    // Nearly as good as the tenth: either may be listed.
    assert!(!changed(&|found| found[9] = (77, 5.4999)));
    assert!(changed(&|found| found[5].1 *= 1.002));
    assert!(changed(&|found| found[8] = found[9]));
    assert!(changed(&|found| found.truncate(9)));
}
