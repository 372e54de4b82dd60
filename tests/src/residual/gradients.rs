//! Gradients of scores of residual-compressed documents on every engine, against the oracle.
//!
//! The oracle sees what an engine multiplies ([`crate::residual::scores`]), and the winners that it
//! found.

use maxsim::format::{Element, Residual, with_element};
use maxsim::training::ResidualScoreGradients;
use maxsim::training::TrainingScores;
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, Tokens};

use crate::case::{Case, Data, elements, tokens};
use crate::engines::cuda_devices;
use crate::gpu::text;
use crate::gradients::{self, Expected, Sum};
use crate::residual::Parts;
use crate::residual::in_place::Call;
use crate::residual::scores::{ResidualCase, finds_winners, takes};
use crate::suite::Suite;

/// Number of calls that must give the same bits.
const REPEATS: usize = 3;

/// Computes a case's gradients on every engine and compares each with the oracle. Query tokens have
/// no weights, with which a codec's tables have no gradients.
pub fn check_residual_gradients(suite: &Suite, case: &ResidualCase) -> Result<(), String> {
    let unweighted = Case { weights: false, ..case.case.clone() };
    let case = &ResidualCase { case: unweighted, ..case.clone() };
    with_element!(case.case.element, T => check::<T>(suite, case))
}

fn check<T: Element>(suite: &Suite, case: &ResidualCase) -> Result<(), String> {
    let data = case.case.data();
    let parts = case.parts(&data.documents);
    let documents = case.tokens(&parts, &data.documents).map_err(text)?;
    let query_elements: Vec<T> = elements(&data.queries);
    let queries = tokens(&case.case.queries, &data.queries, &query_elements).map_err(text)?;
    let pairing = case.case.pairing(&data).map_err(text)?;
    let cpu = Device::cpu();
    let on_cpu = cpu.upload_residual::<T>(&documents).map_err(text)?;
    for device in std::iter::once(&cpu).chain(cuda_devices()) {
        let at = |what: String| format!("{device}: {what}");
        let on_device = match device.upload_residual::<T>(&documents) {
            Err(Error::Unsupported { .. }) if !takes::<T>(device) => continue,
            documents => documents.map_err(text).map_err(at)?,
        };
        let round = |x| if device.ordinal().is_some() { T::from_f32(x).to_f32() } else { x };
        let seen = case.decoded(&parts, &data.documents, round);
        let data = Data { documents: seen, exact: false, ..data.clone() };
        let scores = match finds_winners::<T>(device) {
            true => train(device, &queries, &on_device, &pairing),
            false => train(&cpu, &queries, &on_cpu, &pairing),
        };
        let scores = scores.map_err(text).map_err(at)?;
        let grad_scores = gradients::grad_scores(&data, case.case.seed);
        let winners = scores.scores().winners().ok_or_else(|| at("no winners".into()))?;
        let mut expected = gradients::gradients(&data, winners, &grad_scores);
        if case.normalize {
            // r is a sum, a root and a quotient, as where `gradients` has them.
            expected.queries.iter_mut().for_each(|sum| sum.n_terms += 3 * case.case.dim + 16);
        }
        let call =
            || device.backward_residual(&queries, &on_device, scores.with_grad(&grad_scores));
        let found = call().map_err(text).map_err(at)?;
        compare(case, &parts, &expected, &found).map_err(at)?;
        if finds_winners::<T>(device) {
            let (queries, documents, on_device) = (&queries, &documents, &on_device);
            let (pairing, grad_scores) = (&pairing, &grad_scores[..]);
            let call = Call { device, queries, documents, on_device, pairing, grad_scores };
            call.check(&found.queries).map_err(at)?;
        }
        for _ in 1..REPEATS {
            if !same_bits(&found, &call().map_err(text).map_err(at)?) {
                return Err(at("other bits the next time".into()));
            }
        }
        suite.count(&device.to_string());
    }
    Ok(())
}

fn train<T: Element>(
    device: &Device,
    queries: &Tokens<'_, T>,
    documents: &DeviceTokens<Residual<T>>,
    pairing: &Pairing,
) -> Result<TrainingScores, Error> {
    let options = ScoreOptions::default();
    device.score_residual_for_training(queries, documents, pairing, &options)
}

/// Compares gradients with the oracle's.
fn compare(
    case: &ResidualCase,
    parts: &Parts,
    expected: &Expected,
    found: &ResidualScoreGradients,
) -> Result<(), String> {
    let [centroids, weights] = tables(case, parts, &expected.documents);
    for (name, expected, found) in [
        ("queries", &expected.queries, &found.queries),
        ("centroids", &centroids, &found.tables.centroids),
        ("bucket_weights", &weights, &found.tables.bucket_weights),
    ] {
        if expected.len() != found.len() {
            return Err(format!("{name}: expected {}, found {}", expected.len(), found.len()));
        }
        for (i, (expected, &found)) in expected.iter().zip(found).enumerate() {
            // If terms that cancel meet a NaN, it may show or not.
            let may_be_any = expected.may_be_none && !expected.exact.is_finite();
            if !may_be_any && !expected.agrees(false, found) {
                return Err(format!("{name}[{i}]: expected {expected:?}, found {found:e}"));
            }
        }
    }
    Ok(())
}

/// The tables' gradients from those of the rows before they are normalised.
///
/// A row's gradient errs by as many roundings as [`Sum::n_terms`] says, and is then rounded in no
/// more additions than there are terms here: both counts together are those of a term.
fn tables(case: &ResidualCase, parts: &Parts, rows: &[Sum]) -> [Vec<Sum>; 2] {
    let dim = case.case.dim;
    let shape = case.shape(parts.codes.len());
    let mut tables = [parts.centroids.len(), 1 << case.nbits].map(|n| vec![Sum::default(); n]);
    let mut most = [vec![0; parts.centroids.len()], vec![0; 1 << case.nbits]];
    for (i, sum) in rows.iter().enumerate().filter(|(_, sum)| sum.n_terms > 0) {
        let (row, k) = (i / dim, i % dim);
        let places = [parts.codes[row] as usize * dim + k, shape.bucket(parts, row, k)];
        for ((table, most), place) in tables.iter_mut().zip(&mut most).zip(places) {
            let to = &mut table[place];
            to.exact += sum.exact;
            to.magnitude += sum.magnitude;
            to.n_terms += 1;
            to.may_be_none |= sum.may_be_none;
            most[place] = most[place].max(sum.n_terms);
        }
    }
    for (table, most) in tables.iter_mut().zip(most) {
        table.iter_mut().zip(most).for_each(|(sum, most)| sum.n_terms += most);
    }
    tables
}

/// Whether two results are equal, NaNs included.
pub fn same_bits(a: &ResidualScoreGradients, b: &ResidualScoreGradients) -> bool {
    let of = |gradients: &ResidualScoreGradients| {
        let tables = &gradients.tables;
        let all = [&gradients.queries, &tables.centroids, &tables.bucket_weights];
        all.map(|values| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
    };
    of(a) == of(b)
}
