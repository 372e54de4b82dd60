//! Launches and memory of Chamfer distances.

use maxsim::chamfer::{ChamferOptions, PointReduction};
use maxsim::stream::Queue;
use maxsim::training::GradientType;
use maxsim::{Device, Tokens};

use crate::check;
use crate::stand_in::{LAUNCHES, in_stand_in};

/// A batch is two launches forward and two backward. A pair of large clouds takes eight more, or of
/// many dims two and three for each direction, or two and one and two for each, and without others
/// none that compares all points.
#[test]
fn clouds_of_all_sizes_only_enqueue() {
    in_stand_in("chamfer::clouds_of_all_sizes_only_enqueue", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        for (n, len, dim, n_launches) in
            [(32, 2048, 3, 4), (3, 20_000, 3, 3 + 3 * 8), (1, 20_000, 4, 4), (1, 100_000, 2, 3 + 8)]
                .into_iter()
                .chain([(32, 1000, 128, 4), (2, 3000, 160, 3 + 2 + 2 * 6)])
                .chain([(2, 3000, 128, 3 + 2 + 2 * 5)])
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
            let is_sorted = n_launches > 4 && dim <= 3;
            assert!(!is_sorted || needed > sorted_bytes);
            assert!(needed == 0 || n_launches > 4);
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

/// Calls in memory of the caller are the same launches; the places in it are apart.
#[test]
fn memory_of_the_caller_is_written_by_as_many_launches() {
    in_stand_in("chamfer::memory_of_the_caller_is_written_by_as_many_launches", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let points = vec![0.0f32; 4 * 100 * 3];
        let x = device.upload(&Tokens::padded(&points, 4, 100, 3).expect("shape")).expect("clouds");
        let work = device.prepare_chamfer(&x, &x, &ChamferOptions::default()).expect("work");
        let memory = work.found_memory().expect("a work of the device");
        let mut places = [memory.distances, memory.indices, memory.values, memory.len_bytes];
        places.sort();
        assert!(memory.distances.abs_diff(memory.indices) >= 4 * 800);
        assert!(places[3] == memory.len_bytes && places.iter().all(|at| at % 256 == 0));
        let mut stream = device.stream().expect("a stream");
        // SAFETY: nothing reads or writes the memory.
        unsafe {
            assert!(work.found_from_raw_unchecked((1 << 40) + 128).is_err(), "misaligned");
            let mut found = work.found_from_raw_unchecked(1 << 40).expect("room");
            let grad = work.grad_from_raw_unchecked(2 << 40).expect("gradients");
            let to = [3 << 40, 4 << 40];
            let mut to = work.gradients_from_raw_unchecked(to, GradientType::F32).expect("room");
            check(driver, "memory of the caller", |_| {
                stream.chamfer_into(&x, &x, &work, &mut found).expect("a call");
                let found = found.with_grad(&grad);
                stream.chamfer_backward(&x, &x, &work, found, &mut to).expect("a call");
            });
        }
        assert_eq!(driver.count(LAUNCHES), crate::N_CALLS * 4);
        let unreduced = ChamferOptions::default().reduction(PointReduction::None);
        let work = device.prepare_chamfer(&x, &x, &unreduced).expect("work");
        // SAFETY: as before.
        assert!(unsafe { work.grad_from_raw_unchecked(2 << 40) }.is_err(), "no values");
    });
    let cpu = Device::cpu();
    let x = cpu.upload(&Tokens::padded(&[0.0f32; 3], 1, 1, 3).expect("shape")).expect("clouds");
    let work = cpu.prepare_chamfer(&x, &x, &ChamferOptions::default()).expect("work");
    assert!(work.found_memory().is_err());
}
