//! Losses over rows of scores, and the gradients of the scores ([`crate::abi::params::loss`]).

pub mod mean;
mod reduce;
pub mod rows;
