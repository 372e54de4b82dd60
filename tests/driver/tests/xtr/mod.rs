//! Launches, waits and memory of XTR scores.

use half::f16;
use maxsim::xtr::XtrOptions;
use maxsim::{Device, Pairing, Tokens};

use crate::stand_in::{ALLOCATIONS, CALLS, COPIES, FILLS, LAUNCHES, LOADS, WAITS, in_stand_in};

/// Five launches, two copies and one wait, and nothing sent, filled or allocated, in at most 32 MB
/// beside the tokens.
#[test]
fn scores_wait_once() {
    in_stand_in("xtr::scores_wait_once", |driver| {
        let device = Device::cuda(0).expect("the stand-in's device");
        let upload = |n: usize, len: usize| {
            let rows = vec![f16::ZERO; n * len * 128];
            let tokens = Tokens::padded(&rows, n, len, 128).expect("shape");
            device.upload(&tokens).expect("tokens")
        };
        let (queries, documents) = (upload(64, 32), upload(512, 180));
        let used_bytes = driver.used_bytes();
        for pairing in [Pairing::cross(), Pairing::own_candidates(8)] {
            let call = || {
                let found = device.xtr(&queries, &documents, &pairing, &XtrOptions::default());
                assert_eq!(found.expect("scores").thresholds().len(), 64 * 32);
            };
            (0..3).for_each(|_| call());
            driver.clear();
            call();
            let found = [LAUNCHES, COPIES, WAITS, FILLS, ALLOCATIONS, LOADS];
            let found = found.map(|what| driver.count(what));
            println!("{pairing:?}: {} driver calls", driver.count(CALLS));
            assert_eq!(found, [5, 2, 1, 0, 0, 0], "{pairing:?}");
        }
        let rows = vec![f16::ONE; 64 * 32 * 128];
        let queries = Tokens::padded(&rows, 64, 32, 128).expect("shape");
        for normalize in [false, true] {
            let options = XtrOptions::default().normalize(normalize);
            driver.check_in_order("XTR of host queries", || {
                let found = device.xtr(&queries, &documents, &Pairing::cross(), &options);
                assert_eq!(found.expect("scores").thresholds().len(), 64 * 32);
            });
        }
        let more_bytes = driver.used_bytes() - used_bytes;
        assert!(more_bytes <= 32 << 20, "{more_bytes} bytes");
    });
}
