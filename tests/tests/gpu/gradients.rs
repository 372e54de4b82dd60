//! Gradients on a GPU, at sizes that fill it: the same bits every time, rows that everybody
//! chose, whole steps as graphs, and the memory that they take.

use std::time::Duration;

use half::f16;
use maxsim::format::{Int8, RawScales, ScaleType, Scales};
use maxsim::stream::{Event, Queue};
use maxsim::training::{
    BackwardOptions, BackwardStrategy, DeviceGradients, GradientType, Gradients,
};
use maxsim::{Device, DeviceTokens, Error, Pairing, Tokens};
use maxsim_tests::case::{Case, Pairs};
use maxsim_tests::engines::{Problem, cuda_devices};
use maxsim_tests::gpu::{free_bytes, is_too_long, text};
use maxsim_tests::gradients::{
    ATOMIC_DISTANCE_MAX, Step, check, grad_scores, gradients, relative_distances, same_bits,
};
use maxsim_tests::saved::{SCALES, SavedStep};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

/// Token numbers that any two of which differ: unit rows would do, but take longer to generate.
fn numbers(n: usize, seed: u64) -> Vec<f16> {
    let mut state = seed;
    let mut number = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..n).map(|_| number()).collect()
}

/// Sides of a cross product of f16 tokens: items, and tokens of each.
#[derive(Clone, Copy, Debug)]
struct Batch {
    queries: [usize; 2],
    documents: [usize; 2],
    dim: usize,
    normalize: bool,
}

impl Batch {
    fn step(
        &self,
        device: &Device,
        is_hot: bool,
        element: GradientType,
    ) -> Result<Step<f16>, String> {
        self.step_by(&BackwardOptions::default(), device, is_hot, element)
    }

    fn step_by(
        &self,
        options: &BackwardOptions,
        device: &Device,
        is_hot: bool,
        element: GradientType,
    ) -> Result<Step<f16>, String> {
        let Batch { queries: [n_q, q_len], documents: [n_d, d_len], dim, normalize } = *self;
        let mut queries = numbers(n_q * q_len * dim, 1);
        let mut documents = numbers(n_d * d_len * dim, 2);
        if is_hot {
            // Every query token has a 1 where the first token of every document has 1000.
            queries.iter_mut().step_by(dim).for_each(|x| *x = f16::ONE);
            documents.iter_mut().step_by(dim * d_len).for_each(|x| *x = f16::from_f32(1000.0));
        }
        // Where more than 10⁵ terms go to a row, those of both signs would cancel out to a fifth of
        // what is added, and the owner's sum, of f32 numbers too, be 2 · 10⁻⁶ of it from exact.
        let least = if n_q * q_len > 100_000 { 0.1 } else { -0.4 };
        let grads: Vec<f32> = (0..n_q * n_d).map(|i| (i % 97) as f32 / 97.0 + least).collect();
        let queries = Tokens::padded(&queries, n_q, q_len, dim).map_err(text)?;
        let documents = Tokens::padded(&documents, n_d, d_len, dim).map_err(text)?;
        let queries = device.upload(&queries).map_err(text)?;
        let documents = device.upload(&documents).map_err(text)?;
        let cross = Pairing::cross();
        Step::of(queries, documents, &cross, normalize, element, options, &grads).map_err(text)
    }

    /// Bytes of device memory that a step and three runs of it take, all that there is of it.
    fn memory(
        &self,
        options: &BackwardOptions,
        device: &Device,
        element: GradientType,
    ) -> Result<u64, String> {
        let taken = |n: usize| {
            let before = free_bytes(device)?;
            let mut step = self.step_by(options, device, false, element)?;
            (0..n).try_for_each(|_| step.run()).map_err(text)?;
            step.gradients.read().map_err(text)?;
            Ok::<u64, String>(before.saturating_sub(free_bytes(device)?))
        };
        // Kernels are loaded, and what uploads need is there.
        taken(1)?;
        taken(3)
    }
}

/// In one group of winners, in several, of one column and of many, with few rows of queries.
const BATCHES: [Batch; 9] = [
    Batch { queries: [64, 128], documents: [64, 300], dim: 128, normalize: false },
    Batch { queries: [300, 32], documents: [600, 180], dim: 128, normalize: false },
    Batch { queries: [4, 200], documents: [30, 3000], dim: 96, normalize: false },
    Batch { queries: [16, 100], documents: [16, 100], dim: 1024, normalize: false },
    Batch { queries: [1, 32], documents: [3000, 64], dim: 64, normalize: false },
    Batch { queries: [64, 128], documents: [64, 300], dim: 128, normalize: true },
    Batch { queries: [16, 100], documents: [16, 100], dim: 1024, normalize: true },
    Batch { queries: [1, 32], documents: [3000, 64], dim: 64, normalize: true },
    // As many tokens as a batch of 128 page images has, all of which choose one row where it is
    // hot.
    Batch { queries: [128, 1024], documents: [2, 64], dim: 128, normalize: false },
];

#[test]
fn twenty_steps_give_the_same_bits() {
    Suite::run_gpu("gpu_gradient_repeats", |suite| {
        for device in cuda_devices() {
            for batch in BATCHES {
                for is_hot in [false, true] {
                    let mut step = batch.step(device, is_hot, GradientType::F32)?;
                    let mut first: Option<Gradients> = None;
                    for i in 0..20 {
                        step.run().map_err(text)?;
                        let found = step.gradients.read().map_err(text)?;
                        if !same_bits(first.get_or_insert_with(|| found.clone()), &found) {
                            return Err(format!("{device} {batch:?}: step {i} differs"));
                        }
                    }
                    suite.count(&device.to_string());
                }
            }
        }
        Ok(cuda_devices().len() * BATCHES.len() * 2)
    });
}

#[test]
fn sums_of_many_winners_agree_with_the_oracle() {
    Suite::run_gpu("gpu_gradient_sums", |suite| {
        let mut n_cases = 0;
        let lens = |n: usize, len: usize| vec![len; n];
        for (pairs, queries, documents) in [
            (Pairs::Cross, lens(40, 130), vec![300, 0, 7, 1, 512]),
            (Pairs::Cross, lens(3, 3000), lens(4, 40)),
            (Pairs::Cross, lens(120, 33), lens(2, 5000)),
            (Pairs::Own { k: 8 }, lens(30, 32), lens(240, 180)),
            (Pairs::Candidates { k: 20 }, lens(50, 17), lens(30, 70)),
            (Pairs::List { n: 900 }, vec![5, 300, 0, 64, 17], vec![100, 3, 2100, 0]),
        ] {
            for values in [Values::Integers, Values::Unit] {
                let case = Case { pairs, values, ..Case::new(24, &queries, &documents) };
                let problem = Problem::<f32>::new(&case);
                let grads = grad_scores(&problem.data, 3);
                for device in cuda_devices() {
                    // Those that the first strategy saves.
                    let mut saved = None;
                    for strategy in [
                        BackwardStrategy::Deterministic,
                        BackwardStrategy::Recompute,
                        BackwardStrategy::Atomic,
                    ] {
                        let options = BackwardOptions::new(strategy);
                        let element = GradientType::F32;
                        let mut step =
                            Step::new(&problem, device, element, &options, &grads).map_err(text)?;
                        step.run().map_err(text)?;
                        let scores = step.scores.read().map_err(text)?;
                        saved = saved.or(scores.winners().map(<[i32]>::to_vec));
                        let winners = saved.as_ref().ok_or("no winners")?;
                        let expected = gradients(&problem.data, winners, &grads);
                        let found = step.gradients.read().map_err(text)?;
                        check(&problem.data, &expected, &found)
                            .map_err(|why| format!("{device} {strategy:?}: {why}\n{case:?}"))?;
                        suite.count(&format!("{device} {strategy:?}"));
                    }
                }
                n_cases += 1;
            }
        }
        Ok(n_cases)
    });
}

/// Winners of one document in several passes, which fit the workspace one at a time.
#[test]
fn a_document_with_more_winners_than_the_workspace_holds() {
    Suite::run_gpu("gpu_gradient_passes", |suite| {
        // 4.2 million winners of each of two documents.
        let batch = Batch { queries: [65_536, 64], documents: [2, 33], dim: 8, normalize: false };
        for device in cuda_devices() {
            let mut read = Vec::new();
            for element in [GradientType::F32, GradientType::Tokens] {
                let mut step = batch.step(device, false, element)?;
                step.run().map_err(text)?;
                read.push(step.gradients.read().map_err(text)?);
            }
            let magnitude = read[0].documents.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (x, rounded) in read[0].documents.iter().zip(&read[1].documents) {
                // Sums of passes are added in f32 either way, in the same order.
                if f16::from_f32(*x).to_f32() != *rounded {
                    return Err(format!("{device}: {x} became {rounded}, up to {magnitude}"));
                }
            }
            if magnitude == 0.0 {
                return Err(format!("{device}: all gradients are 0"));
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

#[test]
fn a_step_as_a_graph_gives_what_calls_give() {
    Suite::run_gpu("gpu_gradient_graph", |suite| {
        for device in cuda_devices() {
            for batch in BATCHES {
                let mut direct = batch.step(device, false, GradientType::Tokens)?;
                let mut captured = batch.step(device, false, GradientType::Tokens)?;
                let mut graph = captured.capture().map_err(text)?;
                let n_scores = batch.queries[0] * batch.documents[0];
                let mut stream = device.stream().map_err(text)?;
                for round in 0..3 {
                    let grads: Vec<f32> =
                        (0..n_scores).map(|i| ((i + round) % 13) as f32 - 6.0).collect();
                    direct.grad_scores.write(&grads).map_err(text)?;
                    captured.grad_scores.write(&grads).map_err(text)?;
                    direct.run().map_err(text)?;
                    graph.launch(&mut stream).map_err(text)?;
                    let expected = direct.gradients.read().map_err(text)?;
                    if !same_bits(&expected, &captured.gradients.read().map_err(text)?) {
                        return Err(format!("{device} {batch:?}: launch {round} differs"));
                    }
                }
                suite.count(&device.to_string());
            }
        }
        Ok(cuda_devices().len() * BATCHES.len())
    });
}

/// The kernel for few winners begins before the scores are there: it must wait for them.
#[test]
fn a_step_waits_for_the_scores_right_before_it() {
    const N: usize = 128;
    const K: usize = 8;
    const LEN: usize = 180;
    const DIM: usize = 128;
    Suite::run_gpu("gpu_gradient_order", |suite| {
        for device in cuda_devices() {
            let upload = |seed| {
                let queries = numbers(N * 32 * DIM, seed);
                let documents = numbers(N * K * LEN * DIM, seed + 1);
                let queries = device.upload(&Tokens::padded(&queries, N, 32, DIM)?)?;
                let documents = device.upload(&Tokens::padded(&documents, N * K, LEN, DIM)?)?;
                Ok::<_, Error>((queries, documents))
            };
            let (queries, documents) = upload(1).map_err(text)?;
            let mut others = upload(3).map_err(text)?;
            let own = Pairing::own_candidates(K);
            let grads: Vec<f32> = (0..N * K).map(|i| (i % 97) as f32 / 97.0 - 0.4).collect();
            let options = BackwardOptions::default();
            let element = GradientType::Tokens;
            let mut step = Step::of(queries, documents, &own, false, element, &options, &grads)
                .map_err(text)?;
            let mut graph = step.capture().map_err(text)?;
            let mut expected = Vec::new();
            for _ in 0..2 {
                step.run().map_err(text)?;
                expected.push(step.gradients.read().map_err(text)?);
                std::mem::swap(&mut step.queries, &mut others.0);
                std::mem::swap(&mut step.documents, &mut others.1);
            }
            for round in 0..60 {
                // All of them on one stream, and nothing waits in between.
                for i in 0..=round % 3 {
                    if round % 2 == 1 && i % 2 == 0 {
                        graph.launch(&mut step.stream).map_err(text)?;
                    }
                    step.run().map_err(text)?;
                    expected.swap(0, 1);
                    std::mem::swap(&mut step.queries, &mut others.0);
                    std::mem::swap(&mut step.documents, &mut others.1);
                }
                if !same_bits(&expected[1], &step.gradients.read().map_err(text)?) {
                    return Err(format!("{device}: round {round} is not of its own scores"));
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// Whatever the order in which rows are added to, and as a graph, too.
#[test]
fn atomic_sums_are_close_to_the_owners() {
    Suite::run_gpu("gpu_gradient_atomic", |suite| {
        for device in cuda_devices() {
            for batch in BATCHES {
                for is_hot in [false, true] {
                    let mut owner = batch.step(device, is_hot, GradientType::F32)?;
                    owner.run().map_err(text)?;
                    let expected = owner.gradients.read().map_err(text)?;
                    let options = BackwardOptions::new(BackwardStrategy::Atomic);
                    let step = |element| batch.step_by(&options, device, is_hot, element);
                    let mut atomic = step(GradientType::F32)?;
                    let mut graph = atomic.capture().map_err(text)?;
                    for run in ["called", "launched"] {
                        match run {
                            "called" => atomic.run().map_err(text)?,
                            _ => graph.launch(&mut atomic.stream).map_err(text)?,
                        }
                        let found = atomic.gradients.read().map_err(text)?;
                        let distances = relative_distances(&expected, &found);
                        let what =
                            format!("{device} {batch:?}, hot {is_hot}, {run}: {distances:?}");
                        if !distances.iter().all(|distance| *distance <= ATOMIC_DISTANCE_MAX) {
                            return Err(format!("{what}, at most {ATOMIC_DISTANCE_MAX:e}"));
                        }
                        suite.note(&what);
                    }
                    // The others' are more than an f16 holds.
                    if !is_hot {
                        let mut narrow = step(GradientType::Tokens)?;
                        narrow.run().map_err(text)?;
                        let found = narrow.gradients.read().map_err(text)?;
                        let rounded = Gradients {
                            queries: expected.queries.iter().map(|&x| through_f16(x)).collect(),
                            documents: expected.documents.iter().map(|&x| through_f16(x)).collect(),
                        };
                        let distances = relative_distances(&rounded, &found);
                        // Now and then a sum is rounded to the next number.
                        if !distances.iter().all(|distance| *distance <= 1e-4) {
                            return Err(format!(
                                "{device} {batch:?}, hot {is_hot}: f16 {distances:?}"
                            ));
                        }
                    }
                    suite.count(&device.to_string());
                }
            }
        }
        Ok(cuda_devices().len() * BATCHES.len() * 2)
    });
}

fn through_f16(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// Beyond tokens, scores, winners and gradients: the documents' gradient in f32 where it is asked
/// for in f16, and nothing of its size where it is f32.
#[test]
fn an_atomic_step_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_atomic_memory", |suite| {
        let batch =
            Batch { queries: [64, 1024], documents: [64, 1024], dim: 128, normalize: false };
        for device in cuda_devices() {
            for element in [GradientType::F32, GradientType::Tokens] {
                let (matrix, n_rows) = (64 * 1024 * 128, 64 * 1024);
                let gradients = 2 * matrix * if element == GradientType::F32 { 4 } else { 2 };
                let sums = matrix * if element == GradientType::F32 { 0 } else { 4 };
                let winners = 64 * n_rows * 2;
                let taken = batch.memory(
                    &BackwardOptions::new(BackwardStrategy::Atomic),
                    device,
                    element,
                )?;
                let beyond = taken.saturating_sub(2 * matrix * 2 + gradients + winners);
                let figure = format!("{device}: {beyond} bytes for {element:?} gradients");
                suite.note(&figure);
                // The parts of queries' sums and of scores, and the allocator takes 2 MB at a time.
                if beyond > sums + (13 << 20) {
                    return Err(figure);
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// Winners that are found again are never all there: as many as are asked for, and where gradients
/// are not f32, that of the documents in f32.
#[test]
fn a_step_that_finds_winners_again_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_recompute_memory", |suite| {
        let side = [512, 256];
        let batch = Batch { queries: side, documents: side, dim: 128, normalize: false };
        let at_once = 8 << 20;
        let options = BackwardOptions::new(BackwardStrategy::Recompute).winner_bytes(at_once);
        for device in cuda_devices() {
            for element in [GradientType::F32, GradientType::Tokens] {
                let matrix = 512 * 256 * 128;
                let gradients = 2 * matrix * if element == GradientType::F32 { 4 } else { 2 };
                let sums = matrix * if element == GradientType::F32 { 0 } else { 4 };
                let taken = batch.memory(&options, device, element)?;
                let beyond = taken.saturating_sub(2 * matrix * 2 + gradients);
                let figure = format!("{device}: {beyond} bytes for {element:?} gradients");
                suite.note(&figure);
                // A workspace of 32 MB besides, and the allocator takes 2 MB at a time: less than
                // half of the 128 MB of all winners.
                if beyond > sums + at_once + (42 << 20) {
                    return Err(figure);
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// Beyond tokens, scores, winners and gradients: a workspace of 32 MB, and small lists.
#[test]
fn a_step_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_memory", |suite| {
        let batch =
            Batch { queries: [64, 1024], documents: [64, 1024], dim: 128, normalize: false };
        for device in cuda_devices() {
            let free = || free_bytes(device);
            // Kernels are loaded, and what uploads need is there.
            let mut warm = batch.step(device, false, GradientType::Tokens)?;
            warm.run().map_err(text)?;
            warm.gradients.read().map_err(text)?;
            drop(warm);
            let before = free()?;
            let mut step = batch.step(device, false, GradientType::Tokens)?;
            step.run().map_err(text)?;
            step.gradients.read().map_err(text)?;
            let taken = before.saturating_sub(free()?);
            let n_rows = (64 * 1024) as u64;
            let matrices = 4 * n_rows * 128 * 2;
            let winners = 64 * n_rows * step.scores.winner_bytes() as u64;
            let beyond = taken.saturating_sub(matrices + winners);
            // The allocator takes 2 MB at a time.
            let most = (32 << 20) + (8 << 20);
            suite.note(&format!("{device}: {beyond} bytes beyond tokens, winners and gradients"));
            if beyond > most {
                return Err(format!("{device}: {beyond} bytes, more than {most}"));
            }
            let before = free()?;
            for _ in 0..10 {
                step.run().map_err(text)?;
            }
            step.stream.synchronize().map_err(text)?;
            if free()? < before {
                return Err(format!("{device}: steps allocate"));
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}

/// From codes, gradients have the same bits every time, and those of documents the bits that they
/// have from the documents themselves.
#[test]
fn twenty_calls_from_codes_give_the_same_bits() {
    Suite::run_gpu("gpu_gradient_saved_repeats", |suite| {
        let batches = BATCHES.into_iter().filter(|batch| !batch.normalize);
        let mut n_cases = 0;
        for (device, batch) in
            cuda_devices().iter().flat_map(|d| batches.clone().map(move |b| (d, b)))
        {
            for element in [GradientType::F32, GradientType::Tokens] {
                let mut step = batch.step(device, false, element)?;
                step.run().map_err(text)?;
                let ordinary = step.gradients.read().map_err(text)?;
                let mut saved = SavedStep::of(step, ScaleType::F16, element).map_err(text)?;
                let mut first: Option<Gradients> = None;
                for i in 0..20 {
                    saved.differentiate().map_err(text)?;
                    let found = saved.gradients.read().map_err(text)?;
                    if !same_bits(first.get_or_insert_with(|| found.clone()), &found) {
                        return Err(format!("{device} {batch:?}: call {i} differs"));
                    }
                }
                let found = first.ok_or("no call")?;
                let distances = relative_distances(&ordinary, &found);
                suite.note(&format!("{device} {batch:?} {element:?}: {distances:?}"));
                // Elements err by a 254th of their row's largest at most.
                if !(distances[0] > 0.0 && distances[0] < 0.01) {
                    return Err(format!("{device} {batch:?}: {distances:?}"));
                }
                let queries = ordinary.queries.clone();
                if !same_bits(&ordinary, &Gradients { queries, ..found }) {
                    return Err(format!("{device} {batch:?}: other gradients of documents"));
                }
                n_cases += 1;
                suite.count(&device.to_string());
            }
        }
        Ok(n_cases)
    });
}

/// Codes in memory of others have the gradients of ours, whatever lies behind a row of theirs.
#[test]
fn codes_of_others_give_the_same_gradients() {
    Suite::run_gpu("gpu_gradient_saved_views", |suite| {
        let (element, dims) = (GradientType::F32, [1, 7, 16, 100, 128, 257, 1030]);
        for (device, dim) in cuda_devices().iter().flat_map(|d| dims.map(move |dim| (d, dim))) {
            let case = Case::new(dim, &[17, 3], &[65, 1, 16]);
            let problem = Problem::<f32>::new(&case);
            let grads = grad_scores(&problem.data, 5);
            let options = BackwardOptions::default();
            let mut step = Step::new(&problem, device, element, &options, &grads).map_err(text)?;
            step.score().map_err(text)?;
            let mut saved = SavedStep::of(step, ScaleType::F32, element).map_err(text)?;
            saved.differentiate().map_err(text)?;
            let expected = saved.gradients.read().map_err(text)?;

            let tokens = saved.codes.download().map_err(text)?;
            let layout = tokens.layout().clone();
            let Scales::F32(scales) = tokens.scales() else { return Err("no f32 scales".into()) };
            let scales = Tokens::padded(&scales[..], 1, 1, scales.len()).map_err(text)?;
            let scales = device.upload(&scales).map_err(text)?;
            let (access, raw) = (saved.codes.access(), RawScales::F32(scales.access().base));
            let (address, pitch_bytes) = (access.base, access.pitch_bytes);
            // SAFETY: the codes outlive the view, and nothing writes to them.
            let view = unsafe {
                DeviceTokens::<Int8>::from_raw_codes(
                    device,
                    address,
                    pitch_bytes,
                    layout,
                    raw,
                    None,
                )
            };
            let view = view.map_err(text)?;
            let SavedStep { queries, scores, backward, grad_scores, gradients, stream, .. } =
                &mut saved;
            stream
                .backward(queries, &view, backward, scores, grad_scores, gradients)
                .map_err(text)?;
            if !same_bits(&expected, &gradients.read().map_err(text)?) {
                return Err(format!("{device}, dim {dim}: other gradients from a view"));
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len() * dims.len())
    });
}

/// Documents that become codes between the scores and their gradients give back what they took, but
/// for the codes and a scale of 4 bytes a row; while codes are made, there are both.
#[test]
fn documents_saved_as_codes_take_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_saved_memory", |suite| {
        let batch = Batch { queries: [8, 32], documents: [256, 1024], dim: 128, normalize: false };
        let element = GradientType::Tokens;
        for device in cuda_devices() {
            let free = || free_bytes(device);
            for scales in SCALES {
                let mut step = batch.step(device, false, element)?;
                step.run().map_err(text)?;
                let ordinary = step.gradients.read().map_err(text)?;
                // The kernel that makes codes is loaded, and all else is there.
                drop(step.documents.quantize::<Int8>(scales).map_err(text)?);
                let Step { queries, documents, work, scores, grad_scores, mut stream, .. } = step;
                let options = BackwardOptions::default();
                let backward =
                    device.prepare_backward_from_codes(&work, &options, element).map_err(text)?;
                let mut gradients = DeviceGradients::new(&backward).map_err(text)?;

                let with_documents = free()?;
                let codes = documents.quantize::<Int8>(scales).map_err(text)?;
                let with_both = free()?;
                drop(documents);
                let with_codes = free()?;
                stream
                    .backward(&queries, &codes, &backward, &scores, &grad_scores, &mut gradients)
                    .map_err(text)?;
                let found = gradients.read().map_err(text)?;
                let after = free()?;

                let n_rows = 256 * 1024;
                let (codes, promised) = (n_rows * (128 + 4), n_rows * (2 * 128 - 128 - 4));
                let made = with_documents.saturating_sub(with_both);
                let saved = with_codes.saturating_sub(with_documents);
                let figure = format!(
                    "{device} {scales:?}: {made} bytes of codes, {saved} saved without the \
                     documents"
                );
                suite.note(&figure);
                // The allocator takes 2 MB at a time, for codes and for scales.
                let slack = 6 << 20;
                if made > codes + slack || saved.abs_diff(promised) > slack {
                    return Err(format!("{figure}, not {codes} and {promised}"));
                }
                if after < with_codes {
                    return Err(format!("{device}: gradients allocate"));
                }
                if ordinary.documents != found.documents {
                    return Err(format!("{device}: other gradients of documents"));
                }
                suite.count(&format!("{device} {scales:?}"));
            }
        }
        Ok(2 * cuda_devices().len())
    });
}

/// Median time of what is enqueued between two events.
fn median_time(
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
fn backward_time(step: &mut Step<f16>, device: &Device) -> Result<Duration, String> {
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

/// A step over normalised rows: beyond what others take, r of each row, and where gradients are not
/// f32 their sums in f32.
#[test]
fn a_normalized_step_takes_no_more_memory_than_promised() {
    Suite::run_gpu("gpu_gradient_normalized_memory", |suite| {
        let side = [64, 1024];
        let batch = Batch { queries: side, documents: side, dim: 128, normalize: true };
        for device in cuda_devices() {
            for element in [GradientType::F32, GradientType::Tokens] {
                let (matrix, n_rows) = (64 * 1024 * 128, 64 * 1024);
                let gradients = 2 * matrix * if element == GradientType::F32 { 4 } else { 2 };
                let sums = 2 * matrix * if element == GradientType::F32 { 0 } else { 4 };
                let (winners, norms) = (64 * n_rows * 2, 2 * n_rows * 4);
                let promised = 2 * matrix * 2 + gradients + winners + norms;
                let taken = batch.memory(&BackwardOptions::default(), device, element)?;
                let beyond = taken.saturating_sub(promised);
                let figure = format!("{device}: {beyond} bytes for {element:?} gradients");
                suite.note(&figure);
                // A workspace of 32 MB besides, and the allocator takes 2 MB at a time.
                if beyond > sums + (42 << 20) {
                    return Err(figure);
                }
            }
            suite.count(&device.to_string());
        }
        Ok(cuda_devices().len())
    });
}
