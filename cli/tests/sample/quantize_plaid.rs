//! `maxsim quantize --format plaid`: what it writes and reports, and `maxsim rank` of such
//! documents.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::files::{Random, bf16_bytes, f16_bytes, f32_bytes, packed, packed_of, padded};
use crate::tool::{Run, json, rank, run, sample};
use half::{bf16, f16};
use maxsim::format::{Element, ElementType, with_element};
use maxsim::residual::{
    BitOrder, EncodeOptions, Nearest, ResidualCodec, ResidualTokens, TrainOptions,
};
use maxsim::{Device, Tokens};
use maxsim_cli::input::{Reading, TokenFile};
use maxsim_cli::residual::{ResidualFile, read_index};
use serde_json::Value;
use tempfile::TempDir;

/// `maxsim quantize --format plaid` with its paths and `more`.
fn quantize(input: &Path, output: &Path, more: &[&str]) -> Run {
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let paths = ["quantize", "--format", "plaid", "--input", input, "--output", output];
    run([&paths[..], more].concat())
}

fn write(folder: &TempDir, name: &str, bytes: Vec<u8>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Tokens of length 1.
fn units(n: usize, dim: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut row = || loop {
        let row = random.values(dim);
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        if length > 0.0 {
            return row.into_iter().map(move |x| x / length);
        }
    };
    (0..n).flat_map(|_| row()).collect()
}

/// Codes and bucket bytes of every item, one after the other.
fn rows(tokens: &ResidualTokens<'_>) -> (Vec<i32>, Vec<u8>) {
    let (layout, bytes) = (tokens.layout(), tokens.codec().row_bytes());
    let rows = || (0..layout.n_items()).flat_map(|item| layout.item_rows(item));
    let residuals = rows().flat_map(|row| &tokens.residuals()[row * bytes..(row + 1) * bytes]);
    (rows().map(|row| tokens.codes()[row]).collect(), residuals.copied().collect())
}

fn lengths(layout: &maxsim::TokenLayout) -> Vec<usize> {
    (0..layout.n_items()).map(|item| layout.item_len(item)).collect()
}

#[test]
fn files_hold_what_the_library_makes() {
    fn check<T: Element>(input: &Path, output: &Path, options: &TrainOptions) {
        let input = TokenFile::open(input, Reading::Map).unwrap();
        let tokens = input.tokens::<T>(0..input.n_items()).unwrap();
        let codec = ResidualCodec::train(&tokens, options).unwrap();
        let expected = ResidualTokens::encode(codec.into(), &tokens, &options.encode).unwrap();
        let file = ResidualFile::open(output, Reading::Map).unwrap();
        let found = file.tokens().unwrap();
        assert_eq!(lengths(found.layout()), lengths(input.layout()));
        assert_eq!((found.order(), rows(&found)), (expected.order(), rows(&expected)));
        let (found, expected) = (found.codec(), expected.codec());
        assert_eq!((found.nbits(), found.normalize()), (expected.nbits(), expected.normalize()));
        assert_eq!(found.centroids().element(), expected.centroids().element());
        assert_eq!(found.centroids().bytes(), expected.centroids().bytes());
        assert_eq!(found.bucket_weights(), expected.bucket_weights());
        assert_eq!(found.bucket_cutoffs(), expected.bucket_cutoffs());
    }
    let folder = TempDir::new().unwrap();
    let values = units(24, 5, 3);
    let offsets = [0, 4, 4, 20, 24];
    let padding = Some(&[3i64, 0, 6][..]);
    let half = |name: &str, bytes| packed_of(name, bytes, 24, 5, &offsets, 0);
    // What no item has counts for nothing, whatever it is.
    let mut gaps = units(24, 5, 4);
    gaps[3 * 5..16 * 5].fill(f32::INFINITY);
    gaps[22 * 5..].fill(0.0);
    // Lengths from 0 to beyond 2.
    let mut long = Random(5).values(24 * 5);
    long[5 * 4..5 * 5].fill(0.0);
    let inputs = [
        (ElementType::F32, packed(&long, 5, &offsets)),
        (ElementType::Bf16, half("BF16", bf16_bytes(&long))),
        (ElementType::F32, packed(&values, 5, &offsets)),
        (ElementType::F32, padded(&gaps, [3, 8, 5], padding)),
        (ElementType::F16, half("F16", f16_bytes(&values))),
        (ElementType::Bf16, half("BF16", bf16_bytes(&values))),
    ];
    let output = folder.path().join("out.safetensors");
    for (i, (element, input)) in inputs.into_iter().enumerate() {
        let input = write(&folder, "in.safetensors", input);
        let check_with = |more: &[&str], options: TrainOptions| {
            quantize(&input, &output, more).ok();
            with_element!(element, T => check::<T>(&input, &output, &options))
        };
        let encode = EncodeOptions::default().nearest(Nearest::Distance);
        let centroid_element = element;
        let options = TrainOptions::default()
            .normalize(false)
            .encode(encode)
            .centroid_element(centroid_element);
        check_with(&["--keep-lengths"], options);
        let options = options.n_centroids(3);
        check_with(&["--keep-lengths", "--centroids", "3"], options);
        if i < 2 {
            continue;
        }
        check_with(&[], TrainOptions::default());
        for nbits in [1, 2, 4, 8] {
            for order in BitOrder::ALL {
                let encode = EncodeOptions::default().order(order);
                let options =
                    TrainOptions::default().nbits(nbits).n_centroids(5).seed(9).encode(encode);
                let nbits = nbits.to_string();
                let more = ["--centroids", "5", "--seed", "9", "--nbits", &nbits];
                check_with(&[&more[..], &["--bit-order", order.name()]].concat(), options);
            }
        }
    }
}

/// Names of devices that are there.
fn devices() -> Vec<&'static str> {
    match Device::cuda(0) {
        Ok(_) => vec!["cpu", "cuda:0"],
        Err(_) => {
            eprintln!("SKIPPED (no CUDA device): plaid documents on a GPU");
            vec!["cpu"]
        }
    }
}

#[test]
fn documents_rank_as_what_they_decode_to() {
    let folder = TempDir::new().unwrap();
    let (dim, offsets) = (32, [0, 7, 12, 12, 30, 31]);
    let documents = write(&folder, "d.safetensors", packed(&units(31, dim, 5), dim, &offsets));
    let plaid = folder.path().join("plaid.safetensors");
    quantize(&documents, &plaid, &["--nbits", "2", "--centroids", "6"]).ok();
    let file = ResidualFile::open(&plaid, Reading::Map).unwrap();
    let tokens = file.tokens().unwrap();
    let narrow = tokens.decode::<f16>().unwrap();
    let narrow = bytemuck::cast_slice(narrow.data()).to_vec();
    let narrow = write(&folder, "16.safetensors", packed_of("F16", narrow, 31, dim, &offsets, 0));
    let wide = packed(tokens.decode::<f32>().unwrap().data(), dim, &offsets);
    let wide = write(&folder, "32.safetensors", wide);

    let values = units(9, dim, 6);
    let rounded: Vec<f32> = values.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    let queries = |name: &str, dtype: &str, bytes: Vec<u8>| {
        write(&folder, name, packed_of(dtype, bytes, 9, dim, &[0, 4, 9], 0))
    };
    let f16s = queries("q16.safetensors", "F16", f16_bytes(&values));
    let bf16s = queries("qb.safetensors", "BF16", bf16_bytes(&values));
    let f32s = queries("q32.safetensors", "F32", f32_bytes(&values));
    let widened: Vec<f32> = values.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
    let widened = queries("qw.safetensors", "F32", f32_bytes(&widened));
    let rounded = queries("qr.safetensors", "F32", f32_bytes(&rounded));
    for device in devices() {
        let on = ["--format", "json", "--device", device];
        let cases = [
            (&f16s, (&widened, &wide), ("300", " chunks")),
            (&f32s, (&f32s, &wide), ("1500", "in 4 chunks")),
            (&bf16s, (&rounded, &wide), ("1500", "in 4 chunks")),
        ];
        for (queries, (same_queries, decoded), (bytes, n_chunks)) in cases {
            // All at once; each document in a call of its own; and some of them together, by what
            // they take, decoded where queries are not f16. (A GPU has compressed rows padded.)
            let chunks = [
                (&[][..], "tokens of 32 plaid"),
                (&["--chunk-bytes", "1"], "in 5 chunks"),
                (&["--chunk-bytes", bytes, "--no-mmap"], n_chunks),
            ];
            for (more, said) in chunks {
                let more = [&on[..], more].concat();
                let found = rank(queries, &plaid, &more);
                assert!(found.stderr.contains(said), "{}", found.stderr);
                let expected = rank(same_queries, decoded, &more).ok();
                // A GPU rounds what it decodes to the queries' type.
                match (queries == &f16s, device) {
                    (true, "cpu") | (false, _) => assert_eq!(found.ok(), expected),
                    (true, _) => assert_near(&found.ok(), &expected),
                }
            }
        }
        let more = [&on[..], &["--normalize"]].concat();
        assert_eq!(rank(&f16s, &plaid, &more).ok(), rank(&f16s, &narrow, &more).ok());
        let more = [&on[..], &["--normalize"]].concat();
        assert_eq!(rank(&f32s, &plaid, &more).ok(), rank(&f32s, &wide, &more).ok());
    }
}

/// Rankings as JSON whose documents are the same and whose scores differ by little.
fn assert_near(found: &str, expected: &str) {
    let [found, expected] = [found, expected].map(|json| {
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        json["queries"].as_array().unwrap().clone()
    });
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found["documents"], expected["documents"]);
        let scores = |json: &serde_json::Value| json["scores"].as_array().unwrap().clone();
        for (found, expected) in scores(found).iter().zip(&scores(expected)) {
            let off = found.as_f64().unwrap() - expected.as_f64().unwrap();
            assert!(off.abs() < 2e-3, "{found}, not {expected}");
        }
    }
}

#[test]
fn the_report_is_that_of_the_file() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out.safetensors");
    let file = |name: &str| sample(name).to_str().unwrap().to_owned();
    let (queries, qrels) = (file("queries.safetensors"), file("queries.jsonl"));
    let input = TokenFile::open(&sample("documents.safetensors"), Reading::Map).unwrap();
    let tokens = input.tokens::<f16>(0..input.n_items()).unwrap();
    for (nbits, least_spearman, least_overlap) in [(2, 0.97, 0.9), (4, 0.99, 0.95)] {
        let bits = nbits.to_string();
        let more = ["--report", "json", "--nbits", &bits];
        let more = [&more[..], &["--queries", &queries, "--qrels", &qrels]].concat();
        let report = json(&quantize(&sample("documents.safetensors"), &output, &more).ok());
        eprintln!("{report}");

        let written = ResidualFile::open(&output, Reading::Map).unwrap();
        let decoded = written.tokens().unwrap().decode::<f32>().unwrap();
        let pairs = decoded.data().iter().zip(tokens.data());
        let errors = pairs.map(|(&x, y)| (f64::from(x) - y.to_f64()).abs());
        let (sum, max) = errors.fold((0.0, 0.0f64), |(sum, max), e| (sum + e, max.max(e)));
        let number = |name: &str| report[name].as_f64().unwrap();
        assert!((number("mean_error") * tokens.data().len() as f64 - sum).abs() < 1e-6 * sum);
        assert_eq!(number("max_error"), max);
        let (rows, dim) = (input.layout().rows(), 128);
        let codec = 2048 * dim * 2 + ((1 << nbits) + (1 << nbits) - 1) * 4;
        let bytes = rows * (4 + dim * nbits / 8) + codec;
        assert_eq!(report["bytes"].as_u64(), Some(bytes as u64));
        assert_eq!(report["codec"]["bytes"].as_u64(), Some(codec as u64));
        assert_eq!(report["codec"]["n_centroids"].as_u64(), Some(2048));
        assert_eq!(report["bytes_before"].as_u64(), Some((rows * dim * 2) as u64));
        assert_eq!((&report["format"], &report["scales"]), (&"plaid".into(), &Value::Null));

        // Rankings are those of the file that was written.
        let ranking = ["--format", "json", "--qrels", &qrels];
        let ranking = json(&rank(Path::new(&queries), &output, &ranking).ok());
        let ndcg = ranking["metrics"]["ndcg@10"].as_f64().unwrap();
        let agreement = |name: &str| report["agreement"][name].as_f64().unwrap();
        assert!((ndcg - agreement("ndcg_after")).abs() < 1e-12, "{ndcg}");
        assert!(agreement("spearman") >= least_spearman, "{report}");
        assert!(agreement("top20_overlap") >= least_overlap, "{report}");
    }
    let text = quantize(&sample("documents.safetensors"), &output, &["--centroids", "64"]).ok();
    for part in [
        "f16 to plaid, 4 bits around 64 centroids, bit order colbert\n",
        "(16508 of them centroids and buckets)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn an_index_becomes_a_file() {
    let folder = TempDir::new().unwrap();
    let output = folder.path().join("out.safetensors");
    let convert = |index: &Path, more: &[&str]| {
        let (index, output) = (index.to_str().unwrap(), output.to_str().unwrap());
        let args = ["quantize", "--format", "plaid", "--index", index, "--output", output];
        run([&args[..], more].concat())
    };
    for (name, nbits) in [("colbert-2", 2), ("fast-plaid-4", 4), ("next-plaid-4", 4)] {
        let index = Path::new("tests/plaid").join(name);
        let expected = read_index(&index).unwrap();
        for order in BitOrder::ALL {
            let more = ["--bit-order", order.name(), "--report", "json"];
            let report = json(&convert(&index, &more).ok());
            let file = ResidualFile::open(&output, Reading::Map).unwrap();
            let found = file.tokens().unwrap();
            assert_eq!(found.order(), order);
            assert_eq!(rows(&found), rows(&expected.clone().into_order(order)));
            assert_eq!(lengths(found.layout()), lengths(expected.layout()));
            let [x, y] = [&found, &expected].map(|tokens| tokens.decode::<f32>().unwrap());
            assert_eq!(x.data(), y.data());
            assert_eq!(report["codec"]["nbits"].as_u64(), Some(nbits));
            assert_eq!(report["n_tokens"].as_u64(), Some(expected.layout().total_len()));
            let tables = report["codec"]["bytes"].as_u64().unwrap();
            assert_eq!(report["bytes"].as_u64(), Some(expected.size_bytes() + tables));
        }
        // The order stays unless another is asked for.
        let text = convert(&index, &[]).ok();
        assert!(text.contains(&format!("index to plaid, {nbits} bits around")), "{text}");
        assert!(text.contains("bit order colbert\n"), "{text}");
        let dim = expected.layout().dim();
        let queries = write(&folder, "q.safetensors", packed(&units(3, dim, 1), dim, &[0, 3]));
        rank(&queries, &output, &[]).ok();
    }
    let index = Path::new("tests/plaid/colbert-2");
    for more in [["--nbits", "2"], ["--queries", "q.safetensors"], ["--input", "d.safetensors"]] {
        let wrong = convert(index, &more).stderr;
        assert!(wrong.contains("--index") && wrong.contains("cannot be used with"), "{wrong}");
    }
    let wrong = convert(folder.path(), &[]).error();
    assert!(wrong.contains("metadata.json"), "{wrong}");
    let paths = [index, &output].map(|path| path.to_str().unwrap());
    let wrong = run(["quantize", "--format", "int8", "--index", paths[0], "--output", paths[1]]);
    assert!(wrong.error().contains("--index is only for --format plaid"));
    let wrong = run(["quantize", "--format", "plaid", "--output", paths[1]]);
    assert!(wrong.stderr.contains("--input"), "{}", wrong.stderr);
}

#[test]
fn a_seed_decides() {
    let folder = TempDir::new().unwrap();
    let input = write(&folder, "in.safetensors", packed(&units(60, 8, 7), 8, &[0, 20, 60]));
    let of = |more: &[&str]| {
        let output = folder.path().join("out.safetensors");
        quantize(&input, &output, more).ok();
        fs::read(output).unwrap()
    };
    assert!(of(&[]) == of(&["--seed", "42"]));
    assert!(of(&["--seed", "1"]) == of(&["--seed", "1"]));
    assert!(of(&["--seed", "1"]) != of(&["--seed", "2"]));
}

#[test]
fn wrong_input_is_one_line_and_no_file() {
    let folder = TempDir::new().unwrap();
    let values = units(6, 4, 8);
    let input = write(&folder, "in.safetensors", packed(&values, 4, &[0, 2, 6]));
    let mut long = values.clone();
    long[3 * 4..4 * 4].copy_from_slice(&[0.0, 2.0, 0.0, 0.0]);
    let long = write(&folder, "long.safetensors", packed(&long, 4, &[0, 2, 6]));
    let mut nan = values.clone();
    nan[5] = f32::NAN;
    let nan = write(&folder, "nan.safetensors", packed(&nan, 4, &[0, 2, 6]));
    let none = write(&folder, "none.safetensors", packed(&[], 4, &[0, 0]));
    let plaid = folder.path().join("plaid.safetensors");
    quantize(&input, &plaid, &[]).ok();
    let codes = folder.path().join("codes.safetensors");
    let paths = [&input, &codes].map(|path| path.to_str().unwrap());
    run(["quantize", "--format", "int8", "--input", paths[0], "--output", paths[1]]).ok();
    let output = folder.path().join("out.safetensors");
    let before = fs::read_dir(folder.path()).unwrap().count();
    let cases: [(&Path, &[&str], &[&str]); 13] = [
        (&input, &["--nbits", "3"], &["--nbits", "expected 1, 2, 4 or 8"]),
        (&input, &["--bit-order", "big"], &["expected colbert or little-endian"]),
        (&input, &["--scales", "f16"], &["--scales is not for --format plaid"]),
        (&input, &["--centroids", "0"], &["--centroids 0: expected 1 to 6"]),
        (&input, &["--centroids", "7"], &["--centroids 7: expected 1 to 6"]),
        (&input, &["--queries", plaid.to_str().unwrap()], &["residual-compressed", "embeddings"]),
        (&long, &[], &["long.safetensors: token 1 of item 1 has length 2.0000", "--keep-lengths"]),
        (&nan, &[], &["nan.safetensors", "(item 0) has a NaN in element 1", "row 1"]),
        (&nan, &["--keep-lengths"], &["(item 0) has a NaN in element 1", "row 1"]),
        (&none, &[], &["no tokens"]),
        (&codes, &[], &["are int8 already"]),
        (&plaid, &[], &["residual-compressed", "the embeddings that they were made of"]),
        (&input, &["--seed", "x"], &["--seed", "invalid digit"]),
    ];
    let refused = |found: Run, parts: &[&str]| {
        let error = found.error();
        parts.iter().for_each(|p| assert!(error.contains(p), "{p}: {error}"));
    };
    for (input, more, parts) in cases {
        refused(quantize(input, &output, more), parts);
    }
    for more in [
        &["--nbits", "4"][..],
        &["--centroids", "4"],
        &["--seed", "4"],
        &["--bit-order", "colbert"],
        &["--keep-lengths"],
    ] {
        let paths = [&input, &output].map(|path| path.to_str().unwrap());
        let args = ["quantize", "--format", "fp8", "--input", paths[0], "--output", paths[1]];
        refused(run([&args[..], more].concat()), &[more[0], "is only for --format plaid"]);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
    quantize(&long, &output, &["--keep-lengths"]).ok();

    // Queries are never residual-compressed, nor codes beside such documents.
    refused(rank(&plaid, &input, &[]), &["plaid.safetensors: the tokens are residual-compressed"]);
    refused(rank(&codes, &plaid, &[]), &["queries are int8 and documents plaid"]);
    let wide = write(&folder, "wide.safetensors", packed(&values, 3, &[0, 2, 8]));
    refused(rank(&wide, &plaid, &[]), &["queries have dim 3 and documents 4"]);
    // What a broken file lacks is said.
    let mut broken = fs::read(&plaid).unwrap();
    let at = broken.windows(9).position(|part| part == b"residuals").unwrap();
    broken[at] = b'R';
    let broken = write(&folder, "broken.safetensors", broken);
    refused(rank(&input, &broken, &[]), &["broken.safetensors: no tensor `residuals`"]);
}

#[test]
fn a_training_says_how_far_it_is() {
    let rows = units(2000, 16, 1);
    let tokens = Tokens::padded(&rows, 4, 500, 16).unwrap();
    let options = TrainOptions::default().n_centroids(16);
    let calls = Mutex::new(Vec::new());
    let codec = ResidualCodec::train_with_progress(&tokens, &options, &|n_done, n_all| {
        calls.lock().unwrap().push((n_done, n_all));
    });
    let (found, expected) = (codec.unwrap(), ResidualCodec::train(&tokens, &options).unwrap());
    assert_eq!(found.centroids().bytes(), expected.centroids().bytes());
    assert_eq!(found.bucket_weights(), expected.bucket_weights());
    let mut calls = calls.into_inner().unwrap();
    calls.sort_unstable();
    let (n_done, n_all) = calls[calls.len() - 1];
    assert!(n_done == n_all && n_all > 0, "{calls:?}");
    // At least once per iteration and for the buckets.
    assert!(calls.len() > options.n_iterations, "{calls:?}");
    assert!(calls.iter().all(|&(_, all)| all == n_all) && calls.is_sorted_by(|a, b| a.0 < b.0));
}
