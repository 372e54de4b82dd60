//! Fused late-interaction (ColBERT / ColPali) scoring.
//!
//! MaxSim scores a query against a document as
//!
//! ```text
//! scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩
//! ```
//!
//! with `s` over the query's valid tokens and `t` over the document's. The
//! token-by-token similarities are never stored.
//!
//! ```
//! use maxsim::{Device, Pairing, Tokens};
//!
//! // One query of two tokens; documents of one and two tokens; dim 2.
//! let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
//! let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
//! let scores = Device::best().score(&queries, &documents, &Pairing::cross())?;
//! // max(2) + max(0), max(3, -1) + max(4, 5)
//! assert_eq!(scores.values(), [2.0, 8.0]);
//! # Ok::<(), maxsim::Error>(())
//! ```
//!
//! [`Device`] is where to start: it scores, uploads [`Tokens`] into handles, and says which kernel
//! it would run. [`Pairing`] says which queries meet which documents, [`ScoreOptions`] what to
//! compute besides scores, and [`TopK`] turns scores into a ranking. [`Device::backward`] gives the
//! gradients of scores with respect to tokens, from those that the losses of [`loss`] have with
//! respect to scores, of documents that may be saved as codes meanwhile ([`Saved`]).
//! [`Tokens::quantize`] compresses tokens to one byte an element ([`TokenFormat`]),
//! [`DeviceTokens::quantize`] does so on the device where they are, and [`score_bounds`] says how
//! far that can move scores ([`ErrorTerms`]). [`Screen`] has compressed tokens find what is then
//! scored in full precision.
//!
//! Features: `cuda` (the GPU engines, on Linux), `ndarray` (tokens from its arrays, scores as such)
//! and `serde` (options, plans and rankings are written and read).
//!
//! Environment: MAXSIM_KERNELS (`cubin` or `ptx`: load kernels from files assembled for the device,
//! or have the driver compile them, and fail where that cannot be; unset, the first where possible
//! and else the second), MAXSIM_INSTRUCTIONS (`sm_80`: run the kernels that an older device would
//! be given, read when a device is first opened), MAXSIM_JIT_LOG (a file that every loaded kernel
//! and the logs of the driver's compiler are appended to).

#![deny(unsafe_code)]
// Much of what plans and problems know is for kernels alone.
#![cfg_attr(not(all(feature = "cuda", target_os = "linux")), allow(dead_code))]

mod cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
#[cfg(not(all(feature = "cuda", target_os = "linux")))]
#[path = "cuda/absent.rs"]
mod cuda;
mod device;
mod error;
mod linalg;
mod ops;
pub mod plan;
mod problem;
pub mod residual;
mod runtime;
mod tokens;

pub use device::any::{AnyDeviceTokens, AnyInput};
pub use device::event::Event;
pub use device::graph::{Capture, Graph};
pub use device::raw::RawScales;
pub use device::stream::Stream;
pub use device::tokens::{DeviceTokens, Input};
pub use device::warm_up::{WarmUp, Warmed};
pub use device::{Device, Memory};
pub use error::{Error, Result};
/// The crate that has the types of f16 and bf16 tokens.
pub use half;
pub use ops::backward::blocking::Gradients;
pub use ops::backward::outputs::{DeviceGradScores, DeviceGradients};
pub use ops::backward::prepared::{BackwardWork, GradientType};
pub use ops::backward::training_scores::TrainingScores;
pub use ops::backward::{Backward, BackwardOptions};
pub use ops::loss;
pub use ops::loss::prepared::{DeviceLoss, LossWork};
pub use ops::queue::Queue;
pub use ops::rescore::{CoarseWork, Screen};
pub use ops::residual::ResidualScoreGradients;
pub use ops::score::prepared::{DeviceScores, Work};
pub use ops::search::bounds::{ErrorTerms, first_row_beyond, rescore_bounds, score_bounds};
pub use ops::search::compressed::Compressed;
pub use ops::search::{Candidates, Found, Place, Scanned, SearchOptions, SearchRanking};
pub use plan::choice::Plan;
pub use plan::kernels::{KernelSource, LoadedKernel};
pub use plan::limits::DeviceLimits;
pub use problem::Problem;
pub use problem::options::ScoreOptions;
pub use problem::pairing::Pairing;
pub use problem::ranking::{Ranked, Ranking, TopK};
pub use problem::scores::Scores;
pub use problem::shape::{ScoreShape, TokenOffsets};
pub use tokens::Tokens;
pub use tokens::any::AnyTokens;
pub use tokens::conversion::Conversion;
pub use tokens::digest::{TokenDigest, TokenHasher};
pub use tokens::element::{Element, ElementType};
pub use tokens::format::{
    Against, Format, Fp8, Int8, Int8Affine, Quantized, Residual, Saved, TokenFormat,
};
pub use tokens::index::Index;
pub use tokens::layout::{LayoutKind, MAX_COUNT, MAX_DIM, TokenLayout};
pub use tokens::pack::Row;
pub use tokens::quantize_report::QuantizeReport;
pub use tokens::scales::{ScaleType, Scales};
