//! Documents that are cut where blocks' shares of the tokens end: documents of many blocks, blocks
//! of many documents, shares that end where documents do.

use half::{bf16, f16};
use maxsim::format::{Element, ElementType};
use maxsim_kernels::table::forward::Variant;
use maxsim_tests::case::{Case, Layout, Pairs, Side};
use maxsim_tests::engines::{check_case, check_case_on_rows};
use maxsim_tests::gpu::repeat_on_rows;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// What lengths documents have. A share is at least a tile of 128 tokens: up to 132 of them are the
/// whole device's, fewer are of blocks that have nothing else.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        3 => vec(1..=700usize, 1..=4),
        2 => (1..=600usize, 1..=4usize).prop_map(|(len, n)| vec![len; n]),
        2 => vec(prop_oneof![3 => 0..=300usize, 1 => select(&[0, 1, 127, 128, 129, 256])], 1..=20),
        1 => vec(0..=20usize, 1..=200),
    ]
}

fn cases(element: ElementType) -> impl Strategy<Value = Case> {
    let query_lengths = prop_oneof![
        4 => (1..=128usize).prop_map(|len| vec![len]),
        2 => (1..=16usize, 1..=8usize).prop_map(|(len, n)| vec![len; n]),
        // Several tiles, of one query or of many.
        1 => (129..=500usize).prop_map(|len| vec![len]),
        1 => (1..=120usize, 2..=4usize).prop_map(|(len, n)| vec![len; n]),
        1 => vec(0..=150usize, 1..=4),
        1 => vec(0..=32usize, 1..=4),
    ];
    (
        (query_lengths, lengths(), select(&Values::ALL), select(&[None, Some(60)])),
        (1..=128usize, any::<[bool; 4]>(), 0..=9usize, any::<u64>().no_shrink()),
    )
        .prop_map(move |((query_lengths, document_lengths, values, valid_percent), more)| {
            let (dim, [poison, is_scattered, up, down], spare_rows, seed) = more;
            let layout = if is_scattered { Layout::Scattered } else { Layout::Packed };
            let side = |lengths, layout| Side { layout, spare_rows, ..Side::packed(lengths) };
            Case {
                element,
                queries: Side { valid_percent, ..side(query_lengths, Layout::Packed) },
                documents: side(document_lengths, layout),
                pairs: Pairs::Cross,
                values,
                poison,
                // These rows find none.
                token_scores: false,
                upload: [up, down],
                seed,
                // Rows on 16-byte boundaries.
                ..Case::new(dim.next_multiple_of(8), &[], &[])
            }
        })
}

/// Rows whose units end within documents, wherever those lie.
fn is_meant(row: &Variant) -> bool {
    row.schedule.is_stream_k() && !row.schedule.is_contiguous()
}

/// On the CPU, as devices choose, and on the rows that this is about.
fn check(suite: &Suite, case: &Case) -> Result<(), String> {
    check_case_on_rows(suite, case, is_meant)
}

#[test]
fn random_f16() {
    Suite::run_random_on_kernels("stream_k_f16", || cases(ElementType::F16), check);
}

#[test]
fn random_bf16() {
    Suite::run_random_on_kernels("stream_k_bf16", || cases(ElementType::Bf16), check);
}

/// Every block has several documents, and few blocks begin with a whole one.
#[test]
fn many_documents() {
    let mut cases = Vec::new();
    for element in [ElementType::F16, ElementType::Bf16] {
        let of = |queries: &[usize], documents: &[usize]| Case {
            element,
            token_scores: false,
            values: Values::Negative,
            ..Case::new(128, queries, documents)
        };
        cases.push(of(&[128], &[333; 300]));
        cases.push(of(&[70], &[1024; 150]));
        cases.push(of(&[32, 32, 32, 32], &[600; 180]));
        // Scores are sums over tiles, whose blocks are cut in the same places.
        cases.push(of(&[700], &[700; 50]));
        cases.push(of(&[300, 20, 256], &[200; 120]));
        let ragged: Vec<usize> = (0..600).map(|i| i * 173 % 421).collect();
        cases.push(of(&[100], &ragged));
        // One document for a third of all blocks.
        cases.push(of(&[128], &[7000, 9, 700, 12_000, 128]));
    }
    Suite::run_large("stream_k_many_documents", cases, check);
}

/// Calls that would be cut but for one thing: other rows have to take them.
#[test]
fn calls_that_are_not_stream_k() {
    let base = || Case {
        element: ElementType::F16,
        token_scores: false,
        ..Case::new(128, &[100], &[400, 3, 2077, 16, 900])
    };
    let mut cases = vec![base()];
    let mut with = |change: &dyn Fn(&mut Case)| {
        let mut case = base();
        change(&mut case);
        cases.push(case);
    };
    with(&|case| case.queries.lengths = vec![1; 2200]);
    with(&|case| case.documents.valid_percent = Some(70));
    with(&|case| case.pairs = Pairs::Candidates { k: 3 });
    with(&|case| case.token_scores = true);
    with(&|case| case.document_splits = Some(2));
    Suite::run("stream_k_calls_that_are_not", cases, check_case);
}

/// Which CTA is first with its partial of a document depends on the run, and nothing of the result
/// may. Each run finds what the one before has left in the workspace.
#[test]
fn twenty_runs_give_the_same_bits() {
    fn repeat<T: Element>(suite: &Suite) -> Result<usize, String> {
        let mut n_cases = 0;
        for (queries, documents) in [
            (vec![128], vec![600; 140]),
            (vec![128], vec![5000; 9]),
            (vec![600], vec![700; 50]),
            (vec![20, 300], (0..200).map(|i| 1 + i * 37 % 390).collect()),
        ] {
            let case = Case { element: T::TYPE, ..Case::new(128, &queries, &documents) };
            repeat_on_rows::<T>(suite, &case, is_meant)?;
            n_cases += 1;
        }
        Ok(n_cases)
    }
    Suite::run_gpu("gpu_stream_k_repeats", |suite| {
        Ok(repeat::<f16>(suite)? + repeat::<bf16>(suite)?)
    });
}
