//! The CUDA driver layer: devices, memory, streams, kernels and the launch.
//!
//! The library's only `unsafe` code is in this folder, in the files named below. Above it
//! stand safe types: a handle keeps its device, every use of the driver goes through
//! [`context::CudaDevice::enter`], and a fault that ends the device's use is remembered there.

#[allow(unsafe_code)]
mod atomic;
#[allow(unsafe_code)]
mod backward;
#[allow(unsafe_code)]
mod centroid_scores;
#[allow(unsafe_code)]
mod context;
#[allow(unsafe_code)]
mod download;
#[allow(unsafe_code)]
mod event;
#[allow(unsafe_code)]
mod foreign;
#[allow(unsafe_code, non_snake_case, clippy::too_many_arguments)]
mod forward;
mod gradient_plan;
#[allow(unsafe_code)]
mod gradients;
#[allow(unsafe_code)]
mod graph;
mod image;
#[allow(unsafe_code)]
mod launch;
mod lists;
#[allow(unsafe_code)]
mod loss;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod module;
#[allow(unsafe_code)]
mod norms;
#[allow(unsafe_code)]
mod outputs;
#[allow(unsafe_code)]
mod pieces;
#[allow(unsafe_code)]
mod quantize;
#[allow(unsafe_code)]
mod read;
#[allow(unsafe_code)]
mod recompute;
#[allow(unsafe_code)]
mod rescore;
#[allow(unsafe_code)]
mod residual;
#[allow(unsafe_code)]
mod residual_gradients;
mod runs;
mod split;
#[allow(unsafe_code)]
mod status;
#[allow(unsafe_code)]
mod stream;
#[allow(unsafe_code)]
mod tensor_map;
mod tiles;
mod tokens;
#[allow(unsafe_code)]
mod turn;
#[allow(unsafe_code)]
mod upload;
mod work;

#[cfg(test)]
mod gradient_plan_tests;
#[cfg(test)]
#[allow(unsafe_code)]
mod graph_tests;
#[cfg(test)]
mod pieces_tests;
#[cfg(test)]
mod residual_gradients_tests;
#[cfg(test)]
mod work_tests;

pub(crate) use backward::{BackwardCall, BackwardKind, CudaBackward, Gathered};
pub(crate) use context::{CudaDevice, n_devices, open};
pub(crate) use event::CudaEvent;
pub use foreign::RawScales;
pub(crate) use gradients::{CudaGradScores, CudaGradients, GradientMatrix};
pub(crate) use graph::{CudaCall, CudaGraph};
pub(crate) use launch::CudaWork;
pub(crate) use loss::{CudaLoss, CudaLossWork, CudaTargets};
pub(crate) use outputs::CudaOutputs;
pub(crate) use read::read;
pub(crate) use rescore::CudaRescore;
pub(crate) use residual_gradients::{ResidualCall, ResidualFound};
pub(crate) use stream::CudaStream;
pub(crate) use tokens::CudaTokens;
