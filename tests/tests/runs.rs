//! Documents that lie one behind the other, for which short queries have kernels of their own: units of
//! one document and of hundreds, chunks with several documents, documents that all warps share.

use half::{bf16, f16};
use maxsim::{Element, ElementType, Pairing, Tokens};
use maxsim_tests::case::{Case, Data, Layout, Pairs, Side, elements, tokens};
use maxsim_tests::engines::{check_case, check_case_on_rows};
use maxsim_tests::gpu::{on_rows, options, repeat_on_rows, text};
use maxsim_tests::oracle::maxsim;
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const DIM: usize = 128;

/// What lengths documents have.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        4 => vec(1..=70usize, 1..=80),
        2 => vec(prop_oneof![4 => 1..=3usize, 1 => select(&[15, 16, 17, 47, 48, 49])], 1..=300),
        2 => (1..=600usize, 1..=6usize).prop_map(|(len, n)| vec![len; n]),
        1 => vec(1..=1500usize, 1..=3),
    ]
}

fn cases(element: ElementType) -> impl Strategy<Value = Case> {
    let query_lengths = prop_oneof![
        4 => (1..=33usize, 1..=5usize).prop_map(|(len, n)| vec![len; n]),
        2 => vec(0..=40usize, 1..=6),
    ];
    let pairs = prop_oneof![Just(Pairs::Cross), (1..=9usize).prop_map(|k| Pairs::Own { k })];
    (
        (query_lengths, lengths(), pairs, select(&Values::ALL), select(&[None, Some(60)])),
        (any::<[bool; 3]>(), 0..=9usize, any::<[bool; 2]>(), any::<u64>().no_shrink()),
    )
        .prop_map(move |(what, (flags, spare_rows, upload, seed))| {
            let (query_lengths, document_lengths, pairs, values, valid_percent) = what;
            let [poison, token_scores, is_padded] = flags;
            let alike = document_lengths.iter().all(|&len| len == document_lengths[0]);
            let layout = if alike && is_padded { Layout::Padded } else { Layout::Packed };
            let side = |lengths, layout| Side { layout, spare_rows, ..Side::packed(lengths) };
            Case {
                element,
                queries: Side { valid_percent, ..side(query_lengths, Layout::Packed) },
                documents: side(document_lengths, layout),
                pairs,
                values,
                poison,
                token_scores,
                upload,
                seed,
                ..Case::new(DIM, &[], &[])
            }
        })
}

/// On the CPU, as devices choose, and on the rows that this is about.
fn check(suite: &Suite, case: &Case) -> Result<(), String> {
    check_case_on_rows(suite, case, |row| row.in_runs)
}

#[test]
fn random_f16() {
    Suite::run_random("runs_f16", || cases(ElementType::F16), check);
}

#[test]
fn random_bf16() {
    Suite::run_random("runs_bf16", || cases(ElementType::Bf16), check);
}

/// More documents than a warp knows the ends of at a time, in every block.
#[test]
fn many_documents() {
    let lengths: Vec<usize> = (0..40_000).map(|i| 1 + i * 7 % 5).collect();
    let few = &lengths[..9000];
    let mut cases = Vec::new();
    for element in [ElementType::F16, ElementType::Bf16] {
        let of = |queries: &[usize], documents: &[usize], pairs| Case {
            element,
            pairs,
            values: Values::Negative,
            ..Case::new(DIM, queries, documents)
        };
        cases.push(of(&[32], &lengths, Pairs::Cross));
        cases.push(of(&[5], &[2; 40_000], Pairs::Cross));
        cases.push(of(&[32, 31], few, Pairs::Own { k: 9000 }));
        cases.push(of(&[20, 20, 20], few, Pairs::Own { k: 4000 }));
        // Most blocks have several queries, one after the other.
        cases.push(of(&[17; 900], &[3; 30], Pairs::Own { k: 2 }));
        cases.push(of(&[32; 600], few, Pairs::Own { k: 3 }));
    }
    Suite::run("runs_many_documents", cases, check);
}

/// Documents that would be read so but for one thing: other rows have to take them.
#[test]
fn documents_that_are_no_run() {
    let base = || Case { element: ElementType::F16, ..Case::new(DIM, &[32, 9], &[40, 3, 77, 16]) };
    let mut cases = vec![base()];
    let mut with = |change: &dyn Fn(&mut Case)| {
        let mut case = base();
        change(&mut case);
        cases.push(case);
    };
    with(&|case| case.dim = 120);
    with(&|case| case.documents.lengths[1] = 0);
    with(&|case| case.documents.layout = Layout::Scattered);
    with(&|case| case.documents.layout = Layout::PaddedLengths);
    with(&|case| case.documents.valid_percent = Some(70));
    with(&|case| case.pairs = Pairs::Candidates { k: 3 });
    with(&|case| case.document_pieces = Some(2));
    Suite::run("runs_documents_that_are_no_run", cases, check_case);
}

/// Which warp is first with its share of a document depends on the run, and nothing of the result may.
#[test]
fn twenty_runs_give_the_same_bits() {
    fn repeat<T: Element>(suite: &Suite) -> Result<usize, String> {
        let lengths: Vec<usize> = (0..900).map(|i| 1 + i * 37 % 290).collect();
        let mut n_cases = 0;
        for (queries, pairs) in [
            (&[32][..], Pairs::Cross),
            (&[15, 9], Pairs::Cross),
            (&[32; 90], Pairs::Own { k: 10 }),
            (&[20; 900], Pairs::Own { k: 1 }),
        ] {
            let case = Case { element: T::TYPE, pairs, ..Case::new(DIM, queries, &lengths) };
            repeat_on_rows::<T>(suite, &case, |row| row.in_runs)?;
            n_cases += 1;
        }
        Ok(n_cases)
    }
    Suite::run_gpu("gpu_runs_repeats", |suite| Ok(repeat::<f16>(suite)? + repeat::<bf16>(suite)?));
}

/// Addresses beyond 2³² bytes, elements beyond 2³¹: every document has the same rows.
#[test]
fn past_2_31_elements() {
    const LEN: usize = 8191;
    const N: usize = 2057;
    Suite::run_gpu("gpu_runs_past_2_31_elements", |suite| {
        let case = Case { element: ElementType::F16, ..Case::new(DIM, &[32], &[LEN]) };
        let Data { queries, documents, .. } = case.data();
        let answer = maxsim(&queries, 0, &documents, 0);
        let [of_queries, period] = [&queries, &documents].map(elements::<f16>);
        let repeated: Vec<f16> = period.iter().copied().cycle().take(N * LEN * DIM).collect();
        let queries = tokens(&case.queries, &queries, &of_queries).map_err(text)?;
        let documents = Tokens::padded(&repeated, N, LEN, DIM).map_err(text)?;
        on_rows(
            ElementType::F16,
            |row| row.in_runs,
            |device, row| {
                let documents = device.upload(&documents).map_err(text)?;
                let cross = Pairing::cross();
                let found = device.score_with(&queries, &documents, &cross, &options(row));
                let found = found.map_err(text)?;
                let expected = answer.score.exact;
                for (document, &score) in found.values().iter().enumerate() {
                    let error = (f64::from(score) - expected).abs();
                    if error > 1e-5 * expected.abs() || score != found.values()[0] {
                        return Err(format!("document {document}: {score}, expected {expected}"));
                    }
                }
                suite.count(&format!("{device} {}", row.name));
                Ok(())
            },
        )?;
        Ok(N)
    });
}
