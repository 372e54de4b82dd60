//! `maxsim rank --device cuda:all`: all GPUs share the documents, and rank as one.

use crate::tool::{Folder, json, rank, run, sample};
use maxsim::{Device, Devices};

/// Folder with the sample as INT8 and PLAID files, and ids of some documents.
fn folder() -> Folder {
    let folder = Folder::empty();
    let documents = sample("documents.safetensors");
    for (format, more) in [("int8", &[][..]), ("plaid", &["--centroids", "64"])] {
        let (input, output) = (documents.to_str().unwrap(), folder.text(format) + ".safetensors");
        let args = ["quantize", "--format", format, "--input", input, "--output", &output];
        run([&args[..], more].concat()).ok();
    }
    folder.write("ids.txt", "3\n17\n18\n150\n");
    let line = |query, documents| format!("{{\"id\": {query}, \"documents\": {documents}}}\n");
    folder.write("run.jsonl", &(line(0, "[3, 7, 150, 8]") + &line(2, "[8, 3]")));
    folder
}

#[test]
fn all_gpus_rank_as_one() {
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let options = ["--format", "json", "--device"];
    let run = |documents, device, more: &[&str]| {
        rank(&queries, documents, &[&options[..], &[device], more].concat())
    };
    let all = run(&documents, "cuda:all", &[]);
    if let Err(error) = Device::cuda(0) {
        let required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "MAXSIM_REQUIRE_GPU=1, but {error}");
        eprintln!("SKIPPED (no CUDA device): rankings by all GPUs");
        let error = all.error();
        assert!(error.starts_with("--device cuda:all: "), "{error}");
        assert_eq!(error.matches("--device").count() - error.matches("--device cpu").count(), 1);
        return;
    }
    for device in Devices::all().devices() {
        assert!(all.stderr.contains(&device.to_string()), "{}", all.stderr);
    }
    assert_eq!(json(&all.ok()), json(&run(&documents, "cuda:0", &[]).ok()));
    let folder = folder();
    let [int8, plaid] = ["int8", "plaid"].map(|name| folder.path(&format!("{name}.safetensors")));
    let ids = &folder.text("ids.txt");
    let small = ["--chunk-bytes", "100000"];
    for documents in [&documents, &int8, &plaid] {
        for more in [&[][..], &["--exclude", ids], &["--include", ids], &["--allow-infinite"]] {
            let more = [&small[..], more].concat();
            let [all, one] = ["cuda:all", "cuda:0"].map(|device| run(documents, device, &more));
            assert_eq!(json(&all.ok()), json(&one.ok()), "{documents:?} {more:?}");
        }
    }
    let run_file = &folder.text("run.jsonl");
    for documents in [&documents, &int8, &plaid] {
        let more = ["--candidates", run_file, "--chunk-bytes", "100000", "--winners"];
        let [all, one] = ["cuda:all", "cuda:0"].map(|device| run(documents, device, &more));
        assert_eq!(json(&all.ok()), json(&one.ok()), "{documents:?}");
    }
    let more = ["--screen", int8.to_str().unwrap(), "--exact", "--exclude", ids];
    let [all, one] = ["cuda:all", "cuda:0"].map(|device| run(&documents, device, &more));
    assert_eq!(json(&all.ok()), json(&one.ok()));
}

/// What a GPU selects is what its scores rank, and so is what is too long to be selected.
#[test]
fn a_gpu_ranks_every_format_and_part() {
    if let Err(error) = Device::cuda(0) {
        let required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "MAXSIM_REQUIRE_GPU=1, but {error}");
        eprintln!("SKIPPED (no CUDA device): rankings of every format");
        return;
    }
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let folder = folder();
    let [int8, plaid] = ["int8", "plaid"].map(|name| folder.path(&format!("{name}.safetensors")));
    let ids = &folder.text("ids.txt");
    for documents in [&documents, &int8, &plaid] {
        for more in [&[][..], &["--exclude", ids], &["--include", ids], &["--scores"]] {
            let run = |device| {
                let options = ["--format", "json", "--device", device, "--chunk-bytes", "100000"];
                json(&rank(&queries, documents, &[&options[..], more].concat()).ok())
            };
            let (found, expected) = (run("cuda:0"), run("cpu"));
            let pairs = found["queries"].as_array().unwrap().iter();
            for (found, expected) in pairs.zip(expected["queries"].as_array().unwrap()) {
                let scores = |of: &serde_json::Value| of["scores"].as_array().unwrap().clone();
                let (a, b) = (scores(found), scores(expected));
                assert_eq!(a.len(), b.len());
                for (a, b) in a.iter().zip(&b) {
                    let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
                    assert!((a - b).abs() <= 2e-3 * (1.0 + b.abs()), "{documents:?} {more:?}");
                }
            }
        }
    }
}

#[test]
fn kernels_are_loaded_for_one_gpu() {
    let error = run(["warm-up", "--device", "cuda:all"]).error();
    assert!(error.contains("one GPU at a time; use cuda:N"), "{error}");
}
