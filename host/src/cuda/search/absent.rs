//! Searches that a device drives in a build without CUDA: types without values, as the rest of that
//! half has.

// These functions cannot be called, so they use no argument.
#![allow(unused_variables)]

use std::sync::Arc;

use super::{CudaDevice, CudaOutputs, CudaStream, CudaTopK, SearchCall};
use crate::error::Result;

absent! {
    CudaTerms {
        fn new(
            device: &Arc<CudaDevice>,
            n_documents: usize,
            columns: [&[f32]; 3],
        ) -> Result<CudaTerms>;
    }
    CudaSearch {
        fn new(device: &Arc<CudaDevice>, sizes: [usize; 3]) -> Result<CudaSearch>;
        fn sizes(&self) -> [usize; 3];
        fn items(&self) -> [u64; 2];
    }
}

impl CudaSearch {
    pub(crate) fn enqueue_candidates(
        &mut self,
        stream: &mut CudaStream,
        call: &SearchCall<'_>,
        best: &CudaTopK,
        terms: &CudaTerms,
    ) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn enqueue_reaching(
        &mut self,
        stream: &mut CudaStream,
        call: &SearchCall<'_>,
        best: &CudaTopK,
        terms: &CudaTerms,
        rescored: &CudaOutputs,
    ) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn read(
        &mut self,
        stream: &mut CudaStream,
        rescored: Option<&CudaOutputs>,
    ) -> Result<(Vec<[u32; 4]>, Vec<f32>)> {
        match self.0 {}
    }
}
