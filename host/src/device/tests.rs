//! What tests need of devices.

use std::sync::Mutex;

use super::Device;
use crate::runtime::swap::lock;

/// Runs a test on every CUDA device, one test at a time; says so where there is none.
pub(crate) fn on_every_device(test: &str, check: impl Fn(&Device)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = lock(&TURN);
    let devices = Device::all().into_iter().filter(|device| device.ordinal().is_some());
    let n_checked = devices.inspect(&check).count();
    if n_checked == 0 {
        let is_required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!is_required, "MAXSIM_REQUIRE_GPU=1, but there is no CUDA device");
        eprintln!("SKIPPED (no CUDA device): {test}");
    }
}
