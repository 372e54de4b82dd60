//! `maxsim quantize`: what it writes, what it reports, and how well the real set keeps its ranking.

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{self, Random, bf16_bytes, f16_bytes, npy, packed, packed_of, padded};
use crate::part::real_set;
use crate::tool::{Run, json, rank, run, sample};
use half::f16;
use maxsim::format::{Fp8, Int8, Int8Affine, Quantized, ScaleType, Scales, ScorableWith};
use maxsim::search::{ErrorTerms, score_bounds};
use maxsim::{Device, Pairing, Tokens};
use maxsim_cli::input::{Reading, TokenFile};
use serde_json::Value;
use tempfile::TempDir;

/// `maxsim quantize` with its paths and `more`.
fn quantize(input: &Path, output: &Path, more: &[&str]) -> Run {
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    run([&["quantize", "--input", input, "--output", output], more].concat())
}

fn write(folder: &TempDir, name: &str, bytes: Vec<u8>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Every format with the scales that it has.
const FORMATS: [[&str; 2]; 6] = [
    ["int8", "f16"],
    ["int8", "f32"],
    ["int8-affine", "f16"],
    ["fp8", "f16"],
    ["fp8", "f32"],
    ["fp8", "tensor"],
];

#[test]
fn files_hold_what_the_library_makes() {
    fn check<F: Quantized>(input: &Path, output: &Path, scales: ScaleType)
    where
        F::Stored: PartialEq,
    {
        let [input, output] = [input, output].map(|path| TokenFile::open(path, Reading::Map));
        let (input, output) = (input.unwrap(), output.unwrap());
        assert_eq!(output.layout().segments(), input.layout().segments());
        assert_eq!(output.layout().kind(), input.layout().kind());
        let elements = input.elements::<f32>(0..input.layout().rows()).unwrap();
        let expected = Tokens::from_layout(elements, input.layout().clone()).unwrap();
        let expected = expected.quantize::<F>(scales).unwrap();
        let n = input.n_items();
        for items in [0..n, 1..n, 2..n - 1] {
            let found = output.codes::<F>(items.clone()).unwrap();
            for (i, item) in items.enumerate() {
                let (rows, dim) = (input.layout().item_rows(item), input.layout().dim());
                for (found_row, row) in found.layout().item_rows(i).zip(rows) {
                    let codes = |tokens: &Tokens<'_, F>, row: usize| -> Vec<F::Stored> {
                        tokens.data()[row * dim..][..dim].to_vec()
                    };
                    assert!(codes(&found, found_row) == codes(&expected, row));
                    let of = |scales: &Scales<'_>, row| (scales.scale(row), scales.min(row));
                    assert_eq!(of(found.scales(), found_row), of(expected.scales(), row));
                }
            }
        }
    }
    let folder = TempDir::new().unwrap();
    let values = Random(3).values(12 * 5);
    let inputs = [
        write(&folder, "packed.safetensors", packed(&values, 5, &[0, 4, 4, 9, 12])),
        write(&folder, "padded.safetensors", padded(&values, [4, 3, 5], Some(&[3, 0, 1, 2]))),
    ];
    for input in inputs {
        for [format, scales] in FORMATS {
            let output = folder.path().join("out.safetensors");
            quantize(&input, &output, &["--format", format, "--scales", scales]).ok();
            match (format, scales) {
                ("int8", "f16") => check::<Int8>(&input, &output, ScaleType::F16),
                ("int8", _) => check::<Int8>(&input, &output, ScaleType::F32),
                ("fp8", "f16") => check::<Fp8>(&input, &output, ScaleType::F16),
                ("fp8", "f32") => check::<Fp8>(&input, &output, ScaleType::F32),
                ("fp8", _) => check::<Fp8>(&input, &output, ScaleType::Tensor),
                _ => check::<Int8Affine>(&input, &output, ScaleType::F16),
            }
            // Whatever the queries' type, the file ranks.
            for (name, query_type) in [("F16", f16_bytes(&values)), ("BF16", bf16_bytes(&values))] {
                let queries = packed_of(name, query_type, 12, 5, &[0, 5, 12], 0);
                let queries = write(&folder, "queries.safetensors", queries);
                let ranking = json(&rank(&queries, &output, &["--format", "json"]).ok());
                assert_eq!(ranking["queries"][1]["documents"].as_array().unwrap().len(), 4);
            }
            rank(&input, &output, &[]).ok();
        }
    }
}

#[test]
fn compressed_queries_rank_as_those_compressed_on_the_way() {
    let folder = TempDir::new().unwrap();
    let queries = write(&folder, "q.safetensors", packed(&Random(4).values(9 * 8), 8, &[0, 4, 9]));
    let values = Random(5).values(30 * 8);
    let documents = write(&folder, "d.safetensors", packed(&values, 8, &[0, 7, 12, 12, 30]));
    for (format, queries_format) in [("int8", "int8"), ("fp8", "fp8"), ("int8-affine", "int8")] {
        let q = folder.path().join("q8.safetensors");
        let d = folder.path().join("d8.safetensors");
        quantize(&queries, &q, &["--format", queries_format]).ok();
        quantize(&documents, &d, &["--format", format]).ok();
        let more = ["--format", "json"];
        assert_eq!(rank(&q, &d, &more).ok(), rank(&queries, &d, &more).ok());
        // And in chunks, each with its own part of the scales.
        let chunks = ["--format", "json", "--chunk-bytes", "1"];
        assert_eq!(rank(&q, &d, &chunks).ok(), rank(&queries, &d, &more).ok());
    }
    let affine = folder.path().join("d8.safetensors");
    let wrong = rank(&affine, &affine, &[]).error();
    assert!(wrong.contains("queries are int8-affine and documents int8-affine"), "{wrong}");
    let wrong = rank(&affine, &documents, &[]).error();
    assert!(wrong.contains("queries are int8-affine and documents f32"), "{wrong}");
}

#[test]
fn errors_are_those_of_the_elements() {
    // Scales 1/127 and 2/127; codes 0, 64 (63.5 goes to even) and 127.
    let folder = TempDir::new().unwrap();
    let input = packed(&[0.0, 0.5, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0], 3, &[0, 1, 2, 3]);
    let input = write(&folder, "in.safetensors", input);
    let output = folder.path().join("out.safetensors");
    let more = ["--format", "int8", "--scales", "f32", "--report", "json"];
    let report = json(&quantize(&input, &output, &more).ok());
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!((number("max_error") - 0.5 / 127.0).abs() < 1e-6, "{report}");
    assert!((number("mean_error") - 0.5 / 127.0 / 9.0).abs() < 1e-6, "{report}");
    assert_eq!((report["n_clipped"].as_u64(), report["n_tokens"].as_u64()), (Some(0), Some(3)));
    assert_eq!((report["bytes_before"].as_u64(), report["bytes"].as_u64()), (Some(36), Some(21)));
    assert_eq!(report["agreement"], Value::Null);
    let text = quantize(&input, &output, &["--format", "int8"]).ok();
    for part in ["3 items, 3 tokens of 3: f32 to int8, scales f16", "36 to 15 bytes"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn nothing_to_compress_is_no_error() {
    let folder = TempDir::new().unwrap();
    for (i, file) in [packed(&[], 4, &[0]), packed(&[], 4, &[0, 0]), padded(&[], [0, 3, 4], None)]
        .into_iter()
        .enumerate()
    {
        let input = write(&folder, &format!("{i}.safetensors"), file);
        let output = folder.path().join("out.safetensors");
        for [format, scales] in FORMATS {
            let more = ["--format", format, "--scales", scales, "--queries"];
            let more = [&more[..], &[input.to_str().unwrap()]].concat();
            quantize(&input, &output, &more).ok();
            rank(&input, &output, &[]).ok();
        }
    }
}

#[test]
fn wrong_input_is_one_line_and_no_file() {
    let folder = TempDir::new().unwrap();
    let values = Random(6).values(6 * 4);
    let input = write(&folder, "in.safetensors", packed(&values, 4, &[0, 2, 6]));
    let array = write(&folder, "in.npy", npy(1, "<f4", &[2, 3, 4], &files::f32_bytes(&values)));
    let half = packed_of("F16", f16_bytes(&values), 6, 4, &[0, 6], 0);
    let half = write(&folder, "half.safetensors", half);
    let output = folder.path().join("out.safetensors");
    let int8 = ["--format", "int8"];
    // A padded array is compressed like any other.
    quantize(&array, &output, &int8).ok();
    fs::rename(&output, folder.path().join("codes.safetensors")).unwrap();
    let codes = folder.path().join("codes.safetensors");
    let before = fs::read_dir(folder.path()).unwrap().count();
    let queries =
        |path: &Path| ["--format", "int8", "--queries", path.to_str().unwrap()].map(String::from);
    let cases = [
        (&codes, &output, int8.map(String::from).to_vec(), "the embeddings are int8 already"),
        (&input, &input, int8.map(String::from).to_vec(), "is an input of this run"),
        (
            &input,
            &folder.path().join("o.npy"),
            int8.map(String::from).to_vec(),
            "end in .safetensors",
        ),
        (&input, &output, queries(&half).to_vec(), "queries are f16 of dim 4, the input is f32"),
        (
            &input,
            &output,
            ["--format", "int8-affine", "--scales", "f32"].map(String::from).to_vec(),
            "their scales are f16",
        ),
        (&input, &output, ["--format", "int4"].map(String::from).to_vec(), "expected int8"),
    ];
    for (input, output, more, expected) in cases {
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let error = quantize(input, output, &more).error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
}

/// Reports of a folder's documents in every format, for its queries.
fn reports(set: &Path, check: impl Fn(&Path, &str, &Value)) {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out.safetensors");
    let [queries, qrels] = ["queries.safetensors", "queries.jsonl"].map(|name| set.join(name));
    for [format, scales] in FORMATS {
        let more = ["--format", format, "--scales", scales, "--report", "json"];
        let more = [
            &more[..],
            &["--queries", queries.to_str().unwrap(), "--qrels", qrels.to_str().unwrap()],
        ]
        .concat();
        let report = json(&quantize(&set.join("documents.safetensors"), &output, &more).ok());
        eprintln!("{report}");
        // At dim 128: a byte an element, two or four bytes a token for each scale or minimum.
        let ratio = report["ratio"].as_f64().unwrap();
        let least = if scales == "f32" || format == "int8-affine" { 1.93 } else { 1.95 };
        assert!(ratio >= least, "{format} {scales}: {ratio} times smaller");
        check(&output, format, &report);
    }
}

#[test]
fn the_sample_keeps_its_ranking() {
    reports(sample("").as_path(), |output, format, report| {
        // The ranking of the file that was written is the one that was reported.
        let (queries, qrels) = (sample("queries.safetensors"), sample("queries.jsonl"));
        let more = ["--format", "json", "--qrels", qrels.to_str().unwrap()];
        let ranking = json(&rank(&queries, output, &more).ok());
        let ndcg = ranking["metrics"]["ndcg@10"].as_f64().unwrap();
        let reported = report["agreement"]["ndcg_after"].as_f64().unwrap();
        assert!((ndcg - reported).abs() < 1e-12, "{format}: {ndcg}, not {reported}");
        let number = |name: &str| report["agreement"][name].as_f64().unwrap();
        assert!(number("spearman") >= 0.999 && number("top20_overlap") >= 0.95, "{report}");
        let change = (number("ndcg_after") - number("ndcg_before")).abs();
        assert!(change <= if format == "fp8" { 0.02 } else { 0.01 }, "{report}");
    });
}

#[test]
fn the_real_set_keeps_its_ranking() {
    let Some(set) = real_set("compressed") else { return };
    reports(&set, |_, format, report| {
        let number = |name: &str| report["agreement"][name].as_f64().unwrap();
        assert!(number("spearman") >= 0.999, "{report}");
        assert!(number("top20_overlap") >= 0.95, "{report}");
        let change = (number("ndcg_after") - number("ndcg_before")).abs();
        assert!(change <= if format == "fp8" { 0.008 } else { 0.003 }, "{report}");
    });
}

/// No score of the real set is further off than its bound.
#[test]
fn bounds_hold_on_the_real_set() {
    let Some(set) = real_set("compressed") else { return };
    let open = |name: &str| TokenFile::open(&set.join(name), Reading::Map).unwrap();
    let (queries, documents) = (open("queries.safetensors"), open("documents.safetensors"));
    let queries = queries.tokens::<f16>(0..queries.n_items()).unwrap();
    let documents = documents.tokens::<f16>(0..documents.n_items()).unwrap();
    let exact = Device::cpu().score(&queries, &documents, &Pairing::cross()).unwrap();

    fn check<Q: ScorableWith<D>, D: Quantized>(
        what: &str,
        (queries, of_queries): (&Tokens<'_, Q>, ErrorTerms),
        documents: &Tokens<'_, f16>,
        exact: &[f32],
    ) {
        let (device, cross) = (Device::cpu(), Pairing::cross());
        let codes = documents.quantize::<D>(ScaleType::F16).unwrap();
        let found = device.score(queries, &codes, &cross).unwrap();
        let from_codes = (ErrorTerms::new(queries), ErrorTerms::new(&codes));
        let measured = (of_queries, ErrorTerms::measured(&codes, documents).unwrap());
        for (kind, (q, d)) in [("codes", from_codes), ("embeddings", measured)] {
            let bounds = score_bounds(&q, &d, &cross).unwrap();
            let (mut off, mut bound) = (0.0, 0.0);
            for ((&found, &exact), &most) in found.values().iter().zip(exact).zip(&bounds) {
                // The engine's own scores stand for the exact ones: 10⁻⁵ for what they are off.
                assert!((found - exact).abs() <= most + 1e-5, "{what}: {found}, {exact}, {most}");
                off += f64::from((found - exact).abs());
                bound += f64::from(most);
            }
            let n = bounds.len() as f64;
            eprintln!("{what}: off by {:.4}, bound by {kind} {:.4}", off / n, bound / n);
            // Half a step of every element in the worst direction is far, but no further.
            assert!(bound / n < if what == "fp8" { 3.0 } else { 1.0 }, "{what}: {}", bound / n);
        }
    }
    let int8 = queries.quantize::<Int8>(ScaleType::F16).unwrap();
    let fp8 = queries.quantize::<Fp8>(ScaleType::F16).unwrap();
    let of_int8 = || ErrorTerms::measured(&int8, &queries).unwrap();
    let of_fp8 = ErrorTerms::measured(&fp8, &queries).unwrap();
    let exact = exact.values();
    check::<Int8, Int8>("int8", (&int8, of_int8()), &documents, exact);
    check::<Int8, Int8Affine>("int8 × int8-affine", (&int8, of_int8()), &documents, exact);
    let of_elements = ErrorTerms::new(&queries);
    check::<f16, Int8Affine>("int8-affine", (&queries, of_elements), &documents, exact);
    check::<Fp8, Fp8>("fp8", (&fp8, of_fp8), &documents, exact);
}
