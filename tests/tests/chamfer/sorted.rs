//! Clouds whose points are sorted on a GPU, or selected by products: it finds what the CPU does,
//! bit for bit.

use maxsim::Device;
use maxsim::chamfer::{Chamfer, ChamferGrad, Metric};
use maxsim::format::{Element, ElementType, with_element};
use maxsim_tests::chamfer::{CloudCase, Lie, Points, clouds, same};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::suite::Suite;

#[test]
fn sorted_clouds_on_a_gpu() {
    Suite::run_gpu("gpu_chamfer_sorted", |suite| {
        let is_timed = std::env::var("MAXSIM_UNTIMED").as_deref() != Ok("1");
        let mut cases = Vec::new();
        for (i, points) in Points::ALL.into_iter().enumerate() {
            for dim in 1..=3 {
                // Whole groups of 1024 and parts of them; a pair between that is compared.
                let lens = [[20_000, 16_400], [30, 40], [16_384, 20_001]];
                let case = CloudCase::new(dim, &lens, points);
                let metric = [Metric::SquaredL2, Metric::L1][(i + dim) % 2];
                let lie = [Lie::Packed, Lie::Masked, Lie::Overlapping][(i + 2 * dim) % 3];
                let element = ElementType::ALL[(i + dim) % 3];
                let single_direction = i == 1 && dim == 2;
                cases.push(CloudCase { metric, lie, element, single_direction, ..case });
            }
        }
        cases.truncate(if is_timed { cases.len() } else { 3 });
        if is_timed {
            for points in [Points::Converging, Points::Scene, Points::Special] {
                cases.push(CloudCase::new(3, &[[150_000, 131_072]], points));
            }
        }
        for device in cuda_devices() {
            for case in &cases {
                with_element!(case.element, T => compare::<T>(device, case))
                    .map_err(|why| format!("{device}: {why}\n{case:?}"))?;
                suite.count(&device.to_string());
            }
        }
        Ok(cases.len())
    });
}

/// Blocks of points are selected by tensor cores; differences decide.
#[test]
fn selected_clouds_on_a_gpu() {
    Suite::run_gpu("gpu_chamfer_selected", |suite| {
        let is_timed = std::env::var("MAXSIM_UNTIMED").as_deref() != Ok("1");
        let mut cases = Vec::new();
        for (i, points) in Points::ALL.into_iter().enumerate() {
            for (j, dim) in [16, 100, 128, 333].into_iter().enumerate() {
                // Whole blocks of 128 and items of 256, and parts of them; a pair between that is
                // compared.
                let lens = if dim == 16 { [4200, 4100] } else { [2048, 1700] };
                let lens = [lens, [30, 40], [lens[1], lens[0] + 3]];
                let case = CloudCase::new(dim, &lens, points);
                let lie = [Lie::Packed, Lie::Masked, Lie::Overlapping][(i + j) % 3];
                let element = ElementType::ALL[(i + 2 * j) % 3];
                let single_direction = i == 1 && j == 2;
                cases.push(CloudCase { lie, element, single_direction, ..case });
            }
        }
        cases.truncate(if is_timed { cases.len() } else { 5 });
        if is_timed {
            for element in ElementType::ALL {
                let case = CloudCase::new(128, &[[20_000, 9001]], Points::Converging);
                cases.push(CloudCase { element, ..case });
            }
        }
        for device in cuda_devices() {
            for case in &cases {
                with_element!(case.element, T => compare::<T>(device, case))
                    .map_err(|why| format!("{device}: {why}\n{case:?}"))?;
                suite.count(&device.to_string());
            }
        }
        Ok(cases.len())
    });
}

/// Compares a device with the CPU, twice.
fn compare<T: Element>(device: &Device, case: &CloudCase) -> Result<(), String> {
    let [x, y] = clouds::<T>(case);
    let (x, y) = (x.tokens().map_err(text)?, y.tokens().map_err(text)?);
    let find = |device: &Device| device.chamfer(&x, &y, &case.options()).map_err(text);
    let expected = find(&Device::cpu())?;
    let ones = vec![1.0; case.lens.len()];
    let mut gradients = Vec::new();
    for _ in 0..2 {
        let found = find(device)?;
        same(expected.x(), found.x()).map_err(|why| format!("x: {why}"))?;
        if let (Some(expected), Some(found)) = (expected.y(), found.y()) {
            same(expected, found).map_err(|why| format!("y: {why}"))?;
        }
        values(&expected, &found)?;
        if case.lie != Lie::Overlapping {
            let grad = ChamferGrad::Values(&ones);
            let found = device.chamfer_backward(&x, &y, &found, grad).map_err(text)?;
            let bits = |gradient: &[f32]| gradient.iter().map(|g| g.to_bits()).collect::<Vec<_>>();
            gradients.push([bits(&found.x), bits(&found.y)]);
        }
    }
    match gradients.windows(2).all(|two| two[0] == two[1]) {
        true => Ok(()),
        false => Err("other gradients of the same clouds".into()),
    }
}

fn values(expected: &Chamfer, found: &Chamfer) -> Result<(), String> {
    for (&a, &b) in expected.values().iter().zip(found.values()) {
        if !(a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 * a.abs()) {
            return Err(format!("expected {a}, found {b}"));
        }
    }
    Ok(())
}
