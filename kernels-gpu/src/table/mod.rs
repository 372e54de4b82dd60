//! The tables of compiled kernels. They alone drive the PTX entry points, the host's dispatch, the
//! PTX check, warm-up, tests and benchmarks.

pub mod forward;
