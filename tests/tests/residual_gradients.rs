//! Gradients through decoding beside central differences in f64.

use std::sync::Arc;

use maxsim::TokenLayout;
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim_tests::residual::{cases, numbers, wide};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

proptest! {
    #[test]
    fn gradients_are_central_differences(
        case in cases().prop_filter("rows of one element have no direction", |case| case.dim > 1),
    ) {
        let parts = case.parts();
        let rng = &mut SmallRng::seed_from_u64(case.seed ^ 1);
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
                prop_assert!((f - e).abs() <= 2e-4 * (1.0 + e.abs()), "{table} [{i}]: {f} is not {e}");
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
