//! The host/device ABI: what the host writes and the kernels read, and the formulas that every
//! engine computes alike. Stated once for both.

pub mod angular;
pub mod arch;
pub mod e4m3;
pub mod element;
pub mod layout;
pub mod params;
pub mod quantize;
pub mod residual;
pub mod residual_chunk;
pub mod stream_k;
pub mod tf32;
