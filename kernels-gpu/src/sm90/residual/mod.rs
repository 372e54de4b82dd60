//! MaxSim of residual-compressed documents: centroids and buckets become f16 or bf16 rows between
//! memory and shared memory.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], x̂[d, t]⟩ · r[d, t]`, x̂ as [`crate::abi::residual_chunk`]
//! defines it, r = 1 where tokens are not normalised
//!
//! Tiling: as [`super`], with one consumer of 64 query rows; two CTAs share a multiprocessor.
//!
//! Pipeline:
//!  1. One warp publishes units, and copies query slabs where they stream.
//!  2. Two warpgroups decode ([`decoder`]): codes and buckets of the next tile are in flight while
//!     the centroids of this one are gathered from the L2 cache, 256 bytes a token at dim 128; sums
//!     are stored to the ring in the layout that wgmma reads.
//!  3. One warp copies r of a tile's columns, and turns the mask into bits.
//!  4. The consumer multiplies half a tile at a time ([`consumer`]), so that there are registers
//!     for the decoders, scales and the online max.
//!  5. Another warp adds the sums by query and stores results, and one loads query tiles.
//!
//! Budget: 64 registers a thread at entry; those that the producer warpgroup releases are the
//! consumer's. Shared memory as `layout::sm90` states.
//!
//! Known loss: half of a tile's rows where a query has 32; each query tile decodes the documents
//! anew, which is why documents are decoded before where queries have many rows
//! ([`crate::decoded_rows`]).

mod consumer;
mod decoder;
mod kernel;

pub use self::kernel::{forward, registers};
pub use crate::ptx::element::{Bf16 as ResidualBf16, F16 as ResidualF16};
