//! Options of a call: what it computes besides scores, and how.

/// Options of a call: outputs besides the scores, and the kernel.
///
/// ```
/// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
///
/// // One query of two tokens; two documents of one token each; dim 2.
/// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 2.0], 1, 2, 2)?;
/// let documents = Tokens::padded(&[3.0f32, 4.0, 4.0, 3.0], 2, 1, 2)?;
/// let (device, cross) = (Device::cpu(), Pairing::cross());
/// let options = ScoreOptions::default().token_scores(true);
/// let scores = device.score_with(&queries, &documents, &cross, &options)?;
/// assert_eq!(scores.values(), [11.0, 10.0]);
/// // What each token of the query brought, to highlight the words that a document matches.
/// assert_eq!(scores.token_scores(), Some(&[3.0, 8.0, 4.0, 6.0][..]));
/// # Ok::<(), maxsim::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
#[must_use]
pub struct ScoreOptions {
    /// Also return, per query token, the index of the winning document token.
    pub winners: bool,
    /// Also return, per query token, the winning similarity.
    pub token_scores: bool,
    /// Allow f32 elements to be rounded to TF32 (10 fraction bits, to nearest) before they are
    /// multiplied, where a kernel is faster for it: the error of a similarity is then up to
    /// 2⁻¹⁰ · Σ_k |q_k d_k|. Without it, as in engines that have no such kernel, products are
    /// those of f32, or on Hopper's tensor cores within 2⁻²¹ · |q_k d_k| of them (infinities meet
    /// zero where a factor is below 2⁻¹²⁶). Other element types are not concerned.
    pub allow_tf32: bool,
    /// Divide every row by its length: the similarity of rows q and d is ⟨q, d⟩ · r(q) · r(d), with
    /// r(x) = 1 / √max(‖x‖², 10⁻¹²) in f32. Rows are never rounded to the element type again; a row
    /// of zeros has similarity 0, one with an infinity (or whose ‖x‖² is 2¹²⁸ or more) none that is
    /// not NaN or 0. Gradients are those with respect to the rows as they are given.
    ///
    /// A similarity errs by up to (dim + 8) · 2⁻²³ · Σ_k |q_k d_k| · r(q) · r(d), and so far apart
    /// may two that engines order otherwise be; f16 elements below 2⁻¹⁴ count as 2⁻¹⁴ there, since
    /// tensor cores go by their exponents. On a GPU a handle keeps r of its rows, 4 bytes each,
    /// from the first such call on (which waits for them); for foreign memory it is computed
    /// anew by each call, in the stream's workspace. `allow_tf32` changes nothing: f32 is exact
    /// here.
    pub normalize: bool,
    /// Score by angular distance, as a similarity: a score is −Σ_s min_t (1 − cos), minus what
    /// [`Device::angular`](crate::Device::angular) gives, so that larger is better here as well,
    /// for rankings, losses and searches. No term is above 0. It needs
    /// [`normalize`](ScoreOptions::normalize), whose similarities are the cosines: a row of zeros
    /// is 1 away from everything. Token scores are such terms, weights multiply them. A document
    /// without tokens scores −∞ wherever scores are on the host; on a GPU it has no score (the
    /// place has a 0), and losses there refuse it.
    ///
    /// Gradients are those of the cosines, where rows of zeros have none. Those of weights are
    /// refused.
    pub angular: bool,
    /// Give scores the same bits whether [winners](ScoreOptions::winners) are asked for or not, as
    /// training and inference of a model may want it. On a GPU kernels differ in the last bits of
    /// a similarity or in the order of sums; with this, only those are chosen that agree with the
    /// one that finds winners, which for short queries and few documents is not the fastest; of
    /// codes, that one alone. The
    /// CPU engine's bits never depend on it.
    pub consistent: bool,
    /// Run this kernel instead of choosing one. It must be eligible.
    pub kernel: Option<String>,
    /// On a GPU: split documents into this many parts that are scored side by side (split-KV), or
    /// fewer where they are short (splits start at multiples of 128 tokens) or their results would
    /// take more than 32 MB. 1 = never split; `None` = as is faster; 0 is an error. The same kernel
    /// gives the same bits whether documents are split or not. The CPU engine ignores it.
    pub document_splits: Option<usize>,
}

/// The defaults with one thing changed after the other:
/// `ScoreOptions::default().winners(true).normalize(true)`.
impl ScoreOptions {
    /// Sets [`ScoreOptions::winners`](field@ScoreOptions::winners).
    pub fn winners(self, winners: bool) -> ScoreOptions {
        ScoreOptions { winners, ..self }
    }

    /// Sets [`ScoreOptions::token_scores`](field@ScoreOptions::token_scores).
    pub fn token_scores(self, token_scores: bool) -> ScoreOptions {
        ScoreOptions { token_scores, ..self }
    }

    /// Sets [`ScoreOptions::allow_tf32`](field@ScoreOptions::allow_tf32).
    pub fn allow_tf32(self, allow_tf32: bool) -> ScoreOptions {
        ScoreOptions { allow_tf32, ..self }
    }

    /// Sets [`ScoreOptions::normalize`](field@ScoreOptions::normalize).
    pub fn normalize(self, normalize: bool) -> ScoreOptions {
        ScoreOptions { normalize, ..self }
    }

    /// Sets [`ScoreOptions::angular`](field@ScoreOptions::angular), and with it
    /// [`ScoreOptions::normalize`](field@ScoreOptions::normalize).
    ///
    /// ```
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// let queries = Tokens::padded(&[2.0f32, 0.0], 1, 1, 2)?;
    /// let documents = Tokens::packed(&[0.0f32, 1.0, 3.0, 0.0], 2, &[0i64, 1, 2, 2])?;
    /// let options = ScoreOptions::default().angular(true);
    /// let scores = Device::cpu().score_with(&queries, &documents, &Pairing::cross(), &options)?;
    /// assert_eq!(scores.values(), [-1.0, 0.0, f32::NEG_INFINITY]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    pub fn angular(self, angular: bool) -> ScoreOptions {
        ScoreOptions { angular, normalize: self.normalize || angular, ..self }
    }

    /// Sets [`ScoreOptions::consistent`](field@ScoreOptions::consistent).
    ///
    /// ```
    /// let options = maxsim::ScoreOptions::default().consistent(true);
    /// assert!(options.consistent && !options.winners);
    /// ```
    pub fn consistent(self, consistent: bool) -> ScoreOptions {
        ScoreOptions { consistent, ..self }
    }

    /// Sets [`ScoreOptions::kernel`](field@ScoreOptions::kernel): a name, or `None` to have one
    /// chosen.
    pub fn kernel<'n>(self, kernel: impl Into<Option<&'n str>>) -> ScoreOptions {
        ScoreOptions { kernel: kernel.into().map(str::to_owned), ..self }
    }

    /// Sets [`ScoreOptions::document_splits`](field@ScoreOptions::document_splits).
    pub fn document_splits(self, document_splits: impl Into<Option<usize>>) -> ScoreOptions {
        ScoreOptions { document_splits: document_splits.into(), ..self }
    }
}
