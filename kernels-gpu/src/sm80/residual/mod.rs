//! MaxSim of residual-compressed documents for up to 32 query rows, decoded in registers.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], x̂[d, t]⟩ · r[d, t]`, x̂ as [`crate::abi::residual_chunk`]
//! defines it, r = 1 where tokens are not normalised
//!
//! Tiling: documents on M, queries on N. A warp has a document, 16 tokens at a time, and all 32
//! query rows in registers.
//!
//! The K permutation is free as long as A and B use the same one: lane (g, t) of a product's
//! fragment has of its rows the chunks t, 4 + t, 8 + t and 12 + t, as they are loaded. What is read
//! from memory is what `mma.sync` multiplies, once a weight is added.
//!
//! Pipeline, of a warp by itself:
//!  1. Buckets and r of the next step are in flight, and the codes of the one after it.
//!  2. Weights are added to this step's centroids, chunk by chunk. The centroid of the next step
//!     takes the place of each: as many are in flight as there is room for.
//!  3. The sums are multiplied, and the maxima over the document kept per lane and query row.
//!  4. After the document lanes exchange maxima; each of the 32 lanes ends with one query row.
//!
//! Budget: 64 registers of queries, 32 of centroids, 32 of decoded tokens, 16 of sums, 8 of maxima:
//! eight warps a multiprocessor.
//!
//! Known loss: a document's tokens up to the next 16.

pub mod by_centroid;
mod decoder;
mod kernel;
mod query_rows;

pub use self::kernel::forward;
pub use crate::primitives::residual_chunk::{Bf16 as ResidualBf16, F16 as ResidualF16};
