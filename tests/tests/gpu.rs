//! What only a GPU can show: repeats, sizes, threads, memory. Agreement with the oracle on
//! every kernel row is in the other suites.

use half::f16;
use maxsim::{
    Device, DeviceTokens, Element, ElementType, Error, Pairing, ScoreOptions, Scores, Tokens,
};
use maxsim_kernels::variants::{FORWARD, Variant};
use maxsim_tests::agree;
use maxsim_tests::case::{Case, Data, Pairs, elements, tokens};
use maxsim_tests::engines::{Problem, cuda_devices};
use maxsim_tests::oracle::{Matrix, maxsim};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

/// Ragged items, several tiles on every axis: all the ways in which work is split.
fn cases(element: ElementType) -> Vec<Case> {
    let queries: Vec<usize> = (0..9).map(|i| (i * 83) % 300).collect();
    let documents: Vec<usize> = (0..150).map(|i| (i * 37) % 290).collect();
    let pairings = [Pairs::Cross, Pairs::Candidates { k: 40 }, Pairs::List { n: 500 }];
    let mut cases = Vec::new();
    for dim in [64, 100, 128, 256] {
        for pairs in pairings {
            let mut case = Case { element, pairs, ..Case::new(dim, &queries, &documents) };
            case.upload = [true; 2];
            case.documents.valid_percent = Some(90);
            cases.push(case);
        }
    }
    cases
}

fn options(row: &Variant) -> ScoreOptions {
    let kernel = Some(row.name.to_string());
    ScoreOptions { winners: row.winners, token_scores: true, kernel }
}

/// The same numbers, bit for bit: `==` would take +0 for -0 and no NaN for itself.
fn same_bits(a: &Scores, b: &Scores) -> bool {
    let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|x| x.to_bits()).collect() };
    bits(a.values()) == bits(b.values())
        && a.winners() == b.winners()
        && a.token_scores().map(bits) == b.token_scores().map(bits)
}

/// Calls `check` with every row of the element type, on every device.
fn on_every_row(
    element: ElementType,
    mut check: impl FnMut(&Device, &'static Variant) -> Result<(), String>,
) -> Result<(), String> {
    for device in cuda_devices() {
        for row in FORWARD.iter().filter(|row| row.element == element) {
            check(device, row).map_err(|why| format!("{device} {}: {why}", row.name))?;
        }
    }
    Ok(())
}

#[test]
fn twenty_runs_give_the_same_bits() {
    fn repeat<T: Element>(suite: &Suite) -> Result<usize, String> {
        let mut n_cases = 0;
        for case in cases(T::TYPE) {
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
                let run = || device.score_with(&queries, &documents, &pairing, &options);
                let first = run().map_err(text)?;
                for i in 1..20 {
                    if !same_bits(&first, &run().map_err(text)?) {
                        return Err(format!("run {i} differs from run 0\n{case:#?}"));
                    }
                }
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
        let tokens = Tokens::scattered(&documents, DIM, &as_i64(&starts), &as_i64(&lengths));
        let tokens = tokens.map_err(text)?;
        let queries = tokens_of(&seed, &pattern, &queries)?;

        // The oracle sees the sampled rows alone.
        let row = |row: usize| &pattern.documents.values[row % PERIOD * DIM..][..DIM];
        let mut sampled = Matrix { values: Vec::new(), dim: DIM, items: Vec::new(), mask: None };
        for (&start, &len) in starts.iter().zip(&lengths) {
            let first = sampled.values.len() / DIM;
            (start..start + len).for_each(|r| sampled.values.extend_from_slice(row(r)));
            sampled.items.push(first..first + len);
        }
        let pairs: Vec<(usize, usize)> =
            (0..2).flat_map(|q| (0..lengths.len()).map(move |d| (q, d))).collect();
        let expected: Vec<_> =
            pairs.iter().map(|&(q, d)| maxsim(&pattern.queries, q, &sampled, d)).collect();
        let shape = maxsim::ScoreShape::Cross { n_queries: 2, n_documents: lengths.len() };
        let data = Data {
            queries: pattern.queries.clone(),
            documents: sampled,
            pairs,
            shape,
            exact: false,
        };

        for device in cuda_devices() {
            let documents = device.upload(&tokens).map_err(text)?;
            for row in FORWARD.iter().filter(|row| row.element == ElementType::F16) {
                let options = options(row);
                let cross = Pairing::cross();
                match device.score_with(&queries, &documents, &cross, &options) {
                    Err(Error::Unsupported { .. }) => continue,
                    found => agree::check(&data, &expected, &options, &found.map_err(text)?)
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
                let options = ScoreOptions { winners, token_scores: !winners, kernel: None };
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
        let cases = cases(ElementType::F16);
        let problems: Vec<Problem<f16>> = cases.iter().map(Problem::new).collect();
        let options = ScoreOptions { winners: true, token_scores: true, kernel: None };
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

#[test]
fn out_of_memory_is_an_error_and_nothing_breaks() {
    /// 4 GiB of tokens: no device holds a hundred of them.
    const ROWS: usize = 1 << 24;
    Suite::run_gpu("gpu_out_of_memory", |suite| {
        let case = &cases(ElementType::F16)[0];
        let problem = Problem::<f16>::new(case);
        let (queries, documents, pairing) = problem.inputs().map_err(text)?;
        let options = ScoreOptions { winners: true, token_scores: true, kernel: None };
        let large = vec![f16::ZERO; ROWS * 128];
        let large = Tokens::padded(&large, 1, ROWS, 128).map_err(text)?;
        for device in cuda_devices() {
            let queries = device.upload(&queries).map_err(text)?;
            let documents = device.upload(&documents).map_err(text)?;
            let score = || device.score_with(&queries, &documents, &pairing, &options);
            let before = score().map_err(text)?;
            let mut handles: Vec<DeviceTokens<f16>> = Vec::new();
            let error = loop {
                match device.upload(&large) {
                    Ok(handle) if handles.len() < 100 => handles.push(handle),
                    Ok(_) => return Err("a hundred times 4 GiB are no device's memory".into()),
                    Err(error) => break error,
                }
            };
            match &error {
                Error::DeviceMemory { requested_bytes, .. } if *requested_bytes > 0 => {}
                other => return Err(format!("{device}: {other:?}")),
            }
            suite.note(&format!("{device}: after {} GiB: {error}", 4 * handles.len()));
            // While memory is short a call may fail, with the same error and no other.
            match score() {
                Ok(scores) if same_bits(&before, &scores) => {}
                Err(Error::DeviceMemory { .. }) => {}
                other => return Err(format!("{device}, memory full: {other:?}")),
            }
            drop(handles);
            if !same_bits(&before, &score().map_err(text)?) {
                return Err(format!("{device}: other scores after memory ran out"));
            }
            device.upload(&large).map_err(text)?;
            suite.count(&device.to_string());
        }
        Ok(1)
    });
}

fn run<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    options: &ScoreOptions,
) -> Result<Scores, String> {
    problem.run(device, options).map_err(text)?.ok_or_else(|| "no kernel".into())
}

fn tokens_of<'a>(
    case: &Case,
    data: &'a Data,
    stored: &'a [f16],
) -> Result<Tokens<'a, f16>, String> {
    tokens(&case.queries, &data.queries, stored).map_err(text)
}

fn text(error: Error) -> String {
    error.to_string()
}
