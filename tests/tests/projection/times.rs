//! What scores of projected documents take on a GPU, from the call to scores on the host.

use std::time::Instant;

use half::bf16;
use maxsim::projection::Projection;
use maxsim::{Device, Pairing, ScoreOptions, Tokens};
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

/// Milliseconds of a projection whose tokens are kept, of scores, and of scores that were prepared.
fn milliseconds(device: &Device, n_queries: usize, n_documents: usize) -> Result<[f64; 3], String> {
    let numbers = |n: usize| -> Vec<bf16> {
        let number = |i: usize| bf16::from_f32((i * 7919 % 1021) as f32 / 1021.0 - 0.5);
        (0..n).map(number).collect()
    };
    let (weight, queries) = (numbers(DIM * HIDDEN), numbers(n_queries * 32 * DIM));
    let hidden = numbers(n_documents * 1024 * HIDDEN);
    let weight = Tokens::padded(&weight, 1, DIM, HIDDEN).map_err(text)?;
    let queries = Tokens::padded(&queries, n_queries, 32, DIM).map_err(text)?;
    let hidden = Tokens::padded(&hidden, n_documents, 1024, HIDDEN).map_err(text)?;
    let upload = |tokens: &Tokens<'_, bf16>| device.upload(tokens).map_err(text);
    let (weight, queries, hidden) = (upload(&weight)?, upload(&queries)?, upload(&hidden)?);
    let projection = Projection::new(&weight).map_err(text)?.normalize(true);
    let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    let work = device.prepare_projected(&queries, &hidden, &projection, &cross, &options);
    let mut work = work.map_err(text)?;
    let mut prepared = || work.score(&queries).map(drop);
    let mut kept = || device.project(&hidden, &projection).map(drop);
    let mut scored = || {
        let scores = device.score_projected(&queries, &hidden, &projection, &cross, &options);
        scores.map(drop)
    };
    let calls: [&mut dyn FnMut() -> maxsim::Result<()>; 3] =
        [&mut kept, &mut scored, &mut prepared];
    let mut times = [0.0; 3];
    for (call, time) in calls.into_iter().zip(&mut times) {
        call().map_err(text)?;
        let mut took = Vec::new();
        for _ in 0..9 {
            let start = Instant::now();
            call().map_err(text)?;
            took.push(start.elapsed().as_secs_f64() * 1e3);
        }
        took.sort_by(f64::total_cmp);
        *time = took[took.len() / 2];
    }
    Ok(times)
}
