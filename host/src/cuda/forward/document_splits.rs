//! Split-KV on a device: the problem whose documents are the splits, and the kernel that combines
//! their maxima.
//!
//! Score `p` of the call becomes the scores `p * n + i` of its document's splits `i`. Forward
//! kernels write their token scores and winners to the workspace; their sums are not used.

#[cfg(test)]
mod tests;

use cust::sys::CUstream;
use maxsim_kernels::abi::params::{
    COMBINE_SPLITS_SHARED_BYTES, CombineSplitsParams, Group, Matrix, NO_TOKEN_SCORE, ScoreTokens,
};
use maxsim_kernels::table::forward::Variant;

use super::lists::DeviceLists;
use super::query_tiles::Tiles;
use crate::cuda::buffers::outputs::CudaOutputs;
use crate::cuda::buffers::tokens::CudaTokens;
use crate::cuda::driver::context::Entered;
use crate::cuda::driver::launch::start;
use crate::cuda::driver::memory::fill;
use crate::cuda::driver::module::Kernel;
use crate::error::Result;
use crate::plan::document_splits::DocumentSplits;
use crate::problem::Problem;
use crate::problem::outputs::OutputAddresses;
use crate::problem::outputs::OutputShape;
use crate::problem::pairing::{Kind, Pairing};
use crate::problem::shape::ScoreShape;
use crate::tokens::layout::TokenLayout;
use crate::tokens::layout::regular_len;

/// A problem whose documents are the splits of another's. Where documents are candidates, those
/// that are scored are split, each for each of its scores: a corpus may have many more.
#[derive(Debug)]
pub(in crate::cuda) struct SplitProblem {
    splits: DocumentSplits,
    documents: TokenLayout,
    pairing: Pairing,
    /// Query of each score of the whole problem, and index of its first token in the pair-major
    /// outputs.
    scores: Vec<(usize, u32)>,
}

impl SplitProblem {
    pub(in crate::cuda) fn new(
        problem: &Problem<'_>,
        splits: DocumentSplits,
    ) -> Result<SplitProblem> {
        let n_scores = problem.shape().n_scores();
        let whole = problem.documents();
        let split: Vec<usize> = match problem.shape() {
            ScoreShape::Cross { n_documents, .. } => (0..n_documents).collect(),
            _ => (0..n_scores).map(|p| problem.pair(p).1).collect(),
        };
        let (starts, lens): (Vec<u32>, Vec<u32>) = split
            .into_iter()
            .flat_map(|document| splits.of(whole.segments()[document]))
            .map(|[start, len]| (start, len))
            .unzip();
        let documents = TokenLayout::scattered(whole.rows(), whole.dim(), &starts, &lens)?;
        let pairing = match &problem.pairing().0 {
            Kind::Cross => Kind::Cross,
            Kind::OwnCandidates { k } | Kind::Candidates { k, .. } => {
                Kind::OwnCandidates { k: k * splits.n }
            }
            Kind::Pairs { ids } => {
                let queries = ids.iter().flat_map(|pair| vec![pair[0]; splits.n]);
                Kind::Pairs { ids: queries.zip(0..).map(|(query, split)| [query, split]).collect() }
            }
        };
        let offsets = problem.token_offsets();
        let score = |p| (problem.pair(p).0, offsets.range(p).start as u32);
        let scores = (0..n_scores).map(score).collect();
        Ok(SplitProblem { splits, documents, pairing: Pairing(pairing), scores })
    }

    /// Lists where the query tokens of each score of the whole problem are: in their matrix, in
    /// tiles, and in the pair-major outputs.
    pub(in crate::cuda) fn score_tokens(
        &self,
        queries: &TokenLayout,
        tiles: &Tiles,
    ) -> Vec<ScoreTokens> {
        let first_groups = tiles.first_groups(queries.n_items());
        let score_tokens = |&(query, first): &(usize, u32)| {
            let [query_start, query_len] = queries.segments()[query];
            ScoreTokens { query_start, query_len, first, first_group: first_groups[query] }
        };
        self.scores.iter().map(score_tokens).collect()
    }

    /// The problem of the splits, with the queries of the whole one.
    pub(in crate::cuda) fn problem<'a>(&'a self, queries: &'a TokenLayout) -> Result<Problem<'a>> {
        Problem::new(queries, &self.documents, &self.pairing)
    }

    /// Rows of the splits; empty where every split `i` has its full length, from row `i` times that
    /// on.
    pub(in crate::cuda) fn segments(&self) -> &[[u32; 2]] {
        match regular_len(self.documents.segments()) {
            Some(len) if len as usize == self.splits.len => &[],
            _ => self.documents.segments(),
        }
    }
}

/// Combines the results of a work's splits.
#[derive(Debug)]
pub(in crate::cuda) struct CudaSplits {
    kernel: Kernel<CombineSplitsParams>,
    splits: DocumentSplits,
    /// Whether some split has no token.
    has_empty: bool,
    n_scores: u32,
    groups_per_tile: u32,
    /// Bytes of a winner of the whole problem.
    winner_bytes: usize,
    /// Whether scores of the whole problem are angular.
    angular: bool,
    /// Bytes of scores, winners and token scores of all splits.
    lens_bytes: [u64; 3],
}

impl CudaSplits {
    /// `outputs` is of the whole problem, `of_splits` of the splits.
    pub(in crate::cuda) fn new(
        kernel: Kernel<CombineSplitsParams>,
        variant: &Variant,
        split: &SplitProblem,
        outputs: &OutputShape,
        of_splits: &OutputShape,
    ) -> CudaSplits {
        CudaSplits {
            kernel,
            splits: split.splits,
            has_empty: split.documents.segments().iter().any(|segment| segment[1] == 0),
            n_scores: split.scores.len() as u32,
            groups_per_tile: (variant.query_tile / Group::ROWS) as u32,
            winner_bytes: outputs.winner_bytes,
            angular: outputs.angular,
            lens_bytes: of_splits.lens_bytes(),
        }
    }

    /// Bytes of workspace for the results of splits.
    pub(in crate::cuda) fn workspace_bytes(&self) -> u64 {
        self.lens_bytes.iter().sum()
    }

    /// The addresses of the splits' results in the workspace that begins at an address.
    pub(in crate::cuda) fn outputs(&self, workspace: u64) -> OutputAddresses {
        let [scores_bytes, winners_bytes, _] = self.lens_bytes;
        let winners = workspace + scores_bytes;
        OutputAddresses {
            scores: workspace,
            winners: if winners_bytes == 0 { 0 } else { winners },
            token_scores: winners + winners_bytes,
        }
    }

    /// The documents' matrix with the splits as its items.
    pub(in crate::cuda) fn documents(&self, matrix: Matrix, lists: &DeviceLists) -> Matrix {
        Matrix { segments: lists.item_segments, item_len: self.splits.len as u32, ..matrix }
    }

    /// Enqueues what must be done before the splits are scored.
    ///
    /// # Safety
    /// `left` must be [`CudaSplits::outputs`] of a workspace of
    /// [`CudaSplits::workspace_bytes`] that only this stream uses; `stream` must be a stream of
    /// the context.
    pub(in crate::cuda) unsafe fn begin(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        documents: &CudaTokens,
        left: OutputAddresses,
    ) -> Result<()> {
        // Kernels store no results for splits without a valid token.
        if !self.has_empty && !documents.is_masked() {
            return Ok(());
        }
        const { assert!(NO_TOKEN_SCORE == u32::from_ne_bytes([0xFF; 4])) };
        // SAFETY: the caller's promise.
        unsafe { fill(entered, left.token_scores, 0xFF, self.lens_bytes[2], stream) }
    }

    /// Enqueues the kernel that combines the splits.
    ///
    /// # Safety
    /// The stream's work so far must write the splits' results to `left`; lists, queries and
    /// outputs must be those of the work and live until the kernel has run; `stream` must be a
    /// stream of the context.
    pub(in crate::cuda) unsafe fn combine(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        lists: &DeviceLists,
        queries: &CudaTokens,
        left: OutputAddresses,
        outputs: &CudaOutputs,
    ) -> Result<()> {
        let out = outputs.addresses();
        let params = CombineSplitsParams {
            queries: queries.matrix(),
            score_tokens: lists.score_tokens,
            split_token_scores: left.token_scores,
            split_winners: left.winners,
            scores: out.scores,
            winners: out.winners,
            token_scores: out.token_scores,
            n_splits: self.splits.n as u32,
            split_len: self.splits.len as u32,
            winner_bytes: self.winner_bytes as u32,
            groups_per_tile: self.groups_per_tile,
            query_weights: queries.weights(),
            maxima_are_cosines: u32::from(self.angular),
            reserved: 0,
        };
        let shared_bytes = COMBINE_SPLITS_SHARED_BYTES as u32;
        // SAFETY: the caller's promise; there is a CTA per score, as the kernel wants it.
        unsafe { start(entered, stream, &self.kernel, self.n_scores, shared_bytes, &params) }
    }
}
