//! Building blocks of kernels of several families.

pub mod accumulator;
pub mod documents;
pub mod residual_chunk;
pub mod row_maxima;
pub mod row_scales;
pub mod row_vector;
pub mod unroll;
pub mod work_tile;
