//! Several devices that search as one: the ranking of one of them, to the bit.

use std::io;
use std::iter;
use std::sync::Mutex;

use half::f16;
use maxsim::format::{Element, ElementType};
use maxsim::streaming::{Generated, StreamOptions};
use maxsim::{Device, Devices, Error, Interrupt, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::case::{elements, tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::gradients::all_devices;
use maxsim_tests::suite::Suite;
use maxsim_tests::top_k::check;

use super::streamed::{Streamed, buffer_bytes, streamed};

/// A device several times, and all GPUs.
fn groups(device: &Device) -> Vec<Devices> {
    let mut groups: Vec<Vec<Device>> =
        [1, 2, 3, 7].map(|n| iter::repeat_n(device.clone(), n).collect()).into();
    if device.ordinal().is_some() {
        groups.push(cuda_devices().to_vec());
    }
    groups.into_iter().map(|group| Devices::new(group).expect("devices")).collect()
}

fn check_groups<T: Element>(suite: &Suite, streamed: &Streamed) -> Result<(), String> {
    let Streamed { case, k, threads, .. } = streamed;
    let data = case.data();
    let stored = [elements::<T>(&data.queries), elements::<T>(&data.documents)];
    let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
    let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
    let score = ScoreOptions::default().normalize(case.normalize);
    let cross = Pairing::cross();
    for device in all_devices() {
        let [whole, of_other] = [case.normalize, !case.normalize].map(|normalize| {
            let score = ScoreOptions::default().normalize(normalize);
            device.top_k(&queries, &documents, &cross, &score, *k)
        });
        let (whole, of_other) = (whole.map_err(text)?, of_other.map_err(text)?);
        // Chunks are cut alike on every device.
        let options = StreamOptions::default()
            .score(score.clone())
            .buffer_bytes(streamed.buffer_bytes)
            .threads(*threads);
        let one = device.search_stream(&queries, &documents, *k, &options).map_err(text)?;
        // A share may have a kernel of its own, whose sums may end in other bits.
        let is_comparable = device.ordinal().is_none() || buffer_bytes(&device, streamed) < 1 << 30;
        for devices in groups(&device) {
            let at = |what: &str, why: String| format!("{device} × {:?}, {what}: {why}", devices);
            let found = devices.search_stream(&queries, &documents, *k, &options);
            let found = found.map_err(text)?;
            check(&one.rankings, &found.rankings).map_err(|why| at("streamed", why))?;
            if (found.n_chunks, found.bytes) != (one.n_chunks, one.bytes) {
                return Err(at("streamed", "other chunks".into()));
            }
            let shards = devices.upload(&documents).map_err(text)?;
            // In turns with other calls, whose kernels are others.
            let other = score.clone().normalize(!case.normalize);
            for score in [&score, &other, &score] {
                let found = devices.top_k(&queries, &shards, score, *k).map_err(text)?;
                let whole = if score == &other { &of_other } else { &whole };
                if is_comparable {
                    check(whole, &found).map_err(|why| at("resident", why))?;
                }
            }
        }
        suite.count(&device.to_string());
    }
    Ok(())
}

#[test]
fn shares_are_merged_to_the_ranking_of_one() {
    Suite::run_random("devices_f32", || streamed(ElementType::F32), check_groups::<f32>);
    Suite::run_random_on_kernels("devices_f16", || streamed(ElementType::F16), check_groups::<f16>);
}

/// Large enough that shares have the kernel of the whole.
#[test]
fn large_shares_have_the_bits_of_the_whole() {
    Suite::run_gpu("gpu_devices", |suite| {
        let (n, len, dim) = (4000, 100, 128);
        let number = |i: usize| ((i as u64 * 2_654_435_761) % 2001) as f32 / 1000.0 - 1.0;
        let rows: Vec<f16> = (0..n * len * dim).map(|i| f16::from_f32(number(i))).collect();
        let documents = Tokens::padded(&rows, n, len, dim).map_err(text)?;
        let queries = Tokens::padded(&rows[..4 * 32 * dim], 4, 32, dim).map_err(text)?;
        let (cross, score) = (Pairing::cross(), ScoreOptions::default());
        for device in cuda_devices() {
            let whole = device.top_k(&queries, &documents, &cross, &score, 100).map_err(text)?;
            for devices in groups(device) {
                let shards = devices.upload(&documents).map_err(text)?;
                // A query alone comes between, whose kernel is another.
                let alone = queries.items(0..1).map_err(text)?;
                for n in [4, 1, 4] {
                    let some = if n == 1 { &alone } else { &queries };
                    let found = devices.top_k(some, &shards, &score, 100).map_err(text)?;
                    if n == 4 {
                        check(&whole, &found).map_err(|why| format!("{devices:?}: {why}"))?;
                    }
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// Documents of one token of one element: its number.
const N: usize = 1000;

#[test]
fn a_share_that_fails_ends_the_others() {
    let layout = TokenLayout::padded(N, 1, 1).expect("a layout");
    let query = Tokens::padded(&[1.0f32], 1, 1, 1).expect("a query");
    let options = StreamOptions::default().buffer_bytes(40).threads(2);
    for device in all_devices() {
        let devices = Devices::new([device.clone(), device.clone(), device.clone()]);
        let devices = devices.expect("devices");
        let read = Mutex::new(0);
        let source = |wrong: usize| {
            let read = &read;
            Generated::<f32, _>::new(layout.clone(), move |rows, to: &mut [f32]| {
                *read.lock().expect("the count") += rows.len();
                if rows.contains(&wrong) {
                    return Err(io::Error::other("no such row"));
                }
                rows.zip(to).for_each(|(row, x)| *x = row as f32);
                Ok(())
            })
        };
        for wrong in [0, 400, N - 1] {
            match devices.search_stream(&query, &source(wrong), 2, &options) {
                Err(Error::Source { source, .. }) => assert_eq!(source.to_string(), "no such row"),
                other => panic!("{device}: {other:?}"),
            }
        }
        *read.lock().expect("the count") = 0;
        let found = devices.search_stream(&query, &source(N), 2, &options).expect("a search");
        assert!(found.rankings[0].ranked.iter().map(|found| found.id).eq([999, 998]));
        assert_eq!(*read.lock().expect("the count"), N, "each row is read once");
        let interrupt = Interrupt::default();
        interrupt.raise();
        let call = || devices.search_stream(&query, &source(N), 2, &options);
        assert!(matches!(interrupt.heeded_by(call), Err(Error::Interrupted)));
    }
}

#[test]
fn devices_of_two_kinds_and_shards_of_others_are_refused() {
    for device in all_devices().into_iter().filter(|device| device.ordinal().is_some()) {
        assert!(Devices::new([device, Device::cpu()]).is_err());
    }
    let [one, two] = [1, 2].map(|n| Devices::new(vec![Device::cpu(); n]).expect("devices"));
    let tokens = Tokens::padded(&[1.0f32], 1, 1, 1).expect("tokens");
    let shards = two.upload(&tokens).expect("shards");
    let found = one.top_k(&tokens, &shards, &ScoreOptions::default(), 1);
    assert!(matches!(found, Err(Error::WrongDevice { .. })));
}
