//! The formats of compressed tokens as they are defined, written down naively.

use std::sync::OnceLock;

use half::f16;
use maxsim::Tokens;
use maxsim::format::{ElementType, Format, Fp8, Int8, Int8Affine, Quantized, ScaleType, Scales};
use proptest::prelude::*;
use proptest::sample::select;

use crate::case::Case;
use crate::oracle::Matrix;
use crate::strategy::cases;

/// Formats of queries and documents that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// INT8 on both sides, the scales of queries and of documents.
    Int8(ScaleType, ScaleType),
    /// Queries as they are, affine documents.
    Affine,
    /// INT8 queries, affine documents.
    Int8Affine(ScaleType),
    /// FP8 on both sides.
    Fp8(ScaleType, ScaleType),
}

impl Formats {
    /// All of them.
    pub const ALL: [Formats; 9] = [
        Formats::Int8(ScaleType::F16, ScaleType::F16),
        Formats::Int8(ScaleType::F32, ScaleType::F16),
        Formats::Int8(ScaleType::F32, ScaleType::F32),
        Formats::Affine,
        Formats::Int8Affine(ScaleType::F16),
        Formats::Int8Affine(ScaleType::F32),
        Formats::Fp8(ScaleType::F16, ScaleType::F16),
        Formats::Fp8(ScaleType::F32, ScaleType::Tensor),
        Formats::Fp8(ScaleType::Tensor, ScaleType::F32),
    ];

    /// Whether there are kernels or an engine for queries of this type.
    pub fn take(self, element: ElementType) -> bool {
        self != Formats::Affine || element != ElementType::F32
    }
}

/// A problem whose tokens are compressed before they are scored.
#[derive(Clone, Debug)]
pub struct QuantizedCase {
    /// The embeddings.
    pub case: Case,
    /// Formats that the rows are stored as.
    pub formats: Formats,
}

/// Any case of one format.
pub fn quantized_cases() -> impl Strategy<Value = QuantizedCase> {
    let element = select(&ElementType::ALL);
    (element.prop_flat_map(cases), select(&Formats::ALL)).prop_map(|(case, formats)| {
        let mut case = Case { normalize: false, ..case };
        if !formats.take(case.element) {
            case.element = ElementType::F16;
        }
        QuantizedCase { case, formats }
    })
}

/// Codes as the definition has them, widened, with scales and minima.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Codes {
    /// Per element.
    pub codes: Vec<f32>,
    /// Per row.
    pub scales: Vec<f32>,
    /// Per row.
    pub mins: Vec<f32>,
}

/// The numbers of e4m3 from 0 on, by code.
pub fn e4m3_numbers() -> &'static [f64] {
    static NUMBERS: OnceLock<Vec<f64>> = OnceLock::new();
    NUMBERS.get_or_init(|| {
        let number = |code: i32| match (code >> 3, f64::from(code & 7)) {
            (0, fraction) => fraction / 8.0 * 2f64.powi(-6),
            (exponent, fraction) => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
        };
        (0..0x7F).map(number).collect()
    })
}

/// The e4m3 number nearest to `x`, of two as near the one with the even code; saturating.
pub fn nearest_e4m3(x: f32) -> f32 {
    if x.is_nan() {
        return f32::NAN;
    }
    let (numbers, size) = (e4m3_numbers(), f64::from(x).abs());
    let distance = |code: usize| (numbers[code] - size).abs();
    let above = numbers.partition_point(|&number| number < size).min(numbers.len() - 1);
    let below = above.saturating_sub(1);
    let code = match distance(below).total_cmp(&distance(above)) {
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Greater => above,
        // A number beyond the largest is as far from all: ∞.
        std::cmp::Ordering::Equal if size.is_infinite() => above,
        std::cmp::Ordering::Equal => [below, above][usize::from(above % 2 == 0)],
    };
    (numbers[code] as f32).copysign(x)
}

/// Makes a row of a special kind, of which there are 16, of a unit row.
pub fn special_row(kind: usize, row: &mut [f32]) {
    let outlier = row.len() / 2;
    match kind {
        0 => row.fill(0.0),
        1 => row.fill(-0.0),
        // Beyond f16's scales, and beyond its numbers.
        2 => row.iter_mut().for_each(|x| *x *= 1e30),
        3 => row.iter_mut().for_each(|x| *x *= 3e7),
        // Scales that f16 has few bits for, or none.
        4 => row.iter_mut().for_each(|x| *x *= 1e-3),
        5 => row.iter_mut().for_each(|x| *x *= 1e-5),
        6 => row.iter_mut().for_each(|x| *x *= 1e-12),
        7 => row.iter_mut().for_each(|x| *x *= 1e-40),
        // All others become code 0, or nearly.
        8 => row[outlier] = 1e4,
        9 => row[outlier] = -300.0,
        // A minimum whose rounding is more than a step.
        10 => row.iter_mut().for_each(|x| *x = 100.3 + 1e-3 * *x),
        11 => row.fill(-7.77),
        12 => row.fill(f32::MAX),
        13 => row[outlier] = f32::NAN,
        14 => row[outlier] = f32::INFINITY,
        _ => row[0] = f32::NEG_INFINITY,
    }
}

fn to_storage(scale: f32, scales: ScaleType) -> f32 {
    match scales {
        ScaleType::F16 => f16::from_f32(scale.clamp(2f32.powi(-24), 65504.0)).to_f32(),
        _ => scale,
    }
}

/// INT8 as it is defined.
pub fn int8(matrix: &Matrix, scales: ScaleType) -> Codes {
    let mut found = Codes::default();
    for row in matrix.values.chunks_exact(matrix.dim) {
        let is_finite = row.iter().all(|x| x.is_finite());
        let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let scale = if is_finite { most.max(1e-8) / 127.0 } else { f32::NAN };
        let scale = to_storage(scale, scales);
        let code = |x: &f32| (x / scale).round_ties_even().clamp(-127.0, 127.0);
        found.codes.extend(row.iter().map(|x| if is_finite { code(x) } else { 0.0 }));
        found.scales.push(scale);
    }
    found.mins = vec![0.0; found.scales.len()];
    found
}

/// INT8 affine as it is defined.
pub fn affine(matrix: &Matrix) -> Codes {
    let mut found = Codes::default();
    for row in matrix.values.chunks_exact(matrix.dim) {
        let is_finite = row.iter().all(|x| x.is_finite());
        let least = row.iter().copied().fold(f32::INFINITY, f32::min);
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = if is_finite { ((most - least) / 255.0).max(1e-8) } else { f32::NAN };
        let scale = to_storage(scale, ScaleType::F16);
        // Choose +0 of the zeros.
        let min = if is_finite { least + 0.0 } else { 0.0 };
        let min = f16::from_f32(min.clamp(-65504.0, 65504.0)).to_f32();
        let code = |x: &f32| ((x - min) / scale).round_ties_even().clamp(0.0, 255.0);
        found.codes.extend(row.iter().map(|x| if is_finite { code(x) } else { 0.0 }));
        found.scales.push(scale);
        found.mins.push(min);
    }
    found
}

/// FP8 as it is defined.
pub fn fp8(matrix: &Matrix, scales: ScaleType) -> Codes {
    let dim = matrix.dim;
    let amax = |row: &[f32]| {
        let finite = row.iter().filter(|x| x.is_finite());
        finite.fold(0.0f32, |most, x| most.max(x.abs()))
    };
    let valid = (0..matrix.items.len()).flat_map(|i| matrix.tokens(i).map(|(_, row)| row));
    let all = valid.map(|row| amax(row.values)).fold(0.0, f32::max);
    let mut found = Codes::default();
    for row in matrix.values.chunks_exact(dim) {
        let amax = if scales == ScaleType::Tensor { all } else { amax(row) };
        let scale = to_storage(amax.max(1e-6) / 448.0, scales);
        let code = |x: &f32| if x.is_finite() { nearest_e4m3(x / scale) } else { f32::NAN };
        found.codes.extend(row.iter().map(code));
        found.scales.push(scale);
    }
    found.mins = vec![0.0; found.scales.len()];
    found
}

/// The matrix that codes stand for, to the oracle.
pub(crate) fn stored(matrix: &Matrix, codes: &Codes) -> Matrix {
    let widened = |numbers: &[f32]| Some(numbers.iter().map(|&x| f64::from(x)).collect());
    Matrix {
        values: codes.codes.clone(),
        factors: widened(&codes.scales),
        offsets: widened(&codes.mins),
        least: 0.0,
        ..matrix.clone()
    }
}

/// Widens a code of a format.
pub(super) trait Widen: Format {
    fn widen(code: Self::Stored) -> f32;
}

impl Widen for Int8 {
    fn widen(code: i8) -> f32 {
        code.into()
    }
}

impl Widen for Int8Affine {
    fn widen(code: u8) -> f32 {
        code.into()
    }
}

impl Widen for Fp8 {
    fn widen(code: u8) -> f32 {
        let number = e4m3_numbers().get(usize::from(code & 0x7F)).map_or(f64::NAN, |&x| x);
        if code & 0x80 == 0 { number as f32 } else { -number as f32 }
    }
}

/// Compares what the library made of a side with the definition, to the bit.
pub(super) fn check_codes<F: Quantized + Widen>(
    what: &str,
    found: &Tokens<'_, F>,
    expected: &Codes,
    scales: ScaleType,
) -> Result<(), String> {
    let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
    let at = |what: String, expected: f32, found: f32| match bits(expected) == bits(found) {
        true => Ok(()),
        false => Err(format!("{what}: expected {expected:e}, found {found:e}")),
    };
    let storage = match found.scales() {
        Scales::F16(_) | Scales::Affine { .. } => ScaleType::F16,
        Scales::F32(_) => ScaleType::F32,
        Scales::Tensor(_) => ScaleType::Tensor,
        other => return Err(format!("{what}: scales that no test knows: {other:?}")),
    };
    if storage != scales {
        return Err(format!("{what}: scales of type {storage:?}, not {scales:?}"));
    }
    let dim = found.layout().dim();
    for (row, (&scale, &min)) in expected.scales.iter().zip(&expected.mins).enumerate() {
        at(format!("{what}: scale of row {row}"), scale, found.scales().scale(row))?;
        at(format!("{what}: minimum of row {row}"), min, found.scales().min(row))?;
    }
    for (i, (&code, &expected)) in found.data().iter().zip(&expected.codes).enumerate() {
        // -0 and 0 are one whole number.
        let (expected, found) = match F::FORMAT {
            maxsim::format::TokenFormat::Fp8 => (expected, F::widen(code)),
            _ => (expected + 0.0, F::widen(code)),
        };
        at(format!("{what}: code {} of row {}", i % dim, i / dim), expected, found)?;
    }
    let values = found.dequantize().map_err(|error| error.to_string())?;
    for (i, &value) in values.data().iter().enumerate() {
        let row = i / dim;
        let expected = expected.codes[i] * expected.scales[row] + expected.mins[row];
        at(format!("{what}: value {i}"), expected + 0.0, value + 0.0)?;
    }
    Ok(())
}
