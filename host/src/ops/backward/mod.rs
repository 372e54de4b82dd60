//! Training: scores whose winners are kept, and the gradients that they give.

pub(crate) mod command;
pub(crate) mod outputs;
pub(crate) mod prepared;

use std::sync::Arc;

use crate::cpu;
use crate::cuda::{
    BackwardCall, CudaBackward, CudaDevice, CudaGradScores, CudaGradients, CudaOutputs,
};
use crate::device::Device;
use crate::device::tokens::Input;
use crate::error::{Error, Result};
use crate::plan::backward::BackwardKind;
use crate::plan::backward::Gathered;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::GradientMatrix;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::runtime::alloc::{copied, filled};
use crate::tokens::element::Element;
use crate::tokens::element::ElementType;
use crate::tokens::format::{Against, Format, Saved, TokenFormat};
use crate::tokens::layout::{TokenLayout, check_len};

/// How gradients are computed. All ways give the same gradients up to rounding, and each but
/// [`Backward::Atomic`] the same bits every time.
///
/// With `g` the gradient of a loss with respect to the scores, and `winner(q, d, s)` the document
/// token that query token `s` chose,
///
/// ```text
/// ∂Q[q, s] = Σ_d g[q, d] · D[d, winner(q, d, s)]
/// ∂D[d, t] = Σ_{(q, s): winner(q, d, s) = t} g[q, d] · Q[q, s]
/// ```
///
/// with the sums over the scored pairs, as often as a pair is scored. Rows that several items share
/// get what each of them adds. Only ∂Q reads rows of documents, which may have become codes since
/// they were scored ([`Saved`]).
///
/// With [`ScoreOptions::normalize`] these sums, over rows x̂ = r · x, are the gradients ∂x̂ with
/// respect to normalised rows, and
///
/// ```text
/// ∂x = r · (∂x̂ - x̂ · ⟨x̂, ∂x̂⟩)     or r · ∂x̂ where ‖x‖² is at most 10⁻¹²: r is constant there
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Backward {
    /// As the device likes; bitwise repeatable. [`Backward::Owner`], so far on every device.
    #[default]
    Auto,
    /// From the saved winners, inverted per document: each gradient row is summed once, by one
    /// owner, in the order of the scores and within a score of the query's tokens.
    ///
    /// On a GPU, sources of a row that are many are cut into parts at places that depend on the
    /// call and the device alone, each is summed in that order, and the parts are added in theirs.
    /// Beyond inputs, winners and gradients it takes the stream's workspace of at most 32 MB and
    /// lists: 32 bytes per eight rows of a query, 64 per 8192 winners of a document, and where
    /// documents are listed by ids or items of a side overlap, 40 per score. Of normalised rows
    /// sums are f32 first: unless gradients are f32 and overwritten, **4 bytes per element of both
    /// sides** in the stream's workspace, and on the CPU of one side after the other.
    Owner,
    /// From the saved winners, in one pass over the query tokens of all pairs, which adds to rows
    /// of documents atomically, in whatever order they are reached: **the bits of their gradients
    /// vary from run to run**, by as much as f32 sums do whose terms change places, and sums below
    /// 2⁻¹²⁶ may become 0. Those of the queries are the same every time. For GPUs only.
    ///
    /// Nothing is sorted, which may be faster where few winners share a row. Of 64 neighbouring
    /// tokens of a query those that chose the same row are summed first and added once; a row that
    /// many more chose is added to by one such sum after the other. Beyond inputs, winners and
    /// gradients it takes, for gradients in the tokens' type of two bytes, **the documents'
    /// gradient in f32**: 4 bytes per element, in the stream's workspace, and 32 per eight rows.
    /// f32 gradients are added to in place. Besides, there are at most 5 MB of parts of the
    /// queries' sums, 32 bytes per eight rows of a query, and where documents are listed by ids or
    /// queries overlap, 36 per score. Of normalised rows as [`Backward::Owner`].
    Atomic,
    /// As [`Backward::Owner`], from winners that are found again: none need be saved, from
    /// [`Device::score_for_recompute`] or from work without winners ([`Device::prepare_backward`]),
    /// so that none take memory between the scores and their gradients. Takes the time of the
    /// scores once more, and memory of winners while a synchronous call runs, or the
    /// [`BackwardWork`](crate::BackwardWork) lives: 4 bytes per query token of each pair on the
    /// CPU, [`DeviceScores::winner_bytes`] on a GPU, there at most
    /// [`BackwardOptions::winner_bytes`].
    ///
    /// Where those of a cross product are more, they are found for some queries at a time, and rows
    /// of documents are summed in f32 over all of them: other bits than the owner's, the same every
    /// time, and for gradients in the tokens' type of two bytes **4 bytes per element of the
    /// documents** (if that and the limit are less than all winners take). Which of several NaN
    /// similarities wins may then be another one, too.
    ///
    /// [`DeviceScores::winner_bytes`]: crate::DeviceScores::winner_bytes
    Recompute,
}

/// How to compute gradients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct BackwardOptions {
    /// The way to go.
    pub strategy: Backward,
    /// Most bytes of winners that [`Backward::Recompute`] has at once on a GPU, 128 MB unless said:
    /// those of a cross product that are more are found for some queries at a time, at least one.
    pub winner_bytes: Option<u64>,
}

impl BackwardOptions {
    /// Those of a strategy.
    pub fn new(strategy: Backward) -> BackwardOptions {
        BackwardOptions { strategy, ..BackwardOptions::default() }
    }

    /// Sets [`BackwardOptions::winner_bytes`](field@BackwardOptions::winner_bytes).
    #[must_use]
    pub fn winner_bytes(self, winner_bytes: impl Into<Option<u64>>) -> BackwardOptions {
        BackwardOptions { winner_bytes: winner_bytes.into(), ..self }
    }

    pub(crate) fn winner_bytes_max(&self) -> u64 {
        self.winner_bytes.unwrap_or(128 << 20)
    }
}

/// Scores with what their gradients need: the winners, and what was scored with what.
///
/// Made by [`Device::score_for_training`], or without winners by [`Device::score_for_recompute`],
/// and used any number of times, with any gradients of the scores. On a CUDA device the winners
/// stay there, too.
#[derive(Clone, Debug)]
pub struct TrainingScores {
    pub(crate) scores: Scores,
    queries: TokenLayout,
    documents: TokenLayout,
    pairing: Pairing,
    /// With winners.
    pub(crate) options: ScoreOptions,
    on_device: Option<Arc<CudaOutputs>>,
}

/// Equal scores, winners, layouts and pairings, normalised or not, on whatever device.
impl PartialEq for TrainingScores {
    fn eq(&self, other: &TrainingScores) -> bool {
        self.scores == other.scores
            && self.queries == other.queries
            && self.documents == other.documents
            && self.pairing == other.pairing
            && self.options.normalize == other.options.normalize
    }
}

impl TrainingScores {
    /// The scores and their winners; token scores where they were asked for.
    pub fn scores(&self) -> &Scores {
        &self.scores
    }

    /// Scores of such a call, whose winners, if there are any, are on the host alone.
    fn new<Q: Format, D: Format>(
        scores: Scores,
        queries: &Input<'_, Q>,
        documents: &Input<'_, D>,
        pairing: &Pairing,
        options: ScoreOptions,
    ) -> TrainingScores {
        TrainingScores {
            scores,
            queries: queries.layout().clone(),
            documents: documents.layout().clone(),
            pairing: pairing.clone(),
            options,
            on_device: None,
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

    /// Checks that these are the scores of a problem: that its winners are rows that it has.
    pub(crate) fn check(&self, problem: &Problem<'_>) -> Result<()> {
        let differs = if !problem.queries().same_tokens(&self.queries) {
            "queries"
        } else if !problem.documents().same_tokens(&self.documents) {
            "documents"
        } else if *problem.pairing() != self.pairing {
            "pairing"
        } else {
            return Ok(());
        };
        Err(Error::Shape {
            argument: differs,
            expected: format!("the {differs} of the training scores {:?}", self.scores.shape()),
            found: format!("others, for scores {:?}", problem.shape()),
        })
    }
}

/// Gradients of the queries' and of the documents' token matrix, in f32.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients {
    /// `[rows, dim]` of the queries' matrix, row-major.
    pub queries: Vec<f32>,
    /// `[rows, dim]` of the documents' matrix, row-major.
    pub documents: Vec<f32>,
}

impl Gradients {
    /// Zeros, for [`Device::backward_into`] to add to.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room.
    pub fn zeros(queries: &TokenLayout, documents: &TokenLayout) -> Result<Gradients> {
        let zeros = |layout: &TokenLayout| filled((layout.rows() * layout.dim()) as u64, 0.0);
        Ok(Gradients { queries: zeros(queries)?, documents: zeros(documents)? })
    }

    pub(crate) fn copied(&self) -> Result<Gradients> {
        Ok(Gradients { queries: copied(&self.queries)?, documents: copied(&self.documents)? })
    }
}

impl Device {
    /// Scores queries against documents and keeps the winners, for [`Device::backward`].
    ///
    /// # Errors
    /// Those of [`Device::score`].
    pub fn score_for_training<'a, T: Element>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, T>>,
        pairing: &Pairing,
    ) -> Result<TrainingScores> {
        self.score_for_training_with(queries, documents, pairing, &ScoreOptions::default())
    }

    /// As [`Device::score_for_training`], with options: normalised, say, as are the gradients
    /// then. Winners are kept whether `options` ask for them or not.
    ///
    /// ```
    /// use maxsim::{BackwardOptions, Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[2.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[3.0f32, 4.0], 1, 1, 2)?;
    /// let (device, cross) = (Device::cpu(), Pairing::cross());
    /// let options = ScoreOptions { normalize: true, ..ScoreOptions::default() };
    /// let scores = device.score_for_training_with(&queries, &documents, &cross, &options)?;
    /// assert!((scores.scores().values()[0] - 0.6).abs() < 1e-6);
    /// let options = BackwardOptions::default();
    /// let found = device.backward(&queries, &documents, &cross, &scores, &[1.0], &options)?;
    /// // A longer query has the same score; a steeper one a better.
    /// assert!(found.queries[0].abs() < 1e-6 && (found.queries[1] - 0.4).abs() < 1e-6);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::score_with`].
    pub fn score_for_training_with<'a, T: Element>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        self.score_with_winners(queries.into(), documents.into(), pairing, options)
    }

    /// As [`Device::score_for_training_with`], of any documents that queries can be scored against.
    pub(crate) fn score_with_winners<Q: Against<D>, D: Format>(
        &self,
        queries: Input<'_, Q>,
        documents: Input<'_, D>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        let options = ScoreOptions { winners: true, ..options.clone() };
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
                    ..TrainingScores::new(scores, &queries, &documents, pairing, options)
                });
            }
        }
        let scores = self.score_with(queries, documents, pairing, &options)?;
        Ok(TrainingScores::new(scores, &queries, &documents, pairing, options))
    }

    /// As [`Device::score_for_training_with`], but keeps no winners: for [`Backward::Recompute`]
    /// alone.
    ///
    /// # Errors
    /// Those of [`Device::score_with`].
    pub fn score_for_recompute<'a, T: Element>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        let (queries, documents) = (queries.into(), documents.into());
        let without = ScoreOptions { winners: false, ..options.clone() };
        let scores = self.score_with(queries, documents, pairing, &without)?;
        let options = ScoreOptions { winners: true, ..without };
        Ok(TrainingScores::new(scores, &queries, &documents, pairing, options))
    }

    /// Gradients of a loss with respect to the tokens, from its gradients with respect to the
    /// scores: `grad_scores` has one number per score, in the order of the scores.
    ///
    /// The tokens and the pairing are those that gave `scores`. Rows that no item names, masked
    /// tokens, and tokens that no query token chose get exactly 0, whatever they hold. A winner
    /// is a winner where the maximum is NaN, too. A sum of n terms g · x errs by at most
    /// n · 2⁻²⁴ · Σ |g · x|, to first order.
    ///
    /// ```
    /// use maxsim::{BackwardOptions, Device, Pairing, Tokens};
    ///
    /// // One query of two tokens; documents of one and two tokens; dim 2.
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
    /// let (device, pairing) = (Device::cpu(), Pairing::cross());
    /// let scores = device.score_for_training(&queries, &documents, &pairing)?;
    /// assert_eq!(scores.scores().values(), [2.0, 8.0]);
    /// assert_eq!(scores.scores().winners(), Some(&[0, 0, 0, 1][..]));
    ///
    /// // The loss is the first score and half of the second.
    /// let options = BackwardOptions::default();
    /// let gradients =
    ///     device.backward(&queries, &documents, &pairing, &scores, &[1.0, 0.5], &options)?;
    /// // (2, 0) + (3, 4) / 2, then (2, 0) + (-1, 5) / 2
    /// assert_eq!(gradients.queries, [3.5, 2.0, 1.5, 2.5]);
    /// // Both query tokens chose the only token of the first document, and each one of the second's.
    /// assert_eq!(gradients.documents, [1.0, 1.0, 0.5, 0.0, 0.0, 0.5]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// Or documents are given as [`Int8`](crate::Int8) codes of those that were scored, which need
    /// not live until here then: see [`Saved`] for what that saves and what it costs.
    ///
    /// ```
    /// use maxsim::{BackwardOptions, Device, Int8, Pairing, ScaleType, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[0.6f32, 0.8], 1, 1, 2)?;
    /// let (device, cross) = (Device::cpu(), Pairing::cross());
    /// let scores = device.score_for_training(&queries, &documents, &cross)?;
    /// let saved = documents.quantize::<Int8>(ScaleType::F16)?;
    /// drop(documents);
    /// let options = BackwardOptions::default();
    /// let found = device.backward(&queries, &saved, &cross, &scores, &[1.0], &options)?;
    /// assert!((found.queries[0] - 0.6).abs() < 0.0032 && (found.queries[1] - 0.8).abs() < 0.0032);
    /// assert_eq!(found.documents, [1.0, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// Tokens must be those that gave `scores`. That their items are is checked; that their rows
    /// are is the caller's word: winners of other rows give other sums, without an error.
    ///
    /// # Errors
    /// Those of [`Device::score`]; [`Error::Shape`] where the items of queries or documents, or the
    /// pairing, are not those of `scores`, `grad_scores` has another length, or the strategy reads
    /// winners that `scores` do not have; [`Error::Unsupported`] for a strategy that the device
    /// does not have, and of documents saved as codes for normalised scores, [`Backward::Atomic`]
    /// and [`Backward::Recompute`].
    pub fn backward<'a, T: Element, D: Saved<T>>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, D>>,
        pairing: &Pairing,
        scores: &TrainingScores,
        grad_scores: &[f32],
        options: &BackwardOptions,
    ) -> Result<Gradients> {
        let (queries, documents) = (queries.into(), documents.into());
        let call = Call::new(self, queries, documents, pairing, scores, grad_scores, options)?;
        let mut gradients = Gradients::zeros(queries.layout(), documents.layout())?;
        call.add_to(&mut gradients)?;
        Ok(gradients)
    }

    /// As [`Device::backward`], but adds to what `gradients` hold, so that a batch can be scored
    /// in parts. What is there counts as the first term of each sum.
    ///
    /// # Errors
    /// Those of [`Device::backward`], and [`Error::Shape`] where `gradients` are not as long as
    /// the token matrices; they are unchanged then. After [`Error::HostMemory`] they may hold a
    /// part of the sums.
    #[allow(clippy::too_many_arguments)] // those of `backward`, and where the result goes
    pub fn backward_into<'a, T: Element, D: Saved<T>>(
        &self,
        queries: impl Into<Input<'a, T>>,
        documents: impl Into<Input<'a, D>>,
        pairing: &Pairing,
        scores: &TrainingScores,
        grad_scores: &[f32],
        options: &BackwardOptions,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let (queries, documents) = (queries.into(), documents.into());
        let call = Call::new(self, queries, documents, pairing, scores, grad_scores, options)?;
        for (argument, layout, found) in [
            ("gradients.queries", queries.layout(), gradients.queries.len()),
            ("gradients.documents", documents.layout(), gradients.documents.len()),
        ] {
            let (rows, dim) = (layout.rows(), layout.dim());
            check_len(argument, rows * dim, &format!("{rows} rows of {dim}"), found)?;
        }
        call.add_to(gradients)
    }
}

/// A call that has been checked: nothing but memory can be missing.
struct Call<'a, T: Element, D: Saved<T>> {
    device: &'a Device,
    problem: Problem<'a>,
    queries: Input<'a, T>,
    documents: Input<'a, D>,
    scores: &'a TrainingScores,
    grad_scores: &'a [f32],
    finds_winners_again: bool,
    is_atomic: bool,
    winner_bytes: u64,
}

impl<'a, T: Element, D: Saved<T>> Call<'a, T, D> {
    fn new(
        device: &'a Device,
        queries: Input<'a, T>,
        documents: Input<'a, D>,
        pairing: &'a Pairing,
        scores: &'a TrainingScores,
        grad_scores: &'a [f32],
        options: &BackwardOptions,
    ) -> Result<Self> {
        let finds_winners_again = options.strategy.finds_winners_again(device)?;
        options.strategy.check_saved(D::FORMAT, scores.options.normalize)?;
        queries.check_device("queries", device)?;
        documents.check_device("documents", device)?;
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        scores.check(&problem)?;
        if scores.scores.winners().is_none() && !finds_winners_again {
            return Err(Error::Shape {
                argument: "scores",
                expected: "scores of Device::score_for_training, or Backward::Recompute".into(),
                found: "scores without winners".into(),
            });
        }
        check_len("grad_scores", problem.shape().n_scores(), "one per score", grad_scores.len())?;
        Ok(Call {
            device,
            problem,
            queries,
            documents,
            scores,
            grad_scores,
            finds_winners_again,
            is_atomic: options.strategy == Backward::Atomic,
            winner_bytes: options.winner_bytes_max(),
        })
    }

    fn add_to(&self, gradients: &mut Gradients) -> Result<()> {
        if let Some(cuda) = self.device.as_cuda() {
            return self.add_on(cuda, gradients);
        }
        let (queries, documents) = (self.queries.host_matrix()?, self.documents.host_matrix()?);
        let found_again = self
            .finds_winners_again
            .then(|| cpu::score(&self.problem, queries, documents, &self.scores.options))
            .transpose()?;
        let scores = found_again.as_ref().unwrap_or(&self.scores.scores);
        cpu::add_gradients(
            &self.problem,
            queries,
            documents,
            scores.winners().unwrap_or_default(),
            self.grad_scores,
            [&mut gradients.queries, &mut gradients.documents],
            self.scores.options.normalize,
        )
    }

    /// As [`Call::add_to`], on a CUDA device.
    fn add_on(&self, cuda: &Arc<CudaDevice>, gradients: &mut Gradients) -> Result<()> {
        let (device, problem) = (self.device, &self.problem);
        let options = ScoreOptions { token_scores: false, ..self.scores.options.clone() };
        let shape = OutputShape::new(problem, &options);
        let element = ElementType::F32;
        let kind = BackwardKind {
            gradient: element,
            is_atomic: self.is_atomic,
            normalizes: options.normalize,
            documents: Gathered::of(D::FORMAT),
        };
        let again = match self.finds_winners_again {
            true => {
                device.plan_problem(problem, &self.queries, &self.documents, &options)?.chosen()
            }
            false => None,
        };
        let work = match again {
            Some(chosen) => {
                let again = (chosen, self.winner_bytes);
                CudaBackward::recompute(cuda, problem, T::TYPE, kind, &shape, again)?
            }
            None => CudaBackward::new(cuda, problem, T::TYPE, kind, &shape)?,
        };
        let outputs = self.scores.outputs_on(cuda, &shape)?;
        let matrices = [problem.queries(), problem.documents()].map(|layout| GradientMatrix {
            address: 0,
            element,
            rows: layout.rows(),
            dim: layout.dim(),
        });
        let on_device = CudaGradients::zeros(cuda, matrices)?;
        on_device.write(0, &gradients.queries)?;
        on_device.write(1, &gradients.documents)?;
        let grad_scores = CudaGradScores::upload(cuda, self.grad_scores)?;
        let (mut own_queries, mut own_documents) = (None, None);
        let call = BackwardCall {
            queries: self.queries.cuda_tokens(device, &mut own_queries)?,
            documents: self.documents.cuda_tokens(device, &mut own_documents)?,
            outputs: &outputs,
            grad_scores: &grad_scores,
            gradients: &on_device,
            adds: true,
        };
        cuda.on_idle_stream(|stream| work.enqueue(stream, &call))?;
        on_device.read([&mut gradients.queries, &mut gradients.documents])
    }
}

impl Backward {
    /// Whether the strategy does not read saved winners; an error where the device does not have
    /// it.
    pub(crate) fn finds_winners_again(self, device: &Device) -> Result<bool> {
        match self {
            Backward::Auto | Backward::Owner => Ok(false),
            Backward::Recompute => Ok(true),
            Backward::Atomic if device.ordinal().is_some() => Ok(false),
            Backward::Atomic => Err(Error::Unsupported {
                what: "Backward::Atomic on the CPU".into(),
                why: "it adds in GPU memory, with bits that vary from run to run; choose Backward::Owner or \
                      Backward::Recompute"
                    .into(),
            }),
        }
    }

    /// Refuses what needs the documents that were scored, where others are saved in their place.
    pub(crate) fn check_saved(self, documents: TokenFormat, normalize: bool) -> Result<()> {
        if documents.element().is_some() {
            return Ok(());
        }
        let (what, why) = match self {
            Backward::Atomic => (
                "Backward::Atomic",
                "no kernel adds atomically from codes; choose Backward::Owner, or give the documents \
                 that were scored",
            ),
            Backward::Recompute => (
                "Backward::Recompute",
                "codes may find other winners than the scores have; choose Backward::Owner, which \
                 reads saved ones, or give the documents that were scored",
            ),
            Backward::Auto | Backward::Owner if normalize => (
                "gradients of normalised rows",
                "they need the documents' rows; give the documents that were scored, or score \
                 rows that were normalised before",
            ),
            Backward::Auto | Backward::Owner => return Ok(()),
        };
        let what = format!("{what} from documents saved as {documents}");
        Err(Error::Unsupported { what, why: why.into() })
    }
}
