//! Compressed tokens: their formats as they are defined, written down naively, and a problem whose
//! tokens are compressed, checked on every engine.
//!
//! Codes and scales must be the definition's to the bit. Scores must agree with the oracle over
//! *stored codes* as [`agree`] says; with INT8 on both sides, where every sum of products is exact,
//! token scores and winners must be equal. And they must lie within the library's bounds of the
//! oracle's answers over the embeddings that were compressed.

use std::sync::OnceLock;

use half::{bf16, f16};
use maxsim::{
    Against, Device, DeviceTokens, Element, ElementType, Error, ErrorTerms, Format, Fp8, Input,
    Int8, Int8Affine, Pairing, Quantized, ScaleType, Scales, ScoreOptions, Scores, TokenFormat,
    Tokens, score_bounds,
};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use proptest::prelude::*;
use proptest::sample::select;

use crate::agree;
use crate::case::{Case, Data, elements, tokens};
use crate::engines::{cuda_devices, runs_row};
use crate::oracle::{Answer, Matrix, maxsim};
use crate::strategy::cases;
use crate::suite::Suite;

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
    /// What becomes of them.
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

/// What a row of a special kind, of which there are 16, is made of a unit row.
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
        // Of zeros the positive one.
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

/// What a code of a format is, widened.
trait Widen: Format {
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
fn check_codes<F: Quantized + Widen>(
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
            maxsim::TokenFormat::Fp8 => (expected, F::widen(code)),
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

/// Compresses a case's embeddings, scores them on every engine, and compares everything.
pub fn check_quantized_case(suite: &Suite, case: &QuantizedCase) -> Result<(), String> {
    check_embeddings(suite, case, &case.case.data())
}

/// As [`check_quantized_case`], on these rows of the variant table alone, each of which the suite
/// then has to meet in some case.
pub fn check_quantized_case_on_rows(
    suite: &Suite,
    case: &QuantizedCase,
    runs: fn(&Variant) -> bool,
) -> Result<(), String> {
    check_with(Engines { suite, runs: Some(runs) }, case, &case.case.data())
}

/// As [`check_quantized_case`], with embeddings that the case's are replaced by.
pub fn check_embeddings(
    suite: &Suite,
    case: &QuantizedCase,
    embeddings: &Data,
) -> Result<(), String> {
    check_with(Engines { suite, runs: None }, case, embeddings)
}

/// What a case is checked on, and where that is counted.
#[derive(Clone, Copy)]
struct Engines<'a> {
    suite: &'a Suite,
    /// The rows of kernels that the suite is about; `None` = any.
    runs: Option<fn(&Variant) -> bool>,
}

fn check_with(engines: Engines<'_>, case: &QuantizedCase, embeddings: &Data) -> Result<(), String> {
    match case.case.element {
        ElementType::F16 => check_half::<f16>(engines, case, embeddings),
        ElementType::Bf16 => check_half::<bf16>(engines, case, embeddings),
        ElementType::F32 => Compressed::<f32>::new(engines, case, embeddings).check(),
    }
}

fn check_half<T: Element + Against<Int8Affine>>(
    engines: Engines<'_>,
    case: &QuantizedCase,
    embeddings: &Data,
) -> Result<(), String> {
    let compressed = Compressed::<T>::new(engines, case, embeddings);
    if case.formats != Formats::Affine {
        return compressed.check();
    }
    let codes = affine(&embeddings.documents);
    let (queries, documents) = compressed.embeddings().map_err(text)?;
    let documents = documents.quantize::<Int8Affine>(ScaleType::F16).map_err(text)?;
    check_codes("documents", &documents, &codes, ScaleType::F16)?;
    let stored = stored(&embeddings.documents, &codes);
    let data = Data { documents: stored, exact: false, ..embeddings.clone() };
    compressed.check_scores(&queries, &documents, &data, ErrorTerms::new(&queries))
}

fn text(error: Error) -> String {
    error.to_string()
}

/// A case while it is checked.
struct Compressed<'a, T> {
    engines: Engines<'a>,
    case: &'a QuantizedCase,
    data: &'a Data,
    elements: [Vec<T>; 2],
}

impl<'a, T: Element> Compressed<'a, T> {
    fn new(engines: Engines<'a>, case: &'a QuantizedCase, data: &'a Data) -> Self {
        let elements = [elements(&data.queries), elements(&data.documents)];
        Compressed { engines, case, data, elements }
    }

    fn embeddings(&self) -> Result<(Tokens<'_, T>, Tokens<'_, T>), Error> {
        let Case { queries, documents, .. } = &self.case.case;
        Ok((
            tokens(queries, &self.data.queries, &self.elements[0])?,
            tokens(documents, &self.data.documents, &self.elements[1])?,
        ))
    }

    fn check(&self) -> Result<(), String> {
        let (queries, documents) = self.embeddings().map_err(text)?;
        let (q, d) = (&self.data.queries, &self.data.documents);
        match self.case.formats {
            Formats::Int8(s, t) => {
                let both = (int8(q, s), int8(d, t));
                self.check_both::<Int8, Int8>(&queries, &documents, [s, t], both)
            }
            Formats::Int8Affine(s) => {
                let both = (int8(q, s), affine(d));
                self.check_both::<Int8, Int8Affine>(&queries, &documents, [s, ScaleType::F16], both)
            }
            Formats::Fp8(s, t) => {
                let both = (fp8(q, s), fp8(d, t));
                self.check_both::<Fp8, Fp8>(&queries, &documents, [s, t], both)
            }
            Formats::Affine => Err("f32 queries have no affine documents".into()),
        }
    }

    fn check_both<Q: Quantized + Widen + Against<D>, D: Quantized + Widen>(
        &self,
        queries: &Tokens<'_, T>,
        documents: &Tokens<'_, T>,
        scales: [ScaleType; 2],
        codes: (Codes, Codes),
    ) -> Result<(), String> {
        let compressed_queries = queries.quantize::<Q>(scales[0]).map_err(text)?;
        let compressed_documents = documents.quantize::<D>(scales[1]).map_err(text)?;
        check_codes("queries", &compressed_queries, &codes.0, scales[0])?;
        check_codes("documents", &compressed_documents, &codes.1, scales[1])?;
        let data = Data {
            queries: stored(&self.data.queries, &codes.0),
            documents: stored(&self.data.documents, &codes.1),
            exact: false,
            ..self.data.clone()
        };
        let measured = ErrorTerms::measured(&compressed_queries, queries).map_err(text)?;
        self.check_scores(&compressed_queries, &compressed_documents, &data, measured)
    }

    /// Scores on every engine, with and without winners; `data` is what the oracle is to see.
    /// `measured` is what is known of the queries' errors, where the embeddings are at hand.
    fn check_scores<Q: Against<D>, D: Quantized>(
        &self,
        queries: &Tokens<'_, Q>,
        documents: &Tokens<'_, D>,
        data: &Data,
        measured: ErrorTerms,
    ) -> Result<(), String> {
        let case = &self.case.case;
        let pairing = case.pairing(data).map_err(text)?;
        let answers = |data: &Data| -> Vec<Answer> {
            let of = |&(q, d): &(usize, usize)| maxsim(&data.queries, q, &data.documents, d);
            data.pairs.iter().map(of).collect()
        };
        let (expected, exact) = (answers(data), answers(self.data));
        let (_, embeddings) = self.embeddings().map_err(text)?;
        let from_codes = [ErrorTerms::new(queries), ErrorTerms::new(documents)];
        let measured = [measured, ErrorTerms::measured(documents, &embeddings).map_err(text)?];
        let bounds = |[q, d]: &[ErrorTerms; 2]| score_bounds(q, d, &pairing).map_err(text);
        let bounds = [bounds(&from_codes)?, bounds(&measured)?];
        let mut values = self.data.queries.values.iter().chain(&self.data.documents.values);
        if values.all(|x| x.abs() < 1e4)
            && let Some(p) = bounds.iter().flatten().position(|bound| !bound.is_finite())
        {
            return Err(format!("bound {p} is not finite, though no row is out of the ordinary"));
        }
        let Engines { suite, runs } = self.engines;
        for winners in [false, true] {
            for (device, row) in engines(Q::FORMAT, D::FORMAT) {
                if let (Some(row), Some(runs)) = (row, runs)
                    && !runs(row)
                {
                    continue;
                }
                let options = ScoreOptions::default()
                    .winners(winners)
                    .token_scores(case.token_scores)
                    .kernel(row.map(|row| row.name.to_string()).as_deref());
                let name = row.map_or(device.to_string(), |row| format!("{device} {}", row.name));
                let at = |what: String| format!("{name}, winners {winners}: {what}");
                let counted = format!("{name} {}×{}", Q::FORMAT, D::FORMAT);
                if runs.is_some() && row.is_some_and(|row| runs_row(device, row)) {
                    suite.expect(&counted);
                }
                let found = call(device, case.upload, queries, documents, &pairing, &options);
                let found = match found {
                    // A row that does not take the case; or there is none.
                    Err(Error::Unsupported { .. })
                        if row.is_some() || !has_kernels::<Q, D>(device) =>
                    {
                        continue;
                    }
                    found => found.map_err(text).map_err(at)?,
                };
                let coarse = match device.ordinal() {
                    Some(_) if D::FORMAT == Fp8::FORMAT => FP8_ERROR,
                    _ => 0.0,
                };
                let data = &Data { coarse, ..data.clone() };
                agree::check(data, &expected, &options, &found).map_err(at)?;
                if (Q::FORMAT, D::FORMAT) == (Int8::FORMAT, Int8::FORMAT) {
                    check_exactly(data, &found).map_err(at)?;
                }
                for bounds in &bounds {
                    check_bounds(&exact, &found, bounds).map_err(at)?;
                }
                suite.count(&counted);
            }
        }
        for (p, (from_codes, measured)) in bounds[0].iter().zip(&bounds[1]).enumerate() {
            if measured > from_codes {
                let what = "what was measured is above what codes promise";
                return Err(format!("score {p}: {what}: {measured:e} > {from_codes:e}"));
            }
        }
        Ok(())
    }
}

/// What kernels multiply for queries and documents of these formats.
fn operand(queries: TokenFormat, documents: TokenFormat) -> Option<Operand> {
    match (queries, documents) {
        (TokenFormat::Int8, TokenFormat::Int8) => Some(Operand::I8),
        (TokenFormat::Int8, TokenFormat::Int8Affine) => Some(Operand::I8Affine),
        (TokenFormat::Element(element), TokenFormat::Int8Affine) => Some(Operand::Affine(element)),
        (TokenFormat::Fp8, TokenFormat::Fp8) => Some(Operand::E4m3),
        _ => None,
    }
}

/// Every device as it chooses, and every row of kernels by its name.
fn engines(
    queries: TokenFormat,
    documents: TokenFormat,
) -> impl Iterator<Item = (&'static Device, Option<&'static Variant>)> {
    static CPU: OnceLock<Device> = OnceLock::new();
    let operand = operand(queries, documents);
    let rows = FORWARD.iter().filter(move |row| operand == Some(row.operand));
    let chosen = std::iter::once(CPU.get_or_init(Device::cpu)).chain(cuda_devices());
    let rows = cuda_devices()
        .iter()
        .flat_map(move |device| rows.clone().map(move |row| (device, Some(row))));
    chosen.map(|device| (device, None)).chain(rows)
}

/// Whether the device runs some row for these formats.
fn has_kernels<Q: Format, D: Format>(device: &Device) -> bool {
    let operand = operand(Q::FORMAT, D::FORMAT);
    FORWARD.iter().any(|row| runs_row(device, row) && operand == Some(row.operand))
}

/// What tensor cores lose of e4m3 products here, relative to Σ |q_k d_k|: up to 5 · 10⁻⁴ was seen.
/// (Rows can be made that lose more; bounds count with that.)
const FP8_ERROR: f64 = 1e-3;

/// A call with tokens uploaded where the case says so.
fn call<Q: Against<D>, D: Format>(
    device: &Device,
    upload: [bool; 2],
    queries: &Tokens<'_, Q>,
    documents: &Tokens<'_, D>,
    pairing: &Pairing,
    options: &ScoreOptions,
) -> Result<Scores, Error> {
    fn handle<F: Format>(
        device: &Device,
        tokens: &Tokens<'_, F>,
        yes: bool,
    ) -> Result<Option<DeviceTokens<F>>, Error> {
        yes.then(|| device.upload(tokens)).transpose()
    }
    let handles = (handle(device, queries, upload[0])?, handle(device, documents, upload[1])?);
    let queries = handles.0.as_ref().map_or(Input::Host(queries), Input::Device);
    let documents = handles.1.as_ref().map_or(Input::Host(documents), Input::Device);
    device.score_with(queries, documents, pairing, options)
}

/// INT8 on both sides: token scores are the best of the sums, exact, times the document's scale in
/// f32, then times the query's; winners the first that have it.
fn check_exactly(data: &Data, found: &Scores) -> Result<(), String> {
    let Some(offsets) = found.token_offsets() else { return Ok(()) };
    for (p, &(q, d)) in data.pairs.iter().enumerate() {
        for (s, at) in offsets.range(p).enumerate() {
            let Some(query) = data.queries.token(q, s) else { continue };
            let mut best: Option<(f32, usize)> = None;
            for (t, document) in data.documents.tokens(d) {
                let codes = query.values.iter().zip(document.values);
                let sum: i64 = codes.map(|(&q, &d)| q as i64 * d as i64).sum();
                let new = sum as f32 * document.factor as f32;
                if best.is_none_or(|(old, _)| new > old || new.is_nan() && !old.is_nan()) {
                    best = Some((new, t));
                }
            }
            let Some((best, t)) = best else { continue };
            let best = best * query.factor as f32;
            let wrong = |what: &str, expected: String, found: String| {
                let place = format!("score {p}, query token {s}");
                Err(format!("{place}: {what}: expected {expected}, found {found}, exactly"))
            };
            if let Some(token_scores) = found.token_scores() {
                let found = token_scores[at];
                if !(best.is_nan() && found.is_nan() || best == found) {
                    return wrong("token score", best.to_string(), found.to_string());
                }
            }
            if let Some(winners) = found.winners()
                && !best.is_nan()
                && winners[at] != t as i32
            {
                return wrong("winner", t.to_string(), winners[at].to_string());
            }
        }
    }
    Ok(())
}

/// Scores lie within the bounds of what the embeddings themselves have.
fn check_bounds(exact: &[Answer], found: &Scores, bounds: &[f32]) -> Result<(), String> {
    for (p, ((answer, &score), &bound)) in exact.iter().zip(found.values()).zip(bounds).enumerate()
    {
        let off = (f64::from(score) - answer.score.exact).abs();
        // A NaN is below no bound but ∞.
        let holds = bound == f32::INFINITY || off <= f64::from(bound);
        if !holds || bound.is_nan() {
            let exact = answer.score.exact;
            return Err(format!(
                "score {p} is {score}, exactly {exact}: off by {off}, not {bound}"
            ));
        }
    }
    Ok(())
}

/// Calls `check` with the token scores of queries and documents from every CUDA device and row of
/// their operand that takes them, and from the CPU, and with the row's name.
///
/// # Panics
/// Where they cannot be scored for another reason than that the row does not take them.
pub fn with_token_scores_of_every_row<Q: Against<D>, D: Quantized>(
    operand: Operand,
    queries: &Tokens<'_, Q>,
    documents: &Tokens<'_, D>,
    mut check: impl FnMut(Option<&str>, &[f32]),
) {
    let cross = Pairing::cross();
    with_scores_of_every_row(operand, queries, documents, &cross, |row, found| {
        check(row, found.token_scores().expect("token scores"));
    });
}

/// As [`with_token_scores_of_every_row`], with all that is scored of a pairing.
///
/// # Panics
/// As there.
pub fn with_scores_of_every_row<Q: Against<D>, D: Quantized>(
    operand: Operand,
    queries: &Tokens<'_, Q>,
    documents: &Tokens<'_, D>,
    pairing: &Pairing,
    mut check: impl FnMut(Option<&str>, &Scores),
) {
    let rows = || FORWARD.iter().filter(|row| row.operand == operand);
    let on_cuda =
        cuda_devices().iter().flat_map(|device| rows().map(move |row| (device, Some(row))));
    let cpu = Device::cpu();
    for (device, row) in on_cuda.chain([(&cpu, None)]) {
        let kernel = row.map(|row| row.name.to_string());
        let winners = row.is_some_and(|row| row.winners);
        let options =
            ScoreOptions::default().token_scores(true).kernel(kernel.as_deref()).winners(winners);
        let found = match device.score_with(queries, documents, pairing, &options) {
            Err(Error::Unsupported { .. }) => continue,
            found => found.expect("scores"),
        };
        check(row.map(|row| row.name), &found);
    }
}
