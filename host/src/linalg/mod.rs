//! Arithmetic on f32 rows in host memory: similarities of a tile, lengths of rows.

pub(crate) mod gemm;
pub(crate) mod normalize;
