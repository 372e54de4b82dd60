//! Rankings in a build without CUDA: types without values, as the rest of that half has.

// These functions cannot be called, so they use no argument.
#![allow(unused_variables)]

use std::sync::Arc;

use super::{CudaDevice, CudaOutputs, CudaStream, CudaTokens, Selection};
use crate::error::Result;
use crate::problem::outputs::Trust;
use crate::problem::top_k::{BestKeys, RankedRows};

absent! {
    CudaTopKWork {
        fn new(
            device: &Arc<CudaDevice>,
            rows: &RankedRows,
            k: usize,
            items: Option<&Arc<CudaTokens>>,
        ) -> Result<CudaTopKWork>;
        fn workspace_bytes(&self) -> u64;
        fn enqueue(
            &self,
            stream: &mut CudaStream,
            outputs: &CudaOutputs,
            best: &CudaTopK,
            call: Selection,
        ) -> Result<()>;
    }
    CudaTopK {
        fn new(device: &Arc<CudaDevice>, n_rows: usize, k: usize) -> Result<CudaTopK>;
        unsafe fn from_raw_parts(
            device: &Arc<CudaDevice>,
            shape: [usize; 2],
            addresses: [u64; 2],
            trust: Trust,
        ) -> Result<CudaTopK>;
        fn addresses(&self) -> [u64; 2];
        fn unfilled(device: &Arc<CudaDevice>, n_rows: usize, k: usize) -> Result<CudaTopK>;
        fn read(&self) -> Result<BestKeys>;
        fn read_on(&self, stream: &mut CudaStream) -> Result<BestKeys>;
        fn enqueue_merge(&self, stream: &mut CudaStream, other: &CudaTopK) -> Result<()>;
    }
}
