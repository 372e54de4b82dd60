//! Chamfer distances in a build without CUDA: types without values, as the rest of that half has.

// These functions cannot be called, so they use no argument.
#![allow(unused_variables)]

use std::sync::Arc;

use super::{ChamferGradCall, CudaDevice, CudaGradients, CudaStream, CudaTokens};
use crate::error::Result;
use crate::problem::chamfer::{Chamfer, ChamferOptions, CloudPairs, Neighbours};
use crate::tokens::element::ElementType;

absent! {
    CudaChamferWork {
        fn new(
            device: &Arc<CudaDevice>,
            pairs: &CloudPairs<'_>,
            options: &ChamferOptions,
            element: ElementType,
        ) -> Result<CudaChamferWork>;
        fn workspace_bytes(&self) -> u64;
        fn found_memory(&self, n_points: [usize; 2]) -> (u64, [u64; 3]);
        fn check_backward(&self) -> Result<()>;
        fn enqueue(
            &self,
            stream: &mut CudaStream,
            tokens: [&Arc<CudaTokens>; 2],
            found: &CudaChamfer,
        ) -> Result<()>;
        fn enqueue_backward(
            &self,
            stream: &mut CudaStream,
            tokens: [&Arc<CudaTokens>; 2],
            found: &CudaChamfer,
            grad: ChamferGradCall<'_>,
            gradients: &CudaGradients,
        ) -> Result<()>;
    }
    CudaChamfer {
        fn new(
            device: &Arc<CudaDevice>,
            n_points: [usize; 2],
            n_pairs: usize,
            dim: usize,
        ) -> Result<CudaChamfer>;
        unsafe fn from_raw_unchecked(
            device: &Arc<CudaDevice>,
            n_points: [usize; 2],
            n_pairs: usize,
            dim: usize,
            address: u64,
        ) -> Result<CudaChamfer>;
        fn of_found(device: &Arc<CudaDevice>, found: &Chamfer) -> Result<CudaChamfer>;
        fn read(&self, stream: &mut CudaStream) -> Result<(Vec<f32>, [Neighbours; 2])>;
    }
}
