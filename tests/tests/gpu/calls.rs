//! What only a GPU can show: repeats, sizes, threads. Agreement with the oracle on every
//! kernel row is in the other suites.

use half::f16;
use maxsim::format::{Element, ElementType};
use maxsim::stream::Queue;
use maxsim::{Device, Error, Pairing, ScoreOptions, ScoreShape, Scores, Tokens};
use maxsim_kernels::table::forward::FORWARD;
use maxsim_tests::agree;
use maxsim_tests::case::{Case, Data, elements, tokens};
use maxsim_tests::engines::{Problem, cuda_devices};
use maxsim_tests::gpu::{on_every_row, options, ragged_cases, run, same_bits, text, twenty_times};
use maxsim_tests::oracle::{Matrix, maxsim};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

#[test]
fn twenty_runs_give_the_same_bits() {
    fn repeat<T: Element>(suite: &Suite) -> Result<usize, String> {
        let mut n_cases = 0;
        for case in ragged_cases(T::TYPE) {
            let data = case.data();
            let stored = [elements::<T>(&data.queries), elements::<T>(&data.documents)];
            let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
            let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
            let pairing = case.pairing(&data).map_err(text)?;
            on_every_row(T::TYPE, |device, row| {
                let options = options(row);
                if let Err(Error::Unsupported { .. }) =
                    device.plan(&queries, &documents, &pairing, &options)
                {
                    return Ok(());
                }
                let queries = device.upload(&queries).map_err(text)?;
                let documents = device.upload(&documents).map_err(text)?;
                let _ =
                    twenty_times(|| device.score_with(&queries, &documents, &pairing, &options))
                        .map_err(|why| format!("{why}\n{case:#?}"))?;
                suite.count(&format!("{device} {}", row.name));
                Ok(())
            })?;
            n_cases += 1;
        }
        Ok(n_cases)
    }
    Suite::run_gpu("gpu_repeats", |suite| {
        Ok(repeat::<f16>(suite)? + repeat::<half::bf16>(suite)? + repeat::<f32>(suite)?)
    });
}

/// Calls of one query tile and so many tokens that Hopper uses the dynamic scheduler: which CTA
/// scores a document depends on the run, and nothing of the result may.
#[test]
fn units_of_the_dynamic_scheduler_agree_and_give_the_same_bits() {
    Suite::run_gpu("gpu_dynamic_units", |suite| {
        // 40 000 documents of 65 tokens on average; an H200 has 132 multiprocessors, of which
        // two CTAs share each, with a dynamic scheduler from 8192 tokens on.
        let documents: Vec<usize> = (0..40_000).map(|i| (i * 37) % 131).collect();
        let mut n_cases = 0;
        for (query_len, valid_percent) in [(5, None), (60, None), (5, Some(50))] {
            let mut case = Case::new(8, &[query_len], &documents);
            case.element = ElementType::F16;
            case.upload = [true; 2];
            case.documents.valid_percent = valid_percent;
            let problem = Problem::<f16>::new(&case);
            let (queries, documents, pairing) = problem.inputs().map_err(text)?;
            for device in cuda_devices() {
                let queries = device.upload(&queries).map_err(text)?;
                let documents = device.upload(&documents).map_err(text)?;
                for winners in [false, true] {
                    let options = ScoreOptions::default().winners(winners).token_scores(true);
                    let run = || device.score_with(&queries, &documents, &pairing, &options);
                    let at = |why: String| format!("{device}, query of {query_len}: {why}");
                    let first = twenty_times(run).map_err(at)?;
                    agree::check(&problem.data, &problem.expected, &options, &first).map_err(at)?;
                    suite.count(&device.to_string());
                }
            }
            n_cases += 1;
        }
        Ok(n_cases)
    });
}

/// A document matrix of more than 2³¹ elements: 32-bit element or byte offsets would read
/// other rows, none of which is the same.
#[test]
fn past_2_31_elements() {
    const DIM: usize = 128;
    const ROWS: usize = (1 << 24) + 70_000;
    // Rows repeat after a prime, so that no power of two leads to the same row.
    const PERIOD: usize = 8191;
    Suite::run_gpu("gpu_past_2_31_elements", |suite| {
        let seed = Case { element: ElementType::F16, ..Case::new(DIM, &[70, 9], &[PERIOD]) };
        let pattern = seed.data();
        let period: Vec<f16> = elements(&pattern.documents);
        let documents: Vec<f16> = period.iter().copied().cycle().take(ROWS * DIM).collect();
        let queries: Vec<f16> = elements(&pattern.queries);

        // Around row 2²³ (byte 2³¹), row 2²⁴ (element 2³¹, byte 2³²), and at both ends.
        let starts = [0, (1 << 23) - 100, 1 << 23, (1 << 24) - 1, 1 << 24, (1 << 24) + 65_530];
        let lengths = [130usize, 300, 17, 2, 129, 64];
        let (starts, lengths) =
            ([&starts[..], &[ROWS - 200]].concat(), [&lengths[..], &[200]].concat());
        let as_i64 = |list: &[usize]| -> Vec<i64> { list.iter().map(|&x| x as i64).collect() };
        let scattered = Tokens::scattered(&documents, DIM, &as_i64(&starts), &as_i64(&lengths));
        let scattered = scattered.map_err(text)?;
        let queries = tokens(&seed.queries, &pattern.queries, &queries).map_err(text)?;

        // The oracle sees the sampled rows alone.
        let row = |row: usize| &pattern.documents.values[row % PERIOD * DIM..][..DIM];
        let mut sampled = Matrix {
            values: Vec::new(),
            dim: DIM,
            items: Vec::new(),
            mask: None,
            weights: None,
            factors: None,
            offsets: None,
            least: 0.0,
        };
        for (&start, &len) in starts.iter().zip(&lengths) {
            let first = sampled.values.len() / DIM;
            (start..start + len).for_each(|r| sampled.values.extend_from_slice(row(r)));
            sampled.items.push(first..first + len);
        }
        let pairs: Vec<(usize, usize)> =
            (0..2).flat_map(|q| (0..lengths.len()).map(move |d| (q, d))).collect();
        let shape = ScoreShape::Cross { n_queries: 2, n_documents: lengths.len() };
        let data = Data {
            queries: pattern.queries.clone(),
            documents: sampled,
            pairs,
            shape,
            exact: false,
            coarse: 0.0,
        };
        let normalized = Data {
            queries: data.queries.clone().normalized(),
            documents: data.documents.clone().normalized(),
            ..data.clone()
        };
        let answers = |data: &Data| -> Vec<_> {
            data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect()
        };
        let expected = [answers(&data), answers(&normalized)];

        for device in cuda_devices() {
            let documents = device.upload(&scattered).map_err(text)?;
            for row in FORWARD.iter().filter(|row| row.operand == ElementType::F16) {
                let options = options(row);
                let (data, expected) = match row.normalizes() {
                    false => (&data, &expected[0]),
                    true => (&normalized, &expected[1]),
                };
                let cross = Pairing::cross();
                match device.score_with(&queries, &documents, &cross, &options) {
                    Err(Error::Unsupported { .. }) => continue,
                    found => agree::check(data, expected, &options, &found.map_err(text)?)
                        .map_err(|why| format!("{device} {}: {why}", row.name))?,
                }
                suite.count(&format!("{device} {}", row.name));
            }
        }
        Ok(data.pairs.len())
    });
}

/// More than 2³¹ winners and token scores in one call.
#[test]
fn past_2_31_outputs() {
    const DIM: usize = 8;
    const QUERY_LEN: usize = (1 << 15) + 1;
    const N_DOCUMENTS: usize = (1 << 16) + 3;
    Suite::run_gpu("gpu_past_2_31_outputs", |suite| {
        // Integers: every engine must give the same bits, so a few pairs show all.
        let mut case = Case::new(DIM, &[QUERY_LEN], &vec![2; N_DOCUMENTS]);
        case.element = ElementType::F16;
        case.values = Values::Integers;
        let data = case.data();
        let stored = [elements::<f16>(&data.queries), elements::<f16>(&data.documents)];
        let queries = tokens(&case.queries, &data.queries, &stored[0]).map_err(text)?;
        let documents = tokens(&case.documents, &data.documents, &stored[1]).map_err(text)?;
        let sample = [0, 1, 32_767, 65_531, 65_532, 65_535, 65_536, N_DOCUMENTS - 1];
        for device in cuda_devices() {
            for winners in [false, true] {
                let options = ScoreOptions::default().winners(winners).token_scores(!winners);
                let found = device.score_with(&queries, &documents, &Pairing::cross(), &options);
                let found = found.map_err(text)?;
                for d in sample {
                    let expected = maxsim(&data.queries, 0, &data.documents, d);
                    let range = d * QUERY_LEN..(d + 1) * QUERY_LEN;
                    let same = |s: usize| {
                        let token = expected.tokens[s];
                        let at = range.start + s;
                        found.winners().is_none_or(|w| Some(w[at] as usize) == token.winner)
                            && found
                                .token_scores()
                                .is_none_or(|t| f64::from(t[at]) == token.score.exact)
                    };
                    if f64::from(found.values()[d]) != expected.score.exact
                        || !(0..QUERY_LEN).all(same)
                    {
                        return Err(format!("{device}: document {d}, winners {winners}"));
                    }
                }
                suite.count(&format!("{device} {}", if winners { "winners" } else { "scores" }));
            }
        }
        Ok(2)
    });
}

#[test]
fn threads_do_not_disturb_each_other() {
    Suite::run_gpu("gpu_threads", |suite| {
        let cases = ragged_cases(ElementType::F16);
        let problems: Vec<Problem<f16>> = cases.iter().map(Problem::new).collect();
        let options = ScoreOptions::default().winners(true).token_scores(true);
        for device in cuda_devices() {
            let alone: Vec<Scores> =
                problems.iter().map(|p| run(p, device, &options)).collect::<Result<_, _>>()?;
            // Every thread runs every problem, each beginning with another one.
            let thread = |first: usize| -> Result<(), String> {
                for i in 0..3 * problems.len() {
                    let i = (first + i) % problems.len();
                    if !same_bits(&alone[i], &run(&problems[i], device, &options)?) {
                        return Err(format!("{device}: thread {first}, problem {i} differs"));
                    }
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..8).map(|first| scope.spawn(move || thread(first))).collect();
                threads.into_iter().try_for_each(|t| t.join().expect("no panic"))
            })?;
            suite.count(&device.to_string());
            streams(&problems, &alone, device, &options)?;
            suite.count(&format!("{device} streams"));
        }
        // And all devices at once.
        std::thread::scope(|scope| {
            let problem = &problems[0];
            let threads: Vec<_> = cuda_devices()
                .iter()
                .map(|device| {
                    scope.spawn(|| {
                        (0..50).try_for_each(|_| {
                            let found = run(problem, device, &options)?;
                            agree::check(&problem.data, &problem.expected, &options, &found)
                        })
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|t| t.join().expect("no panic"))
        })?;
        Ok(8 * 3 * problems.len())
    });
}

/// Work of several streams at once, each stream of a thread of its own, over shared handles.
fn streams(
    problems: &[Problem<'_, f16>],
    alone: &[Scores],
    device: &Device,
    options: &ScoreOptions,
) -> Result<(), String> {
    let mut works = Vec::new();
    for problem in problems {
        let (queries, documents, pairing) = problem.inputs().map_err(text)?;
        let queries = device.upload(&queries).map_err(text)?;
        let documents = device.upload(&documents).map_err(text)?;
        let work = device.prepare(&queries, &documents, &pairing, options).map_err(text)?;
        works.push((queries, documents, work));
    }
    let thread = |first: usize| -> Result<(), String> {
        let mut stream = device.stream().map_err(text)?;
        let mut outputs = Vec::new();
        // All enqueued before any is read; each twice, over its own results.
        for (queries, documents, work) in &works {
            let mut scores = work.new_scores().map_err(text)?;
            for _ in 0..2 {
                stream.score_into(queries, documents, work, &mut scores).map_err(text)?;
            }
            outputs.push(scores);
        }
        for (i, (scores, alone)) in outputs.iter().zip(alone).enumerate() {
            if !same_bits(alone, &scores.read().map_err(text)?) {
                return Err(format!("{device}: stream {first}, problem {i} differs"));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|first| scope.spawn(move || thread(first))).collect();
        threads.into_iter().try_for_each(|t| t.join().expect("no panic"))
    })
}

#[test]
fn handles_of_other_devices_are_refused() {
    Suite::run_gpu("gpu_wrong_device", |suite| {
        let data = [0.0f32; 8];
        let tokens = Tokens::padded(&data, 1, 2, 4).map_err(text)?;
        let mut devices = vec![Device::cpu()];
        devices.extend_from_slice(cuda_devices());
        let mut n_cases = 0;
        for (i, here) in devices.iter().enumerate() {
            let handle = here.upload(&tokens).map_err(text)?;
            for (_, there) in devices.iter().enumerate().filter(|&(j, _)| j != i) {
                let cross = Pairing::cross();
                for (argument, result) in [
                    ("queries", there.score(&handle, &tokens, &cross)),
                    ("documents", there.score(&tokens, &handle, &cross)),
                ] {
                    match result {
                        Err(Error::WrongDevice { argument: a, expected, found })
                            if a == argument
                                && expected == there.to_string()
                                && found == here.to_string() => {}
                        other => return Err(format!("{argument} of {here} on {there}: {other:?}")),
                    }
                    n_cases += 1;
                }
            }
            suite.count(&here.to_string());
        }
        Ok(n_cases)
    });
}
