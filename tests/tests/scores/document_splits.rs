//! Document splits: as many as a plan chooses, and on every kernel of the table.

use half::{bf16, f16};
use maxsim::format::{Element, ElementType};
use maxsim::plan::Access;
use maxsim::plan::DeviceLimits;
use maxsim::plan::Plan;
use maxsim::stream::{DeviceScores, Queue};
use maxsim::{Device, Error, Pairing, ScoreOptions, Scores, TokenLayout, Tokens};
use maxsim_tests::agree;
use maxsim_tests::case::{Case, Layout, Pairs};
use maxsim_tests::engines::{Problem, cuda_devices};
use maxsim_tests::gpu::{on_every_row, options, ragged_cases, run, same_bits, text, twenty_times};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;

fn everything() -> ScoreOptions {
    ScoreOptions::default().winners(true).token_scores(true)
}

#[test]
fn the_cpu_engine_ignores_document_splits() {
    let case = Case::new(16, &[5, 0, 40], &[300, 0, 129]);
    let problem = Problem::<f32>::new(&case);
    let score = |document_splits| {
        let options = everything().document_splits(document_splits);
        run(&problem, &Device::cpu(), &options).expect("scores")
    };
    assert!(same_bits(&score(None), &score(Some(3))));
}

/// One query against few long documents, of equal and of other lengths, masked and not.
fn few_long() -> Vec<Case> {
    let mut cases = Vec::new();
    for (query_len, documents, pairs) in [
        (32, vec![8192; 8], Pairs::Cross),
        (32, vec![8192, 0, 5000, 8191, 1, 300, 8064, 4097], Pairs::Cross),
        (300, vec![4096; 4], Pairs::Own { k: 4 }),
        (17, vec![6000, 70_000, 9000], Pairs::List { n: 5 }),
    ] {
        for valid_percent in [None, Some(40)] {
            let mut case = Case { pairs, ..Case::new(128, &[query_len], &documents) };
            case.element = ElementType::F16;
            case.upload = [true; 2];
            // Ties between splits.
            case.values = Values::Integers;
            case.documents.layout =
                if documents.len() == 4 { Layout::Padded } else { Layout::Packed };
            case.documents.valid_percent = valid_percent;
            cases.push(case);
        }
    }
    cases
}

#[test]
fn few_long_documents_are_split_on_an_h200() {
    let h200 =
        DeviceLimits { capability: (9, 0), n_multiprocessors: 132, shared_bytes: 227 * 1024 };
    let access = Access::uploaded(128, ElementType::F16);
    for case in few_long() {
        let data = case.data();
        let layout = |items: &[std::ops::Range<usize>]| {
            let lens: Vec<i64> = items.iter().map(|item| item.len() as i64).collect();
            TokenLayout::scattered(100_000, 128, &vec![0i64; lens.len()], &lens).expect("layout")
        };
        let (queries, documents) = (layout(&data.queries.items), layout(&data.documents.items));
        let pairing = case.pairing(&data).expect("pairing");
        let problem = maxsim::plan::Problem::new(&queries, &documents, &pairing).expect("problem");
        for winners in [false, true] {
            let options = everything().winners(winners);
            let plan = Plan::choose(&problem, ElementType::F16, &h200, [access, access], &options);
            let plan = plan.expect("a kernel");
            assert!(plan.document_splits() > 1, "{plan}\n{case:#?}");
        }
    }
}

#[test]
fn few_long_documents_are_split_and_agree() {
    Suite::run_gpu("gpu_few_long_documents", |suite| {
        let cases = few_long();
        for case in &cases {
            let problem = Problem::<f16>::new(case);
            let (queries, documents, pairing) = problem.inputs().map_err(text)?;
            for device in cuda_devices() {
                for winners in [false, true] {
                    let options = everything().winners(winners);
                    let queries = device.upload(&queries).map_err(text)?;
                    let documents = device.upload(&documents).map_err(text)?;
                    let plan = device.plan(&queries, &documents, &pairing, &options);
                    let n_splits = plan.map_err(text)?.document_splits();
                    if n_splits < 2 {
                        return Err(format!("{device}: documents stay whole\n{case:#?}"));
                    }
                    let score = || device.score_with(&queries, &documents, &pairing, &options);
                    let at = |why: String| format!("{device}, {n_splits} pieces: {why}\n{case:#?}");
                    let first = twenty_times(score).map_err(at)?;
                    agree::check(&problem.data, &problem.expected, &options, &first).map_err(at)?;
                    // Scores alone, too: no call asks for the results of the splits.
                    let scores = options.clone().token_scores(false);
                    let found = run(&problem, device, &scores)?;
                    agree::check(&problem.data, &problem.expected, &scores, &found).map_err(at)?;
                    graph(device, &problem, &options, &first).map_err(at)?;
                    suite.count(&format!("{device} {n_splits} pieces"));
                }
            }
        }
        Ok(cases.len())
    });
}

/// The same from prepared work: enqueued between other work of the stream, and as a graph.
fn graph<T: Element>(
    device: &Device,
    problem: &Problem<'_, T>,
    options: &ScoreOptions,
    expected: &Scores,
) -> Result<(), String> {
    let (queries, documents, pairing) = problem.inputs().map_err(text)?;
    let queries = device.upload(&queries).map_err(text)?;
    let documents = device.upload(&documents).map_err(text)?;
    let work = device.prepare(&queries, &documents, &pairing, options).map_err(text)?;
    let whole = options.clone().document_splits(1);
    let whole = device.prepare(&queries, &documents, &pairing, &whole).map_err(text)?;
    let mut stream = device.stream().map_err(text)?;
    let mut scores = work.new_scores().map_err(text)?;
    let mut other = whole.new_scores().map_err(text)?;
    // Both works use the stream's workspace, whose counters must stay as they are.
    for _ in 0..3 {
        stream.score_into(&queries, &documents, &work, &mut scores).map_err(text)?;
        stream.score_into(&queries, &documents, &whole, &mut other).map_err(text)?;
    }
    let check = |scores: &DeviceScores, what: &str| match scores.read().map_err(text)? {
        found if same_bits(expected, &found) => Ok(()),
        _ => Err(format!("{what} gives other bits")),
    };
    check(&scores, "prepared work")?;
    let found = other.read().map_err(text)?;
    agree::check(&problem.data, &problem.expected, options, &found)?;

    let mut captured = work.new_scores().map_err(text)?;
    let mut graph = device
        .capture(|capture| {
            capture.score_into(&queries, &documents, &whole, &mut other)?;
            capture.score_into(&queries, &documents, &work, &mut captured)
        })
        .map_err(text)?;
    for _ in 0..3 {
        graph.launch(&mut stream).map_err(text)?;
    }
    check(&captured, "a graph")
}

#[test]
fn splits_of_ragged_documents_agree_and_give_the_bits_of_whole_ones_on_every_row() {
    fn check_case<T: Element>(suite: &Suite, case: &Case) -> Result<(), String> {
        let problem = Problem::<T>::new(case);
        let normalized = problem.normalized();
        on_every_row(T::TYPE, |device, row| {
            let with = |n| options(row).document_splits(n);
            let score = |n| problem.run(device, &with(n)).map_err(text);
            let Some(cut) = score(3)? else { return Ok(()) };
            // Rounded elements would need answers of their own.
            let answers = if row.normalizes() { &normalized } else { &problem };
            if !row.tf32 {
                agree::check(&answers.data, &answers.expected, &with(3), &cut)?;
            }
            // Other splits, none, and a second run.
            for n in [2, 1, 3] {
                if !score(n)?.is_some_and(|other| same_bits(&cut, &other)) {
                    return Err(format!("{n} splits give other bits than 3\n{case:#?}"));
                }
            }
            suite.count(&format!("{device} {}", row.name));
            Ok(())
        })
    }
    // The oracle takes seconds a case: each has a thread.
    fn check<T: Element>(suite: &Suite) -> Result<usize, String> {
        let cases = ragged_cases(T::TYPE);
        std::thread::scope(|scope| {
            let check = |case| scope.spawn(move || check_case::<T>(suite, case));
            let running: Vec<_> = cases.iter().map(check).collect();
            running.into_iter().try_for_each(|case| case.join().expect("a thread"))
        })?;
        Ok(cases.len())
    }
    Suite::run_gpu("gpu_pieces", |suite| {
        Ok(check::<f16>(suite)? + check::<bf16>(suite)? + check::<f32>(suite)?)
    });
}

#[test]
fn no_splits_at_all_are_refused() {
    Suite::run_gpu("gpu_no_pieces", |suite| {
        for device in cuda_devices() {
            let data = [0.0f32; 8];
            let tokens = Tokens::padded(&data, 1, 2, 4).map_err(text)?;
            let options = ScoreOptions::default().document_splits(0);
            match device.score_with(&tokens, &tokens, &Pairing::cross(), &options) {
                Err(Error::Shape { argument: "document_splits", .. }) => {}
                other => return Err(format!("{device}: {other:?}")),
            }
            suite.count(&device.to_string());
        }
        Ok(1)
    });
}
