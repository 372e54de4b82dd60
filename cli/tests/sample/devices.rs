//! `maxsim rank --device cuda:all`: all GPUs share the documents, and rank as one.

use crate::files::packed;
use crate::tool::{Folder, json, rank, run, sample};
use maxsim::{Device, Devices};

#[test]
fn all_gpus_rank_as_one() {
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let options = ["--format", "json", "--device"];
    let run = |device| rank(&queries, &documents, &[&options[..], &[device]].concat());
    let all = run("cuda:all");
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
    assert_eq!(json(&all.ok()), json(&run("cuda:0").ok()));
}

#[test]
fn what_one_gpu_ranks_is_refused() {
    let folder = Folder::empty();
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let [input, int8] = [documents.to_str().unwrap(), &folder.text("int8.safetensors")];
    run(["quantize", "--format", "int8", "--input", input, "--output", int8]).ok();
    folder.write("ids.txt", "3\n");
    folder.write("q.safetensors", packed(&[1.0], 1, &[0, 1]));
    folder.write("d.safetensors", packed(&[1.0; 5000], 1, &Vec::from_iter(0..=5000)));
    let list = &folder.text("ids.txt");
    let [query, many] = ["q.safetensors", "d.safetensors"].map(|name| folder.path(name));
    for (files, more, expected) in [
        ([&queries, &documents], &["--exclude", list][..], "candidates and parts of the documents"),
        ([&queries, &documents], &["--screen", int8], "--screen is searched by one GPU"),
        ([&queries, &documents], &["--allow-infinite"], "--allow-infinite is for one GPU"),
        ([&queries, &int8.into()], &[], "compressed documents are ranked by one GPU"),
        ([&query, &many], &["--scores"], "more than 4096 documents of a query"),
    ] {
        let more = [&["--device", "cuda:all"], more].concat();
        let error = rank(files[0], files[1], &more).error();
        assert!(error.starts_with(&format!("--device cuda:all: {expected}")), "{error}");
        assert!(error.ends_with("; use --device cuda:N"), "{error}");
    }
    let error = run(["warm-up", "--device", "cuda:all"]).error();
    assert!(error.contains("one GPU at a time; use cuda:N"), "{error}");
}
