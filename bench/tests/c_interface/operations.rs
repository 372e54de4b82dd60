//! Operations beside the sum of maxima.

use std::ptr;

use maxsim_bench::ffi::*;

use super::{address, last_error};

fn to<T>(values: &mut [T]) -> u64 {
    values.as_mut_ptr().expose_provenance() as u64
}

#[test]
fn chamfer_distances_and_their_gradients() {
    // On a line: 0 and 4; 1, 2 and 5.
    let (x, y) = ([0.0f32, 4.0], [1.0f32, 2.0, 5.0]);
    let (mut value, mut of_x, mut of_y) = ([f32::NAN], [-1i32; 2], [-1i32; 3]);
    let (mut grad_x, mut grad_y) = ([f32::NAN; 2], [f32::NAN; 3]);
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (device, f32) = (maxsim_bench_open(-1), c"f32".as_ptr());
        let x = maxsim_bench_tokens(device, f32, address(&x), 1, 1, 2, ptr::null(), 0);
        let y = maxsim_bench_tokens(device, f32, address(&y), 1, 1, 3, ptr::null(), 0);
        let stream = maxsim_bench_stream(device, 0);
        let step = maxsim_bench_prepare_chamfer(x, y);
        assert!(!step.is_null(), "{}", last_error());
        assert_eq!(maxsim_bench_chamfer(stream, x, y, step, 0), 0, "{}", last_error());
        assert_eq!(maxsim_bench_chamfer(stream, x, y, step, 2), 0, "{}", last_error());
        let places = [to(&mut value), to(&mut of_x), to(&mut of_y)];
        let (of_grad_x, of_grad_y) = (to(&mut grad_x), to(&mut grad_y));
        let [values, first, second] = places;
        let code = maxsim_bench_chamfer_found(step, values, first, second, of_grad_x, of_grad_y);
        assert_eq!(code, 0, "{}", last_error());
        assert_eq!((value, of_x, of_y), ([3.0], [0, 2], [0, 0, 1]));
        // Twice the gradients of the distance: the step scales by the points of the first cloud.
        assert_eq!(grad_x, [-1.0 - 2.0 / 3.0 - 4.0 / 3.0, -1.0 - 2.0 / 3.0].map(|of_x| 2.0 * of_x));
        assert_eq!(maxsim_bench_chamfer(stream, x, y, stream, 0), -1);
        assert!(last_error().contains("a step of Chamfer distances"), "{}", last_error());
        for object in [step, x, y, stream, device] {
            maxsim_bench_free(object);
        }
    }
}

#[test]
fn calls_that_wait() {
    let (query, documents) = ([1.0f32, 0.0, 0.0, 1.0], [2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0]);
    let mut scores = [f32::NAN; 2];
    let at = to(&mut scores);
    // SAFETY: live handles, and memory that outlives them.
    unsafe {
        let (device, f32) = (maxsim_bench_open(-1), c"f32".as_ptr());
        let offsets = [0i64, 1, 3];
        let query = maxsim_bench_tokens(device, f32, address(&query), 2, 1, 2, ptr::null(), 0);
        let documents =
            maxsim_bench_tokens(device, f32, address(&documents), 2, 2, 0, offsets.as_ptr(), 0);
        // The two largest of each query token: 3 and 2; 5 and 4.
        let xtr = maxsim_bench_xtr(query, documents, 2);
        assert_eq!(maxsim_bench_whole(xtr, at), 0, "{}", last_error());
        assert_eq!(scores, [2.0, (3.0 + 5.0) / 2.0]);
        let weight = [1.0f32, 0.0, 0.0, 1.0];
        let weight = maxsim_bench_tokens(device, f32, address(&weight), 2, 1, 2, ptr::null(), 0);
        for gradients in [0, 1] {
            scores = [f32::NAN; 2];
            let call = maxsim_bench_projected(query, documents, weight, gradients);
            assert_eq!(maxsim_bench_whole(call, at), 0, "{}", last_error());
            let unit = 1.0f32 / 26.0f32.sqrt();
            assert_eq!(scores[0], 1.0);
            assert!((scores[1] - (0.6 + 5.0 * unit)).abs() < 1e-6, "{scores:?}");
            maxsim_bench_free(call);
        }
        assert_eq!(maxsim_bench_whole(weight, at), -1);
        assert!(last_error().contains("a call that waits"), "{}", last_error());
        for object in [xtr, query, documents, weight, device] {
            maxsim_bench_free(object);
        }
    }
}
