//! Projected hidden states: cases, their tokens in f64, and gradients through a projection.
//!
//! Scores are compared with the oracle of scores over the tokens that the engine itself projects,
//! which are compared with the projection in f64; and so are gradients.

mod on_device;

use maxsim::format::{Element, with_element};
use maxsim::projection::{ProjectedGradients, Projection, ProjectionGradients};
use maxsim::{Device, Error, ScoreOptions, Tokens, TokensRef};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;

use crate::agree;
use crate::case::{Case, Data, elements, tokens};
use crate::gradients::{self, Sum};
use crate::oracle::{Matrix, SQUARE_MIN, maxsim};
use crate::suite::Suite;
use crate::values::{self, Role};

/// Unit in the last place of sums in f32.
const ULP: f64 = f32::EPSILON as f64;

/// A case whose documents are hidden states.
#[derive(Clone, Debug)]
pub struct ProjectedCase {
    /// Queries, items of documents, pairs; `dim` is that of tokens.
    pub case: Case,
    /// Elements of a row of hidden states.
    pub hidden: usize,
    /// Whether the projection has a bias.
    pub bias: bool,
    /// Whether tokens are normalised.
    pub normalize: bool,
}

/// What a case stands for.
struct Inputs<T: Element> {
    data: Data,
    hidden: Matrix,
    weight: Vec<f32>,
    bias: Vec<f32>,
    /// Queries, hidden states, weight, bias.
    elements: [Vec<T>; 4],
}

impl<T: Element> Inputs<T> {
    fn new(case: &ProjectedCase) -> Inputs<T> {
        let ProjectedCase { case, hidden: n, .. } = case;
        let data = case.data();
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(case.seed ^ 0x70);
        let rows = data.documents.values.len() / case.dim;
        let mut stored = |n_rows: usize, n: usize, values| {
            let mut rows = values::rows(values, Role::Document, n_rows, n, rng);
            rows.iter_mut().for_each(|x| *x = values::stored(case.element, *x));
            rows
        };
        let mut values = stored(rows, *n, case.values);
        let weight = stored(case.dim, *n, values::Values::Unit);
        let bias = stored(1, case.dim, values::Values::Unit);
        // Tokens of zeros, or of the bias.
        values.chunks_exact_mut(*n).step_by(7).for_each(|row| row.fill(0.0));
        if case.poison {
            let mut used = vec![false; rows];
            data.documents.items.iter().for_each(|item| used[item.clone()].fill(true));
            if let Some(mask) = &data.documents.mask {
                used.iter_mut().zip(mask).for_each(|(used, &m)| *used &= m != 0);
            }
            values::poison(&mut values, *n, &used, rng);
            values.iter_mut().for_each(|x| *x = values::stored(case.element, *x));
        }
        let hidden = Matrix { values, dim: *n, ..data.documents.clone() };
        let of = |values: &[f32]| values.iter().map(|&x| T::from_f32(x)).collect();
        let elements = [elements(&data.queries), elements(&hidden), of(&weight), of(&bias)];
        Inputs { data, hidden, weight, bias, elements }
    }

    /// u of a row, and Σ |w · h| + |b| of each element.
    fn projected(&self, case: &ProjectedCase, row: usize) -> (Vec<f64>, Vec<f64>) {
        let h = &self.hidden.values[row * case.hidden..][..case.hidden];
        let of = |(output, w): (usize, &[f32])| {
            let b = if case.bias { f64::from(self.bias[output]) } else { 0.0 };
            let terms = w.iter().zip(h).map(|(&w, &h)| f64::from(w) * f64::from(h));
            terms.fold((b, b.abs()), |(u, size), x| (u + x, size + x.abs()))
        };
        self.weight.chunks_exact(case.hidden).enumerate().map(of).unzip()
    }

    /// Checks projected tokens against f64.
    fn check_tokens(&self, case: &ProjectedCase, found: &[T]) -> Result<(), String> {
        // Half a unit of the type; subnormal numbers are farther apart.
        let (half_unit, least) = match size_of::<T>() {
            2 if T::from_f32(1.0 + 1.0 / 512.0).to_f32() > 1.0 => (2f64.powi(-11), 2f64.powi(-25)),
            2 => (2f64.powi(-8), 0.0),
            _ => (0.0, 2f64.powi(-149)),
        };
        for (row, found) in found.chunks_exact(case.case.dim).enumerate() {
            let (u, sizes) = self.projected(case, row);
            let square: f64 = u.iter().map(|u| u * u).sum();
            let r = match case.normalize {
                true if square <= SQUARE_MIN => 1.0 / SQUARE_MIN.sqrt(),
                true => 1.0 / square.sqrt(),
                false => 1.0,
            };
            // The error of each element, and that of r: relative to it at most that of u's length.
            let n = (case.hidden + case.case.dim + 16) as f64 * ULP;
            let length: f64 = sizes.iter().map(|size| size * size).sum::<f64>().sqrt();
            for ((&u, &size), found) in u.iter().zip(&sizes).zip(found) {
                let (want, got) = (u * r, f64::from(found.to_f32()));
                let of_r = if case.normalize { (u * r).abs() * r * length } else { 0.0 };
                let limit = half_unit * want.abs() + least + n * (size * r + of_r) + n * 1e-30;
                let agrees = match want.is_nan() || !length.is_finite() {
                    // Infinities become NaN or 0 where r is 0: whichever, no number shows.
                    true => !got.is_finite() || got == 0.0,
                    // What the type does not hold is an infinity.
                    false if got.is_infinite() => T::from_f32(want as f32).to_f32() == got as f32,
                    false => (got - want).abs() <= limit * 1.01,
                };
                if !agrees {
                    return Err(format!("row {row}: token {got}, not {want}, allowed {limit:e}"));
                }
            }
        }
        Ok(())
    }
}

/// Checks tokens, scores and gradients of a case on a device.
///
/// # Errors
/// What does not agree.
pub fn check_case_on(suite: &Suite, case: &ProjectedCase, device: &Device) -> Result<(), String> {
    let at = |what: String| format!("{device}: {what}");
    with_element!(case.case.element, T => check_as::<T>(case, device)).map_err(at)?;
    suite.count(&device.to_string());
    Ok(())
}

fn check_as<T: Element>(case: &ProjectedCase, device: &Device) -> Result<(), String> {
    let mut inputs = Inputs::<T>::new(case);
    let [queries, hidden, weight, bias] = inputs.elements.clone();
    let failed = |error: Error| error.to_string();
    let weight = Tokens::padded(&weight, 1, case.case.dim, case.hidden).map_err(failed)?;
    let bias = Tokens::padded(&bias, 1, 1, case.case.dim).map_err(failed)?;
    let projection = Projection::new(&weight).map_err(failed)?.normalize(case.normalize);
    let projection = match case.bias {
        true => projection.bias(&bias).map_err(failed)?,
        false => projection,
    };
    let (of_queries, states) = (inputs.data.queries.clone(), inputs.hidden.clone());
    let queries = tokens(&case.case.queries, &of_queries, &queries).map_err(failed)?;
    let hidden = tokens(&case.case.documents, &states, &hidden).map_err(failed)?;
    let uploaded = device.upload(&hidden).map_err(failed)?;
    let hidden: TokensRef<'_, T> = match case.case.upload[1] {
        true => (&uploaded).into(),
        false => (&hidden).into(),
    };

    let projected = device.project(hidden, &projection).map_err(failed)?;
    let projected = projected.download().map_err(failed)?;
    inputs.check_tokens(case, projected.data())?;
    let data = &mut inputs.data;
    data.exact = false;
    data.documents.values = projected.data().iter().map(|x| x.to_f32()).collect();

    let pairing = case.case.pairing(data).map_err(failed)?;
    let expected: Vec<_> =
        data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect();
    let options = ScoreOptions::default().winners(true).token_scores(case.case.token_scores);
    for options in [options, ScoreOptions::default()] {
        let found = device.score_projected(&queries, hidden, &projection, &pairing, &options);
        let found = found.map_err(failed)?;
        agree::check(data, &expected, &options, &found)?;
        let work = device.prepare_projected(&queries, hidden, &projection, &pairing, &options);
        let mut work = work.map_err(failed)?;
        for _ in 0..2 {
            if work.score(&queries).map_err(failed)? != found {
                return Err("other scores of what was prepared".into());
            }
        }
    }

    let scores = device.score_projected_for_training(&queries, hidden, &projection, &pairing);
    let scores = scores.map_err(failed)?;
    let grad_scores = gradients::grad_scores(data, case.case.seed);
    let with_grad = scores.with_grad(&grad_scores);
    let backward = || device.backward_projected(&queries, hidden, &projection, with_grad);
    let found = backward().map_err(failed)?;
    let winners = scores.scores().winners().unwrap_or_default();
    check_gradients(&inputs, case, winners, &grad_scores, &found)?;
    if backward().map_err(failed)? != found {
        return Err("other bits the second time".into());
    }
    if device.ordinal().is_none() {
        return Ok(());
    }
    let (values, winners) = (scores.scores().values(), scores.scores().winners());
    let call = on_device::Call {
        queries: &queries,
        hidden,
        projection: &projection,
        pairing: &pairing,
        values,
        winners: winners.unwrap_or_default(),
        grad_scores: &grad_scores,
    };
    let found = on_device::gradients(device, &call)?;
    check_gradients(&inputs, case, call.winners, &grad_scores, &found)
}

/// Compares gradients with those in f64, over the winners of the engine.
fn check_gradients<T: Element>(
    inputs: &Inputs<T>,
    case: &ProjectedCase,
    winners: &[i32],
    grad_scores: &[f32],
    found: &ProjectedGradients,
) -> Result<(), String> {
    let expected = gradients::gradients(&inputs.data, winners, grad_scores);
    for (i, (sum, &found)) in expected.queries.iter().zip(&found.queries).enumerate() {
        if !sum.agrees(false, found) {
            return Err(format!("queries {i}: expected {sum:?}, found {found:e}"));
        }
    }
    for (sum, &found) in expected.weights.iter().zip(&found.query_weights) {
        if !sum.agrees(false, found) {
            return Err(format!("weights of queries: expected {sum:?}, found {found:e}"));
        }
    }
    compare(&through(inputs, case, &expected.documents), &found.documents)
}

/// A number, and how far another may be from it.
#[derive(Clone, Copy, Debug, Default)]
struct Within {
    exact: f64,
    limit: f64,
}

/// The gradients of hidden states, of W and of b, from those of tokens.
fn through<T: Element>(
    inputs: &Inputs<T>,
    case: &ProjectedCase,
    of_tokens: &[Sum],
) -> [Vec<Within>; 3] {
    let (dim, n) = (case.case.dim, case.hidden);
    let mut hidden = vec![Within::default(); inputs.hidden.values.len()];
    let (mut weight, mut bias) = (vec![Within::default(); dim * n], vec![Within::default(); dim]);
    let mut n_rows = 0;
    for (row, sums) in of_tokens.chunks_exact(dim).enumerate() {
        if sums.iter().all(|sum| sum.magnitude == 0.0) {
            continue;
        }
        n_rows += 1;
        let (u, sizes) = inputs.projected(case, row);
        let square: f64 = u.iter().map(|u| u * u).sum();
        let r = if case.normalize { 1.0 / square.max(SQUARE_MIN).sqrt() } else { 1.0 };
        let is_constant = !case.normalize || square <= SQUARE_MIN;
        let along = |of: &dyn Fn(&Sum) -> f64, x: &dyn Fn(usize) -> f64| -> f64 {
            if is_constant { 0.0 } else { (0..dim).map(|k| x(k) * of(&sums[k])).sum() }
        };
        let exact = along(&|sum| sum.exact, &|k| u[k] * r);
        let magnitude = along(&|sum| sum.magnitude, &|k| sizes[k] * r);
        let of_projected: Vec<Within> = (0..dim)
            .map(|k| {
                let subtracted = if is_constant { 0.0 } else { u[k] * r * exact };
                let size = if is_constant { 0.0 } else { sizes[k] * r * magnitude };
                let n_terms = (sums[k].n_terms + 4 * n + 4 * dim + 32) as f64;
                // r errs as u does, relative to it.
                let length: f64 = sizes.iter().map(|size| size * size).sum::<f64>().sqrt();
                let of_r = if is_constant { 1.0 } else { 1.0 + length * r };
                Within {
                    exact: r * (sums[k].exact - subtracted),
                    limit: n_terms * ULP * r * of_r * (sums[k].magnitude + size),
                }
            })
            .collect();
        let h = &inputs.hidden.values[row * n..][..n];
        for (k, of) in of_projected.iter().enumerate() {
            add(&mut bias[k], of, 1.0);
            let w = &inputs.weight[k * n..][..n];
            for i in 0..n {
                add(&mut hidden[row * n + i], of, f64::from(w[i]));
                add(&mut weight[k * n + i], of, f64::from(h[i]));
            }
        }
    }
    let rounded = |within: &mut Within| within.limit *= 1.0 + (n_rows + dim) as f64 / 16.0;
    [&mut hidden, &mut weight, &mut bias].into_iter().flatten().for_each(rounded);
    if !case.bias {
        bias.clear();
    }
    [hidden, weight, bias]
}

fn add(sum: &mut Within, of: &Within, factor: f64) {
    sum.exact += of.exact * factor;
    sum.limit += (of.limit + 2.0 * ULP * of.exact.abs()) * factor.abs();
}

fn compare(
    [hidden, weight, bias]: &[Vec<Within>; 3],
    found: &ProjectionGradients,
) -> Result<(), String> {
    for (what, expected, found) in [
        ("hidden", hidden, &found.hidden),
        ("weight", weight, &found.weight),
        ("bias", bias, &found.bias),
    ] {
        if expected.len() != found.len() {
            return Err(format!("{what}: expected {}, found {}", expected.len(), found.len()));
        }
        for (i, (expected, &found)) in expected.iter().zip(found).enumerate() {
            let is_zero = expected.limit > 0.0 || found.to_bits() == 0;
            if !is_zero || (f64::from(found) - expected.exact).abs() > expected.limit {
                return Err(format!("{what} {i}: expected {expected:?}, found {found:e}"));
            }
        }
    }
    Ok(())
}
