//! Launches, waits and memory of XTR scores.

use half::f16;
use maxsim::xtr::XtrOptions;
use maxsim::{Device, Pairing, Tokens};

use crate::stand_in::{LAUNCHES, LOADS, WAITS, in_stand_in};

/// Five launches and one wait, in at most 32 MB beside the tokens; candidates, of which there is no
/// bound, are a launch less.
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
        for (pairing, n_launches) in [(Pairing::cross(), 5), (Pairing::own_candidates(8), 4)] {
            let call = || {
                let found = device.xtr(&queries, &documents, &pairing, &XtrOptions::default());
                assert_eq!(found.expect("scores").thresholds().len(), 64 * 32);
            };
            call();
            driver.clear();
            call();
            assert_eq!(driver.count(LAUNCHES), n_launches, "{pairing:?}");
            assert_eq!(driver.count(WAITS), 1, "{pairing:?}");
            assert_eq!(driver.count(LOADS), 0, "{pairing:?}");
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
