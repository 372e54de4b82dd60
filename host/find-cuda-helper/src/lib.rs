//! Stands in for the crate of this name, by `[patch.crates-io]` in the workspace's Cargo.toml.
//!
//! The build scripts of `cust` and `cust_raw` ask it to link the CUDA driver, and the published one
//! fails where no CUDA is installed. `maxsim` does not link the driver: it has those functions
//! itself and opens the driver at run time, where there is one (`host/src/cuda/driver/symbols.rs`).
//! So nothing needs to be found, and `cargo install` of the tool works on every machine.

/// Asks for nothing to be linked.
pub fn include_cuda() {
    // Nothing that can change has a say in this.
    println!("cargo:rerun-if-changed=build.rs");
}
