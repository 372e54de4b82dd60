//! Documents of one length that lie one behind the other, and one tile of queries: blocks have
//! equal shares of them, which end within documents. Documents of many blocks, blocks of several
//! documents, shares that end where documents do, lengths around the rows that are multiplied at a
//! time.

use half::{bf16, f16};
use maxsim::Pairing;
use maxsim::format::{Element, ElementType};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use maxsim_tests::case::{Case, Layout, Pairs, Side, elements, tokens};
use maxsim_tests::engines::check_case_on_rows;
use maxsim_tests::gpu::{on_rows, options, same_bits, text, twenty_times};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::prelude::*;
use proptest::sample::select;

use crate::contiguous::normalized;

const DIM: usize = 128;

/// Fewer documents than blocks, of which most have no beginning of one.
fn cases(element: ElementType) -> impl Strategy<Value = Case> {
    let queries = prop_oneof![
        3 => (1..=32usize).prop_map(|len| vec![len]),
        1 => (1..=16usize, 1..=16usize).prop_map(|(a, b)| vec![a, b]),
    ];
    // How many of them, and how long.
    let documents = prop_oneof![
        3 => (1..=4usize, 660..=1500usize),
        1 => (1..=2usize, 660..=4000usize),
        2 => (1..=3usize, select(&[703, 704, 705, 719, 720, 721, 2048])),
    ];
    (
        (queries, documents, select(&Values::ALL), select(&[None, Some(60)])),
        (any::<[bool; 4]>(), any::<u64>().no_shrink()),
    )
        .prop_map(move |((queries, (n, len), values, valid_percent), (flags, seed))| {
            let [poison, is_padded, up, down] = flags;
            let layout = if is_padded { Layout::Padded } else { Layout::Packed };
            Case {
                element,
                queries: Side { valid_percent, ..Side::packed(queries) },
                documents: Side { layout, ..Side::packed(vec![len; n]) },
                pairs: Pairs::Cross,
                values,
                poison,
                // These rows find none.
                token_scores: false,
                upload: [up, down],
                seed,
                ..Case::new(DIM, &[], &[])
            }
        })
}

/// On the CPU, as devices choose, and on the rows that this is about.
fn check(suite: &Suite, case: &Case) -> Result<(), String> {
    check_case_on_rows(suite, case, is_meant)
}

fn is_meant(row: &Variant) -> bool {
    row.schedule.is_contiguous() && row.schedule.is_stream_k()
}

#[test]
fn random_f16() {
    Suite::run_random_on_kernels("contiguous_stream_k_f16", || cases(ElementType::F16), check);
}

#[test]
fn random_bf16() {
    Suite::run_random_on_kernels("contiguous_stream_k_bf16", || cases(ElementType::Bf16), check);
}

#[test]
fn random_normalized_f16() {
    let cases = || normalized(cases(ElementType::F16));
    Suite::run_random_on_kernels("contiguous_stream_k_normalized_f16", cases, check);
}

#[test]
fn random_normalized_bf16() {
    let cases = || normalized(cases(ElementType::Bf16));
    Suite::run_random_on_kernels("contiguous_stream_k_normalized_bf16", cases, check);
}

/// Queries, how many documents, and how long: on 264 blocks, one or two documents for each and a
/// third for some, and fewer than blocks; on 396, two or three.
const SHAPES: [(&[usize], usize, usize); 13] = [
    (&[32], 300, 300),
    (&[15, 9], 550, 301),
    (&[32], 290, 287),
    (&[20], 545, 352),
    (&[1], 60, 1024),
    (&[16, 16], 33, 2047),
    (&[32], 20, 8000),
    (&[31], 7, 8191),
    (&[32], 1, 9000),
    // A step for each warp of a block, and of fewer blocks.
    (&[32], 3, 4224),
    (&[5], 1, 700),
    (&[32], 1000, 300),
    (&[21], 1003, 290),
];

#[test]
fn many_shares() {
    let mut cases = Vec::new();
    for (i, &(queries, n, len)) in SHAPES.iter().enumerate() {
        // The longest take a minute on the CPU.
        if n * len > 100_000 {
            continue;
        }
        for element in [ElementType::F16, ElementType::Bf16] {
            let values = [Values::Negative, Values::Special, Values::Unit][i % 3];
            let (documents, token_scores) = (vec![len; n], false);
            let case =
                Case { element, values, token_scores, ..Case::new(DIM, queries, &documents) };
            cases.push(Case { normalize: true, angular: i % 2 == 0, ..case.clone() });
            cases.push(case);
        }
    }
    Suite::run_on_kernels("contiguous_stream_k_many_shares", cases, check);
}

/// Products and their order within a document are those of the row that has whole documents: so are
/// the bits, whichever CTA is first with its partial. Each run finds what the one before has left
/// in the workspace.
#[test]
fn twenty_runs_give_the_bits_of_whole_documents() {
    fn compare<T: Element>(suite: &Suite) -> Result<usize, String> {
        let mut n_cases = 0;
        for (queries, n, len) in SHAPES.into_iter().filter(|(queries, ..)| queries.len() == 1) {
            for values in [Values::Unit, Values::Negative, Values::Special] {
                let documents = vec![len; n];
                let case = Case { element: T::TYPE, values, ..Case::new(DIM, queries, &documents) };
                let data = case.data();
                let halves: [Vec<T>; 2] = [elements(&data.queries), elements(&data.documents)];
                let queries = tokens(&case.queries, &data.queries, &halves[0]).map_err(text)?;
                let documents =
                    tokens(&case.documents, &data.documents, &halves[1]).map_err(text)?;
                on_rows(T::TYPE, is_meant, |device, row| {
                    let is_whole = |whole: &&Variant| {
                        whole.schedule.is_contiguous()
                            && !whole.schedule.is_stream_k()
                            && whole.operand == Operand::Element(T::TYPE)
                            && whole.row_operation == row.row_operation
                    };
                    let whole = FORWARD.iter().find(is_whole).ok_or("none has whole documents")?;
                    let queries = device.upload(&queries).map_err(text)?;
                    let documents = device.upload(&documents).map_err(text)?;
                    let run = |kernel: &Variant| {
                        let options = options(row).kernel(kernel.name);
                        device.score_with(&queries, &documents, &Pairing::cross(), &options)
                    };
                    let found = twenty_times(|| run(row))?;
                    let expected = run(whole).map_err(text)?;
                    if !same_bits(&found, &expected) {
                        return Err(format!("other bits than whole documents: {case:?}"));
                    }
                    suite.count(&format!("{device} {}", row.name));
                    Ok(())
                })?;
                n_cases += 1;
            }
        }
        Ok(n_cases)
    }
    Suite::run_gpu("gpu_contiguous_stream_k_same_bits", |suite| {
        Ok(compare::<f16>(suite)? + compare::<bf16>(suite)?)
    });
}
