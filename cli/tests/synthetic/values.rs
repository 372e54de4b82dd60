//! Numbers that are out of the ordinary: infinities and NaN in files, elements that scales have no
//! room for, scores beyond f32, and queries of another element type than the documents.

use std::fs;

use crate::files::{
    Random, bf16_bytes, f16_bytes, f32_bytes, i64_bytes, packed, packed_of, safetensors,
};
use crate::tool::{FolderOf, Run, json, rank, run};
use serde_json::Value;

const QUERY_OFFSETS: [i64; 3] = [0, 1, 3];
const DOCUMENT_OFFSETS: [i64; 4] = [0, 2, 3, 6];

/// The kind of these tests' folders.
enum Values {}

type Folder = FolderOf<Values>;

impl Folder {
    /// A folder with two queries, of rows 0 and 1..3, and three documents of dim 4, of rows 0..2, 2
    /// and 3..6.
    fn new() -> Folder {
        let folder = Folder::empty();
        folder.written("q.safetensors", packed(&queries(), 4, &QUERY_OFFSETS));
        folder.written("d.safetensors", packed(&documents(), 4, &DOCUMENT_OFFSETS));
        folder
    }

    /// Writes a file, and its name as an argument.
    fn written(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        self.write(name, bytes);
        self.text(name)
    }

    /// Ranks `documents` for `queries`.
    fn rank(&self, queries: &str, documents: &str, more: &[&str]) -> Run {
        rank(&self.path(queries), &self.path(documents), more)
    }

    /// The ranking of `documents` for `queries`, and what was said besides.
    fn ranked(&self, queries: &str, documents: &str, more: &[&str]) -> (Value, String) {
        let run = self.rank(queries, documents, &[&["--format", "json"], more].concat());
        let said = run.stderr.clone();
        (json(&run.ok())["queries"].take(), said)
    }

    /// Compresses `input` to `output`.
    fn quantize(&self, input: &str, output: &str, more: &[&str]) -> Run {
        let (input, output) = (self.text(input), self.text(output));
        run([&["quantize", "--input", &input, "--output", &output], more].concat())
    }
}

fn queries() -> Vec<f32> {
    Random(1).values(3 * 4)
}

fn documents() -> Vec<f32> {
    Random(2).values(6 * 4)
}

/// Documents' values in an element type, with one element replaced.
fn with_element(element: &str, place: usize, x: f32) -> Vec<u8> {
    let mut values = documents();
    values[place] = x;
    let bytes = match element {
        "F16" => f16_bytes(&values),
        "BF16" => bf16_bytes(&values),
        _ => f32_bytes(&values),
    };
    packed_of(element, bytes, 6, 4, &DOCUMENT_OFFSETS, 0)
}

#[test]
fn infinities_are_found_with_file_and_row_before_any_output() {
    let folder = Folder::new();
    let out = folder.written("out.json", "what was there before");
    for (element, of_queries) in [
        ("F16", f16_bytes(&queries())),
        ("BF16", bf16_bytes(&queries())),
        ("F32", f32_bytes(&queries())),
    ] {
        folder.written("q2.safetensors", packed_of(element, of_queries, 3, 4, &QUERY_OFFSETS, 0));
        for (x, what) in [
            (f32::INFINITY, "an infinity in element 2; use --allow-infinite if that is meant"),
            (f32::NEG_INFINITY, "an infinity in element 2; use --allow-infinite if that is meant"),
            (f32::NAN, "a NaN in element 2"),
        ] {
            let wild = folder.written("wild.safetensors", with_element(element, 4 * 4 + 2, x));
            for chunk_bytes in ["1", "1000000"] {
                let more = ["--format", "json", "--output", &out, "--chunk-bytes", chunk_bytes];
                let error = folder.rank("q2.safetensors", "wild.safetensors", &more).error();
                assert_eq!(error, format!("row 4 of {wild} (document 2) has {what}"));
                assert_eq!(fs::read_to_string(&out).unwrap(), "what was there before");
            }
            // As queries: rows 0..2, 2 and 3..6.
            let error = folder.rank("wild.safetensors", "d.safetensors", &["--convert"]).error();
            assert_eq!(error, format!("row 4 of {wild} (query 2) has {what}"));
        }
        // The largest number that there is, and none.
        let most = match element {
            "F16" => 65504.0,
            "BF16" => 3.389_531_4e38,
            _ => f32::MAX,
        };
        folder.written("most.safetensors", with_element(element, 18, most));
        let none = packed_of(element, Vec::new(), 0, 4, &[0], 0);
        folder.written("none.safetensors", none);
        folder.rank("none.safetensors", "most.safetensors", &[]).ok();
    }
    // One that loses every maximum is found as well.
    folder.written("ones.safetensors", packed(&[1.0; 4], 4, &[0, 1]));
    let wild = folder.written("wild.safetensors", with_element("F32", 18, f32::NEG_INFINITY));
    let error = folder.rank("ones.safetensors", "wild.safetensors", &[]).error();
    assert!(error.starts_with(&format!("row 4 of {wild} (document 2)")), "{error}");
}

#[test]
fn infinities_that_are_meant_are_ieee() {
    let folder = Folder::new();
    folder.written("q1.safetensors", packed(&[1.0, 1.0], 2, &[0, 1]));
    let values = [f32::INFINITY, 1.0, 2.0, 1.0, 0.0, f32::NEG_INFINITY];
    folder.written("d1.safetensors", packed(&values, 2, &[0, 1, 2, 3]));
    let more = ["--allow-infinite", "--format", "trec"];
    let trec = folder.rank("q1.safetensors", "d1.safetensors", &more).ok();
    assert_eq!(trec, "0 Q0 0 1 inf maxsim\n0 Q0 1 2 3 maxsim\n0 Q0 2 3 -inf maxsim\n");
    let (found, _) = folder.ranked("q1.safetensors", "d1.safetensors", &["--allow-infinite"]);
    assert_eq!(found[0]["scores"], json(r#"["Infinity", 3.0, "-Infinity"]"#));
    // What they make of each other is NaN, which is an error all the same.
    folder.written("q1.safetensors", packed(&[0.0, 1.0], 2, &[0, 1]));
    let error = folder.rank("q1.safetensors", "d1.safetensors", &["--allow-infinite"]).error();
    let place = format!("row 0 of {} (document 0)", folder.text("d1.safetensors"));
    let score = "the score of query 0 and document 0 is NaN";
    assert_eq!(error, format!("{score}: {place} has an infinity"));
}

#[test]
fn scores_beyond_f32_are_an_error_with_both_places() {
    let folder = Folder::new();
    folder.written("q1.safetensors", packed(&[1e20, 1.0], 2, &[0, 1]));
    folder.written("d1.safetensors", packed(&[1.0, 1.0, 1.0, 0.0, 3e25, 0.0], 2, &[0, 1, 3]));
    let error = folder.rank("q1.safetensors", "d1.safetensors", &["--format", "json"]).error();
    let [q, d] = ["q1", "d1"].map(|name| folder.text(&format!("{name}.safetensors")));
    assert_eq!(
        error,
        format!(
            "the score of query 0 and document 1 is inf: products of the embeddings are too large \
             for \
             f32, those of row 0 of {q} (query 0), which has an element of 1e20 and row 2 of {d} \
             (document 1), which has an element of 3e25; scale them down"
        )
    );
}

#[test]
fn codes_that_stand_for_no_numbers_are_found() {
    let folder = Folder::new();
    let file = |dtype: &str, codes: Vec<u8>, more: &[(&str, Vec<f32>)]| {
        let mut tensors = vec![
            ("offsets", "I64", &[4][..], i64_bytes(&DOCUMENT_OFFSETS)),
            ("embeddings", dtype, &[6, 4][..], codes),
        ];
        tensors.extend(more.iter().map(|(name, x)| (*name, "F16", &[6][..], f16_bytes(x))));
        folder.written("codes.safetensors", safetensors(&tensors, 0))
    };
    let one = |x: f32| [0.5, 0.5, x, 0.5, 0.5, 0.5].to_vec();
    let error = |queries: &str| folder.rank(queries, "codes.safetensors", &[]).error();
    for x in [f32::NAN, f32::INFINITY, -0.5] {
        for dtype in ["I8", "F8_E4M3"] {
            let path = file(dtype, vec![1; 24], &[("scales", one(x))]);
            let expected = format!(
                "{path}: the scale of row 2 is {x}; document 1 needs a finite number of 0 or more"
            );
            assert_eq!(error("q.safetensors"), expected);
        }
    }
    let path = file("U8", vec![1; 24], &[("scales", one(0.5)), ("mins", one(f32::INFINITY))]);
    let expected = format!("{path}: the minimum of row 2 is inf; document 1 needs a finite one");
    assert_eq!(error("q.safetensors"), expected);
    for code in [0x7F, 0xFF] {
        let mut codes = vec![1; 24];
        codes[5 * 4 + 3] = code;
        let path = file("F8_E4M3", codes, &[("scales", one(0.5))]);
        let expected = format!("row 5 of {path} (document 2) has a NaN in element 3");
        assert_eq!(error("q.safetensors"), expected);
        // As queries they are looked at as well.
        let expected = format!("row 5 of {path} (query 2) has a NaN in element 3");
        assert_eq!(error("codes.safetensors"), expected);
    }
}

#[test]
fn tables_of_plaid_files_are_looked_at() {
    let folder = Folder::new();
    let file = |centroid: f32, other: f32, weight: f32| {
        let centroids = [0.5, 0.5, 0.5, centroid, 0.5, 0.5, 0.5, 0.5, other, 0.5, 0.5, 0.5];
        let header = concat!(
            r#""__metadata__":{"format":"maxsim-residual","version":"1","nbits":"1","#,
            r#""bit_order":"colbert","normalize":"true"},"#
        );
        let codes: Vec<u8> = [1i32, 1, 1, 0, 1, 1].iter().flat_map(|c| c.to_le_bytes()).collect();
        let tensors = [
            ("offsets", "I64", &[4][..], i64_bytes(&DOCUMENT_OFFSETS)),
            ("codes", "I32", &[6][..], codes),
            ("centroids", "F32", &[3, 4][..], f32_bytes(&centroids)),
            ("bucket_weights", "F32", &[2][..], f32_bytes(&[-0.1, weight])),
            ("residuals", "U8", &[6, 1][..], vec![0xA5; 6]),
        ];
        let plain = safetensors(&tensors, 0);
        let len = u64::from_le_bytes(plain[..8].try_into().unwrap()) as usize;
        let text = [&b"{"[..], header.as_bytes(), &plain[9..8 + len]].concat();
        let text = [&text[..], &b" ".repeat(text.len().next_multiple_of(8) - text.len())].concat();
        let bytes = [&(text.len() as u64).to_le_bytes()[..], &text, &plain[8 + len..]].concat();
        folder.written("plaid.safetensors", bytes)
    };
    // A centroid that no token has may be anything.
    file(0.5, f32::NAN, 0.1);
    folder.rank("q.safetensors", "plaid.safetensors", &[]).ok();
    let path = file(f32::INFINITY, 0.5, 0.1);
    let error = folder.rank("q.safetensors", "plaid.safetensors", &[]).error();
    let row = format!("row 3 of {path} (document 2)");
    assert_eq!(error, format!("{row} has centroid 0, which has an infinity in element 3"));
    let path = file(0.5, 0.5, f32::NAN);
    let error = folder.rank("q.safetensors", "plaid.safetensors", &[]).error();
    assert_eq!(error, format!("{path}: bucket weight 1 is NaN; expected finite numbers"));
}

#[test]
fn a_search_looks_at_what_it_scores_again() {
    let folder = Folder::new();
    folder.quantize("d.safetensors", "screen.safetensors", &["--format", "int8"]).ok();
    let screen = folder.text("screen.safetensors");
    let wild = folder.written("wild.safetensors", with_element("F32", 18, f32::NEG_INFINITY));
    let more = ["--screen", &screen, "--exact", "--verify", "never"];
    let error = folder.rank("q.safetensors", "wild.safetensors", &more).error();
    assert!(error.starts_with(&format!("row 4 of {wild} (document 2) has an infinity")), "{error}");
}

#[test]
fn nothing_is_compressed_that_is_not_finite() {
    let folder = Folder::new();
    for (x, what) in [(f32::INFINITY, "an infinity"), (f32::NAN, "a NaN")] {
        for element in ["F16", "BF16", "F32"] {
            let wild = folder.written("wild.safetensors", with_element(element, 22, x));
            let names = folder.names();
            let expected = format!("row 5 of {wild} (item 2) has {what} in element 2");
            for more in [
                &["--format", "int8"][..],
                &["--format", "int8", "--scales", "f32"],
                &["--format", "int8-affine"],
                &["--format", "fp8"],
                &["--format", "fp8", "--scales", "tensor"],
                &["--format", "plaid", "--keep-lengths", "--centroids", "2"],
            ] {
                let run = folder.quantize("wild.safetensors", "out.safetensors", more);
                assert_eq!(run.error(), expected, "{more:?}");
                assert_eq!(folder.names(), names);
                if cfg!(target_os = "linux") {
                    // Not even the beginning of a file.
                    let output = ["quantize", "--input", &wild, "--output", "/dev/stdout"];
                    assert_eq!(run_with(&output, more).stdout, "");
                }
            }
        }
        let queries = folder.text("wild.safetensors");
        let more = ["--format", "int8", "--queries", &queries];
        let error = folder.quantize("d.safetensors", "out.safetensors", &more).error();
        assert!(error.starts_with(&format!("row 5 of {queries} (query 2) has")), "{error}");
        assert!(!folder.path("out.safetensors").exists());
    }
}

fn run_with(args: &[&str], more: &[&str]) -> Run {
    run([args, more].concat())
}

#[test]
fn scales_have_room_for_every_element() {
    let folder = Folder::new();
    let mut values = documents();
    (values[9], values[10], values[21]) = (1.8e9, -9e8, 3e8);
    folder.written("large.safetensors", packed(&values, 4, &DOCUMENT_OFFSETS));
    let report = |more: &[&str]| {
        let more = [&["--report", "json"], more].concat();
        let run = folder.quantize("large.safetensors", "out.safetensors", &more);
        let said = run.stderr.clone();
        (json(&run.ok()), said)
    };
    for (format, n) in [("int8", (2, 3)), ("fp8", (2, 3))] {
        let (found, said) = report(&["--format", format]);
        assert_eq!((&found["scales"], &found["n_clipped"]), (&json("\"f32\""), &json("0")));
        let expected =
            format!("scales are f32: as f16 they would clip {} elements of {} tokens", n.1, n.0);
        assert!(said.starts_with(&expected), "{format}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        // The ranking is that of the embeddings.
        let ids = |ranked: (Value, String)| ranked.0[1]["documents"].clone();
        let before = ids(folder.ranked("q.safetensors", "large.safetensors", &[]));
        assert_eq!(ids(folder.ranked("q.safetensors", "out.safetensors", &[])), before);

        let (found, said) = report(&["--format", format, "--scales", "f16"]);
        let clipped = [&found["n_clipped_tokens"], &found["n_clipped"]];
        assert_eq!(clipped, [&json(&n.0.to_string()), &json(&n.1.to_string())], "{format}");
        let off = found["largest_clip"].as_f64().unwrap();
        assert!((1.7e9..1.8e9).contains(&off), "{format}: {off}");
        let expected = format!("warning: {} elements of {} tokens clipped, by 1.7", n.1, n.0);
        assert!(said.starts_with(&expected) && said.contains("use --scales f32"), "{said}");
        let (found, said) = report(&["--format", format, "--scales", "f32"]);
        assert_eq!((&found["n_clipped"], &said[..]), (&json("0"), ""), "{format}");
    }
    let (found, said) = report(&["--format", "int8-affine"]);
    assert!(found["n_clipped_tokens"].as_u64() > Some(0), "{found}");
    assert!(said.contains("use --format int8 --scales f32"), "{said}");
    // A minimum beyond f16, of elements that are close together.
    folder.written("low.safetensors", packed(&[-70000.0, -69000.0], 2, &[0, 1]));
    let run = folder.quantize("low.safetensors", "out.safetensors", &["--format", "int8-affine"]);
    assert!(run.stderr.starts_with("warning: 2 elements of 1 token clipped"), "{}", run.stderr);
    run.ok();
}

#[test]
fn what_is_too_small_for_a_scale_is_said() {
    let folder = Folder::new();
    let mut values = documents();
    values[8..12].copy_from_slice(&[1e-7, 1e-7, -1e-7, 0.0]);
    values[12..16].copy_from_slice(&[1e-9, 0.0, 0.0, -1e-9]);
    values[16..20].fill(0.0);
    folder.written("small.safetensors", packed(&values, 4, &DOCUMENT_OFFSETS));
    let said = |more: &[&str]| {
        let run = folder.quantize("small.safetensors", "out.safetensors", more);
        let said = run.stderr.clone();
        run.ok();
        said
    };
    let int8 = said(&["--format", "int8"]);
    let expected = "warning: 2 of 6 tokens keep two bits or fewer, 1 of them nothing but zeros";
    assert!(int8.starts_with(expected) && int8.contains("use --scales f32"), "{int8}");
    let wide = said(&["--format", "int8", "--scales", "f32"]);
    assert_eq!(wide, "");
    // Ordinary elements are f16's business, and nothing is said.
    let run = folder.quantize("d.safetensors", "out.safetensors", &["--format", "int8"]);
    assert_eq!(run.stderr, "");
    let by_default = fs::read(folder.path("out.safetensors")).unwrap();
    run.ok();
    let f16 = ["--format", "int8", "--scales", "f16"];
    folder.quantize("d.safetensors", "out.safetensors", &f16).ok();
    assert_eq!(fs::read(folder.path("out.safetensors")).unwrap(), by_default);
}

#[test]
fn queries_that_f16_scales_would_clip_are_compressed_as_they_are() {
    let folder = Folder::new();
    // With f16 scales 1.8e9 and 2e8 would become 8.3e6 both, and document 1 the first.
    folder.written("large.safetensors", packed(&[1.8e9, 2e8, 0.0, 0.0], 4, &[0, 1]));
    let values = [1.0, 0.0, 0.0, 0.0, 0.9, 0.5, 0.0, 0.0];
    folder.written("d2.safetensors", packed(&values, 4, &[0, 1, 2]));
    folder.written("tiny.safetensors", packed(&[1e-8, 3e-9, 0.0, 0.0], 4, &[0, 1]));
    folder.written("zero.safetensors", packed(&[1e-12, 3e-13, 0.0, 0.0], 4, &[0, 1]));
    for format in ["int8", "fp8", "int8-affine"] {
        folder.quantize("d2.safetensors", "codes.safetensors", &["--format", format]).ok();
        let screen = folder.text("codes.safetensors");
        let score = |queries: &str, documents: &str, more: &[&str]| {
            let (found, said) = folder.ranked(queries, documents, more);
            (found[0]["documents"].clone(), found[0]["scores"][0].as_f64().unwrap(), said)
        };
        for queries in ["large.safetensors", "tiny.safetensors"] {
            let (expected, most, _) = score(queries, "d2.safetensors", &[]);
            let (ids, found, said) = score(queries, "codes.safetensors", &[]);
            assert_eq!(ids, expected, "{format}, {queries}");
            // FP8 has 4 significant bits, and tokens below 10⁻⁶ fewer of them.
            let off = if format == "fp8" { 0.15 } else { 0.02 };
            assert!((found / most - 1.0).abs() < off, "{format}, {queries}: {found}, {most}");
            assert_eq!(said.lines().count(), 1, "{said}");
            let (found, _) =
                folder.ranked(queries, "d2.safetensors", &["--screen", &screen, "--exact"]);
            assert_eq!(found[0]["documents"], expected, "{format}, {queries}");
            assert_eq!(found[0]["scores"][0].as_f64(), Some(most), "{format}, {queries}");
        }
        let (_, _, said) = score("zero.safetensors", "codes.safetensors", &[]);
        let expected = "zero.safetensors: 1 of 1 query token is too small for";
        assert!(said.starts_with("warning: ") && said.contains(expected), "{format}: {said}");
    }
}

#[test]
fn queries_are_converted_where_that_is_asked_for() {
    let folder = Folder::new();
    // 0.1 is no f16 or bf16 number; the other is one of f16 alone.
    let (mut q, d) = (queries(), documents());
    (q[4], q[5]) = (0.1, 1.0 + 1.0 / 1024.0);
    for (name, of_queries, of_documents) in [
        ("F16", f16_bytes(&q), f16_bytes(&d)),
        ("BF16", bf16_bytes(&q), bf16_bytes(&d)),
        ("F32", f32_bytes(&q), f32_bytes(&d)),
    ] {
        let queries = packed_of(name, of_queries, 3, 4, &QUERY_OFFSETS, 0);
        folder.written(&format!("q.{name}.safetensors"), queries);
        let documents = packed_of(name, of_documents, 6, 4, &DOCUMENT_OFFSETS, 0);
        folder.written(&format!("d.{name}.safetensors"), documents);
    }
    let types = [("F16", "f16"), ("BF16", "bf16"), ("F32", "f32")];
    let file = |what: &str, name: &str| format!("{what}.{name}.safetensors");
    for (from, from_name) in types {
        for (to, to_name) in types {
            let (queries, documents) = (file("q", from), file("d", to));
            let plain = folder.rank(&queries, &documents, &[]);
            let more = ["--convert", "--format", "json"];
            let run = folder.rank(&queries, &documents, &more);
            let said = run.stderr.lines().next().unwrap().to_string();
            let found = run.ok();
            if from == to {
                assert!(said.starts_with("2 queries × 3 documents"), "{said}");
                plain.ok();
                continue;
            }
            let error = plain.error();
            assert!(error.ends_with(&format!("take {to_name} queries: use --convert")), "{error}");
            let rounded = match (from, to) {
                (_, "F32") => ", exactly",
                ("F16", _) => ": 2 of 12 elements rounded, by ",
                ("BF16", _) => ", exactly",
                (_, "F16") => ": 1 of 12 elements rounded, by 2.4e-4 of their value at most",
                _ => ": 2 of 12 elements rounded, by ",
            };
            let expected = format!("queries converted from {from_name} to {to_name}{rounded}");
            assert!(said.starts_with(&expected), "{said}, not {expected}");
            if from == "F32" {
                // The same as of a file with the rounded elements.
                let rounded = file("q", to);
                assert_eq!(found, folder.rank(&rounded, &documents, &["--format", "json"]).ok());
            }
            let queries = folder.text(&queries);
            let more = ["--format", "int8", "--queries", &queries];
            let error = folder.quantize(&documents, "out.safetensors", &more).error();
            assert!(error.ends_with("use --convert"), "{error}");
            let more = [&more[..], &["--convert"]].concat();
            let run = folder.quantize(&documents, "out.safetensors", &more);
            assert!(run.stderr.starts_with(&expected), "{}", run.stderr);
            run.ok();
        }
    }
}

#[test]
fn a_conversion_that_loses_a_token_is_refused() {
    let folder = Folder::new();
    let half = packed_of("F16", f16_bytes(&documents()), 6, 4, &DOCUMENT_OFFSETS, 0);
    folder.written("half.safetensors", half);
    for (x, what) in [
        ([1.0, 7e4, 0.0, 0.0], "has an element that is too large for f16"),
        ([1e-9, -1e-9, 0.0, 1e-9], "becomes zeros as f16"),
    ] {
        let mut values = queries();
        values[8..12].copy_from_slice(&x);
        let path = folder.written("wide.safetensors", packed(&values, 4, &QUERY_OFFSETS));
        let error = folder.rank("wide.safetensors", "half.safetensors", &["--convert"]).error();
        let expected = format!("row 2 of {path} (query 1) {what}, so --convert is refused");
        assert_eq!(error, format!("{expected}; use f32 documents"));
    }
    // Zeros stay zeros.
    let mut values = queries();
    values[8..12].fill(0.0);
    folder.written("zeros.safetensors", packed(&values, 4, &QUERY_OFFSETS));
    folder.rank("zeros.safetensors", "half.safetensors", &["--convert"]).ok();
}
