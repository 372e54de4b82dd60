//! Results on the host, and the ranking they give.

use super::Problem;
use super::shape::{ScoreShape, TokenOffsets};
use crate::error::Result;
use crate::problem::options::ScoreOptions;
use crate::runtime::alloc::filled;

/// Scores and, where they were asked for, winners and token scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    pub(crate) shape: ScoreShape,
    pub(crate) values: Vec<f32>,
    pub(crate) token_offsets: Option<TokenOffsets>,
    pub(crate) winners: Option<Vec<i32>>,
    pub(crate) token_scores: Option<Vec<f32>>,
    pub(crate) screened: bool,
}

impl Scores {
    /// Room for the results of a problem: scores 0, winners -1, token scores 0.
    pub(crate) fn new(problem: &Problem<'_>, options: &ScoreOptions) -> Result<Scores> {
        let tokens = options.winners || options.token_scores;
        let token_offsets = tokens.then(|| problem.token_offsets());
        Scores::with_room(problem.shape(), token_offsets, options.winners, options.token_scores)
    }

    /// Room for results: scores 0, and winners -1 and token scores 0 where asked for.
    pub(crate) fn with_room(
        shape: ScoreShape,
        token_offsets: Option<TokenOffsets>,
        winners: bool,
        token_scores: bool,
    ) -> Result<Scores> {
        let n_tokens = token_offsets.as_ref().map_or(0, TokenOffsets::total);
        Ok(Scores {
            shape,
            values: filled(shape.n_scores() as u64, 0.0)?,
            winners: winners.then(|| filled(n_tokens, -1)).transpose()?,
            token_scores: token_scores.then(|| filled(n_tokens, 0.0)).transpose()?,
            token_offsets,
            screened: false,
        })
    }

    /// Shape of the scores.
    pub fn shape(&self) -> ScoreShape {
        self.shape
    }

    /// The scores in the order of the pairing, row-major.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The scores of one query, in the order of its documents or candidates. `None` of pairs, which
    /// are in whatever order, and of queries that are not there.
    pub fn row(&self, query: usize) -> Option<&[f32]> {
        let len = self.shape.row_len()?;
        let n_queries = match self.shape {
            ScoreShape::Cross { n_queries, .. } | ScoreShape::Candidates { n_queries, .. } => {
                n_queries
            }
            ScoreShape::Pairs { .. } => 0,
        };
        (query < n_queries).then(|| &self.values[query * len..][..len])
    }

    /// The scores, without a copy.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// Whether the winners are those of INT8 screening: scores are then, up to the rounding of f32,
    /// lower bounds of the exact ones. See [`Screen`](crate::Screen).
    pub fn are_screened(&self) -> bool {
        self.screened
    }

    /// All winners, pair-major: index of the winning token within its document, -1 = none.
    /// `None` when they were not asked for.
    pub fn winners(&self) -> Option<&[i32]> {
        self.winners.as_deref()
    }

    /// All token scores, pair-major. `None` when they were not asked for.
    pub fn token_scores(&self) -> Option<&[f32]> {
        self.token_scores.as_deref()
    }

    /// Where the query tokens of each score lie in `winners` and `token_scores`.
    pub fn token_offsets(&self) -> Option<&TokenOffsets> {
        self.token_offsets.as_ref()
    }
}
