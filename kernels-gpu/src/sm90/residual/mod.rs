//! MaxSim of residual-compressed documents: centroids and buckets become f16 or bf16 rows on their
//! way into shared memory.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], x̂[d, t]⟩ · r[d, t]`, x̂ as
//! [`crate::abi::numerics::residual_chunk`] says, r = 1 where tokens are not normalised
//!
//! Tiling: as [`super`], with one consumer of 64 query rows; two blocks share a multiprocessor.
//!
//! Pipeline:
//!  1. One warp hands out units, and copies query slabs where they stream.
//!  2. Two warpgroups decode ([`decode`]): codes and buckets of the next tile are on their way
//!     while the centroids of this one are gathered from the L2 cache, 256 bytes a token at dim
//!     128; sums go to the ring in the layout that wgmma reads.
//!  3. One warp copies r of a tile's columns, and turns the mask into bits.
//!  4. The consumer multiplies half a tile at a time ([`multiply`]), so that its registers leave
//!     room for those of the decoders, scales and folds.
//!  5. Another warp adds the sums by query and stores results, and one loads query tiles.
//!
//! Budget: 64 registers a thread at entry; what the first warpgroup releases goes to the consumer.
//! Shared memory as `layout::sm90` says.
//!
//! Known loss: half of a tile's rows where a query has 32; each query tile decodes the documents
//! anew.

mod consumer;
mod decoder;
mod kernel;

pub use self::decoder::{ResidualBf16, ResidualF16};
pub use self::kernel::{forward, registers};
