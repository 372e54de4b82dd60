//! Arguments of calls of either half. A build without CUDA has the same types, of tokens and
//! results that have no values.

use std::ops::Range;
use std::sync::Arc;

use maxsim_kernels::abi::params::projection::gradient::{ChosenDocument, ChosenPair};
use maxsim_kernels::abi::params::search::LinearFactors;

use super::{CudaGradScores, CudaGradients, CudaOutputs, CudaTokens};
use crate::error::Result;
use crate::plan::choice::Chosen;
use crate::plan::limits::Access;
use crate::problem::Problem;
use crate::problem::chunks::Chunk;
use crate::problem::options::ScoreOptions;
use crate::problem::outputs::OutputShape;
use crate::problem::top_k::BestKeys;
use crate::residual::ResidualCodec;
use crate::tokens::element::ElementType;
use crate::tokens::format::TokenFormat;
use crate::tokens::layout::TokenLayout;
use crate::tokens::streamed::staged::Staged;

/// Arguments of a gradient call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackwardCall<'a> {
    pub queries: &'a CudaTokens,
    pub documents: &'a CudaTokens,
    pub outputs: &'a CudaOutputs,
    pub grad_scores: &'a CudaGradScores,
    pub gradients: &'a CudaGradients,
    pub adds: bool,
}

/// What Chamfer distances have gradients of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChamferGradCall<'a> {
    /// One for each pair of clouds, or for each point of both sides.
    pub gradients: &'a Arc<CudaGradScores>,
    /// Where they are of points, no smaller than the magnitudes of those that are finite.
    pub most_of_points: Option<f32>,
}

/// Arguments of a projection of hidden states.
#[derive(Clone, Debug)]
pub(crate) struct ProjectionCall<'a> {
    /// The rows to project.
    pub rows: Range<usize>,
    /// The layout of their tokens, in a matrix of these rows.
    pub layout: &'a TokenLayout,
    pub weight: &'a Arc<CudaTokens>,
    pub bias: Option<&'a Arc<CudaTokens>>,
    pub element: ElementType,
    pub normalize: bool,
}

impl ProjectionCall<'_> {
    /// Distance between tokens in bytes.
    pub(crate) fn pitch_bytes(&self) -> u64 {
        Access::uploaded(self.layout.dim(), TokenFormat::from(self.element)).pitch_bytes
    }

    /// Bytes of the tokens.
    pub(crate) fn tokens_bytes(&self) -> u64 {
        self.rows.len() as u64 * self.pitch_bytes()
    }
}

/// Documents that are projected together, and how they are scored.
pub(crate) struct SliceCall<'a> {
    pub projection: ProjectionCall<'a>,
    pub problem: Problem<'a>,
    pub chosen: Chosen,
    /// The number of the plan: that of the slice before where problem and kernel are the same, or
    /// else the next.
    pub plan: usize,
}

/// Documents whose chosen rows are multiplied together, where only a device knows them.
pub(crate) struct SlotsCall<'a> {
    /// The problem of slots: documents of as many rows as slots.
    pub problem: Problem<'a>,
    /// Number of slots.
    pub n_slots: usize,
    /// The documents, one behind the other, and their pairs.
    pub documents: Vec<ChosenDocument>,
    pub pairs: Vec<ChosenPair>,
}

/// Arguments of a call for the gradients of residual-compressed documents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidualCall<'a> {
    pub queries: &'a CudaTokens,
    pub documents: &'a CudaTokens,
    pub outputs: &'a CudaOutputs,
    pub grad_scores: &'a CudaGradScores,
}

/// Results of such a call, on the host: the gradients of the queries' rows, of centroids and of
/// weights.
#[derive(Debug)]
pub(crate) struct ResidualFound<'a> {
    pub queries: &'a mut [f32],
    pub centroids: &'a mut [f32],
    pub bucket_weights: &'a mut [f32],
}

/// A selection: which ids documents have, and what becomes of what was found before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    /// The id of document 0.
    pub first_id: u32,
    /// Whether what was found before takes part.
    pub adds: bool,
}

/// Arguments of a search for one query that a device drives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchCall<'a> {
    /// The scores of all codes.
    pub scores: &'a CudaOutputs,
    /// The documents in full precision.
    pub documents: &'a CudaTokens,
    /// The query's part of the bounds.
    pub factors: LinearFactors,
    /// What no bound is above.
    pub largest: f32,
    pub k: usize,
    /// Whether what is found beside the candidates is scored in full precision, too.
    pub is_exact: bool,
}

/// What becomes of maxima of which it is known whether they were retrieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// The sum of those that were, by their number.
    Retrieved,
    /// The same by the number of the query's valid tokens.
    QueryTokens,
    /// The sum alone.
    Sum,
    /// The sum, with thresholds in place of those that were not.
    Imputed,
}

/// Arguments of a call for XTR scores, by plans `P`.
#[derive(Clone, Copy)]
pub(crate) struct XtrCall<'a, P> {
    pub problem: &'a Problem<'a>,
    /// The problem's plan, of a kernel for sm_80 without document splits, with winners and token
    /// scores; and its outputs.
    pub work: &'a P,
    pub shape: &'a OutputShape,
    /// What thresholds are of, where that are not the pairs of the problem: all queries with all
    /// documents or some, and their plan, of the same kernel.
    pub pool: Option<(&'a Problem<'a>, &'a P)>,
    pub tokens: [&'a CudaTokens; 2],
    pub k: usize,
    /// What scores are; `None` = those of the plan, and all outputs are kept.
    pub reduction: Option<Reduction>,
}

/// Results of such a call.
#[derive(Debug)]
pub(crate) struct XtrFound {
    /// Scores and winners that were retrieved; where nothing was reduced, the outputs of the plan.
    pub outputs: CudaOutputs,
    /// The scores, and what sums were divided by, or of [`Reduction::Imputed`] 1 where something
    /// was retrieved, else 0. Zeros where nothing was reduced.
    pub values: Vec<f32>,
    pub divisors: Vec<f32>,
    /// Those of a query's tokens behind those of the query before.
    pub thresholds: Vec<f32>,
}

/// Arguments of a search over documents that pass by.
pub(crate) struct StreamCall<'a> {
    pub queries: &'a CudaTokens,
    pub query_layout: &'a TokenLayout,
    pub query_format: TokenFormat,
    pub documents: &'a dyn Staged,
    pub rows: StreamedRows<'a>,
    /// The chunks that are searched: all, or some consecutive ones.
    pub chunks: &'a [Chunk],
    pub kept: Kept<'a>,
    pub options: &'a ScoreOptions,
    /// Threads that fill staging memory.
    pub n_threads: usize,
    /// Called on the caller's thread with each chunk that is done; an error ends the search.
    pub passed: &'a (dyn Fn(&Chunk) -> Result<()> + Sync),
}

/// What is kept of the scores of documents that pass by.
#[derive(Clone, Copy)]
pub(crate) enum Kept<'a> {
    /// The best so many of each query, which are selected where the scores are.
    Best(usize),
    /// All of them: this is called on the caller's thread with those of each chunk,
    /// `[n_queries, n_documents]`; an error ends the search.
    Scores(&'a (dyn Fn(&Chunk, &[f32]) -> Result<()> + Sync)),
}

impl Kept<'_> {
    /// How many of each query are selected.
    pub(crate) fn k(&self) -> usize {
        match self {
            Kept::Best(k) => *k,
            Kept::Scores(_) => 0,
        }
    }
}

/// What the rows of documents that pass by are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamedRows<'a> {
    /// Elements or codes of a format; all of them, where they are in memory as a device has them.
    Stored(TokenFormat, Option<&'a [u8]>),
    /// What a codec decodes, for queries of a type; all buckets and all codes, where they are in
    /// memory as a device has them, and every code is that of a centroid.
    Residual(ElementType, &'a ResidualCodec<'a>, Option<[&'a [u8]; 2]>),
}

/// Results of such a search.
#[derive(Debug)]
pub(crate) struct StreamFound {
    /// None of any query where scores were kept.
    pub best: BestKeys,
    /// The kernels that ran, in the order of their first use.
    pub kernels: Vec<&'static str>,
}
