//! Chamfer distances: every device finds the neighbours, distances and gradients that a comparison
//! of all points gives.

mod edges;
mod sorted;
mod times;

use maxsim::chamfer::{ChamferOptions, Metric, PointReduction};
use maxsim::format::ElementType;
use maxsim::{Device, Tokens};
use maxsim_tests::chamfer::{CloudCase, Lie, Points, cases, check_all};
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

#[test]
fn random_clouds() {
    Suite::run_random("chamfer", cases, check_all);
}

/// Clouds of one block and of many, of every kind and layout.
#[test]
fn clouds_of_every_kind() {
    let mut all = Vec::new();
    for points in Points::ALL {
        for (i, dim) in [1, 2, 3, 4, 8, 9, 40, 129].into_iter().enumerate() {
            let lens = [[1, 1], [1, 0], [0, 3], [700, 300], [15, 17], [257, 1000]];
            let metric = [Metric::SquaredL2, Metric::L1][i % 2];
            let element = ElementType::ALL[i % 3];
            let lie = [Lie::Packed, Lie::Masked, Lie::Overlapping][(i + dim) % 3];
            let case = CloudCase::new(dim, &lens, points);
            all.push(CloudCase { metric, element, lie, weighted: i % 2 == 0, ..case });
        }
    }
    Suite::run("chamfer_kinds", all, check_all);
}

/// Clouds that end at the borders of what a GPU's warps, CTAs and tiles have, in few dims, where
/// one comparison serves both directions: equally near points, masked ones, and such as are not
/// finite.
#[test]
fn clouds_that_end_where_tiles_do() {
    let borders = [[1, 1], [1, 40], [31, 33], [127, 129], [128, 512], [255, 257], [256, 1025]];
    let lens = [&borders[..], &[[1024, 32], [513, 1023], [0, 9]]].concat();
    let mut all = Vec::new();
    let kinds = [Points::Cube, Points::Lattice, Points::Special, Points::Converging];
    for (i, points) in kinds.into_iter().enumerate() {
        for (j, dim) in [1, 2, 3, 4, 8, 15].into_iter().enumerate() {
            let metric = [Metric::SquaredL2, Metric::L1][(i + j) % 2];
            let lie = [Lie::Packed, Lie::Masked][(i + j / 2) % 2];
            let case = CloudCase::new(dim, &lens, points);
            all.push(CloudCase { metric, lie, single_direction: j == 2 && i == 3, ..case });
        }
    }
    Suite::run("chamfer_borders", all, check_all);
}

/// The list of cases that users of other libraries expect: reductions, directions, weights.
#[test]
fn every_reduction_and_direction() {
    let mut all = Vec::new();
    let reductions =
        [PointReduction::Mean, PointReduction::Sum, PointReduction::Max, PointReduction::None];
    for reduction in reductions {
        for single_direction in [false, true] {
            for weighted in [false, true] {
                let lens = [[20, 30], [7, 0], [0, 0], [33, 64]];
                let case = CloudCase::new(3, &lens, Points::Cube);
                all.push(CloudCase { reduction, single_direction, weighted, ..case });
            }
        }
    }
    Suite::run("chamfer_reductions", all, check_all);
}

/// Clouds that nearly coincide: products of f32, let alone of f16, are wrong by factors there.
#[test]
fn converging_clouds_have_the_distance_that_they_have() {
    converging_clouds::<3>(4000);
    converging_clouds::<128>(2100);
}

fn converging_clouds<const DIM: usize>(n: usize) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut on_sphere = || {
        let mut p = [0.0f32; DIM].map(|_: f32| rng.random_range(-1.0f32..1.0));
        let length = p.iter().map(|x| x * x).sum::<f32>().sqrt();
        p.iter_mut().for_each(|x| *x /= length);
        p
    };
    let x: Vec<[f32; DIM]> = (0..n).map(|_| on_sphere()).collect();
    let moved = |p: &[f32; DIM]| {
        let by = on_sphere();
        std::array::from_fn(|k| p[k] + 1e-3 * by[k])
    };
    let y: Vec<[f32; DIM]> = x.iter().map(moved).collect();
    let squared = |p: &[f32; DIM], q: &[f32; DIM]| -> f64 {
        (0..DIM).map(|k| (f64::from(p[k]) - f64::from(q[k])).powi(2)).sum()
    };
    let mean = |a: &[[f32; DIM]], b: &[[f32; DIM]]| -> f64 {
        let least = |p| b.iter().map(|q| squared(p, q)).fold(f64::INFINITY, f64::min);
        a.iter().map(least).sum::<f64>() / n as f64
    };
    let expected = mean(&x, &y) + mean(&y, &x);
    let [x, y] = [&x, &y].map(|cloud| cloud.as_flattened().to_vec());
    let (x, y) = (Tokens::padded(&x, 1, n, DIM).unwrap(), Tokens::padded(&y, 1, n, DIM).unwrap());
    for device in all_devices() {
        let found = device.chamfer(&x, &y, &ChamferOptions::default()).unwrap();
        let value = f64::from(found.values()[0]);
        assert!((value / expected - 1.0).abs() < 1e-6, "{value} instead of {expected}");
        // And all but few go home.
        let home = |neighbours: &[i32]| {
            neighbours.iter().enumerate().filter(|&(i, &at)| i as i32 == at).count()
        };
        assert!(home(&found.x().indices) > n * 9 / 10);
    }
}

/// Clouds of several levels of boxes.
#[test]
fn large_clouds() {
    let all = [Points::Converging, Points::Scene, Points::Lattice, Points::Same]
        .map(|points| CloudCase::new(3, &[[5000, 4000]], points));
    Suite::run("chamfer_large", all, check_all);
}

/// However many threads share a call.
#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (the target has no threads)")]
fn results_do_not_depend_on_threads() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(9);
    let points: Vec<f32> = (0..3 * 3000).map(|_| rng.random_range(-1.0..1.0)).collect();
    let x = Tokens::packed(&points, 3, &[0, 2000, 2100]).unwrap();
    let y = Tokens::packed(&points, 3, &[500, 1000, 3000]).unwrap();
    let on = |n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let device = Device::cpu();
            let found = device.chamfer(&x, &y, &ChamferOptions::default()).unwrap();
            let grad = maxsim::chamfer::ChamferGrad::Values(&[1.0, -2.0]);
            let gradients = device.chamfer_backward(&x, &y, &found, grad).unwrap();
            (found.values().to_vec(), found.x().clone(), gradients)
        })
    };
    let one = on(1);
    for n_threads in [2, 3] {
        assert!(on(n_threads) == one, "{n_threads} threads");
    }
}
