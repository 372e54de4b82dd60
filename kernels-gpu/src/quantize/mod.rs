//! Quantises token rows to one byte per element ([`crate::abi::quantize`] has the formulas).

pub mod affine;
pub mod rows;
pub mod tensor;
