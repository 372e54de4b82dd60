//! The tool's format of residual-compressed tokens: what is written is read, and what is refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use maxsim::format::ElementType;
use maxsim::residual::{
    BitOrder, Centroids, EncodeOptions, ResidualCodec, ResidualTokens, TrainOptions,
};
use maxsim::{TokenLayout, Tokens};
use maxsim_cli::input::{Reading, TokenFile};
use maxsim_cli::quantize::compress;
use maxsim_cli::residual::{ResidualFile, write};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Numbers in [-1, 1) that a seed determines.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn codec(nbits: u32, dim: usize, element: ElementType, cutoffs: bool) -> ResidualCodec<'static> {
    let centroids = Centroids::rounded(numbers(5 * dim, 1), element);
    let mut weights = numbers(1 << nbits, 2);
    let codec = ResidualCodec::new(nbits, dim, centroids, &weights, nbits != 1).unwrap();
    weights.sort_by(f32::total_cmp);
    if cutoffs { codec.with_cutoffs(&weights[1..]).unwrap() } else { codec }
}

/// Tokens of any shape whose codes and buckets a seed determines.
fn tokens(
    codec: ResidualCodec<'static>,
    order: BitOrder,
    layout: TokenLayout,
) -> ResidualTokens<'static> {
    let rows = layout.rows();
    let codes: Vec<i32> = numbers(rows, 3).iter().map(|x| ((x + 1.0) * 2.5) as i32).collect();
    let bytes = numbers(rows * codec.row_bytes(), 4);
    let residuals: Vec<u8> = bytes.iter().map(|x| ((x + 1.0) * 128.0) as u8).collect();
    ResidualTokens::new(codec.into(), codes, residuals, order, layout).unwrap()
}

fn written(tokens: &ResidualTokens<'_>) -> (TempDir, Vec<u8>) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tokens.safetensors");
    write(&path, tokens).unwrap();
    let bytes = fs::read(path).unwrap();
    (folder, bytes)
}

/// What reading some bytes gives, or why they are refused.
fn with_read<T>(bytes: &[u8], use_it: impl Fn(Result<ResidualTokens<'_>, String>) -> T) -> T {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tokens.safetensors");
    fs::write(&path, bytes).unwrap();
    let mapped = ResidualFile::open(&path, Reading::Map).unwrap();
    use_it(mapped.tokens().map_err(|error| format!("{error:#}")))
}

fn assert_same_codec(a: &ResidualCodec<'_>, b: &ResidualCodec<'_>) {
    assert_eq!((a.nbits(), a.dim(), a.normalize()), (b.nbits(), b.dim(), b.normalize()));
    assert_eq!(a.centroids().element(), b.centroids().element());
    assert_eq!(a.centroids().bytes(), b.centroids().bytes());
    assert_eq!((a.bucket_weights(), a.bucket_cutoffs()), (b.bucket_weights(), b.bucket_cutoffs()));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..Default::default()
    })]
    #[test]
    fn what_is_written_is_read(
        nbits in prop::sample::select(&[1u32, 2, 4, 8]), dim in 1..40usize,
        element in prop::sample::select(&ElementType::ALL), cutoffs in any::<bool>(),
        order in prop::sample::select(&BitOrder::ALL),
        lengths in prop::collection::vec(0..9i64, 0..6),
    ) {
        let offsets: Vec<i64> = std::iter::once(0)
            .chain(lengths.iter().scan(0, |end, &len| { *end += len; Some(*end) }))
            .collect();
        let rows = *offsets.last().unwrap() as usize;
        let layout = TokenLayout::packed(rows, dim, &offsets).unwrap();
        let tokens = tokens(codec(nbits, dim, element, cutoffs), order, layout);
        let (folder, bytes) = written(&tokens);
        // Equal tokens are equal files.
        prop_assert_eq!(&written(&tokens).1, &bytes);
        for reading in [Reading::Map, Reading::Read] {
            let path = folder.path().join("tokens.safetensors");
            let file = ResidualFile::open(&path, reading).unwrap();
            let read = file.tokens().unwrap();
            assert_same_codec(read.codec(), tokens.codec());
            prop_assert_eq!((read.codes(), read.residuals()), (tokens.codes(), tokens.residuals()));
            prop_assert_eq!((read.order(), read.layout()), (tokens.order(), tokens.layout()));
        }
    }
}

#[test]
fn items_are_written_one_after_the_other() {
    let check = |layout: TokenLayout, rows: &[usize]| {
        let tokens = tokens(codec(4, 3, ElementType::F32, true), BitOrder::Colbert, layout);
        let codes: Vec<i32> = rows.iter().map(|&row| tokens.codes()[row]).collect();
        let bytes: Vec<u8> = rows
            .iter()
            .flat_map(|&row| &tokens.residuals()[row * 2..row * 2 + 2])
            .copied()
            .collect();
        with_read(&written(&tokens).1, |read| {
            let read = read.unwrap();
            assert_eq!((read.codes(), read.residuals()), (&codes[..], &bytes[..]));
            let lens = |layout: &TokenLayout| -> Vec<usize> {
                (0..layout.n_items()).map(|item| layout.item_len(item)).collect()
            };
            assert_eq!(lens(read.layout()), lens(tokens.layout()));
        });
    };
    let padded = TokenLayout::padded(2, 3, 3).unwrap();
    check(padded.clone(), &[0, 1, 2, 3, 4, 5]);
    check(padded.with_lengths(&[1i64, 2]).unwrap(), &[0, 3, 4]);
    check(TokenLayout::packed(6, 3, &[1i64, 3, 3, 5]).unwrap(), &[1, 2, 3, 4]);
    check(TokenLayout::scattered(6, 3, &[4i64, 0], &[2, 1]).unwrap(), &[4, 5, 0]);

    let layout = TokenLayout::packed(2, 3, &[0i64, 2]).unwrap();
    let masked = tokens(codec(4, 3, ElementType::F32, true), BitOrder::Colbert, layout);
    let masked = masked.with_mask(vec![0, 1]).unwrap();
    let error = write(Path::new("never.safetensors"), &masked).unwrap_err();
    assert!(format!("{error:#}").contains("masked"), "{error:#}");
    assert!(!Path::new("never.safetensors").exists());
    let nowhere = Path::new("no-such-folder/tokens.safetensors");
    let layout = TokenLayout::packed(0, 3, &[0i64]).unwrap();
    let none = tokens(codec(4, 3, ElementType::F32, true), BitOrder::Colbert, layout);
    assert!(format!("{:#}", write(nowhere, &none).unwrap_err()).contains("no-such-folder"));
}

/// A file's header and data.
fn taken_apart(bytes: &[u8]) -> (Value, Vec<u8>) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + len]).unwrap(), bytes[8 + len..].to_vec())
}

/// A file of any header and data; `shift` spaces move the data off its boundary.
fn put_together(header: &Value, data: &[u8], shift: usize) -> Vec<u8> {
    let mut json = serde_json::to_vec(header).unwrap();
    json.resize(json.len().next_multiple_of(8) + shift, b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json, data].concat()
}

/// Six tokens of dim 3 in 2 bits: 1 byte each.
fn small() -> ResidualTokens<'static> {
    let layout = TokenLayout::packed(6, 3, &[0i64, 2, 6]).unwrap();
    tokens(codec(2, 3, ElementType::F16, true), BitOrder::LittleEndian, layout)
}

#[test]
fn padded_codes_and_codes_of_i64_and_data_off_their_boundaries_are_read() {
    let whole = small();
    let (header, data) = taken_apart(&written(&whole).1);
    for shift in 0..8 {
        with_read(&put_together(&header, &data, shift), |read| {
            let read = read.unwrap();
            assert_same_codec(read.codec(), whole.codec());
            assert_eq!((read.codes(), read.residuals()), (whole.codes(), whole.residuals()));
        });
    }
    // Codes and lengths are added behind the data, and the offsets left out.
    let wide: Vec<i64> = whole.codes().iter().map(|&code| code.into()).collect();
    let (start, middle) = (data.len(), data.len() + 48);
    let more = [&data[..], bytemuck::cast_slice(&wide), bytemuck::cast_slice(&[3i64, 1])].concat();
    let mut padded = header.clone();
    let entries = padded.as_object_mut().unwrap();
    // The old tensors stay, under other names: data must have no gaps.
    for name in ["codes", "offsets"] {
        let entry = entries.remove(name).unwrap();
        entries.insert(format!("old {name}"), entry);
    }
    entries.insert(
        "codes".into(),
        json!({"dtype": "I64", "shape": [2, 3], "data_offsets": [start, middle]}),
    );
    entries.insert(
        "lengths".into(),
        json!({"dtype": "I64", "shape": [2], "data_offsets": [middle, middle + 16]}),
    );
    entries["residuals"]["shape"] = json!([2, 3, 1]);
    with_read(&put_together(&padded, &more, 0), |read| {
        let read = read.unwrap();
        let layout = TokenLayout::padded(2, 3, 3).unwrap().with_lengths(&[3i64, 1]).unwrap();
        assert_eq!((read.layout(), read.codes()), (&layout, whole.codes()));
    });
}

#[test]
fn files_without_all_that_is_needed_are_refused() {
    let (header, data) = taken_apart(&written(&small()).1);
    let refused = |change: &dyn Fn(&mut Value), parts: &[&str]| {
        let mut header = header.clone();
        change(&mut header);
        with_read(&put_together(&header, &data, 0), |read| {
            let Err(error) = read else { panic!("taken: {parts:?}") };
            parts.iter().for_each(|part| assert!(error.contains(part), "no '{part}': {error}"));
        });
    };
    let renamed = |header: &mut Value, name: &str| {
        let entries = header.as_object_mut().unwrap();
        let entry = entries.remove(name).unwrap();
        entries.insert("other".into(), entry);
    };
    for name in ["codes", "residuals", "centroids", "bucket_weights"] {
        refused(&|header| renamed(header, name), &["no tensor", name]);
    }
    refused(&|header| renamed(header, "offsets"), &["`offsets` [n + 1]"]);
    refused(&|header| renamed(header, "__metadata__"), &[]);
    for key in ["format", "version", "nbits", "bit_order", "normalize"] {
        let remove = |header: &mut Value| {
            header["__metadata__"].as_object_mut().unwrap().remove(key);
        };
        refused(&remove, &["metadata", key]);
        let change = |header: &mut Value| header["__metadata__"][key] = json!("7");
        refused(&change, &[key, "7"]);
    }
    let dtype = |name: &'static str, to: &'static str| {
        move |header: &mut Value| header[name]["dtype"] = json!(to)
    };
    refused(&dtype("codes", "F32"), &["`codes`", "F32", "expected I32 or I64"]);
    refused(&dtype("centroids", "I16"), &["`centroids`", "I16"]);
    refused(&dtype("residuals", "I8"), &["`residuals`", "I8"]);
    refused(&dtype("bucket_weights", "I32"), &["`bucket_weights`", "I32"]);
    let shape = |name: &'static str, to: Value| {
        move |header: &mut Value| header[name]["shape"] = to.clone()
    };
    refused(&shape("codes", json!([2, 3])), &["`codes` [n, len]", "offsets"]);
    refused(&shape("codes", json!([1, 2, 3])), &["`codes`", "[1, 2, 3]"]);
    refused(&shape("residuals", json!([3, 2])), &["`residuals`", "[3, 2]", "[6, 1]"]);
    refused(&shape("residuals", json!([6])), &["`residuals`", "[6, 1]"]);
    refused(&shape("centroids", json!([15])), &["`centroids`", "[n, dim]"]);
    refused(&shape("bucket_weights", json!([2, 2])), &["`bucket_weights`", "one dimension"]);
    // What the container checks is checked here, too.
    refused(
        &|header| header["__metadata__"]["nbits"] = json!("4"),
        &["bucket_weights", "16 entries"],
    );
    let (at, end) = (48, data.len());
    let mut wrong = data.clone();
    assert_eq!(header["codes"]["data_offsets"], json!([24, at]));
    wrong[at - 4..at].copy_from_slice(&5i32.to_le_bytes());
    with_read(&put_together(&header, &wrong, 0), |read| {
        assert!(read.unwrap_err().contains("codes[5]: id 5 does not exist"));
    });
    for cut in [0, 4, 8, 60] {
        let whole = put_together(&header, &data, 0);
        with_read(&whole[..cut], |read| assert!(read.is_err()));
    }
    with_read(&put_together(&header, &data[..end - 1], 0), |read| assert!(read.is_err()));
}

#[test]
fn a_file_of_embeddings_becomes_one_of_compressed_tokens() {
    let file =
        TokenFile::open(Path::new("examples/debian-packages/queries.safetensors"), Reading::Map);
    let file = file.unwrap();
    let options = TrainOptions::default().nbits(8).n_centroids(64).n_iterations(2);
    let (compressed, _) = compress(&file, &options).unwrap();
    assert_eq!(compressed.layout().segments(), file.layout().segments());
    assert!(compressed.is_packed());
    assert_eq!(compressed.codec().n_centroids(), 64);
    let tokens = file.tokens::<half::f16>(0..file.n_items()).unwrap();
    with_read(&written(&compressed).1, |read| {
        let decoded = read.unwrap().decode::<f32>().unwrap();
        let square: f32 =
            decoded.data().iter().zip(tokens.data()).map(|(x, y)| (x - y.to_f32()).powi(2)).sum();
        let mean = square / tokens.layout().rows() as f32;
        assert!(mean < 3e-3, "rows err by {mean} in the square mean");
    });
}

#[test]
fn what_was_read_encodes_as_before() {
    let whole = small();
    let rows = numbers(9, 7);
    let rows = Tokens::packed(&rows, 3, &[0i64, 3]).unwrap();
    let options = EncodeOptions::default().order(BitOrder::LittleEndian);
    let encode = |codec: &Arc<ResidualCodec<'_>>| {
        let encoded = ResidualTokens::encode(codec.clone(), &rows, &options).unwrap();
        (encoded.codes().to_vec(), encoded.residuals().to_vec())
    };
    let expected = encode(whole.codec());
    with_read(&written(&whole).1, |read| assert_eq!(encode(read.unwrap().codec()), expected));
}
