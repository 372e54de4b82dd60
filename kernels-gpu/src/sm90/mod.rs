//! MaxSim forward on Hopper: TMA, mbarriers and wgmma.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: 256, 128 or 64 query rows, in groups of 16 that may belong to different queries, stay
//! in shared memory while the documents of a unit stream past in tiles of 128 tokens; a row's
//! maximum over a document stays in registers. Above dim 256 query slabs stream along.
//!
//! Pipeline:
//!  1. A loading warp draws units, tells the other warps, and fills a ring of document slabs
//!     (128 tokens × 128 bytes) by TMA. A document's last tile is copied in boxes of 16 tokens.
//!  2. Consumer warpgroups multiply each tile with two (or one) 64-row fragments, and fold the
//!     first fragment's maxima while the second is still being multiplied. The last tile is as
//!     wide as its tokens need.
//!  3. After a document's last tile each consumer warp adds its rows' maxima and hands the sum
//!     of each group to the storing warp through a small ring.
//!  4. The storing warp adds the groups of each query in order and writes the results, so that
//!     consumers never wait for each other.
//!  5. Of the other two warps of the first warpgroup, one loads query tiles; where documents are
//!     masked, the other turns the mask into column bits, a tile ahead. Where elements are split,
//!     both do that between copy and product, and the mask besides.
//!
//! Where rows are normalised ([`crate::norms`]), a consumer multiplies a tile's similarities by
//! their columns' factors before it folds them, and what a document leaves by the rows'.
//!
//! Long queries of codes have four consumers, for which documents are the rows of products
//! ([`turned`]). Where blocks have few long documents each, units end within documents ([`cut`]).
//! Tiles of four slabs are multiplied slab by slab: the ring holds one and a half.
//!
//! Budget: 56 registers for the first warpgroup, 224 for each of two consumers (2 × 64
//! accumulators): 504 in all, as the block has at entry (3 × 168; a claim beyond that waits for
//! ever). 200 for the only consumer where two blocks share a multiprocessor (2 × 128 at entry). 72
//! and 216, 80 and 176 where elements are split; 64 and 104 beside four consumers (5 × 96 at
//! entry). Shared memory as `layout::sm90` says.
//!
//! Known loss: a tile's rows beyond the last query, and a document's columns up to the next
//! width of the product.

mod bitwise_max;
mod compute;
pub mod contiguous;
mod epilogue;
mod int8;
mod kernel;
mod producers;
mod query_rows;
mod reduction;
pub mod residual;
mod scale_f16;
mod scales;
mod scheduler;
mod smem;
pub mod stream_k;
pub mod swap_ab;
mod tf32x3;
mod warpgroup;

pub use kernel::*;
