//! Data in device memory: tokens with their row scales, outputs, gradients.

#[allow(unsafe_code)]
pub(in crate::cuda) mod download;
#[allow(unsafe_code)]
pub(in crate::cuda) mod gradients;
#[allow(unsafe_code)]
pub(in crate::cuda) mod outputs;
#[allow(unsafe_code)]
pub(in crate::cuda) mod quantize;
#[allow(unsafe_code)]
pub(in crate::cuda) mod residual;
#[allow(unsafe_code)]
pub(in crate::cuda) mod row_scales;
#[allow(unsafe_code)]
pub(in crate::cuda) mod segments;
pub(in crate::cuda) mod tokens;
