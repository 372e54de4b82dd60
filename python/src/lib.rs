//! The compiled half of the Python package `maxsim`: calls of the library on memory whose
//! addresses Python gives. What the addresses and numbers mean is in `_sides.py`.

mod cpu;
mod errors;
mod pool;
mod side;

use pyo3::prelude::*;

/// Calls of the library on memory whose addresses Python gives.
#[pymodule(gil_used = false)]
mod _maxsim {
    #[pymodule_export]
    use super::cpu::{backward, score};
    #[pymodule_export]
    use super::errors::DeviceMemoryError;
    #[pymodule_export]
    use super::version;
}

/// Version of the package.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
