//! `maxsim explain`: which tokens match, as text, JSON, a page and a picture.

use crate::tool::{Folder, Run, command, json, rank, run, sample};
use crate::winners::{self, masked};
use serde_json::json;

/// Small tokens, with words, and a picture.
fn small() -> Folder {
    let folder = winners::small();
    folder.write("q.jsonl", "{\"id\": 0, \"tokens\": [\"<a>\", \"b & c\"]}\n");
    let words = r#"{"id": 2, "tokens": ["first", "second", "third"]}"#;
    folder.write("d.jsonl", format!("{{\"id\": 0}}\n{words}\n"));
    // What says that it is a picture of 8 × 4 pixels.
    let size = [8u32, 4].map(u32::to_be_bytes).concat();
    let begin = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR";
    folder.write("page.png", [&begin[..], &size, b"\x08\x06\0\0\0"].concat());
    folder
}

/// `maxsim explain` of a query and a document in a folder.
fn explain(folder: &Folder, query: &str, document: &str, more: &[&str]) -> Run {
    let mut command = command();
    command.current_dir(folder.0.path()).arg("explain");
    command.args(["--queries", "q.safetensors", "--documents", "d.safetensors"]);
    command.args(["--query", query, "--document", document]).args(more);
    Run::of(command.output().expect("the tool starts"))
}

const WORDS: [&str; 4] = ["--texts", "d.jsonl", "--query-texts", "q.jsonl"];

#[test]
fn matches_are_said() {
    let folder = small();
    let found = json(&explain(&folder, "0", "2", &["--format", "json"]).ok());
    // Of equal similarities the first token is the one that matches.
    let expected = json!({
        "query": "query 0", "document": "document 2", "score": 5.0,
        "matches": [
            {"token": 0, "similarity": 4.0, "chosen": 0},
            {"token": 1, "similarity": 1.0, "chosen": 1},
        ],
        "document_tokens": [{"token": 0}, {"token": 1}, {"token": 2}],
        "similarities": [[4.0, 0.0, 4.0], [0.0, 1.0, 1.0]],
    });
    assert_eq!(found, expected);
    let text = explain(&folder, "0", "2", &WORDS).ok();
    let expected = "document 2 for query 0: score 5\n\nquery  similarity  document\n<a>        \
                    4.0000  first (#0)  ████████████████████\nb & c      1.0000  second (#1)  \
                    █████\n";
    assert_eq!(text, expected);
    let text = explain(&folder, "0", "1", &[]).ok();
    assert!(text.contains("score 0\n") && text.contains("#0         0.0000  none"), "{text}");
    let found = json(&explain(&folder, "0", "2", &["--format", "json", "--mean"]).ok());
    assert_eq!((&found["score"], &found["matches"][0]["similarity"]), (&json!(2.5), &json!(4.0)));
    let found = json(&explain(&folder, "0", "2", &["--format", "json", "--normalize"]).ok());
    assert_eq!(found["similarities"][1][1], json!(1.0));
    assert!(found["similarities"][0][2].as_f64().unwrap() < 1.0);
}

/// Tokens have their places in the file, whatever a mask excludes, and so have their words.
#[test]
fn masked_tokens_count() {
    let folder = masked();
    folder.write("d.jsonl", r#"{"id": 0, "tokens": ["w0", "w1", "w2", "w3"]}"#);
    let mut command = command();
    command.current_dir(folder.0.path()).args(["explain", "--format", "json"]);
    command.args(["--queries", "q.npy", "--documents", "d.npy", "--query", "0"]);
    command.args(["--document", "0", "--texts", "d.jsonl"]);
    command.args(["--queries-mask-file", "mask.npy", "--documents-mask-file", "mask.npy"]);
    let found = json(&Run::of(command.output().unwrap()).ok());
    let expected = json!([
        {"token": 1, "similarity": 1.0, "chosen": 3},
        {"token": 3, "similarity": 1.0, "chosen": 1},
    ]);
    assert_eq!(found["matches"], expected);
    let expected = json!([{"token": 1, "word": "w1"}, {"token": 3, "word": "w3"}]);
    assert_eq!(found["document_tokens"], expected);
    assert_eq!(found["similarities"], json!([[0.0, 1.0], [1.0, 0.0]]));
}

#[test]
fn pages_have_all_that_they_show() {
    let folder = small();
    let output = folder.text("page.html");
    let more = [&WORDS[..], &["--format", "html", "--output", &output]].concat();
    assert_eq!(explain(&folder, "0", "2", &more).ok(), "");
    let page = std::fs::read_to_string(&output).unwrap();
    assert_eq!(page.matches("<button ").count(), 2);
    assert!(page.contains("&lt;a&gt; <small>4.000</small>") && page.contains("b &amp; c"));
    assert!(!page.contains("<a>") && !page.contains("http"), "{page}");
    assert!(
        page.contains("<span data-t=\"1\" title=\"token 1: 1.000 of the score\">second</span>")
    );
    assert!(page.contains("similarities = [[4.0000,0.0000,4.0000],[0.0000,1.0000,1.0000],]"));
    assert!(page.contains("chosen = [0,1]") && page.contains("shares = [4.0000,1.0000,0.0000]"));
    // Patches are above the picture, the other tokens below it.
    let image = ["--image", "page.png", "--grid", "2x1", "--first-patch", "1"];
    let more = [&WORDS[..], &["--format", "html"], &image].concat();
    let page = explain(&folder, "0", "2", &more).ok();
    assert!(page.contains("<img src=\"data:image/png;base64,iVBOR") && page.contains("8 / 4"));
    assert_eq!((page.matches("<i data-t=").count(), page.matches("<span data-t=").count()), (2, 1));
    assert!(page.contains("<i data-t=\"2\" style=\"grid-area: 1 / 2\" title=\"token 2\"></i>"));
}

#[test]
fn pictures_are_drawn() {
    let folder = small();
    let svg = explain(&folder, "0", "2", &[&WORDS[..], &["--format", "svg"]].concat()).ok();
    assert_eq!((svg.matches("<rect ").count(), svg.matches("stroke=").count()), (6, 2));
    assert!(svg.contains(">b &amp; c</text>") && svg.contains(">third</text>"), "{svg}");
    let image = ["--image", "page.png", "--grid", "3x1", "--format", "svg"];
    let svg = explain(&folder, "0", "2", &image).ok();
    assert!(svg.contains("viewBox=\"0 0 8 4\"") && svg.contains("<image href=\"data:image/png"));
    assert!(svg.contains("x=\"2.67\" y=\"0.00\" width=\"2.67\" height=\"4.00\""), "{svg}");
}

/// The sample's matches are those that its ranking has; also of compressed documents.
#[test]
fn matches_are_those_of_the_ranking() {
    let folder = Folder::empty();
    let (queries, documents) = (sample("queries.safetensors"), sample("documents.safetensors"));
    let compressed = folder.path("int8.safetensors");
    let words = ["quantize", "--format", "int8", "--input", documents.to_str().unwrap()];
    run(words.iter().chain(&["--output", compressed.to_str().unwrap()])).ok();
    for documents in [&documents, &compressed] {
        let options = ["--winners", "--format", "json", "--top-k", "1"];
        let ranked = json(&rank(&queries, documents, &options).ok());
        for query in [0, 3] {
            let of_query = &ranked["queries"][query];
            let document = of_query["documents"][0].to_string();
            let query = query.to_string();
            let mut command = command();
            command.args(["explain", "--format", "json", "--query", &query]);
            command.args(["--document", &document]);
            command.arg("--queries").arg(&queries).arg("--documents").arg(documents);
            let found = json(&Run::of(command.output().unwrap()).ok());
            assert_eq!(found["score"], of_query["scores"][0]);
            let matches = found["matches"].as_array().unwrap();
            let chosen: Vec<_> = matches.iter().map(|of| of["chosen"].clone()).collect();
            assert_eq!(json!(chosen), of_query["winners"][0]);
            let near = |a: &serde_json::Value, b: &serde_json::Value| {
                (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 2e-2
            };
            for (s, of) in matches.iter().enumerate() {
                let t = of["chosen"].as_u64().unwrap() as usize;
                assert!(near(&of["similarity"], &found["similarities"][s][t]));
            }
        }
    }
}

#[test]
fn what_is_wrong_is_said() {
    let folder = small();
    let error = |query, document, more: &[&str]| explain(&folder, query, document, more).error();
    let unknown = error("0", "7", &[]);
    assert!(unknown.starts_with("--document: document 7 does not exist"), "{unknown}");
    let missing = error("0", "1", &["--texts", "d.jsonl"]);
    assert!(missing.ends_with("d.jsonl: no line has the id of document 1"), "{missing}");
    let none = error("0", "0", &["--texts", "d.jsonl"]);
    assert!(none.contains("document 0 has no `tokens`; list them"), "{none}");
    folder.write("few.jsonl", r#"{"id": 2, "tokens": ["first"]}"#);
    let few = error("0", "2", &["--texts", "few.jsonl"]);
    assert!(few.contains("few.jsonl: 1 tokens, where the token file has 3"), "{few}");
    let large = error("0", "2", &["--image", "page.png", "--grid", "2x2"]);
    assert!(large.starts_with("--grid: 2 × 2 patches from token 0 on end with token 3"), "{large}");
    let other = error("0", "2", &["--image", "q.jsonl", "--grid", "1x1"]);
    assert!(other.contains("q.jsonl: expected a picture that browsers show"), "{other}");
    for grid in ["2", "0x1", "2x", "ax1"] {
        let wrong = error("0", "2", &["--image", "page.png", "--grid", grid]);
        assert!(wrong.contains("--grid"), "{wrong}");
    }
    let input = error("0", "2", &["--output", "q.safetensors"]);
    assert!(input.contains("is an input of this run"), "{input}");
}
