//! Gradients of scores with respect to tokens.
//!
//! With g the gradient of a pair's score, a winner (query row q, document row d) adds `g · D[d]` to
//! `∂Q[q]` and `g · Q[q]` to `∂D[d]`.
//!
//!  - ∂Q is gathered ([`gather`]): a row's k-th term is its winner in the query's k-th pair.
//!  - ∂D needs the winners inverted: a stable counting sort by document row ([`counting_sort`]),
//!    then a segmented sum of the sorted terms ([`segmented_sum`]), in segments of equal length,
//!    one per warp. So a row that every query chose costs as much as as many terms of different
//!    rows. [`fixup`] adds the parts of rows that span several segments.
//!  - Short queries need no sort ([`short_query`]); [`atomic`] does everything in one pass, with
//!    atomic additions to ∂D.
//!
//! The call and the device alone fix the order of every sum, and only [`atomic`] adds atomically:
//! the results of all others have the same bits every time.

pub mod atomic;
#[cfg(maxsim_arch = "sm_80")]
pub mod counting_sort;
#[cfg(maxsim_arch = "sm_80")]
pub mod fixup;
pub mod gather;
pub mod normalize;
pub mod output;
mod pairs;
#[cfg(maxsim_arch = "sm_80")]
mod residual_decoded;
#[cfg(maxsim_arch = "sm_80")]
pub mod residual_gather;
#[cfg(maxsim_arch = "sm_80")]
pub mod residual_project;
#[cfg(maxsim_arch = "sm_80")]
pub mod residual_sum;
#[cfg(maxsim_arch = "sm_80")]
pub mod residual_tables;
pub mod segmented_sum;
pub mod short_query;
#[cfg(maxsim_arch = "sm_80")]
pub mod sum_chunks;
