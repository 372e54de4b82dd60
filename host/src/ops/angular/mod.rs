//! Angular distances of queries to documents, Σ_s min_t (1 − cos): smaller is better, which is why
//! they have types of their own.
//!
//! [`Device::angular`] computes them, [`Device::angular_backward`] their gradients; searches,
//! streams and losses take [`ScoreOptions::angular`](field@ScoreOptions::angular).

mod nearest;

use crate::device::Device;
use crate::device::tokens::TokensRef;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::ops::backward::BackwardOptions;
use crate::ops::backward::blocking::Gradients;
use crate::ops::backward::training_scores::TrainingScores;
use crate::ops::backward::with_grad::WithGrad;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::shape::{ScoreShape, TokenOffsets};
use crate::runtime::alloc::reserve;
use crate::tokens::element::Element;
pub use nearest::{NearDocument, NearestDocuments};

/// Angular distances, the smallest of which are the best, with what their gradients need.
///
/// Made by [`Device::angular`].
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct AngularDistances {
    /// Of [`ScoreOptions::angular`], and so minus the distances.
    scores: TrainingScores,
    values: Vec<f32>,
    token_distances: Option<Vec<f32>>,
}

impl AngularDistances {
    fn new(scores: TrainingScores) -> Result<AngularDistances> {
        let values = distances(scores.scores().values())?;
        let token_distances = scores.scores().token_scores().map(distances).transpose()?;
        Ok(AngularDistances { scores, values, token_distances })
    }

    /// The distances in the order of the pairing, row-major: +∞ for documents without tokens.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Shape of the distances.
    pub fn shape(&self) -> ScoreShape {
        self.scores.scores().shape()
    }

    /// All winners, pair-major: index of the document token that is nearest to a query token, −1 =
    /// none.
    pub fn winners(&self) -> &[i32] {
        self.scores.scores().winners().unwrap_or_default()
    }

    /// The distance of each query token to its winner, pair-major; 0 where there is none. `None`
    /// unless [`ScoreOptions::token_scores`] asked for them.
    pub fn token_distances(&self) -> Option<&[f32]> {
        self.token_distances.as_deref()
    }

    /// Offsets of each distance's query tokens in `winners` and `token_distances`.
    pub fn token_offsets(&self) -> Option<&TokenOffsets> {
        self.scores.scores().token_offsets()
    }

    /// Joins these distances and the gradients of a loss with respect to them, one number per
    /// distance, for [`Device::angular_backward`].
    pub fn with_grad<'a>(&'a self, grad_distances: &'a [f32]) -> WithGrad<'a, Self, [f32]> {
        WithGrad { scores: self, grad_scores: grad_distances }
    }
}

/// Distances of angular scores: 0, not −0, of what is no distance away.
fn distances(scores: &[f32]) -> Result<Vec<f32>> {
    let mut found = Vec::new();
    reserve(&mut found, scores.len())?;
    found.extend(scores.iter().map(|&score| 0.0 - score));
    Ok(found)
}

impl Device {
    /// Angular distances of queries to documents (the late interaction of NumKong's `maxsim`):
    ///
    /// ```text
    /// distances[q, d] = Σ_s min_t (1 − cos(Q[q, s], D[d, t]))
    /// ```
    ///
    /// **Smaller is better**: 0 of the same directions, 1 a token of what has nothing in common,
    /// 2 of the opposite. Cosines are the similarities of
    /// [`ScoreOptions::normalize`](field@ScoreOptions::normalize), so that a row of zeros is 1 away
    /// from everything, and a term that rounding would bring below 0 is 0. With weights of query
    /// tokens each term is multiplied by its own; so a mean is one of distances. A document without
    /// tokens is at no distance: its value is +∞, and it ranks last. NaN shows.
    ///
    /// Of `options` that say what is computed, token scores are for
    /// [`AngularDistances::token_distances`]. Searches, streams and losses take
    /// [`ScoreOptions::angular`](field@ScoreOptions::angular), which gives minus these distances.
    ///
    /// ```
    /// use maxsim::angular::{AngularDistances, NearestDocuments};
    /// use maxsim::training::BackwardOptions;
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// // One query of two tokens; documents of one, two and no tokens; dim 2.
    /// let queries = Tokens::padded(&[2.0f32, 0.0, 0.0, 0.0], 1, 2, 2)?;
    /// let documents = [0.0f32, 5.0, 3.0, 4.0, -1.0, 0.0];
    /// let documents = Tokens::packed(&documents, 2, &[0i64, 1, 3, 3])?;
    /// let (device, cross) = (Device::cpu(), Pairing::cross());
    /// let options = ScoreOptions::default().token_scores(true);
    /// let found: AngularDistances = device.angular(&queries, &documents, &cross, &options)?;
    /// // The first token's, and 1 of the second, which is zero.
    /// let expected = [1.0 + 1.0, 0.4 + 1.0, f32::INFINITY];
    /// assert!(found.values().iter().zip(expected).all(|(x, y)| x == &y || (x - y).abs() < 1e-6));
    /// assert_eq!((found.winners(), found.shape().n_scores()), (&[0, 0, 0, 0, -1, -1][..], 3));
    /// let of_token = found.token_offsets().map_or(0..0, |offsets| offsets.range(0));
    /// assert_eq!(found.token_distances().map(|all| &all[of_token]), Some(&[1.0, 1.0][..]));
    ///
    /// let nearest: Vec<NearestDocuments> = found.nearest(&documents, 10)?;
    /// assert!(nearest[0].found.iter().map(|near| near.id).eq([1, 0, 2]));
    ///
    /// let options = BackwardOptions::default();
    /// let found = found.with_grad(&[0.0, 1.0, 0.0]);
    /// let found = device.angular_backward(&queries, &documents, found, &options)?;
    /// assert!((found.queries[1] + 0.4).abs() < 1e-6 && found.queries[2..] == [0.0, 0.0]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::score_with`]: [`Error::Unsupported`] for compressed tokens, and for
    /// handles of documents of which the device alone knows which have a token.
    pub fn angular<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, T>>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<AngularDistances> {
        let options = options.clone().angular(true);
        let (queries, documents) = (queries.into(), documents.into());
        let scores = self.score_with_winners(queries, documents, pairing, &options)?;
        AngularDistances::new(scores)
    }

    /// Gradients of a loss with respect to the tokens, from its gradients with respect to angular
    /// distances:
    ///
    /// ```text
    /// ∂Q[q, s] = −Σ_d g[q, d] · ∂cos/∂Q[q, s]         ∂D[d, t] likewise, over what chose token t
    /// ```
    ///
    /// through the winners and the lengths of rows, as of normalised scores
    /// ([`BackwardStrategy`](crate::training::BackwardStrategy)). A row of zeros has no direction
    /// and no gradient. Where a term is clamped the cosine is 1, where its gradient is 0 but for
    /// the rounding of f32. A document without tokens takes and gives none, whatever its `g`.
    /// [`Device::angular`] has an example.
    ///
    /// # Errors
    /// The errors of [`Device::backward`]; [`Error::Unsupported`] for queries with weights.
    pub fn angular_backward<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, T>>,
        distances: WithGrad<'_, AngularDistances, [f32]>,
        options: &BackwardOptions,
    ) -> Result<Gradients> {
        let WithGrad { scores: AngularDistances { scores, .. }, grad_scores } = distances;
        let mut grads = Vec::new();
        reserve(&mut grads, grad_scores.len())?;
        grads.extend(grad_scores.iter().map(|grad| -grad));
        self.backward::<T, T>(queries, documents, scores.with_grad(&grads), options)
    }
}
