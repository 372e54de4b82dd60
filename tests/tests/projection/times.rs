//! What scores and gradients of projected documents take on a GPU, from the call to results on the
//! host.

use std::time::Instant;

use half::bf16;
use maxsim::projection::Projection;
use maxsim::training::GradientType;
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::suite::Suite;

/// Elements of hidden states, and of tokens.
const HIDDEN: usize = 768;
const DIM: usize = 128;

/// The cases that goals are set for: 1024 documents of 1024 rows in bf16.
#[test]
fn scores_on_a_gpu() {
    Suite::run_gpu("gpu_projection_times", |suite| {
        let is_timed = std::env::var("MAXSIM_UNTIMED").as_deref() != Ok("1");
        let n_documents = if is_timed { 1024 } else { 8 };
        for device in cuda_devices() {
            for n_queries in [32, 1] {
                let [kept, scored, prepared] = milliseconds(device, n_queries, n_documents)?;
                suite.note(&format!(
                    "{device} {n_queries} x 32 x {n_documents} x 1024, {HIDDEN} to {DIM}: \
                     projected and scored {scored:.3} ms, prepared {prepared:.3} ms, projected \
                     alone {kept:.3} ms"
                ));
                suite.count(&device.to_string());
            }
        }
        Ok(2)
    });
}

/// Gradients of one query, whose tokens choose few rows, and of more, where most rows are chosen.
#[test]
fn gradients_on_a_gpu() {
    Suite::run_gpu("gpu_projection_gradient_times", |suite| {
        let is_timed = std::env::var("MAXSIM_UNTIMED").as_deref() != Ok("1");
        for device in cuda_devices() {
            for (n_queries, n_documents) in [(1, 1024), (32, 64)] {
                let n_documents = if is_timed { n_documents } else { 4 };
                let [scored, backward, values, there] =
                    of_gradients(device, n_queries, n_documents)?;
                suite.note(&format!(
                    "{device} {n_queries} x 32 x {n_documents} x 1024, {HIDDEN} to {DIM}: scored \
                     with winners {scored:.3} ms, gradients {backward:.3} ms; made ready \
                     {values:.3} ms, gradients that stay on the device {there:.3} ms"
                ));
                suite.count(&device.to_string());
            }
        }
        Ok(2)
    });
}

/// Queries, hidden states and weight on a device.
struct Uploaded {
    queries: DeviceTokens<bf16>,
    hidden: DeviceTokens<bf16>,
    weight: DeviceTokens<bf16>,
}

impl Uploaded {
    fn new(device: &Device, n_queries: usize, n_documents: usize) -> Result<Uploaded, String> {
        let numbers = |n: usize| -> Vec<bf16> {
            let number = |i: usize| bf16::from_f32((i * 7919 % 1021) as f32 / 1021.0 - 0.5);
            (0..n).map(number).collect()
        };
        let upload = |n_items: usize, len: usize, dim: usize| {
            let numbers = numbers(n_items * len * dim);
            let tokens = Tokens::padded(&numbers, n_items, len, dim).map_err(text)?;
            device.upload(&tokens).map_err(text)
        };
        Ok(Uploaded {
            queries: upload(n_queries, 32, DIM)?,
            hidden: upload(n_documents, 1024, HIDDEN)?,
            weight: upload(1, DIM, HIDDEN)?,
        })
    }
}

/// Milliseconds of a projection whose tokens are kept, of scores, and of scores that were prepared.
fn milliseconds(device: &Device, n_queries: usize, n_documents: usize) -> Result<[f64; 3], String> {
    let Uploaded { queries, hidden, weight } = Uploaded::new(device, n_queries, n_documents)?;
    let projection = Projection::new(&weight).map_err(text)?.normalize(true);
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let work = device.prepare_projected(&queries, &hidden, &projection, &cross, &options);
    let mut work = work.map_err(text)?;
    let prepared = median(|| work.score(&queries).map(drop))?;
    let kept = median(|| device.project(&hidden, &projection).map(drop))?;
    let scored = median(|| {
        let scores = device.score_projected(&queries, &hidden, &projection, &cross, &options);
        scores.map(drop)
    })?;
    Ok([kept, scored, prepared])
}

/// Milliseconds of scores with their winners, and of gradients; and of both made ready, with
/// gradients that stay on the device.
fn of_gradients(device: &Device, n_queries: usize, n_documents: usize) -> Result<[f64; 4], String> {
    let Uploaded { queries, hidden, weight } = Uploaded::new(device, n_queries, n_documents)?;
    let projection = Projection::new(&weight).map_err(text)?.normalize(true);
    let score =
        || device.score_projected_for_training(&queries, &hidden, &projection, &Pairing::cross());
    let scores = score().map_err(text)?;
    let grad = vec![1.0; n_queries * n_documents];
    let scored = median(|| score().map(drop))?;
    let backward = median(|| {
        let with_grad = scores.with_grad(&grad);
        device.backward_projected(&queries, &hidden, &projection, with_grad).map(drop)
    })?;
    let (cross, element) = (Pairing::cross(), GradientType::Tokens);
    let work = device.prepare_projected_training(&queries, &hidden, &projection, &cross, element);
    let mut work = work.map_err(text)?;
    let mut gradients = work.new_gradients().map_err(text)?;
    let of_scores = work.upload_grad_scores(&grad).map_err(text)?;
    let values = median(|| work.score(&queries).map(drop))?;
    let there = median(|| work.backward(&queries, &of_scores, &mut gradients))?;
    Ok([scored, backward, values, there])
}

/// The median time of calls in milliseconds, after one that is not counted.
fn median(mut call: impl FnMut() -> maxsim::Result<()>) -> Result<f64, String> {
    call().map_err(text)?;
    let mut took = Vec::new();
    for _ in 0..9 {
        let start = Instant::now();
        call().map_err(text)?;
        took.push(start.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}
