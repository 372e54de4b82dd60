//! Maxima of codes' similarities whatever their signs: kernels take short cuts where they are
//! positive.

use maxsim::format::{Fp8, Int8, Quantized, Scales, ScorableWith};
use maxsim::{TokenLayout, Tokens};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::quantize::{e4m3, e4m3_value};
use maxsim_tests::quantized::with_token_scores_of_every_row;

const DIM: usize = 128;
const QUERY_LEN: usize = 70;

/// A format's codes of numbers from -100 to 100, and what they stand for.
trait Codes: ScorableWith<Self> + Quantized {
    const OPERAND: Operand;
    /// Of Σ |q d|: what a similarity may err by.
    const BOUND: f64;
    fn code(number: i32) -> Self::Stored;
    fn value(code: Self::Stored) -> f64;
}

impl Codes for Int8 {
    const OPERAND: Operand = Operand::I8;
    const BOUND: f64 = 1e-7;
    fn code(number: i32) -> i8 {
        number as i8
    }
    fn value(code: i8) -> f64 {
        f64::from(code)
    }
}

impl Codes for Fp8 {
    const OPERAND: Operand = Operand::E4m3;
    // Tensor cores cut addends off 13 bits below the largest.
    const BOUND: f64 = 132.0 / 8192.0;
    fn code(number: i32) -> u8 {
        e4m3(number as f32 / 64.0)
    }
    fn value(code: u8) -> f64 {
        f64::from(e4m3_value(code))
    }
}

/// A number from 1 to 100 for each element.
fn size(i: usize, seed: usize) -> i32 {
    (((i + seed) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i32 % 100 + 1
}

/// The factor of a document token's numbers: -1, 0 or 1.
type Sign = fn(usize) -> i32;

/// Signs of documents' tokens by the tiles and half tiles that kernels work on.
const SIGNS: [(&str, Sign); 10] = [
    ("positive", |_| 1),
    ("negative", |_| -1),
    ("zero", |_| 0),
    ("half a tile negative", |t| if t < 64 { -1 } else { 1 }),
    ("the other half negative", |t| if t / 64 == 1 { -1 } else { 1 }),
    ("a tile negative", |t| if t < 128 { -1 } else { 1 }),
    ("a tile and a half negative", |t| if t < 200 { -1 } else { 1 }),
    ("all but the last tile negative", |t| if t < 384 { -1 } else { 1 }),
    ("a tile positive", |t| if t < 128 { 1 } else { -1 }),
    ("one token positive", |t| if t == 70 { 1 } else { -1 }),
];

fn check<F: Codes>() {
    let queries: Vec<F::Stored> = (0..QUERY_LEN * DIM)
        .map(|i| F::code(if i / DIM % 3 == 2 { -size(i, 1) } else { size(i, 1) }))
        .collect();
    let layout = |len| TokenLayout::padded(1, len, DIM).expect("a layout");
    let ones = Scales::F32(vec![1.0; QUERY_LEN].into());
    let query_tokens = Tokens::<F>::from_codes(&queries, ones, layout(QUERY_LEN)).expect("queries");
    for (len, (what, sign)) in [1, 63, 64, 65, 128, 129, 192, 420, 1087]
        .into_iter()
        .flat_map(|n| SIGNS.map(|sign| (n, sign)))
    {
        let documents: Vec<F::Stored> =
            (0..len * DIM).map(|i| F::code(sign(i / DIM) * size(i, 1 << 20))).collect();
        let scales: Vec<f32> = (0..len).map(|t| 0.01 + t as f32 * 1e-4).collect();
        let expected: Vec<(f64, f64)> = queries
            .chunks_exact(DIM)
            .map(|q| most::<F>(q, documents.chunks_exact(DIM).zip(&scales)))
            .collect();
        let scales = Scales::F32(scales.clone().into());
        let tokens = Tokens::<F>::from_codes(&documents, scales, layout(len)).expect("documents");
        with_token_scores_of_every_row(F::OPERAND, &query_tokens, &tokens, |row, found| {
            for (s, (&(expected, bound), &found)) in expected.iter().zip(found).enumerate() {
                assert!(
                    (expected - f64::from(found)).abs() <= bound,
                    "{len} tokens, {what}, {row:?}, token {s}: {expected:e}, not {found:e}"
                );
            }
        });
    }
}

/// The largest similarity, and how far from it one may be.
fn most<'a, F: Codes>(
    query: &[F::Stored],
    documents: impl Iterator<Item = (&'a [F::Stored], &'a f32)>,
) -> (f64, f64) {
    let similarity = |(document, &scale): (&[F::Stored], &f32)| {
        let products = || query.iter().zip(document).map(|(&q, &d)| F::value(q) * F::value(d));
        let scale = f64::from(scale);
        let size: f64 = products().map(f64::abs).sum();
        (products().sum::<f64>() * scale, size * scale * F::BOUND)
    };
    documents
        .map(similarity)
        .fold((f64::NEG_INFINITY, 0.0), |(most, bound), (x, by)| (most.max(x), f64::max(bound, by)))
}

#[test]
fn int8() {
    check::<Int8>();
}

#[test]
fn fp8() {
    check::<Fp8>();
}
