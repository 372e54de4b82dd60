//! Weights of query tokens in a file of their own, and means.

use serde_json::Value;

use super::Folder;
use crate::files::{f16_bytes, f32_bytes, i64_bytes, npy, packed};
use crate::tool::{json, rank};

/// Scores of a ranking of one query, by document.
fn scores(found: &str) -> Vec<f64> {
    let found = json(found);
    let query = &found["queries"][0];
    let numbers = |name: &str| query[name].as_array().expect("a list").clone();
    let mut of_ids: Vec<(Value, f64)> = numbers("documents")
        .into_iter()
        .zip(numbers("scores").iter().map(|score| score.as_f64().expect("a score")))
        .collect();
    of_ids.sort_by_key(|(id, _)| id.to_string());
    of_ids.into_iter().map(|(_, score)| score).collect()
}

/// Scores of the query of the folder, of two tokens.
fn of(folder: &Folder, documents: &str, more: &[&str]) -> Vec<f64> {
    scores(&folder.rank(documents, more).ok())
}

fn close(found: &[f64], expected: impl Iterator<Item = f64>) {
    let expected: Vec<f64> = expected.collect();
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{found:?}, not {expected:?}");
    }
}

#[test]
fn multiply_similarities() {
    let folder = Folder::new();
    // Each token as a query of its own.
    let tokens = [[1.0, 0.0, 0.0, 0.0], [1.0, 0.125, 0.0, -0.125]];
    let [first, second] = tokens.map(|token| {
        folder.written("one.safetensors", packed(&token, 4, &[0, 1]));
        let documents = folder.path("packed.safetensors");
        let more = ["--format", "json"];
        scores(&rank(&folder.path("one.safetensors"), &documents, &more).ok())
    });
    let with = |a: f64, b: f64| first.iter().zip(&second).map(move |(x, y)| a * x + b * y);
    let weights = folder.written("w.npy", npy(1, "<f4", &[2], &f32_bytes(&[2.0, -0.5])));
    close(&of(&folder, "packed.safetensors", &["--weights", &weights]), with(2.0, -0.5));
    let both = ["--weights", &weights, "--mean"];
    close(&of(&folder, "packed.safetensors", &both), with(1.0, -0.25));
    close(&of(&folder, "packed.safetensors", &["--mean"]), with(0.5, 0.5));
    let half = folder.written("h.npy", npy(1, "<f2", &[1, 2], &f16_bytes(&[0.0, 0.75])));
    close(&of(&folder, "packed.safetensors", &["--weights", &half]), with(0.0, 0.75));

    // Beside padding, which a mask or lengths exclude, any number goes.
    let query = [[0.0; 4], tokens[0], tokens[1]].concat();
    folder.written("q.npy", npy(1, "<f4", &[1, 3, 4], &f32_bytes(&query)));
    let mask = folder.written("mask.npy", npy(1, "|b1", &[1, 3], &[0, 1, 1]));
    let padded =
        folder.written("p.npy", npy(1, "<f4", &[1, 3], &f32_bytes(&[f32::NAN, 2.0, -0.5])));
    let more = ["--queries-mask-file", &mask, "--weights", &padded, "--mean", "--format", "json"];
    let found = rank(&folder.path("q.npy"), &folder.path("packed.safetensors"), &more).ok();
    close(&scores(&found), with(1.0, -0.25));
}

#[test]
fn compressed_documents_take_them() {
    let folder = Folder::new();
    let weights = folder.written("w.npy", npy(1, "<f4", &[2], &f32_bytes(&[2.0, -0.5])));
    let exact = of(&folder, "packed.safetensors", &["--weights", &weights]);
    for format in ["int8", "int8-affine", "fp8"] {
        folder.quantize("packed.safetensors", format, &[]).ok();
        let found = of(&folder, "out.safetensors", &["--weights", &weights]);
        for (found, exact) in found.iter().zip(&exact) {
            assert!((found - exact).abs() < 0.1 * exact.abs(), "{format}: {found}, not {exact}");
        }
    }
}

#[test]
fn that_are_wrong_are_refused() {
    let folder = Folder::new();
    let error = |weights: &[u8], descr: &str, shape: &[usize]| {
        let weights = folder.written("w.npy", npy(1, descr, shape, weights));
        folder.rank("packed.safetensors", &["--weights", &weights]).error()
    };
    for shape in [&[3][..], &[2, 2], &[1, 1, 2]] {
        let n = shape.iter().product();
        let found = error(&f32_bytes(&vec![1.0; n]), "<f4", shape);
        assert!(found.contains("w.npy") && found.contains(&format!("shape {shape:?}")), "{found}");
        assert!(found.contains("[2], or [1, len]"), "{found}");
    }
    for (weight, name) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let found = error(&f32_bytes(&[1.0, weight]), "<f4", &[2]);
        let expected = format!("the weight of token 1 of query 0 is {name}");
        assert!(found.contains("w.npy") && found.contains(&expected), "{found}");
    }
    // Sums that are beyond f32.
    let found = error(&f32_bytes(&[3e38, 3e38]), "<f4", &[2]);
    assert!(found.contains("document 0 is -inf") && found.contains("too large"), "{found}");
    // As many numbers as two packed queries of one and three tokens have, but not theirs.
    folder.written("two.safetensors", packed(&[1.0; 16], 4, &[0, 1, 4]));
    let square = folder.written("w.npy", npy(1, "<f4", &[2, 2], &f32_bytes(&[1.0; 4])));
    let documents = folder.path("packed.safetensors");
    let found = rank(&folder.path("two.safetensors"), &documents, &["--weights", &square]).error();
    assert!(found.contains("shape [2, 2]"), "{found}");
    let found = error(&i64_bytes(&[1, 1]), "<i8", &[2]);
    assert!(found.contains("w.npy") && found.contains("expected F16, BF16 or F32"), "{found}");
    let found = folder.rank("packed.safetensors", &["--weights", "none.npy"]).error();
    assert!(found.contains("none.npy"), "{found}");
    let (weights, screen) = (folder.text("w.npy"), folder.text("packed.safetensors"));
    for more in [&["--weights", &weights][..], &["--mean"]] {
        let more = [more, &["--screen", &screen]].concat();
        let found = folder.rank("packed.safetensors", &more).error();
        assert!(found.contains("cannot be used with"), "{found}");
    }
}
