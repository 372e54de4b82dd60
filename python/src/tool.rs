//! The command `maxsim`, for `python -m maxsim`.

use pyo3::prelude::*;

/// Runs the command with its arguments, the name of the program first; gives its exit code.
#[pyfunction]
pub fn run(py: Python<'_>, argv: Vec<String>) -> u8 {
    py.detach(|| maxsim_cli::program::run(argv))
}
