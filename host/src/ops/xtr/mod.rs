//! XTR: scores of the document tokens that query tokens retrieve, and their gradients.

pub(crate) mod backward;
mod reduce;
pub(crate) mod search;

use crate::cpu;
use crate::device::Device;
use crate::device::tokens::TokensRef;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::ops::backward::training_scores::TrainingScores;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
#[cfg(doc)]
use crate::problem::xtr::Normalizer;
use crate::problem::xtr::{Pool, XtrOptions};
use crate::tokens::element::Element;

/// XTR scores, with what their gradients need.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct XtrScores {
    /// With the winners that were retrieved alone.
    pub(super) scores: TrainingScores,
    pub(super) divisors: Vec<f32>,
    thresholds: Vec<f32>,
}

impl XtrScores {
    /// The scores in the order of the pairing, row-major.
    pub fn values(&self) -> &[f32] {
        self.scores.scores().values()
    }

    /// The scores with their winners, of which those that were not retrieved are −1.
    pub fn scores(&self) -> &Scores {
        self.scores.scores()
    }

    /// The threshold τ of each query token, those of a query after those of the one before: −∞
    /// where every token was retrieved, and of masked query tokens.
    pub fn thresholds(&self) -> &[f32] {
        &self.thresholds
    }

    /// What each score's sum was divided by, as [`Normalizer`] says.
    pub fn divisors(&self) -> &[f32] {
        &self.divisors
    }
}

impl Device {
    /// XTR scores: query tokens count only where they retrieved a token of the document (Lee et
    /// al. 2023, "Rethinking the Role of Token Retrieval in Multi-Vector Retrieval").
    ///
    /// Each query token `s` retrieves the `k` document tokens of the call that are most similar
    /// to it, as an index would. With `τ_s` the `k`-th largest of its similarities to valid tokens
    /// (−∞ where there are fewer; NaN is none of them),
    ///
    /// ```text
    /// scores[q, d] = Σ_s [max_t S ≥ τ_s] max_t S ÷ Z        S = ⟨Q[q, s], D[d, t]⟩
    /// ```
    ///
    /// and `Z` the number of query tokens that the sum is over, or what another [`Normalizer`]
    /// says. Similarities that tie at `τ_s` are retrieved, all of them. A document of which nothing
    /// was retrieved scores 0, and so does one without tokens. A maximum that is NaN shows.
    ///
    /// `τ` is exact, and of the similarities that the maxima are of, bit by bit. The scores'
    /// similarities are computed twice and never stored: beside winners and maxima, 8 bytes an
    /// entry, there are about 16 · `k` bytes at most for each of 256 query tokens a thread. Scores
    /// have the same bits for every number of threads.
    ///
    /// ```
    /// use maxsim::training::BackwardOptions;
    /// use maxsim::xtr::XtrOptions;
    /// use maxsim::{Device, Pairing, Tokens};
    ///
    /// // One query of two tokens; documents of one and two tokens; dim 2.
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
    /// let (device, options) = (Device::cpu(), XtrOptions::default().k(2));
    /// let scores = device.xtr(&queries, &documents, &Pairing::cross(), &options)?;
    /// // The first token retrieves 3 and 2, the second one 5 and 4, both of the second document.
    /// assert_eq!(scores.thresholds(), [2.0, 4.0]);
    /// assert_eq!(scores.scores().winners(), Some(&[0, -1, 0, 1][..]));
    /// assert_eq!((scores.values(), scores.divisors()), (&[2.0, 4.0][..], &[1.0, 2.0][..]));
    ///
    /// let options = BackwardOptions::default();
    /// let scores = scores.with_grad(&[1.0, 1.0]);
    /// let found = device.xtr_backward(&queries, &documents, scores, &options)?;
    /// assert_eq!(found.queries, [2.0 + 1.5, 2.0, -0.5, 2.5]);
    /// assert_eq!(found.documents, [1.0, 0.0, 0.5, 0.0, 0.0, 0.5]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Device::score_with`]; [`Error::Shape`] for a `k` of 0;
    /// [`Error::Unsupported`] for queries with weights, and on a CUDA device: use [`Device::cpu`].
    pub fn xtr<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        documents: impl Into<TokensRef<'a, T>>,
        pairing: &Pairing,
        options: &XtrOptions,
    ) -> Result<XtrScores> {
        let (queries, documents) = (queries.into(), documents.into());
        let problem = Problem::new(queries.layout(), documents.layout(), pairing)?;
        options.check(&problem)?;
        self.check_xtr()?;
        let score_options = ScoreOptions::default().normalize(options.normalize).token_scores(true);
        let mut scores = self.score_with_winners(queries, documents, pairing, &score_options)?;
        let matrices = (queries.host_matrix()?, documents.host_matrix()?);
        let pools = Pool::of(&problem, options.pool)?;
        let thresholds = cpu::xtr::thresholds(
            &problem,
            matrices.0,
            matrices.1,
            options.normalize,
            (&pools, options.k),
        )?;
        let minima = || reduce::minima(&problem, matrices.0, matrices.1, &score_options);
        let masks = [matrices.0.mask, matrices.1.mask];
        let normalizer = options.normalizer;
        let divisors =
            reduce::reduce(&problem, &mut scores.scores, &thresholds, normalizer, masks, minima)?;
        Ok(XtrScores { scores, divisors, thresholds })
    }

    /// Refuses devices without the thresholds' kernel.
    fn check_xtr(&self) -> Result<()> {
        let why = "no kernel selects the thresholds of query tokens yet; use Device::cpu()";
        self.check_cpu("XTR", why)
    }
}
