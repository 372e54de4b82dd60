//! Gradients through decoding beside central differences in f64, and those of scores on every
//! engine against the oracle.

use std::sync::Arc;

use half::f16;
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::{Device, Error, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::case::Case;
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::residual::gradients::{check_residual_gradients, same_bits};
use maxsim_tests::residual::scored_cases;
use maxsim_tests::residual::{cases, numbers, wide};
use maxsim_tests::suite::Suite;
use proptest::prelude::*;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

proptest! {
    #[test]
    fn gradients_are_central_differences(
        case in cases().prop_filter("rows of one element have no direction", |case| case.dim > 1),
    ) {
        let parts = case.parts();
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(case.seed ^ 1);
        let grad = numbers(case.rows * case.dim, rng);
        let found = case.tokens(&parts).backward(&grad).unwrap();
        let (centroids, weights) = (wide(&parts.centroids), wide(&parts.weights));
        let loss = |centroids: &[f64], weights: &[f64]| -> f64 {
            let tokens = case.decoded(&parts, centroids, weights);
            tokens.iter().zip(&grad).map(|(x, &g)| x * f64::from(g)).sum()
        };
        let h = 1e-6;
        let difference = |i: usize, table: usize| {
            let moved = |by: f64| {
                let mut tables = [centroids.clone(), weights.clone()];
                tables[table][i] += by;
                loss(&tables[0], &tables[1])
            };
            (moved(h) - moved(-h)) / (2.0 * h)
        };
        prop_assert_eq!(found.centroids.len(), centroids.len());
        prop_assert_eq!(found.bucket_weights.len(), weights.len());
        // Every element of the tables is too many for large cases; a handful will do.
        for (table, gradient) in [&found.centroids, &found.bucket_weights].into_iter().enumerate() {
            for _ in 0..12 {
                let i = rng.random_range(0..gradient.len());
                let (f, e) = (f64::from(gradient[i]), difference(i, table));
                let is_close = (f - e).abs() <= 2e-4 * (1.0 + e.abs());
            prop_assert!(is_close, "{table} [{i}]: {f} is not {e}");
            }
        }
    }
}

#[test]
fn gradients_of_padding_and_of_clamped_rows() {
    // Two centroids that give rows of length 0 and one that is NaN; no gradient reaches the last.
    let centroids = Centroids::F32(vec![0.5, 0.5, f32::NAN, 0.0].into());
    let codec = Arc::new(ResidualCodec::new(1, 2, centroids, &[-0.5, 0.5], true).unwrap());
    let layout = TokenLayout::packed(3, 2, &[0i64, 3]).unwrap();
    let tokens = ResidualTokens::new(
        codec,
        vec![0i64, 1, 0],
        vec![0b00u8, 0b00, 0b11],
        BitOrder::LittleEndian,
        layout,
    )
    .unwrap();
    let r = 1e6;
    let found = tokens.backward(&[1.0, 2.0, 0.0, -0.0, 0.0, 0.0]).unwrap();
    // Where the row is clamped r is constant.
    assert!(
        (found.centroids[0] / r - 1.0).abs() < 1e-5 && (found.centroids[1] / r - 2.0).abs() < 1e-5
    );
    assert_eq!(found.centroids[2..], [0.0, 0.0]);
    assert!((found.bucket_weights[0] / r - 3.0).abs() < 1e-5);
    assert_eq!(found.bucket_weights[1], 0.0);
}

#[test]
fn of_scores_random() {
    let name = "residual_gradients_random";
    Suite::run_random(name, scored_cases::cases, check_residual_gradients);
}

#[test]
fn of_scores_in_every_pairing_and_layout() {
    let cases = scored_cases::in_every_pairing_and_layout();
    Suite::run("residual_gradients_pairings_and_layouts", cases, check_residual_gradients);
}

#[test]
fn of_scores_of_every_dim_and_many_rows() {
    let mut cases = scored_cases::of_edge_dims();
    // Several units of a centroid, and pairs in chunks.
    cases.push(Case::new(64, &[40, 64], &[50; 60]));
    cases.push(Case::new(16, &[9; 3], &[3; 300]));
    let cases = scored_cases::with_every_nbits(cases);
    Suite::run("residual_gradients_dims_and_rows", cases, check_residual_gradients);
}

#[test]
fn of_scores_of_nothing_and_nan() {
    let cases = scored_cases::nothing_and_nan();
    Suite::run("residual_gradients_nothing_and_nan", cases, check_residual_gradients);
}

/// Two windows of documents, of numbers that no sum rounds: the bits of the CPU, twenty times.
#[test]
fn of_scores_in_windows() {
    Suite::run_gpu("residual_gradients_in_windows", |suite| {
        let (dim, n_documents, len) = (4096, 45, 200);
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(5);
        let small = |n: usize, rng: &mut Xoshiro256PlusPlus| -> Vec<f16> {
            (0..n).map(|_| f16::from_f32(rng.random_range(-2i8..=2).into())).collect()
        };
        let (n_centroids, rows) = (3, n_documents * len);
        let centroids = Centroids::F16(small(n_centroids * dim, rng).into());
        let weights: Vec<f32> = (0..4i8).map(|i| f32::from(i - 2)).collect();
        let codec = ResidualCodec::new(2, dim, centroids, &weights, false).unwrap();
        let codes: Vec<i32> = (0..rows).map(|_| rng.random_range(0..n_centroids as i32)).collect();
        let bytes: Vec<u8> = (0..rows * codec.row_bytes()).map(|_| rng.random()).collect();
        let layout = TokenLayout::padded(n_documents, len, dim).unwrap();
        let tokens =
            ResidualTokens::new(Arc::new(codec), codes, bytes, BitOrder::Colbert, layout).unwrap();
        let queries = small(2 * 20 * dim, rng);
        let queries = Tokens::padded(&queries, 2, 20, dim).unwrap();
        let grads: Vec<f32> = (0..2 * n_documents).map(|i| (i % 5) as f32 - 2.0).collect();
        let (cross, options, cpu) = (Pairing::cross(), ScoreOptions::default(), Device::cpu());
        let on_cpu = cpu.upload_residual::<f16>(&tokens).unwrap();
        let text = |error: Error| error.to_string();
        let train = |device: &Device, documents| {
            device.score_residual_for_training(&queries, documents, &cross, &options)
        };
        let of_cpu = train(&cpu, &on_cpu).map_err(text)?;
        let expected = cpu.backward_residual(&queries, &on_cpu, of_cpu.with_grad(&grads));
        let expected = expected.map_err(text)?;
        for device in cuda_devices() {
            let documents = device.upload_residual::<f16>(&tokens).map_err(text)?;
            for _ in 0..20 {
                let found =
                    device.backward_residual(&queries, &documents, of_cpu.with_grad(&grads));
                if !same_bits(&found.map_err(text)?, &expected) {
                    return Err(format!("{device}: other bits than the CPU's"));
                }
            }
            suite.count(&device.to_string());
        }
        Ok(1)
    });
}
