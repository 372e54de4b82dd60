//! Scores together with a loss's gradients with respect to them.

use super::outputs::DeviceGradScores;
use super::training_scores::TrainingScores;
use crate::ops::score::prepared::DeviceScores;

/// Scores with the gradients of a loss with respect to them, as backward calls take them.
///
/// Made by [`TrainingScores::with_grad`] of scores on the host, and by [`DeviceScores::with_grad`]
/// of scores on a device.
#[derive(Debug)]
#[must_use = "it does nothing until it is given to a backward call"]
pub struct WithGrad<'a, S, G: ?Sized> {
    pub(crate) scores: &'a S,
    pub(crate) grad_scores: &'a G,
}

impl<S, G: ?Sized> Clone for WithGrad<'_, S, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, G: ?Sized> Copy for WithGrad<'_, S, G> {}

impl TrainingScores {
    /// Joins these scores and the gradients of a loss with respect to them, one number per score,
    /// for [`Device::backward`](crate::Device::backward).
    pub fn with_grad<'a>(&'a self, grad_scores: &'a [f32]) -> WithGrad<'a, Self, [f32]> {
        WithGrad { scores: self, grad_scores }
    }
}

impl DeviceScores {
    /// Joins these scores and the gradients of a loss with respect to them, for
    /// [`Queue::backward`](crate::stream::Queue::backward).
    pub fn with_grad<'a>(
        &'a self,
        grad_scores: &'a DeviceGradScores,
    ) -> WithGrad<'a, Self, DeviceGradScores> {
        WithGrad { scores: self, grad_scores }
    }
}
