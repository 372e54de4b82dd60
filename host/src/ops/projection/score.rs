//! Scores of documents that are hidden states: projected some at a time, and scored.

use super::Projection;
use crate::device::Device;
use crate::device::tokens::TokensRef;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::ops::backward::training_scores::TrainingScores;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::tokens::element::Element;

impl Device {
    /// Scores queries against documents that are given as hidden states: MaxSim of the tokens
    /// that [`Device::project`] makes of them, which are never there all at once.
    ///
    /// Each document is projected once, for all queries, in a slice with those beside it: up to
    /// 32 MB of elements of tokens (on a GPU, where tokens are padded to 16 bytes, they may take
    /// more), or one document that is longer. Slices without a document that a query meets are not
    /// projected; of others all documents are.
    ///
    /// Scores, winners and token scores are as of [`Device::score_with`] with the projected
    /// tokens: on the CPU to the bit. A GPU scores all slices by one kernel, chosen for the call,
    /// so that equal documents have equal scores; but a slice that this kernel cannot run has one
    /// of its own, and so has each slice with [`ScoreOptions::consistent`]. Queries are tokens: of
    /// hidden states of queries [`Device::project`] makes them.
    ///
    /// ```
    /// use maxsim::projection::Projection;
    /// use maxsim::{Device, Pairing, ScoreOptions, Tokens};
    ///
    /// // Hidden states of three elements, tokens of two.
    /// let weight = Tokens::padded(&[1.0f32, 0.0, 0.0, 0.0, 2.0, 0.0], 1, 2, 3)?;
    /// let projection = Projection::new(&weight)?;
    /// let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    /// // Documents of one and two rows: tokens (2, 0), and (3, 4) and (-1, 6).
    /// let hidden = [2.0f32, 0.0, 9.0, 3.0, 2.0, 9.0, -1.0, 3.0, 9.0];
    /// let hidden = Tokens::packed(&hidden, 3, &[0, 1, 3])?;
    /// let (cross, options) = (Pairing::cross(), ScoreOptions::default().winners(true));
    /// let device = Device::cpu();
    /// let scores = device.score_projected(&queries, &hidden, &projection, &cross, &options)?;
    /// assert_eq!(scores.values(), [2.0, 3.0 + 6.0]);
    /// assert_eq!(scores.winners(), Some(&[0, 0, 0, 1][..]));
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Device::project`] and [`Device::score_with`]. [`Error::Unsupported`] where
    /// `options` normalise: see [`Projection::normalize`].
    pub fn score_projected<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'_, T>,
        pairing: &Pairing,
        options: &ScoreOptions,
    ) -> Result<Scores> {
        let (queries, hidden): (TokensRef<'_, T>, TokensRef<'_, T>) =
            (queries.into(), hidden.into());
        self.prepare_projected(queries, hidden, projection, pairing, options)?.score(queries)
    }

    /// As [`Device::score_projected`], and keeps the winners, for [`Device::backward_projected`].
    ///
    /// # Errors
    /// Those of [`Device::score_projected`].
    pub fn score_projected_for_training<'a, T: Element>(
        &self,
        queries: impl Into<TokensRef<'a, T>>,
        hidden: impl Into<TokensRef<'a, T>>,
        projection: &Projection<'_, T>,
        pairing: &Pairing,
    ) -> Result<TrainingScores> {
        let (queries, hidden) = (queries.into(), hidden.into());
        let options = ScoreOptions::default().winners(true);
        let scores = self.score_projected(queries, hidden, projection, pairing, &options)?;
        let documents = hidden.layout().projected(projection.dim());
        Ok(TrainingScores::new(scores, [queries.layout(), &documents], pairing, options))
    }
}
