//! Gradients at once: on the host when the call returns.

use std::sync::Arc;

use super::training_scores::TrainingScores;
use super::with_grad::WithGrad;
use super::{BackwardOptions, BackwardStrategy, check_angular_weights};
use crate::cpu;
use crate::cuda::{BackwardCall, CudaBackward, CudaDevice, CudaGradScores, CudaGradients};
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::plan::backward::{BackwardKind, Gathered};
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::{GradientMatrix, OutputShape};
use crate::runtime::alloc::{copy_of, zeroed};
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::GradientSource;
use crate::tokens::layout::{TokenLayout, check_len};

/// Gradients of the queries' and of the documents' token matrix, in f32.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Gradients {
    /// `[rows, dim]` of the queries' matrix, row-major.
    pub queries: Vec<f32>,
    /// `[rows, dim]` of the documents' matrix, row-major.
    pub documents: Vec<f32>,
    /// One per row of the queries' matrix, where query tokens have
    /// [weights](crate::Tokens::with_weights).
    pub weights: Vec<f32>,
}

impl Gradients {
    /// Zeros, for [`Device::backward_into`] to add to.
    ///
    /// # Errors
    /// [`Error::HostMemory`] where there is no room.
    pub fn zeros(queries: &TokenLayout, documents: &TokenLayout) -> Result<Gradients> {
        let rows = rows_of([queries, documents], [true; 2]);
        Gradients::of_rows(rows, queries.dim())
    }

    /// Zeros of so many rows of queries and of documents, and of so many weights.
    pub(in crate::ops) fn of_rows(rows: [usize; 3], dim: usize) -> Result<Gradients> {
        let [queries, documents, weights] = rows;
        let of = |n: usize, dim: usize| zeroed(n as u64 * dim as u64);
        Ok(Gradients {
            queries: of(queries, dim)?,
            documents: of(documents, dim)?,
            weights: of(weights, 1)?,
        })
    }

    pub(crate) fn copied(&self) -> Result<Gradients> {
        Ok(Gradients {
            queries: copy_of(&self.queries)?,
            documents: copy_of(&self.documents)?,
            weights: copy_of(&self.weights)?,
        })
    }

    /// What a call adds to.
    pub(super) fn parts(&mut self) -> [&mut [f32]; 3] {
        [&mut self.queries, &mut self.documents, &mut self.weights]
    }
}

/// Rows of the gradients of the sides that are wanted, and of the queries' weights.
pub(super) fn rows_of(
    [queries, documents]: [&TokenLayout; 2],
    [of_queries, of_documents]: [bool; 2],
) -> [usize; 3] {
    let rows = |is_wanted: bool, layout: &TokenLayout| if is_wanted { layout.rows() } else { 0 };
    [
        rows(of_queries, queries),
        rows(of_documents, documents),
        rows(of_queries && queries.is_weighted(), queries),
    ]
}

/// Room for gradients in memory of the caller: see [`Device::backward_sides`].
///
/// ```
/// use maxsim::training::{BackwardOptions, GradientSlices};
/// use maxsim::{Device, Pairing, Tokens};
///
/// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?.with_weights(&[0.5])?;
/// let documents = Tokens::padded(&[3.0f32, 4.0], 1, 1, 2)?;
/// let device = Device::cpu();
/// let scores = device.score_for_training(&queries, &documents, &Pairing::cross())?;
/// let (mut of_queries, mut of_weights, options) = ([0.0; 2], [0.0], BackwardOptions::default());
/// let to = GradientSlices::from([Some(&mut of_queries[..]), None]).weights(&mut of_weights);
/// device.backward_sides(&queries, &documents, scores.with_grad(&[1.0]), &options, to)?;
/// assert_eq!((of_queries, of_weights), ([1.5, 2.0], [3.0]));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct GradientSlices<'a> {
    sides: [Option<&'a mut [f32]>; 2],
    weights: Option<&'a mut [f32]>,
}

impl<'a> GradientSlices<'a> {
    /// Also the gradient of the queries' weights, one per row of their matrix.
    pub fn weights(self, weights: &'a mut [f32]) -> GradientSlices<'a> {
        GradientSlices { weights: Some(weights), ..self }
    }
}

/// Room for the gradients of queries and documents; `None` where one is not wanted.
impl<'a> From<[Option<&'a mut [f32]>; 2]> for GradientSlices<'a> {
    fn from(sides: [Option<&'a mut [f32]>; 2]) -> Self {
        GradientSlices { sides, weights: None }
    }
}

impl Device {
    /// Gradients of a loss with respect to the tokens, from its gradients with respect to the
    /// scores: [`TrainingScores::with_grad`] takes one number per score, in the order of the
    /// scores.
    ///
    /// The tokens are those that gave `scores`, and are paired as they were then. Rows that no item
    /// names, masked tokens, and tokens that no query token chose get exactly 0, whatever they
    /// hold. A winner is a winner where the maximum is NaN, too. A sum of n terms g · x errs by at
    /// most n · 2⁻²⁴ · Σ |g · x|, to first order.
    ///
    /// ```
    /// use maxsim::training::BackwardOptions;
    /// use maxsim::{Device, Pairing, Tokens};
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
    ///     device.backward(&queries, &documents, scores.with_grad(&[1.0, 0.5]), &options)?;
    /// // (2, 0) + (3, 4) / 2, then (2, 0) + (-1, 5) / 2
    /// assert_eq!(gradients.queries, [3.5, 2.0, 1.5, 2.5]);
    /// // Both query tokens chose the first document's only token, and each one of the second's.
    /// assert_eq!(gradients.documents, [1.0, 1.0, 0.5, 0.0, 0.0, 0.5]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// Or documents are given as [`Int8`](crate::format::Int8) codes of those that were scored,
    /// which need not live until here then: see [`GradientSource`] for what that saves and what it
    /// costs.
    ///
    /// ```
    /// use maxsim::format::{Int8, ScaleType};
    /// use maxsim::training::BackwardOptions;
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[0.6f32, 0.8], 1, 1, 2)?;
    /// let (device, cross) = (Device::cpu(), Pairing::cross());
    /// let scores = device.score_for_training(&queries, &documents, &cross)?;
    /// let saved = documents.quantize::<Int8>(ScaleType::F16)?;
    /// drop(documents);
    /// let options = BackwardOptions::default();
    /// let found = device.backward(&queries, &saved, scores.with_grad(&[1.0]), &options)?;
    /// assert!((found.queries[0] - 0.6).abs() < 0.0032 && (found.queries[1] - 0.8).abs() < 0.0032);
    /// assert_eq!(found.documents, [1.0, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// Tokens must be those that gave `scores`. That their items are is checked; that their rows
    /// are is the caller's word: winners of other rows give other sums, without an error.
    ///
    /// # Errors
    /// The errors of [`Device::score`]; [`Error::Shape`] where the items of queries or documents
    /// are not those of `scores`, there is another number of gradients than of scores, or the
    /// strategy reads winners that `scores` do not have; [`Error::Unsupported`] for a strategy that
    /// the device does not have, and of documents saved as codes for normalised scores,
    /// [`BackwardStrategy::Atomic`] and [`BackwardStrategy::Recompute`].
    pub fn backward<'a, T: Element, D: GradientSource<T>>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, D>>,
        scores: WithGrad<'_, TrainingScores, [f32]>,
        options: &BackwardOptions,
    ) -> Result<Gradients> {
        let (queries, documents) = (queries.into(), documents.into());
        let call = Call::new(self, queries, documents, scores, options)?;
        let mut gradients = Gradients::of_rows(call.rows(call.wanted), queries.layout().dim())?;
        call.add_to(gradients.parts())?;
        Ok(gradients)
    }

    /// As [`Device::backward`], but adds to what `gradients` hold, so that a batch can be scored
    /// in parts. What is there counts as the first term of each sum.
    ///
    /// ```
    /// use maxsim::training::{BackwardOptions, Gradients};
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[2.0f32, 0.0, 3.0, 4.0], 2, 1, 2)?;
    /// let (device, options) = (Device::cpu(), BackwardOptions::default());
    /// let mut gradients = Gradients::zeros(queries.layout(), documents.layout())?;
    /// for (document, grad_scores) in [(0, [1.0]), (1, [0.5])] {
    ///     let pairing = Pairing::pairs(&[0], &[document])?;
    ///     let scores = device.score_for_training(&queries, &documents, &pairing)?;
    ///     let scores = scores.with_grad(&grad_scores);
    ///     device.backward_into(&queries, &documents, scores, &options, &mut gradients)?;
    /// }
    /// assert_eq!(gradients.queries, [3.5, 2.0]); // (2, 0) + (3, 4) / 2
    /// assert_eq!(gradients.documents, [1.0, 0.0, 0.5, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    /// # Errors
    /// The errors of [`Device::backward`], and [`Error::Shape`] where `gradients` are not as long
    /// as the token matrices; they are unchanged then. After [`Error::HostMemory`] they may hold a
    /// part of the sums.
    pub fn backward_into<'a, T: Element, D: GradientSource<T>>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, D>>,
        scores: WithGrad<'_, TrainingScores, [f32]>,
        options: &BackwardOptions,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let (queries, documents) = (queries.into(), documents.into());
        let call = Call::new(self, queries, documents, scores, options)?;
        let [of_queries, of_documents] = call.wanted;
        let of_weights = of_queries && queries.layout().is_weighted();
        let to = GradientSlices {
            sides: [
                of_queries.then_some(&mut gradients.queries[..]),
                of_documents.then_some(&mut gradients.documents[..]),
            ],
            weights: of_weights.then_some(&mut gradients.weights[..]),
        };
        call.check(["gradients.queries", "gradients.documents", "gradients.weights"], &to)?;
        call.add_slices(to)
    }

    /// As [`Device::backward_into`], of one side or both, in memory of the caller: adds to what
    /// the slices hold, `[rows, dim]` of the queries' and of the documents' matrix, and one per row
    /// for the queries' weights, which comes with the queries' gradient alone. The gradient of a
    /// side that is `None` is not computed, and of none but those of
    /// [`BackwardOptions::sides`](field@BackwardOptions::sides).
    ///
    /// ```
    /// use maxsim::training::BackwardOptions;
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let queries = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::padded(&[3.0f32, 4.0], 1, 1, 2)?;
    /// let device = Device::cpu();
    /// let scores = device.score_for_training(&queries, &documents, &Pairing::cross())?;
    /// let (mut found, options) = ([0.0; 2], BackwardOptions::default());
    /// let sides = [Some(&mut found[..]), None];
    /// device.backward_sides(&queries, &documents, scores.with_grad(&[1.0]), &options, sides)?;
    /// assert_eq!(found, [3.0, 4.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::backward_into`].
    pub fn backward_sides<'a, 'g, T: Element, D: GradientSource<T>>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, D>>,
        scores: WithGrad<'_, TrainingScores, [f32]>,
        options: &BackwardOptions,
        to: impl Into<GradientSlices<'g>>,
    ) -> Result<()> {
        let (queries, documents, to) = (queries.into(), documents.into(), to.into());
        let mut call = Call::new(self, queries, documents, scores, options)?;
        call.check(["queries' gradient", "documents' gradient", "weights' gradient"], &to)?;
        for (wanted, side) in call.wanted.iter_mut().zip(&to.sides) {
            *wanted &= side.is_some();
        }
        call.add_slices(to)
    }
}

/// The gradients of queries, documents and weights at these addresses, as a device writes them.
pub(in crate::ops) fn matrices(
    addresses: [u64; 3],
    element: ElementType,
    rows: [usize; 3],
    dim: usize,
) -> [GradientMatrix; 3] {
    let weights = GradientMatrix { address: 0, element: ElementType::F32, rows: 0, dim: 1 };
    let side = GradientMatrix { element, dim, ..weights };
    let mut matrices = [side, side, weights];
    for ((matrix, address), rows) in matrices.iter_mut().zip(addresses).zip(rows) {
        (matrix.address, matrix.rows) = (address, rows);
    }
    matrices
}

/// Checks that a side's gradient is as long as its token matrix.
fn check_side(argument: &'static str, layout: &TokenLayout, gradient: &[f32]) -> Result<()> {
    let (rows, dim) = (layout.rows(), layout.dim());
    check_len(argument, rows.saturating_mul(dim), &format!("{rows} rows of {dim}"), gradient.len())
}

/// A call that has been checked: nothing but memory can be missing.
struct Call<'a, T: Element, D: GradientSource<T>> {
    device: &'a Device,
    problem: Problem<'a>,
    queries: TokensRef<'a, T>,
    documents: TokensRef<'a, D>,
    scores: &'a TrainingScores,
    grad_scores: &'a [f32],
    finds_winners_again: bool,
    is_atomic: bool,
    winner_bytes: u64,
    /// Whether queries, and whether documents, get gradients.
    wanted: [bool; 2],
}

impl<'a, T: Element, D: GradientSource<T>> Call<'a, T, D> {
    fn new(
        device: &'a Device,
        queries: TokensRef<'a, T>,
        documents: TokensRef<'a, D>,
        scores: WithGrad<'a, TrainingScores, [f32]>,
        options: &BackwardOptions,
    ) -> Result<Self> {
        let WithGrad { scores, grad_scores } = scores;
        let finds_winners_again = options.strategy.finds_winners_again(device)?;
        options.strategy.check_saved(D::FORMAT, scores.options.normalize)?;
        options.strategy.check_sides(options.sides)?;
        check_angular_weights(&scores.options, queries.layout())?;
        queries.check_device("queries", device)?;
        documents.check_device("documents", device)?;
        let problem = scores.problem(queries.layout(), documents.layout())?;
        if !scores.has_winners() && !finds_winners_again {
            return Err(Error::Shape {
                argument: "scores",
                expected: "scores of Device::score_for_training, or BackwardStrategy::Recompute"
                    .into(),
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
            is_atomic: options.strategy == BackwardStrategy::Atomic,
            winner_bytes: options.winner_bytes_max(),
            wanted: options.sides.wanted(),
        })
    }

    /// Rows of the gradients of some sides.
    fn rows(&self, wanted: [bool; 2]) -> [usize; 3] {
        rows_of([self.problem.queries(), self.problem.documents()], wanted)
    }

    /// Checks that the gradients that there is room for are as long as the token matrices.
    fn check(&self, arguments: [&'static str; 3], to: &GradientSlices<'_>) -> Result<()> {
        let layouts = [self.problem.queries(), self.problem.documents()];
        for ((argument, layout), side) in arguments.into_iter().zip(layouts).zip(&to.sides) {
            if let Some(side) = side {
                check_side(argument, layout, side)?;
            }
        }
        let [of_queries, ..] = &to.sides;
        let Some(weights) = &to.weights else { return Ok(()) };
        let [_, _, n_weights] = self.rows([of_queries.is_some(), false]);
        let meaning = "one per row of queries with weights and a gradient";
        check_len(arguments[2], n_weights, meaning, weights.len())
    }

    /// As [`Call::add_to`], of what there is room for.
    fn add_slices(&self, to: GradientSlices<'_>) -> Result<()> {
        let [queries, documents] = to.sides.map(Option::unwrap_or_default);
        self.add_to([queries, documents, to.weights.unwrap_or_default()])
    }

    /// Adds the gradients of the sides that are wanted, which have room.
    fn add_to(&self, gradients: [&mut [f32]; 3]) -> Result<()> {
        let [of_queries, of_documents, of_weights] = gradients;
        let [queries, documents] = self.wanted;
        let gradients = [
            if queries { of_queries } else { &mut [][..] },
            if documents { of_documents } else { &mut [][..] },
            if queries { of_weights } else { &mut [][..] },
        ];
        match self.device.as_cuda() {
            Some(cuda) if self.is_atomic => {
                // It finds both in one pass.
                let rows = [queries, documents].map(|is_wanted| !is_wanted);
                let mut spare = Gradients::of_rows(self.rows(rows), self.problem.dim())?;
                let [of_queries, of_documents, of_weights] = gradients;
                let gradients = [
                    if queries { of_queries } else { &mut spare.queries },
                    if documents { of_documents } else { &mut spare.documents },
                    of_weights,
                ];
                self.add_on(cuda, gradients, [true; 2])
            }
            Some(cuda) => self.add_on(cuda, gradients, self.wanted),
            None => self.add_on_cpu(gradients),
        }
    }

    /// As [`Call::add_to`], on the CPU; a side without room is left out.
    fn add_on_cpu(&self, gradients: [&mut [f32]; 3]) -> Result<()> {
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
            gradients,
            &self.scores.options,
        )
    }

    /// As [`Call::add_to`], on a CUDA device.
    fn add_on(
        &self,
        cuda: &Arc<CudaDevice>,
        gradients: [&mut [f32]; 3],
        sides: [bool; 2],
    ) -> Result<()> {
        let (device, problem) = (self.device, &self.problem);
        let options = ScoreOptions { token_scores: false, ..self.scores.options.clone() };
        let shape = OutputShape::new(problem, &options);
        let element = ElementType::F32;
        let kind = BackwardKind {
            gradient: element,
            is_atomic: self.is_atomic,
            normalizes: options.normalize,
            angular: options.angular,
            weighted: problem.queries().is_weighted(),
            documents: Gathered::of(D::FORMAT),
            sides,
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
        let [of_queries, of_documents, of_weights] = gradients;
        let [queries, documents, _] = self.rows(sides);
        let rows = [queries, documents, of_weights.len()];
        let on_device = CudaGradients::zeros(cuda, matrices([0; 3], element, rows, problem.dim()))?;
        on_device.write(0, of_queries)?;
        on_device.write(1, of_documents)?;
        on_device.write(2, of_weights)?;
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
        on_device.read([of_queries, of_documents, of_weights])
    }
}
