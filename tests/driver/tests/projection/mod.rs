//! Scores of hidden states with the stand-in for the driver: what a call asks for. Nothing is
//! computed.

use std::time::Instant;

use half::f16;
use maxsim::projection::{ProjectedAddresses, ProjectedStep, Projection};
use maxsim::training::GradientType;
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, Tokens};

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

/// Tokens of ones on the stand-in's device.
fn ones(device: &Device, n: usize, len: usize, dim: usize) -> DeviceTokens<f16> {
    let rows = vec![f16::ONE; n * len * dim];
    let tokens = Tokens::padded(&rows, n, len, dim);
    device.upload(&tokens.expect("tokens")).expect("an upload")
}

/// Gradients that stay on the device are a dozen launches, however many rows there are; nothing is
/// read but scores, and nothing is allocated.
#[test]
fn gradients_on_the_device_are_some_launches_and_no_copies() {
    let name = "projection::gradients_on_the_device_are_some_launches_and_no_copies";
    in_stand_in(name, |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let (weight, queries) = (ones(&device, 1, DIM, HIDDEN), ones(&device, 1, 32, DIM));
        let hidden = ones(&device, N_DOCUMENTS, 1024, HIDDEN);
        let head = Projection::new(&weight).expect("a projection").normalize(true);
        let (cross, element) = (Pairing::cross(), GradientType::Tokens);
        let prepare = |gradients| {
            device.prepare_projected_training(&queries, &hidden, &head, &cross, gradients)
        };
        let mut work = prepare(element).expect("prepared work");
        let mut gradients = work.new_gradients().expect("room");
        let of_scores = work.upload_grad_scores(&[1.0; N_DOCUMENTS]).expect("an upload");
        let early = work.backward(&queries, &of_scores, &mut gradients);
        assert!(matches!(early, Err(Error::Shape { argument: "work", .. })), "{early:?}");
        assert_eq!(work.score(&queries).expect("scores").len(), N_DOCUMENTS);
        let found = counts(driver, "gradients on the device", || {
            work.backward(&queries, &of_scores, &mut gradients).expect("gradients");
        });
        let [launches, allocations, copies, waits] = found;
        assert!(launches <= 16, "{launches} launches");
        assert_eq!((allocations, copies), (0, 0));
        assert!(waits <= 2, "{waits} waits");
        driver.check_in_order("gradients through a projection", || {
            work.backward(&queries, &of_scores, &mut gradients).expect("gradients");
        });
        let mut other = prepare(GradientType::F32).expect("prepared work");
        let mut in_f32 = other.new_gradients().expect("room");
        let refused = work.backward(&queries, &of_scores, &mut in_f32);
        assert!(matches!(refused, Err(Error::Shape { argument: "gradients", .. })), "{refused:?}");
        let few = other.upload_grad_scores(&[1.0]);
        assert!(matches!(few, Err(Error::Shape { argument: "grad_scores", .. })), "{few:?}");
        drop(other.score(&queries).expect("scores"));
        other.backward(&queries, &of_scores, &mut in_f32).expect("gradients");
    });
}

/// Addresses of the caller are checked: those of gradients that there are, and their alignment.
#[test]
fn addresses_of_gradients_are_checked() {
    in_stand_in("projection::addresses_of_gradients_are_checked", |_| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let (weight, queries) = (ones(&device, 1, DIM, HIDDEN), ones(&device, 1, 32, DIM));
        let hidden = ones(&device, 3, 40, HIDDEN);
        let head = Projection::new(&weight).expect("a projection");
        let (cross, element) = (Pairing::cross(), GradientType::Tokens);
        let work = device.prepare_projected_training(&queries, &hidden, &head, &cross, element);
        let work = work.expect("prepared work");
        let room = work.new_gradients().expect("room").addresses();
        assert!(room.bias.is_none() && room.hidden.is_some());
        let at = |to: ProjectedAddresses| {
            // SAFETY: no call is given them.
            unsafe { work.gradients_from_raw_unchecked(to).map(drop) }
        };
        at(ProjectedAddresses { hidden: None, ..room }).expect("gradients but for one");
        let bias = at(ProjectedAddresses { bias: Some(room.weight), ..room });
        assert!(matches!(bias, Err(Error::Shape { argument: "bias", .. })), "{bias:?}");
        let odd = at(ProjectedAddresses { weight: room.weight + 1, ..room });
        assert!(matches!(odd, Err(Error::ForeignPointer { .. })), "{odd:?}");
        // SAFETY: it is refused.
        let odd = unsafe {
            let step = ProjectedStep {
                winners: room.weight + 2,
                grad_scores: room.weight,
                to: room,
                gradients: element,
            };
            device.backward_projected_into(&queries, &hidden, &head, &cross, &step)
        };
        assert!(matches!(odd, Err(Error::ForeignPointer { .. })), "{odd:?}");
        let cpu = Device::cpu();
        let rows = Tokens::padded(&[f16::ONE; 8], 1, 1, 8).expect("tokens");
        let head = Projection::new(&rows).expect("a projection");
        let one = Tokens::padded(&[f16::ONE], 1, 1, 1).expect("tokens");
        let cpu = cpu.prepare_projected_training(&one, &rows, &head, &cross, element).map(drop);
        assert!(matches!(cpu, Err(Error::Unsupported { .. })), "{cpu:?}");
    });
}
