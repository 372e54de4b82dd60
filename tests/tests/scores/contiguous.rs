//! Documents that lie one behind the other, for which short queries have kernels of their own:
//! units of one document and of hundreds, chunks with several documents, documents that all warps
//! share.

use half::{bf16, f16};
use maxsim::format::{Element, ElementType, Int8, ScaleType, Scales};
use maxsim::{Device, Pairing, ScoreOptions, Scores, TokenLayout, Tokens};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use maxsim_tests::case::{Case, Data, Layout, Pairs, Side, elements, tokens};
use maxsim_tests::engines::{check_case, check_case_on_rows, cuda_devices, runs_row};
use maxsim_tests::gpu::{on_rows, options, repeat_on_rows, same_bits, text, twenty_times};
use maxsim_tests::oracle::maxsim;
use maxsim_tests::quantized::{
    Formats, QuantizedCase, check_quantized_case, check_quantized_case_on_rows,
};
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

/// Rows that have whole documents in runs.
fn is_meant(row: &Variant) -> bool {
    row.schedule.is_contiguous() && !row.schedule.is_stream_k()
}

/// On the CPU, as devices choose, and on the rows that this is about.
fn check(suite: &Suite, case: &Case) -> Result<(), String> {
    check_case_on_rows(suite, case, is_meant)
}

#[test]
fn random_f16() {
    Suite::run_random_on_kernels("contiguous_f16", || cases(ElementType::F16), check);
}

#[test]
fn random_bf16() {
    Suite::run_random_on_kernels("contiguous_bf16", || cases(ElementType::Bf16), check);
}

/// Cases as these, whose rows the kernel normalises, by lengths that it finds itself.
pub fn normalized(cases: impl Strategy<Value = Case>) -> impl Strategy<Value = Case> {
    (cases, any::<[bool; 2]>()).prop_map(|(case, [angular, weights])| Case {
        normalize: true,
        angular,
        weights,
        ..case
    })
}

#[test]
fn random_normalized_f16() {
    let cases = || normalized(cases(ElementType::F16));
    Suite::run_random_on_kernels("contiguous_normalized_f16", cases, check);
}

#[test]
fn random_normalized_bf16() {
    let cases = || normalized(cases(ElementType::Bf16));
    Suite::run_random_on_kernels("contiguous_normalized_bf16", cases, check);
}

/// Documents that end around the rows that are multiplied at a time, behind which rows of any
/// length lie, and blocks of several queries.
#[test]
fn edges_of_normalized_rows() {
    let mut cases = Vec::new();
    for (i, len) in [1, 15, 16, 17, 31, 33, 63, 64, 65, 128].into_iter().enumerate() {
        for (j, element) in [ElementType::F16, ElementType::Bf16].into_iter().enumerate() {
            for (pairs, queries, documents) in [
                (Pairs::Cross, vec![32], vec![len, 1, len, 2, 2 * len + 1]),
                (Pairs::Cross, vec![1, 31, 33], vec![len; 7]),
                (Pairs::Own { k: 2 }, vec![20; 300], vec![len % 5 + 1; 600]),
            ] {
                let values = Values::ALL[(i + cases.len()) % Values::ALL.len()];
                let mut case =
                    Case { element, values, pairs, ..Case::new(DIM, &queries, &documents) };
                case.queries.valid_percent = [None, Some(60)][i % 2];
                (case.normalize, case.poison) = (true, true);
                (case.angular, case.token_scores) = ((i + j) % 2 == 0, i % 3 == 0);
                case.seed = cases.len() as u64;
                cases.push(case);
            }
        }
    }
    Suite::run_on_kernels("contiguous_edges_of_normalized", cases, check);
}

/// INT8, with scales of any two types.
fn int8_cases() -> impl Strategy<Value = QuantizedCase> {
    let element = select(&ElementType::ALL);
    (element.prop_flat_map(cases), select(&INT8)).prop_map(int8_case)
}

/// The formats of INT8 on both sides: kernels read f16 scales of documents as they are, and f32.
const INT8: [Formats; 3] = [
    Formats::Int8(ScaleType::F16, ScaleType::F16),
    Formats::Int8(ScaleType::F32, ScaleType::F16),
    Formats::Int8(ScaleType::F32, ScaleType::F32),
];

fn int8_case((case, formats): (Case, Formats)) -> QuantizedCase {
    QuantizedCase { case, formats }
}

/// As [`check`], of INT8.
fn check_int8(suite: &Suite, case: &QuantizedCase) -> Result<(), String> {
    check_quantized_case_on_rows(suite, case, is_meant)
}

#[test]
fn random_int8() {
    Suite::run_random_on_kernels("contiguous_int8", int8_cases, check_int8);
}

/// Documents that end, and runs that begin, around the rows that are multiplied or copied at a
/// time, and anywhere in the 16 bytes that copies of scales begin with.
#[test]
fn edges_of_int8() {
    const EDGES: [usize; 13] = [1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 130, 131, 3];
    let mut cases = Vec::new();
    for (i, &len) in EDGES.iter().enumerate() {
        let around = [len, 1, len, 2, 2 * len + 1, len];
        for (pairs, queries) in [
            (Pairs::Cross, &[32][..]),
            (Pairs::Cross, &[1, 31, 33]),
            (Pairs::Own { k: 3 }, &[20, 5]),
        ] {
            for spare_rows in 0..8 {
                let mut case = Case { pairs, ..Case::new(DIM, queries, &around) };
                case.documents.spare_rows = spare_rows;
                case.queries.valid_percent = [None, Some(60)][spare_rows % 2];
                case.values = Values::ALL[(i + spare_rows) % Values::ALL.len()];
                case.poison = true;
                case.upload = [true; 2];
                cases.push(int8_case((case, INT8[(i + spare_rows) % INT8.len()])));
            }
        }
    }
    Suite::run_on_kernels("contiguous_edges_of_int8", cases, check_int8);
}

/// More documents than a warp knows the ends of at a time, in every block.
#[test]
fn many_documents_of_int8() {
    let lengths: Vec<usize> = (0..9000).map(|i| 1 + i * 7 % 5).collect();
    let long: Vec<usize> = (0..3000).map(|i| 1 + i * 37 % 101).collect();
    let shapes: [(&[usize], &[usize], Pairs); 5] = [
        (&[32], &lengths, Pairs::Cross),
        (&[20], &long, Pairs::Cross),
        (&[32, 31], &lengths, Pairs::Own { k: 4000 }),
        // Most blocks have several queries, one after the other.
        (&[17; 900], &[3; 30], Pairs::Own { k: 2 }),
        (&[32; 600], &lengths[..500], Pairs::Own { k: 3 }),
    ];
    let cases = shapes.into_iter().zip(INT8.into_iter().cycle());
    let cases = cases.map(|((queries, documents, pairs), formats)| {
        let values = Values::Negative;
        int8_case((Case { pairs, values, ..Case::new(DIM, queries, documents) }, formats))
    });
    Suite::run_large("contiguous_many_documents_of_int8", cases, check_int8);
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
    Suite::run_large("contiguous_many_documents", cases, check);
}

/// Documents that would be read so but for one thing: other rows have to take them.
#[test]
fn documents_that_are_not_contiguous() {
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
    with(&|case| case.document_splits = Some(2));
    let int8 = cases.iter().map(|case| int8_case((case.clone(), INT8[0])));
    Suite::run("contiguous_documents_of_int8_that_are_not", int8, check_quantized_case);
    Suite::run("contiguous_documents_that_are_not", cases, check_case);
}

/// What is repeated: lengths of queries, and the documents that they meet.
const REPEATED: [(&[usize], Pairs); 4] = [
    (&[32], Pairs::Cross),
    (&[15, 9], Pairs::Cross),
    (&[32; 90], Pairs::Own { k: 10 }),
    (&[20; 900], Pairs::Own { k: 1 }),
];

fn repeated_lengths() -> Vec<usize> {
    (0..900).map(|i| 1 + i * 37 % 290).collect()
}

/// Which warp is first with its share of a document depends on the run, and nothing of the result
/// may.
#[test]
fn twenty_runs_give_the_same_bits() {
    fn repeat<T: Element>(suite: &Suite) -> Result<usize, String> {
        let lengths = repeated_lengths();
        let mut n_cases = 0;
        for (queries, pairs) in REPEATED {
            let case = Case { element: T::TYPE, pairs, ..Case::new(DIM, queries, &lengths) };
            repeat_on_rows::<T>(suite, &case, |row| is_meant(row) && !row.normalizes())?;
            let case = Case { normalize: true, ..case };
            repeat_on_rows::<T>(suite, &case, |row| is_meant(row) && row.normalizes())?;
            n_cases += 2;
        }
        Ok(n_cases)
    }
    Suite::run_gpu("gpu_contiguous_repeats", |suite| {
        Ok(repeat::<f16>(suite)? + repeat::<bf16>(suite)?)
    });
}

/// Calls `check` with the row of INT8 that this is about, on every device that runs it.
fn on_int8_row(
    mut check: impl FnMut(&Device, &Variant) -> Result<(), String>,
) -> Result<(), String> {
    let is_int8 = |row: &&Variant| is_meant(row) && row.operand == Operand::I8;
    let row = FORWARD.iter().find(is_int8).ok_or("no row of INT8 reads runs of rows")?;
    let mut devices = cuda_devices().iter().filter(|device| runs_row(device, row));
    devices.try_for_each(|device| {
        check(device, row).map_err(|why| format!("{device} {}: {why}", row.name))
    })
}

/// Whether the row gives the same bits twenty times, and those of the kernel that reads tiles.
fn gives_the_bits_of_tiles(
    row: &Variant,
    run: impl Fn(&ScoreOptions) -> maxsim::Result<Scores>,
) -> Result<(), String> {
    const TILES: &str = "maxsim_forward_sm90_i8_d128_q64";
    let found = twenty_times(|| run(&options(row)))?;
    let tiles = options(row).kernel(TILES);
    let expected = run(&tiles).map_err(text)?;
    match same_bits(&found, &expected) {
        true => Ok(()),
        false => Err(format!("other bits than {TILES}")),
    }
}

/// Sums are exact, scales apply in one order, and the rows of a query are added in one: other
/// kernels of INT8 give the same bits, and so does every run.
#[test]
fn int8_gives_the_same_bits_as_tiles_do() {
    Suite::run_gpu("gpu_contiguous_int8_same_bits", |suite| {
        let lengths = repeated_lengths();
        let mut n_cases = 0;
        for (queries, pairs) in REPEATED {
            for values in [Values::Unit, Values::Negative, Values::Zeros, Values::Special] {
                let case = Case { pairs, values, ..Case::new(DIM, queries, &lengths) };
                let data = case.data();
                let pairing = case.pairing(&data).map_err(text)?;
                let halves = [elements::<f32>(&data.queries), elements(&data.documents)];
                let queries = tokens(&case.queries, &data.queries, &halves[0]).map_err(text)?;
                let documents =
                    tokens(&case.documents, &data.documents, &halves[1]).map_err(text)?;
                for scales in [ScaleType::F16, ScaleType::F32] {
                    let queries = queries.quantize::<Int8>(scales).map_err(text)?;
                    let documents = documents.quantize::<Int8>(scales).map_err(text)?;
                    on_int8_row(|device, row| {
                        let queries = device.upload(&queries).map_err(text)?;
                        let documents = device.upload(&documents).map_err(text)?;
                        gives_the_bits_of_tiles(row, |options| {
                            device.score_with(&queries, &documents, &pairing, options)
                        })
                        .map_err(|why| format!("{case:?}, {scales:?}: {why}"))?;
                        suite.count(&format!("{device} {}", row.name));
                        Ok(())
                    })?;
                    n_cases += 1;
                }
            }
        }
        Ok(n_cases)
    });
}

/// So many tokens that the scheduler is dynamic, in any order: units that are computed, and listed
/// ones, some of them of more documents than a warp knows the ends of at a time.
#[test]
fn int8_units_of_the_dynamic_scheduler() {
    const PERIOD: usize = 9973;
    let alike = vec![101; 30_000];
    let ragged = (0..30_000).map(|i| 1 + i * 37 % 200).collect();
    let longer = (0..4000).map(|i| 1 + i * 617 % 1500).collect();
    let short = (0..400_000).map(|i| 1 + i * 7 % 17).collect();
    let lists: [Vec<usize>; 4] = [alike, ragged, longer, short];
    let code = |i: usize| (((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i8).max(-127);
    let layout = |lens: &[usize]| {
        let ends = lens.iter().scan(0, |sum, &len| {
            *sum += len as i64;
            Some(*sum)
        });
        let offsets: Vec<i64> = std::iter::once(0).chain(ends).collect();
        TokenLayout::packed(lens.iter().sum(), DIM, &offsets).map_err(text)
    };
    Suite::run_gpu("gpu_contiguous_int8_dynamic", |suite| {
        let period: Vec<i8> = (1 << 20..).map(code).take(PERIOD * DIM).collect();
        for (documents, queries) in lists.iter().zip([&[32][..], &[32], &[15, 9], &[20]]) {
            let n_rows = documents.iter().sum::<usize>();
            let codes: Vec<i8> = period.iter().copied().cycle().take(n_rows * DIM).collect();
            let scales: Vec<f32> = (0..n_rows).map(|row| 0.5 + (row * 7 % 311) as f32).collect();
            let halves: Vec<f16> = scales.iter().map(|&scale| f16::from_f32(scale)).collect();
            let n_query_rows = queries.iter().sum::<usize>();
            let query: Vec<i8> = (0..n_query_rows * DIM).map(code).collect();
            let ones = Scales::F32(vec![1.0; n_query_rows].into());
            let queries = Tokens::<Int8>::from_codes(query, ones, layout(queries)?);
            let queries = queries.map_err(text)?;
            for scales in [Scales::F16(halves.into()), Scales::F32(scales.into())] {
                let documents = Tokens::<Int8>::from_codes(&codes, scales, layout(documents)?);
                let documents = documents.map_err(text)?;
                on_int8_row(|device, row| {
                    let documents = device.upload(&documents).map_err(text)?;
                    gives_the_bits_of_tiles(row, |options| {
                        device.score_with(&queries, &documents, &Pairing::cross(), options)
                    })
                    .map_err(|why| format!("{n_rows} rows: {why}"))?;
                    suite.count(&format!("{device} {}", row.name));
                    Ok(())
                })?;
            }
        }
        Ok(2 * lists.len())
    });
}

/// Addresses beyond 2³² bytes, elements beyond 2³¹: every document has the same rows.
#[test]
fn past_2_31_elements() {
    const LEN: usize = 8191;
    const N: usize = 2057;
    Suite::run_gpu("gpu_contiguous_past_2_31_elements", |suite| {
        let case = Case { element: ElementType::F16, ..Case::new(DIM, &[32], &[LEN]) };
        let Data { queries, documents, .. } = case.data();
        let answer = maxsim(&queries, 0, &documents, 0);
        let [of_queries, period] = [&queries, &documents].map(elements::<f16>);
        let repeated: Vec<f16> = period.iter().copied().cycle().take(N * LEN * DIM).collect();
        let queries = tokens(&case.queries, &queries, &of_queries).map_err(text)?;
        let documents = Tokens::padded(&repeated, N, LEN, DIM).map_err(text)?;
        let is_plain = |row: &Variant| is_meant(row) && !row.normalizes();
        on_rows(ElementType::F16, is_plain, |device, row| {
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
        })?;
        Ok(N)
    });
}

/// The same of codes: every document has the same, and its tokens a scale that others have not.
#[test]
fn past_2_31_codes() {
    const LEN: usize = 8191;
    const N: usize = 2057;
    const QUERY_LEN: usize = 32;
    let codes = |rows: usize, seed: usize| -> Vec<i8> {
        let code = |i: usize| (((i + seed) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i8;
        (0..rows * DIM).map(|i| code(i).max(-127)).collect()
    };
    Suite::run_gpu("gpu_contiguous_past_2_31_codes", |suite| {
        let (query, period) = (codes(QUERY_LEN, 1), codes(LEN, 1 << 20));
        let most = |q: &[i8]| -> i32 {
            let sum = |d: &[i8]| q.iter().zip(d).map(|(&q, &d)| i32::from(q) * i32::from(d)).sum();
            period.chunks_exact(DIM).map(sum).max().unwrap_or(0)
        };
        let sum: i32 = query.chunks_exact(DIM).map(most).sum();
        // Nothing is rounded.
        let scale = |document: usize| 0.5f32.powi((document % 11) as i32);
        let repeated: Vec<i8> = period.iter().copied().cycle().take(N * LEN * DIM).collect();
        let layout = |n, len| TokenLayout::padded(n, len, DIM).map_err(text);
        let ones = Scales::F32(vec![1.0; QUERY_LEN].into());
        let queries = Tokens::<Int8>::from_codes(query, ones, layout(1, QUERY_LEN)?);
        let queries = queries.map_err(text)?;
        let scales: Vec<f32> = (0..N * LEN).map(|row| scale(row / LEN)).collect();
        let halves: Vec<f16> = scales.iter().map(|&scale| f16::from_f32(scale)).collect();
        for scales in [Scales::F16(halves.into()), Scales::F32(scales.into())] {
            let documents = Tokens::<Int8>::from_codes(&repeated, scales, layout(N, LEN)?);
            let documents = documents.map_err(text)?;
            on_int8_row(|device, row| {
                let documents = device.upload(&documents).map_err(text)?;
                let cross = Pairing::cross();
                let found = device.score_with(&queries, &documents, &cross, &options(row));
                for (document, &score) in found.map_err(text)?.values().iter().enumerate() {
                    let expected = sum as f32 * scale(document);
                    if score != expected {
                        return Err(format!("document {document}: {score}, expected {expected}"));
                    }
                }
                suite.count(&format!("{device} {}", row.name));
                Ok(())
            })?;
        }
        Ok(2 * N)
    });
}
