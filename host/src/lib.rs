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
//! [`Device`] is where to start: it scores, uploads [`Tokens`] into handles, and says which
//! kernel it would run. [`Pairing`] says which queries meet which documents, [`ScoreOptions`]
//! what to compute besides scores, and [`TopK`] turns scores into a ranking.
//! [`Device::backward`] gives the gradients of scores with respect to tokens, from those that the
//! losses of [`loss`] have with respect to scores, of documents that may be saved as codes meanwhile
//! ([`Saved`]). [`Tokens::quantize`] compresses tokens to one byte
//! an element ([`mod@format`]), [`DeviceTokens::quantize`] does so on the device where they are, and [`score_bounds`] says how far that can move scores ([`bounds`]).
//! [`coarse`] has compressed tokens find what is then scored in full precision.
//!
//! Environment: MAXSIM_KERNELS (`cubin` or `ptx`: load kernels from files assembled for the
//! device, or have the driver compile them, and fail where that cannot be; unset, the first
//! where possible and else the second), MAXSIM_INSTRUCTIONS (`sm_80`: run the kernels that an older
//! device would be given, read when a device is first opened), MAXSIM_JIT_LOG (a file that every loaded kernel and
//! the logs of the driver's compiler are appended to).

#![deny(unsafe_code)]

pub mod backward;
pub mod bounds;
pub mod coarse;
pub mod compressed;
pub mod convert;
pub mod device;
pub mod device_loss;
pub mod element;
pub mod error;
pub mod event;
pub mod format;
pub mod gradients;
pub mod graph;
pub mod handle;
pub mod index;
pub mod loss;
pub mod pack;
pub mod pairing;
pub mod plan;
pub mod problem;
pub mod provenance;
pub mod quantize_report;
pub mod residual;
pub mod scales;
pub mod scores;
pub mod search;
pub mod stream;
pub mod tokens;
pub mod warm_up;
pub mod work;

mod cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
mod lock;
mod parallel;
mod pieces;
mod quantize;
mod scaled_rows;
mod scored;
mod shares;

pub use backward::{Backward, BackwardOptions, Gradients, TrainingScores};
pub use bounds::{ErrorTerms, first_row_beyond, rescore_bounds, score_bounds};
pub use coarse::{CoarseWork, Screen};
pub use compressed::Compressed;
pub use convert::Conversion;
#[cfg(all(feature = "cuda", target_os = "linux"))]
pub use cuda::RawScales;
pub use device::{Device, Memory};
pub use device_loss::{DeviceLoss, LossWork};
pub use element::{Element, ElementType};
pub use error::{Error, Result};
pub use event::Event;
pub use format::{Against, Format, Fp8, Int8, Int8Affine, Quantized, Residual, Saved, TokenFormat};
pub use gradients::{BackwardWork, DeviceGradScores, DeviceGradients, GradientType};
pub use graph::{Capture, Graph};
/// The crate that has the types of f16 and bf16 tokens.
pub use half;
pub use handle::{DeviceTokens, Input};
pub use index::Index;
pub use pack::Row;
pub use pairing::Pairing;
pub use plan::{DeviceLimits, Plan};
pub use problem::{Problem, ScoreShape, TokenOffsets};
pub use provenance::{TokenDigest, TokenHasher};
pub use quantize_report::QuantizeReport;
pub use scales::{ScaleType, Scales};
pub use scores::{Ranked, Ranking, ScoreOptions, Scores, TopK};
pub use search::{Candidates, Found, Place, Scanned, SearchOptions, SearchRanking};
pub use stream::Stream;
pub use tokens::{LayoutKind, TokenLayout, Tokens};
pub use warm_up::{KernelSource, LoadedKernel, WarmUp, Warmed};
pub use work::{DeviceScores, Work};
