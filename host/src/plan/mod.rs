//! Planning: which kernel runs a problem, how documents are divided, and why. Pure functions of
//! shapes and device limits.

pub(crate) mod backward;
pub(crate) mod choice;
mod cost;
pub(crate) mod document_splits;
mod eligible;
pub(crate) mod kernels;
pub(crate) mod limits;
pub(crate) mod stream_k;

pub use self::choice::Plan;
pub use self::kernels::{KernelSource, LoadedKernel};
pub use self::limits::{Access, DeviceLimits};
pub use crate::problem::Problem;
pub use maxsim_kernels::abi::element::Operand;
pub use maxsim_kernels::table::forward::Variant;
