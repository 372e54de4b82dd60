//! Nearest neighbours between clouds of points of up to 15 dims, by differences in f32.
//!
//! ```text
//! nearest     some points of a cloud against a tile of the other: 32 KB in shared memory
//! reduce      keys → distances, neighbours, value of each pair
//! scatter     each point adds to its neighbour's gradient, in fixed point
//! gradients   what a point adds to its own, and what was added to it
//! ```
//!
//! Large clouds of up to 3 dims are not compared but [sorted](sort) and [searched](search), which
//! finds the same keys.
//!
//! The first two are a forward pass of any number of clouds, the last two a backward pass. Nothing
//! is as large as points × points, and no bit depends on the order of what CTAs do: keys are
//! compared as whole numbers, and sums of gradients are sums of whole numbers.

mod gradients;
mod nearest;
mod points;
mod reduce;
pub mod search;
pub mod sort;

pub use gradients::{gradients, scatter};
pub use nearest::nearest;
pub use reduce::reduce;
