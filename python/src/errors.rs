//! Errors of the library as Python's exceptions.

use maxsim::Error;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyNotImplementedError, PyOSError};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};

create_exception!(
    _maxsim,
    DeviceMemoryError,
    PyMemoryError,
    "A CUDA device has no room; raised as torch.OutOfMemoryError where tensors are torch's."
);

/// The exception that stands for an error of the library.
pub fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Shape { argument: "element types", .. } => PyTypeError::new_err(text),
        Error::Shape { .. }
        | Error::Offset { .. }
        | Error::Id { .. }
        | Error::TooLarge { .. }
        | Error::WrongDevice { .. } => PyValueError::new_err(text),
        Error::HostMemory { .. } => PyMemoryError::new_err(text),
        Error::DeviceMemory { .. } => DeviceMemoryError::new_err(text),
        Error::Source { .. } => PyOSError::new_err(text),
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        // One of RuntimeError's.
        Error::Unsupported { .. } => PyNotImplementedError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// An error that names an argument, what was expected and what was found.
pub fn shape(argument: &'static str, expected: impl Into<String>, found: impl ToString) -> Error {
    Error::Shape { argument, expected: expected.into(), found: found.to_string() }
}
