//! The tool as a process: exit codes, messages, files and formats.

use std::fs;
use std::path::Path;

use crate::files::{self, Random, f16_bytes, f32_bytes, npy, packed, packed_of, padded};
use crate::tool::{FolderOf, Run, command, json, rank, run, sample};
use serde_json::{Value, json};

const QUERY_OFFSETS: [i64; 5] = [0, 2, 5, 6, 9];
const DOCUMENT_OFFSETS: [i64; 10] = [0, 3, 4, 9, 9, 12, 13, 17, 20, 22];
const EMPTY_DOCUMENT: u64 = 3;

/// The kind of these tests' folders.
enum Process {}

type Folder = FolderOf<Process>;

impl Folder {
    /// A folder with files of four queries and nine documents of dim 4, one of them empty.
    fn new() -> Folder {
        let folder = Folder::empty();
        folder.write("q.safetensors", packed(&queries(), 4, &QUERY_OFFSETS));
        folder.write("d.safetensors", packed(&documents(), 4, &DOCUMENT_OFFSETS));
        folder
    }

    /// Ranks q.safetensors against d.safetensors.
    fn rank(&self, more: &[&str]) -> Run {
        rank(&self.path("q.safetensors"), &self.path("d.safetensors"), more)
    }
}

fn queries() -> Vec<f32> {
    Random(1).values(9 * 4)
}

fn documents() -> Vec<f32> {
    Random(2).values(22 * 4)
}

/// Every document of every query, best first, from the definition.
fn expected() -> Vec<Vec<(u64, f64)>> {
    let (queries, documents) = (queries(), documents());
    let items =
        |offsets: &'static [i64]| offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
    let dot = |s: usize, t: usize| -> f64 {
        (0..4).map(|k| f64::from(queries[s * 4 + k]) * f64::from(documents[t * 4 + k])).sum()
    };
    let ranking = |query: std::ops::Range<usize>| {
        let mut scored: Vec<(u64, f64)> = (0..)
            .zip(items(&DOCUMENT_OFFSETS))
            .filter(|(_, document)| !document.is_empty())
            .map(|(id, document)| {
                let best = |s| document.clone().map(|t| dot(s, t)).fold(f64::MIN, f64::max);
                (id, query.clone().map(best).sum())
            })
            .collect();
        scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        scored.push((EMPTY_DOCUMENT, 0.0));
        scored
    };
    items(&QUERY_OFFSETS).map(ranking).collect()
}

fn assert_expected(output: &Value, top_k: usize) {
    let queries = output["queries"].as_array().unwrap();
    assert_eq!(queries.len(), 4);
    for ((id, query), expected) in queries.iter().enumerate().zip(expected()) {
        let expected = &expected[..top_k.min(expected.len())];
        let (ids, scores): (Vec<u64>, Vec<f64>) = expected.iter().copied().unzip();
        let mut expected = json!({"id": id, "documents": ids, "scores": scores});
        if ids.contains(&EMPTY_DOCUMENT) {
            expected["without_tokens"] = json!([EMPTY_DOCUMENT]);
        }
        assert_eq!(query, &expected);
    }
}

#[test]
fn json_gives_ids_and_scores_in_order() {
    let folder = Folder::new();
    for top_k in [1, 2, 8, 9, 10, 1_000_000] {
        let output = folder.rank(&["--format", "json", "--top-k", &top_k.to_string()]).ok();
        let output = json(&output);
        assert_expected(&output, top_k);
        assert!(output.get("metrics").is_none());
    }
}

#[test]
fn the_summary_is_one_line_on_stderr() {
    let run = Folder::new().rank(&[]);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    for part in [
        "4 queries × 9 documents",
        "36 pairs",
        "9 × 22 tokens of 4 f32",
        "pairs/s, on cpu",
        "1 document without tokens ranks last",
    ] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
    run.ok();
}

#[test]
fn every_format_mapping_and_alignment_ranks_the_same() {
    let folder = Folder::new();
    let json_args = ["--format", "json"];
    let same = |queries: &Path, documents: &Path, more: &[&str]| {
        let args = [&json_args[..], more].concat();
        assert_expected(&json(&rank(queries, documents, &args).ok()), 10);
    };
    let shifted = |name: &str, dtype, bytes: fn(&[f32]) -> Vec<u8>, shift| {
        let queries = packed_of(dtype, bytes(&queries()), 9, 4, &QUERY_OFFSETS, shift);
        let documents = packed_of(dtype, bytes(&documents()), 22, 4, &DOCUMENT_OFFSETS, shift);
        let queries = folder.write(&format!("q-{name}.safetensors"), queries);
        (queries, folder.write(&format!("d-{name}.safetensors"), documents))
    };
    for (name, (queries, documents)) in [
        ("f16", shifted("f16", "F16", f16_bytes, 0)),
        ("f16+1", shifted("f16+1", "F16", f16_bytes, 1)),
        ("bf16", shifted("bf16", "BF16", files::bf16_bytes, 0)),
        ("f32+1", shifted("f32+1", "F32", f32_bytes, 1)),
        ("f32+6", shifted("f32+6", "F32", f32_bytes, 6)),
    ] {
        println!("{name}");
        same(&queries, &documents, &[]);
        same(&queries, &documents, &["--no-mmap"]);
        same(&queries, &documents, &["--chunk-bytes", "1"]);
        same(&queries, &documents, &["--chunk-bytes", "300"]);
    }
}

#[test]
fn normalized_rows_are_ranked_by_direction() {
    let folder = Folder::new();
    let file = |name: &str, rows: &[f32], offsets: &[i64]| {
        let bytes = packed_of("F32", f32_bytes(rows), rows.len() / 4, 4, offsets, 0);
        folder.write(name, bytes)
    };
    let queries = file("long.safetensors", &[2.0, 0.0, 0.0, 0.0], &[0, 1]);
    let rows = [3.0, 4.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
    let documents = file("steep.safetensors", &rows, &[0, 1, 2]);
    let ids = |more: &[&str]| {
        let args = [&["--format", "json"], more].concat();
        json(&rank(&queries, &documents, &args).ok())["queries"][0]["documents"].clone()
    };
    assert_eq!(ids(&[]), json!([0, 1]));
    assert_eq!(ids(&["--normalize"]), json!([1, 0]));
}

#[test]
fn npy_and_padded_files_rank_the_same() {
    let folder = Folder::new();
    let (queries, documents) = (Random(3).values(3 * 2 * 8), Random(4).values(5 * 4 * 8));
    let data = f16_bytes(&queries);
    let q_npy = folder.write("q.npy", npy(1, "<f4", &[3, 2, 8], &f32_bytes(&queries)));
    let d_npy = folder.write("d.npy", npy(2, "<f4", &[5, 4, 8], &f32_bytes(&documents)));
    let q_padded = folder.write("qp.safetensors", padded(&queries, [3, 2, 8], None));
    let d_packed = folder.write("dp.safetensors", packed(&documents, 8, &[0, 4, 8, 12, 16, 20]));
    let expected = rank(&q_npy, &d_npy, &["--format", "json"]).ok();
    for (q, d) in [(&q_npy, &d_packed), (&q_padded, &d_npy), (&q_padded, &d_packed)] {
        assert_eq!(rank(q, d, &["--format", "json"]).ok(), expected);
    }
    let q_f16 = folder.write("q16.npy", npy(1, "<f2", &[3, 2, 8], &data));
    let error = rank(&q_f16, &d_npy, &[]).error();
    assert!(error.contains("queries are f16 and documents f32"), "{error}");
}

#[test]
fn chunks_change_nothing_but_the_summary() {
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let args = ["--format", "json", "--top-k", "20"];
    let whole = rank(&queries, &documents, &args);
    let chunked = rank(&queries, &documents, &[&args[..], &["--chunk-bytes", "200000"]].concat());
    assert!(!whole.stderr.contains("chunks"), "{}", whole.stderr);
    assert!(chunked.stderr.contains(" chunks"), "{}", chunked.stderr);
    let (whole, chunked) = (json(&whole.ok()), json(&chunked.ok()));
    for (whole, chunked) in queries_of(&whole).zip(queries_of(&chunked)) {
        assert_eq!(whole.0, chunked.0);
        for (a, b) in whole.1.iter().zip(&chunked.1) {
            assert!((a - b).abs() <= 1e-5 * a.abs(), "{a} {b}");
        }
    }
}

/// Document ids and scores of every query.
fn queries_of(output: &Value) -> impl Iterator<Item = (Vec<u64>, Vec<f64>)> {
    output["queries"].as_array().unwrap().iter().map(|query| {
        let array = |key: &str| query[key].as_array().unwrap().iter();
        let ids = array("documents").map(|id| id.as_u64().unwrap()).collect();
        (ids, array("scores").map(|score| score.as_f64().unwrap()).collect())
    })
}

#[test]
fn trec_lines_have_six_columns_and_leave_empty_documents_out() {
    let output = Folder::new().rank(&["--format", "trec"]).ok();
    let lines: Vec<String> = (0..)
        .zip(expected())
        .flat_map(|(query, ranking): (usize, _)| {
            let with_tokens = ranking.into_iter().filter(|(id, _)| *id != EMPTY_DOCUMENT);
            let lines = (1..).zip(with_tokens).map(move |(rank, (id, score)): (usize, _)| {
                format!("{query} Q0 {id} {rank} {} maxsim", score as f32)
            });
            lines.collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(output.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn the_sample_is_ranked_with_titles_and_metrics() {
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let (texts, qrels) = (sample("documents.jsonl"), sample("queries.jsonl"));
    let more = ["--texts", texts.to_str().unwrap(), "--qrels", qrels.to_str().unwrap()];
    let table = rank(&queries, &documents, &[&more[..], &["--top-k", "3"]].concat()).ok();
    assert!(table.starts_with("query 0: tab-based indentation for haskell-mode\n"), "{table}");
    let first = table.lines().nth(1).unwrap();
    assert!(first.starts_with("   1    10.68"), "{first}");
    assert!(first.contains(" *      0  elpa-haskell-tab-indent  This file provides"), "{first}");
    // 50 headings, 150 documents, 50 blank lines, the metrics.
    assert_eq!(table.lines().count(), 251);
    let output =
        rank(&queries, &documents, &[&more[..], &["--top-k", "3", "--format", "json"]].concat());
    let metrics = json(&output.ok())["metrics"].clone();
    let metric = |name: &str| metrics[name].as_f64().unwrap();
    // Metrics look at ten ranks however short the list is.
    assert!(metric("recall@10") > metric("ndcg@10") && metric("recall@10") <= 1.0, "{metrics}");
    let last = format!(
        "nDCG@10 {:.4}, recall@10 {:.4}, over 50 judged queries",
        metric("ndcg@10"),
        metric("recall@10")
    );
    assert_eq!(table.lines().last(), Some(&last[..]));
}

#[test]
fn metrics_are_what_their_formula_says() {
    let folder = Folder::new();
    let order: Vec<Vec<u64>> =
        expected().iter().map(|r| r.iter().map(|(id, _)| *id).collect()).collect();
    // Query 0: ranks 1 and 3 of three relevant (one named twice); query 1: rank 2;
    // query 2: nothing relevant, query 3: not in the file; both stay out of the means.
    let (a, b, last) = (order[0][0], order[0][2], order[0][8]);
    let lines = [
        json!({"id": 0, "relevant": [a, b, a, last], "text": "two\u{1b}[2J\nlines"}),
        json!({"id": 1, "relevant": [order[1][1]]}),
        json!({"id": 2, "relevant": []}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n\n")).collect();
    let qrels = folder.write("qrels.jsonl", text);
    let more = ["--qrels", qrels.to_str().unwrap(), "--top-k", "1"];
    let output = json(&folder.rank(&[&more[..], &["--format", "json"]].concat()).ok());
    let log2 = |x: f64| x.log2();
    let ideal = 1.0 + 1.0 / log2(3.0) + 1.0 / log2(4.0);
    let ndcg = ((1.0 + 1.0 / log2(4.0) + 1.0 / log2(10.0)) / ideal + 1.0 / log2(3.0)) / 2.0;
    assert!((output["metrics"]["ndcg@10"].as_f64().unwrap() - ndcg).abs() < 1e-12);
    assert_eq!(output["metrics"]["recall@10"], 1.0);
    assert_expected(&output, 1);
    let table = folder.rank(&more).ok();
    assert!(table.starts_with("query 0: two[2J lines\n"), "{table}");
    assert!(table.contains("over 2 judged queries"));
    let trec = folder.rank(&[&more[..], &["--format", "trec"]].concat());
    assert!(trec.stderr.contains("over 2 judged queries"), "{}", trec.stderr);
    let unjudged = folder.write("unjudged.jsonl", "{\"id\": 1, \"relevant\": []}\n");
    let more = ["--qrels", unjudged.to_str().unwrap(), "--format", "json"];
    let output = json(&folder.rank(&more).ok());
    assert_eq!(output["metrics"], json!({"ndcg@10": null, "recall@10": null}));
}

#[test]
fn titles_cannot_steer_the_terminal() {
    let folder = Folder::new();
    let lines: String = (0..9)
        .map(|id| {
            let (title, text) = ("t\u{1b}]0;x\u{7}\u{202e}\r\n", "\u{9b}31m\ttext");
            json!({"id": id, "title": title, "text": text})
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let texts = folder.write("texts.jsonl", lines);
    let table = folder.rank(&["--texts", texts.to_str().unwrap()]).ok();
    assert!(table.contains("t]0;x  31m text\n"), "{table}");
    assert!(!table.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{table:?}");
}

#[test]
fn nothing_to_rank_is_no_error() {
    let folder = Folder::new();
    let none = folder.write("none.safetensors", packed(&[], 4, &[0]));
    let (queries, documents) = (folder.path("q.safetensors"), folder.path("d.safetensors"));
    let json_args = ["--format", "json"];
    let output = json(&rank(&queries, &none, &json_args).ok());
    let empty = |id| json!({"id": id, "documents": [], "scores": []});
    assert_eq!(output, json!({"queries": [empty(0), empty(1), empty(2), empty(3)]}));
    for documents in [&documents, &none] {
        assert_eq!(json(&rank(&none, documents, &json_args).ok()), json!({"queries": []}));
        assert_eq!(rank(&none, documents, &["--format", "trec"]).ok(), "");
        assert_eq!(rank(&none, documents, &[]).ok(), "");
    }
}

#[test]
fn an_output_file_is_complete_and_alone() {
    let folder = Folder::new();
    let before = folder.names();
    let expected = folder.rank(&["--format", "json"]).ok();
    let out = folder.path("out.json");
    for _ in 0..2 {
        // The second time there is a file to replace.
        let run = folder.rank(&["--format", "json", "--output", out.to_str().unwrap()]);
        assert_eq!(run.ok(), "");
        assert_eq!(fs::read_to_string(&out).unwrap(), expected);
    }
    assert_eq!(folder.names().len(), before.len() + 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&out), mode(&folder.path("q.safetensors")));
        let link = folder.path("link");
        std::os::unix::fs::symlink(&out, &link).unwrap();
        folder.rank(&["--format", "trec", "--output", link.to_str().unwrap()]).ok();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&out).unwrap().starts_with("0 Q0 "));
        // A device is written to, not replaced.
        folder.rank(&["--output", "/dev/null"]).ok();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        if Path::new("/dev/full").exists() {
            let error = folder.rank(&["--output", "/dev/full"]).error();
            assert!(error.starts_with("/dev/full: "), "{error}");
        }
    }
}

#[test]
fn nan_is_found_before_anything_is_written() {
    let folder = Folder::new();
    let mut values = documents();
    values[13 * 4 + 2] = f32::NAN;
    let broken = folder.write("nan.safetensors", packed(&values, 4, &DOCUMENT_OFFSETS));
    let out = folder.write("out.json", "what was there before");
    let names = folder.names();
    for chunk_bytes in ["1", "250", "1000000"] {
        let more =
            ["--format", "json", "--output", out.to_str().unwrap(), "--chunk-bytes", chunk_bytes];
        let error = rank(&folder.path("q.safetensors"), &broken, &more).error();
        assert!(error.contains("(document 6) has a NaN in element 2"), "{error}");
        assert_eq!(fs::read_to_string(&out).unwrap(), "what was there before");
        assert_eq!(folder.names(), names);
    }
    let mut values = queries();
    values[5 * 4] = f32::NAN;
    let broken = folder.write("nan.safetensors", packed(&values, 4, &QUERY_OFFSETS));
    let error = rank(&broken, &folder.path("d.safetensors"), &[]).error();
    assert!(error.contains("(query 2) has a NaN in element 0"), "{error}");
}

#[test]
fn nan_rows_that_no_item_uses_never_show() {
    let folder = Folder::new();
    let (mut values, mut lengths) = (vec![f32::NAN; 9 * 6 * 4], Vec::new());
    for (i, pair) in DOCUMENT_OFFSETS.windows(2).enumerate() {
        let rows = &documents()[4 * pair[0] as usize..4 * pair[1] as usize];
        values[i * 6 * 4..][..rows.len()].copy_from_slice(rows);
        lengths.push(pair[1] - pair[0]);
    }
    let documents = folder.write("padded.safetensors", padded(&values, [9, 6, 4], Some(&lengths)));
    let output = rank(&folder.path("q.safetensors"), &documents, &["--format", "json"]).ok();
    assert_expected(&json(&output), 10);
}

#[test]
fn wrong_input_is_one_line_exit_code_2_and_no_output() {
    let folder = Folder::new();
    let file = |name: &str| folder.path(name).to_str().unwrap().to_string();
    folder.write("d.jsonl", "{\"id\": 0}\n");
    folder.write("broken.jsonl", "{\"id\": 0}\n{\"id\": \n");
    folder.write("twice.jsonl", "{\"id\": 1, \"relevant\": []}\n{\"id\": 1, \"relevant\": []}\n");
    folder.write("beyond.jsonl", "{\"id\": 9, \"relevant\": []}\n");
    folder.write("relevant.jsonl", "{\"id\": 0, \"relevant\": [3, 9]}\n");
    folder.write("text.jsonl", "{\"id\": \"a\\u001b[1m\"}\n");
    folder.write("dim.safetensors", packed(&[0.0; 10], 5, &[0, 2]));
    folder.write("f16.safetensors", packed_of("F16", vec![0; 16], 2, 4, &[0, 2], 0));
    folder.write("cut.safetensors", &fs::read(file("d.safetensors")).unwrap()[..100]);
    folder.write("d.bin", "");
    folder.write("d.txt", "");
    folder.write("empty.npy", "");
    fs::create_dir(file("folder.npy")).unwrap();
    let (q, d) = (file("q.safetensors"), file("d.safetensors"));
    let out = file("out");
    let names = folder.names();
    let check = |queries: &str, documents: &str, more: &[&str], expected: &str| {
        let more = [more, &["--output", &out]].concat();
        let error = rank(Path::new(queries), Path::new(documents), &more).error();
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(folder.names(), names, "{expected}");
    };
    check(&file("none.npy"), &d, &[], "none.npy: No such file");
    check(&q, &file("folder.npy"), &[], "not a regular file");
    check(&q, &file("d.bin"), &[], "PyTorch files cannot be read; convert it: python3 -c");
    check(&q, &file("d.txt"), &[], "must end in .safetensors, .npy or .npz");
    check(&q, &file("empty.npy"), &[], "not an npy file");
    check(&q, &file("empty.npy"), &["--no-mmap"], "not an npy file");
    check(&q, &file("cut.safetensors"), &[], "cut.safetensors: cut off");
    check(&q, &file("dim.safetensors"), &[], "queries have dim 4 and documents 5");
    check(&q, &file("f16.safetensors"), &[], "queries are f32 and documents f16");
    check(&q, &d, &["--texts", &file("none")], "none: No such file");
    check(&q, &d, &["--texts", &file("broken.jsonl")], "broken.jsonl, line 2: EOF");
    check(&q, &d, &["--texts", &file("beyond.jsonl")], "line 1: document 9 does not exist");
    check(&q, &d, &["--texts", &file("text.jsonl")], "line 1: the id has a control character");
    check(&q, &d, &["--qrels", &file("d.jsonl")], "missing field `relevant`");
    check(&q, &d, &["--qrels", &file("twice.jsonl")], "line 2: query 1 appears twice");
    check(&q, &d, &["--qrels", &file("beyond.jsonl")], "query 9 does not exist");
    check(&q, &d, &["--qrels", &file("relevant.jsonl")], "relevant document 9 does not exist");
    check(&q, &d, &["--kernel", "maxsim_forward_sm80_f32_q256"], "kernel");
    check(&q, &d, &["--device", "gpu"], "expected auto, cpu, cuda:N or cuda:all");
    check(&q, &d, &["--device", "cuda:x"], "expected auto, cpu, cuda:N or cuda:all");
    check(&q, &d, &["--device", "cuda:4000"], "--device cuda:4000");
    check(&q, &d, &["--top-k", "0"], "expected a whole number of 1 or more");
    check(&q, &d, &["--format", "xml"], "xml");
    check(&q, &d, &["--frobnicate"], "--frobnicate");
    let error = folder.rank(&["--output", &file("none/out")]).error();
    assert!(error.contains("cannot write in the folder"), "{error}");
    let error = folder.rank(&["--output", &file("folder.npy")]).error();
    assert!(error.contains("is a folder"), "{error}");
    let error = folder.rank(&["--output", &d]).error();
    assert!(error.contains("is an input of this run"), "{error}");
    let error = run(["rank", "--queries", &q]).error();
    assert!(error.contains("--documents"), "{error}");
    assert_eq!(folder.names(), names);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let folder = Folder::new();
    let (queries, documents) = (folder.path("q.safetensors"), folder.path("d.safetensors"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command();
    command.args(["rank", "--device", "cpu", "--format", "json", "--queries"]).arg(queries);
    let run = Run::of(command.arg("--documents").arg(documents).stdout(writer).output().unwrap());
    assert!(run.error().contains("standard output"));
}
