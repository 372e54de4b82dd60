//! The compiled half of the Python package `maxsim`: calls of the library on memory whose
//! addresses Python gives. What the addresses and numbers mean is in `_sides.py`.

mod cpu;
mod cuda;
mod errors;
mod explain;
mod operations;
mod plaid;
mod pool;
mod quantize;
mod quick;
mod rank;
mod residuals;
mod search;
mod side;
mod streams;
mod tool;
mod unread;

use pyo3::prelude::*;

/// Calls of the library on memory whose addresses Python gives.
#[pymodule(gil_used = false)]
mod _maxsim {
    #[pymodule_export]
    use super::cpu::{backward, score};
    #[pymodule_export]
    use super::cuda::{cuda_backward, cuda_open, cuda_quantize, cuda_score};
    #[pymodule_export]
    use super::errors::DeviceMemoryError;
    #[pymodule_export]
    use super::explain::Explanation;
    #[pymodule_export]
    use super::operations::chamfer::{Chamfer, CudaChamfer};
    #[pymodule_export]
    use super::operations::projection::{
        Projected, project, project_backward, projected_gradients, score_projected,
    };
    #[pymodule_export]
    use super::operations::xtr::{xtr, xtr_search};
    #[pymodule_export]
    use super::plaid::Plaid;
    #[pymodule_export]
    use super::quantize::{dequantize, quantize};
    #[pymodule_export]
    use super::quick::Quick;
    #[pymodule_export]
    const WIDE_FROM: usize = super::quick::WIDE_FROM;
    #[pymodule_export]
    use super::rank::{rank, topk};
    #[pymodule_export]
    use super::residuals::{
        arrangement, cuda_backward_plaid, cuda_backward_residuals, cuda_residual_norms,
        cuda_score_plaid, cuda_score_residuals,
    };
    #[pymodule_export]
    const SCALE_PADDING: usize = (maxsim::format::RawScaleWords::len_bytes(0) / 4) as usize;
    #[pymodule_export]
    use super::search::Screen;
    #[pymodule_export]
    use super::streams::{WorkspaceError, cuda_set_workspace};
    #[pymodule_export]
    use super::tool::run;
    #[pymodule_export]
    use super::unread::cuda_write_segments;
    #[pymodule_export]
    use super::version;
}

/// Version of the package.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
