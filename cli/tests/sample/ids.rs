//! What queries and documents are called: ids in output, and judgements by them in every form.

use std::fs;

use crate::files::{f32_bytes, i64_bytes, packed, padded, safetensors};
use crate::tool::{self, FolderOf, Run, json, rank, run, sample};
use serde_json::{Value, json};

/// Documents doc-a to doc-n.
const N_DOCUMENTS: usize = 14;

/// Means of `ndcg_cut_10` and `recall_10` that trec_eval (pytrec_eval-terrier 0.5) has for
/// [`TREC`] and the queries PLAIN-1 and PLAIN-2.
const NDCG: f64 = 0.4978282620219451;
const RECALL: f64 = 0.5833333333333333;

/// Graded judgements; doc-zz is no document, and PLAIN-3 has no relevant one.
const TREC: &str = "PLAIN-1 0 doc-b 3\nPLAIN-1 0 doc-d 1\nPLAIN-1\t0\tdoc-a\t-1\n\
    PLAIN-1 Q0 doc-n 2\nPLAIN-1 0 doc-zz 2\nPLAIN-1 0 doc-c 0\nPLAIN-2 0 doc-a 1\r\n\
    PLAIN-2 0 doc-k 2\n\nPLAIN-2 0 doc-m 4\nPLAIN-3 0 doc-a 0\n";

const QUERY_IDS: &str = "PLAIN-1\nPLAIN-2\nPLAIN-3\n";

/// The kind of these tests' folders.
enum Ids {}

type Folder = FolderOf<Ids>;

impl Folder {
    /// A folder with three queries and fourteen documents of one row each: the first query ranks
    /// documents in their order, the second the other way round.
    fn new() -> Folder {
        let folder = Folder::empty();
        let queries = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        folder.write("q.safetensors", packed(&queries, 3, &[0, 1, 2, 3]));
        folder.write("d.safetensors", padded(&documents(), [N_DOCUMENTS, 1, 3], None));
        folder.write("q.txt", QUERY_IDS);
        let lines: String = names().map(|name| format!("{name}\n")).collect();
        folder.write("d.txt", lines);
        folder.write("qrels.txt", TREC);
        folder
    }

    /// Options whose values with a dot are names of files.
    fn files(&self, options: &[&str]) -> Vec<String> {
        let is_file = |text: &&str| text.contains('.');
        let path = |text: &str| self.path(text).to_str().unwrap().to_string();
        options.iter().map(|o| if is_file(o) { path(o) } else { o.to_string() }).collect()
    }

    fn rank(&self, options: &[&str]) -> Run {
        self.rank_of("d.safetensors", options)
    }

    fn rank_of(&self, documents: &str, options: &[&str]) -> Run {
        let options = self.files(options);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        rank(&self.path("q.safetensors"), &self.path(documents), &options)
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

fn names() -> impl DoubleEndedIterator<Item = String> {
    (b'a'..=b'n').map(|letter| format!("doc-{}", letter as char))
}

/// The documents, with `ids` in the metadata.
fn noted(ids: &Value) -> Vec<u8> {
    let data = f32_bytes(&documents());
    let header = json!({
        "__metadata__": {"ids": ids.to_string()},
        "embeddings": {
            "dtype": "F32",
            "shape": [N_DOCUMENTS, 1, 3],
            "data_offsets": [0, data.len()],
        },
    });
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn metrics(run: Run) -> (f64, f64) {
    let output = json(&run.ok());
    let metric = |name: &str| output["metrics"][name].as_f64().unwrap();
    (metric("ndcg@10"), metric("recall@10"))
}

fn assert_metrics(run: Run) {
    let (ndcg, recall) = metrics(run);
    assert!((ndcg - NDCG).abs() < 1e-12 && (recall - RECALL).abs() < 1e-12, "{ndcg} {recall}");
}

#[test]
fn judgements_of_every_form_are_judged_as_by_trec_eval() {
    let folder = Folder::new();
    let run = folder.named(&["--qrels", "qrels.txt", "--format", "json"]);
    for warning in [
        "relevant documents that are not among the documents: 1 of 7 (doc-zz); they count as",
        "judged queries without a relevant document: 1; they are left out of the means",
    ] {
        assert!(run.stderr.contains(warning), "{warning}: {}", run.stderr);
    }
    assert_metrics(run);

    let mut beir = "query-id\tcorpus-id\tscore\r\n".to_string();
    let mut turned = "\u{feff}corpus_id\tscore\tquery_id\n".to_string();
    let mut by_query: serde_json::Map<String, Value> = serde_json::Map::new();
    for line in TREC.lines().filter(|line| !line.is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (query, document, grade) = (fields[0], fields[2], fields[3]);
        beir += &format!("{query}\t{document}\t{grade}\n");
        turned += &format!("{document}\t{grade}.0\t{query}\n");
        let grades = by_query.entry(query).or_insert(json!({}));
        grades[document] = json!(grade.parse::<i64>().unwrap());
    }
    let lines = by_query.iter().map(|(id, grades)| json!({"_id": id, "relevant": grades}));
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    folder.write("qrels.tsv", beir.as_str());
    folder.write("turned.tsv", turned);
    folder.write("bare.tsv", beir.split_once('\n').unwrap().1);
    folder.write("qrels.jsonl", lines);
    for options in [
        &["--qrels", "qrels.tsv"][..],
        &["--qrels", "turned.tsv"],
        &["--qrels", "qrels.jsonl"],
        &["--qrels", "bare.tsv", "--qrels-format", "beir"],
        &["--qrels", "qrels.txt", "--qrels-format", "trec"],
    ] {
        assert_metrics(folder.named(&[options, &["--format", "json", "--top-k", "1"]].concat()));
    }
}

#[test]
fn a_trec_run_has_the_ids() {
    let folder = Folder::new();
    let run = folder.named(&["--format", "trec", "--top-k", "20"]).ok();
    let expected: Vec<String> = (0..N_DOCUMENTS)
        .zip(names())
        .map(|(i, name)| format!("PLAIN-1 Q0 {name} {} {} maxsim", i + 1, 14 - i))
        .chain(
            (0..N_DOCUMENTS)
                .zip(names().rev())
                .map(|(i, name)| format!("PLAIN-2 Q0 {name} {} {} maxsim", i + 1, 13 - i)),
        )
        .collect();
    let lines: Vec<&str> = run.lines().take(2 * N_DOCUMENTS).collect();
    assert_eq!(lines, expected);
    // Equal scores: ours are in the order of documents, theirs is by id, descending.
    let documents = packed(&[1.0f32, 0.0, 0.0].repeat(3), 3, &[0, 1, 2, 3]);
    folder.write("ties.safetensors", documents);
    let said = folder.rank_of("ties.safetensors", &["--format", "trec"]).stderr;
    let warning = "warning: 6 documents have the score of the one before; trec_eval orders";
    assert!(said.contains(warning), "{said}");
    folder.write("falling.txt", "c\nb\na\n");
    let options = ["--format", "trec", "--document-ids", "falling.txt"];
    let said = folder.rank_of("ties.safetensors", &options).stderr;
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn ids_stand_in_json_and_in_the_table() {
    let folder = Folder::new();
    let output = json(&folder.named(&["--format", "json", "--top-k", "2"]).ok());
    let expected =
        json!({"id": "PLAIN-2", "documents": ["doc-n", "doc-m"], "scores": [13.0, 12.0]});
    assert_eq!(output["queries"][1], expected);
    let lines = "{\"_id\": \"PLAIN-1\", \"text\": \"first\\u001b[2J words\", \"metadata\": {}}\n\
                 {\"_id\": \"PLAIN-2\"}\n{\"_id\": 3}\n";
    folder.write("queries.jsonl", lines);
    let options = ["--query-ids", "queries.jsonl", "--document-ids", "d.txt"];
    let table = folder.rank(&[&options[..], &["--top-k", "1"]].concat()).ok();
    let expected = "query PLAIN-1: first[2J words\n   1    14.0000    doc-a\n\nquery PLAIN-2\n   \
                    1    13.0000    doc-n\n\nquery 3\n   1    13.0000    doc-l\n\n";
    assert_eq!(table, expected);
}

#[test]
fn token_files_can_have_ids_themselves() {
    let folder = Folder::new();
    let integers: Vec<i64> = (0..N_DOCUMENTS as i64).map(|i| 7_187_155 + i).collect();
    let embeddings = f32_bytes(&documents());
    let shape = [N_DOCUMENTS, 1, 3];
    let of_ids = |ids: &[i64]| {
        let n = [ids.len()];
        let tensors = [
            ("embeddings", "F32", &shape[..], embeddings.clone()),
            ("ids", "I64", &n[..], i64_bytes(ids)),
        ];
        safetensors(&tensors, 0)
    };
    folder.write("numbered.safetensors", of_ids(&integers));
    folder.write("few.safetensors", of_ids(&integers[1..]));
    let mut twice = integers.clone();
    twice[9] = twice[4];
    folder.write("twice.safetensors", of_ids(&twice));
    let ids: Vec<String> = names().collect();
    folder.write("named.safetensors", noted(&json!(ids)));
    folder.write("broken.safetensors", noted(&json!({"a": 1})));

    let first = |documents: &str, more: &[&str]| {
        let options = [&["--format", "json", "--top-k", "1"], more].concat();
        json(&folder.rank_of(documents, &options).ok())["queries"][1]["documents"][0].clone()
    };
    assert_eq!(first("numbered.safetensors", &[]), json!("7187168"));
    assert_eq!(first("named.safetensors", &[]), json!("doc-n"));
    assert_eq!(first("named.safetensors", &["--document-ids", "d.txt"]), json!("doc-n"));
    let options = ["--query-ids", "q.txt", "--qrels", "qrels.txt", "--format", "json"];
    assert_metrics(folder.rank_of("named.safetensors", &options));
    // Compressed files keep them, and a screen of other ones is not of these documents.
    for (format, more) in [("plaid", &["--keep-lengths"][..]), ("int8", &[])] {
        let options = ["quantize", "--format", format, "--output", "out.safetensors", "--input"];
        for (input, last) in [("named.safetensors", "doc-n"), ("numbered.safetensors", "7187168")] {
            run(folder.files(&[&options[..], &[input], more].concat())).ok();
            let output = folder.rank_of("out.safetensors", &["--format", "json"]).ok();
            assert!(output.contains(&format!("\"{last}\"")), "{format} {output}");
        }
    }
    let error = folder.rank_of("named.safetensors", &["--screen", "out.safetensors"]).error();
    assert!(error.contains("named.safetensors: item 0 has the id `doc-a`, and "), "{error}");
    for (documents, more, expected) in [
        (
            "few.safetensors",
            &[][..],
            "few.safetensors: `ids` has 13 entries, where the file has 14",
        ),
        (
            "twice.safetensors",
            &[],
            "twice.safetensors: item 9: the id `7187159` is also that of item 4",
        ),
        ("broken.safetensors", &[], "broken.safetensors: `ids` in the metadata is no JSON array"),
        (
            "numbered.safetensors",
            &["--document-ids", "d.txt"],
            "d.txt, line 1 has the id `doc-a`, and ",
        ),
    ] {
        let error = folder.rank_of(documents, more).error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn ids_that_are_none_are_refused_with_file_and_line() {
    let folder = Folder::new();
    let check = |name: &str, content: &str, options: &[&str], expected: &str| {
        folder.write(name, content);
        let error = folder.rank(options).error();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let of_queries = &["--query-ids", "ids.txt"];
    for (content, expected) in [
        ("a\nb\n", "ids.txt: 2 ids, where the token file has 3 queries"),
        ("a\nb\nc\nd\n", "ids.txt: 4 ids, where the token file has 3 queries"),
        ("", "ids.txt: 0 ids, where the token file has 3 queries"),
        ("a\n\nb\na\n", "ids.txt, line 4: the id `a` is also that of line 1"),
        ("{\"id\": \"a\"}\n{\"id\": \"\"}\n", "ids.txt, line 2: the id is empty"),
        ("{\"id\": \"a\"}\n{\"text\": \"b\"}\n", "ids.txt, line 2: missing field `id`"),
        ("{\"id\": \"a\"}\nb\n", "ids.txt, line 2: expected a JSON object"),
        ("a\n{\"id\": \"b\"}\n", "ids.txt, line 2: a JSON object, where the lines before are ids"),
        ("a\nb\u{7}\nc\n", "ids.txt, line 2: the id has a control character"),
    ] {
        check("ids.txt", content, of_queries, expected);
    }
    let in_trec = [&of_queries[..], &["--format", "trec"]].concat();
    check("ids.txt", "a\nb b\nc\n", &in_trec, "ids.txt, line 2: the id `b b` has white space");
    folder.rank(of_queries).ok();
    let texts = &["--texts", "texts.jsonl"];
    for (content, expected) in [
        ("{\"id\": \"a\"}\n{\"id\": 1}\n", "line 2: the id 1 is a number, and that of the first"),
        ("{\"id\": 1}\n{\"id\": \"a\"}\n", "line 2: the id a is a string, and that of the first"),
        ("{\"id\": \"a\"}\n", "texts.jsonl: 1 id, where the token file has 14 documents"),
        ("{\"id\": 14}\n", "line 1: document 14 does not exist"),
    ] {
        check("texts.jsonl", content, texts, expected);
    }
    let known = &["--texts", "texts.jsonl", "--document-ids", "d.txt"];
    check("texts.jsonl", "{\"id\": \"x\"}\n", known, "line 1: no document has the id x: ids are");
}

#[test]
fn judgements_that_could_be_two_things_are_refused() {
    let folder = Folder::new();
    let check = |content: &str, options: &[&str], expected: &str| {
        folder.write("qrels.tsv", content);
        let error = folder.named(&[&["--qrels", "qrels.tsv"], options].concat()).error();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    for (content, expected) in [
        ("PLAIN-1\tdoc-a\t1\n", "line 1: three columns without the line `query-id corpus-id"),
        // As TREC's with spaces between columns, as BEIR's with an id that has a space.
        ("PLAIN-1 0\tdoc-a\t1\n", "line 1: three columns without the line `query-id corpus-id"),
        ("PLAIN-1 doc-a 1 0\n", "line 1: four columns, but not `query 0 document grade`"),
        ("PLAIN-1 Q0 doc-a 1 0.5 tag\n", "line 1: six columns, as of a TREC run"),
        ("PLAIN-1 doc-a\n", "line 1: not a known form of judgements"),
        ("PLAIN-1 0 doc-a 0.5\n", "line 1: four columns, but not"),
        ("PLAIN-1 0 doc-a 1\nPLAIN-1 0 doc-b\n", "line 2: 3 columns; TREC qrels have four"),
        ("PLAIN-1 0 doc-a 1\nPLAIN-1 0 doc-b x\n", "line 2: the grade x is no whole number"),
        ("PLAIN-1 0 doc-a 1\nPLAIN-1 0 doc-a 2\n", "line 2: document doc-a has the grade 2 for"),
        ("PLAIN-1 0 doc-a 5000000000\n", "line 1: the grade 5000000000 is too large"),
        ("{\"id\": \"PLAIN-1\", \"relevant\": {\"doc-a\": 0.5}}", "line 1: the grade of document"),
        ("{\"id\": \"PLAIN-1\", \"relevant\": \"doc-a\"}", "expected a list of document ids, or"),
    ] {
        check(content, &[], expected);
    }
    check("PLAIN-1\tdoc-a\n", &["--qrels-format", "beir"], "line 1: expected `query-id");
    check("PLAIN-1 doc-a 1\n", &["--qrels-format", "trec"], "line 1: 3 columns; TREC qrels");
    let error = folder.rank(&["--qrels-format", "trec"]).code;
    assert_eq!(error, Some(2));
}

#[test]
fn judgements_of_another_set_are_no_silent_zero() {
    let folder = Folder::new();
    let qrels = |content: &str| {
        folder.write("other.txt", content);
        folder.named(&["--qrels", "other.txt"])
    };
    let error = qrels("1 0 doc-a 1\n2 0 doc-b 1\n3 0 doc-b 1\n4 0 doc-b 1\n5 0 doc-b 1\n").error();
    let expected = "none of its 5 judged queries (1, 2, 3 and 2 more) is among the queries";
    assert!(error.contains(expected) && error.contains("q.txt"), "{error}");
    let error = qrels("PLAIN-1 0 7 1\nPLAIN-2 0 8 1\nPLAIN-2 0 doc-a 0\n").error();
    let expected = "none of its 2 relevant documents (7, 8) is among the documents";
    assert!(error.contains(expected) && error.contains("d.txt"), "{error}");
    let run = qrels("PLAIN-1 0 doc-a 1\n7 0 doc-b 1\n");
    let expected = "judged queries that are not among the queries: 1 of 2 (7)";
    assert!(run.stderr.contains(expected), "{}", run.stderr);
    assert!(run.ok().contains("over 1 judged query\n"));
    // Numbers of items where there are no ids, and that is said.
    folder.write("numbers.txt", "0 0 0 1\n2 0 11 1\n");
    let run = folder.rank(&["--qrels", "numbers.txt"]);
    assert!(run.stderr.contains("(trec): ids are read as item numbers"), "{}", run.stderr);
    assert!(run.ok().contains("nDCG@10 1.0000, recall@10 1.0000, over 2 judged queries\n"));
    for (content, expected) in [
        ("0 0 14 1\n", "line 1: relevant document 14 does not exist: the token file has 14"),
        ("0 0 01 1\n", "line 1: relevant document 01 does not exist"),
        ("PLAIN-1 0 1 1\n", "line 1: query PLAIN-1 does not exist"),
    ] {
        folder.write("numbers.txt", content);
        let error = folder.rank(&["--qrels", "numbers.txt"]).error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn texts_give_ids_and_stand_in_json() {
    let folder = Folder::new();
    let long = "long ".repeat(50);
    let lines = |ids: &mut dyn Iterator<Item = Value>| -> String {
        let line = |id: Value| json!({"_id": id, "title": format!("title of {id}"), "text": long});
        ids.map(|id| format!("{}\n", line(id))).collect()
    };
    folder.write("named.jsonl", lines(&mut names().map(Value::from)));
    folder.write("turned.jsonl", lines(&mut names().rev().map(Value::from)));
    folder.write("two.jsonl", lines(&mut [13, 3].map(Value::from).into_iter()));
    let first = |options: &[&str]| {
        let options = [&["--format", "json", "--top-k", "2"], options].concat();
        json(&folder.rank(&options).ok())["queries"][1].clone()
    };
    let mut expected = json!({
        "id": 1, "documents": ["doc-n", "doc-m"], "scores": [13.0, 12.0],
        "titles": ["title of \"doc-n\"", "title of \"doc-m\""], "texts": [long, long],
    });
    assert_eq!(first(&["--texts", "named.jsonl"]), expected);
    // Where documents have ids, lines may come in any order.
    assert_eq!(first(&["--texts", "turned.jsonl", "--document-ids", "d.txt"]), expected);
    expected["documents"] = json!([13, 12]);
    expected["titles"] = json!(["title of 13", null]);
    expected["texts"] = json!([long, null]);
    assert_eq!(first(&["--texts", "two.jsonl"]), expected);
    let options = ["--texts", "named.jsonl", "--query-ids", "q.txt", "--qrels", "qrels.txt"];
    assert_metrics(folder.rank(&[&options[..], &["--format", "json"]].concat()));
}

#[test]
fn json_marks_documents_without_tokens() {
    let folder = Folder::new();
    folder.write("holes.safetensors", packed(&documents()[..9], 3, &[0, 0, 1, 2, 2, 3]));
    folder.write("ids.txt", "a\nb\nc\nd\ne\n");
    let options = ["--format", "json", "--document-ids", "ids.txt", "--top-k", "4"];
    let output = json(&folder.rank_of("holes.safetensors", &options).ok());
    let expected = json!({
        "id": 0, "documents": ["b", "c", "e", "a"], "scores": [14.0, 13.0, 12.0, 0.0],
        "without_tokens": ["a"],
    });
    assert_eq!(output["queries"][0], expected);
    let output = json(&folder.rank_of("holes.safetensors", &["--format", "json"]).ok());
    assert_eq!(output["queries"][0]["without_tokens"], json!([0, 3]));
}

#[test]
fn table_columns_grow_and_wide_characters_are_aligned() {
    let folder = Folder::new();
    let lines = [
        json!({"id": 0, "title": "文書の題", "text": "text"}),
        json!({"id": 1, "title": "a title", "text": "text"}),
        json!({"id": 2, "title": "文".repeat(30), "text": "書".repeat(50)}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    folder.write("texts.jsonl", lines);
    let table = folder.rank(&["--texts", "texts.jsonl", "--top-k", "3"]).ok();
    let lines: Vec<&str> = table.lines().skip(1).take(3).collect();
    let title = |text: &str, n_spaces: usize| format!("{text}{}  ", " ".repeat(n_spaces));
    assert_eq!(lines[0], format!("   1    14.0000        0  {}text", title("文書の題", 41 - 8)));
    assert_eq!(lines[1], format!("   2    13.0000        1  {}text", title("a title", 41 - 7)));
    let (cut, text) = (format!("{}…", "文".repeat(20)), format!("{}…", "書".repeat(36)));
    assert_eq!(lines[2], format!("   3    12.0000        2  {}{text}", title(&cut, 0)));

    let ids: String = (0..N_DOCUMENTS).map(|i| format!("document-文-{i}\n")).collect();
    folder.write("ids.txt", ids);
    let large: Vec<f32> = documents().iter().map(|x| x * 1e9).collect();
    folder.write("large.safetensors", padded(&large, [N_DOCUMENTS, 1, 3], None));
    let table = folder.rank_of("large.safetensors", &["--document-ids", "ids.txt"]).ok();
    let lines: Vec<&str> = table.lines().skip(1).take(10).collect();
    assert_eq!(lines[0], "   1 14000000000.0000   document-文-0");
    assert_eq!(lines[9], "  10  5000000000.0000   document-文-9");
}

#[cfg(target_os = "linux")]
#[test]
fn a_table_fits_its_terminal() {
    use std::io::Read;
    use std::process::Stdio;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};
    use unicode_width::UnicodeWidthStr;

    for columns in [20u16, 40, 61, 80, 200] {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let terminal = fs::File::options().read(true).write(true).open(name).unwrap();
        let mut command = tool::command();
        command.args(["rank", "--device", "cpu", "--top-k", "3"]);
        for (option, file) in [
            ("--queries", "queries.safetensors"),
            ("--documents", "documents.safetensors"),
            ("--texts", "documents.jsonl"),
            ("--qrels", "queries.jsonl"),
        ] {
            command.arg(option).arg(sample(file));
        }
        command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(terminal);
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut output = Vec::new();
        // Reading ends with an error when the last writer is gone.
        let _ = fs::File::from(controller).read_to_end(&mut output);
        assert!(child.wait().unwrap().success());
        let output = String::from_utf8(output).unwrap();
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), 251);
        let widest = lines[..249].iter().map(|line| line.width()).max().unwrap();
        // Narrower terminals than 40 columns are not fitted; texts are no longer than elsewhere.
        assert_eq!(widest, usize::from(columns.clamp(40, 141)), "{columns}");
    }
}

#[test]
fn quantize_judges_by_ids_too() {
    let folder = Folder::new();
    let options = "quantize --format int8 --report json --input d.safetensors --queries \
        q.safetensors --output out.safetensors --qrels qrels.txt --query-ids q.txt \
        --document-ids d.txt";
    let options: Vec<&str> = options.split_whitespace().collect();
    let run = run(folder.files(&options));
    assert!(run.stderr.contains("documents: 1 of 7 (doc-zz)"), "{}", run.stderr);
    let report = json(&run.ok());
    let before = report["agreement"]["ndcg_before"].as_f64().unwrap();
    assert!((before - NDCG).abs() < 1e-12, "{before}");
}

#[test]
fn help_says_what_an_id_is() {
    let help = run(["rank", "--help"]).ok();
    for words in ["An id is what", "the item's number in its token file, from 0", "TREC qrels"] {
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(words), "{words}: {help}");
    }
}
