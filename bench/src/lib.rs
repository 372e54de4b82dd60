//! maxsim for benchmarks: a C interface that a Python script loads beside other libraries.
//!
//! Same process, same primary context, same stream, same tensors: whatever is timed differs in
//! nothing but the library. [`ffi`] is the interface; the scripts are in the folder `bench`.

pub mod cold_start;
pub mod ffi;

mod codes;
mod object;
mod options;
mod roofs;
