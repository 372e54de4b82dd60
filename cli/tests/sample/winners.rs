//! `maxsim rank --winners` and `--scores`: which tokens match, and every score.

use std::path::Path;

use crate::files::{f32_bytes, i64_bytes, npy, packed};
use crate::tool::{Folder, json, rank, run, sample};
use half::f16;
use maxsim::{Device, Pairing, ScoreOptions};
use maxsim_cli::input::{Reading, TokenFile};
use serde_json::{Value, json};

/// Queries of two tokens and of one, and documents of two tokens, of none and of three, of dim 2.
pub fn small() -> Folder {
    let folder = Folder::empty();
    folder.write("q.safetensors", packed(&[1.0, 0.0, 0.0, 1.0, -1.0, 0.0], 2, &[0, 2, 3]));
    let documents = [1.0, 3.0, 2.0, 2.0, 4.0, 0.0, 0.0, 1.0, 4.0, 1.0];
    folder.write("d.safetensors", packed(&documents, 2, &[0, 2, 2, 5]));
    folder
}

/// A query and a document of four tokens, of which `mask.npy` excludes the first and the third.
pub fn masked() -> Folder {
    let folder = Folder::empty();
    let queries = [9.0f32, 9.0, 1.0, 0.0, 9.0, 9.0, 0.0, 1.0];
    let documents = [9.0f32, 9.0, 0.0, 1.0, 9.0, 9.0, 1.0, 0.0];
    folder.write("q.npy", npy(1, "<f4", &[1, 4, 2], &f32_bytes(&queries)));
    folder.write("d.npy", npy(1, "<f4", &[1, 4, 2], &f32_bytes(&documents)));
    folder.write("mask.npy", npy(1, "<i8", &[1, 4], &i64_bytes(&[0, 1, 0, 1])));
    folder
}

#[test]
fn winners_are_the_tokens_that_match() {
    let folder = small();
    let (queries, documents) = (folder.path("q.safetensors"), folder.path("d.safetensors"));
    let options = ["--winners", "--format", "json", "--top-k", "2"];
    let output = json(&rank(&queries, &documents, &options).ok());
    // Of equal similarities the first token is the winner.
    let expected = json!({"queries": [
        {"id": 0, "documents": [0, 2], "scores": [5.0, 5.0], "winners": [[1, 0], [0, 1]]},
        {"id": 1, "documents": [2, 0], "scores": [0.0, -1.0], "winners": [[1], [0]]},
    ]});
    assert_eq!(output, expected);
    let table = rank(&queries, &documents, &["--winners"]).ok();
    let expected = "query 0\n   1     5.0000        0\n      tokens 1 0\n   2     5.0000        \
         2\n      tokens 0 1\n   3      empty        1\n      tokens - -\n\nquery 1\n   1     \
         0.0000        2\n      tokens 1\n   2    -1.0000        0\n      tokens 0\n   3      \
         empty        1\n      tokens -\n\n";
    assert_eq!(table, expected);
    // Candidates have them, and a query without any has none.
    folder.write("c.txt", "1 Q0 1 1 1 x\n1 Q0 0 1 1 x\n");
    let more = ["--candidates", &folder.text("c.txt")];
    let output = json(&rank(&queries, &documents, &[&options[..], &more].concat()).ok());
    assert_eq!(output["queries"][0]["winners"], json!([]));
    assert_eq!(output["queries"][1]["winners"], json!([[0], [null]]));
}

/// Tokens have their places in the file, whatever a mask excludes.
#[test]
fn masked_tokens_count() {
    let folder = masked();
    let mask = &folder.text("mask.npy");
    let masks = ["--queries-mask-file", mask, "--documents-mask-file", mask];
    let options = [&masks[..], &["--winners", "--format", "json"]].concat();
    let output = json(&rank(&folder.path("q.npy"), &folder.path("d.npy"), &options).ok());
    assert_eq!(output["queries"][0]["winners"], json!([[null, 3, null, 1]]));
    assert_eq!(output["queries"][0]["scores"], json!([2.0]));
}

fn devices() -> Vec<String> {
    let device = Device::cuda(0);
    if let Err(error) = &device {
        let required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "MAXSIM_REQUIRE_GPU=1, but {error}");
        eprintln!("SKIPPED (no CUDA device): winners");
    }
    [Device::cpu()].iter().chain(&device).map(Device::to_string).collect()
}

/// The winners of listed documents of the sample are the library's, mostly also of compressed ones.
#[test]
fn winners_are_those_of_the_library() {
    let set = Path::new("examples/debian-packages");
    let open = |name: &str| TokenFile::open(&set.join(name), Reading::Map).unwrap();
    let (queries, documents) = (open("queries.safetensors"), open("documents.safetensors"));
    let queries = queries.tokens::<f16>(0..queries.n_items()).unwrap();
    let documents = documents.tokens::<f16>(0..documents.n_items()).unwrap();
    let options = ScoreOptions::default().winners(true);
    let all = Device::cpu().score_with(&queries, &documents, &Pairing::cross(), &options).unwrap();
    let (winners, offsets) = (all.winners().unwrap(), all.token_offsets().unwrap());

    let folder = Folder::empty();
    let screen = folder.text("int8.safetensors");
    let input = sample("documents.safetensors");
    let input = input.to_str().unwrap();
    let mut files = vec![(input.to_string(), 0.999)];
    for (format, least) in [("int8", 0.97), ("int8-affine", 0.97), ("fp8", 0.9), ("plaid", 0.85)] {
        let output = folder.text(&format!("{format}.safetensors"));
        run(["quantize", "--format", format, "--input", input, "--output", &output]).ok();
        files.push((output, least));
    }
    for device in devices() {
        for (documents, least) in &files {
            let (documents, is_plain) = (Path::new(documents), documents == input);
            let searched = ["--screen", &screen, "--shortlist", "10"];
            let n_runs = if is_plain { 3 } else { 2 };
            let more = [&[][..], &["--chunk-bytes", "50000"], &searched];
            for more in &more[..n_runs] {
                let options =
                    ["--winners", "--format", "json", "--top-k", "3", "--device", &device];
                let run =
                    rank(&sample("queries.safetensors"), documents, &[&options, *more].concat());
                let output = json(&run.ok());
                let (mut n_same, mut n_all) = (0, 0);
                for (query, of_query) in output["queries"].as_array().unwrap().iter().enumerate() {
                    let array = |key: &str| of_query[key].as_array().unwrap().iter();
                    for (id, found) in array("documents").zip(array("winners")) {
                        let pair = query * 200 + id.as_u64().unwrap() as usize;
                        let expected = &winners[offsets.range(pair)];
                        let found: Vec<&Value> = found.as_array().unwrap().iter().collect();
                        assert_eq!(found.len(), expected.len());
                        n_all += found.len();
                        n_same += found.iter().zip(expected).filter(|(a, b)| **a == *b).count();
                    }
                }
                let share = n_same as f64 / n_all as f64;
                eprintln!("{device} {}: {share:.4} of {n_all}", documents.display());
                assert!(n_all > 50 * 3 && share >= *least, "{device} {documents:?}: {share}");
            }
        }
    }
}

#[test]
fn all_scores_are_listed() {
    let folder = small();
    let (queries, documents) = (folder.path("q.safetensors"), folder.path("d.safetensors"));
    let run = rank(&queries, &documents, &["--scores", "--format", "trec"]).ok();
    let expected = "0 Q0 0 1 5 maxsim\n0 Q0 2 2 5 maxsim\n1 Q0 2 1 0 maxsim\n1 Q0 0 2 -1 maxsim\n";
    assert_eq!(run, expected);
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let qrels = sample("queries.jsonl");
    let found = |more: &[&str]| {
        let judged = ["--format", "json", "--qrels", qrels.to_str().unwrap()];
        json(&rank(&queries, &documents, &[&judged, more].concat()).ok())
    };
    let all = found(&["--scores"]);
    assert_eq!(all, found(&["--top-k", "200"]));
    assert_eq!(all["queries"][7]["documents"].as_array().unwrap().len(), 200);
    assert_eq!(all["metrics"], found(&[])["metrics"]);
    // Of candidates those alone, more than would be listed.
    let ids: Vec<usize> = (0..200).step_by(7).collect();
    folder.write("c.jsonl", json!({"id": 7, "documents": ids}).to_string());
    let own = found(&["--scores", "--candidates", &folder.text("c.jsonl")]);
    let mut listed: Vec<u64> = own["queries"][7]["documents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect();
    listed.sort_unstable();
    assert!(listed.iter().map(|&id| id as usize).eq(ids));
    assert_eq!(own["queries"][8]["documents"], json!([]));
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = small();
    let (queries, documents) = (folder.path("q.safetensors"), folder.path("d.safetensors"));
    for (options, expected) in [
        (
            &["--winners", "--format", "trec"][..],
            "--winners: a TREC run has no column for them; use --format json or table",
        ),
        (&["--scores", "--top-k", "5"], "the argument '--scores' cannot be used with '--top-k"),
        (&["--scores", "--screen", "x"], "the argument '--scores' cannot be used with '--screen"),
    ] {
        let error = rank(&queries, &documents, options).error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
