//! Nearest neighbours between clouds of points, by differences in f32.
//!
//! ```text
//! nearest     some points of a cloud against a tile of the other, in 32 KB of shared memory: up to
//!             15 dims
//! both        the same for the points of both clouds at once
//! compare     as nearest, of any dim, some dims at a time
//! reduce      keys → distances, neighbours, value of each pair
//! scatter     each point adds to its neighbour's gradient, in fixed point
//! gradients   what a point adds to its own, and what was added to it
//! ```
//!
//! Large clouds of up to 3 dims are not compared but [sorted](sort) and [searched](search). Of
//! those of many dims a forward kernel multiplies [copies](copies()), blocks that may have nearest
//! points are [selected](select()) and [compared](refine()). Either finds the same keys.
//!
//! One of the first three and the next are a forward pass of any number of clouds, the last two a
//! backward pass. Nothing is as large as points × points, and no bit depends on the order of what
//! CTAs do: keys are compared as whole numbers, and sums of gradients are sums of whole numbers.

#[cfg(maxsim_arch = "sm_80")]
mod both;
#[cfg(maxsim_arch = "sm_80")]
mod compare;
#[cfg(maxsim_arch = "sm_80")]
mod copies;
#[cfg(maxsim_arch = "sm_80")]
mod gradients;
#[cfg(maxsim_arch = "sm_90a")]
pub mod halves;
mod known;
#[cfg(maxsim_arch = "sm_80")]
mod nearest;
mod points;
#[cfg(maxsim_arch = "sm_90a")]
pub mod products;
#[cfg(maxsim_arch = "sm_80")]
mod reduce;
#[cfg(maxsim_arch = "sm_80")]
mod refine;
#[cfg(maxsim_arch = "sm_80")]
pub mod search;
#[cfg(maxsim_arch = "sm_80")]
mod select;
#[cfg(maxsim_arch = "sm_80")]
pub mod sort;

#[cfg(maxsim_arch = "sm_80")]
pub use both::both;
#[cfg(maxsim_arch = "sm_80")]
pub use compare::compare;
#[cfg(maxsim_arch = "sm_80")]
pub use copies::{copies, extents};
#[cfg(maxsim_arch = "sm_80")]
pub use gradients::{gradients, scatter};
#[cfg(maxsim_arch = "sm_80")]
pub use nearest::nearest;
#[cfg(maxsim_arch = "sm_80")]
pub use reduce::reduce;
#[cfg(maxsim_arch = "sm_80")]
pub use refine::refine;
#[cfg(maxsim_arch = "sm_80")]
pub use select::select;
