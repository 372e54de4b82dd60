//! Documents of codes that are cut where blocks' shares of the tokens end.

use maxsim::format::{Fp8, Int8, Quantized, ScaleType, ScorableWith};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use maxsim_tests::case::{Case, Data, Layout, Pairs, Side, elements, tokens};
use maxsim_tests::engines::{cuda_devices, runs_row};
use maxsim_tests::gpu::{options, same_bits, text, twenty_times};
use maxsim_tests::quantized::{Formats, QuantizedCase, check_quantized_case_on_rows};
use maxsim_tests::suite::Suite;
use maxsim_tests::values::Values;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const FORMATS: [Formats; 3] = [
    Formats::Int8(ScaleType::F16, ScaleType::F16),
    Formats::Int8(ScaleType::F32, ScaleType::F32),
    Formats::Fp8(ScaleType::F16, ScaleType::F32),
];

/// Lengths of documents: one that spans many CTAs, many in one CTA, ends around the 64
/// rows of a product.
fn lengths() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        3 => vec(1..=400usize, 1..=4),
        2 => (1..=300usize, 1..=4usize).prop_map(|(len, n)| vec![len; n]),
        2 => vec(
            prop_oneof![3 => 0..=300usize, 1 => select(&[0, 1, 63, 64, 65, 128, 192])],
            1..=20,
        ),
        1 => vec(0..=20usize, 1..=200),
    ]
}

fn cases() -> impl Strategy<Value = QuantizedCase> {
    let query_lengths = prop_oneof![
        3 => (1..=256usize).prop_map(|len| vec![len]),
        2 => (1..=16usize, 1..=8usize).prop_map(|(len, n)| vec![len; n]),
        // Several tiles, of one query or of many.
        1 => (257..=600usize).prop_map(|len| vec![len]),
        1 => vec(0..=300usize, 1..=4),
    ];
    (
        (query_lengths, lengths(), select(&Values::ALL), select(&[None, Some(60)])),
        (1..=128usize, any::<[bool; 3]>(), any::<u64>().no_shrink(), select(&FORMATS)),
    )
        .prop_map(|((query_lengths, document_lengths, values, valid_percent), more)| {
            let (dim, [is_scattered, up, down], seed, formats) = more;
            let layout = if is_scattered { Layout::Scattered } else { Layout::Packed };
            let case = Case {
                queries: Side { valid_percent, ..Side::packed(query_lengths) },
                documents: Side { layout, ..Side::packed(document_lengths) },
                pairs: Pairs::Cross,
                values,
                // These rows find none.
                token_scores: false,
                upload: [up, down],
                seed,
                ..Case::new(dim, &[], &[])
            };
            QuantizedCase { case, formats }
        })
}

/// On the CPU, as devices choose, and on the rows that this is about.
fn check(suite: &Suite, case: &QuantizedCase) -> Result<(), String> {
    check_quantized_case_on_rows(suite, case, is_meant)
}

fn is_meant(row: &Variant) -> bool {
    row.schedule.is_stream_k() && row.operand.is_code()
}

#[test]
fn random() {
    Suite::run_random_on_kernels("stream_k_codes", cases, check);
}

/// Queries, and documents' lengths.
fn many() -> Vec<(Vec<usize>, Vec<usize>)> {
    vec![
        (vec![256], vec![333; 300]),
        // Units that have the end of one document and little or most of another, alone and with
        // whole ones.
        (vec![1000], vec![256; 34]),
        (vec![700], vec![700; 50]),
        (vec![32, 32, 32, 32, 300], vec![600; 140]),
        (vec![256], (0..600).map(|i| i * 173 % 421).collect()),
        // One document for a third of all blocks.
        (vec![128], vec![7000, 9, 700, 12_000, 128]),
    ]
}

#[test]
fn many_documents() {
    let cases = many().into_iter().flat_map(|(queries, documents)| {
        [(Values::Negative, FORMATS[0]), (Values::Unit, FORMATS[2])].into_iter().map(
            move |(values, formats)| {
                // Few elements: the oracle takes a minute for 128, and where documents are cut does
                // not depend on them.
                let case =
                    Case { token_scores: false, values, ..Case::new(24, &queries, &documents) };
                QuantizedCase { case, formats }
            },
        )
    });
    Suite::run_large("stream_k_codes_many_documents", cases, check);
}

/// Sums have one order: a row that cuts documents gives the bits of the one that does not,
/// whichever CTA is first with its partial.
#[test]
fn twenty_runs_give_the_bits_of_whole_documents() {
    Suite::run_gpu("gpu_stream_k_codes_same_bits", |suite| {
        let mut n_cases = 0;
        for (queries, documents) in many() {
            for values in [Values::Unit, Values::Negative, Values::Special] {
                let case = Case { values, ..Case::new(128, &queries, &documents) };
                let data = case.data();
                compare::<Int8>(suite, &case, &data, Operand::I8)?;
                compare::<Fp8>(suite, &case, &data, Operand::E4m3)?;
                n_cases += 2;
            }
        }
        Ok(n_cases)
    });
}

/// Compares both rows of a format, on every device that runs them.
fn compare<F: Quantized + ScorableWith<F>>(
    suite: &Suite,
    case: &Case,
    data: &Data,
    operand: Operand,
) -> Result<(), String> {
    let pairing = case.pairing(data).map_err(text)?;
    let halves = [elements::<f32>(&data.queries), elements(&data.documents)];
    let queries = tokens(&case.queries, &data.queries, &halves[0]).map_err(text)?;
    let documents = tokens(&case.documents, &data.documents, &halves[1]).map_err(text)?;
    let queries = queries.quantize::<F>(ScaleType::F16).map_err(text)?;
    let documents = documents.quantize::<F>(ScaleType::F16).map_err(text)?;
    let is_long = |row: &&Variant| row.operand == operand && row.schedule.is_swap_ab();
    let row = FORWARD
        .iter()
        .filter(is_long)
        .find(|row| row.schedule.is_stream_k())
        .ok_or("no row cuts documents")?;
    let whole = FORWARD
        .iter()
        .filter(is_long)
        .find(|row| !row.schedule.is_stream_k())
        .ok_or("all rows do")?;
    for device in cuda_devices().iter().filter(|device| runs_row(device, row)) {
        let queries = device.upload(&queries).map_err(text)?;
        let documents = device.upload(&documents).map_err(text)?;
        let run = |kernel: &Variant| {
            let options = options(row).kernel(kernel.name);
            device.score_with(&queries, &documents, &pairing, &options)
        };
        let found = twenty_times(|| run(row))?;
        let expected = run(whole).map_err(text)?;
        if !same_bits(&found, &expected) {
            return Err(format!("{device} {}: other bits than {}: {case:?}", row.name, whole.name));
        }
        suite.count(&format!("{device} {}", row.name));
    }
    Ok(())
}
