//! MaxSim forward on Hopper: TMA, mbarriers and wgmma.
//!
//! `scores[q, d] = Σ_s max_t ⟨Q[q, s], D[d, t]⟩`
//!
//! Tiling: 256, 128 or 64 query rows, in groups of 16 that may belong to different queries, stay in
//! shared memory while the documents of a unit stream past in tiles of 128 tokens; a row's maximum
//! over a document stays in registers. Above dim 256 query slabs stream along.
//!
//! Pipeline:
//!  1. A producer warp gets units from the scheduler, publishes them to the other warps, and fills
//!     a ring of document slabs (128 tokens × 128 bytes) by TMA. A document's last tile is copied
//!     in boxes of 16 tokens.
//!  2. Consumer warpgroups multiply each tile with two (or one) 64-row fragments, and take the
//!     first fragment's maxima while the second is still being multiplied (online max). The last
//!     tile is as wide as its tokens need.
//!  3. Epilogue: after a document's last tile each consumer warp adds its rows' maxima and passes
//!     the sum of each group to the storing warp through a small ring.
//!  4. The storing warp adds the groups of each query in order and writes the results, so that
//!     consumers never wait for each other.
//!  5. Of the other two warps of the producer warpgroup, one loads query tiles; where documents are
//!     masked, the other turns the mask into column bits, a tile ahead. For 3xTF32 both split
//!     elements between copy and product, and prepare the mask besides.
//!
//! Where rows are normalised ([`crate::primitives::row_scales`]), a consumer multiplies a tile's
//! similarities by their columns' scales before the maximum, and the row maxima by the rows' in the
//! epilogue. Without winners, at dim 128, two warps find the scales from the tile
//! ([`scales::norms`]), and consumers read them as those of codes: there is room for two fragments.
//!
//! Schedules: this kernel is persistent. Long queries of 8-bit operands have four consumers, for
//! which documents are the rows of products ([`swap_ab`]). Where CTAs have few long documents each,
//! units end within documents ([`stream_k`]). Short queries read contiguous documents without
//! tensor maps ([`contiguous`]). Tiles of four slabs are multiplied slab by slab: the ring holds
//! one and a half.
//!
//! Budget: 56 registers for the producer warpgroup, 224 for each of two consumers (2 × 64
//! accumulators): 504 in all, as the CTA has at entry (3 × 168; a claim beyond that waits for
//! ever). 200 for the only consumer where two CTAs share a multiprocessor (2 × 128 at entry). 72
//! and 216, 80 and 176 for 3xTF32; 72 and 216, 72 and 184 where r is found; 64 and 104 beside four
//! consumers (5 × 96 at entry). Shared memory as `layout::sm90` states.
//!
//! Known loss: a tile's rows beyond the last query, and a document's columns up to the next width
//! of the product.

mod bitwise_max;
pub mod collect;
pub(crate) mod compute;
mod consumer;
pub mod contiguous;
mod epilogue;
mod int8;
pub(crate) mod kernel;
mod persistent;
mod producers;
mod prologue;
mod query_rows;
mod reduction;
pub mod residual;
mod scales;
mod scheduler;
pub(crate) mod smem;
pub mod stream_k;
pub mod swap_ab;
mod tf32x3;
mod units;

pub use crate::ptx::element::{
    Bf16, E4m3, F16, F32, I8, I8Affine, NormalizedBf16, NormalizedF16, ResidualBf16, ResidualF16,
    Tf32,
};
pub use kernel::*;
pub use persistent::forward;
