//! Parameters of the kernel that combines the results of document splits (split-KV).

use crate::abi::params::{Group, Matrix};

/// Threads per CTA of the kernel; a CTA has one score, a thread some of its query tokens.
pub const COMBINE_SPLITS_THREADS: usize = 256;

/// Dynamic shared memory of the kernel in bytes: a sum per group of query tokens.
pub const COMBINE_SPLITS_SHARED_BYTES: usize = COMBINE_SPLITS_THREADS / Group::ROWS * 4;

/// Places the query tokens of a score, for `maxsim_combine_splits`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTokens {
    /// First row of the query in its matrix.
    pub query_start: u32,
    /// Rows of the query.
    pub query_len: u32,
    /// Index of the first one in the pair-major outputs. It fits, as splits write fewer than 2³²
    /// values to the workspace.
    pub first: u32,
    /// Index of its first [`crate::abi::params::Group`] within the tile of that group.
    pub first_group: u32,
}

/// Parameters of `maxsim_combine_splits`: each document was divided into `n_splits`
/// splits of `split_len` tokens, and score `p` became the scores `p * n_splits + i` of its splits
/// `i`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CombineSplitsParams {
    /// The query tokens.
    pub queries: Matrix,
    /// Address of [`ScoreTokens`] for each score.
    pub score_tokens: u64,
    /// Address of the splits' f32 token scores, pair-major: those of split `i` of a score are at
    /// `first * n_splits + i * query_len`. Splits without a valid document token have
    /// [`NO_TOKEN_SCORE`] there.
    pub split_token_scores: u64,
    /// Address of the splits' i32 winners, counted within the split, where winners are asked for.
    pub split_winners: u64,
    /// Address of the f32 scores.
    pub scores: u64,
    /// Address of the winners, or 0.
    pub winners: u64,
    /// Address of the f32 token scores, or 0.
    pub token_scores: u64,
    /// Splits of every document, some of them empty.
    pub n_splits: u32,
    /// Tokens of a split.
    pub split_len: u32,
    /// Bytes of a winner, as [`crate::abi::params::ForwardParams::winner_bytes`].
    pub winner_bytes: u32,
    /// Groups of the forward kernel's tiles: 16, or a number that it is a multiple of.
    pub groups_per_tile: u32,
    /// Address of the query tokens' weights, or 0, as
    /// [`crate::abi::params::ForwardParams::query_weights`].
    pub query_weights: u64,
    /// 1 where maxima are cosines, as
    /// [`crate::abi::params::NormalizedParams::maxima_are_cosines`]. Those of the splits are given
    /// as they are.
    pub maxima_are_cosines: u32,
    /// Padding that keeps the size a multiple of 8.
    pub reserved: u32,
}

/// Bits of a token score that no kernel has stored: a NaN, but not the one that `max.NaN` gives,
/// which is 0x7FFFFFFF.
pub const NO_TOKEN_SCORE: u32 = u32::MAX;
