//! Outputs that a call has, and their sizes.

use super::Problem;
use super::options::ScoreOptions;
use super::scores::Scores;
use super::shape::{ScoreShape, TokenOffsets};
use crate::error::Result;
use crate::tokens::element::ElementType;

/// Outputs that a call has, and their sizes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutputShape {
    pub shape: ScoreShape,
    /// Offsets of query tokens; `None` where neither winners nor token scores are asked for.
    pub token_offsets: Option<TokenOffsets>,
    pub winners: bool,
    pub token_scores: bool,
    /// Bytes of a winner on a CUDA device.
    pub winner_bytes: usize,
    /// Scores are those of winners that coarse codes have found: winners are on the device,
    /// asked for or not.
    pub rescored: bool,
    /// Scores are angular ones.
    pub angular: bool,
    /// Angular scores of documents without tokens.
    pub without_tokens: Vec<u32>,
}

/// The scores whose documents are known to have no token, where these are angular.
pub(crate) fn without_tokens(problem: &Problem<'_>, options: &ScoreOptions) -> Vec<u32> {
    let documents = problem.documents();
    let is_relevant = options.angular && documents.knows_empty_items();
    if !is_relevant || !documents.has_empty_items() {
        return Vec::new();
    }
    // Scores are fewer than 2³¹.
    let all = 0..problem.shape().n_scores() as u32;
    all.filter(|&p| !documents.has_tokens(problem.pair(p as usize).1)).collect()
}

impl OutputShape {
    pub(crate) fn new(problem: &Problem<'_>, options: &ScoreOptions) -> OutputShape {
        OutputShape {
            shape: problem.shape(),
            token_offsets: (options.winners || options.token_scores)
                .then(|| problem.token_offsets()),
            winners: options.winners,
            token_scores: options.token_scores,
            // All-ones means none, so the last index must stay below it.
            winner_bytes: if problem.documents().max_len() < 65535 { 2 } else { 4 },
            rescored: false,
            angular: options.angular,
            without_tokens: without_tokens(problem, options),
        }
    }

    /// Outputs of a coarse-to-fine call.
    pub(crate) fn of_rescored(problem: &Problem<'_>, options: &ScoreOptions) -> OutputShape {
        let token_offsets = Some(problem.token_offsets());
        OutputShape { token_offsets, rescored: true, ..OutputShape::new(problem, options) }
    }

    /// Outputs of a forward kernel whose documents are document splits: token scores and winners
    /// that a second kernel combines.
    pub(crate) fn of_splits(problem: &Problem<'_>, winners: bool) -> OutputShape {
        OutputShape {
            shape: problem.shape(),
            token_offsets: Some(problem.token_offsets()),
            winners,
            token_scores: true,
            winner_bytes: 4,
            rescored: false,
            angular: false,
            without_tokens: Vec::new(),
        }
    }

    /// Bytes of scores, winners and token scores on a CUDA device.
    pub(crate) fn lens_bytes(&self) -> [u64; 3] {
        let n_tokens = self.token_offsets.as_ref().map_or(0, TokenOffsets::total);
        [
            self.shape.n_scores() as u64 * 4,
            if self.winners || self.rescored { n_tokens * self.winner_bytes as u64 } else { 0 },
            if self.token_scores { n_tokens * 4 } else { 0 },
        ]
    }

    /// Room on the host: scores 0, winners -1, token scores 0.
    pub(crate) fn host_scores(&self) -> Result<Scores> {
        let tokens = self.winners || self.token_scores;
        let token_offsets = if tokens { self.token_offsets.clone() } else { None };
        let scores = Scores::with_room(self.shape, token_offsets, self.winners, self.token_scores)?;
        Ok(Scores { rescored: self.rescored, ..scores })
    }
}

/// Addresses of the outputs; 0 where one is not asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputAddresses {
    pub scores: u64,
    pub winners: u64,
    pub token_scores: u64,
}

/// How much of foreign memory is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Its alignment; and the driver is asked for its place and range.
    Checked,
    /// Its alignment alone.
    Unchecked,
}

/// A side's gradient in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradientMatrix {
    pub address: u64,
    pub element: ElementType,
    pub rows: usize,
    pub dim: usize,
}
