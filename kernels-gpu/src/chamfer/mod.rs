//! Nearest neighbours between clouds of points, by differences in f32.
//!
//! ```text
//! nearest     some points of a cloud against a tile of the other, in 32 KB of shared memory: up to
//!             15 dims
//! compare     the same of any dim, some dims at a time
//! reduce      keys → distances, neighbours, value of each pair
//! scatter     each point adds to its neighbour's gradient, in fixed point
//! gradients   what a point adds to its own, and what was added to it
//! ```
//!
//! Large clouds of up to 3 dims are not compared but [sorted](sort) and [searched](search). Of
//! those of many dims a forward kernel multiplies [copies](copies()), blocks that may have nearest
//! points are [selected](select()) and [compared](refine()). Either finds the same keys.
//!
//! One of the first two and the next are a forward pass of any number of clouds, the last two a
//! backward pass. Nothing is as large as points × points, and no bit depends on the order of what
//! CTAs do: keys are compared as whole numbers, and sums of gradients are sums of whole numbers.

mod compare;
mod copies;
mod gradients;
mod nearest;
mod points;
mod reduce;
mod refine;
pub mod search;
mod select;
pub mod sort;

pub use compare::compare;
pub use copies::{copies, extents};
pub use gradients::{gradients, scatter};
pub use nearest::nearest;
pub use reduce::reduce;
pub use refine::refine;
pub use select::select;
