//! Residual-compressed documents: scores on every engine against the oracle.

use half::f16;
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::stream::Queue;
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, Scores, TokenLayout, Tokens};
use maxsim_tests::case::Case;
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::residual::scored_cases;
use maxsim_tests::residual::scores::check_residual_case;
use maxsim_tests::suite::Suite;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

#[test]
fn random() {
    Suite::run_random("residual_scores_random", scored_cases::cases, check_residual_case);
}

#[test]
fn pairings_and_layouts() {
    let cases = scored_cases::in_every_pairing_and_layout();
    Suite::run("residual_scores_pairings_and_layouts", cases, check_residual_case);
}

#[test]
fn dims_and_lengths() {
    let mut cases = scored_cases::of_edge_dims();
    // Every width of a last tile, whole tiles before it, and more documents than a unit has.
    for first in [1, 17, 33, 49, 65, 81, 97, 113, 127, 128, 129, 250, 300] {
        let lengths: Vec<usize> = (first..first + 5).collect();
        cases.push(Case::new(128, &[32, 7], &lengths));
    }
    cases.push(Case::new(128, &[64, 200], &[100; 300]));
    cases.push(Case { document_splits: Some(3), ..Case::new(128, &[32], &[700, 20]) });
    // Many query rows, for which a device decodes documents before it scores them.
    cases.push(Case { poison: true, ..Case::new(128, &[300, 0, 260, 9], &[130; 300]) });
    for queries in [&[32, 7][..], &[100], &[300]] {
        cases.push(Case { weights: true, ..Case::new(128, queries, &[90; 70]) });
    }
    let cases = scored_cases::with_every_nbits(cases);
    Suite::run("residual_scores_dims_and_lengths", cases, check_residual_case);
}

#[test]
fn nothing_there_and_nan() {
    let cases = scored_cases::nothing_and_nan();
    Suite::run("residual_scores_nothing_there_and_nan", cases, check_residual_case);
}

fn tokens(weights: &[f32], normalize: bool) -> ResidualTokens<'static> {
    let centroids = vec![f16::from_f32(0.5), f16::ZERO, f16::ZERO, f16::from_f32(2.0)];
    let codec = ResidualCodec::new(1, 2, Centroids::F16(centroids.into()), weights, normalize);
    let layout = TokenLayout::padded(1, 2, 2).expect("a layout");
    let (codes, bytes) = (vec![0, 1], vec![0b01, 0b10]);
    let tokens = ResidualTokens::new(
        codec.expect("a codec").into(),
        codes,
        bytes,
        BitOrder::LittleEndian,
        layout,
    );
    tokens.expect("tokens")
}

/// A score worked out by hand, through the steady path: the same bits twenty times.
#[test]
fn a_score_by_hand_and_repeats() {
    for device in std::iter::once(&Device::cpu()).chain(cuda_devices()) {
        let queries = [f16::ONE, f16::from_f32(2.0)];
        let queries = Tokens::padded(&queries, 1, 1, 2).expect("a query");
        let queries = device.upload(&queries).expect("queries");
        // (0.5 + 0.25, 0 − 1) and (0 − 1, 2 + 0.25): 0.75 − 2 and −1 + 4.5.
        let documents = match device.upload_residual::<f16>(&tokens(&[-1.0, 0.25], false)) {
            Err(Error::Unsupported { .. }) if device.ordinal().is_some() => continue,
            documents => documents.expect("documents"),
        };
        let back = documents.download().map(|_| ());
        assert!(matches!(back, Err(Error::Unsupported { .. })), "{back:?}");
        let options = ScoreOptions::default().winners(true).token_scores(true);
        let cross = Pairing::cross();
        let work = device.prepare(&queries, &documents, &cross, &options).expect("work");
        let mut scores = work.new_scores().expect("scores");
        let mut stream = device.stream().expect("a stream");
        for _ in 0..20 {
            stream.score_into(&queries, &documents, &work, &mut scores).expect("a call");
            let found = scores.read().expect("scores");
            assert_eq!((found.values(), found.winners()), (&[3.5][..], Some(&[1][..])));
            assert_eq!(found.token_scores(), Some(&[3.5][..]));
        }
        // Work of residual documents takes no others.
        let plain = Tokens::padded(&[f16::ONE; 4], 1, 2, 2).expect("a document");
        let plain = device.upload(&plain).expect("documents");
        let wrong = stream.score_into(&queries, &plain, &work, &mut scores);
        assert!(matches!(wrong, Err(Error::Shape { argument: "documents", .. })), "{wrong:?}");
        // (0.75, −1) · 1 / 1.25 gives −1.25 / 1.25; (−1, 2.25) · 1 / √6.0625 gives 3.5 / √6.0625.
        let documents = device.upload_residual::<f16>(&tokens(&[-1.0, 0.25], true));
        let documents = documents.expect("documents");
        let found = device.score(&queries, &documents, &cross).expect("a score").values()[0];
        assert!((found - 3.5 / 6.0625f32.sqrt()).abs() < 1e-6, "{found}");
    }
}

/// Calls of a stream share its workspace: what one writes there is nothing to the other.
#[test]
fn scores_of_centroids_leave_other_calls_alone() {
    for device in cuda_devices() {
        let handle = |value: f32, n: usize, len: usize| {
            let values = vec![f16::from_f32(value); n * len * 2];
            device.upload(&Tokens::padded(&values, n, len, 2).expect("tokens")).expect("a handle")
        };
        // More query tiles than run at once, whose parts are added in the end. Two such queries, in
        // turns: what an earlier call has left would be wrong.
        let queries = [1.0, 2.0].map(|x| handle(x, 1, 100_000));
        let documents = handle(1.0, 3, 40);
        let (few, cross) = (handle(1.0, 1, 32), Pairing::cross());
        let residual = device.upload_residual::<f16>(&tokens(&[-1.0, 0.25], false));
        let residual = residual.expect("documents");
        let kernel = Some("maxsim_forward_sm80_residual_f16_d128_q32_by_centroid".to_string());
        let options = ScoreOptions::default().kernel(kernel.as_deref());
        let by_centroid = device.prepare(&few, &residual, &cross, &options).expect("work");
        let plain = device.prepare(&queries[0], &documents, &cross, &Default::default());
        let plain = plain.expect("work");
        let mut stream = device.stream().expect("a stream");
        let mut scores = plain.new_scores().expect("scores");
        let mut others = by_centroid.new_scores().expect("scores");
        for i in 0..6 {
            stream.score_into(&few, &residual, &by_centroid, &mut others).expect("a call");
            stream.score_into(&queries[i % 2], &documents, &plain, &mut scores).expect("a call");
            // The larger of 0.5 + 0.25 - 1 and -1 + 2 + 0.25, 32 times.
            assert_eq!(others.read().expect("scores").values(), [32.0 * 1.25]);
            let expected = [2e5, 4e5][i % 2];
            assert_eq!(scores.read().expect("scores").values(), [expected; 3]);
        }
    }
}

/// `n` documents of up to `len` tokens that random buckets and 40 centroids make, some of which are
/// masked and some shorter, and others empty.
fn many(n: usize, len: usize, dim: usize, nbits: u32, normalize: bool) -> ResidualTokens<'static> {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(7);
    let (n_centroids, rows) = (40, n * len);
    let small = |rng: &mut Xoshiro256PlusPlus| f16::from_f32(f32::from(rng.random_range(-2i8..=2)));
    let centroids: Vec<f16> = (0..n_centroids * dim).map(|_| small(rng)).collect();
    let weights: Vec<f32> = (0..1 << nbits).map(|i| (i % 4) as f32 - 2.0).collect();
    let codec =
        ResidualCodec::new(nbits, dim, Centroids::F16(centroids.into()), &weights, normalize);
    let codec = codec.expect("a codec");
    let codes: Vec<i32> = (0..rows).map(|_| rng.random_range(0..n_centroids as i32)).collect();
    let bytes: Vec<u8> = (0..rows * codec.row_bytes()).map(|_| rng.random()).collect();
    let lens: Vec<i64> = (0..n).map(|i| [len, len - 1, 0, len / 3][i * i % 5 % 4] as i64).collect();
    let layout = TokenLayout::padded(n, len, dim).expect("a layout").with_lengths(&lens);
    let layout = layout.expect("lengths");
    let tokens = ResidualTokens::new(codec.into(), codes, bytes, BitOrder::Colbert, layout);
    let mask: Vec<u8> = (0..rows).map(|_| u8::from(rng.random_range(0..9) > 0)).collect();
    tokens.expect("tokens").with_mask(mask).expect("a mask")
}

/// Documents that are decoded before they are scored, in several pieces, have the bits of those
/// that kernels decode; and of the CPU, where nothing rounds.
#[test]
fn decoded_in_pieces() {
    Suite::run_gpu("residual_scores_decoded_in_pieces", |suite| {
        let text = |error: Error| error.to_string();
        for device in cuda_devices() {
            for (dim, n, len, nbits, normalize) in [
                (128, 1200, 1000, 2, true),
                (128, 600, 1000, 4, false),
                (100, 700, 900, 1, true),
                (4096, 90, 200, 2, false),
                (4096, 90, 200, 8, true),
            ] {
                let documents = many(n, len, dim, nbits, normalize);
                let rng = &mut Xoshiro256PlusPlus::seed_from_u64(9);
                // As many rows as all kernels have in a tile: their maxima are added in one order.
                let queries: Vec<f16> = (0..64 * dim)
                    .map(|_| f16::from_f32(f32::from(rng.random_range(-2i8..=2))))
                    .collect();
                let queries = Tokens::padded(&queries, 4, 16, dim).map_err(text)?;
                let on_device = device.upload_residual::<f16>(&documents).map_err(text)?;
                let cross = Pairing::cross();
                let scores =
                    |device: &Device, documents: &DeviceTokens<_>, kernel: Option<&str>| {
                        let options = ScoreOptions::default().kernel(kernel);
                        device.score_with(&queries, documents, &cross, &options)
                    };
                let once = match dim {
                    ..=128 => "maxsim_forward_sm90_residual_f16_d128_q256",
                    _ => "maxsim_forward_sm90_residual_f16_wide_q128",
                };
                let again = match dim {
                    ..=128 => "maxsim_forward_sm90_residual_f16_d128_q64",
                    _ => "maxsim_forward_sm90_residual_f16_wide_q64_winners",
                };
                let once = match scores(device, &on_device, Some(once)) {
                    Err(Error::Unsupported { .. }) => continue,
                    found => found.map_err(text)?,
                };
                let again = scores(device, &on_device, Some(again)).map_err(text)?;
                let bits = |scores: &Scores| {
                    scores.values().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                let at = format!("{device}, dim {dim}, {nbits} bits, normalize {normalize}");
                if bits(&once) != bits(&again) {
                    return Err(format!("{at}: other bits than where kernels decode"));
                }
                if !normalize && n < 100 {
                    let cpu = Device::cpu();
                    let on_cpu = cpu.upload_residual::<f16>(&documents).map_err(text)?;
                    let expected = scores(&cpu, &on_cpu, None).map_err(text)?;
                    if once.values() != expected.values() {
                        return Err(format!("{at}: other scores than the CPU's"));
                    }
                }
                suite.count(&at);
            }
        }
        Ok(5)
    });
}

#[test]
fn what_no_kernel_takes_is_an_error() {
    for device in cuda_devices() {
        let wrong = device.upload_residual::<f32>(&tokens(&[0.0, 1.0], false)).map(|_| ());
        assert!(matches!(wrong, Err(Error::Unsupported { .. })), "{wrong:?}");
        for weight in [f32::NAN, f32::INFINITY, 1e6] {
            let wrong = device.upload_residual::<f16>(&tokens(&[0.0, weight], false));
            let wrong = wrong.map(|_| ());
            assert!(matches!(wrong, Err(Error::Shape { argument: "bucket_weights", .. })));
        }
    }
    // Rows are normalised where the codec says so.
    let options = ScoreOptions::default().normalize(true);
    let device = Device::cpu();
    let documents = device.upload_residual::<f32>(&tokens(&[0.0, 1.0], true)).expect("documents");
    let queries = Tokens::padded(&[1.0f32, 2.0], 1, 1, 2).expect("a query");
    let wrong = device.score_with(&queries, &documents, &Pairing::cross(), &options);
    assert!(matches!(wrong, Err(Error::Unsupported { .. })), "{wrong:?}");
}
