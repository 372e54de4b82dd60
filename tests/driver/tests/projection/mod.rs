//! Scores of hidden states with the stand-in for the driver: what a call asks for. Nothing is
//! computed.

use std::time::Instant;

use half::f16;
use maxsim::projection::Projection;
use maxsim::{Device, Pairing, ScoreOptions, Tokens};

use super::stand_in::{ALLOCATIONS, CALLS, COPIES, LAUNCHES, StandIn, WAITS, in_stand_in};

/// Elements of hidden states, and of tokens.
const HIDDEN: usize = 8;
const DIM: usize = 128;

/// Documents, and slices that those are: of 60 documents, 15 MiB, but for the last.
const N_DOCUMENTS: usize = 1024;
const N_SLICES: u64 = 18;

/// Makes a call some times, and gives the number of what one asks for: of launches, allocations,
/// copies and waits.
fn counts(driver: &StandIn, name: &str, mut call: impl FnMut()) -> [u64; 4] {
    const N_CALLS: u64 = 20;
    (0..100).for_each(|_| call());
    driver.clear();
    let start = Instant::now();
    (0..N_CALLS).for_each(|_| call());
    let us = start.elapsed().as_micros() / u128::from(N_CALLS);
    let counts = [LAUNCHES, ALLOCATIONS, COPIES, WAITS].map(|index| driver.count(index));
    println!("{name}: {us} us, {} driver calls a call", driver.count(CALLS) / N_CALLS);
    counts.map(|count| count.div_ceil(N_CALLS))
}

/// Slices of one problem share a plan and one memory of results: what is not a launch is not done
/// for each.
#[test]
fn slices_are_two_launches_each_and_nothing_else() {
    in_stand_in("projection::slices_are_two_launches_each_and_nothing_else", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let upload = |n: usize, len: usize, dim: usize| {
            let rows = vec![f16::ONE; n * len * dim];
            let tokens = Tokens::padded(&rows, n, len, dim);
            device.upload(&tokens.expect("tokens")).expect("an upload")
        };
        let (weight, queries) = (upload(1, DIM, HIDDEN), upload(32, 32, DIM));
        let hidden = upload(N_DOCUMENTS, 1024, HIDDEN);
        let head = Projection::new(&weight).expect("a projection").normalize(true);
        let (cross, options) = (Pairing::cross(), ScoreOptions::default());
        let whole = counts(driver, "projected and scored", || {
            let scores = device.score_projected(&queries, &hidden, &head, &cross, &options);
            assert_eq!(scores.expect("scores").values().len(), 32 * N_DOCUMENTS);
        });
        let work = device.prepare_projected(&queries, &hidden, &head, &cross, &options);
        let mut work = work.expect("prepared work");
        let prepared = counts(driver, "prepared", || {
            assert_eq!(work.score(&queries).expect("scores").values().len(), 32 * N_DOCUMENTS);
        });
        for [launches, allocations, copies, waits] in [whole, prepared] {
            assert_eq!((launches, allocations), (2 * N_SLICES, 0));
            // Lists go once, scores come once.
            assert!(copies <= 2, "{copies} copies");
            assert!(waits <= 3, "{waits} waits");
        }
        let rows = vec![f16::ONE; 32 * 32 * DIM];
        let queries = Tokens::padded(&rows, 32, 32, DIM).expect("tokens");
        driver.check_in_order("projected documents of host queries", || {
            assert_eq!(work.score(&queries).expect("scores").values().len(), 32 * N_DOCUMENTS);
        });
    });
}
