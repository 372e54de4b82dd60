//! The time that weights of query tokens take, beside that of calls without.

use half::f16;
use maxsim::stream::Queue;
use maxsim::training::{BackwardOptions, GradientType};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{is_too_long, text};
use maxsim_tests::gradients::Step;
use maxsim_tests::suite::Suite;

use crate::gradients::numbers;
use crate::gradients::time::{backward_time, median_time};

/// Queries, tokens of each, documents, tokens of each: kernels of every schedule for f16.
const SCORED: [[usize; 4]; 6] = [
    [1, 32, 1000, 300],
    [1, 32, 10_000, 300],
    [1, 128, 1000, 1024],
    [1, 1024, 2000, 1024],
    [32, 32, 1024, 180],
    [512, 32, 1024, 300],
];

/// Training steps.
const TRAINED: [[usize; 4]; 2] = [[64, 1024, 64, 1024], [256, 32, 256, 300]];

const DIM: usize = 128;

/// Both sides, with weights of the queries or without.
fn sides(
    device: &Device,
    [n_q, q_len, n_d, d_len]: [usize; 4],
    weighted: bool,
) -> Result<[DeviceTokens<f16>; 2], String> {
    let (queries, documents) = (numbers(n_q * q_len * DIM, 1), numbers(n_d * d_len * DIM, 2));
    let weights: Vec<f32> = (0..n_q * q_len).map(|i| (i % 7) as f32 / 3.0 - 0.5).collect();
    let queries = Tokens::padded(&queries, n_q, q_len, DIM).map_err(text)?;
    let documents = Tokens::padded(&documents, n_d, d_len, DIM).map_err(text)?;
    let queries = if weighted { queries.with_weights(&weights).map_err(text)? } else { queries };
    Ok([device.upload(&queries).map_err(text)?, device.upload(&documents).map_err(text)?])
}

#[test]
fn scores_take_no_longer() {
    Suite::run_gpu("gpu_weights_time", |suite| {
        for device in cuda_devices() {
            for shape in SCORED {
                let mut times = Vec::new();
                for weighted in [false, true] {
                    let [queries, documents] = sides(device, shape, weighted)?;
                    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
                    let work = device.prepare(&queries, &documents, &cross, &options);
                    let work = work.map_err(text)?;
                    let mut scores = work.new_scores().map_err(text)?;
                    let mut stream = device.stream().map_err(text)?;
                    let time = median_time(device, |[start, end]| {
                        stream.record(start)?;
                        for _ in 0..10 {
                            stream.score_into(&queries, &documents, &work, &mut scores)?;
                        }
                        stream.record(end)
                    });
                    times.push((time?, work.plan().name().to_string()));
                }
                let [(plain, kernel), (weighted, same)] = &times[..] else { unreachable!() };
                let figure = format!(
                    "{device} {shape:?}: {kernel} {plain:?}, {same} {weighted:?} with weights, \
                     {:.4}",
                    weighted.as_secs_f64() / plain.as_secs_f64()
                );
                suite.note(&figure);
                if kernel != same || is_too_long(*weighted, *plain * 21 / 20) {
                    return Err(figure);
                }
                suite.count(&format!("{device} {kernel}"));
            }
        }
        Ok(SCORED.len() * cuda_devices().len())
    });
}

#[test]
fn gradients_take_little_longer() {
    Suite::run_gpu("gpu_weights_gradient_time", |suite| {
        for device in cuda_devices() {
            for shape in TRAINED {
                let mut times = Vec::new();
                for weighted in [false, true] {
                    let [queries, documents] = sides(device, shape, weighted)?;
                    let grads: Vec<f32> =
                        (0..shape[0] * shape[2]).map(|i| (i % 97) as f32 / 97.0).collect();
                    let (cross, options) = (Pairing::cross(), BackwardOptions::default());
                    let element = GradientType::Tokens;
                    let step =
                        Step::of(queries, documents, &cross, false, element, &options, &grads);
                    let mut step = step.map_err(text)?;
                    let backward = backward_time(&mut step, device)?;
                    let whole = median_time(device, |[start, end]| {
                        step.stream.record(start)?;
                        step.run()?;
                        step.stream.record(end)
                    })?;
                    times.push([whole, backward]);
                }
                let [plain, weighted] = &times[..] else { unreachable!() };
                let ratio = |i: usize| weighted[i].as_secs_f64() / plain[i].as_secs_f64();
                let figure = format!(
                    "{device} {shape:?}: step and gradients {plain:?}, {weighted:?} with weights, \
                     {:.4} and {:.4}",
                    ratio(0),
                    ratio(1)
                );
                suite.note(&figure);
                if is_too_long(weighted[0], plain[0] * 11 / 10) {
                    return Err(figure);
                }
                suite.count(&device.to_string());
            }
        }
        Ok(TRAINED.len() * cuda_devices().len())
    });
}
