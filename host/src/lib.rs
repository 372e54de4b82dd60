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

#![deny(unsafe_code)]

pub mod device;
pub mod element;
pub mod error;
pub mod event;
pub mod handle;
pub mod pairing;
pub mod plan;
pub mod problem;
pub mod scores;
pub mod stream;
pub mod tokens;
pub mod work;

mod cpu;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;

pub use device::{Device, Memory};
pub use element::{Element, ElementType};
pub use error::{Error, Result};
pub use event::Event;
pub use handle::{DeviceTokens, Input};
pub use pairing::Pairing;
pub use plan::{DeviceLimits, Plan};
pub use problem::{Problem, ScoreShape, TokenOffsets};
pub use scores::{Ranked, Ranking, ScoreOptions, Scores, TopK};
pub use stream::Stream;
pub use tokens::{LayoutKind, TokenLayout, Tokens};
pub use work::{DeviceScores, Work};
