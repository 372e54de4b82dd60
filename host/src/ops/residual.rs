//! Gradients of scores against residual-compressed documents.

use crate::cpu;
use crate::cuda::{CudaGradScores, ResidualCall, ResidualFound};
use crate::device::Device;
use crate::device::tokens::{DeviceTokens, TokensRef};
use crate::error::{Error, Result};
use crate::ops::backward::training_scores::TrainingScores;
use crate::ops::backward::with_grad::WithGrad;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::residual::ResidualGradients;
use crate::runtime::alloc::zeroed;
use crate::tokens::element::Element;
use crate::tokens::format::Residual;
use crate::tokens::layout::check_len;

/// Gradients of scores with respect to queries and the codec's tables, in f32.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct ResidualScoreGradients {
    /// `[rows, dim]` of the queries' matrix, row-major.
    pub queries: Vec<f32>,
    /// Gradients of the codec's tables, which the documents' tokens refer to.
    pub tables: ResidualGradients,
}

impl Device {
    /// Scores queries against residual-compressed documents and keeps the winners, for
    /// [`Device::backward_residual`]: whether `options` ask for them or not.
    ///
    /// # Errors
    /// The errors of [`Device::score_with`]; [`Error::Unsupported`] on CUDA devices before compute
    /// capability 9.0, which have no kernel that finds winners of such documents. They take the
    /// winners that the CPU has found.
    pub fn score_residual_for_training<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: &DeviceTokens<Residual<T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<TrainingScores> {
        self.score_with_winners(queries.into(), TokensRef::Device(documents), pairing, options)
    }

    /// Gradients of a loss with respect to queries, centroids and bucket weights, from its
    /// gradients with respect to the scores, of which `grad_scores` has one each, in their order.
    ///
    /// With `g[q, d]` the gradient of a score, y a row as it is scored and r what it is normalised
    /// by,
    ///
    /// ```text
    /// ∂Q[q, s] = Σ_d g[q, d] · y[d, winner(q, d, s)]
    /// ∂y[d, t] = Σ_{(q, s): winner(q, d, s) = t} g[q, d] · Q[q, s]
    /// ∂x = ∂y, r · (∂y - y · ⟨y, ∂y⟩) where tokens are normalised, r · ∂y where r is constant
    /// ∂centroids[c][k] = Σ_{rows of code c} ∂x[k]
    /// ∂bucket_weights[b] = Σ_{elements of bucket b} ∂x[k]
    /// ```
    ///
    /// with shapes `[rows, dim]` of the queries, `[n_centroids, dim]` and `[2^nbits]`. y is what
    /// the device multiplies ([`Device::upload_residual`]): where a CUDA device rounds tables and
    /// sums, gradients are those of the rounded numbers, and rounding counts as no change. Winners
    /// may be another device's, of the same documents. Masked tokens, rows that no query token
    /// chose and centroids that no such row has give and get 0, whatever they hold. The same bits
    /// every time on one device.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use maxsim::format::Residual;
    /// use maxsim::residual::{
    ///     BitOrder, Centroids, ResidualCodec, ResidualGradients, ResidualTokens,
    /// };
    /// use maxsim::training::ResidualScoreGradients;
    /// use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, TokenLayout, Tokens};
    ///
    /// // One document of two tokens: (0.5 + 0.25, 0 - 1) and (0 - 1, 2 + 0.25).
    /// let centroids = Centroids::F32(vec![0.5, 0.0, 0.0, 2.0].into());
    /// let codec = Arc::new(ResidualCodec::new(1, 2, centroids, &[-1.0, 0.25], false)?);
    /// let layout = TokenLayout::packed(2, 2, &[0i64, 2])?;
    /// let order = BitOrder::LittleEndian;
    /// let tokens = ResidualTokens::new(codec, vec![0, 1], vec![0b01, 0b10], order, layout)?;
    /// let device = Device::cpu();
    /// let documents: DeviceTokens<Residual<f32>> = device.upload_residual(&tokens)?;
    ///
    /// let queries = Tokens::padded(&[1.0f32, 2.0], 1, 1, 2)?;
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default());
    /// let scores = device.score_residual_for_training(&queries, &documents, &cross, &options)?;
    /// assert_eq!(scores.scores().winners(), Some(&[1][..]));
    /// let scores = scores.with_grad(&[1.0]);
    /// let found: ResidualScoreGradients =
    ///     device.backward_residual(&queries, &documents, scores)?;
    /// assert_eq!(found.queries, [-1.0, 2.25]);
    /// let tables: ResidualGradients = found.tables;
    /// assert_eq!(tables.centroids, [0.0, 0.0, 1.0, 2.0]);
    /// assert_eq!(tables.bucket_weights, [1.0, 2.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Memory
    /// Beyond inputs, winners and results, on the CPU 4 bytes per element of the documents: ∂y.
    /// (Sums of the tables are in f64 there.) On a CUDA device, ∂y of up to 128 MB of rows at a
    /// time; 4 bytes per element of a *unit*, up to 256 rows of one centroid; 4 bytes per bucket of
    /// up to 2048 parts; and the stream's workspace and lists of
    /// [`BackwardStrategy::Deterministic`](crate::training::BackwardStrategy::Deterministic).
    /// Besides, the documents' handle keeps 4 bytes per row, unit and centroid from the first call
    /// on, for which it reads the codes back. No decoded matrix exists on either.
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; [`Error::Shape`] where queries or documents are not those of
    /// `scores`, which must have winners and be of rows that are not normalised by an option, or
    /// there is another number of gradients than of scores; [`Error::Unsupported`] for query tokens
    /// with weights; [`Error::HostMemory`] or [`Error::DeviceMemory`] where there is no room.
    pub fn backward_residual<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: &DeviceTokens<Residual<T>>,
        scores: WithGrad<'_, TrainingScores, [f32]>,
    ) -> Result<ResidualScoreGradients> {
        let WithGrad { scores, grad_scores } = scores;
        let queries = queries.into();
        queries.check_device("queries", self)?;
        self.check_same("documents", documents.device())?;
        let why = "no kernel has them yet; PreparedBackward gives the queries' gradients alone";
        queries.layout().check_unweighted("in gradients of a residual codec", why)?;
        let problem = scores.problem(queries.layout(), documents.layout())?;
        let winners = winners(scores)?;
        check_len("grad_scores", problem.shape().n_scores(), "one per score", grad_scores.len())?;
        let mut of_queries = zeros(queries.layout().rows(), problem.dim())?;
        if let Some(cuda) = self.as_cuda() {
            let options = ScoreOptions { token_scores: false, ..scores.options.clone() };
            let shape = OutputShape::new(&problem, &options);
            let outputs = scores.outputs_on(cuda, &shape)?;
            let grad_scores = CudaGradScores::upload(cuda, grad_scores)?;
            let mut own_queries = None;
            let call = ResidualCall {
                queries: queries.cuda_tokens(self, &mut own_queries)?,
                documents: documents.cuda_tokens()?,
                outputs: &outputs,
                grad_scores: &grad_scores,
            };
            let [n_centroids, n_weights] = call.documents.n_table_rows();
            let mut tables = ResidualGradients {
                centroids: zeros(n_centroids, problem.dim())?,
                bucket_weights: zeros(n_weights, 1)?,
            };
            let found = ResidualFound {
                queries: &mut of_queries,
                centroids: &mut tables.centroids,
                bucket_weights: &mut tables.bucket_weights,
            };
            cuda.residual_gradients(&problem, T::TYPE, &shape, &call, found)?;
            return Ok(ResidualScoreGradients { queries: of_queries, tables });
        }
        let residuals = documents.host_tokens()?.residuals()?;
        let mut of_rows = zeros(documents.layout().rows(), problem.dim())?;
        cpu::add_gradients(
            &problem,
            queries.host_matrix()?,
            documents.host_tokens()?.matrix(),
            winners,
            grad_scores,
            [&mut of_queries, &mut of_rows, &mut []],
            &scores.options,
        )?;
        Ok(ResidualScoreGradients { queries: of_queries, tables: residuals.backward(&of_rows)? })
    }
}

fn zeros(rows: usize, dim: usize) -> Result<Vec<f32>> {
    zeroed(rows as u64 * dim as u64)
}

/// Winners of the scores, which must be of rows that are not normalised.
fn winners(scores: &TrainingScores) -> Result<&[i32]> {
    let wrong = |found: &str| Error::Shape {
        argument: "scores",
        expected: "scores of Device::score_residual_for_training".into(),
        found: found.into(),
    };
    if scores.options.normalize {
        return Err(wrong("scores of rows that an option normalises"));
    }
    Scores::winners(&scores.scores).ok_or_else(|| wrong("scores without winners"))
}
