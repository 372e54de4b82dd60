//! A step of training, at once and in stream order.

use maxsim::format::Element;
use maxsim::stream::{DeviceScores, Graph, PreparedScore, Queue, Stream};
use maxsim::training::{
    BackwardOptions, BackwardStrategy, DeviceGradScores, DeviceGradients, GradientType, Gradients,
    PreparedBackward, TrainingScores,
};
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions};

use crate::engines::Problem;

/// A step of training in stream order: scores and their gradients.
#[derive(Debug)]
pub struct Step<T: Element> {
    /// The queries.
    pub queries: DeviceTokens<T>,
    /// The documents.
    pub documents: DeviceTokens<T>,
    /// The scores' work.
    pub work: PreparedScore,
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
        let normalize = problem.data.has_row_scales();
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
        // A strategy that finds winners again has none saved.
        let winners = options.strategy != BackwardStrategy::Recompute;
        let asked = ScoreOptions::default().winners(winners).normalize(normalize);
        let work = device.prepare(&queries, &documents, pairing, &asked)?;
        let scores = work.new_scores()?;
        let backward = device.prepare_backward(&work, options, element)?;
        let grad_scores = backward.upload_grad_scores(grads)?;
        let gradients = backward.new_gradients()?;
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
        self.stream.backward(queries, documents, backward, scores.with_grad(grad_scores), gradients)
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
        self.stream.backward_into(
            queries,
            documents,
            backward,
            scores.with_grad(grad_scores),
            gradients,
        )
    }

    /// Captures both into a graph.
    pub fn capture(&mut self) -> Result<Graph, Error> {
        let Step { queries, documents, work, scores, backward, grad_scores, gradients, .. } = self;
        let device = queries.device().clone();
        device.capture(|capture| {
            capture.score_into(queries, documents, work, scores)?;
            capture.backward(queries, documents, backward, scores.with_grad(grad_scores), gradients)
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
pub(super) fn train_saving<T: Element>(
    problem: &Problem<'_, T>,
    device: &Device,
    winners: bool,
) -> Result<TrainingScores, Error> {
    let normalize = problem.data.has_row_scales();
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
    strategy: BackwardStrategy,
) -> Result<Gradients, Error> {
    problem.call(device, |queries, documents, _| {
        let options = BackwardOptions::new(strategy);
        device.backward(queries, documents, scores.with_grad(grad_scores), &options)
    })
}

/// Whether two results are the same to the bit, NaNs included.
pub fn same_bits(a: &Gradients, b: &Gradients) -> bool {
    let same = |a: &[f32], b: &[f32]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
    };
    same(&a.queries, &b.queries) && same(&a.documents, &b.documents) && same(&a.weights, &b.weights)
}
