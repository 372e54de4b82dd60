//! Arguments of calls of either half. A build without CUDA has the same types, of tokens and
//! results that have no values.

use super::{CudaGradScores, CudaGradients, CudaOutputs, CudaTokens};

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
