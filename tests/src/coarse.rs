//! Coarse-to-fine scores as they are defined: a problem checked on every engine.
//!
//! Winners must be those of the INT8 codes, exactly: every sum of products is. Token scores and
//! scores must agree with the oracle's similarities of those winners over the *embeddings*, as
//! [`agree`] says; and no score may be above MaxSim's by more than the rounding of f32.

use maxsim::format::{Element, ElementType, Format, Int8, ScaleType, with_element};
use maxsim::search::CoarseCodes;
use maxsim::{Device, Error, ScoreOptions, Scores, Tokens, TokensRef};
use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::table::forward::{FORWARD, Variant};
use proptest::prelude::*;
use proptest::sample::select;

use crate::agree;
use crate::case::{Case, Data, elements, tokens};
use crate::engines::cuda_devices;
use crate::gpu::same_bits;
use crate::oracle::{Answer, TokenAnswer, maxsim, similarity};
use crate::quantized::{Codes, handle, int8};
use crate::strategy::cases;
use crate::suite::Suite;

/// A problem whose tokens are rescored by codes.
#[derive(Clone, Debug)]
pub struct CoarseCase {
    /// The embeddings.
    pub case: Case,
    /// How the codes' scales are stored, of queries and of documents.
    pub scales: [ScaleType; 2],
}

/// Any case.
pub fn coarse_cases() -> impl Strategy<Value = CoarseCase> {
    let scales = || select(&[ScaleType::F16, ScaleType::F32]);
    let case = select(&ElementType::ALL).prop_flat_map(cases);
    (case, scales(), scales()).prop_map(|(case, queries, documents)| {
        let case = Case { normalize: false, weights: false, ..case };
        CoarseCase { case, scales: [queries, documents] }
    })
}

/// Checks a case on every engine.
pub fn check_coarse_case(suite: &Suite, case: &CoarseCase) -> Result<(), String> {
    check_coarse_data(suite, case, &case.case.data())
}

/// As [`check_coarse_case`], with embeddings that the case's are replaced by.
pub fn check_coarse_data(suite: &Suite, case: &CoarseCase, data: &Data) -> Result<(), String> {
    with_element!(case.case.element, T => check_as::<T>(suite, case, data))
}

fn text(error: Error) -> String {
    error.to_string()
}

fn check_as<T: Element>(suite: &Suite, case: &CoarseCase, data: &Data) -> Result<(), String> {
    let CoarseCase { case, scales } = case;
    let elements: [Vec<T>; 2] = [elements(&data.queries), elements(&data.documents)];
    let queries = tokens(&case.queries, &data.queries, &elements[0]).map_err(text)?;
    let documents = tokens(&case.documents, &data.documents, &elements[1]).map_err(text)?;
    let codes = (
        queries.quantize::<Int8>(scales[0]).map_err(text)?,
        documents.quantize::<Int8>(scales[1]).map_err(text)?,
    );
    let naive = [int8(&data.queries, scales[0]), int8(&data.documents, scales[1])];
    let exact: Vec<Answer> =
        data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect();
    let pairing = case.pairing(data).map_err(text)?;
    for (device, row) in engines() {
        let name = row.map_or(device.to_string(), |row| format!("{device} {}", row.name));
        let at = |what: String| format!("{name}: {what}");
        let options = |winners| {
            ScoreOptions::default()
                .winners(winners)
                .token_scores(case.token_scores)
                .document_splits(case.document_splits)
                .kernel(row.map(|row| row.name.to_string()).as_deref())
        };
        let call = |winners| {
            let tokens = (&queries, &documents);
            call(device, case.upload, tokens, (&codes.0, &codes.1), &pairing, &options(winners))
        };
        let found = match call(true) {
            // A row that does not take the case, or a device without rows.
            Err(Error::Unsupported { .. }) if row.is_some() || !has_kernels(device) => continue,
            found => found.map_err(text).map_err(at)?,
        };
        if !found.are_rescored() {
            return Err(at("the scores do not say that winners were rescored".into()));
        }
        let answers = answers(data, &naive, &found).map_err(at)?;
        agree::check(data, &answers, &options(true), &found).map_err(at)?;
        check_below(data, &exact, &found).map_err(at)?;
        let without = call(false).map_err(text).map_err(at)?;
        let expected = Scores::clone(&found);
        if without.winners().is_some()
            || bits(without.values()) != bits(expected.values())
            || without.token_scores().map(bits) != expected.token_scores().map(bits)
        {
            return Err(at("winners that are not asked for change the scores".into()));
        }
        if !same_bits(&found, &call(true).map_err(text).map_err(at)?) {
            return Err(at("a second run differs".into()));
        }
        suite.count(&format!("{name} {}", T::FORMAT));
    }
    Ok(())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Every device as it chooses, and every row that finds winners among INT8 codes.
pub fn engines() -> impl Iterator<Item = (&'static Device, Option<&'static Variant>)> {
    static CPU: std::sync::OnceLock<Device> = std::sync::OnceLock::new();
    let rows = FORWARD.iter().filter(|row| row.operand == Operand::I8 && row.winners);
    let chosen = std::iter::once(CPU.get_or_init(Device::cpu)).chain(cuda_devices());
    let rows = cuda_devices()
        .iter()
        .flat_map(move |device| rows.clone().map(move |row| (device, Some(row))));
    chosen.map(|device| (device, None)).chain(rows)
}

/// Whether a device has kernels for INT8 codes, or an engine.
pub fn has_kernels(device: &Device) -> bool {
    device.can_score(Int8::FORMAT, Int8::FORMAT)
}

/// A call with tokens and codes uploaded where the case says so.
fn call<T: Element>(
    device: &Device,
    upload: [bool; 2],
    tokens: (&Tokens<'_, T>, &Tokens<'_, T>),
    codes: (&Tokens<'_, Int8>, &Tokens<'_, Int8>),
    pairing: &maxsim::Pairing,
    options: &ScoreOptions,
) -> Result<Scores, Error> {
    let [q, d] = upload;
    let handles = (handle(device, tokens.0, q)?, handle(device, tokens.1, d)?);
    let queries = handles.0.as_ref().map_or(TokensRef::Host(tokens.0), TokensRef::Device);
    let documents = handles.1.as_ref().map_or(TokensRef::Host(tokens.1), TokensRef::Device);
    // The other way around.
    let handles = (handle(device, codes.0, d)?, handle(device, codes.1, q)?);
    let query_codes = handles.0.as_ref().map_or(TokensRef::Host(codes.0), TokensRef::Device);
    let document_codes = handles.1.as_ref().map_or(TokensRef::Host(codes.1), TokensRef::Device);
    let coarse = CoarseCodes::new(query_codes, document_codes).assumed();
    device.rescore(queries, documents, &coarse, pairing, options)
}

/// Checks that the winners found are the codes', and gives the answers that they have in full
/// precision.
fn answers(data: &Data, codes: &[Codes; 2], found: &Scores) -> Result<Vec<Answer>, String> {
    let (Some(winners), Some(offsets)) = (found.winners(), found.token_offsets()) else {
        return Err("no winners".into());
    };
    let mut answers = Vec::new();
    for (p, &(q, d)) in data.pairs.iter().enumerate() {
        let mut answer = Answer::default();
        for (s, at) in offsets.range(p).enumerate() {
            let mut token = TokenAnswer::default();
            let wrong = |expected: Option<usize>| {
                let found = winners[at];
                format!("score {p}, query token {s}: winner {found}, not the codes' {expected:?}")
            };
            let expected = data.queries.token(q, s).and_then(|_| first(data, codes, q, s, d));
            let winner = usize::try_from(winners[at]).ok();
            match (expected, winner) {
                (None, None) => {}
                (Some((t, is_nan)), Some(winner)) if winner == t || is_nan => {
                    let (query, row) = (data.queries.token(q, s), data.documents.token(d, winner));
                    let (Some(query), Some(row)) = (query, row) else { return Err(wrong(None)) };
                    if is_nan && !code_similarity(data, codes, q, s, d, winner).is_nan() {
                        return Err(wrong(Some(t)));
                    }
                    token = TokenAnswer { winner: Some(winner), score: similarity(query, row) };
                }
                (expected, _) => return Err(wrong(expected.map(|(t, _)| t))),
            }
            answer.score.exact += token.score.exact;
            answer.score.twin += token.score.twin;
            answer.score.magnitude += token.score.magnitude;
            answer.tokens.push(token);
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// The first of a document's valid tokens that has the greatest similarity of codes, and whether
/// that is NaN.
fn first(data: &Data, codes: &[Codes; 2], q: usize, s: usize, d: usize) -> Option<(usize, bool)> {
    let mut best: Option<(f32, usize)> = None;
    for (t, _) in data.documents.tokens(d) {
        let new = code_similarity(data, codes, q, s, d, t);
        if best.is_none_or(|(old, _)| new > old || new.is_nan() && !old.is_nan()) {
            best = Some((new, t));
        }
    }
    best.map(|(value, t)| (t, value.is_nan()))
}

/// The sum of the codes' products, times the document's scale; NaN where either scale is.
fn code_similarity(
    data: &Data,
    [queries, documents]: &[Codes; 2],
    q: usize,
    s: usize,
    d: usize,
    t: usize,
) -> f32 {
    let dim = data.queries.dim;
    let (query, row) = (data.queries.items[q].start + s, data.documents.items[d].start + t);
    let pairs = queries.codes[query * dim..][..dim].iter().zip(&documents.codes[row * dim..]);
    let sum: i64 = pairs.map(|(&q, &d)| q as i64 * d as i64).sum();
    let scale = if queries.scales[query].is_nan() { f32::NAN } else { documents.scales[row] };
    sum as f32 * scale
}

/// No score is above the exact one, rounding aside; what is NaN or an infinity exactly is one or
/// the other.
fn check_below(data: &Data, exact: &[Answer], found: &Scores) -> Result<(), String> {
    for (p, (answer, &score)) in exact.iter().zip(found.values()).enumerate() {
        let (exact, n_terms) = (answer.score, data.queries.dim + answer.tokens.len() + 8);
        let slack = n_terms as f64 * f64::from(f32::EPSILON) * exact.magnitude;
        let holds = match exact.exact.is_finite() {
            true => f64::from(score) <= exact.exact + slack,
            false => !score.is_finite(),
        };
        if !holds {
            return Err(format!("score {p}: {score} is above {}", exact.exact));
        }
    }
    Ok(())
}
