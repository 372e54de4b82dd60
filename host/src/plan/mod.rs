//! Planning: which kernel runs a problem, how documents are divided, and why. Pure functions of
//! shapes and device limits.
//!
//! ```
//! use maxsim::format::ElementType;
//! use maxsim::plan::{Access, DeviceLimits, Operand, Plan, Problem, Variant};
//! use maxsim::{Pairing, ScoreOptions, TokenLayout};
//!
//! // What an H100 would run for 32 query tokens against 1000 documents, on any machine.
//! let limits = DeviceLimits {
//!     capability: (9, 0),
//!     n_multiprocessors: 132,
//!     shared_bytes: 227 << 10,
//! };
//! let queries = TokenLayout::padded(1, 32, 128)?;
//! let documents = TokenLayout::padded(1000, 180, 128)?;
//! let cross = Pairing::cross();
//! let problem = Problem::new(&queries, &documents, &cross)?;
//! let access = [Access::uploaded(128, ElementType::F16); 2];
//! let operand = Operand::Element(ElementType::F16);
//! let plan = Plan::choose(&problem, operand, &limits, access, &ScoreOptions::default())?;
//! let variant: &Variant = plan.variant().expect("a kernel, not the CPU");
//! assert!(variant.name.starts_with("maxsim_") && variant.dim_max >= 128);
//! assert!(plan.rejected().iter().all(|(name, why)| *name != plan.name() && !why.is_empty()));
//! # Ok::<(), maxsim::Error>(())
//! ```

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
