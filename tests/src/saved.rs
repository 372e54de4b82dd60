//! Gradients where the documents that were scored are saved as INT8 codes: those of the queries are
//! the closed form over what codes stand for, and near those over the documents; those of the
//! documents have the bits that they have without codes.

use maxsim::format::{Element, Int8, ScaleType, with_element};
use maxsim::stream::{DeviceScores, Queue, Stream};
use maxsim::training::{
    BackwardOptions, BackwardStrategy, DeviceGradScores, DeviceGradients, GradientType, Gradients,
    PreparedBackward, TrainingScores,
};
use maxsim::{Device, DeviceTokens, Error, TokensRef};

use crate::case::{Case, Data};
use crate::engines::Problem;
use crate::gpu::text;
use crate::gradients::{
    Expected, Step, Sum, all_devices, backward, check, check_turns, grad_scores, gradients,
    same_bits, train,
};
use crate::oracle::Matrix;
use crate::quantized::{int8, stored};
use crate::suite::Suite;

/// The scales that INT8 has.
pub const SCALES: [ScaleType; 2] = [ScaleType::F16, ScaleType::F32];

/// Number of cases of which one goes through a stream too.
const STREAM_TURNS: u64 = 2;

/// Trains on a case, on every device, from codes with scales of both types. Rows are not
/// normalised.
pub fn check_case(suite: &Suite, case: &Case) -> Result<(), String> {
    let case = &Case { normalize: false, weights: false, ..case.clone() };
    with_element!(case.element, T => check_as::<T>(suite, case))
}

fn check_as<T: Element>(suite: &Suite, case: &Case) -> Result<(), String> {
    let problem = Problem::<T>::new(case);
    let grads = grad_scores(&problem.data, case.seed);
    for device in all_devices() {
        for scales in SCALES {
            let at = |what: String| format!("{device}, {scales:?} scales: {what}");
            check_on(&problem, &device, scales, &grads, case.seed).map_err(at)?;
            suite.count(&format!("{device} {scales:?}"));
        }
    }
    Ok(())
}

fn check_on<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    scales: ScaleType,
    grads: &[f32],
    seed: u64,
) -> Result<(), String> {
    let data = &problem.data;
    let scores = train(problem, device).map_err(text)?;
    let winners = scores.scores().winners().ok_or("no winners")?;
    let ordinary =
        backward(problem, device, &scores, grads, BackwardStrategy::Auto).map_err(text)?;
    let codes = stored(&data.documents, &int8(&data.documents, scales));
    let from_codes = from_codes(data, &codes, winners, grads);
    let from_documents = gradients(data, winners, grads);
    for strategy in [BackwardStrategy::Auto, BackwardStrategy::Deterministic] {
        let found = backward_from_codes(problem, device, &scores, scales, grads, strategy);
        let found = found.map_err(text)?;
        check_queries(data, &from_codes, &found)?;
        check_bound(data, &codes, scales, winners, grads, [&from_documents, &from_codes], &found)?;
        let [a, b] = [&ordinary, &found].map(|gradients| Gradients {
            documents: gradients.documents.clone(),
            ..Gradients::default()
        });
        if !same_bits(&a, &b) {
            return Err("other bits of the documents' gradients than without codes".into());
        }
        if strategy == BackwardStrategy::Auto && seed.is_multiple_of(STREAM_TURNS) {
            check_stream(problem, device, scales, grads, &found)
                .map_err(|what| format!("in stream order: {what}"))?;
        }
    }
    Ok(())
}

/// The closed form over what codes stand for, scale · code. An engine rounds that, or g · scale:
/// once more per term than it rounds where elements are as they are stored.
fn from_codes(data: &Data, codes: &Matrix, winners: &[i32], grads: &[f32]) -> Expected {
    let data = Data { documents: codes.clone(), ..data.clone() };
    let mut expected = gradients(&data, winners, grads);
    for sum in &mut expected.queries {
        sum.n_terms += usize::from(sum.n_terms > 0);
    }
    expected
}

/// Compares gradients of queries with the oracle's.
fn check_queries(data: &Data, expected: &Expected, found: &Gradients) -> Result<(), String> {
    let expected =
        Expected { queries: expected.queries.clone(), documents: Vec::new(), weights: Vec::new() };
    let found = Gradients { queries: found.queries.clone(), ..Gradients::default() };
    check(&Data { exact: false, ..data.clone() }, &expected, &found)
}

/// Gradients of queries are as near to those without codes as is promised: within Σ |g| · scale / 2
/// of the winners, and what f32 rounds of either sum. f32 rounds an element divided by its scale,
/// too, by at most 2⁻¹⁷ of a step.
fn check_bound(
    data: &Data,
    codes: &Matrix,
    scales: ScaleType,
    winners: &[i32],
    grads: &[f32],
    [exact, rounded]: [&Expected; 2],
    found: &Gradients,
) -> Result<(), String> {
    let (queries, documents) = (&data.queries, &data.documents);
    let dim = documents.dim;
    let mut bounds = vec![0.0f64; queries.values.len() / dim];
    let mut winners = winners.iter();
    for (&(q, d), &g) in data.pairs.iter().zip(grads) {
        for query_row in queries.items[q].clone() {
            let Some(Ok(t)) = winners.next().map(|&t| usize::try_from(t)) else { continue };
            let row = documents.items[d].start + t;
            let half = codes.row(row).factor * (0.5 + 2f64.powi(-17));
            let is_promised = has_promise(documents.row(row).values, scales);
            bounds[query_row] +=
                f64::from(g).abs() * if is_promised { half } else { f64::INFINITY };
        }
    }
    for (i, &found) in found.queries.iter().enumerate() {
        let (exact, rounded): (&Sum, &Sum) = (&exact.queries[i], &rounded.queries[i]);
        let bound = bounds[i / dim] + rounded.limit(false);
        let off = (f64::from(found) - exact.exact).abs();
        // Rows that are not finite, or out of the ordinary, have no bound.
        if bound.is_finite() && exact.exact.is_finite() && off.is_nan() | (off > bound) {
            let (row, k) = (i / dim, i % dim);
            return Err(format!(
                "queries[{row}][{k}]: {found:e} is {off:e} from {exact:?}, not {bound:e}"
            ));
        }
    }
    Ok(())
}

/// Whether a row's scale is one that loses at most half a step.
fn has_promise(row: &[f32], scales: ScaleType) -> bool {
    let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let is_finite = row.iter().all(|x| x.is_finite());
    is_finite && (scales == ScaleType::F32 || (1e-3..=8e6).contains(&most))
}

/// The gradients of a problem from its documents' codes, which are made where the documents are.
fn backward_from_codes<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    scores: &TrainingScores,
    scales: ScaleType,
    grads: &[f32],
    strategy: BackwardStrategy,
) -> Result<Gradients, Error> {
    let options = BackwardOptions::new(strategy);
    problem.call(device, |queries, documents, _| match documents {
        TokensRef::Host(tokens) => {
            let codes = tokens.quantize::<Int8>(scales)?;
            device.backward(queries, &codes, scores.with_grad(grads), &options)
        }
        TokensRef::Device(tokens) => {
            let codes = tokens.quantize::<Int8>(scales)?;
            device.backward(queries, &codes, scores.with_grad(grads), &options)
        }
    })
}

/// Computes the gradients through a stream and a graph, in both element types, overwritten and
/// added to, after the documents have been dropped. `expected` is the result of the synchronous
/// call.
fn check_stream<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    scales: ScaleType,
    grads: &[f32],
    expected: &Gradients,
) -> Result<(), String> {
    let run = |element, way| in_stream(problem, device, scales, element, grads, way).map_err(text);
    let once = run(GradientType::F32, Way::Called)?;
    if !same_bits(&once, expected) {
        return Err("other bits than the synchronous call's".into());
    }
    if !same_bits(&run(GradientType::F32, Way::Captured)?, expected) {
        return Err("other bits of a graph".into());
    }
    let twice = run(GradientType::F32, Way::Added)?;
    check_turns::<T>(device, &once, &twice, &run(GradientType::Tokens, Way::Called)?)
}

/// How gradients are asked for.
#[derive(Clone, Copy, Debug)]
enum Way {
    Called,
    Added,
    Captured,
}

fn in_stream<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    scales: ScaleType,
    element: GradientType,
    grads: &[f32],
    way: Way,
) -> Result<Gradients, Error> {
    let mut step = Step::new(problem, device, element, &BackwardOptions::default(), grads)?;
    step.score()?;
    let mut step = SavedStep::of(step, scales, element)?;
    let SavedStep { queries, codes, scores, backward, grad_scores, gradients, stream } = &mut step;
    match way {
        Way::Called | Way::Added => {
            // The second run overwrites what the first one has written.
            for _ in 0..2 {
                stream.backward(
                    queries,
                    codes,
                    backward,
                    scores.with_grad(grad_scores),
                    gradients,
                )?;
            }
            if let Way::Added = way {
                stream.backward_into(
                    queries,
                    codes,
                    backward,
                    scores.with_grad(grad_scores),
                    gradients,
                )?;
            }
        }
        Way::Captured => {
            let mut graph = device.capture(|capture| {
                capture.backward(queries, codes, backward, scores.with_grad(grad_scores), gradients)
            })?;
            graph.launch(stream)?;
        }
    }
    gradients.read()
}

/// A step of training behind its scores, whose documents have become codes.
#[derive(Debug)]
pub struct SavedStep<T: Element> {
    /// The queries.
    pub queries: DeviceTokens<T>,
    /// Codes saved in place of the documents.
    pub codes: DeviceTokens<Int8>,
    /// Buffers of scores and winners.
    pub scores: DeviceScores,
    /// The gradients' work.
    pub backward: PreparedBackward,
    /// Gradients of the scores.
    pub grad_scores: DeviceGradScores,
    /// Buffers of the gradients.
    pub gradients: DeviceGradients,
    /// Stream that runs the step.
    pub stream: Stream,
}

impl<T: Element> SavedStep<T> {
    /// Saves a step that has been scored.
    pub fn of(
        step: Step<T>,
        scales: ScaleType,
        element: GradientType,
    ) -> Result<SavedStep<T>, Error> {
        let Step { queries, documents, work, scores, grad_scores, stream, .. } = step;
        let device = queries.device();
        let options = BackwardOptions::default();
        let backward = device.prepare_backward_from_codes(&work, &options, element)?;
        let gradients = backward.new_gradients()?;
        let codes = documents.quantize::<Int8>(scales)?;
        Ok(SavedStep { queries, codes, scores, backward, grad_scores, gradients, stream })
    }

    /// Enqueues the gradients.
    pub fn differentiate(&mut self) -> Result<(), Error> {
        let SavedStep { queries, codes, scores, backward, grad_scores, gradients, stream } = self;
        stream.backward(queries, codes, backward, scores.with_grad(grad_scores), gradients)
    }
}
