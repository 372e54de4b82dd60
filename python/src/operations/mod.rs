//! Operations beside the sum of maxima.

pub mod chamfer;
