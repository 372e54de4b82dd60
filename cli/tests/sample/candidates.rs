//! Documents that are ranked: a first stage's candidates, and lists of what is in or out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::files::{Random, packed, padded};
use crate::tool::{FolderOf, Run, json, rank, run, sample};
use half::f16;
use maxsim::{Device, Pairing};
use maxsim_cli::input::{Reading, TokenFile};
use serde_json::{Value, json};

/// Documents doc-a to doc-n.
const N_DOCUMENTS: usize = 14;

/// Candidates in any order, of PLAIN-3 none; doc-zz is no document, PLAIN-9 no query.
const RUN: &str = "PLAIN-1 Q0 doc-n 1 9.5 first\nPLAIN-2 Q0 doc-c 1 -1e3 first\n\
    PLAIN-1\tQ0\tdoc-c 2 9 first\r\n\nPLAIN-1 0 doc-f 3 nan first\nPLAIN-2 Q0 doc-zz 2 0 first\n\
    PLAIN-9 Q0 doc-a 1 7 first\nPLAIN-2 Q0 doc-d 3 0 first\n";

/// The same as JSON.
const OBJECTS: &str = "{\"id\": \"PLAIN-2\", \"documents\": [\"doc-d\", \"doc-c\", \"doc-zz\"]}\n\
    {\"_id\": \"PLAIN-1\", \"documents\": [\"doc-n\", \"doc-c\", \"doc-f\"], \"more\": [1]}\n\
    {\"id\": \"PLAIN-9\", \"documents\": [\"doc-a\"]}\n{\"id\": \"PLAIN-3\", \"documents\": []}\n";

/// The kind of these tests' folders.
enum Candidates {}

type Folder = FolderOf<Candidates>;

impl Folder {
    /// A folder with three queries and fourteen documents of one row each: document i scores 14 - i
    /// for the first query and i for the second.
    fn new() -> Folder {
        let folder = Folder::empty();
        let queries = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        folder.write("q.safetensors", packed(&queries, 3, &[0, 1, 2, 3]));
        folder.write("d.safetensors", padded(&documents(), [N_DOCUMENTS, 1, 3], None));
        folder.write("q.txt", "PLAIN-1\nPLAIN-2\nPLAIN-3\n");
        folder.write("d.txt", names().map(|name| format!("{name}\n")).collect::<String>());
        folder.write("run.txt", RUN);
        folder.write("run.jsonl", OBJECTS);
        folder
    }

    /// Ranks with options whose values with a dot are names of files.
    fn rank_of(&self, documents: &str, options: &[&str]) -> Run {
        let full = |text: &&str| match text.contains('.') {
            true => self.text(text),
            false => text.to_string(),
        };
        let options: Vec<String> = options.iter().map(full).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        rank(&self.path("q.safetensors"), &self.path(documents), &options)
    }

    fn rank(&self, options: &[&str]) -> Run {
        self.rank_of("d.safetensors", options)
    }

    /// With the ids of both files.
    fn named(&self, options: &[&str]) -> Run {
        self.rank(&[&["--query-ids", "q.txt", "--document-ids", "d.txt"], options].concat())
    }
}

fn documents() -> Vec<f32> {
    let row = |i: usize| [14.0 - i as f32, i as f32, (i * 5 % 14) as f32];
    (0..N_DOCUMENTS).flat_map(row).collect()
}

fn names() -> impl Iterator<Item = String> {
    (b'a'..=b'n').map(|letter| format!("doc-{}", letter as char))
}

/// Documents and scores of each query.
fn rankings(run: Run) -> Vec<(Vec<Value>, Vec<f64>)> {
    let output = json(&run.ok());
    let of = |query: &Value| {
        let scores = query["scores"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap());
        (query["documents"].as_array().unwrap().clone(), scores.collect())
    };
    output["queries"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn candidates_are_ranked_and_nothing_else() {
    let folder = Folder::new();
    for file in ["run.txt", "run.jsonl"] {
        let candidates = ["--candidates", file];
        let run = folder.named(&[&candidates[..], &["--format", "trec"]].concat());
        for expected in [
            "queries with candidates that are not among the queries: 1 of",
            "candidates that are not among the documents: 1 of 6 (doc-zz); they are left out",
            "queries without candidates: 1 of 3 (PLAIN-3); nothing is ranked for them",
            "3 queries × 4 of 14 documents (5 pairs; 3 × 4 tokens of 3 f32)",
        ] {
            assert!(run.stderr.contains(expected), "{file}, {expected}: {}", run.stderr);
        }
        let expected = "PLAIN-1 Q0 doc-c 1 12 maxsim\nPLAIN-1 Q0 doc-f 2 9 maxsim\n\
             PLAIN-1 Q0 doc-n 3 1 maxsim\nPLAIN-2 Q0 doc-d 1 3 maxsim\n\
             PLAIN-2 Q0 doc-c 2 2 maxsim\n";
        assert_eq!(run.ok(), expected, "{file}");
        // In other forms, with documents in and out.
        let more = ["--top-k", "1", "--exclude", "out.txt"];
        folder.write("out.txt", "doc-c\ndoc-k\n");
        let table = folder.named(&[&candidates[..], &more].concat()).ok();
        let expected = "query PLAIN-1\n   1     9.0000    doc-f\n\nquery PLAIN-2\n   1     \
             3.0000    doc-d\n\nquery PLAIN-3\n\n";
        assert_eq!(table, expected, "{file}");
        let options = [&candidates[..], &["--format", "json", "--include", "out.txt"]].concat();
        let output = json(&folder.named(&options).ok());
        let expected = json!({"queries": [
            {"id": "PLAIN-1", "documents": ["doc-c"], "scores": [12.0]},
            {"id": "PLAIN-2", "documents": ["doc-c"], "scores": [2.0]},
            {"id": "PLAIN-3", "documents": [], "scores": []},
        ]});
        assert_eq!(output, expected, "{file}");
    }
    // Numbers are items; what the tool wrote is what it reads.
    let written = folder.rank(&["--format", "trec", "--top-k", "2"]).ok();
    folder.write("again.txt", &written);
    let run = folder.rank(&["--format", "trec", "--candidates", "again.txt"]);
    let warning = "again.txt (trec): ids are read as item numbers, from 0";
    assert!(run.stderr.contains(warning), "{}", run.stderr);
    assert_eq!(run.ok(), written);
}

#[test]
fn lists_say_which_documents_are_in_and_out() {
    let folder = Folder::new();
    folder.write("in.txt", "doc-m\ndoc-b\ndoc-zz\ndoc-c\ndoc-b\n");
    folder
        .write("out.jsonl", "{\"_id\": \"doc-c\", \"text\": \"of no use\"}\n{\"id\": \"doc-n\"}\n");
    folder.write("none.txt", "");
    let found = |options: &[&str]| {
        let run = folder.named(&[options, &["--format", "json", "--top-k", "3"]].concat());
        let (said, rankings) = (run.stderr.clone(), rankings(run));
        (rankings[1].0.iter().map(|id| id.as_str().unwrap().to_string()).collect(), said)
    };
    let (ids, said): (Vec<String>, String) = found(&["--include", "in.txt"]);
    assert_eq!(ids, ["doc-m", "doc-c", "doc-b"]);
    for expected in [
        "in.txt: ids that are not among the documents: 1 of 5 (doc-zz)",
        "in.txt: ids that appear once more: 1 of 5 (doc-b)",
        "3 queries × 3 of 14 documents (9 pairs; 3 × 3 tokens",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let (ids, said) = found(&["--exclude", "out.jsonl"]);
    assert_eq!(ids, ["doc-m", "doc-l", "doc-k"]);
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(found(&["--include", "in.txt", "--exclude", "out.jsonl"]).0, ["doc-m", "doc-b"]);
    assert_eq!(found(&["--exclude", "none.txt"]).0, ["doc-n", "doc-m", "doc-l"]);
    // Relevant documents that are left out count as not found.
    folder.write("qrels.txt", "PLAIN-2 0 doc-n 1\nPLAIN-2 0 doc-m 1\n");
    let options = ["--exclude", "out.jsonl", "--qrels", "qrels.txt", "--format", "json"];
    let output = json(&folder.named(&options).ok());
    assert_eq!(output["metrics"]["recall@10"], json!(0.5));
}

#[test]
fn what_is_ambiguous_or_unknown_is_refused() {
    let folder = Folder::new();
    folder.write("list.txt", "doc-a\n");
    let check = |content: &str, options: &[&str], expected: &str| {
        folder.write("c.txt", content);
        let error = folder.named(&[&["--candidates", "c.txt"], options].concat()).error();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    for (content, expected) in [
        ("", "c.txt: no candidates; expected a TREC run, such as `q1 Q0 d7 1 23.5 name`; or"),
        ("PLAIN-1 0 doc-a 1\n", "line 1: four columns, as of TREC qrels: --candidates takes a"),
        ("PLAIN-1 doc-a 1\n", "c.txt, line 1: 3 columns: expected a TREC run"),
        ("PLAIN-1 Q0 doc-a 1 x maxsim\n", "line 1: the rank `1` and the score `x` are not numbers"),
        ("PLAIN-1 Q0 doc-a x 1 maxsim\n", "line 1: the rank `x` and the score `1` are not numbers"),
        ("{\"id\": \"PLAIN-1\"}\n", "line 1: missing field `documents` (column"),
        (
            "{\"id\": \"PLAIN-1\", \"documents\": []}\nPLAIN-1 Q0 doc-a 1 1 x\n",
            "line 2: expected a JSON object",
        ),
        ("PLAIN-1 Q0 doc-a 1 1 x\n{\"id\": \"PLAIN-1\"}\n", "c.txt, line 2: 2 columns: expected"),
        (
            "PLAIN-1 Q0 doc-b 1 3 x\n\nPLAIN-2 Q0 doc-b 1 3 x\nPLAIN-1 Q0 doc-b 2 2 x\n",
            "c.txt, line 4: document doc-b is a candidate of query PLAIN-1 already, in line 1",
        ),
        (
            "{\"id\": \"PLAIN-1\", \"documents\": [\"doc-a\", \"doc-a\"]}\n",
            "line 1: document doc-a is a candidate of query PLAIN-1 already, in line 1",
        ),
        (
            "{\"id\": \"PLAIN-1\", \"documents\": []}\n{\"id\": \"PLAIN-1\", \"documents\": []}\n",
            "line 2: query PLAIN-1 appears twice",
        ),
        (
            "{\"id\": \"PLAIN-1\", \"documents\": []}\n",
            "c.txt: no candidates of any of the queries",
        ),
        ("x Q0 doc-a 1 1 x\n", "c.txt: none of its 1 query (x) is among the queries; no query has"),
        (
            "PLAIN-1 Q0 y 1 1 x\n",
            "c.txt: none of its 1 candidate (y) is among the documents; no document has the id y",
        ),
    ] {
        check(content, &[], expected);
    }
    let line = "PLAIN-1 Q0 doc-a 1 1 x\n";
    check(line, &["--exclude", "list.txt"], "none of its candidates is left by --include and");
    check(line, &["--screen", "d.safetensors"], "'--candidates <FILE>' cannot be used with");
    // Nothing but numbers of items has no names.
    folder.write("c.txt", "0 Q0 14 1 1 x\n");
    let error = folder.rank(&["--candidates", "c.txt"]).error();
    assert!(error.contains("c.txt, line 1: document 14 does not exist"), "{error}");
    for (option, content, expected) in [
        ("--include", "", "c.txt: no ids, so no document is left"),
        ("--include", "x\ny\n", "c.txt: none of its 2 ids (x, y) is that of a document; no"),
        ("--exclude", "x\n", "c.txt: none of its 1 id (x) is that of a document; no document has"),
        ("--exclude", "{\"text\": \"x\"}\n", "c.txt, line 1: missing field `id`"),
    ] {
        folder.write("c.txt", content);
        let error = folder.named(&[option, "c.txt"]).error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let both = ["--include", "list.txt", "--exclude", "list.txt"];
    assert!(folder.named(&both).error().contains("no document is left by --include and"));
    let error = folder.rank(&["--include", "list.txt"]).error();
    assert!(error.contains("list.txt, line 1: document doc-a does not exist"), "{error}");
    let error = folder.named(&["--include", "list.txt", "--output", "list.txt"]).error();
    assert!(error.contains("is an input of this run"), "{error}");
}

/// Rows of other documents may hold anything, and errors name rows and items of the file.
#[test]
fn rows_of_other_documents_are_not_read() {
    let folder = Folder::new();
    let mut values = documents();
    (values[4 * 3], values[9 * 3 + 1]) = (f32::NAN, f32::INFINITY);
    values[11 * 3] = f32::MAX;
    folder.write("bad.safetensors", padded(&values, [N_DOCUMENTS, 1, 3], None));
    folder.write("q.safetensors", packed(&[4.0, 0.0, 0.0, 0.0, 1.0, 0.0], 3, &[0, 1, 2]));
    let runs = [
        ("0 Q0 3 1 1 x\n1 Q0 10 1 1 x\n", None),
        ("0 Q0 3 1 1 x\n1 Q0 4 1 1 x\n", Some("row 4 of |(document 4) has a NaN in element 0")),
        ("0 Q0 2 1 1 x\n1 Q0 9 1 1 x\n", Some("row 9 of |(document 9) has an infinity in el")),
        // Query 1 has 0 · f32::MAX.
        ("0 Q0 2 1 1 x\n1 Q0 11 1 1 x\n", None),
        ("1 Q0 2 1 1 x\n0 Q0 11 1 1 x\n", Some("the score of query 0 and document 11 is inf")),
    ];
    for (content, expected) in runs {
        folder.write("c.txt", content);
        let run = folder.rank_of("bad.safetensors", &["--candidates", "c.txt"]);
        match expected {
            Some(expected) => {
                let error = run.error();
                assert!(expected.split('|').all(|part| error.contains(part)), "{error}");
            }
            None => drop(run.ok()),
        }
    }
    folder.write("out.txt", "4\n9\n11\n");
    folder.rank_of("bad.safetensors", &["--exclude", "out.txt"]).ok();
    folder.write("out.txt", "4\n11\n");
    let error = folder.rank_of("bad.safetensors", &["--exclude", "out.txt"]).error();
    assert!(error.contains("(document 9) has an infinity"), "{error}");
    // One without tokens ranks last, below a negative score.
    let rows = [-1.0, 0.0, 0.0, -2.0, 0.0, 0.0, 3.0, 0.0, 0.0];
    folder.write("few.safetensors", packed(&rows, 3, &[0, 1, 1, 2, 3]));
    folder.write("c.jsonl", "{\"id\": 0, \"documents\": [0, 1, 2]}");
    let run = folder.rank_of("few.safetensors", &["--candidates", "c.jsonl", "--format", "json"]);
    assert!(run.stderr.contains("; 1 document without tokens ranks last"), "{}", run.stderr);
    let output = json(&run.ok());
    assert_eq!(output["queries"][0]["documents"], json!([0, 2, 1]));
    assert_eq!(output["queries"][0]["without_tokens"], json!([1]));
}

fn devices() -> Vec<String> {
    let device = Device::cuda(0);
    if let Err(error) = &device {
        let required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "MAXSIM_REQUIRE_GPU=1, but {error}");
        eprintln!("SKIPPED (no CUDA device): candidates and lists of documents");
    }
    [Device::cpu()].iter().chain(&device).map(Device::to_string).collect()
}

/// The sample's documents in every format, with the ranking of all of them by each query.
fn compressed(folder: &Folder) -> Vec<PathBuf> {
    let documents = sample("documents.safetensors");
    let formats = [
        ("int8", &[][..]),
        ("int8-affine", &[]),
        ("fp8", &["--scales", "f32"]),
        ("fp8", &["--scales", "tensor"]),
        ("plaid", &["--centroids", "64"]),
    ];
    let of = formats.iter().enumerate().map(|(i, (format, more))| {
        let output = folder.text(&format!("{i}.safetensors"));
        let input = documents.to_str().unwrap();
        let args = ["quantize", "--format", format, "--input", input, "--output", &output];
        run([&args[..], more].concat()).ok();
        output.into()
    });
    let compressed: Vec<PathBuf> = of.collect();
    [documents].into_iter().chain(compressed).collect()
}

/// A third of the documents for each query, and a list of a fourth of all that is to be out.
fn chosen(folder: &Folder) -> (BTreeMap<usize, Vec<u64>>, Vec<u64>) {
    let mut random = Random(17);
    let (n_queries, n_documents) = (50, 200);
    let mut of_queries = BTreeMap::new();
    for query in 0..n_queries {
        let ids: Vec<u64> = (0..n_documents).filter(|_| random.below(3) == 0).collect();
        of_queries.insert(query, ids);
    }
    let out: Vec<u64> = (0..n_documents).filter(|_| random.below(4) == 0).collect();
    let lines =
        of_queries.iter().map(|(id, ids)| format!("{}\n", json!({"id": id, "documents": ids})));
    folder.write("c.jsonl", lines.collect::<String>());
    folder.write("out.txt", out.iter().map(|id| format!("{id}\n")).collect::<String>());
    (of_queries, out)
}

/// The rankings of candidates, and of documents that are left, are those of all documents without
/// the others: of every format, in one chunk and in many.
#[test]
fn rankings_are_those_of_all_documents_without_the_others() {
    let folder = Folder::empty();
    let (candidates, out) = chosen(&folder);
    let (list, exclude) = (folder.text("c.jsonl"), folder.text("out.txt"));
    let queries = sample("queries.safetensors");
    for device in devices() {
        for documents in compressed(&folder) {
            let found = |more: &[&str]| {
                let options = [&["--device", &device, "--format", "json"], more].concat();
                rankings(rank(&queries, &documents, &options))
            };
            let all = found(&["--top-k", "200"]);
            let of_candidates = ["--candidates", &list, "--exclude", &exclude, "--top-k", "5"];
            for chunks in [&[][..], &["--chunk-bytes", "100000"]] {
                let left = found(&[&["--exclude", &exclude, "--top-k", "5"], chunks].concat());
                let own = found(&[&of_candidates[..], chunks].concat());
                for (query, (ids, scores)) in all.iter().enumerate() {
                    let is_left = |id: u64| !out.contains(&id);
                    let is_own = |id: u64| is_left(id) && candidates[&query].contains(&id);
                    let name = format!("{device} {}, query {query}", documents.display());
                    check(&name, [ids, &left[query].0], [scores, &left[query].1], is_left);
                    check(&name, [ids, &own[query].0], [scores, &own[query].1], is_own);
                }
            }
        }
    }
}

/// Checks the first five of those of all documents that are chosen.
fn check(name: &str, ids: [&[Value]; 2], scores: [&[f64]; 2], is_chosen: impl Fn(u64) -> bool) {
    let chosen = ids[0].iter().zip(scores[0]).filter(|(id, _)| is_chosen(id.as_u64().unwrap()));
    let expected: Vec<(&Value, &f64)> = chosen.take(5).collect();
    assert_eq!(ids[1].len(), 5, "{name}");
    for ((id, score), (wanted, &expected)) in ids[1].iter().zip(scores[1]).zip(expected) {
        let is_near = (score - expected).abs() <= 1e-5 * expected.abs();
        assert!(is_near && id == wanted, "{name}: {id} of {score}, not {wanted} of {expected}");
    }
}

/// What a screen finds among the documents that are left is their exact ranking.
#[test]
fn screens_are_searched_for_what_is_left() {
    let folder = Folder::empty();
    chosen(&folder);
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let exclude = folder.text("out.txt");
    for device in devices() {
        let options = ["--device", &device, "--format", "json", "--exclude", &exclude];
        let plain = rankings(rank(&queries, &documents, &options));
        for screen in &compressed(&folder)[1..4] {
            let screen = ["--screen", screen.to_str().unwrap(), "--exact", "--shortlist", "10"];
            for chunks in [&[][..], &["--chunk-bytes", "100000"]] {
                let run = rank(&queries, &documents, &[&options, &screen[..], chunks].concat());
                assert!(run.stderr.contains("500 of 500 places proven"), "{}", run.stderr);
                for (found, plain) in rankings(run).iter().zip(&plain) {
                    assert_eq!(found.0, plain.0, "{device} {screen:?}");
                }
            }
        }
    }
}

/// The library's scores of the same candidates give the ranking.
#[test]
fn candidates_rank_as_in_the_library() {
    let folder = Folder::empty();
    let set = Path::new("examples/debian-packages");
    let open = |name: &str| TokenFile::open(&set.join(name), Reading::Map).unwrap();
    let (queries, documents) = (open("queries.safetensors"), open("documents.safetensors"));
    let queries = queries.tokens::<f16>(0..queries.n_items()).unwrap();
    let documents = documents.tokens::<f16>(0..documents.n_items()).unwrap();
    let (n_queries, k) = (queries.layout().n_items(), 12);
    let ids: Vec<u32> = (0..n_queries * k).map(|i| (i * 7 % 193) as u32).collect();
    let run = ids.chunks(k).enumerate().flat_map(|(query, ids)| {
        let line = move |(rank, id): (usize, &u32)| format!("{query} Q0 {id} {rank} 0.5 first\n");
        ids.iter().enumerate().map(line)
    });
    folder.write("run.txt", run.collect::<String>());
    let pairing = Pairing::candidates(&ids, k).unwrap();
    let scores = Device::cpu().score(&queries, &documents, &pairing).unwrap();
    let expected = scores.top_k_of(&pairing, documents.layout(), 10).unwrap();
    let options = ["--candidates", &folder.text("run.txt"), "--format", "json"];
    let found =
        rankings(rank(&sample("queries.safetensors"), &sample("documents.safetensors"), &options));
    assert_eq!(found.len(), n_queries);
    for ((ids, scores), expected) in found.iter().zip(&expected) {
        assert!(ids.iter().zip(&expected.ranked).all(|(id, d)| *id == json!(d.id)), "{ids:?}");
        let near = |(a, b): (&f64, f64)| (a - b).abs() <= 1e-5 * b.abs();
        let expected = expected.ranked.iter().map(|d| f64::from(d.score));
        assert!(scores.iter().zip(expected).all(near), "{scores:?}");
    }
}
