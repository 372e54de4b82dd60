//! What calls share: the threads of a pool, and results that several works write.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use half::f16;
use maxsim::format::{ElementType, RawRows};
use maxsim::residual::{ResidualCodec, ResidualTokens, TrainOptions};
use maxsim::stream::{DeviceScores, PreparedScore, Queue};
use maxsim::training::{
    BackwardOptions, DeviceGradScores, DeviceGradients, GradientType, PreparedBackward, WithGrad,
};
use maxsim::{Device, DeviceTokens, Error, Pairing, Result, ScoreOptions, TokenLayout, Tokens};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;
use maxsim_tests::suite::Suite;

/// Work that finds winners, and its gradients.
struct Step {
    queries: DeviceTokens<f32>,
    documents: DeviceTokens<f32>,
    work: PreparedScore,
    backward: PreparedBackward,
}

impl Step {
    /// One query of so many tokens, and documents of so many tokens each.
    fn new(device: &Device, query_len: usize, document_lens: &[usize], dim: usize) -> Result<Step> {
        let n_rows: usize = document_lens.iter().sum();
        let data: Vec<f32> =
            (0..n_rows.max(query_len) * dim).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        let offsets: Vec<i64> = (0..=document_lens.len())
            .map(|n| document_lens[..n].iter().sum::<usize>() as i64)
            .collect();
        let queries =
            device.upload(&Tokens::padded(&data[..query_len * dim], 1, query_len, dim)?)?;
        let documents = device.upload(&Tokens::packed(&data[..n_rows * dim], dim, &offsets)?)?;
        let options = ScoreOptions::default().winners(true);
        let work = device.prepare(&queries, &documents, &Pairing::cross(), &options)?;
        let backward =
            device.prepare_backward(&work, &BackwardOptions::default(), GradientType::F32)?;
        Ok(Step { queries, documents, work, backward })
    }
}

thread_local! {
    /// Calls that this thread is in, each begun while it waits in the one before.
    static N_CALLS: Cell<usize> = const { Cell::new(0) };
}

/// A thread of a pool that waits for another may begin another call of the pool's meanwhile. So
/// they must not wait for each other, nor may a thread be in more and more of them.
#[test]
#[cfg_attr(target_family = "wasm", ignore = "SKIPPED (the target has no threads)")]
fn calls_of_one_pool_share_what_they_read() {
    const CALLS: usize = 2000;
    const N_THREADS: usize = 4;
    let device = Device::cpu();
    let step = Step::new(&device, 64, &[32; 32], 64).expect("step");
    let mut scores = step.work.new_scores().expect("scores");
    let mut stream = device.stream().expect("stream");
    stream.score_into(&step.queries, &step.documents, &step.work, &mut scores).expect("scores");
    let grad_scores = step.backward.upload_grad_scores(&[1.0; 32]).expect("gradients");
    let shared = Arc::new((step, scores, grad_scores));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(N_THREADS).build().expect("pool");
    let (sender, ended) = mpsc::channel();
    let deepest = Arc::new(AtomicUsize::new(0));
    for i in 0..CALLS {
        let (shared, sender, deepest) = (shared.clone(), sender.clone(), deepest.clone());
        pool.spawn(move || {
            deepest.fetch_max(N_CALLS.replace(N_CALLS.get() + 1) + 1, Ordering::Relaxed);
            let (step, scores, grad_scores) = &*shared;
            let Step { queries, documents, backward, .. } = step;
            let device = Device::cpu();
            if i % 2 == 0 {
                // Takes part in what others have begun.
                let _ = device.score(queries, documents, &Pairing::cross()).expect("scores");
            } else {
                let mut gradients = backward.new_gradients().expect("gradients");
                let mut stream = device.stream().expect("stream");
                stream
                    .backward(
                        queries,
                        documents,
                        backward,
                        scores.with_grad(grad_scores),
                        &mut gradients,
                    )
                    .expect("gradients");
            }
            let found = scores.read().expect("scores").values().len();
            N_CALLS.set(N_CALLS.get() - 1);
            sender.send(found).expect("somebody waits");
        });
    }
    for i in 0..CALLS {
        let found = ended.recv_timeout(Duration::from_secs(120));
        assert_eq!(found, Ok(32), "after {i} calls the others wait for each other");
    }
    let deepest = deepest.load(Ordering::Relaxed);
    assert!(deepest <= 2, "a thread is in {deepest} calls");
}

/// Gradients of a step, in the order of a queue.
fn gradients_of(
    queue: &mut impl Queue,
    step: &Step,
    scores: WithGrad<'_, DeviceScores, DeviceGradScores>,
    gradients: &mut DeviceGradients,
) -> Result<()> {
    queue.backward(&step.queries, &step.documents, &step.backward, scores, gradients)
}

/// Gradients of `step` from scores of other work.
fn gradients_of_other_winners(device: &Device) -> Result<()> {
    let was = Step::new(device, 2, &[3], 4)?;
    let step = Step::new(device, 2, &[1], 4)?;
    let mut scores = was.work.new_scores()?;
    let mut gradients = step.backward.new_gradients()?;
    let grad_scores = step.backward.upload_grad_scores(&[1.0])?;
    let mut stream = device.stream()?;
    let refused = |result: Result<()>| match result {
        Err(Error::Shape { argument: "scores", expected, found }) => {
            assert!(expected.contains("layouts and the pairing"), "{expected}");
            assert!(found.contains("score again"), "{found}");
        }
        other => panic!("{other:?}"),
    };
    let Step { queries, documents, work, .. } = &step;

    // No call wrote winners: there are none.
    gradients_of(&mut stream, &step, scores.with_grad(&grad_scores), &mut gradients)?;
    assert!(gradients.read()?.documents.iter().all(|&x| x == 0.0));

    stream.score_into(&was.queries, &was.documents, &was.work, &mut scores)?;
    refused(gradients_of(&mut stream, &step, scores.with_grad(&grad_scores), &mut gradients));
    refused(
        device
            .capture(|capture| {
                gradients_of(capture, &step, scores.with_grad(&grad_scores), &mut gradients)
            })
            .map(|_| ()),
    );
    // In a graph what counts is what its calls write.
    let mut whole = device.capture(|capture| {
        capture.score_into(queries, documents, work, &mut scores)?;
        gradients_of(capture, &step, scores.with_grad(&grad_scores), &mut gradients)
    })?;
    refused(gradients_of(&mut stream, &step, scores.with_grad(&grad_scores), &mut gradients));
    whole.launch(&mut stream)?;
    gradients_of(&mut stream, &step, scores.with_grad(&grad_scores), &mut gradients)?;
    let expected = gradients.read()?;
    assert!(expected.documents.iter().any(|&x| x != 0.0));

    // Equal layouts are as good as the same.
    let same = Step::new(device, 2, &[1], 4)?;
    gradients_of(&mut stream, &same, scores.with_grad(&grad_scores), &mut gradients)?;
    assert_eq!(gradients.read()?, expected);

    // A graph that reads winners which others write is given what is there: no fault, whatever it
    // is.
    let mut late = device.capture(|capture| {
        gradients_of(capture, &same, scores.with_grad(&grad_scores), &mut gradients)
    })?;
    stream.score_into(&was.queries, &was.documents, &was.work, &mut scores)?;
    late.launch(&mut stream)?;
    gradients.read().map(|_| ())
}

#[test]
fn winners_of_other_work_are_refused() {
    gradients_of_other_winners(&Device::cpu()).expect("only what is refused fails");
}

#[test]
fn winners_of_other_work_are_refused_on_gpus() {
    Suite::run_gpu("gpu_winners_of_other_work", |suite| {
        for device in cuda_devices() {
            gradients_of_other_winners(device).map_err(text)?;
            suite.count(&device.to_string());
        }
        Ok(1)
    });
}

/// Rows for sm_80 that decode documents load 16 bytes of a query row at once.
#[test]
fn residual_work_refuses_queries_that_it_cannot_load() {
    Suite::run_gpu("gpu_residual_query_rows", |suite| {
        let (n, dim) = (64, 64);
        let data: Vec<f16> = (0..2 * n * dim).map(|i| f16::from_f32((i % 13) as f32)).collect();
        let tokens = Tokens::padded(&data[..n * dim], 4, n / 4, dim).map_err(text)?;
        let options = TrainOptions::default().n_centroids(4);
        let codec = Arc::new(ResidualCodec::train(&tokens, &options).map_err(text)?);
        let compressed = ResidualTokens::encode(codec, &tokens, &options.encode).map_err(text)?;
        let layout = TokenLayout::padded(1, 8, dim).map_err(text)?;
        let mut refused = 0;
        for device in cuda_devices() {
            let documents = device.upload_residual::<f16>(&compressed).map_err(text)?;
            let memory = device.upload(&tokens).map_err(text)?;
            let view = |skipped_bytes: u64, pitch_bytes: u64| {
                let base = memory.access().base + skipped_bytes;
                // SAFETY: `memory` outlives the handle, and nothing writes to it.
                unsafe {
                    DeviceTokens::<f16>::from_raw_parts(
                        device,
                        RawRows::new(base, pitch_bytes),
                        layout.clone(),
                    )
                }
                .map_err(text)
            };
            let pitch_bytes = 2 * dim as u64;
            let aligned = view(0, pitch_bytes)?;
            let cross = Pairing::cross();
            let decodes = |row: &&Variant| row.operand == Operand::Residual(ElementType::F16);
            for row in FORWARD.iter().filter(decodes) {
                let kernel = Some(row.name.to_string());
                let options = ScoreOptions::default().kernel(kernel.as_deref());
                let Ok(work) = device.prepare(&aligned, &documents, &cross, &options) else {
                    continue;
                };
                let mut scores = work.new_scores().map_err(text)?;
                let mut stream = device.stream().map_err(text)?;
                stream.score_into(&aligned, &documents, &work, &mut scores).map_err(text)?;
                for queries in [view(2, pitch_bytes)?, view(0, pitch_bytes + 2)?] {
                    match stream.score_into(&queries, &documents, &work, &mut scores) {
                        Err(Error::Shape { argument: "queries", .. }) => refused += 1,
                        other => return Err(format!("{}: {other:?}", row.name)),
                    }
                    let captured = device.capture(|capture| {
                        capture.score_into(&queries, &documents, &work, &mut scores)
                    });
                    if captured.is_ok() {
                        return Err(format!("{}: captured", row.name));
                    }
                }
                stream.synchronize().map_err(text)?;
            }
            suite.count(&device.to_string());
        }
        Ok(refused)
    });
}
