//! Searches of documents that are on a device, with the stand-in for the driver: how often they
//! wait, and what they allocate. Nothing is computed: no key is found, and scores are what was in
//! the memory before.

use std::ops::RangeInclusive;
use std::time::Instant;

use half::f16;
use maxsim::format::{Int8, RawRows, RawScaleWords, ScaleType};
use maxsim::search::{ErrorTerms, SearchOptions, SearchTokens};
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, Tokens};

use super::stand_in::{ALLOCATIONS, CALLS, LAUNCHES, StandIn, WAITS, in_stand_in};

const DIM: usize = 128;

const N_CALLS: u64 = 50;

fn numbers(n: usize) -> Vec<f16> {
    (0..n).map(|i| f16::from_f32(((i * 2_654_435_761) >> 9) as f32 % 2001.0 / 1000.0)).collect()
}

/// Makes calls, and checks how often each waits, and that it allocates nothing once some were made.
fn check(driver: &StandIn, name: &str, n_waits: RangeInclusive<u64>, mut call: impl FnMut()) {
    (0..100).for_each(|_| call());
    driver.clear();
    let start = Instant::now();
    (0..N_CALLS).for_each(|_| call());
    let us = start.elapsed().as_secs_f64() * 1e6 / N_CALLS as f64;
    let calls = driver.count(CALLS) as f64 / N_CALLS as f64;
    println!("{name}: {us:.1} us and {calls} driver calls a call");
    assert!(driver.count(LAUNCHES) >= N_CALLS, "kernels are launched");
    let waits = driver.count(WAITS);
    let wanted = n_waits.start() * N_CALLS..=n_waits.end() * N_CALLS;
    assert!(wanted.contains(&waits), "{waits} waits of {N_CALLS} calls, not {wanted:?}");
    assert_eq!(driver.count(ALLOCATIONS), 0, "allocations");
}

/// One wait where the device drives the search: for one query and few documents. Else one for few
/// scores, or one for the selection and one for scores that it does not have; and one for each
/// round: queries, lists and results have none of their own.
#[test]
fn searches_of_handles_wait_for_what_they_read() {
    in_stand_in("search::searches_of_handles_wait_for_what_they_read", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let data = numbers(2000 * 10 * DIM);
        let few = Tokens::padded(&data, 2000, 10, DIM).expect("documents");
        searches(driver, &device, &few, 1, [1..=1, 1..=1]);
        searches(driver, &device, &few, 3, [2..=2, 2..=3]);
        let many: Vec<f16> = [&data[..]; 4].concat();
        let many = Tokens::padded(&many, 80_000, 1, DIM).expect("documents");
        searches(driver, &device, &many, 1, [3..=3, 3..=4]);
    });
}

/// Searches with and without proof, of two numbers of candidates in turns, which wait so often.
fn searches(
    driver: &StandIn,
    device: &Device,
    documents: &Tokens<'_, f16>,
    n_queries: usize,
    waits: [RangeInclusive<u64>; 2],
) {
    let codes = documents.quantize::<Int8>(ScaleType::F16).expect("codes");
    let (tokens, codes) = (device.upload(documents), device.upload(&codes));
    let (tokens, codes) = (tokens.expect("a handle"), codes.expect("a handle"));
    let documents = SearchTokens::measured(&tokens, &codes).expect("bounds");
    let queries = numbers(n_queries * 32 * DIM);
    let queries = Tokens::padded(&queries, n_queries, 32, DIM).expect("queries");
    for (exact, n_waits) in [false, true].into_iter().zip(waits.clone()) {
        let options = SearchOptions::default().exact(exact);
        let name = format!("{n_queries} × {}, exact: {exact}", tokens.layout().n_items());
        let mut candidates = [64, 100].into_iter().cycle();
        check(driver, &name, n_waits, || {
            let options = options.n_candidates(candidates.next().expect("one of two"));
            let codes = queries.quantize::<Int8>(ScaleType::F32).expect("codes");
            let queries = SearchTokens::measured(&queries, &codes).expect("bounds");
            let found = device.search(&queries, &documents, 10, &options);
            // Scores by chance are not within the bounds of others.
            assert!(matches!(found, Ok(_) | Err(Error::Shape { .. })), "{found:?}");
        });
    }
}

/// A search selects by its own mask, whatever mask an earlier search of the same shape had, and
/// finds its documents on the host where that alone the device knows.
#[test]
fn searches_go_by_their_own_masks() {
    in_stand_in("search::searches_go_by_their_own_masks", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let (n, len) = (2000, 2);
        let query = numbers(32 * DIM);
        let query = Tokens::padded(&query, 1, 32, DIM).expect("queries");
        let query_codes = query.quantize::<Int8>(ScaleType::F32).expect("codes");
        let query = SearchTokens::measured(&query, &query_codes).expect("bounds");
        let data = numbers(n * len * DIM);
        let search = |documents: &SearchTokens<'_, f16, Int8>| {
            let found = device.search(&query, documents, 10, &SearchOptions::default());
            assert!(matches!(found, Ok(_) | Err(Error::Shape { .. })), "{found:?}");
        };
        let masked = |is_empty: &dyn Fn(usize) -> bool| {
            let mask: Vec<u8> = (0..n * len).map(|row| u8::from(!is_empty(row / len))).collect();
            let documents = Tokens::padded(&data, n, len, DIM).expect("documents");
            let documents = documents.with_mask(mask).expect("documents");
            let codes = documents.quantize::<Int8>(ScaleType::F16).expect("codes");
            (documents, codes)
        };
        // Masks that the device alone knows come first: the work of their scores is kept.
        let (_, codes) = masked(&|_| false);
        let terms = ErrorTerms::new(&codes);
        let layout = codes.layout().clone().with_unread_mask();
        let rows = |row_bytes| RawRows::new(1 << 20, row_bytes).mask(1 << 21);
        let scales = RawScaleWords::new(1 << 22);
        // SAFETY: nothing reads the memory.
        let (tokens, codes) = unsafe {
            (
                DeviceTokens::from_raw_unchecked(&device, rows(2 * DIM as u64), layout.clone()),
                DeviceTokens::from_raw_codes_unchecked(&device, rows(DIM as u64), scales, layout),
            )
        };
        let (tokens, codes) = (tokens.expect("a view"), codes.expect("a view"));
        search(&SearchTokens::known(&tokens, &codes, &terms).expect("a side"));
        for is_empty in [|_| false, |id| id % 7 == 3 || id % 31 == 5, |id| id % 5 == 2] {
            let (tokens, codes) = masked(&is_empty);
            let (tokens, codes) = (device.upload(&tokens), device.upload(&codes));
            let (tokens, codes) = (tokens.expect("a handle"), codes.expect("a handle"));
            search(&SearchTokens::measured(&tokens, &codes).expect("bounds"));
            // A bit for each document that has no token.
            let bit = |id| u8::from(id < n && is_empty(id));
            let byte = |first| (0..8).map(|i| bit(first + i) << i).sum();
            let bits: Vec<u8> = (0..n).step_by(8).map(byte).collect();
            assert!(driver.holds(&bits), "the selection knows what has no token");
        }
    });
}

/// One wait for all of it.
#[test]
fn rankings_of_handles_wait_once() {
    in_stand_in("search::rankings_of_handles_wait_once", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        let queries = numbers(32 * DIM);
        let queries = Tokens::padded(&queries, 1, 32, DIM).expect("queries");
        let documents = numbers(2000 * 10 * DIM);
        let documents = Tokens::padded(&documents, 2000, 10, DIM).expect("documents");
        let documents = device.upload(&documents).expect("a handle");
        check(driver, "top-k", 1..=1, || {
            let found = device.top_k(&queries, &documents, &cross, &options, 10);
            assert_eq!(found.expect("rankings").len(), 1);
        });
    });
}

/// Queries are in flight when a call begins: what divides them by their lengths, on a stream of
/// its own, waits for them as the scores do.
#[test]
fn rows_in_flight_are_not_read_before_they_are_there() {
    in_stand_in("search::rows_in_flight_are_not_read_before_they_are_there", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let data = numbers(200 * 10 * DIM);
        let documents = Tokens::padded(&data, 200, 10, DIM).expect("documents");
        let documents = device.upload(&documents).expect("a handle");
        let queries = Tokens::padded(&data[..32 * DIM], 1, 32, DIM).expect("queries");
        for normalize in [true, false, true] {
            let options = ScoreOptions::default().normalize(normalize);
            driver.check_in_order("top-k", || {
                let found = device.top_k(&queries, &documents, &Pairing::cross(), &options, 10);
                let _ = found.expect("a ranking");
            });
        }
    });
}
