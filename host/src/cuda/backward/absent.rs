//! Stands in for projections and their gradients in a build without CUDA.

use std::sync::Arc;

use super::{
    CudaDevice, CudaGradScores, CudaGradients, CudaTokens, ProjectionCall, SliceCall, SlotsCall,
};
use crate::error::Result;
use crate::problem::options::ScoreOptions;
use crate::problem::scores::Scores;
use crate::tokens::element::ElementType;

absent! {
    CudaProjectionSums {
        fn new(device: &Arc<CudaDevice>, weight: &Arc<CudaTokens>, bias: Option<&Arc<CudaTokens>>,
            element: ElementType, normalize: bool) -> Result<CudaProjectionSums>;
        fn add(self: &mut CudaProjectionSums, states: &CudaTokens, of_tokens: &[f32],
            of_hidden: &mut [f32]) -> Result<()>;
        fn into_gradients(self: CudaProjectionSums) -> Result<(Vec<f32>, Vec<f32>)>;
    }
    CudaSlices {
        fn new(device: &Arc<CudaDevice>, hidden: &Arc<CudaTokens>, calls: &[SliceCall<'_>],
            options: &ScoreOptions) -> Result<CudaSlices>;
        fn score(self: &mut CudaSlices, queries: &CudaTokens) -> Result<Vec<Scores>>;
        fn score_values(self: &mut CudaSlices, queries: &CudaTokens) -> Result<Vec<Vec<f32>>>;
        fn winners(&self) -> Vec<(u64, usize)>;
    }
    CudaProjectedBackward {
        fn new(device: &Arc<CudaDevice>, hidden: &Arc<CudaTokens>, projection: &ProjectionCall<'_>,
            calls: &[SlotsCall<'_>], numbers: [usize; 2])
            -> Result<CudaProjectedBackward>;
        fn run(self: &mut CudaProjectedBackward, queries: &CudaTokens,
            grad_scores: &CudaGradScores, to: [&CudaGradients; 2]) -> Result<()>;
    }
}
