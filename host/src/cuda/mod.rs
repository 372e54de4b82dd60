//! The CUDA driver layer: devices, memory, streams, kernels and the launch.
//!
//! The library's only `unsafe` code is in this folder, in the files named below. Above it
//! stand safe types: a handle keeps its device, every use of the driver goes through
//! [`context::CudaDevice::enter`], and a fault that ends the device's use is remembered there.

#[allow(unsafe_code)]
mod backward;
mod buffers;
mod calls;
#[allow(unsafe_code)]
mod chamfer;
mod driver;
mod forward;
#[allow(unsafe_code)]
mod graph;
#[allow(unsafe_code)]
mod loss;
#[allow(unsafe_code)]
mod search;
mod streaming;
#[allow(unsafe_code)]
mod top_k;
#[allow(unsafe_code)]
mod xtr;

#[cfg(test)]
#[allow(unsafe_code)]
mod graph_tests;

pub(crate) use backward::CudaBackward;
pub(crate) use backward::projected::CudaProjectedBackward;
pub(crate) use backward::projection::CudaProjectionSums;
pub(crate) use buffers::gradients::{CudaGradScores, CudaGradients};
pub(crate) use buffers::outputs::CudaOutputs;
pub(crate) use buffers::row_scales::RowScales;
pub(crate) use buffers::segments::write_segments;
pub(crate) use buffers::tokens::CudaTokens;
pub(crate) use calls::{
    BackwardCall, ChamferGradCall, Kept, ProjectionCall, Reduction, ResidualCall, ResidualFound,
    SearchCall, Selection, SliceCall, SlotsCall, StreamCall, StreamFound, StreamedRows, XtrCall,
    XtrFound,
};
pub(crate) use chamfer::{CudaChamfer, CudaChamferWork};
pub(crate) use driver::context::{CudaDevice, n_devices, open};
pub(crate) use driver::event::CudaEvent;
pub(crate) use driver::memory::Pinned;
pub(crate) use driver::pointer::{check_range, read_rows};
pub(crate) use driver::stream::CudaStream;
pub(crate) use forward::bandwidth::read;
pub(crate) use forward::plan::ForwardPlan;
pub(crate) use forward::projection::CudaSlices;
pub(crate) use forward::rescore::CudaRescore;

pub(crate) use graph::{CudaCall, CudaGraph};
pub(crate) use loss::{CudaLoss, CudaLossWork, CudaTargets};
pub(crate) use search::{CudaSearch, CudaTerms};
pub(crate) use top_k::{CudaTopK, CudaTopKWork};
