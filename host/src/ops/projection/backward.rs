//! Gradients of scores of projected hidden states, and of projections alone.

use super::projector::Projector;
use super::slices::Slice;
use super::{Projection, on_cuda};
use crate::cpu;
use crate::cpu::projection::gradients::ProjectionSums;
use crate::cpu::tokens::Matrix;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::backward::training_scores::TrainingScores;
use crate::ops::backward::with_grad::WithGrad;
use crate::problem::Problem;
use crate::runtime::alloc::{copy_of, fill, zeroed};
use crate::tokens::element::Element;
use crate::tokens::layout::check_len;

/// Gradients of hidden states and of the projection that makes tokens of them, in f32.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct ProjectionGradients {
    /// `[rows, hidden]` of the matrix of hidden states, row-major.
    pub hidden: Vec<f32>,
    /// `[dim, hidden]`, of the weight.
    pub weight: Vec<f32>,
    /// `[dim]`, of the bias; empty where there is none.
    pub bias: Vec<f32>,
}

/// Gradients of queries, and of what the documents' tokens are made of.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct ProjectedGradients {
    /// `[rows, dim]` of the queries' matrix, row-major.
    pub queries: Vec<f32>,
    /// One per row of the queries' matrix, where query tokens have
    /// [weights](crate::Tokens::with_weights).
    pub query_weights: Vec<f32>,
    /// Those of the documents' hidden states, and of the projection.
    pub documents: ProjectionGradients,
}

impl Device {
    /// Gradients of a loss with respect to queries, hidden states, weight and bias, from its
    /// gradients with respect to scores of [`Device::score_projected_for_training`].
    ///
    /// With d̂ = u · r the tokens, ∂Q and G = ∂d̂ are what
    /// [`BackwardStrategy`](crate::training::BackwardStrategy) says. Rounding is taken to change
    /// nothing, and
    ///
    /// ```text
    /// ∂u = r · (G - d̂ · ⟨d̂, G⟩)    ∂H = ∂u · W    ∂W = Σ ∂uᵀ · H    ∂b = Σ ∂u
    /// ```
    ///
    /// with ∂u = r · G where ‖u‖² is at most 10⁻¹², or tokens are not normalised.
    ///
    /// Masked rows, and rows that no query token chose, get exactly 0 and give none, whatever they
    /// hold. On the CPU documents are projected a second time, a slice after the other, as for the
    /// scores; on a GPU those of their rows that some query token chose. The same bits every time.
    ///
    /// ```
    /// use maxsim::projection::{ProjectedGradients, Projection};
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// let weight = Tokens::padded(&[1.0f32, 0.0, 0.0, 0.0, 2.0, 0.0], 1, 2, 3)?;
    /// let projection = Projection::new(&weight)?;
    /// let queries = Tokens::padded(&[1.0f32, 1.0], 1, 1, 2)?;
    /// // One document, of tokens (3, 4) and (-1, 6).
    /// let hidden = Tokens::padded(&[3.0f32, 2.0, 9.0, -1.0, 3.0, 9.0], 1, 2, 3)?;
    /// let (device, cross) = (Device::cpu(), Pairing::cross());
    /// let scores = device.score_projected_for_training(&queries, &hidden, &projection, &cross)?;
    /// assert_eq!(scores.scores().values(), [7.0]);
    /// let scores = scores.with_grad(&[0.5]);
    /// let found: ProjectedGradients =
    ///     device.backward_projected(&queries, &hidden, &projection, scores)?;
    /// assert_eq!(found.queries, [1.5, 2.0]);
    /// assert_eq!(found.documents.hidden, [0.5, 1.0, 0.0, 0.0, 0.0, 0.0]);
    /// assert_eq!(found.documents.weight, [1.5, 1.0, 4.5, 1.5, 1.0, 4.5]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::score_projected`]; [`Error::Shape`] where the items of queries or
    /// documents are not those of `scores`, these have no winners, or there is another number of
    /// gradients than of scores; [`Error::Unsupported`] for scores of normalised rows
    /// ([`Projection::normalize`] is what normalises tokens here).
    pub fn backward_projected<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'_, T>,
        scores: WithGrad<'_, TrainingScores, [f32]>,
    ) -> Result<ProjectedGradients> {
        let (queries, hidden) = (queries.into(), hidden.into());
        let WithGrad { scores, grad_scores } = scores;
        queries.check_device("queries", self)?;
        projection.check(self, &hidden)?;
        let documents = hidden.layout().projected(projection.dim());
        let problem = scores.problem(queries.layout(), &documents)?;
        check_scores(scores)?;
        let n_scores = problem.shape().n_scores();
        check_len("grad_scores", n_scores, "one per score", grad_scores.len())?;
        if self.as_cuda().is_some() {
            let projector = Projector::new(self, projection, hidden)?;
            let states = hidden.layout();
            return on_cuda::backward(
                self,
                queries,
                &projector,
                states,
                &problem,
                scores,
                grad_scores,
            );
        }
        let weights = projection.host_weights()?;
        let mut sums = ProjectionSums::new(&weights)?;
        let (queries, hidden) = (queries.host_matrix()?, hidden.host_matrix()?);
        let n_weights = queries.weights.map_or(0, <[f32]>::len);
        let mut found = ProjectedGradients {
            queries: zeroed(queries.data.len() as u64)?,
            query_weights: zeroed(n_weights as u64)?,
            documents: ProjectionGradients {
                hidden: zeroed(hidden.data.len() as u64)?,
                ..ProjectionGradients::default()
            },
        };
        let (dim, n) = (projection.dim(), projection.hidden());
        let (mut tokens, mut of_tokens) = (Vec::new(), Vec::new());
        for slice in Slice::all(&problem, dim * size_of::<T>())? {
            fill(&mut tokens, slice.rows.len() * dim, T::from_f32(0.0))?;
            fill(&mut of_tokens, slice.rows.len() * dim, 0.0)?;
            let elements = slice.rows.start * n..slice.rows.end * n;
            let rows = &hidden.data[elements.clone()];
            weights.project(rows, &mut tokens)?;
            let mask = hidden.mask.map(|mask| &mask[slice.rows.clone()]);
            let documents = Matrix { data: &tokens, mask, ..hidden };
            let part = Problem::new(problem.queries(), &slice.documents, &slice.pairing)?;
            let (winners, grads) = slice.with_grad(scores.scores(), grad_scores);
            let ProjectedGradients { queries: of_queries, query_weights, documents: of } =
                &mut found;
            let gradients = [&mut of_queries[..], &mut of_tokens, query_weights];
            cpu::add_gradients(
                &part,
                queries,
                documents,
                &winners,
                &grads,
                gradients,
                &scores.options,
            )?;
            sums.add(rows, &mut of_tokens, &mut of.hidden[elements])?;
        }
        (found.documents.weight, found.documents.bias) = sums.into_gradients()?;
        Ok(found)
    }

    /// Gradients of a loss with respect to hidden states, weight and bias, from its gradient with
    /// respect to the tokens that [`Device::project`] makes: `[rows, dim]`, row-major, as
    /// [`Device::backward`] gives them for queries, say.
    ///
    /// Masked rows, rows of no item, and rows whose gradient is 0 throughout get exactly 0 and give
    /// none, whatever they hold.
    ///
    /// ```
    /// use maxsim::projection::{Projection, ProjectionGradients};
    /// use maxsim::{Device, Tokens};
    ///
    /// let weight = Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?;
    /// let bias = Tokens::padded(&[0.0f32, 1.0], 1, 1, 2)?;
    /// let projection = Projection::new(&weight)?.bias(&bias)?;
    /// let hidden = Tokens::padded(&[3.0f32, 1.0], 1, 1, 2)?;
    /// let found: ProjectionGradients =
    ///     Device::cpu().project_backward(&hidden, &projection, &[1.0, 0.5])?;
    /// assert_eq!(found.hidden, [1.0, 1.0]);
    /// assert_eq!(found.weight, [3.0, 1.0, 1.5, 0.5]);
    /// assert_eq!(found.bias, [1.0, 0.5]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::project`]; [`Error::Shape`] where the gradient is not as long.
    pub fn project_backward<'a, T: Element>(
        &self,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'_, T>,
        grad_tokens: &[f32],
    ) -> Result<ProjectionGradients> {
        let hidden = hidden.into();
        projection.check(self, &hidden)?;
        let expected = hidden.layout().rows().saturating_mul(projection.dim());
        check_len("grad_tokens", expected, "rows of dim", grad_tokens.len())?;
        if self.as_cuda().is_some() {
            let projector = Projector::new(self, projection, hidden)?;
            let (states, dim) = (hidden.layout(), projection.dim());
            return on_cuda::project_backward(&projector, states, dim, grad_tokens);
        }
        let weights = projection.host_weights()?;
        let mut sums = ProjectionSums::new(&weights)?;
        let is_used = hidden.layout().used_rows()?;
        let hidden = hidden.host_matrix()?;
        let mut of_tokens = copy_of(grad_tokens)?;
        let rows = of_tokens.chunks_exact_mut(projection.dim()).zip(is_used);
        for (row, (of_token, is_used)) in rows.enumerate() {
            if !is_used || hidden.mask.is_some_and(|mask| mask[row] == 0) {
                of_token.fill(0.0);
            }
        }
        let mut of_hidden = zeroed(hidden.data.len() as u64)?;
        sums.add(hidden.data, &mut of_tokens, &mut of_hidden)?;
        let (weight, bias) = sums.into_gradients()?;
        Ok(ProjectionGradients { hidden: of_hidden, weight, bias })
    }
}

/// Refuses scores whose gradients go another way than through the winners of projected tokens.
fn check_scores(scores: &TrainingScores) -> Result<()> {
    if scores.scores().winners().is_none() {
        return Err(Error::Shape {
            argument: "scores",
            expected: "scores of Device::score_projected_for_training".into(),
            found: "scores without winners".into(),
        });
    }
    match scores.options.normalize {
        false => Ok(()),
        true => Err(Error::Unsupported {
            what: "gradients of projected documents from scores of normalised rows".into(),
            why: "normalise by Projection::normalize, and score by \
                  Device::score_projected_for_training"
                .into(),
        }),
    }
}
