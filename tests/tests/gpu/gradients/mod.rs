//! Gradients on a GPU, at sizes that fill it: the same bits every time, rows that every query token
//! chooses, whole steps as graphs, and the memory and the time that they take.

mod codes;
mod memory;
pub(crate) mod time;

use half::f16;
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientType, Gradients};
use maxsim::{Device, Error, Pairing, Tokens};
use maxsim_tests::case::{Case, Pairs};
use maxsim_tests::engines::{Problem, cuda_devices};
use maxsim_tests::gpu::text;
use maxsim_tests::gradients::{
    ATOMIC_DISTANCE_MAX, Step, check, grad_scores, gradients, relative_distances, same_bits,
};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

/// Token numbers that any two of which differ: unit rows would do, but take longer to generate.
pub(crate) fn numbers(n: usize, seed: u64) -> Vec<f16> {
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
                            ..Gradients::default()
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
