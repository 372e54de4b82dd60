//! The C interface on the CPU, where addresses are the host's.

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
