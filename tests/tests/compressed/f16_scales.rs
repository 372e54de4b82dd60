//! INT8 documents with f16 and with f32 scales, exactly: kernels that read f16 scales copy them in
//! words of two, wherever a document begins and ends in them.

use std::collections::BTreeSet;

use half::f16;
use maxsim::format::{Int8, Scales};
use maxsim::{Pairing, TokenLayout, Tokens};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use maxsim_tests::engines::{cuda_devices, runs_row};
use maxsim_tests::quantized::with_scores_of_every_row;

const QUERY_LENS: [usize; 3] = [5, 64, 33];
/// Documents begin and end with either half of a word, and the last one with the matrix.
const DOCUMENT_LENS: [usize; 12] = [1, 127, 128, 129, 300, 1, 2, 63, 0, 257, 16, 1];
/// The same without an empty one, which rows that read documents as runs of rows do not take: runs
/// that begin anywhere in 16 bytes of scales, documents that end around the rows that are
/// multiplied or copied at a time.
const RUN_LENS: [usize; 12] = [1, 15, 33, 300, 16, 31, 3, 17, 129, 32, 2, 65];

/// Scales of f16, which some rows have.
const SIZES: [f32; 6] = [1.0, 0.0, 6e-8, 1e-7, 65504.0, f32::NAN];

/// The sign of a row's codes.
type Sign = fn(usize) -> i32;

const SIGNS: [(&str, Sign); 4] = [
    ("positive", |_| 1),
    ("negative", |_| -1),
    ("zero", |_| 0),
    ("all but a few negative", |row| if row % 50 == 49 { 1 } else { -1 }),
];

/// A code from 1 to 100 for each element.
fn size(i: usize, seed: usize) -> i32 {
    (((i + seed) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i32 % 100 + 1
}

fn offsets(lens: &[usize]) -> Vec<i64> {
    let ends = lens.iter().scan(0, |end, &len| {
        *end += len as i64;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

/// The largest similarity, NaN before all; `None` without tokens.
fn most(similarities: impl Iterator<Item = f32>) -> Option<f32> {
    similarities.reduce(|a, b| if a.is_nan() || a >= b { a } else { b })
}

/// Every (query, document) pair, and the same in other orders.
fn pairings() -> Vec<(Pairing, Vec<(usize, usize)>)> {
    let (n_queries, n_documents) = (QUERY_LENS.len(), DOCUMENT_LENS.len());
    let own = n_documents / n_queries;
    let all = (0..n_queries).flat_map(|q| (0..n_documents).map(move |d| (q, d))).collect();
    let backwards: Vec<(usize, usize)> =
        (0..n_queries).flat_map(|q| (0..n_documents).rev().map(move |d| (q, d))).collect();
    let mixed: Vec<(usize, usize)> =
        (0..40).map(|i| (i % n_queries, i * 5 % n_documents)).collect();
    let queries: Vec<i64> = mixed.iter().map(|&(q, _)| q as i64).collect();
    let documents: Vec<i64> = mixed.iter().map(|&(_, d)| d as i64).collect();
    let ids: Vec<i64> = backwards.iter().map(|&(_, d)| d as i64).collect();
    vec![
        (Pairing::cross(), all),
        (Pairing::candidates(&ids, n_documents).expect("ids"), backwards),
        (Pairing::pairs(&queries, &documents).expect("ids"), mixed),
        (Pairing::own_candidates(own), (0..n_documents).map(|d| (d / own, d)).collect()),
    ]
}

/// Documents' rows, without those that are masked.
fn valid_rows(lens: &[usize], d: usize, mask: Option<&[u8]>) -> impl Iterator<Item = usize> {
    let starts = offsets(lens);
    let rows = starts[d] as usize..starts[d + 1] as usize;
    rows.filter(move |&row| mask.is_none_or(|mask| mask[row] != 0))
}

/// What the calls of a check have in common.
#[derive(Clone, Copy)]
struct Shape<'a> {
    dim: usize,
    document_lens: &'a [usize; DOCUMENT_LENS.len()],
    is_masked: bool,
}

/// Checks on every engine, and says which rows of kernels that was.
fn check(shape: Shape<'_>, sign: (&str, Sign), odd_scale: f32) -> BTreeSet<&'static str> {
    let Shape { dim, document_lens, is_masked } = shape;
    let mut ran = BTreeSet::new();
    let (n_queries, n_rows) = (QUERY_LENS.iter().sum(), document_lens.iter().sum());
    let layout =
        |rows, lens: &[usize]| TokenLayout::packed(rows, dim, &offsets(lens)).expect("a layout");
    let query_codes: Vec<i8> = (0..n_queries * dim)
        .map(|i| (if i / dim % 3 == 2 { -1 } else { 1 } * size(i, 1)) as i8)
        .collect();
    let ones = Scales::F32(vec![1.0; n_queries].into());
    let queries = Tokens::<Int8>::from_codes(&query_codes, ones, layout(n_queries, &QUERY_LENS));
    let queries = queries.expect("queries");

    let codes: Vec<i8> =
        (0..n_rows * dim).map(|i| ((sign.1)(i / dim) * size(i, 1 << 20)) as i8).collect();
    // Rows that are switched off may have any scale.
    let mask: Option<Vec<u8>> =
        is_masked.then(|| (0..n_rows).map(|row| u8::from(row % 5 != 1)).collect());
    let halves: Vec<f16> = (0..n_rows)
        .map(|row| match row {
            _ if is_masked && row % 5 == 1 => f16::INFINITY,
            // With either half of a word, in some tiles of the longer documents, first and last
            // rows.
            _ if row % 97 == 1 => f16::from_f32(odd_scale),
            _ => f16::from_f32(0.01 + row as f32 * 1e-4),
        })
        .collect();
    let widened: Vec<f32> = halves.iter().map(|half| half.to_f32()).collect();

    let sums: Vec<i32> = query_codes
        .chunks_exact(dim)
        .flat_map(|q| codes.chunks_exact(dim).map(move |d| (q, d)))
        .map(|(q, d)| q.iter().zip(d).map(|(&q, &d)| i32::from(q) * i32::from(d)).sum())
        .collect();
    let expected = |token: usize, d: usize| {
        let rows = valid_rows(document_lens, d, mask.as_deref());
        most(rows.map(|row| sums[token * n_rows + row] as f32 * widened[row]))
    };
    let first_tokens = offsets(&QUERY_LENS);
    for scales in [Scales::F16(halves.into()), Scales::F32(widened.clone().into())] {
        let what = if matches!(scales, Scales::F16(_)) { "f16" } else { "f32" };
        let documents = Tokens::<Int8>::from_codes(&codes, scales, layout(n_rows, document_lens));
        let mut documents = documents.expect("documents");
        if let Some(mask) = &mask {
            documents = documents.with_mask(&mask[..]).expect("a mask");
        }
        for (pairing, pairs) in pairings() {
            with_scores_of_every_row(Operand::I8, &queries, &documents, &pairing, |row, found| {
                ran.extend(
                    FORWARD.iter().map(|known| known.name).filter(|&name| Some(name) == row),
                );
                let token_scores = found.token_scores().expect("token scores");
                let offsets = found.token_offsets().expect("token scores");
                for (p, &(q, d)) in pairs.iter().enumerate() {
                    for (s, at) in offsets.range(p).enumerate() {
                        let Some(expected) = expected(first_tokens[q] as usize + s, d) else {
                            continue;
                        };
                        let found = token_scores[at];
                        assert!(
                            expected == found || expected.is_nan() && found.is_nan(),
                            "{row:?}, {what}, dim {dim}, {}, {odd_scale:e}, mask {is_masked}, \
                             {pairing:?}, query {q}, token {s}, document {d}: {expected:e}, not \
                              {found:e}",
                            sign.0
                        );
                    }
                }
            });
        }
    }
    ran
}

const WHOLE: Shape<'_> = Shape { dim: 128, document_lens: &DOCUMENT_LENS, is_masked: false };

/// That such rows, which a test is about, are among those that ran, on a machine that can run them.
fn expect(ran: &BTreeSet<&str>, are_meant: fn(&Variant) -> bool) {
    let meant = FORWARD.iter().filter(|row| row.operand == Operand::I8 && are_meant(row));
    for (device, row) in cuda_devices().iter().flat_map(|d| meant.clone().map(move |row| (d, row)))
    {
        let name = row.name;
        assert!(!runs_row(device, row) || ran.contains(name), "no case was for {device} {name}");
    }
}

#[test]
fn of_any_size_and_sign() {
    for sign in SIGNS {
        for odd_scale in SIZES {
            expect(&check(WHOLE, sign, odd_scale), |row| {
                // Rows that cut documents find no token scores, which are what is compared here.
                row.dim_max >= 128 && !row.schedule.is_contiguous() && !row.schedule.is_stream_k()
            });
        }
    }
}

#[test]
fn in_runs_of_rows() {
    let shape = Shape { document_lens: &RUN_LENS, ..WHOLE };
    for sign in SIGNS {
        for odd_scale in SIZES {
            expect(&check(shape, sign, odd_scale), |row| row.schedule.is_contiguous());
        }
    }
}

#[test]
fn with_masks() {
    let shape = Shape { is_masked: true, ..WHOLE };
    for sign in SIGNS {
        check(shape, sign, 0.0);
        check(shape, sign, 1e-7);
    }
}

#[test]
fn of_fewer_dims() {
    for sign in SIGNS {
        check(Shape { dim: 100, ..WHOLE }, sign, 1e-7);
    }
}
