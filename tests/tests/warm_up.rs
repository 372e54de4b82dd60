//! Warm-up: what is loaded, from what, and that nothing is left for the first call to load.

use std::time::{Duration, Instant};

use half::f16;
use maxsim::format::ElementType;
use maxsim::plan::{KernelSource, LoadedKernel};
use maxsim::{Device, Pairing, Tokens, WarmUp};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{is_too_long, text};
use maxsim_tests::suite::Suite;

#[test]
fn the_cpu_has_nothing_to_load() {
    let warmed = Device::cpu().warm_up(&WarmUp::default()).expect("nothing can fail");
    assert!(warmed.kernels.is_empty());
    assert_eq!(warmed.time, Duration::ZERO);
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The one test of this program that uses a device, so that nothing is loaded before it.
#[test]
fn the_first_score_comes_soon_and_warm_up_loads_the_rest() {
    Suite::run_gpu("gpu_warm_up", |suite| {
        // A query of several tiles: two kernels.
        let (queries, documents) = (vec![f16::ONE; 1024 * 128], vec![f16::ONE; 16 * 64 * 128]);
        let queries = Tokens::padded(&queries, 1, 1024, 128).map_err(text)?;
        let documents = Tokens::padded(&documents, 16, 64, 128).map_err(text)?;
        for device in cuda_devices() {
            let score = || -> Result<Duration, String> {
                let start = Instant::now();
                let scores = device.score(&queries, &documents, &Pairing::cross()).map_err(text)?;
                match scores.values().iter().all(|&score| score == 1024.0 * 128.0) {
                    true => Ok(start.elapsed()),
                    false => Err(format!("{device}: wrong scores")),
                }
            };
            let (first, second) = (score()?, score()?);
            suite.note(&format!("{device}: first score after {:.1} ms", ms(first)));
            suite.note(&format!("{device}: second score after {:.1} ms", ms(second)));
            let plan = device.plan(&queries, &documents, &Pairing::cross(), &Default::default());
            check_forward(suite, device, plan.map_err(text)?.name(), first)?;
            check_gradients(suite, device)?;
            let unknown = WarmUp::default().dims(&[4097]);
            if device.warm_up(&unknown).is_ok() {
                return Err(format!("{device} has kernels for dim 4097"));
            }
            suite.count(&device.to_string());
        }
        Ok(1)
    });
}

/// What a warm-up of all scores loads, from what, and that a second one loads nothing: `chosen` ran
/// before, and its first score took so long.
fn check_forward(
    suite: &Suite,
    device: &Device,
    chosen: &str,
    first: Duration,
) -> Result<(), String> {
    /// Where no driver has to compile. (The target is 50 ms.)
    const LIMIT: Duration = Duration::from_millis(200);
    let all = WarmUp::default();
    let warmed = device.warm_up(&all).map_err(text)?;
    let limits = device.limits().ok_or("a CUDA device has limits")?;
    let rows = all.kernels(limits).map_err(text)?;
    let rows = rows.iter().map(|row| row.name);
    let expected: Vec<&str> = rows.chain(all.auxiliary_kernels(limits)).collect();
    let found: Vec<&str> = warmed.kernels.iter().map(|kernel| kernel.name).collect();
    if found != expected {
        return Err(format!("{device}: {found:?} instead of {expected:?}"));
    }
    let n_new = warmed.kernels.iter().filter(|kernel| kernel.time.is_some()).count();
    let is_known = |name: &str| {
        warmed.kernels.iter().any(|kernel| kernel.name == name && kernel.time.is_none())
    };
    if !is_known(chosen) || n_new < found.len() - 2 {
        return Err(format!("{device}: {chosen} was loaded again, or {n_new} too few"));
    }
    let sources: Vec<KernelSource> = warmed.kernels.iter().map(|k| k.source).collect();
    let n_cubins = sources.iter().filter(|&&s| s == KernelSource::Cubin).count();
    suite.note(&format!(
        "{device}: {n_new} more kernels in {:.1} ms, {n_cubins} of {} from cubins",
        ms(warmed.time),
        found.len()
    ));
    let forced = std::env::var("MAXSIM_KERNELS").unwrap_or_default();
    let expected_cubins = match (&forced[..], limits.capability.0) {
        ("ptx", _) => 0,
        ("cubin", _) | (_, 8 | 9) => found.len(),
        _ => 0,
    };
    if n_cubins != expected_cubins {
        return Err(format!("{device}: {n_cubins} cubins, expected {expected_cubins}"));
    }
    if n_cubins == found.len() && is_too_long(first, LIMIT) {
        return Err(format!("{device}: first score after {:.1} ms", ms(first)));
    }
    // Nothing is left to load.
    let calls = WarmUp::default().elements(&[ElementType::F16]);
    for calls in [all, calls] {
        let again = device.warm_up(&calls).map_err(text)?;
        if again.kernels.iter().any(|kernel| kernel.time.is_some()) {
            return Err(format!("{device}: {again:?}"));
        }
    }
    Ok(())
}

/// Kernels of gradients are loaded where they are asked for, and not before.
fn check_gradients(suite: &Suite, device: &Device) -> Result<(), String> {
    let limits = device.limits().ok_or("a CUDA device has limits")?;
    let training = WarmUp::default().training(true);
    let warmed = device.warm_up(&training).map_err(text)?;
    let loaded = |kernel: &&LoadedKernel| kernel.time.is_some();
    let new: Vec<&str> = warmed.kernels.iter().filter(loaded).map(|kernel| kernel.name).collect();
    let loaded_before = WarmUp::default().auxiliary_kernels(limits);
    let mut wanted = training.auxiliary_kernels(limits);
    wanted.retain(|name| !loaded_before.contains(name));
    if new != wanted {
        return Err(format!("{device}: {new:?} are new, expected {wanted:?}"));
    }
    suite.note(&format!(
        "{device}: {} kernels of gradients in {:.1} ms",
        new.len(),
        ms(warmed.time)
    ));
    Ok(())
}
