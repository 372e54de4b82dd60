//! The oracle of gradients: the closed form in f64, over given winners, and whether a result
//! agrees with it.
//!
//! Winners are given because engines may differ in them where similarities nearly tie; that
//! they are right is for [`crate::agree`] to say.

use std::iter;

use maxsim::{
    Backward, BackwardOptions, BackwardWork, Device, DeviceGradScores, DeviceGradients,
    DeviceScores, DeviceTokens, Element, ElementType, Error, GradientType, Gradients, Graph,
    Pairing, Queue, ScoreOptions, Stream, TrainingScores, Work,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::agree;
use crate::case::{Case, Data};
use crate::engines::{Problem, cuda_devices};
use crate::oracle::{Answer, Matrix, SQUARE_MIN};
use crate::suite::Suite;

/// One element of a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Σ g · x in f64.
    pub exact: f64,
    /// Σ |g · x|.
    pub magnitude: f64,
    /// Terms of the sum.
    pub n_terms: usize,
    /// Whether f32 sums of a normalised row's gradient may be 0 throughout.
    pub may_be_none: bool,
}

impl Sum {
    fn add(&mut self, g: f64, x: f32) {
        let term = g * f64::from(x);
        self.exact += term;
        self.magnitude += term.abs();
        self.n_terms += 1;
    }

    /// Whether an f32 sum of these terms may be `found`.
    ///
    /// With u = 2⁻²⁴: a product is rounded once, by at most u of itself, or by 2⁻¹⁵⁰ where it is
    /// subnormal. It then takes part in at most n - 1 additions, since the first only adds it to
    /// 0, and each rounds what it gives by at most u of itself, which is at most u · Σ |g · x|
    /// when counted term by term. Each term is so rounded at most n times, and
    ///
    /// ```text
    /// |found − exact| ≤ ((1 + u)ⁿ − 1) · Σ |g · x| + n · 2⁻¹⁵⁰ · (1 + u)ⁿ
    /// ```
    ///
    /// As long as n · u ≤ 1, (1 + u)ⁿ − 1 ≤ n · u · (1 + n · u), which is what is used here; the
    /// f64 sum's own error, n · 2⁻⁵³ of the magnitude, is far less than one part of it.
    pub(crate) fn agrees(&self, exact_sums: bool, found: f32) -> bool {
        let got = f64::from(found);
        if self.n_terms == 0 {
            // Not even -0: nothing was added.
            return found.to_bits() == 0;
        }
        if !self.exact.is_finite() {
            let is_same = got == self.exact || got.is_nan() && self.exact.is_nan();
            return is_same || self.may_be_none && got == 0.0;
        }
        (got - self.exact).abs() <= self.limit(exact_sums)
    }

    /// How far an f32 sum may be from the exact one.
    pub(crate) fn limit(&self, exact_sums: bool) -> f64 {
        if exact_sums {
            return 0.0;
        }
        let nu = self.n_terms as f64 * 2f64.powi(-24);
        nu * (1.0 + nu) * self.magnitude + 2.0 * self.n_terms as f64 * 2f64.powi(-150)
    }
}

/// The gradients of both sides, `[rows, dim]` of each matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Of the queries.
    pub queries: Vec<Sum>,
    /// Of the documents.
    pub documents: Vec<Sum>,
}

/// The closed form: `winners` pair-major, -1 = none; one number of `grad_scores` per score.
pub fn gradients(data: &Data, winners: &[i32], grad_scores: &[f32]) -> Expected {
    let (queries, documents) = (&data.queries, &data.documents);
    let dim = documents.dim;
    let zeros = |matrix: &Matrix| vec![Sum::default(); matrix.values.len()];
    let mut expected = Expected { queries: zeros(queries), documents: zeros(documents) };
    let mut winners = winners.iter();
    for (&(q, d), &g) in data.pairs.iter().zip(grad_scores) {
        for query_row in queries.items[q].clone() {
            let winner = *winners.next().expect("a winner per query token of each pair");
            let Ok(t) = usize::try_from(winner) else { continue };
            let document_row = documents.items[d].start + t;
            let of_query = f64::from(g) * documents.row(document_row).factor;
            let of_document = f64::from(g) * queries.row(query_row).factor;
            for k in 0..dim {
                let (query, document) = (query_row * dim + k, document_row * dim + k);
                expected.queries[query].add(of_query, documents.values[document]);
                expected.documents[document].add(of_document, queries.values[query]);
            }
        }
    }
    assert!(winners.next().is_none(), "more winners than query tokens");
    project(&mut expected.queries, queries);
    project(&mut expected.documents, documents);
    expected
}

/// Makes gradients with respect to normalised rows those with respect to the rows, where rows are
/// normalised: ∂x = r · (∂x̂ - x̂ · ⟨x̂, ∂x̂⟩), and r · ∂x̂ where the length was too small for
/// that. Rows with ∂x̂ = 0 throughout get 0, whatever they hold.
///
/// With u = 2⁻²⁴ and d = dim: r errs by (d / 2 + 2) · u of itself (a sum of d squares, whose error
/// the root halves, a root and a quotient), and each element of ∂x̂ by (n + 1) · u of its magnitude
/// and by its sources' r once more. What is subtracted has r three times besides, and a sum of d
/// products. Together less than n + 3 · d + 16 roundings of
///
/// ```text
/// r · (m_k + |x̂_k| · Σ_j |x̂_j| · m_j)       with m the magnitudes of ∂x̂
/// ```
fn project(sums: &mut [Sum], matrix: &Matrix) {
    let Some(norms) = &matrix.factors else { return };
    let dim = matrix.dim;
    for (i, sums) in sums.chunks_exact_mut(dim).enumerate() {
        if sums.iter().all(|sum| sum.magnitude == 0.0) {
            continue;
        }
        // Terms that cancel: f32 may find 0 throughout, which stays 0 whatever the row holds.
        let may_be_0 = |sum: &Sum| {
            let sum = Sum { n_terms: sum.n_terms + 8, ..*sum };
            sum.exact.abs() <= sum.limit(false)
        };
        let may_be_none = sums.iter().all(may_be_0);
        sums.iter_mut().for_each(|sum| sum.may_be_none = may_be_none);
        let row = matrix.row(i).values;
        let is_constant = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() <= SQUARE_MIN;
        for sum in &mut *sums {
            sum.exact *= norms[i];
            sum.magnitude *= norms[i];
            sum.n_terms += 3 * dim + 16;
        }
        if is_constant {
            continue;
        }
        let unit = |k: usize| norms[i] * f64::from(row[k]);
        let along: f64 = (0..dim).map(|k| unit(k) * sums[k].exact).sum();
        let magnitude: f64 = (0..dim).map(|k| unit(k).abs() * sums[k].magnitude).sum();
        for (k, sum) in sums.iter_mut().enumerate() {
            sum.exact -= unit(k) * along;
            sum.magnitude += unit(k).abs() * magnitude;
        }
    }
}

/// The winners of the oracle's answers, as the library gives them.
pub fn winners(answers: &[Answer]) -> Vec<i32> {
    let tokens = answers.iter().flat_map(|answer| &answer.tokens);
    tokens.map(|token| token.winner.map_or(-1, |t| t as i32)).collect()
}

/// Gradients of scores, some of them 0: small integers where no sum of `data` rounds.
pub fn grad_scores(data: &Data, seed: u64) -> Vec<f32> {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let mut grad = || match (rng.random_range(0..8), data.exact) {
        (0, _) => 0.0,
        (_, true) => rng.random_range(-3i8..=3).into(),
        (_, false) => rng.random_range(-1.0f32..1.0),
    };
    data.pairs.iter().map(|_| grad()).collect()
}

/// Compares gradients with the oracle's.
pub fn check(data: &Data, expected: &Expected, found: &Gradients) -> Result<(), String> {
    for (side, matrix, expected, found) in [
        ("queries", &data.queries, &expected.queries, &found.queries),
        ("documents", &data.documents, &expected.documents, &found.documents),
    ] {
        if expected.len() != found.len() {
            return Err(format!("{side}: expected {}, found {}", expected.len(), found.len()));
        }
        for (i, (expected, &found)) in expected.iter().zip(found).enumerate() {
            if !expected.agrees(data.exact, found) {
                let (row, k) = (i / matrix.dim, i % matrix.dim);
                return Err(format!("{side}[{row}][{k}]: expected {expected:?}, found {found:e}"));
            }
        }
    }
    Ok(())
}

/// How far sums whose terms are added in any order may be from the owner's: the norm of a side's
/// difference, over the owner's norm.
pub const ATOMIC_DISTANCE_MAX: f64 = 1e-6;

/// Checks gradients that were added atomically against those of the owner: the norm of each side's
/// difference, over that of Σ |g · x|. (The owner's own norm would be stricter than f32 is where
/// a matrix has few elements whose terms cancel out; [`relative_distances`] has it.) Elements that
/// are not finite must be the same ones.
fn check_atomic(expected: &Expected, owner: &Gradients, found: &Gradients) -> Result<(), String> {
    for (side, sums, owner, found) in [
        ("queries", &expected.queries, &owner.queries, &found.queries),
        ("documents", &expected.documents, &owner.documents, &found.documents),
    ] {
        let (mut difference, mut magnitude) = (0.0, 0.0);
        for (sum, (&a, &b)) in sums.iter().zip(owner.iter().zip(found)) {
            if a.is_finite() && b.is_finite() {
                difference += (f64::from(a) - f64::from(b)).powi(2);
                magnitude += sum.magnitude.powi(2);
            } else if a != b && !(a.is_nan() && b.is_nan()) {
                return Err(format!("{side}: {b:e} where the owner has {a:e}"));
            }
        }
        let (difference, magnitude) = (difference.sqrt(), magnitude.sqrt());
        if difference > ATOMIC_DISTANCE_MAX * magnitude {
            return Err(format!("{side}: {difference:e} from the owner's, of {magnitude:e}"));
        }
    }
    Ok(())
}

/// ‖found − owner‖ / ‖owner‖ of each side, 0 where both are zeros.
pub fn relative_distances(owner: &Gradients, found: &Gradients) -> [f64; 2] {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    [(&owner.queries, &found.queries), (&owner.documents, &found.documents)].map(
        |(owner, found)| {
            let pairs = owner.iter().zip(found);
            let difference = norm(&mut pairs.map(|(&a, &b)| f64::from(b) - f64::from(a)));
            let of_owner = norm(&mut owner.iter().map(|&x| f64::from(x)));
            if difference == 0.0 { 0.0 } else { difference / of_owner }
        },
    )
}

/// Strategies that every device has. All of them give the same bits: winners found again are the
/// same winners.
pub const STRATEGIES: [Backward; 3] = [Backward::Auto, Backward::Owner, Backward::Recompute];

/// The CPU and every CUDA device.
pub fn all_devices() -> Vec<Device> {
    iter::once(Device::cpu()).chain(cuda_devices().iter().cloned()).collect()
}

/// Of the cases, one in so many goes through a stream too.
const STREAM_TURNS: u64 = 3;

/// Trains on a case, on every device: the scores with their winners, then the gradients by each
/// strategy, all of them compared with the oracle.
pub fn check_case(suite: &Suite, case: &Case) -> Result<(), String> {
    match case.element {
        ElementType::F16 => check_as::<half::f16>(suite, case),
        ElementType::Bf16 => check_as::<half::bf16>(suite, case),
        ElementType::F32 => check_as::<f32>(suite, case),
    }
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
                suite.count(&format!("{device} {:?} in stream order", Backward::Atomic));
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
        let unsaved = (strategy == Backward::Recompute)
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
        let found = problem.call(device, |queries, documents, pairing| {
            device.backward(queries, documents, pairing, &scores, &grad_scores, &in_slices())
        });
        check(data, &expected, &found.map_err(|e| at(e.to_string()))?).map_err(at)?;
        suite.count(&format!("{device} Recompute in slices"));
    }
    if device.ordinal().is_some() {
        let at = |what: String| format!("{device} {:?}: {what}", Backward::Atomic);
        let found = backward(problem, device, &scores, &grad_scores, Backward::Atomic)
            .map_err(|e| at(e.to_string()))?;
        check(data, &expected, &found).map_err(at)?;
        check_atomic(&expected, &first, &found).map_err(at)?;
        suite.count(&format!("{device} {:?}", Backward::Atomic));
    }
    Ok(first)
}

/// A few queries at a time; the CPU has all winners at once.
fn in_slices() -> BackwardOptions {
    BackwardOptions::new(Backward::Recompute).winner_bytes(64)
}

/// Whether winners that are found for other queries at a time may be other tokens: which of several
/// NaN similarities wins is unspecified.
fn has_nan<T: Element>(problem: &Problem<'_, T>) -> bool {
    problem.expected.iter().any(|answer| answer.score.exact.is_nan())
}

/// The same gradients through a stream, in both element types, overwritten and added to.
/// `expected` is what the synchronous call gave.
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
        // Whatever they hold, they are overwritten.
        step.run()?;
        let once = step.gradients.read()?;
        let recompute = BackwardOptions::new(Backward::Recompute);
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
            // The CPU engine goes on with the sum; its order of terms is another.
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
    let options = BackwardOptions::new(Backward::Atomic);
    let run = |element: GradientType, adds: bool| -> Result<(Vec<i32>, Gradients), Error> {
        let mut step = Step::new(problem, device, element, &options, &grads)?;
        step.run()?;
        // Whatever they hold, they are overwritten, or added to.
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

/// The same pairs twice: each element has its terms twice.
fn twice(once: &Expected) -> Expected {
    let mut twice = once.clone();
    let sides = [&mut twice.queries, &mut twice.documents];
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

/// A step of training in stream order: scores and their gradients.
#[derive(Debug)]
pub struct Step<T: Element> {
    /// The queries.
    pub queries: DeviceTokens<T>,
    /// The documents.
    pub documents: DeviceTokens<T>,
    /// The scores' work.
    pub work: Work,
    /// Where scores and winners go.
    pub scores: DeviceScores,
    /// The gradients' work.
    pub backward: BackwardWork,
    /// Gradients of the scores.
    pub grad_scores: DeviceGradScores,
    /// Where gradients go.
    pub gradients: DeviceGradients,
    /// Where it runs.
    pub stream: Stream,
}

impl<T: Element> Step<T> {
    /// Makes a step ready.
    pub fn new(
        problem: &Problem<'_, T>,
        device: &Device,
        element: GradientType,
        options: &BackwardOptions,
        grads: &[f32],
    ) -> Result<Step<T>, Error> {
        let (queries, documents, pairing) = problem.inputs()?;
        let (queries, documents) = (device.upload(&queries)?, device.upload(&documents)?);
        let normalize = problem.data.has_factors();
        Step::of(queries, documents, &pairing, normalize, element, options, grads)
    }

    /// Makes a step over any tokens ready.
    pub fn of(
        queries: DeviceTokens<T>,
        documents: DeviceTokens<T>,
        pairing: &Pairing,
        normalize: bool,
        element: GradientType,
        options: &BackwardOptions,
        grads: &[f32],
    ) -> Result<Step<T>, Error> {
        let device = queries.device().clone();
        // Where they are found again, none are saved.
        let winners = options.strategy != Backward::Recompute;
        let asked = ScoreOptions::default().winners(winners).normalize(normalize);
        let work = device.prepare(&queries, &documents, pairing, &asked)?;
        let scores = DeviceScores::new(&work)?;
        let backward = device.prepare_backward(&work, options, element)?;
        let grad_scores = DeviceGradScores::new(&backward, grads)?;
        let gradients = DeviceGradients::new(&backward)?;
        let stream = device.stream()?;
        Ok(Step { queries, documents, work, scores, backward, grad_scores, gradients, stream })
    }

    /// Enqueues the scores.
    pub fn score(&mut self) -> Result<(), Error> {
        let Step { queries, documents, work, scores, stream, .. } = self;
        stream.score_into(queries, documents, work, scores)
    }

    /// Enqueues the gradients.
    pub fn differentiate(&mut self) -> Result<(), Error> {
        let Step { queries, documents, scores, backward, grad_scores, gradients, .. } = self;
        self.stream.backward(queries, documents, backward, scores, grad_scores, gradients)
    }

    /// Enqueues both.
    pub fn run(&mut self) -> Result<(), Error> {
        self.score()?;
        self.differentiate()
    }

    /// Enqueues both, and adds to the gradients that are there.
    pub fn run_adding(&mut self) -> Result<(), Error> {
        self.score()?;
        let Step { queries, documents, scores, backward, grad_scores, gradients, .. } = self;
        self.stream.backward_into(queries, documents, backward, scores, grad_scores, gradients)
    }

    /// Captures both into a graph.
    pub fn capture(&mut self) -> Result<Graph, Error> {
        let Step { queries, documents, work, scores, backward, grad_scores, gradients, .. } = self;
        let device = queries.device().clone();
        device.capture(|capture| {
            capture.score_into(queries, documents, work, scores)?;
            capture.backward(queries, documents, backward, scores, grad_scores, gradients)
        })
    }
}

/// The scores of a problem, with what their gradients need.
pub fn train<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
) -> Result<TrainingScores, Error> {
    train_saving(problem, device, true)
}

/// As [`train`], with or without winners.
fn train_saving<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    winners: bool,
) -> Result<TrainingScores, Error> {
    let normalize = problem.data.has_factors();
    let options = ScoreOptions::default().normalize(normalize);
    problem.call(device, |queries, documents, pairing| match winners {
        true => device.score_for_training_with(queries, documents, pairing, &options),
        false => device.score_for_recompute(queries, documents, pairing, &options),
    })
}

/// The gradients of a problem.
pub fn backward<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    scores: &TrainingScores,
    grad_scores: &[f32],
    strategy: Backward,
) -> Result<Gradients, Error> {
    problem.call(device, |queries, documents, pairing| {
        let options = BackwardOptions::new(strategy);
        device.backward(queries, documents, pairing, scores, grad_scores, &options)
    })
}

/// Whether two results are the same to the bit, NaNs included.
pub fn same_bits(a: &Gradients, b: &Gradients) -> bool {
    let same = |a: &[f32], b: &[f32]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
    };
    same(&a.queries, &b.queries) && same(&a.documents, &b.documents)
}
