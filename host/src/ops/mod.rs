//! The operations, each beside what it makes ready: `impl Device` and `impl Stream` stand in the
//! file of their operation.

pub mod angular;
pub(crate) mod backward;
pub(crate) mod chamfer;
pub(crate) mod devices;
mod interop;
pub mod loss;
pub(crate) mod projection;
pub(crate) mod quantize;
pub(crate) mod queue;
#[allow(unsafe_code)]
pub(crate) mod raw;
pub(crate) mod rescore;
pub(crate) mod residual;
pub(crate) mod score;
pub(crate) mod search;
pub(crate) mod streaming;
pub(crate) mod top_k;
pub(crate) mod xtr;
