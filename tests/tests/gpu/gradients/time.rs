//! The time that gradients take, beside that of others.

use std::time::Duration;

use half::f16;
use maxsim::format::ScaleType;
use maxsim::stream::Event;
use maxsim::training::GradientType;
use maxsim::{Device, Error};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{is_too_long, text};
use maxsim_tests::gradients::Step;
use maxsim_tests::saved::SavedStep;
use maxsim_tests::suite::Suite;

use super::Batch;

/// Median time of what is enqueued between two events.
pub(crate) fn median_time(
    device: &Device,
    mut enqueue: impl FnMut([&mut Event; 2]) -> Result<(), Error>,
) -> Result<Duration, String> {
    let mut time = || {
        let (mut start, mut end) = (device.event()?, device.event()?);
        enqueue([&mut start, &mut end])?;
        end.elapsed_ms(&start)
    };
    let times: Result<Vec<f32>, Error> = (0..16).map(|_| time()).collect();
    let mut times = times.map_err(text)?;
    times.sort_by(f32::total_cmp);
    Ok(Duration::from_secs_f32(times[times.len() / 2] / 1000.0))
}

/// The same of a step's gradients alone.
pub(crate) fn backward_time(step: &mut Step<f16>, device: &Device) -> Result<Duration, String> {
    step.run().map_err(text)?;
    median_time(device, |[start, end]| {
        step.stream.record(start)?;
        step.differentiate()?;
        step.stream.record(end)
    })
}

/// Batches whose gradients take long enough to be timed.
const TIMED: [Batch; 2] = [
    Batch { queries: [128, 1024], documents: [128, 1024], dim: 128, normalize: false },
    Batch { queries: [1024, 32], documents: [1024, 300], dim: 128, normalize: false },
];

/// Every winner in one row of each document takes at most one and a half times as long.
#[test]
fn hot_rows_take_little_longer() {
    Suite::run_gpu("gpu_gradient_hot_rows", |suite| {
        for device in cuda_devices() {
            for (batch, n) in TIMED.into_iter().zip(1..) {
                let mut times = [Duration::ZERO; 2];
                for (is_hot, time) in [false, true].into_iter().zip(&mut times) {
                    let mut step = batch.step(device, is_hot, GradientType::Tokens)?;
                    *time = backward_time(&mut step, device)?;
                }
                let [uniform, hot] = times;
                let figure = format!("{device} {batch:?}: {uniform:?}, {hot:?} with hot rows");
                suite.note(&figure);
                if is_too_long(hot, uniform * 3 / 2) {
                    return Err(figure);
                }
                suite.count(&format!("{device} batch {n}"));
            }
        }
        Ok(TIMED.len() * cuda_devices().len())
    });
}

/// Documents saved as codes have half the bytes to gather, and need more instructions for each.
#[test]
fn gradients_from_codes_take_about_as_long() {
    Suite::run_gpu("gpu_gradient_saved_time", |suite| {
        for device in cuda_devices() {
            for (batch, n) in TIMED.into_iter().zip(1..) {
                let element = GradientType::Tokens;
                let mut step = batch.step(device, false, element)?;
                let plain = backward_time(&mut step, device)?;
                let mut saved = SavedStep::of(step, ScaleType::F16, element).map_err(text)?;
                let from_codes = median_time(device, |[start, end]| {
                    saved.stream.record(start)?;
                    saved.differentiate()?;
                    saved.stream.record(end)
                })?;
                let figure = format!("{device} {batch:?}: {plain:?}, {from_codes:?} from codes");
                suite.note(&figure);
                // A tenth for the spread of both.
                if is_too_long(from_codes, plain * 11 / 10) {
                    return Err(figure);
                }
                suite.count(&format!("{device} batch {n}"));
            }
        }
        Ok(TIMED.len() * cuda_devices().len())
    });
}
