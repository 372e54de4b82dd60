//! The C interface on the CPU, where addresses are the host's.

mod operations;
mod search;

use std::ffi::{CStr, CString};
use std::ptr;

use maxsim_bench::ffi::*;

const QUERY: [f32; 4] = [1.0, 0.0, 0.0, 1.0];
const DOCUMENTS: [f32; 6] = [2.0, 0.0, 3.0, 4.0, -1.0, 5.0];
const OFFSETS: [i64; 3] = [0, 1, 3];

fn address<T>(values: &[T]) -> u64 {
    values.as_ptr().expose_provenance() as u64
}

fn last_error() -> String {
    // SAFETY: valid until the next failing call of this thread.
    unsafe { CStr::from_ptr(maxsim_bench_last_error()) }.to_str().unwrap().to_string()
}

#[test]
fn a_call_from_tokens_to_scores() {
    let (f32, options) = (c"f32".as_ptr(), c"".as_ptr());
    let mut scores = [f32::NAN; 2];
    let to = scores.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let device = maxsim_bench_open(-1);
        let what = CStr::from_ptr(maxsim_bench_text(device)).to_str().unwrap();
        assert!(what.contains("\"name\":\"CPU\"") && what.contains("maxsim_forward"), "{what}");
        let queries = maxsim_bench_tokens(device, f32, address(&QUERY), 2, 1, 2, ptr::null(), 0);
        let documents =
            maxsim_bench_tokens(device, f32, address(&DOCUMENTS), 2, 2, 0, OFFSETS.as_ptr(), 0);
        assert!(!queries.is_null() && !documents.is_null(), "{}", last_error());
        let work = maxsim_bench_prepare(queries, documents, 0, options);
        assert!(!maxsim_bench_text(work).is_null());
        let outputs = maxsim_bench_outputs(work, to, 0, 0);
        let stream = maxsim_bench_stream(device, 0);
        assert_eq!(maxsim_bench_enqueue(stream, queries, documents, work, outputs), 0);
        assert_eq!(scores, [2.0, 8.0]);

        let selection = maxsim_bench_prepare_top_k(work, documents, 3);
        let (mut ids, mut best) = ([0i64; 3], [0f32; 3]);
        let places = [ids.as_mut_ptr().expose_provenance(), best.as_mut_ptr().expose_provenance()];
        assert_eq!(maxsim_bench_top_k(stream, outputs, selection), 0, "{}", last_error());
        let [ids_at, best_at] = places.map(|place| place as u64);
        assert_eq!(maxsim_bench_best(selection, ids_at, best_at), 0);
        assert_eq!((ids, &best[..2], best[2].is_nan()), ([1, 0, -1], &[8.0, 2.0][..], true));
        assert_eq!(maxsim_bench_top_k(stream, outputs, stream), -1);
        assert!(last_error().contains("a selection"), "{}", last_error());
        assert!(maxsim_bench_prepare_top_k(work, documents, 5000).is_null());
        maxsim_bench_free(selection);

        let mut mean_us = -1.0;
        let code =
            maxsim_bench_enqueue_us(stream, queries, documents, work, outputs, 3, &mut mean_us);
        assert!(code == 0 && mean_us > 0.0);

        scores = [f32::NAN; 2];
        assert_eq!(maxsim_bench_call(stream, queries, documents, 0, options, to), 0);
        assert_eq!(scores, [2.0, 8.0]);
        // Two candidates of the one query are the same documents.
        scores = [f32::NAN; 2];
        assert_eq!(maxsim_bench_call(stream, queries, documents, 2, options, to), 0);
        assert_eq!(scores, [2.0, 8.0]);

        assert_eq!(maxsim_bench_read(stream, documents, 1), -1);
        assert!(last_error().contains("CPU"), "{}", last_error());
        for object in [outputs, work, queries, documents, stream, device] {
            maxsim_bench_free(object);
        }
        maxsim_bench_free(ptr::null_mut());
    }
}

#[test]
fn masks_are_read_from_their_address() {
    let mask = [1u8, 0, 1];
    let mut scores = [f32::NAN; 2];
    let to = scores.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (device, f32) = (maxsim_bench_open(-1), c"f32".as_ptr());
        let queries = maxsim_bench_tokens(device, f32, address(&QUERY), 2, 1, 2, ptr::null(), 0);
        let offsets = OFFSETS.as_ptr();
        let documents =
            maxsim_bench_tokens(device, f32, address(&DOCUMENTS), 2, 2, 0, offsets, address(&mask));
        let stream = maxsim_bench_stream(device, 0);
        assert_eq!(maxsim_bench_call(stream, queries, documents, 0, c"".as_ptr(), to), 0);
        assert_eq!(scores, [2.0, -1.0 + 5.0]);
        for object in [queries, documents, stream, device] {
            maxsim_bench_free(object);
        }
    }
}

#[test]
fn weights_are_read_from_their_address() {
    let (weights, mut scores) = ([2.0f32, -0.5], [f32::NAN; 2]);
    let to = scores.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (device, f32) = (maxsim_bench_open(-1), c"f32".as_ptr());
        let rows = address(&QUERY);
        let queries = maxsim_bench_weighted(device, f32, rows, 2, 1, 2, address(&weights));
        let offsets = OFFSETS.as_ptr();
        let documents = maxsim_bench_tokens(device, f32, address(&DOCUMENTS), 2, 2, 0, offsets, 0);
        let stream = maxsim_bench_stream(device, 0);
        assert_eq!(maxsim_bench_call(stream, queries, documents, 0, c"".as_ptr(), to), 0);
        assert_eq!(scores, [2.0 * 2.0, 2.0 * 3.0 - 0.5 * 5.0]);
        for object in [queries, documents, stream, device] {
            maxsim_bench_free(object);
        }
    }
}

#[test]
fn what_is_wrong_is_said() {
    // SAFETY: live handles or null; the texts are C strings.
    unsafe {
        let device = maxsim_bench_open(-1);
        let bytes = CString::new("f8").unwrap();
        let refused =
            maxsim_bench_tokens(device, bytes.as_ptr(), address(&QUERY), 2, 1, 2, ptr::null(), 0);
        assert!(refused.is_null() && last_error().contains("f8"), "{}", last_error());
        let null = maxsim_bench_prepare(ptr::null(), ptr::null(), 0, c"".as_ptr());
        assert!(null.is_null() && last_error().contains("null"), "{}", last_error());
        let confused = maxsim_bench_prepare(device, device, 0, c"".as_ptr());
        assert!(confused.is_null() && last_error().contains("found a device"), "{}", last_error());
        let queries =
            maxsim_bench_tokens(device, c"f32".as_ptr(), address(&QUERY), 2, 1, 2, ptr::null(), 0);
        let unknown = maxsim_bench_prepare(queries, queries, 0, c"speed=9".as_ptr());
        assert!(unknown.is_null() && last_error().contains("speed"), "{}", last_error());
        assert!(maxsim_bench_open(999).is_null() && !last_error().is_empty());
        maxsim_bench_free(queries);
        maxsim_bench_free(device);
    }
}

const DIM: usize = 4;

/// Two rows of a query and three documents' rows, with elements that codes do not hold exactly.
const ROWS: [f32; 5 * DIM] = [
    0.9, -0.1, 0.3, 0.2, 0.1, 0.7, -0.6, 0.2, // query
    0.5, 0.5, -0.5, 0.1, 0.8, -0.2, 0.1, 0.4, -0.3, 0.6, 0.6, -0.1,
];

/// Makes codes of `rows` rows of [`ROWS`] from `first` on, one item each, or one item of all.
fn quantized(format: &CStr, first: usize, n: usize, len: usize) -> *mut maxsim_bench::ffi::Object {
    let (scales, element) = (c"f16".as_ptr(), c"f32".as_ptr());
    let from = address(&ROWS[first * DIM..]);
    // SAFETY: C strings and memory of as many rows.
    let codes = unsafe {
        maxsim_bench_quantize(
            format.as_ptr(),
            scales,
            element,
            from,
            DIM as u64,
            n as u64,
            len as u64,
            ptr::null(),
            0,
        )
    };
    assert!(!codes.is_null(), "{}", last_error());
    codes
}

/// What codes stand for, read through the interface.
fn dequantized(codes: *mut maxsim_bench::ffi::Object, format: &CStr, rows: usize) -> Vec<f64> {
    let mut bytes = vec![0u8; rows * DIM];
    let (mut scales, mut mins) = (vec![f32::NAN; rows], vec![f32::NAN; rows]);
    let to = |values: *mut u8| values.expose_provenance() as u64;
    let (scales_to, mins_to) = (to(scales.as_mut_ptr().cast()), to(mins.as_mut_ptr().cast()));
    // SAFETY: a live handle and memory of as many rows.
    let code = unsafe { maxsim_bench_codes(codes, to(bytes.as_mut_ptr()), scales_to, mins_to) };
    assert_eq!(code, 0, "{}", last_error());
    let value = |byte: u8| match format.to_str().unwrap() {
        "int8" => f64::from(byte as i8),
        "int8-affine" => f64::from(byte),
        _ => e4m3(byte),
    };
    let row = |i: usize| (f64::from(scales[i / DIM]), f64::from(mins[i / DIM]));
    bytes.iter().enumerate().map(|(i, &byte)| value(byte) * row(i).0 + row(i).1).collect()
}

/// An e4m3 number: sign, 4 bits of exponent with bias 7, 3 bits of fraction.
fn e4m3(byte: u8) -> f64 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f64::from(byte & 7) / 8.0);
    let size = match exponent {
        0 => fraction * 2f64.powi(-6),
        _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
    };
    if byte & 128 == 0 { size } else { -size }
}

#[test]
fn compressed_tokens_are_made_read_and_scored() {
    for (format, of_queries) in [
        (c"int8", c"int8"),
        (c"fp8", c"fp8"),
        (c"int8-affine", c"int8"),
        (c"int8-affine", c"f16"),
        (c"int8-affine", c"bf16"),
    ] {
        let is_plain = of_queries == c"f16" || of_queries == c"bf16";
        let documents = quantized(format, 2, 3, 1);
        let document_rows = dequantized(documents, format, 3);
        let largest = document_rows.iter().zip(&ROWS[2 * DIM..]).map(|(a, &b)| a - f64::from(b));
        assert!(largest.fold(0.0, |most: f64, x| most.max(x.abs())) < 0.04, "{format:?}");
        let plain: Vec<u16> = ROWS[..2 * DIM]
            .iter()
            .map(|&x| match of_queries == c"f16" {
                true => half::f16::from_f32(x).to_bits(),
                false => half::bf16::from_f32(x).to_bits(),
            })
            .collect();
        let mut scores = [f32::NAN; 3];
        let mut bounds = [f32::NAN; 3];
        let to = |values: &mut [f32; 3]| values.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: live handles, and memory that outlives them.
        unsafe {
            let device = maxsim_bench_open(-1);
            let uploaded = maxsim_bench_upload(device, documents);
            let (queries, query_rows) = if is_plain {
                let element = of_queries.as_ptr();
                let tokens =
                    maxsim_bench_tokens(device, element, address(&plain), 4, 1, 2, ptr::null(), 0);
                let value = |bits: &u16| match of_queries == c"f16" {
                    true => half::f16::from_bits(*bits).to_f64(),
                    false => half::bf16::from_bits(*bits).to_f64(),
                };
                (tokens, plain.iter().map(value).collect())
            } else {
                let codes = quantized(of_queries, 0, 1, 2);
                let rows = dequantized(codes, of_queries, 2);
                let code = maxsim_bench_rounding_bounds(codes, documents, to(&mut bounds));
                assert_eq!(code, 0, "{}", last_error());
                let tokens = maxsim_bench_upload(device, codes);
                maxsim_bench_free(codes);
                (tokens, rows)
            };
            assert!(!queries.is_null() && !uploaded.is_null(), "{}", last_error());
            let stream = maxsim_bench_stream(device, 0);
            let (none, at) = (c"".as_ptr(), to(&mut scores));
            let code = maxsim_bench_call(stream, queries, uploaded, 0, none, at);
            assert_eq!(code, 0, "{}", last_error());
            for (d, document) in document_rows.chunks(DIM).enumerate() {
                let dot =
                    |query: &[f64]| query.iter().zip(document).map(|(a, b)| a * b).sum::<f64>();
                let exact: f64 = query_rows.chunks(DIM).map(dot).sum();
                let off = (f64::from(scores[d]) - exact).abs();
                // Sums of four products in f32, and far less than what the codes lose.
                assert!(off < 2e-6, "{format:?} of {of_queries:?}: {} for {exact}", scores[d]);
                assert!(is_plain || off <= f64::from(bounds[d]), "{off} {}", bounds[d]);
                let most = if format == c"fp8" { 0.1 } else { 1e-4 };
                assert!(is_plain || bounds[d] > 0.0 && bounds[d] < most, "{format:?} {bounds:?}");
            }
            for object in [queries, uploaded, documents, stream, device] {
                maxsim_bench_free(object);
            }
        }
    }
}

/// A document whose second token has the first's codes but a larger element: codes find the first,
/// a forward of the elements would not, and its score is not rounded to the codes.
#[test]
fn codes_find_what_full_precision_scores() {
    let half = |values: &[f32]| values.iter().map(|&x| half::f16::from_f32(x)).collect::<Vec<_>>();
    let query = half(&[1.0, 0.0]);
    // 63.75 and 64.01 of 127ths, then tokens that differ.
    let documents = half(&[0.502, 1.0, 0.504, 1.0, -0.25, 1.0, 0.75, -1.0]);
    let (none, f16, to_scales) = (c"".as_ptr(), c"f16".as_ptr(), c"f16".as_ptr());
    let codes_of = |values: &[half::f16], n: u64, len: u64| {
        let (from, int8, offsets) = (address(values), c"int8".as_ptr(), ptr::null());
        // SAFETY: C strings and memory of as many rows.
        unsafe { maxsim_bench_quantize(int8, to_scales, f16, from, 2, n, len, offsets, 0) }
    };
    let mut scores = [f32::NAN; 2];
    let to = scores.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (device, from) = (maxsim_bench_open(-1), address(&documents));
        let (query_codes, document_codes) = (codes_of(&query, 1, 1), codes_of(&documents, 2, 2));
        let screened = |element, from, n, len, codes| {
            maxsim_bench_screened(device, element, from, 2, n, len, ptr::null(), codes)
        };
        let queries = screened(f16, address(&query), 1, 1, query_codes);
        let documents_of = screened(f16, from, 2, 2, document_codes);
        assert!(!queries.is_null() && !documents_of.is_null(), "{}", last_error());
        let work = maxsim_bench_prepare(queries, documents_of, 0, none);
        let plan = CStr::from_ptr(maxsim_bench_text(work)).to_str().unwrap();
        assert!(!plan.is_empty());
        let outputs = maxsim_bench_outputs(work, 0, 0, 0);
        let stream = maxsim_bench_stream(device, 0);
        assert_eq!(maxsim_bench_scores(outputs, to), 0, "{}", last_error());
        assert_eq!(scores, [0.0; 2], "nothing ran yet");
        let code = maxsim_bench_enqueue(stream, queries, documents_of, work, outputs);
        assert_eq!(code, 0, "{}", last_error());
        assert_eq!(maxsim_bench_scores(outputs, to), 0, "{}", last_error());
        assert_eq!(scores, [documents[0].to_f32(), 0.75]);
        assert_eq!(
            maxsim_bench_call(stream, queries, documents_of, 0, none, 0),
            0,
            "{}",
            last_error()
        );

        // What does not go together.
        assert!(maxsim_bench_outputs(work, to, 0, 0).is_null());
        assert!(last_error().contains("maxsim_bench_scores"), "{}", last_error());
        assert!(maxsim_bench_prepare_backward(work, c"owner".as_ptr()).is_null());
        assert!(last_error().contains("found a coarse-to-fine work"), "{}", last_error());
        let plain = maxsim_bench_tokens(device, f16, from, 2, 2, 2, ptr::null(), 0);
        assert!(maxsim_bench_prepare(queries, plain, 0, none).is_null());
        assert!(last_error().contains("do not go together"), "{}", last_error());
        assert_eq!(maxsim_bench_enqueue(stream, queries, plain, work, outputs), -1);
        assert!(last_error().contains("codes that find winners"), "{}", last_error());
        let fp8 = quantized(c"fp8", 0, 2, 2);
        assert!(screened(f16, from, 2, 2, fp8).is_null());
        assert!(last_error().contains("int8"), "{}", last_error());
        // A query of documents' codes.
        let confused = screened(f16, address(&query), 1, 1, document_codes);
        assert!(maxsim_bench_prepare(confused, documents_of, 0, none).is_null());
        assert!(last_error().contains("codes of queries"), "{}", last_error());
        let all = [outputs, work, queries, documents_of, plain, confused, fp8];
        for object in all.into_iter().chain([query_codes, document_codes, stream, device]) {
            maxsim_bench_free(object);
        }
    }
}

#[test]
fn residual_tokens_are_decoded_for_the_query() {
    // Two centroids of dim 4, two bits: 0.25 apart from -0.25 on. Byte 0b11_10_01_00 has the
    // buckets 0, 1, 2, 3 in little-endian order, and 3, 1, 2, 0 with the bits of each bucket
    // descending.
    let centroids = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0].map(half::f16::from_f32);
    let weights = [-0.25f32, 0.0, 0.25, 0.5];
    let (codes, residuals) = ([0i32, 1, 1], [0b11_10_01_00u8, 0b01_01_01_01, 0]);
    let query = [1.0, 0.0, 0.0, 1.0].map(half::f16::from_f32);
    let score = |order: &CStr, normalize: u64| {
        let mut scores = [f32::NAN; 3];
        let to = scores.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: live handles, and memory that outlives them.
        unsafe {
            let (device, f16) = (maxsim_bench_open(-1), c"f16".as_ptr());
            let documents = maxsim_bench_residual(
                device,
                f16,
                2,
                address(&centroids),
                2,
                4,
                address(&weights),
                address(&codes),
                address(&residuals),
                order.as_ptr(),
                3,
                1,
                normalize,
            );
            assert!(!documents.is_null(), "{}", last_error());
            let queries =
                maxsim_bench_tokens(device, f16, address(&query), 4, 1, 1, ptr::null(), 0);
            let stream = maxsim_bench_stream(device, 0);
            let none = c"".as_ptr();
            assert_eq!(maxsim_bench_call(stream, queries, documents, 0, none, to), 0);
            for object in [queries, documents, stream, device] {
                maxsim_bench_free(object);
            }
        }
        scores
    };
    // Rows 0.75 0 0.25 0.5, then 0 0 1 0, then -0.25 -0.25 0.75 -0.25: first and last element.
    assert_eq!(score(c"little-endian", 0), [1.25, 0.0, -0.5]);
    // The other order: 0b11_10_01_00 descending is 00_10_01_11 by bits: buckets 3, 1, 2, 0.
    assert_eq!(score(c"colbert", 0)[0], 1.5 - 0.25);
    let unit = score(c"little-endian", 1);
    let length = (0.75f32 * 0.75 + 0.25 * 0.25 + 0.5 * 0.5).sqrt();
    assert!((unit[0] - 1.25 / length).abs() < 1e-3, "{unit:?}");
}

#[test]
fn what_is_wrong_with_codes_is_said() {
    // SAFETY: live handles or null; the texts are C strings.
    unsafe {
        let device = maxsim_bench_open(-1);
        let make = |format: &CStr, scales: &CStr, element: &CStr| {
            let (format, scales, element) = (format.as_ptr(), scales.as_ptr(), element.as_ptr());
            let from = address(&ROWS);
            let codes =
                maxsim_bench_quantize(format, scales, element, from, 4, 1, 2, ptr::null(), 0);
            assert!(codes.is_null());
            last_error()
        };
        assert!(make(c"int4", c"f16", c"f32").contains("int4"));
        assert!(make(c"int8", c"f64", c"f32").contains("scales f64"));
        assert!(
            make(c"int8", c"tensor", c"f32").contains("int8 tokens with scales of type tensor")
        );
        assert!(make(c"int8", c"f16", c"int8").contains("element int8"));
        assert!(maxsim_bench_upload(device, device).is_null());
        assert!(last_error().contains("expected codes, found a device"), "{}", last_error());

        let (int8, fp8) = (quantized(c"int8", 0, 1, 2), quantized(c"fp8", 2, 3, 1));
        let mut bounds = [0f32; 3];
        let to = bounds.as_mut_ptr().expose_provenance() as u64;
        let (queries, documents) =
            (maxsim_bench_upload(device, int8), maxsim_bench_upload(device, fp8));
        assert!(maxsim_bench_prepare(queries, documents, 0, c"".as_ptr()).is_null());
        assert!(last_error().contains("do not go together"), "{}", last_error());
        assert_eq!(maxsim_bench_rounding_bounds(int8, queries, to), -1);
        assert!(last_error().contains("found tokens"), "{}", last_error());

        let order = c"big".as_ptr();
        let refused =
            maxsim_bench_residual(device, c"f16".as_ptr(), 2, 0, 2, 4, 0, 0, 0, order, 1, 1, 0);
        assert!(refused.is_null() && last_error().contains("order big"), "{}", last_error());
        for object in [queries, documents, int8, fp8, device] {
            maxsim_bench_free(object);
        }
    }
}
