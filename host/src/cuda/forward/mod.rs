//! Scores on a CUDA device: work lists, and the kernels that run them.

#[allow(unsafe_code)]
pub(in crate::cuda) mod bandwidth;
#[allow(unsafe_code)]
pub(in crate::cuda) mod collect;
pub(in crate::cuda) mod contiguous;
#[allow(unsafe_code)]
pub(in crate::cuda) mod document_splits;
#[allow(unsafe_code)]
mod launch;
pub(in crate::cuda) mod lists;
#[allow(unsafe_code)]
mod params;
pub(in crate::cuda) mod partition;
pub(in crate::cuda) mod plan;
#[allow(unsafe_code)]
pub(in crate::cuda) mod projection;
pub(in crate::cuda) mod query_tiles;
#[allow(unsafe_code)]
pub(in crate::cuda) mod rescore;
pub(in crate::cuda) mod residual;
pub(in crate::cuda) mod work_list;

#[cfg(test)]
mod work_list_tests;
