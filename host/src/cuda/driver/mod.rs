//! The CUDA driver: devices, memory, streams, modules, and the only launch.

#[allow(unsafe_code)]
pub(in crate::cuda) mod context;
#[allow(unsafe_code)]
pub(in crate::cuda) mod event;
#[allow(unsafe_code)]
pub(in crate::cuda) mod hazards;
pub(in crate::cuda) mod image;
#[allow(unsafe_code)]
pub(in crate::cuda) mod launch;
#[allow(unsafe_code)]
pub(in crate::cuda) mod memory;
#[allow(unsafe_code)]
pub(in crate::cuda) mod module;
mod packed;
#[allow(unsafe_code)]
pub(in crate::cuda) mod pointer;
#[allow(unsafe_code)]
pub(in crate::cuda) mod staging;
#[allow(unsafe_code)]
pub(in crate::cuda) mod status;
#[allow(unsafe_code)]
pub(in crate::cuda) mod stream;
#[allow(unsafe_code, non_snake_case, clippy::too_many_arguments)]
pub(in crate::cuda) mod symbols;
#[allow(unsafe_code)]
pub(in crate::cuda) mod tensor_map;
#[allow(unsafe_code)]
pub(in crate::cuda) mod transfer;
