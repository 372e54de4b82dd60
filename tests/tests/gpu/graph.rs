//! Graphs: what they captured is what direct calls give, whatever is dropped, changed or
//! enqueued meanwhile.

use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};
use maxsim::format::{Element, RawRows};
use maxsim::stream::{DeviceScores, Graph, PreparedScore, Queue, Stream};
use maxsim::{
    Device, DeviceTokens, Error, Pairing, Result, ScoreOptions, Scores, TokenLayout, Tokens,
};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::{free_bytes, same_bits, text};
use maxsim_tests::suite::Suite;

const DIM: usize = 64;
/// One query of several tiles of any kernel, short ones, and one without tokens.
const QUERIES: [i64; 6] = [0, 700, 705, 705, 737, 801];
const DOCUMENTS: [i64; 7] = [0, 64, 71, 371, 372, 405, 533];

fn all_devices() -> Vec<Device> {
    cuda_devices().iter().cloned().chain([Device::cpu()]).collect()
}

/// Numbers of ±[0.5, 2): any two f16 or bf16 of them side by side are also the bits of a normal
/// f32, which `write` makes use of.
fn numbers<T: Element>(n: usize, seed: u64) -> Vec<T> {
    let mut state = seed;
    let mut number = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let magnitude = 0.5 + 1.49 * ((state >> 40) as f32 / (1 << 24) as f32);
        T::from_f32(if state & (1 << 33) == 0 { magnitude } else { -magnitude })
    };
    (0..n).map(|_| number()).collect()
}

fn n_rows(offsets: &[i64]) -> usize {
    offsets[offsets.len() - 1] as usize
}

/// Two works over the same tokens: everything of a cross product, and the normalised scores of a
/// list.
struct Two<T: Element> {
    queries: DeviceTokens<T>,
    documents: DeviceTokens<T>,
    works: [PreparedScore; 2],
    scores: [DeviceScores; 2],
}

fn pairings() -> Result<[(Pairing, ScoreOptions); 2]> {
    let all = ScoreOptions::default().winners(true).token_scores(true);
    let list = Pairing::pairs(&[4, 0, 1, 0, 2], &[5, 5, 1, 0, 3])?;
    // Of normalised rows, with document splits: more kernels, a workspace of two calls,
    // and numbers that depend on what a view's memory holds at the time.
    let cut = ScoreOptions::default().document_splits(3).normalize(true);
    Ok([(Pairing::cross(), all), (list, cut)])
}

impl<T: Element> Two<T> {
    fn new(device: &Device, queries: DeviceTokens<T>) -> Result<Two<T>> {
        let documents = numbers::<T>(n_rows(&DOCUMENTS) * DIM, 2);
        let documents = device.upload(&Tokens::packed(&documents, DIM, &DOCUMENTS)?)?;
        let [(cross, all), (list, plain)] = pairings()?;
        let works = [
            device.prepare(&queries, &documents, &cross, &all)?,
            device.prepare(&queries, &documents, &list, &plain)?,
        ];
        let scores = [works[0].new_scores()?, works[1].new_scores()?];
        Ok(Two { queries, documents, works, scores })
    }

    fn uploaded(device: &Device) -> Result<Two<T>> {
        let queries = numbers::<T>(n_rows(&QUERIES) * DIM, 1);
        Two::new(device, device.upload(&Tokens::packed(&queries, DIM, &QUERIES)?)?)
    }

    fn capture(&mut self, device: &Device) -> Result<Graph> {
        let Two { queries, documents, works, scores } = self;
        device.capture(|capture| {
            for (work, scores) in works.iter().zip(scores) {
                capture.score_into(queries, documents, work, scores)?;
            }
            Ok(())
        })
    }

    fn read(&self) -> Result<[Scores; 2]> {
        Ok([self.scores[0].read()?, self.scores[1].read()?])
    }

    /// What direct calls give for these queries.
    fn expected(&self, device: &Device, queries: &[T]) -> Result<[Scores; 2]> {
        let queries = Tokens::packed(queries, DIM, &QUERIES)?;
        let [(cross, all), (list, plain)] = pairings()?;
        Ok([
            device.score_with(&queries, &self.documents, &cross, &all)?,
            device.score_with(&queries, &self.documents, &list, &plain)?,
        ])
    }
}

fn expect(
    expected: &[Scores; 2],
    found: &[Scores; 2],
    what: &str,
) -> std::result::Result<(), String> {
    match (0..2).find(|&i| !same_bits(&expected[i], &found[i])) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: the scores of work {i} differ")),
    }
}

#[test]
fn a_graph_gives_what_direct_calls_give() {
    fn check<T: Element>(device: &Device) -> std::result::Result<(), String> {
        let mut two = Two::<T>::uploaded(device).map_err(text)?;
        let queries = numbers::<T>(n_rows(&QUERIES) * DIM, 1);
        let expected = two.expected(device, &queries).map_err(text)?;
        let mut graph = two.capture(device).map_err(text)?;
        let untouched = two.read().map_err(text)?;
        if untouched.iter().any(|scores| scores.values().iter().any(|&score| score != 0.0)) {
            return Err("the capture itself has scored".into());
        }
        let mut streams = [device.stream().map_err(text)?, device.stream().map_err(text)?];
        for i in 0..6 {
            // Direct calls around the launch, on this stream and on the other, into the same
            // scores and with the same work.
            let Two { queries, documents, works, scores } = &mut two;
            let mut direct = |stream: &mut Stream, work: usize| {
                stream.score_into(queries, documents, &works[work], &mut scores[work])
            };
            direct(&mut streams[0], i % 2).map_err(text)?;
            graph.launch(&mut streams[i % 2]).map_err(text)?;
            if i >= 3 {
                direct(&mut streams[1], 0).map_err(text)?;
            }
            expect(&expected, &two.read().map_err(text)?, &format!("{device} launch {i}"))?;
        }
        Ok(())
    }
    Suite::run("graph_calls", all_devices(), |suite, device| {
        check::<f32>(device)?;
        check::<f16>(device)?;
        check::<bf16>(device)?;
        suite.count(&device.to_string());
        Ok(())
    });
}

/// Writes elements to device memory, by a call whose scores they are: one token of a 1 against
/// tokens of one element each.
fn write<T: Element>(
    device: &Device,
    stream: &mut Stream,
    address: u64,
    values: &[T],
) -> Result<()> {
    let words: &[f32] = cast_slice(values);
    let one = device.upload(&Tokens::padded(&[1.0f32], 1, 1, 1)?)?;
    let words = device.upload(&Tokens::padded(words, words.len(), 1, 1)?)?;
    let work = device.prepare(&one, &words, &Pairing::cross(), &ScoreOptions::default())?;
    // SAFETY: the caller's memory is this long, and lives until the stream is synchronised.
    let mut scores = unsafe { DeviceScores::from_raw_parts(&work, address, None, None)? };
    stream.score_into(&one, &words, &work, &mut scores)?;
    stream.synchronize()
}

#[test]
fn a_graph_reads_what_its_tokens_hold_when_it_is_launched() {
    fn check<T: Element>(device: &Device) -> std::result::Result<(), String> {
        let n = n_rows(&QUERIES) * DIM;
        let first = numbers::<T>(n, 1);
        let memory = Tokens::packed(&first, DIM, &QUERIES).and_then(|first| device.upload(&first));
        let memory = memory.map_err(text)?;
        let layout = TokenLayout::packed(n_rows(&QUERIES), DIM, &QUERIES).map_err(text)?;
        let access = memory.access();
        // SAFETY: `memory` outlives the handle and the graph, and is written between launches.
        let view = unsafe {
            DeviceTokens::<T>::from_raw_parts(
                device,
                RawRows::new(access.base, access.pitch_bytes),
                layout,
            )
        };
        let mut two = Two::new(device, view.map_err(text)?).map_err(text)?;
        let mut graph = two.capture(device).map_err(text)?;
        let mut stream = device.stream().map_err(text)?;
        let mut earlier: Vec<[Scores; 2]> = Vec::new();
        for seed in 1..=3 {
            let queries = numbers::<T>(n, seed);
            if seed > 1 {
                write(device, &mut stream, access.base, &queries).map_err(text)?;
            }
            graph.launch(&mut stream).map_err(text)?;
            let found = two.read().map_err(text)?;
            let expected = two.expected(device, &queries).map_err(text)?;
            expect(&expected, &found, &format!("{device} {} contents {seed}", T::TYPE))?;
            if earlier.iter().any(|earlier| same_bits(&earlier[0], &found[0])) {
                return Err(format!("{device}: the contents did not change"));
            }
            earlier.push(found);
        }
        Ok(())
    }
    Suite::run_gpu("gpu_graph_inputs", |suite| {
        for device in cuda_devices() {
            check::<f32>(device)?;
            check::<f16>(device)?;
            check::<bf16>(device)?;
            suite.count(&device.to_string());
        }
        Ok(9)
    });
}

#[test]
fn a_graph_keeps_what_it_uses() {
    Suite::run("graph_drops", all_devices(), |suite, device| {
        let queries = numbers::<f16>(n_rows(&QUERIES) * DIM, 1);
        let mut two = Two::<f16>::uploaded(device).map_err(text)?;
        let expected = two.expected(device, &queries).map_err(text)?;
        let mut graph = two.capture(device).map_err(text)?;
        // All handles but one of the scores go, and other memory takes their place.
        let Two { queries, documents, works, scores: [first, second] } = two;
        drop((queries, documents, works, first));
        let others: Vec<Two<f16>> =
            (0..3).map(|_| Two::uploaded(device)).collect::<Result<_>>().map_err(text)?;
        let launch = |mut graph: Graph, mut stream: Stream| {
            graph.launch(&mut stream)?;
            graph.launch(&mut stream).map(|()| graph)
        };
        let stream = device.stream().map_err(text)?;
        graph = std::thread::scope(|scope| {
            scope.spawn(move || launch(graph, stream)).join().expect("no panic")
        })
        .map_err(text)?;
        for other in &others {
            let untouched = other.read().map_err(text)?;
            if untouched.iter().any(|scores| scores.values().iter().any(|&score| score != 0.0)) {
                return Err(format!("{device}: a launch wrote to memory of others"));
            }
        }
        // The graph may go while its launch runs.
        graph.launch(&mut device.stream().map_err(text)?).map_err(text)?;
        drop(graph);
        if !same_bits(&expected[1], &second.read().map_err(text)?) {
            return Err(format!("{device}: other scores after drops"));
        }
        suite.count(&device.to_string());
        Ok(())
    });
}

#[test]
fn what_a_graph_kept_is_freed_with_it() {
    /// More than anything that a driver keeps back.
    const BYTES: u64 = 1 << 30;
    Suite::run_gpu("gpu_graph_memory", |suite| {
        let data = vec![f16::ONE; BYTES as usize / 2];
        for device in cuda_devices() {
            let free = || free_bytes(device);
            let cycle = || -> std::result::Result<(), String> {
                let before = free()?;
                let large = Tokens::padded(&data, 1 << 20, 4, 128).map_err(text)?;
                let large = device.upload(&large).map_err(text)?;
                let query = Tokens::padded(&data[..128], 1, 1, 128).map_err(text)?;
                let query = device.upload(&query).map_err(text)?;
                let options = ScoreOptions::default();
                let work = device.prepare(&query, &large, &Pairing::cross(), &options);
                let work = work.map_err(text)?;
                let mut scores = work.new_scores().map_err(text)?;
                let graph = device
                    .capture(|capture| capture.score_into(&query, &large, &work, &mut scores));
                let mut graph = graph.map_err(text)?;
                drop((query, large, work));
                if free()? + BYTES / 2 > before {
                    return Err("the handle's memory is gone with it".into());
                }
                let mut stream = device.stream().map_err(text)?;
                graph.launch(&mut stream).map_err(text)?;
                drop(graph);
                if scores.read().map_err(text)?.values().iter().any(|&score| score != 128.0) {
                    return Err("wrong scores".into());
                }
                if free()? < before - BYTES / 4 {
                    return Err("the graph's memory is not freed".into());
                }
                Ok(())
            };
            (0..3).try_for_each(|_| cycle()).map_err(|why| format!("{device}: {why}"))?;
            suite.count(&device.to_string());
        }
        Ok(3)
    });
}

#[test]
fn graphs_on_streams_of_several_threads_do_not_disturb_each_other() {
    Suite::run("graph_threads", all_devices(), |suite, device| {
        let queries = numbers::<f16>(n_rows(&QUERIES) * DIM, 1);
        let shared = Arc::new(Two::<f16>::uploaded(device).map_err(text)?);
        let expected = shared.expected(device, &queries).map_err(text)?;
        let thread = |i: usize| -> std::result::Result<(), String> {
            // Scores, graph and stream of its own; tokens and works are everybody's.
            let mut scores = Vec::new();
            for work in &shared.works {
                scores.push(work.new_scores().map_err(text)?);
            }
            let graph = device.capture(|capture| {
                for (work, scores) in shared.works.iter().zip(&mut scores) {
                    capture.score_into(&shared.queries, &shared.documents, work, scores)?;
                }
                Ok(())
            });
            let (mut graph, mut stream) = (graph.map_err(text)?, device.stream().map_err(text)?);
            for _ in 0..5 {
                graph.launch(&mut stream).map_err(text)?;
                let found = [scores[0].read().map_err(text)?, scores[1].read().map_err(text)?];
                expect(&expected, &found, &format!("{device} thread {i}"))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || thread(i))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        suite.count(&device.to_string());
        Ok(())
    });
}

#[test]
fn what_a_graph_cannot_hold_is_refused_when_it_is_captured() {
    Suite::run("graph_errors", all_devices(), |suite, device| {
        let mut two = Two::<f32>::uploaded(device).map_err(text)?;
        let Two { queries, documents, works, scores } = &mut two;
        for (argument, swap_tokens) in [("queries", true), ("scores", false)] {
            let refused = device.capture(|capture| match swap_tokens {
                true => capture.score_into(documents, queries, &works[0], &mut scores[0]),
                false => capture.score_into(queries, documents, &works[0], &mut scores[1]),
            });
            match refused {
                Err(Error::Shape { argument: found, .. }) if found == argument => {}
                other => return Err(format!("{device} {argument}: {other:?}")),
            }
        }
        // A graph of nothing does nothing.
        let mut empty = device.capture(|_| Ok(())).map_err(text)?;
        empty.launch(&mut device.stream().map_err(text)?).map_err(text)?;
        // The capture's own error comes back.
        let why = device.capture(|_| Err(Error::CudaNotBuilt));
        if !matches!(why, Err(Error::CudaNotBuilt)) {
            return Err(format!("{why:?}"));
        }
        for other in all_devices().iter().filter(|other| other.ordinal() != device.ordinal()) {
            let launched = empty.launch(&mut other.stream().map_err(text)?);
            if !matches!(launched, Err(Error::WrongDevice { argument: "stream", .. })) {
                return Err(format!("{device}'s graph on {other}: {launched:?}"));
            }
        }
        suite.count(&device.to_string());
        Ok(())
    });
}

#[test]
fn the_numbers_keep_their_bits_as_words() {
    let mut numbers = numbers::<f16>(1 << 12, 7);
    let bits: Vec<u16> = numbers.iter().map(|number| number.to_bits()).collect();
    let words: &mut [f32] = cast_slice_mut(&mut numbers);
    assert!(words.iter().all(|word| word.is_normal()));
    words.iter_mut().for_each(|word| *word *= 1.0);
    assert_eq!(cast_slice::<f32, u16>(words), bits);
}
