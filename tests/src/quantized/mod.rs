//! Compressed tokens: their formats as they are defined, written down naively, and a problem whose
//! tokens are compressed, checked on every engine.
//!
//! Codes and scales must be the definition's to the bit. Scores must agree with the oracle over
//! *stored codes* as [`agree`] says; with INT8 on both sides, where every sum of products is exact,
//! token scores and winners must be equal. And they must lie within the library's bounds of the
//! oracle's answers over the embeddings that were compressed.

mod formats;

use std::sync::OnceLock;

use half::{bf16, f16};
use maxsim::format::{
    Element, ElementType, Format, Fp8, Int8, Int8Affine, Quantized, ScaleType, ScorableWith,
    TokenFormat,
};
use maxsim::search::{ErrorTerms, score_bounds};
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, Scores, Tokens, TokensRef};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};

use crate::agree;
use crate::case::{Case, Data, elements, tokens};
use crate::engines::{cuda_devices, runs_row};
use crate::oracle::{Answer, maxsim};
use crate::suite::Suite;

pub(crate) use self::formats::stored;
pub use self::formats::{
    Codes, Formats, QuantizedCase, affine, e4m3_numbers, fp8, int8, nearest_e4m3, quantized_cases,
    special_row,
};
use self::formats::{Widen, check_codes};

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

/// Engines that a case is checked on, and the counter of the checks.
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

fn check_half<T: Element + ScorableWith<Int8Affine>>(
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

    fn check_both<Q: Quantized + Widen + ScorableWith<D>, D: Quantized + Widen>(
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
    fn check_scores<Q: ScorableWith<D>, D: Quantized>(
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
        let bounds = |[q, d]: &[ErrorTerms; 2]| {
            // Of weighted sums there are none.
            let none = case.weights.then(|| vec![f32::INFINITY; data.pairs.len()]);
            none.map_or_else(|| score_bounds(q, d, &pairing).map_err(text), Ok)
        };
        let bounds = [bounds(&from_codes)?, bounds(&measured)?];
        let mut values = self.data.queries.values.iter().chain(&self.data.documents.values);
        if !case.weights
            && values.all(|x| x.abs() < 1e4)
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
                    Err(Error::Unsupported { .. }) if may_refuse::<Q, D>(device, row) => continue,
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

/// Whether a row may not take the case, or a device have none for it.
fn may_refuse<Q: Format, D: Format>(device: &Device, row: Option<&Variant>) -> bool {
    row.is_some() || !has_kernels::<Q, D>(device)
}

/// Operand of kernels for queries and documents of these formats.
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

/// Error of tensor cores in e4m3 products here, relative to Σ |q_k d_k|: up to 5 · 10⁻⁴ was seen.
/// (Rows can be made that lose more; bounds count with that.)
const FP8_ERROR: f64 = 1e-3;

/// A call with tokens uploaded where the case says so.
fn call<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    upload: [bool; 2],
    queries: &Tokens<'_, Q>,
    documents: &Tokens<'_, D>,
    pairing: &Pairing,
    options: &ScoreOptions,
) -> Result<Scores, Error> {
    let handles = (handle(device, queries, upload[0])?, handle(device, documents, upload[1])?);
    let queries = handles.0.as_ref().map_or(TokensRef::Host(queries), TokensRef::Device);
    let documents = handles.1.as_ref().map_or(TokensRef::Host(documents), TokensRef::Device);
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
pub fn with_token_scores_of_every_row<Q: ScorableWith<D>, D: Quantized>(
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
pub fn with_scores_of_every_row<Q: ScorableWith<D>, D: Quantized>(
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

/// Tokens on the device, where a call is to read a handle.
pub(crate) fn handle<F: Format>(
    device: &Device,
    tokens: &Tokens<'_, F>,
    yes: bool,
) -> Result<Option<DeviceTokens<F>>, Error> {
    yes.then(|| device.upload(tokens)).transpose()
}
