//! Planning: which kernel runs a problem, how documents are divided, and why. Pure functions of
//! shapes and device limits.
//!
//! ```
//! use maxsim::format::{ElementType, TokenFormat};
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
//! let [f16, f32] = [ElementType::F16, ElementType::F32].map(TokenFormat::from);
//! let operand = TokenFormat::operand(f16, f16).expect("they go together");
//! assert_eq!(operand, Operand::Element(ElementType::F16));
//! assert_eq!(TokenFormat::operand(f32, TokenFormat::Int8), None);
//! let plan = Plan::choose(&problem, operand, &limits, access, &ScoreOptions::default())?;
//! let variant: &Variant = plan.variant().expect("a kernel, not the CPU");
//! assert!(variant.name.starts_with("maxsim_") && variant.dim_max >= 128);
//! assert!(plan.rejected().iter().all(|(name, why)| *name != plan.name() && !why.is_empty()));
//!
//! // Another kernel, by its name.
//! let eligible = plan.rejected().iter().find(|(_, why)| why.starts_with("costs more"));
//! let (other, _) = eligible.expect("other kernels can run this, too");
//! let options = ScoreOptions::default().kernel(*other);
//! assert_eq!(Plan::choose(&problem, operand, &limits, access, &options)?.name(), *other);
//!
//! // One long document is divided among the multiprocessors, unless that is forbidden.
//! let long = TokenLayout::padded(1, 100_000, 128)?;
//! let problem = Problem::new(&queries, &long, &cross)?;
//! let choose =
//!     |operand, access, options| Plan::choose(&problem, operand, &limits, access, &options);
//! assert!(choose(operand, access, ScoreOptions::default())?.document_splits() > 8);
//! let whole = ScoreOptions::default().document_splits(1);
//! assert_eq!(choose(operand, access, whole)?.document_splits(), 1);
//!
//! // Rows that TMA cannot read run on another kernel.
//! let shifted = Access { base: 8, ..access[1] };
//! assert!(access[1].is_aligned() && !shifted.is_aligned());
//! let plan = choose(operand, [access[0], shifted], ScoreOptions::default())?;
//! assert!(plan.name().contains("_sm80_"));
//!
//! // f32 that may be rounded to TF32 has faster kernels.
//! let access = [Access::uploaded(128, ElementType::F32); 2];
//! let operand = Operand::Element(ElementType::F32);
//! assert!(!choose(operand, access, ScoreOptions::default())?.name().contains("tf32"));
//! let rounded = ScoreOptions::default().allow_tf32(true);
//! assert!(choose(operand, access, rounded)?.name().contains("tf32"));
//! # Ok::<(), maxsim::Error>(())
//! ```

pub(crate) mod backward;
pub(crate) mod choice;
mod consistent;
mod cost;
pub(crate) mod document_splits;
mod eligible;
pub(crate) mod kernels;
pub(crate) mod limits;
pub(crate) mod pieces;
pub(crate) mod stream_k;
pub(crate) mod sweep;

pub use self::choice::Plan;
pub use self::kernels::{KernelSource, LoadedKernel};
pub use self::limits::{Access, DeviceLimits};
pub use crate::problem::Problem;
pub use maxsim_kernels::abi::element::Operand;
pub use maxsim_kernels::table::forward::Variant;
