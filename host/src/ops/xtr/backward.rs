//! Gradients of XTR scores.

use super::XtrScores;
use crate::device::Device;
use crate::device::tokens::TokensRef;
use crate::error::{Error, Result};
use crate::ops::backward::blocking::Gradients;
use crate::ops::backward::with_grad::WithGrad;
use crate::ops::backward::{BackwardOptions, BackwardStrategy};
use crate::runtime::alloc::reserve;
use crate::tokens::element::Element;
use crate::tokens::format::GradientSource;
use crate::tokens::layout::check_len;

impl XtrScores {
    /// Joins these scores and the gradients of a loss with respect to them, one number per score,
    /// for [`Device::xtr_backward`].
    pub fn with_grad<'a>(&'a self, grad_scores: &'a [f32]) -> WithGrad<'a, Self, [f32]> {
        WithGrad { scores: self, grad_scores }
    }
}

impl Device {
    /// Gradients of a loss with respect to the tokens, from its gradients with respect to XTR
    /// scores: those of [`Device::backward`], of winners that were retrieved, with the gradient of
    /// a score divided by what the score was divided by. Thresholds and divisors are constant.
    ///
    /// The tokens are those that gave the scores; documents may have become codes of them since, as
    /// in [`Device::backward`]. [`Device::xtr`] has an example.
    ///
    /// # Errors
    /// The errors of [`Device::backward`]; [`Error::Unsupported`] for
    /// [`BackwardStrategy::Recompute`], which would find winners that were not retrieved.
    pub fn xtr_backward<'a, T: Element, D: GradientSource<T>>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, D>>,
        scores: WithGrad<'_, XtrScores, [f32]>,
        options: &BackwardOptions,
    ) -> Result<Gradients> {
        if options.strategy == BackwardStrategy::Recompute {
            return Err(Error::Unsupported {
                what: "BackwardStrategy::Recompute of XTR scores".into(),
                why: "it finds winners that were not retrieved; choose \
                      BackwardStrategy::Deterministic"
                    .into(),
            });
        }
        let WithGrad { scores: XtrScores { scores, divisors, .. }, grad_scores } = scores;
        let scores = scores.for_device(self)?;
        check_len("grad_scores", divisors.len(), "one per score", grad_scores.len())?;
        let mut grad_sums = Vec::new();
        reserve(&mut grad_sums, divisors.len())?;
        grad_sums.extend(grad_scores.iter().zip(divisors).map(|(grad, divisor)| grad / divisor));
        self.backward(queries, documents, scores.with_grad(&grad_sums), options)
    }
}
