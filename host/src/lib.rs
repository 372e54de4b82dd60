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
//! compute besides scores, and [`TopK`] turns scores into a ranking. The rest is in modules:
//!
//!  - [`format`](mod@format): what tokens are stored as. [`Tokens::quantize`] compresses them
//!    to one byte an element, [`DeviceTokens::quantize`] on the device where they are.
//!  - [`layout`] and [`digest`]: how rows belong to items, and what codes were made of.
//!  - [`stream`]: calls that are prepared once and enqueued, or captured into a graph.
//!  - [`search`]: compressed tokens find what full precision scores again.
//!  - [`training`] and [`loss`]: gradients of scores with respect to tokens, and losses.
//!  - [`residual`]: tokens as ColBERTv2 and PLAID store them.
//!  - [`plan`]: which kernel runs a call, and why.
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

pub use device::tokens::{DeviceTokens, TokensRef};
pub use device::warm_up::{WarmUp, WarmUpReport};
pub use device::{Device, Memory};
pub use error::{Error, Result};
/// The crate that has the types of f16 and bf16 tokens.
pub use half;
pub use ops::loss;
pub use problem::options::ScoreOptions;
pub use problem::pairing::Pairing;
pub use problem::ranking::{Ranked, Ranking, TopK};
pub use problem::scores::Scores;
pub use problem::shape::ScoreShape;
pub use tokens::Tokens;
pub use tokens::any::AnyTokens;
pub use tokens::layout::TokenLayout;

/// What rows of tokens are stored as: elements, or codes with scales.
///
/// [`TokenFormat`](format::TokenFormat) names a format at run time, [`Format`](format::Format) is
/// one as a Rust type, and [`ScorableWith`](format::ScorableWith) says which queries meet which
/// documents.
pub mod format {
    pub use crate::device::any::{AnyDeviceTokens, AnyTokensRef};
    pub use crate::device::raw::RawScales;
    pub use crate::tokens::conversion::Conversion;
    pub use crate::tokens::element::{Element, ElementType};
    pub use crate::tokens::format::{
        Format, Fp8, GradientSource, Int8, Int8Affine, Quantized, Residual, ScorableWith,
        TokenFormat,
    };
    pub use crate::tokens::quantize_report::QuantizeReport;
    pub use crate::tokens::scales::{ScaleType, Scales};
}

/// What a [`TokenLayout`] is made of, and its limits.
pub mod layout {
    pub use crate::problem::shape::TokenOffsets;
    pub use crate::tokens::index::Index;
    pub use crate::tokens::layout::{LayoutKind, MAX_COUNT, MAX_DIM};
    pub use crate::tokens::pack::Row;
}

/// Digests of token rows, by which codes know what they were made of.
pub mod digest {
    pub use crate::tokens::digest::{TokenDigest, TokenHasher};
}

/// Coarse to fine: codes select, full precision scores.
///
/// [`CoarseCodes`](search::CoarseCodes) find winners for
/// [`Device::rescore`], [`SearchTokens`](search::SearchTokens) find documents for
/// [`Device::search`], and a [`Shortlist`](search::Shortlist) is one query's search over documents
/// that come in whatever chunks.
pub mod search {
    pub use crate::ops::rescore::{CoarseCodes, PreparedRescore};
    pub use crate::ops::search::bounds::{
        ErrorTerms, first_row_beyond, rescore_bounds, score_bounds,
    };
    pub use crate::ops::search::compressed::SearchTokens;
    pub use crate::ops::search::{
        Candidate, Certainty, Hit, SearchOptions, SearchRanking, Shortlist,
    };
}

/// Gradients of losses with respect to tokens, at once or in stream order. Losses themselves are
/// in [`loss`].
pub mod training {
    pub use crate::ops::backward::blocking::Gradients;
    pub use crate::ops::backward::outputs::{DeviceGradScores, DeviceGradients};
    pub use crate::ops::backward::prepared::{GradientType, PreparedBackward};
    pub use crate::ops::backward::training_scores::TrainingScores;
    pub use crate::ops::backward::{BackwardOptions, BackwardStrategy};
    pub use crate::ops::residual::ResidualScoreGradients;
}

/// Calls in stream order: prepared once, then enqueued on a [`Stream`](stream::Stream) or captured
/// into a [`Graph`](stream::Graph) any number of times.
pub mod stream {
    pub use crate::device::event::Event;
    pub use crate::device::graph::{Capture, Graph};
    pub use crate::device::stream::Stream;
    pub use crate::ops::queue::Queue;
    pub use crate::ops::score::prepared::{DeviceScores, PreparedScore};
}
