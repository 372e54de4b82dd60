//! Gradients: every strategy on every device agrees with the oracle.

mod oracle;
mod step;

use std::iter;

use maxsim::format::{Element, with_element};
use maxsim::training::{BackwardOptions, BackwardStrategy, GradientType, Gradients};
use maxsim::{Device, Error, ScoreOptions};

use crate::agree;
use crate::case::Case;
use crate::engines::{Problem, cuda_devices};
use crate::suite::Suite;

use self::oracle::check_atomic;
pub use self::oracle::{
    ATOMIC_DISTANCE_MAX, Expected, Sum, check, grad_scores, gradients, relative_distances, winners,
};
use self::step::train_saving;
pub use self::step::{Step, backward, same_bits, train};

/// Strategies that every device has. All of them give the same bits: winners found again are the
/// same winners.
pub const STRATEGIES: [BackwardStrategy; 3] =
    [BackwardStrategy::Auto, BackwardStrategy::Deterministic, BackwardStrategy::Recompute];

/// The CPU and every CUDA device.
pub fn all_devices() -> Vec<Device> {
    iter::once(Device::cpu()).chain(cuda_devices().iter().cloned()).collect()
}

/// Number of cases of which one goes through a stream too.
const STREAM_TURNS: u64 = 3;

/// Trains on a case, on every device: the scores with their winners, then the gradients by each
/// strategy, all of them compared with the oracle.
pub fn check_case(suite: &Suite, case: &Case) -> Result<(), String> {
    with_element!(case.element, T => check_as::<T>(suite, case))
}

fn check_as<T: Element>(suite: &Suite, case: &Case) -> Result<(), String> {
    let problem = Problem::<T>::new(case);
    for device in all_devices() {
        let first = check_on(suite, &problem, &device, case.seed)?;
        if case.seed.is_multiple_of(STREAM_TURNS) {
            let at = |what: String| format!("{device} in stream order: {what}");
            check_stream(&problem, &device, case.seed, &first).map_err(at)?;
            suite.count(&format!("{device} in stream order"));
            if device.ordinal().is_some() {
                check_atomic_stream(&problem, &device, case.seed).map_err(at)?;
                suite.count(&format!("{device} {:?} in stream order", BackwardStrategy::Atomic));
            }
        }
    }
    Ok(())
}

fn check_on<T: Element>(
    suite: &Suite,
    problem: &Problem<'_, T>,
    device: &Device,
    seed: u64,
) -> Result<Gradients, String> {
    let data = &problem.data;
    let grad_scores = grad_scores(data, seed);
    let scores = train(problem, device).map_err(|e| format!("{device}: {e}"))?;
    let winners = scores.scores().winners().ok_or("no winners")?;
    let asked = ScoreOptions::default().winners(true);
    agree::check(data, &problem.expected, &asked, scores.scores())?;
    let expected = gradients(data, winners, &grad_scores);
    let mut first: Option<Gradients> = None;
    for strategy in STRATEGIES {
        let at = |what: String| format!("{device} {strategy:?}: {what}");
        let unsaved = (strategy == BackwardStrategy::Recompute)
            .then(|| train_saving(problem, device, false))
            .transpose()
            .map_err(|e| at(e.to_string()))?;
        let scores = unsaved.as_ref().unwrap_or(&scores);
        let found = backward(problem, device, scores, &grad_scores, strategy)
            .map_err(|e| at(e.to_string()))?;
        check(data, &expected, &found).map_err(at)?;
        if !same_bits(first.get_or_insert_with(|| found.clone()), &found) {
            return Err(at("other bits than the first strategy's".into()));
        }
        suite.count(&format!("{device} {strategy:?}"));
    }
    let first = first.ok_or("no strategy")?;
    if !has_nan(problem) {
        let at = |what: String| format!("{device} Recompute in slices: {what}");
        let found = problem.call(device, |queries, documents, _| {
            device.backward(queries, documents, scores.with_grad(&grad_scores), &in_slices())
        });
        check(data, &expected, &found.map_err(|e| at(e.to_string()))?).map_err(at)?;
        suite.count(&format!("{device} Recompute in slices"));
    }
    if device.ordinal().is_some() {
        let at = |what: String| format!("{device} {:?}: {what}", BackwardStrategy::Atomic);
        let found = backward(problem, device, &scores, &grad_scores, BackwardStrategy::Atomic)
            .map_err(|e| at(e.to_string()))?;
        check(data, &expected, &found).map_err(at)?;
        check_atomic(&expected, &first, &found).map_err(at)?;
        suite.count(&format!("{device} {:?}", BackwardStrategy::Atomic));
    }
    Ok(first)
}

/// A few queries at a time; the CPU has all winners at once.
fn in_slices() -> BackwardOptions {
    BackwardOptions::new(BackwardStrategy::Recompute).winner_bytes(64)
}

/// Whether winners that are found for other queries at a time may be other tokens: which of several
/// NaN similarities wins is unspecified.
fn has_nan<T: Element>(problem: &Problem<'_, T>) -> bool {
    problem.expected.iter().any(|answer| answer.score.exact.is_nan())
}

/// Computes the gradients through a stream, in both element types, overwritten and added to.
/// `expected` is the result of the synchronous call.
fn check_stream<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    seed: u64,
    expected: &Gradients,
) -> Result<(), String> {
    let grads = grad_scores(&problem.data, seed);
    let options = BackwardOptions::default();
    let results = (|| {
        let mut step = Step::new(problem, device, GradientType::F32, &options, &grads)?;
        step.run()?;
        // This run overwrites what the one before has written.
        step.run()?;
        let once = step.gradients.read()?;
        let recompute = BackwardOptions::new(BackwardStrategy::Recompute);
        let mut again = Step::new(problem, device, GradientType::F32, &recompute, &grads)?;
        again.run()?;
        let again = again.gradients.read()?;
        step.run_adding()?;
        let twice = step.gradients.read()?;
        let mut step = Step::new(problem, device, GradientType::Tokens, &options, &grads)?;
        step.run()?;
        Ok::<_, Error>((once, again, twice, step.gradients.read()?))
    })();
    let (once, again, twice, rounded) = results.map_err(|e| e.to_string())?;
    if !same_bits(&again, expected) {
        return Err("other bits from winners that are found again".into());
    }
    if !same_bits(&once, expected) {
        return Err("other bits than the synchronous call's".into());
    }
    check_turns::<T>(device, &once, &twice, &rounded)
}

/// Whether gradients that were added to are those of one call twice, and those in the tokens' type
/// are those in f32, rounded.
pub(crate) fn check_turns<T: Element>(
    device: &Device,
    once: &Gradients,
    twice: &Gradients,
    rounded: &Gradients,
) -> Result<(), String> {
    for (side, once, twice, rounded) in [
        ("queries", &once.queries, &twice.queries, &rounded.queries),
        ("documents", &once.documents, &twice.documents, &rounded.documents),
    ] {
        for (i, ((&x, &two), &narrow)) in once.iter().zip(twice).zip(rounded).enumerate() {
            let nearest = T::from_f32(x).to_f32();
            if narrow.to_bits() != nearest.to_bits() && !(narrow.is_nan() && x.is_nan()) {
                return Err(format!("{side}[{i}]: {x:e} rounded to {narrow:e}"));
            }
            // The CPU engine continues with the sum; its order of terms is another.
            let is_double = two == 2.0 * x || two.is_nan() && x.is_nan();
            if device.ordinal().is_some() && !is_double {
                return Err(format!("{side}[{i}]: {x:e} and as much is {two:e}"));
            }
        }
    }
    Ok(())
}

/// Atomic additions through a stream, in both element types, overwritten and added to. Sums vary
/// from call to call, so that each result is compared with the oracle's.
fn check_atomic_stream<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    seed: u64,
) -> Result<(), String> {
    let data = &problem.data;
    let grads = grad_scores(data, seed);
    let options = BackwardOptions::new(BackwardStrategy::Atomic);
    let run = |element: GradientType, adds: bool| -> Result<(Vec<i32>, Gradients), Error> {
        let mut step = Step::new(problem, device, element, &options, &grads)?;
        step.run()?;
        // This run overwrites the buffers, or adds to them.
        if adds {
            step.run_adding()?
        } else {
            step.run()?
        }
        let winners = step.scores.read()?.winners().unwrap_or_default().to_vec();
        Ok((winners, step.gradients.read()?))
    };
    let (winners, once) = run(GradientType::F32, false).map_err(|e| e.to_string())?;
    check(data, &gradients(data, &winners, &grads), &once)?;
    if !has_nan(problem) {
        check_slices_stream(problem, device, &grads, &winners)?;
    }
    let twice = twice(&gradients(data, &winners, &grads));
    let (_, found) = run(GradientType::F32, true).map_err(|e| e.to_string())?;
    check(data, &twice, &found).map_err(|what| format!("added to: {what}"))?;
    for adds in [false, true] {
        let (_, narrow) = run(GradientType::Tokens, adds).map_err(|e| e.to_string())?;
        let expected = if adds { &twice } else { &gradients(data, &winners, &grads) };
        check_rounded::<T>(expected, data.exact, &narrow, adds).map_err(|what| {
            format!("in {} {}: {what}", T::TYPE, ["once", "twice"][usize::from(adds)])
        })?;
    }
    Ok(())
}

/// Winners that are found again for a few queries at a time, through a stream, in the tokens' type:
/// overwritten, and added to.
fn check_slices_stream<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    grads: &[f32],
    winners: &[i32],
) -> Result<(), String> {
    let data = &problem.data;
    let once = gradients(data, winners, grads);
    for adds in [false, true] {
        let found = (|| {
            let mut step = Step::new(problem, device, GradientType::Tokens, &in_slices(), grads)?;
            step.run()?;
            if adds {
                step.run_adding()?;
            }
            step.gradients.read()
        })();
        let found = found.map_err(|e: Error| e.to_string())?;
        let expected = if adds { &twice(&once) } else { &once };
        check_rounded::<T>(expected, data.exact, &found, adds).map_err(|what| {
            format!("in slices, {} {}: {what}", T::TYPE, ["once", "twice"][usize::from(adds)])
        })?;
    }
    Ok(())
}

/// Expects the same pairs twice: each element has its terms twice.
fn twice(once: &Expected) -> Expected {
    let mut twice = once.clone();
    let sides = [&mut twice.queries, &mut twice.documents, &mut twice.weights];
    for sum in sides.into_iter().flatten() {
        (sum.exact, sum.magnitude, sum.n_terms) =
            (2.0 * sum.exact, 2.0 * sum.magnitude, 2 * sum.n_terms);
    }
    twice
}

/// Whether sums that agree with the oracle's were rounded to the tokens' type, once, or twice where
/// they were added to.
fn check_rounded<T: Element>(
    expected: &Expected,
    exact_sums: bool,
    found: &Gradients,
    twice: bool,
) -> Result<(), String> {
    for (side, expected, found) in [
        ("queries", &expected.queries, &found.queries),
        ("documents", &expected.documents, &found.documents),
    ] {
        for (i, (sum, &found)) in expected.iter().zip(found).enumerate() {
            // f32 and its neighbours in the narrow type, on either side of the exact sum.
            let limit = sum.limit(exact_sums);
            let rounded = |x: f64| f64::from(T::from_f32(x as f32).to_f32());
            let (mut low, mut high) = (rounded(sum.exact - limit), rounded(sum.exact + limit));
            if twice {
                // Half of it was rounded before.
                let half = (rounded(sum.exact / 2.0) - sum.exact / 2.0).abs() + limit;
                (low, high) = (rounded(sum.exact - 2.0 * half), rounded(sum.exact + 2.0 * half));
            }
            let got = f64::from(found);
            let agrees = match sum.exact.is_finite() && low.is_finite() && high.is_finite() {
                true => low <= got && got <= high,
                false => got.is_nan() || got.is_infinite() || sum.exact.is_finite(),
            };
            if !agrees || sum.n_terms == 0 && found.to_bits() != 0 {
                return Err(format!("{side}[{i}]: {sum:?} became {found:e}"));
            }
        }
    }
    Ok(())
}
