//! XTR: scores of the document tokens that query tokens retrieve, and their gradients.

pub(crate) mod backward;
mod on_device;
mod reduce;
pub(crate) mod search;

use std::sync::OnceLock;

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
#[cfg(doc)]
use crate::problem::scores::Scores;
use crate::problem::shape::{ScoreShape, TokenOffsets};
#[cfg(doc)]
use crate::problem::xtr::Normalizer;
use crate::problem::xtr::{Pool, XtrOptions};
use crate::runtime::alloc::{copy_of, reserve};
use crate::tokens::Tokens;
use crate::tokens::element::Element;

/// XTR scores, with what their gradients need.
///
/// On a CUDA device the winners stay there, until [`XtrScores::winners`] is called.
#[derive(Clone, Debug)]
#[must_use]
pub struct XtrScores {
    /// With the winners that were retrieved alone.
    pub(super) scores: TrainingScores,
    pub(super) divisors: Vec<f32>,
    thresholds: Vec<f32>,
    /// The winners, where they were copied from a device.
    read: OnceLock<Vec<i32>>,
}

/// Compares scores, thresholds, divisors and winners, of whatever device. Those whose winners
/// cannot be read are equal to none.
impl PartialEq for XtrScores {
    fn eq(&self, other: &XtrScores) -> bool {
        let is_same = self.values() == other.values()
            && self.thresholds == other.thresholds
            && self.divisors == other.divisors
            && self.token_offsets() == other.token_offsets();
        is_same && matches!((self.winners(), other.winners()), (Ok(a), Ok(b)) if a == b)
    }
}

impl XtrScores {
    fn new(scores: TrainingScores, divisors: Vec<f32>, thresholds: Vec<f32>) -> XtrScores {
        XtrScores { scores, divisors, thresholds, read: OnceLock::new() }
    }

    /// The scores in the order of the pairing, row-major.
    pub fn values(&self) -> &[f32] {
        self.scores.scores().values()
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.scores.scores().shape()
    }

    /// The winners, pair-major as those of [`Scores`]: the index of the winning token within its
    /// document; -1 where it was not retrieved, or there is none. From a CUDA device they are
    /// copied once, when this is first called.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory), and what the device says.
    pub fn winners(&self) -> Result<&[i32]> {
        if let Some(winners) = self.scores.scores().winners() {
            return Ok(winners);
        }
        if let Some(winners) = self.read.get() {
            return Ok(winners);
        }
        let winners = self.scores.read_winners()?;
        Ok(self.read.get_or_init(|| winners))
    }

    /// Offsets of each score's query tokens in the winners.
    pub fn token_offsets(&self) -> Option<&TokenOffsets> {
        self.scores.scores().token_offsets()
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
    /// similarities are computed twice and never stored. On the CPU there are, beside winners and
    /// maxima, 8 bytes an entry, about 16 · `k` bytes at most for each of 256 query tokens a
    /// thread; scores have the same bits for every number of threads. On a CUDA device winners and
    /// maxima take 6 bytes an entry (8 where a document has 65 535 tokens), and what is above a
    /// first bound 10 MB, or 8 · `k` bytes for each query token; in calls whose pairs are not all,
    /// or that others than those are retrieved from, or of fewer than `k` documents, what does not
    /// fit there costs further passes. A device keeps up to 64 MB of maxima, and the rest of this
    /// memory, for its next call.
    /// Kernels are those for compute capability 8.0, but for f16 and bf16 with up to 128 dims that
    /// are not normalised, where every query meets every one of 128 documents or more: of those
    /// there is one for 9.0, which computes them once.
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
    /// assert_eq!(scores.winners()?, [0, -1, 0, 1]);
    /// // By pair: the second pair's two query tokens.
    /// assert_eq!(scores.token_offsets().map(|offsets| offsets.range(1)), Some(2..4));
    /// assert_eq!(scores.shape().n_scores(), 2);
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
    /// [`Error::Unsupported`] for queries with weights; on a CUDA device [`Error::Shape`] for items
    /// that it alone knows ([`TokenLayout::unread`](crate::TokenLayout::unread)).
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
        queries.check_device("queries", self)?;
        documents.check_device("documents", self)?;
        if let Some(cuda) = self.as_cuda() {
            return self.xtr_on_device(cuda, [queries, documents], pairing, options);
        }
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
        let masks = [matrices.0.mask, matrices.1.mask];
        let minima = || self.minima(&queries, documents, pairing, &score_options);
        let normalizer = options.normalizer;
        let divisors =
            reduce::reduce(&problem, &mut scores.scores, &thresholds, normalizer, masks, minima)?;
        Ok(XtrScores::new(scores, divisors, thresholds))
    }

    /// The least similarity of each query token with each document: the largest one of the negated
    /// query, whose products are the same but for their signs.
    fn minima<T: Element>(
        &self,
        queries: &TokensRef<'_, T>,
        documents: TokensRef<'_, T>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Vec<f32>> {
        on_host(queries, |queries| {
            let mut negated = Vec::new();
            reserve(&mut negated, queries.data().len())?;
            negated.extend(queries.data().iter().map(|x| T::from_f32(-x.to_f32())));
            let layout = queries.layout().clone();
            let beside = queries.beside();
            let negated = Tokens::<T>::assemble(negated.into(), None, layout, beside)?;
            let found =
                self.score_with(&negated, documents, pairing, &options.clone().winners(true))?;
            let mut minima = found.token_scores.unwrap_or_default();
            minima.iter_mut().for_each(|x| *x = -*x);
            Ok(minima)
        })
    }
}

/// The mask of tokens, wherever they are.
fn mask<T: Element>(tokens: &TokensRef<'_, T>) -> Result<Option<Vec<u8>>> {
    match tokens.layout().is_masked() {
        true => on_host(tokens, |tokens| tokens.mask().map(copy_of).transpose()),
        false => Ok(None),
    }
}

/// Reads tokens in host memory, where those of a GPU are copied to.
fn on_host<T: Element, R>(
    tokens: &TokensRef<'_, T>,
    read: impl FnOnce(&Tokens<'_, T>) -> Result<R>,
) -> Result<R> {
    match tokens {
        TokensRef::Host(tokens) => read(tokens),
        TokensRef::Device(handle) => read(&handle.download()?),
    }
}
