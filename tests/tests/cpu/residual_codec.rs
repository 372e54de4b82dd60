//! Residual-compressed tokens: decoding beside a naive one, encoding and back.

use std::sync::Arc;

use half::{bf16, f16};
use maxsim::format::ElementType;
use maxsim::residual::{
    Arithmetic, BitOrder, Centroids, EncodeOptions, Nearest, ResidualCodec, ResidualTokens,
    TrainOptions,
};
use maxsim::{TokenLayout, Tokens};
use maxsim_tests::residual::{cases, numbers, wide};
use proptest::prelude::*;
use proptest::sample::select;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

proptest! {
    #[test]
    fn decoding_gives_what_a_naive_one_gives(case in cases()) {
        let parts = case.parts();
        let tokens = case.tokens(&parts);
        let found = tokens.decode::<f32>().unwrap();
        let expected = case.decoded(&parts, &wide(&parts.centroids), &wide(&parts.weights));
        prop_assert_eq!(found.data().len(), expected.len());
        // A sum of length up to 2 · √dim, and two products.
        let bound = 4.0 * f64::from(f32::EPSILON);
        for (i, (&f, e)) in found.data().iter().zip(expected).enumerate() {
            let error = (f64::from(f) - e).abs();
            prop_assert!(error <= bound * e.abs().max(0.1), "[{i}]: {f} is not {e}");
        }
        // Without normalisation there is one rounding.
        if !case.normalize {
            for (i, &f) in found.data().iter().enumerate() {
                let (row, k) = (i / case.dim, i % case.dim);
                let centroid = parts.centroids[parts.codes[row] as usize * case.dim + k];
                prop_assert_eq!(f, centroid + parts.weights[case.bucket(&parts, row, k)]);
            }
        }
        let rounded = tokens.decode::<f16>().unwrap();
        for (rounded, &f) in rounded.data().iter().zip(found.data()) {
            prop_assert_eq!(rounded.to_bits(), f16::from_f32(f).to_bits());
        }
    }

    #[test]
    fn the_other_order_is_the_same_tokens_in_other_bytes(case in cases()) {
        let parts = case.parts();
        let tokens = case.tokens(&parts);
        let [colbert, little] = BitOrder::ALL.map(|order| tokens.clone().into_order(order));
        let decode = |tokens: &ResidualTokens| tokens.decode::<f32>().unwrap().data().to_vec();
        let decoded = [&tokens, &colbert, &little].map(decode);
        prop_assert_eq!(&decoded[0], &decoded[1]);
        prop_assert_eq!(&decoded[0], &decoded[2]);
        prop_assert_eq!(colbert.order(), BitOrder::Colbert);
        prop_assert_eq!(little.order(), BitOrder::LittleEndian);
        let reversed: Vec<u8> = colbert.residuals().iter().map(|x| x.reverse_bits()).collect();
        prop_assert_eq!(little.residuals(), reversed);
        let back = little.into_order(case.order);
        prop_assert_eq!(back.residuals(), &parts.residuals[..]);
    }

    #[test]
    fn what_is_encoded_comes_back_within_its_bucket(
        case in cases(),
        element in select(&ElementType::ALL),
        scale in select(&[1.0f32, 1e-4, 300.0]),
        midpoints in any::<bool>(),
    ) {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(case.seed ^ 2);
        let rows: Vec<f32> =
            numbers((case.rows + 1) * case.dim, rng).into_iter().map(|x| x * scale).collect();
        let (order, nearest) = (case.order, Nearest::Distance);
        let options = EncodeOptions::default().order(order).nearest(nearest);
        let train = TrainOptions::default()
            .nbits(case.nbits)
            .n_centroids(case.n_centroids.min(case.rows + 1))
            .centroid_element(element)
            .normalize(false)
            .encode(options);
        let n_rows = case.rows + 1;
        let layout = TokenLayout::packed(n_rows, case.dim, &[0, n_rows as i64]).unwrap();
        let tokens = Tokens::from_layout(&rows, layout).unwrap();
        let mut codec = ResidualCodec::train(&tokens, &train).unwrap();
        if midpoints {
            codec = with_midpoints(&codec);
        }
        let codec = Arc::new(codec);
        let encoded = ResidualTokens::encode(codec.clone(), &tokens, &options).unwrap();
        prop_assert_eq!(encoded.layout(), tokens.layout());
        let decoded = encoded.decode::<f32>().unwrap();
        let centroids = codec.centroids().to_f32();
        let (cutoffs, weights) = (codec.bucket_cutoffs().unwrap(), codec.bucket_weights());
        for (i, (&x, &d)) in rows.iter().zip(decoded.data()).enumerate() {
            let c = centroids[encoded.codes()[i / case.dim] as usize * case.dim + i % case.dim];
            let residual = x - c;
            let bucket = cutoffs.iter().filter(|&&cutoff| cutoff < residual).count();
            // One rounding of x - c and one of c + weight.
            let slack = 2.0 * f32::EPSILON * (c.abs() + weights[bucket].abs() + residual.abs());
            prop_assert!((d - (c + weights[bucket])).abs() <= slack, "[{i}]");
            // Buckets at the ends have no width.
            if bucket == 0 || bucket == cutoffs.len() {
                continue;
            }
            let (low, high) = (cutoffs[bucket - 1], cutoffs[bucket]);
            let error = if midpoints { (high - low) / 2.0 } else { high - low };
            prop_assert!((x - d).abs() <= error + slack, "[{i}]: {x} became {d}, {error} at most");
        }
    }
}

/// The codec with every inner bucket's weight in the middle of it.
fn with_midpoints(codec: &ResidualCodec<'static>) -> ResidualCodec<'static> {
    let cutoffs = codec.bucket_cutoffs().unwrap();
    let mut weights = codec.bucket_weights().to_vec();
    for (weight, pair) in weights[1..].iter_mut().zip(cutoffs.windows(2)) {
        *weight = pair[0] + (pair[1] - pair[0]) / 2.0;
    }
    let centroids = codec.centroids().clone();
    let made = ResidualCodec::new(codec.nbits(), codec.dim(), centroids, &weights, false).unwrap();
    made.with_cutoffs(cutoffs).unwrap()
}

/// Unit rows around some centres.
fn unit_rows(n: usize, dim: usize, n_centres: usize, noise: f32, seed: u64) -> Vec<f32> {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let centres = numbers(n_centres * dim, rng);
    let mut rows = Vec::new();
    for _ in 0..n {
        let centre = &centres[rng.random_range(0..n_centres) * dim..][..dim];
        let row: Vec<f32> =
            centre.iter().map(|c| c + noise * rng.random_range(-1.0f32..1.0)).collect();
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        rows.extend(row.into_iter().map(|x| x / norm));
    }
    rows
}

fn packed(rows: &[f32], dim: usize) -> Tokens<'_, f32> {
    Tokens::packed(rows, dim, &[0, (rows.len() / dim) as i64]).unwrap()
}

/// The mean of ⟨x, decoded x⟩ over unit rows.
fn mean_cosine(rows: &[f32], decoded: &[f32], dim: usize) -> f32 {
    rows.iter().zip(decoded).map(|(x, y)| x * y).sum::<f32>() / (rows.len() / dim) as f32
}

#[test]
fn more_bits_are_nearer() {
    let dim = 64;
    let rows = unit_rows(4000, dim, 50, 0.6, 3);
    let tokens = packed(&rows, dim);
    let mut last = 0.9;
    for nbits in [1, 2, 4, 8] {
        let options = TrainOptions::default().nbits(nbits).n_centroids(64).n_iterations(3);
        let codec = ResidualCodec::train(&tokens, &options).unwrap();
        let encoded = ResidualTokens::encode(codec.into(), &tokens, &options.encode).unwrap();
        assert_eq!(encoded.size_bytes(), 4000 * (4 + u64::from(nbits) * 8));
        let cosine = mean_cosine(&rows, encoded.decode::<f32>().unwrap().data(), dim);
        assert!(cosine > last, "{nbits} bits: {cosine} is not above {last}");
        last = cosine;
    }
    assert!(last > 0.9998, "8 bits: {last}");
}

#[test]
fn spherical_and_plain_means_and_given_centroids_all_serve() {
    let dim = 32;
    let rows = unit_rows(3000, dim, 20, 0.4, 4);
    let tokens = packed(&rows, dim);
    let quality = |codec: ResidualCodec<'_>, options: &TrainOptions| {
        let encoded = ResidualTokens::encode(codec.into(), &tokens, &options.encode).unwrap();
        mean_cosine(&rows, encoded.decode::<f32>().unwrap().data(), dim)
    };
    for spherical in [false, true] {
        let options = TrainOptions::default().spherical(spherical).n_centroids(32);
        let codec = ResidualCodec::train(&tokens, &options).unwrap();
        assert_eq!((codec.n_centroids(), codec.nbits()), (32, 4));
        let centroids = codec.centroids().to_f32();
        for row in centroids.chunks(dim) {
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((length - 1.0).abs() < 1e-3, "a centroid of length {length}");
        }
        let cosine = quality(codec, &options);
        assert!(cosine > 0.99, "spherical {spherical}: {cosine}");
    }
    let options = TrainOptions::default();
    let given = Centroids::F32((&rows[..20 * dim]).into());
    let codec = ResidualCodec::fit(given, &tokens, &options).unwrap();
    assert_eq!(codec.centroids().to_f32()[..], rows[..20 * dim]);
    let cosine = quality(codec, &options);
    assert!(cosine > 0.98, "{cosine}");
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (the target has no threads)")]
fn a_seed_gives_the_same_codec_with_any_number_of_threads() {
    let dim = 16;
    let rows = unit_rows(2000, dim, 30, 0.5, 5);
    let made = |seed: u64, n_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(n_threads).build().unwrap();
        pool.install(|| {
            let tokens = packed(&rows, dim);
            let options = TrainOptions::default().seed(seed).n_centroids(48);
            let codec = Arc::new(ResidualCodec::train(&tokens, &options).unwrap());
            let encoded = ResidualTokens::encode(codec.clone(), &tokens, &options.encode).unwrap();
            let grad = encoded.backward(&rows).unwrap();
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            let tables = [
                bits(&codec.centroids().to_f32()),
                bits(codec.bucket_weights()),
                bits(codec.bucket_cutoffs().unwrap()),
                bits(&grad.centroids),
                bits(&grad.bucket_weights),
            ];
            (tables, encoded.codes().to_vec(), encoded.residuals().to_vec())
        })
    };
    let first = made(1, 1);
    assert_eq!(first, made(1, 2));
    assert_eq!(first, made(1, 5));
    assert_ne!(first.0[0], made(2, 1).0[0]);
}

#[test]
fn rows_of_zeros_and_tiny_and_huge_rows_are_encoded() {
    let dim = 8;
    let mut rows = unit_rows(600, dim, 6, 0.3, 6);
    rows[..dim].fill(0.0);
    rows[dim..2 * dim].fill(1e-30);
    rows[2 * dim..3 * dim].fill(-3e37);
    rows[3 * dim..4 * dim].fill(f32::MIN_POSITIVE / 8.0);
    let tokens = packed(&rows, dim);
    for normalize in [false, true] {
        for nearest in [Nearest::Dot, Nearest::Distance] {
            let encode = EncodeOptions::default().nearest(nearest);
            let options = TrainOptions::default()
                .nbits(8)
                .n_centroids(16)
                .centroid_element(ElementType::F32)
                .normalize(normalize)
                .encode(encode);
            let codec = ResidualCodec::train(&tokens, &options).unwrap();
            let encoded = ResidualTokens::encode(codec.into(), &tokens, &encode).unwrap();
            let decoded = encoded.decode::<f32>().unwrap();
            let case = format!("normalize {normalize}, {nearest:?}");
            assert!(decoded.data().iter().all(|x| x.is_finite()), "{case}");
            // A row of zeros has the same product with every centroid.
            if nearest == Nearest::Dot {
                assert_eq!(encoded.codes()[0], 0, "{case}");
            }
        }
    }
    // All zeros: the centroids are zeros, and so are the buckets.
    let zeros = vec![0.0f32; 20 * dim];
    let options = TrainOptions::default().n_centroids(3);
    let codec = ResidualCodec::train(&packed(&zeros, dim), &options).unwrap();
    let encoded = ResidualTokens::encode(codec.into(), &packed(&zeros, dim), &options.encode);
    let decoded = encoded.unwrap().decode::<f32>().unwrap();
    assert!(decoded.data().iter().all(|&x| x == 0.0));
}

#[test]
fn the_arithmetic_of_f16_decides_where_f32_would_not() {
    let bucket = |centroid: f32, cutoff: f32, row: f32, arithmetic| {
        let centroids = Centroids::F16(vec![f16::from_f32(centroid)].into());
        let codec = ResidualCodec::new(1, 1, centroids, &[-1.0, 1.0], false).unwrap();
        let codec = Arc::new(codec.with_cutoffs(&[cutoff]).unwrap());
        let options = EncodeOptions::default().arithmetic(arithmetic);
        let encoded = ResidualTokens::encode(codec, &packed(&[row], 1), &options).unwrap();
        encoded.residuals()[0] >> 7
    };
    let both = |centroid, cutoff, row| {
        [Arithmetic::F32, Arithmetic::F16]
            .map(|arithmetic| bucket(centroid, cutoff, row, arithmetic))
    };
    // The row is rounded to 1: what was above the cutoff is not.
    assert_eq!(both(1.0, 1e-4, 1.0 + 1.0 / 4096.0), [1, 0]);
    // Row and centroid are numbers of f16, their difference is not: it is rounded to 1 - 2⁻¹¹.
    assert_eq!(both(1.5 / 4096.0, 0.9996, 1.0), [1, 0]);
}

#[test]
fn items_padding_and_masks_stay() {
    let dim = 4;
    let rows = unit_rows(12, dim, 3, 0.2, 7);
    let with_nan = |at: usize| {
        let mut rows = rows.clone();
        rows[at * dim] = f32::NAN;
        rows
    };
    let options = TrainOptions::default().n_centroids(2);
    let check = |tokens: &Tokens<'_, f32>| {
        let codec = ResidualCodec::train(tokens, &options).unwrap();
        let encoded = ResidualTokens::encode(codec.into(), tokens, &options.encode).unwrap();
        assert_eq!((encoded.layout(), encoded.mask()), (tokens.layout(), tokens.mask()));
        let decoded = encoded.decode::<bf16>().unwrap();
        assert_eq!((decoded.layout(), decoded.mask()), (tokens.layout(), tokens.mask()));
        assert!(decoded.data().iter().all(|x| x.is_finite()));
    };
    let mut mask = [1u8; 12];
    mask[5] = 0;
    // What is behind an item's end, between items or masked need not be finite.
    let padded = with_nan(5);
    check(&Tokens::padded(&padded, 3, 4, dim).unwrap().with_lengths(&[4i64, 1, 0]).unwrap());
    check(&Tokens::padded(&padded, 3, 4, dim).unwrap().with_mask(&mask[..]).unwrap());
    let both = Tokens::padded(&padded, 3, 4, dim).unwrap().with_lengths(&[4i64, 3, 0]).unwrap();
    check(&both.with_mask(&mask[..]).unwrap());
    let front = with_nan(0);
    check(&Tokens::packed(&front, dim, &[1i64, 4, 4, 12]).unwrap());
    check(&Tokens::packed(&front, dim, &[1i64, 4, 4, 12]).unwrap().with_mask(&mask[..]).unwrap());
    check(&Tokens::scattered(&padded, dim, &[6i64, 0, 6], &[6, 5, 2]).unwrap());
    let scattered = Tokens::scattered(&rows, dim, &[6i64, 0, 6], &[6, 5, 2]).unwrap();
    check(&scattered.with_mask(&mask[..]).unwrap());
}
