//! Launches and memory of Chamfer distances.

use maxsim::chamfer::ChamferOptions;
use maxsim::stream::Queue;
use maxsim::training::GradientType;
use maxsim::{Device, Tokens};

use crate::check;
use crate::stand_in::{LAUNCHES, in_stand_in};

/// A batch is two launches forward and two backward. A pair of large clouds takes eight more, and
/// without others none that compares all points.
#[test]
fn clouds_of_all_sizes_only_enqueue() {
    in_stand_in("chamfer::clouds_of_all_sizes_only_enqueue", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        for (n, len, dim, n_launches) in
            [(32, 2048, 3, 4), (3, 20_000, 3, 3 + 3 * 8), (1, 20_000, 4, 4), (1, 100_000, 2, 3 + 8)]
        {
            let points = vec![0.0f32; n * len * dim];
            let points = Tokens::padded(&points, n, len, dim).expect("shape");
            let x = device.upload(&points).expect("clouds");
            let work = device.prepare_chamfer(&x, &x, &ChamferOptions::default()).expect("work");
            let mut found = work.new_found().expect("room");
            let grad = work.upload_grad(&vec![1.0; n]).expect("gradients");
            let mut gradients = work.new_gradients(GradientType::F32).expect("room");
            let mut stream = device.stream().expect("a stream");
            let needed = work.workspace_bytes();
            let sorted_bytes = 33 * 2 * len as u64;
            let is_sorted = n_launches > 4;
            assert!(is_sorted == (needed > 0) && (!is_sorted || needed > sorted_bytes));
            let name = format!("{n} clouds of {len} points of dim {dim}");
            check(driver, &name, |_| {
                stream.chamfer_into(&x, &x, &work, &mut found).expect("a call");
                let found = found.with_grad(&grad);
                stream.chamfer_backward(&x, &x, &work, found, &mut gradients).expect("a call");
            });
            assert_eq!(driver.count(LAUNCHES), crate::N_CALLS * n_launches, "{name}");
            if is_sorted {
                // SAFETY: nothing reads or writes the memory.
                unsafe { stream.set_workspace(1 << 40, needed - 1) }.expect("a workspace");
                let refused = stream.chamfer_into(&x, &x, &work, &mut found);
                assert!(refused.is_err(), "one byte is missing");
            }
        }
    });
}
