//! Rankings by angular distance.

use serde_json::{Value, json};

use super::Folder;
use crate::files::{f32_bytes, npy, packed};
use crate::tool::{json as parsed, rank};

/// One query of two tokens; documents of two, one, no and one token.
fn folder() -> Folder {
    let folder = Folder::empty();
    folder.written("q.safetensors", packed(&[2.0, 0.0, 0.0, 0.5], 2, &[0, 2]));
    let documents = [3.0, 4.0, 0.0, 7.0, -5.0, 0.0, 0.0, 0.0];
    folder.written("d.safetensors", packed(&documents, 2, &[0, 2, 3, 3, 4]));
    folder
}

fn numbers(query: &Value) -> Vec<f64> {
    let numbers = query["distances"].as_array().expect("distances").iter();
    numbers.filter_map(Value::as_f64).collect()
}

#[test]
fn the_smallest_is_the_first_in_every_form() {
    let folder = folder();
    let found = parsed(&folder.rank("d.safetensors", &["--angular", "--scores"]).ok());
    let query = &found["queries"][0];
    assert_eq!(query["documents"], json!([0, 3, 1, 2]));
    assert_eq!(query["without_tokens"], json!([2]));
    assert_eq!((&query["scores"], &query["distances"][3]), (&Value::Null, &json!("Infinity")));
    // 0.4 and 0; 1 and 1 of a row of zeros; 2 and 1.
    for (found, expected) in numbers(query).iter().zip([0.4, 2.0, 3.0]) {
        assert!((found - expected).abs() < 1e-6, "{query}");
    }
    let found = parsed(&folder.rank("d.safetensors", &["--angular", "--mean"]).ok());
    assert!((numbers(&found["queries"][0])[2] - 1.5).abs() < 1e-6, "{found}");

    let run = |more: &[&str]| {
        let [queries, documents] = ["q.safetensors", "d.safetensors"].map(|x| folder.path(x));
        rank(&queries, &documents, &[more, &["--angular"]].concat())
    };
    let table = run(&["--format", "table"]).ok();
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("query 0 (angular distances)"));
    let cells: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[..2], [["1", "0.4000", "0"], ["2", "2.0000", "3"]]);
    assert_eq!(cells[3], ["4", "empty", "2"]);
    // Evaluators take the largest for the best.
    let trec = run(&["--format", "trec"]).ok();
    let scores: Vec<f64> = trec
        .lines()
        .map(|line| line.split_whitespace().nth(4).expect("a score").parse().expect("a number"))
        .collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a > b) && scores[0] < 0.0, "{trec}");
    // Candidates go another way; winners are those of cosines.
    let candidates = folder.written("c.jsonl", "{\"id\": 0, \"documents\": [2, 1, 0]}\n");
    let found = folder.rank("d.safetensors", &["--angular", "--candidates", &candidates]).ok();
    assert_eq!(parsed(&found)["queries"][0]["documents"], json!([0, 1, 2]));
    let found = parsed(&folder.rank("d.safetensors", &["--angular", "--winners"]).ok());
    assert_eq!(found["queries"][0]["winners"][0], json!([0, 1]));
}

#[test]
fn what_it_cannot_go_with_is_refused() {
    let folder = folder();
    let screen = folder.text("d.safetensors");
    for more in [&["--screen", &screen][..], &["--normalize"]] {
        let found = folder.rank("d.safetensors", &[more, &["--angular"]].concat()).error();
        assert!(found.contains("cannot be used with"), "{found}");
    }
    folder.quantize("d.safetensors", "int8", &[]).ok();
    let found = folder.rank("out.safetensors", &["--angular"]).error();
    assert!(found.contains("`angular`") && found.contains("compressed"), "{found}");
    // Infinite because of a weight, not for want of tokens.
    let weights = folder.written("w.npy", npy(1, "<f4", &[2], &f32_bytes(&[3e38, 3e38])));
    let found = folder.rank("d.safetensors", &["--angular", "--weights", &weights]).error();
    assert!(found.contains("-inf"), "{found}");
}
