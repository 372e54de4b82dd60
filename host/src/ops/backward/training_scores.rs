//! Scores whose winners are kept for gradients.

use std::borrow::Cow;
use std::sync::Arc;

use crate::cuda::{CudaDevice, CudaOutputs};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::runtime::alloc::copy_of;
use crate::tokens::element::Element;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::{TokenLayout, check_len};

/// Scores with what their gradients need: the winners, and what was scored with what.
///
/// Made by [`Device::score_for_training`], or without winners by [`Device::score_for_recompute`],
/// and used any number of times, with any gradients of the scores. On a CUDA device the winners
/// stay there, too.
#[derive(Clone, Debug)]
#[must_use]
pub struct TrainingScores {
    pub(crate) scores: Scores,
    queries: TokenLayout,
    documents: TokenLayout,
    pairing: Pairing,
    /// With winners.
    pub(crate) options: ScoreOptions,
    on_device: Option<Arc<CudaOutputs>>,
}

/// Compares scores, winners, layouts and pairings, normalised or not, angular or not, on whatever
/// device.
impl PartialEq for TrainingScores {
    fn eq(&self, other: &TrainingScores) -> bool {
        self.scores == other.scores
            && self.queries == other.queries
            && self.documents == other.documents
            && self.pairing == other.pairing
            && self.options.normalize == other.options.normalize
            && self.options.angular == other.options.angular
    }
}

impl TrainingScores {
    /// The scores and their winners; token scores where they were asked for.
    pub fn scores(&self) -> &Scores {
        &self.scores
    }

    /// Scores of a call that was made elsewhere, or whose winners were kept in some other form:
    /// `winners` are those of [`Scores::winners`], one per query token of each pair, in the order
    /// of the pairs. Winners that are no tokens of their documents (-1 among them) give no
    /// gradient. The scores' values are not known: they are 0.
    ///
    /// ```
    /// use maxsim::training::{BackwardOptions, TrainingScores};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let documents = Tokens::padded(&[3.0f32, 4.0, -1.0, 5.0], 1, 2, 2)?;
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default().winners(true));
    /// let scores = Device::cpu().score_with(&queries, &documents, &cross, &options)?;
    /// let winners = scores.winners().unwrap_or_default().to_vec();
    ///
    /// let layouts = [queries.layout().clone(), documents.layout().clone()];
    /// let scores = TrainingScores::from_winners(winners, layouts, &cross, &options)?;
    /// let options = BackwardOptions::default();
    /// let found =
    ///     Device::cpu().backward(&queries, &documents, scores.with_grad(&[1.0]), &options)?;
    /// assert_eq!(found.documents, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] and others where layouts and pairing do not fit together, or there is
    /// another number of winners than the pairs have query tokens.
    pub fn from_winners(
        winners: Vec<i32>,
        [queries, documents]: [TokenLayout; 2],
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        let problem = Problem::new(&queries, &documents, pairing)?;
        let token_offsets = problem.token_offsets();
        let n_winners = token_offsets.total() as usize;
        check_len("winners", n_winners, "one per query token of each pair", winners.len())?;
        let scores = Scores::with_room(problem.shape(), Some(token_offsets), false, false)?;
        Ok(TrainingScores {
            scores: Scores { winners: Some(winners), ..scores },
            queries,
            documents,
            pairing: pairing.clone(),
            options: ScoreOptions { winners: true, ..options.clone() },
            on_device: None,
        })
    }

    /// Wraps the scores of such a call. Winners, if there are any, are on the host alone.
    pub(in crate::ops) fn new(
        scores: Scores,
        [queries, documents]: [&TokenLayout; 2],
        pairing: &Pairing,
        options: ScoreOptions,
    ) -> TrainingScores {
        TrainingScores {
            scores,
            queries: queries.clone(),
            documents: documents.clone(),
            pairing: pairing.clone(),
            options,
            on_device: None,
        }
    }

    /// The same with these winners on the device that scored, and on the host where it has them.
    pub(in crate::ops) fn with_outputs(self, outputs: CudaOutputs) -> TrainingScores {
        TrainingScores { on_device: Some(Arc::new(outputs)), ..self }
    }

    /// Whether the winners are known, here or on the device that scored.
    pub(in crate::ops) fn has_winners(&self) -> bool {
        self.scores.winners.is_some() || self.on_device.is_some()
    }

    /// The same for gradients on `device`: with the winners on the host, where the device that
    /// scored is another one and alone has them.
    pub(in crate::ops) fn for_device(&self, device: &Device) -> Result<Cow<'_, TrainingScores>> {
        let is_there = match (&self.on_device, device.as_cuda()) {
            (Some(outputs), Some(cuda)) => Arc::ptr_eq(outputs.device(), cuda),
            _ => false,
        };
        if is_there || self.scores.winners.is_some() {
            return Ok(Cow::Borrowed(self));
        }
        let scores = Scores { winners: Some(self.read_winners()?), ..self.scores.clone() };
        Ok(Cow::Owned(TrainingScores { scores, ..self.clone() }))
    }

    /// The winners: those of the host, or copied from the device that scored.
    pub(in crate::ops) fn read_winners(&self) -> Result<Vec<i32>> {
        match (&self.scores.winners, &self.on_device) {
            (Some(winners), _) => copy_of(winners),
            (None, Some(outputs)) => {
                let problem = self.problem(&self.queries, &self.documents)?;
                let options = ScoreOptions { token_scores: false, ..self.options.clone() };
                let scores = outputs.read(&OutputShape::new(&problem, &options))?;
                Ok(scores.winners.unwrap_or_default())
            }
            (None, None) => Ok(Vec::new()),
        }
    }

    /// The winners on a device, which may have them.
    pub(crate) fn outputs_on(
        &self,
        cuda: &Arc<CudaDevice>,
        shape: &OutputShape,
    ) -> Result<Arc<CudaOutputs>> {
        match &self.on_device {
            Some(outputs) if Arc::ptr_eq(outputs.device(), cuda) => Ok(outputs.clone()),
            _ => {
                let winners = self.scores.winners().unwrap_or_default();
                Ok(Arc::new(CudaOutputs::of_winners(cuda, shape, winners)?))
            }
        }
    }

    /// The problem that gave these scores, of the tokens in these layouts. Checks that their items
    /// are those that were scored: that the winners are rows that they have.
    pub(crate) fn problem<'a>(
        &'a self,
        queries: &'a TokenLayout,
        documents: &'a TokenLayout,
    ) -> Result<Problem<'a>> {
        let sides =
            [("queries", queries, &self.queries), ("documents", documents, &self.documents)];
        for (argument, layout, scored) in sides {
            if !layout.same_tokens(scored) {
                let (n_items, rows, dim) = (layout.n_items(), layout.rows(), layout.dim());
                return Err(Error::Shape {
                    argument,
                    expected: format!(
                        "the {argument} of the training scores {:?}",
                        self.scores.shape()
                    ),
                    found: format!("others, {n_items} items in {rows} rows of dim {dim}"),
                });
            }
        }
        Problem::new(queries, documents, &self.pairing)
    }
}

impl Device {
    /// Scores queries against documents and keeps the winners, for [`Device::backward`].
    ///
    /// # Errors
    /// The errors of [`Device::score`].
    pub fn score_for_training<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, T>>,
        pairing: &Pairing,
    ) -> Result<TrainingScores> {
        self.score_for_training_with(queries, documents, pairing, &ScoreOptions::default())
    }

    /// As [`Device::score_for_training`], with options: normalised, say, as are the gradients
    /// then. Winners are kept whether `options` ask for them or not.
    ///
    /// ```
    /// use maxsim::training::BackwardOptions;
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[2.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[3.0f32, 4.0], 1, 1, 2)?;
    /// let (device, cross) = (Device::cpu(), Pairing::cross());
    /// let options = ScoreOptions::default().normalize(true);
    /// let scores = device.score_for_training_with(&queries, &documents, &cross, &options)?;
    /// assert!((scores.scores().values()[0] - 0.6).abs() < 1e-6);
    /// let options = BackwardOptions::default();
    /// let found = device.backward(&queries, &documents, scores.with_grad(&[1.0]), &options)?;
    /// // A longer query has the same score; a steeper one a better.
    /// assert!(found.queries[0].abs() < 1e-6 && (found.queries[1] - 0.4).abs() < 1e-6);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::score_with`].
    pub fn score_for_training_with<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        self.score_with_winners(queries.into(), documents.into(), pairing, options)
    }

    /// As [`Device::score_for_training_with`], of any documents that queries can be scored against.
    pub(crate) fn score_with_winners<Q: ScorableWith<D>, D: Format>(
        &self,
        queries: TokensRef<'_, Q>,
        documents: TokensRef<'_, D>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        let options = ScoreOptions { winners: true, ..options.clone() };
        let layouts = [queries.layout(), documents.layout()];
        if let Some(cuda) = self.as_cuda() {
            let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
            let plan = self.plan_problem(&problem, &queries, &documents, &options)?;
            if let Some(chosen) = plan.chosen() {
                let (mut own_queries, mut own_documents) = (None, None);
                let query_tokens = queries.cuda_tokens(self, &mut own_queries)?;
                let document_tokens = documents.cuda_tokens(self, &mut own_documents)?;
                let (scores, outputs) =
                    cuda.score(&problem, chosen, query_tokens, document_tokens, &options)?;
                return Ok(TrainingScores {
                    on_device: Some(Arc::new(outputs)),
                    ..TrainingScores::new(scores, layouts, pairing, options)
                });
            }
        }
        let scores = self.score_with(queries, documents, pairing, &options)?;
        Ok(TrainingScores::new(scores, layouts, pairing, options))
    }

    /// As [`Device::score_for_training_with`], but keeps no winners: for
    /// [`BackwardStrategy::Recompute`](crate::training::BackwardStrategy::Recompute) alone.
    ///
    /// ```
    /// use maxsim::training::{BackwardOptions, BackwardStrategy};
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[2.0f32, 0.0, 3.0, 4.0], 1, 2, 2)?;
    /// let (device, cross, options) = (Device::best(), Pairing::cross(), ScoreOptions::default());
    /// let scores = device.score_for_recompute(&queries, &documents, &cross, &options)?;
    /// assert_eq!((scores.scores().values(), scores.scores().winners()), (&[3.0][..], None));
    /// // They are found again, on a GPU in at most 64 MB at a time.
    /// let options = BackwardOptions::new(BackwardStrategy::Recompute).winner_bytes(64 << 20);
    /// let found = device.backward(&queries, &documents, scores.with_grad(&[1.0]), &options)?;
    /// assert_eq!(found.queries, [3.0, 4.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    /// # Errors
    /// The errors of [`Device::score_with`].
    pub fn score_for_recompute<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        let (queries, documents) = (queries.into(), documents.into());
        let without = ScoreOptions { winners: false, ..options.clone() };
        let scores = self.score_with(queries, documents, pairing, &without)?;
        let options = ScoreOptions { winners: true, ..without };
        let layouts = [queries.layout(), documents.layout()];
        Ok(TrainingScores::new(scores, layouts, pairing, options))
    }
}
